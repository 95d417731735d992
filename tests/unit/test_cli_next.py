"""`duly next`, as it is called from a shell."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from duly.cli import COMMANDS, main
from duly.cli.cron import ahead_text


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(main, ["next", *arguments], **options)


def answer(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_table() -> None:
    """The firings are listed in local time and UTC, with what the clocks do in between."""
    result = run("30 2 * * *", "-n", "3", "--tz", "Europe/Berlin", "--from", "2026-03-28T00:00")
    forward = "clocks go forward by 1 h at 02:00 on 2026-03-29; offset is now +02:00"
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "At 02:30, every day (Europe/Berlin)",
        "",
        "  Sat 2026-03-28 02:30 +01:00   2026-03-28 01:30 UTC   in 2h 30m",
        f"    {forward}; 02:30 does not occur: skipped",
        "  Mon 2026-03-30 02:30 +02:00   2026-03-30 00:30 UTC   in 2d 1h",
        "  Tue 2026-03-31 02:30 +02:00   2026-03-31 00:30 UTC   in 3d 1h",
    ]


def test_repeated_hour() -> None:
    """A note on a firing itself stands below it, one on the clocks above the firing that follows."""
    result = run("30 2 * * *", "-n", "2", "--tz", "Europe/Berlin", "--from", "2026-10-25")
    assert result.stdout.splitlines()[2:] == [
        "  Sun 2026-10-25 02:30 +02:00   2026-10-25 00:30 UTC   in 2h 30m",
        "    02:30 is shown twice: due the first time only",
        "    clocks go back by 1 h at 03:00 on 2026-10-25; offset is now +01:00",
        "  Mon 2026-10-26 02:30 +01:00   2026-10-26 01:30 UTC   in 1d 3h",
    ]


def test_offset_with_seconds() -> None:
    """Offsets with seconds are shown to the second, and the columns stay aligned."""
    result = run("0 12 * * *", "-n", "2", "--tz", "Africa/Monrovia", "--from", "1972-01-06")
    assert result.stdout.splitlines()[2:] == [
        "  Thu 1972-01-06 12:00 -00:44:30   1972-01-06 12:44:30 UTC   in 12h",
        "    clocks go forward by 44 min 30 s at 00:00 on 1972-01-07; offset is now +00:00",
        "  Fri 1972-01-07 12:00 +00:00      1972-01-07 12:00 UTC   in 1d 11h",
    ]


def test_five_by_default() -> None:
    """Without a count there are five."""
    assert len(answer("0 9 * * 1-5", "--tz", "UTC", "--from", "2026-01-01")["firings"]) == 5


def test_json() -> None:
    """Machines get the same facts as one object."""
    assert answer("30 2 * * *", "-n", "2", "--tz", "Europe/Berlin", "--from", "2026-10-25T00:00+02:00") == {
        "expression": "30 2 * * *",
        "words": "At 02:30, every day",
        "timezone": "Europe/Berlin",
        "from": "2026-10-25T00:00:00+02:00",
        "firings": [
            {
                "local": "2026-10-25T02:30:00+02:00",
                "utc": "2026-10-25T00:30:00Z",
                "weekday": 0,
                "in_s": 9000.0,
                "notes": [{"kind": "repeated", "text": "02:30 is shown twice: due the first time only"}],
            },
            {
                "local": "2026-10-26T02:30:00+01:00",
                "utc": "2026-10-26T01:30:00Z",
                "weekday": 1,
                "in_s": 99_000.0,
                "notes": [
                    {
                        "kind": "back",
                        "text": "clocks go back by 1 h at 03:00 on 2026-10-25; offset is now +01:00",
                    }
                ],
            },
        ],
    }


def test_now_and_here() -> None:
    """Without --from and --tz it counts from the host's present, in the host's zone."""
    before = datetime.fromtimestamp(0, UTC) + timedelta(seconds=_host_s())
    found = answer("* * * * *", "-n", "1")
    first = datetime.fromisoformat(found["firings"][0]["utc"])
    assert timedelta(0) < first - before < timedelta(minutes=2)
    assert found["timezone"]


def _host_s() -> float:
    from duly.clock import HostClock  # noqa: PLC0415 - only this test needs it

    return HostClock().now().timestamp()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("2026-03-29", "2026-03-29T00:00:00+01:00"),
        ("2026-03-29T12:00", "2026-03-29T12:00:00+02:00"),
        ("2026-03-29 12:00:30", "2026-03-29T12:00:30+02:00"),
        ("2026-03-29T12:00Z", "2026-03-29T14:00:00+02:00"),
        ("2026-03-29T12:00-05:00", "2026-03-29T19:00:00+02:00"),
        ("2026-10-25T02:30", "2026-10-25T02:30:00+02:00"),
        ("2026-03-29T02:30", "2026-03-29T03:30:00+02:00"),
    ],
)
def test_from(given: str, shown: str) -> None:
    """A time without an offset is the zone's own; one with an offset is that instant."""
    assert answer("0 0 * * *", "--tz", "Europe/Berlin", "--from", given)["from"] == shown


@pytest.mark.parametrize("given", ["yesterday", "", "2026-13-01", "25:00", "0001-01-01", "\x1b[31m"])
def test_not_a_time(given: str) -> None:
    """A time that cannot be used is refused with how to write one."""
    result = run("0 0 * * *", "--tz", "Asia/Tokyo", "--from", given)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "write it like 2026-03-29T01:30" in result.stderr
    assert "\x1b" not in result.stderr
    error = answer("0 0 * * *", "--tz", "Asia/Tokyo", "--from", given)["error"]
    assert error["code"] == "invalid_time"
    assert error["time"] == given


def test_unquoted() -> None:
    """Five arguments do as well as one in quotes."""
    found = answer("0", "9", "*", "*", "1-5", "--tz", "UTC", "--from", "2026-01-01")
    assert found["expression"] == "0 9 * * 1-5"


def test_unquoted_star() -> None:
    """When the shell has put file names for the stars, the refusal says to quote."""
    result = run("0", "9", "LICENSE", "Makefile", "src", "LICENSE", "Makefile", "src", "1-5")
    assert result.exit_code == 2
    assert "not 9" in result.stderr
    assert "Put the expression in quotes" in result.stderr


def test_end_of_time() -> None:
    """Where no firing is left, that is said; where a few are left, they are listed."""
    result = run("0 0 1 * *", "--tz", "UTC", "--from", "9999-12-20")
    assert result.exit_code == 0
    assert "never again before the year 10000" in result.stdout
    assert len(answer("0 0 1 * *", "--tz", "UTC", "--from", "9999-10-20")["firings"]) == 2


@pytest.mark.parametrize("count", ["0", "-1", "10001", "x"])
def test_count_is_bounded(count: str) -> None:
    """A count that is no count is refused."""
    assert run("* * * * *", "-n", count).exit_code == 2


def test_colour_on_a_terminal_only() -> None:
    """Notes and errors are coloured where there are eyes, and plain where there are pipes."""
    arguments = ("30 2 * * *", "-n", "1", "--tz", "Europe/Berlin", "--from", "2026-03-29")
    assert "\x1b[" not in run(*arguments).stdout
    assert "\x1b[33m" in run(*arguments, color=True).stdout
    assert "\x1b[31m" in run("bad", color=True).stderr
    assert "\x1b[" not in run("bad").stderr


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR means no colour, terminal or not."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("bad", color=True).stderr


@pytest.mark.parametrize(
    ("ahead", "text"),
    [
        (timedelta(microseconds=1), "in 0s"),
        (timedelta(seconds=59), "in 59s"),
        (timedelta(minutes=1), "in 1m"),
        (timedelta(minutes=1, seconds=5), "in 1m 5s"),
        (timedelta(hours=2, minutes=5, seconds=59), "in 2h 5m"),
        (timedelta(hours=2, seconds=59), "in 2h"),
        (timedelta(days=3, hours=4), "in 3d 4h"),
        (timedelta(days=1461, minutes=1), "in 1461d"),
    ],
)
def test_ahead(ahead: timedelta, text: str) -> None:
    """How far ahead is told in the two largest units, the second left out where it is none."""
    assert ahead_text(ahead) == text


def test_help_lists_all_commands() -> None:
    """Help shows every command of the registry, and each of them can be called."""
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert name in result.stdout
        assert entry.help[:40] in result.stdout
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_unknown_command() -> None:
    """A command that is none is refused."""
    result = CliRunner().invoke(main, ["nxt"])
    assert result.exit_code == 2
    assert "nxt" in result.stderr
