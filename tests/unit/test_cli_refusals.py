"""Refusals on the command line: the mark under the fault, what to write instead, and nothing raw."""

import json
import sys
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.cli import main
from duly.cli.output import width
from duly.formatting import close_zones, printable


def run(command: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, [command, *arguments])


@pytest.mark.parametrize("command", ["next", "explain"])
def test_mark_and_spelling(command: str) -> None:
    """The bad field is marked, the reason given, and the POSIX text offered."""
    result = run(command, "0 */6 * * *")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: hour field has a step (/), which POSIX cron does not have",
        "",
        "  0 */6 * * *",
        "    ^^^",
        "",
        "write: 0 0,6,12,18 * * *",
    ]


@pytest.mark.parametrize(
    ("text", "shown", "mark"),
    [
        ("60 * * * *", "60 * * * *", "^^"),
        ("0 0 32 * *", "0 0 32 * *", "    ^^"),
        ("0 0 * * mon,x", "0 0 * * mon,x", "        ^^^^^"),
        ("  0\t\t24  * * * ", "0 24 * * *", "  ^^"),
        ("* * *", "* * *", "^^^^^"),
        ("", "", "^"),
        ("0 0 30 2 *", "0 0 30 2 *", "^^^^^^^^^^"),
        ("1 \x1b[2J * * *", r"1 \x1b[2J * * *", "  ^^^^^^^"),
        ("1 \uff12\uff13 * * *", "1 \uff12\uff13 * * *", "  ^^^^"),
        ("\uff12 25 * * *", "\uff12 25 * * *", "^^"),
        ("0 0 *\n * *", r"0 0 *\n * *", "    ^^^"),
        ("0 " + "9" * 100 + " * * *", "0 " + "9" * 39 + "… * * *", "  " + "^" * 40),
        ("* " * 50, "* * * * * * * * …", "^" * 17),
    ],
)
def test_mark(text: str, shown: str, mark: str) -> None:
    """The mark stands exactly under the fault, however wide, long or strange the text is."""
    lines = run("next", text).stderr.splitlines()
    assert lines[2].rstrip() == f"  {shown}".rstrip()
    assert lines[3] == f"  {mark}"


def test_no_spelling_no_offer() -> None:
    """Where no POSIX text means the same, none is offered."""
    assert "write:" not in run("next", "0 0 L * *").stderr


@pytest.mark.parametrize(
    ("text", "field", "write"),
    [
        ("*/15 * * * *", "minute", "0,15,30,45 * * * *"),
        ("0 0 L * *", "day", None),
        ("@daily", "expression", "0 0 * * *"),
    ],
)
@pytest.mark.parametrize("command", ["next", "explain"])
def test_json(command: str, text: str, field: str, write: str | None) -> None:
    """Machines get the refusal as one object on stdout, and the same exit code."""
    result = run(command, text, "--json")
    assert result.exit_code == 2
    assert result.stderr == ""
    error: Any = json.loads(result.stdout)["error"]
    assert list(error) == ["code", "message", "expression", "field", "reason", "write"]
    assert error["code"] == "invalid_expression"
    assert (error["expression"], error["field"], error["write"]) == (text, field, write)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("europe/berlin ", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("america/new york", "America/New_York"),
        ("Kolkatta", "Asia/Kolkata"),
        ("utc+", "UTC"),
    ],
)
def test_close_zones(name: str, close: str) -> None:
    """A zone that is nearly one is answered with the one it nearly is."""
    assert close_zones(name, available_timezones())[0] == close
    result = run("next", "* * * * *", "--tz", name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f'error: there is no time zone "{name}"')
    assert f"did you mean {close}" in result.stderr


@pytest.mark.parametrize(
    "name", ["", "Europe", "/etc/passwd", "../UTC", "a\0b", "\x1b]0;x\x07", "x" * 100_000, "🕰"], ids=ascii
)
def test_unusable_zones(name: str) -> None:
    """Folders, paths, nulls, escapes and megabytes are no zones either, and do no harm."""
    result = run("explain", "* * * * *", "--tz", name)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: there is no time zone")
    assert len(result.stderr) < 300
    assert "\x1b" not in result.stderr
    error: Any = json.loads(run("explain", "* * * * *", "--tz", name, "--json").stdout)["error"]
    assert error["code"] == "unknown_timezone"
    assert error["timezone"] == name


@given(st.text(st.characters(), max_size=30))
def test_nothing_raw(text: str) -> None:
    """Whatever the text, what is printed of it obeys no terminal and can be encoded."""
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()
    assert width(shown) <= 2 * len(shown)


@settings(max_examples=50)
@given(st.lists(st.text(st.characters(), max_size=8), min_size=5, max_size=5).map(" ".join))
def test_refusals_never_crash(text: str) -> None:
    """Any text is either answered or refused; nothing else happens."""
    result = run("next", "--tz", "UTC", "--from", "2026-01-01", "--", text)
    assert result.exit_code in (0, 2)
    assert all(line.isprintable() for line in result.output.split("\n"))


def test_page_without_what_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jinja2 `duly verify --html` says what to install before it reads the trace."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = run("verify", "no-such-trace.jsonl", "--html", str(tmp_path / "page.html"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: --html needs jinja2: pip install 'duly[web]'\n"
