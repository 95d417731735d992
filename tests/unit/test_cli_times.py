"""Relative times and lengths."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from duly.cli.output import relative, relative_text
from duly.formatting import length

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"),
        (-0.9, "now"),
        (-1, "1s ago"),
        (-59.9, "59s ago"),
        (-60, "1m ago"),
        (-300, "5m ago"),
        (-3599, "59m ago"),
        (-3600, "1h ago"),
        (-86_399, "23h ago"),
        (-86_400, "1d ago"),
        (-86_400 * 400, "400d ago"),
        (0.1, "in 1s"),
        (59.5, "in 1m"),
        (61, "in 1m"),
        (3599.5, "in 1h"),
        (7200, "in 2h"),
        (86_400, "in 1d"),
    ],
)
def test_relative(seconds: float, text: str) -> None:
    """The largest unit that fits is told, and it never reaches the next one."""
    assert relative(NOW + timedelta(seconds=seconds), NOW) == text


def test_none() -> None:
    """A time that there is none of is a dash."""
    assert relative(None, NOW) == "-"
    assert relative_text(None, NOW) == "-"


def test_across_a_clock_change() -> None:
    """Real time counts, not what the clocks show."""
    berlin = ZoneInfo("Europe/Berlin")
    before, after = (datetime(2026, 3, 29, hour, tzinfo=berlin) for hour in (1, 4))
    assert relative(before, after) == "2h ago"
    assert relative_text("2026-03-29T01:00:00+01:00", after) == "2h ago"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.04, "0.0s"),
        (0.31, "0.3s"),
        (2, "2s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.6, "1m"),
        (72, "1m 12s"),
        (3599.7, "1h"),
        (3660, "1h 1m"),
        (86_400 + 3600 * 4 + 60, "1d 4h"),
        (86_400 + 60, "1d"),
    ],
)
def test_length(seconds: float, text: str) -> None:
    """A length has at most two units, and a unit never reaches the next one."""
    assert length(seconds) == text
