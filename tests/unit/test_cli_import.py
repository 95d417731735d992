"""`duly import crontab`, as it is called from a shell."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from duly.cli import main
from duly.config import load

NO_MAIL = "to be told, write a [[notify]]; the output of each run is in its history (duly logs)"
CRONTAB = "MAILTO=x\n*/5 * * * * a | b\n0 99 * * * c\n"


def imported(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["import", "crontab", *arguments], input=stdin)


def test_to_stdout(tmp_path: Path) -> None:
    """The file goes to stdout, the remarks to stderr; a job that was left out makes the exit code 1."""
    path = tmp_path / "crontab"
    path.write_text(CRONTAB)
    result = imported(str(path))
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"{path}:1: MAILTO is not translated: {NO_MAIL}",
        f'{path}:3: left out: the hour field "99" must be 0-23, not 99',
        "1 translated, 1 left out",
    ]
    assert 'command = ["/bin/sh", "-c", "a | b"] }' in result.stdout


def test_to_a_file(tmp_path: Path) -> None:
    """With -o the file is written, unless it is there already."""
    out = tmp_path / "duly.toml"
    result = imported("-", "-o", str(out), stdin="@daily run\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"1 translated, 0 left out; wrote {out}\n"
    assert [timer.id for timer in load(out).timers] == ["run"]
    assert imported("-", "-o", str(out), stdin="@daily other\n").exit_code == 2
    assert imported("-", "-o", str(out), "--force", stdin="@daily other\n").exit_code == 0
    assert [timer.id for timer in load(out).timers] == ["other"]


def test_user_column() -> None:
    """The user of a system's crontab runs the job; one that all jobs have is said once."""
    result = imported("-", "--user-column", stdin="@daily root run\n@daily www-data ls\n")
    assert 'command = "run", user = "root" }' in result.stdout
    assert 'command = "ls", user = "www-data" }' in result.stdout
    alike = imported("-", "--user-column", stdin="@daily www-data run\n@daily www-data ls\n").stdout
    assert [line for line in alike.splitlines() if "user" in line][-1] == 'user = "www-data"'
    assert alike.count("www-data") == 1


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"\0", "binary"),
        (b"\xff", "not UTF-8"),
        (b"#" * 5_000_000, "larger than 4 MiB"),
    ],
)
def test_unusable_input(tmp_path: Path, content: bytes, part: str) -> None:
    """What is no text is refused, from stdin and from a file."""
    (tmp_path / "crontab").write_bytes(content)
    for result in (imported("-", stdin=content), imported(str(tmp_path / "crontab"))):
        assert result.exit_code == 2
        assert part in result.stderr
        assert result.stdout == ""


def test_unusable_paths(tmp_path: Path) -> None:
    """A crontab that is not there, and an output that is no TOML file, are refused."""
    result = imported(str(tmp_path / "gone"))
    assert (result.exit_code, result.stderr) == (2, f"error: {tmp_path / 'gone'}: does not exist\n")
    result = imported("-", "-o", str(tmp_path / "x.py"), stdin="")
    assert result.exit_code == 2
    assert "has to end in .toml" in result.stderr
