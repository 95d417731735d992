"""`duly simulate`, as it is called from a shell."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from duly.cli import main

TEXT = """
[supervisor]
timezone = "Europe/Berlin"

[[service]]
id = "backup"
type = "oneshot"
command = "save"

[[service]]
id = "off"
type = "oneshot"
command = "save"
enabled = false

[[timer]]
id = "nightly"
target = "backup"
on_calendar = { minute = 30, hour = 2 }

[[timer]]
id = "poll"
target = "backup"
on_startup_sec = 3600
on_unit_active_sec = 36000

[[timer]]
id = "never"
target = "off"
on_calendar = { minute = 0, hour = 12 }
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DULY_CONFIG", raising=False)
    (tmp_path / "duly.toml").write_text(TEXT)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def events(*arguments: str) -> list[tuple[str, str, str]]:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    seen: Any = json.loads(result.stdout)
    return [(event["at"], event["timer"], event["reason"]) for event in seen["events"]]


def test_clock_change() -> None:
    """A night whose minute does not occur has no run, by the rules that the daemon goes by."""
    assert events("--timer", "nightly", "--from", "2026-03-28", "--to", "2026-03-31") == [
        ("2026-03-28T02:30:00+01:00", "nightly", "schedule"),
        ("2026-03-30T02:30:00+02:00", "nightly", "schedule"),
    ]


def test_intervals_and_misses() -> None:
    """Start-up triggers count from the beginning, intervals from each end, and misses are shown."""
    assert events("duly.toml", "--from", "2026-01-01T00:00", "--to", "2026-01-02T00:00") == [
        ("2026-01-01T01:00:00+01:00", "poll", "startup"),
        ("2026-01-01T02:30:00+01:00", "nightly", "schedule"),
        ("2026-01-01T12:00:00+01:00", "never", "disabled-target"),
        ("2026-01-01T12:30:00+01:00", "poll", "interval"),
        ("2026-01-01T22:30:00+01:00", "poll", "interval"),
    ]


def test_table() -> None:
    """People get a table and a sum."""
    shown = run("--from", "2026-01-01T00:00", "--to", "2026-01-01T13:00").stdout.splitlines()
    assert shown == [
        "AT                             TIMER    TARGET  REASON",
        "Thu 2026-01-01 01:00:00+01:00  poll     backup  startup",
        "Thu 2026-01-01 02:30:00+01:00  nightly  backup  schedule",
        "Thu 2026-01-01 12:00:00+01:00  never    off     missed: disabled-target",
        "Thu 2026-01-01 12:30:00+01:00  poll     backup  interval",
        "3 runs, 1 miss; times are those of Europe/Berlin.",
    ]


def test_limit(here: Path) -> None:
    """No more rows than asked for, and the rest of a long range is not even simulated."""
    (here / "duly.toml").write_text(TEXT.replace("{ minute = 30, hour = 2 }", "{}"))
    result = run("--timer", "nightly", "--from", "2026-01-01", "--to", "3026-01-01", "-n", "5")
    assert result.exit_code == 0
    assert "There would be more" in result.stdout
    result = run("--from", "2026-01-01", "--to", "2026-01-02", "-n", "5", "--json")
    assert json.loads(result.stdout)["truncated"] is True


def test_nothing() -> None:
    """A range in which nothing comes due is said to be empty."""
    assert run("--from", "2026-01-01T03:00", "--to", "2026-01-01T03:10").stdout == "Nothing would run.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--from", "2026-01-02", "--to", "2026-01-01"), 2, "--to has to be later"),
        (("--from", "noon"), 2, "is not a time"),
        (("--timer", "nobody"), 3, "there is no timer nobody"),
        (("--timer", "nihgtly"), 3, "did you mean nightly?"),
        (("none.toml",), 4, "none.toml"),
        (("--from", "9999-01-01"), 2, "is not a time"),
    ],
)
def test_refusals(arguments: tuple[str, ...], code: int, said: str) -> None:
    """What cannot be simulated is refused in one sentence, with its exit code."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_nothing_is_written(here: Path) -> None:
    """A simulation leaves no trace."""
    run("--from", "2026-01-01", "--to", "2026-01-05")
    assert [path.name for path in here.iterdir()] == ["duly.toml"]
