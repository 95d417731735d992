"""`duly init`, as it is called from a shell."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from duly.cli import main


def init(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["init", *arguments])


@pytest.mark.parametrize("name", ["duly.toml", "duly.py"])
def test_writes_a_file_that_is_fine(tmp_path: Path, name: str) -> None:
    """What is written passes `duly check` without a warning."""
    path = tmp_path / name
    result = init(str(path))
    assert result.exit_code == 0
    assert str(path) in result.stdout
    checked = CliRunner().invoke(main, ["check", str(path)])
    assert checked.stdout.splitlines() == [
        "  backup: At 03:30, every day",
        "2 services and 1 timer can be used; nothing is wrong.",
    ]


def test_default_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name it is duly.toml, here."""
    monkeypatch.chdir(tmp_path)
    assert init().exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["duly.toml"]


def test_never_overwrites(tmp_path: Path) -> None:
    """A file that is there stays as it is, unless it is forced."""
    path = tmp_path / "duly.toml"
    path.write_text("mine")
    result = init(str(path))
    assert (result.exit_code, result.stderr) == (2, f"error: {path} exists already; --force overwrites it\n")
    assert path.read_text() == "mine"
    assert init(str(path), "--force").exit_code == 0
    assert path.read_text() != "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["duly.toml"]


@pytest.mark.parametrize("force", [True, False])
def test_places_where_nothing_can_be_written(tmp_path: Path, force: bool) -> None:
    """A directory in its place, or none to put it in: one sentence, exit code 2."""
    options = ["--force"] if force else []
    (tmp_path / "d.toml").mkdir()
    inside = init(str(tmp_path / "gone" / "duly.toml"), *options)
    instead = init(str(tmp_path / "d.toml"), *options)
    assert (inside.exit_code, instead.exit_code) == (2, 2)
    assert inside.stderr.endswith("cannot be written: No such file or directory\n")
    assert instead.stderr.endswith(
        "it is a directory\n" if force else "exists already; --force overwrites it\n"
    )


def test_suffix(tmp_path: Path) -> None:
    """The name has to say which form is wanted."""
    result = init(str(tmp_path / "duly.yaml"))
    assert result.exit_code == 2
    assert "has to end in .toml or .py" in result.stderr
    assert list(tmp_path.iterdir()) == []
