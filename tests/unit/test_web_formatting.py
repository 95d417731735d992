"""How pages speak: times, lengths, and text that cannot play tricks."""

from zoneinfo import ZoneInfo

import pytest

from duly.instant import NEVER_US
from duly.web import formatting
from duly.web.formatting import Moment
from tests.worlds.daemons import NOW_US, us

BERLIN = ZoneInfo("Europe/Berlin")
S = 1_000_000
NOW = Moment(NOW_US, BERLIN)


@pytest.mark.parametrize(
    ("apart_us", "text"),
    [
        (0, "now"),
        (1, "in 1s"),
        (59 * S, "in 59s"),
        (60 * S, "in 1m"),
        (3600 * S, "in 1h"),
        (-59 * S, "59s ago"),
        (-60 * S, "1m ago"),
        (-3599 * S, "59m ago"),
        (-86_400 * S, "1d ago"),
    ],
)
def test_relative(apart_us: int, text: str) -> None:
    """A time is told by its distance in the largest unit that fits; sixty minutes are an hour."""
    assert NOW.relative(NOW_US + apart_us) == text


def test_none_and_never_are_dashes() -> None:
    """What never comes, and what there is none of, is a dash everywhere."""
    for at_us in (None, NEVER_US):
        assert NOW.relative(at_us) == "–"
        assert NOW.clock(at_us) == "–"
        assert NOW.iso(at_us) == ""


@pytest.mark.parametrize(
    ("lasted_us", "text"),
    [
        (None, "–"),
        (-5, "0ms"),
        (3_400, "3ms"),
        (300_000, "0.3s"),
        (9_949_999, "9.9s"),
        (9_950_000, "10s"),
        (72 * S, "1m 12s"),
        (3600 * S, "1h"),
        (188_000 * S, "2d 4h"),
    ],
)
def test_length(lasted_us: int | None, text: str) -> None:
    """A length has at most two units."""
    assert formatting.length(lasted_us) == text


def test_clock_has_as_much_date_as_is_needed() -> None:
    """Today needs no date, this year no year."""
    assert NOW.clock(us("09:30:05")) == "10:30:05"
    assert NOW.clock(us("2026-03-04 09:30")) == "Wed 4 Mar 10:30"
    assert NOW.clock(us("2025-12-31 09:30")) == "31 Dec 2025 10:30"


def test_visible_spells_out_what_is_not_seen() -> None:
    """Controls and marks of direction are spelled out; letters of every script, tabs and lines stay."""
    text = "\x1b[2J\x00\x7f\x9b \u202etxt\u2066\u200f \u05e9\u05dc\u05d5\u05dd \u2713\t\n"
    assert formatting.visible(text) == (
        "\\x1b[2J\\x00\\x7f\\x9b \\u202etxt\\u2066\\u200f \u05e9\u05dc\u05d5\u05dd \u2713\t\n"
    )


def test_visible_spells_out_what_is_no_text() -> None:
    """A path may hold bytes that are no text: a page that shows it can be sent all the same."""
    assert formatting.visible("/caf\udce9/duly.toml").encode() == b"/caf\\udce9/duly.toml"


def test_printed_drops_colours() -> None:
    """Colours are noise in a page; a lone carriage return is spelled out, one before a line end is not."""
    assert formatting.printed_output("\x1b[1;31mred\x1b[0m\r\n50%\r60%\n") == "red\n50%\\x0d60%\n"


@pytest.mark.parametrize("end", ["\x1b", "\x1b[", "\x1b[1;3", "\ufffd", "\r"])
def test_settled_waits_for_the_rest(end: str) -> None:
    """What the next byte may still change is not shown yet."""
    assert formatting.settled_output(f"done{end}") == "done"
    assert formatting.settled_output("done\x1b[1m") == "done\x1b[1m"


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("web", "/services/web"),
        ("a/../b", "/services/a%2F..%2Fb"),
        ('"><script>', "/services/%22%3E%3Cscript%3E"),
        ("?q=1#x", "/services/%3Fq%3D1%23x"),
        ("..", "/services?id=.."),
        (".", "/services?id=."),
    ],
)
def test_address(name: str, address: str) -> None:
    """Every name has an address of its own, also one that a browser would take for a step upwards."""
    assert formatting.address("services", name) == address


def test_every_result_has_shape_and_colour() -> None:
    """No two results of different meaning share both icon and word."""
    shown = {(mark.icon, mark.word) for mark in formatting.RESULTS.values()}
    assert len(shown) == len(set(formatting.RESULTS.values()))
    assert formatting.result_mark("exit", exit_code=3).word == "exit 3"
    assert formatting.result_mark(None, is_running=True) == formatting.RUNNING
