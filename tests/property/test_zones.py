"""Every clock change of every zone: that none is overlooked, and what cron makes of each.

The whole of it is the `slow` tests; a fixed sample of every fortieth change runs always. Both compare with
the walker, in a window that reaches past what the change skips or repeats, on either side.
"""

import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo, available_timezones

import pytest

from duly.cron import CronExpression, civil
from tests.property.strategies import ZONES
from tests.property.walker import MINUTE, SECOND, Transition, civil_minutes, fields_of, is_named, transitions

TEXTS = (
    "* * * * *",
    "0,15,30,45 * * * *",
    "30 1-3 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "5,55 0-4,20-23 * * 0,6",
    "0 0-12 1-7,25-31 * 0",
    "1-58 2 * 3-4,9-11 *",
)
MICROSECOND = timedelta(microseconds=1)
ASIDE = timedelta(minutes=90)
PARTS = 16


@lru_cache
def distinct_zones() -> tuple[str, ...]:
    """One name for each distinct history of clock changes since 1970; most names are links."""
    names = {changes_since_1970(key): key for key in sorted(available_timezones(), reverse=True)}
    return tuple(sorted(names.values()))


def changes_since_1970(key: str) -> tuple[Transition, ...]:
    return tuple(change for change in transitions(key) if change.instant.year >= 1970)


def check_around(key: str, change: Transition) -> None:
    """All of TEXTS, asked from many origins around one clock change, answer as the walker does."""
    zone, reach = ZoneInfo(key), abs(change.shift) + ASIDE
    begin, end = change.instant - reach, change.instant + reach
    # Changes lie days apart: nothing before the window repeats inside of it, so no earlier watching.
    minutes = list(civil_minutes(zone, begin, end, watched=timedelta(0)))
    origins = list(origins_around(change, begin, end))
    for text in TEXTS:
        fields, expression = fields_of(text), CronExpression.parse(text)
        due = [shown.instant for shown in minutes if is_named(fields, shown.civil)]
        for origin in origins:
            check_from(expression, origin.astimezone(zone), due, (begin, end))


def origins_around(change: Transition, begin: datetime, end: datetime) -> Iterator[datetime]:
    """The change and what it skips or repeats to the microsecond, the rest every quarter of an hour or so."""
    for edge in (change.instant, change.instant - abs(change.shift), change.instant + abs(change.shift)):
        yield from (edge + aside for aside in (-MINUTE, -SECOND, -MICROSECOND, 0 * SECOND, SECOND, MINUTE))
    # 17 shares no factor with 60, so the minutes of the origins differ from hour to hour.
    step = max(1, (end - begin) // (680 * MINUTE)) * 17 * MINUTE
    origin = begin
    while origin < end:
        yield origin
        origin += step


def check_from(
    expression: CronExpression, origin: datetime, due: list[datetime], window: tuple[datetime, datetime]
) -> None:
    instant = origin.astimezone(UTC)
    following, previous = bisect_right(due, instant), bisect_right(due, instant) - 1
    found = expression.next_after(origin).astimezone(UTC)
    expected = due[following] if following < len(due) else None
    assert found == expected if expected else found >= window[1], told(expression, origin, found, expected)
    found = expression.previous_at_or_before(origin).astimezone(UTC)
    expected = due[previous] if previous >= 0 else None
    assert found == expected if expected else found < window[0], told(expression, origin, found, expected)
    is_due = bisect_left(due, instant) < following
    if origin.second == origin.microsecond == 0:
        assert expression.matches(origin) == is_due, told(expression, origin, not is_due, is_due)


def told(expression: CronExpression, origin: datetime, found: object, expected: object) -> str:
    return f"{expression!r} at {origin.isoformat()} ({origin.tzinfo}): {found}, the walker says {expected}"


def test_every_zone_changes_rarely() -> None:
    """No two clock changes of any zone are so close that probing for them could step over both."""
    gaps = (
        (later.instant - earlier.instant, key, earlier.instant)
        for key in available_timezones()
        for earlier, later in pairwise(transitions(key))
    )
    smallest, key, instant = min(gaps)
    assert smallest > civil._PROBE + timedelta(days=1), f"{key} at {instant} for {smallest}"


def test_every_zone_has_its_oddities_covered() -> None:
    """The zones that the random tests draw from exist, and include the largest jumps in both directions."""
    assert set(ZONES) <= available_timezones()
    shifts = [change.shift for key in ZONES for change in transitions(key)]
    assert max(shifts) >= timedelta(hours=24)
    assert min(shifts) <= -timedelta(hours=23)


@pytest.mark.parametrize("key", ZONES)
def test_probing_finds_every_change(key: str) -> None:
    """The changes found by asking for offsets are those in the compiled zone file, to the second."""
    first, last = datetime(1840, 1, 1), datetime(2038, 1, 1)  # noqa: DTZ001 - timelines count naive UTC
    spans = civil.timeline(ZoneInfo(key)).from_instant(first)
    inside = takewhile(lambda span: span.begins < last, spans)
    found = [
        (earlier.ends, earlier.offset, later.offset)
        for earlier, later in pairwise(inside)
        if earlier.offset != later.offset
    ]
    expected = [
        (change.instant.replace(tzinfo=None), change.before, change.after) for change in transitions(key)
    ]
    assert found == [change for change in expected if change[0] > first]


@pytest.mark.heavy
def test_sample_of_all_changes() -> None:
    """Every fortieth clock change of all zones since 1970 is as the walker says."""
    everywhere = [(key, change) for key in distinct_zones() for change in changes_since_1970(key)]
    for key, change in everywhere[::40]:
        check_around(key, change)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_changes(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Every clock change of every zone from 1970 to 2037 is as the walker says."""
    keys = distinct_zones()[part::PARTS]
    begun_s, count = time.monotonic(), 0
    for key in keys:
        for change in changes_since_1970(key):
            check_around(key, change)
            count += 1
    took_s = time.monotonic() - begun_s
    with capsys.disabled():
        line = f"part {part + 1} of {PARTS}: {len(keys)} zones, {count} changes, {took_s:.0f} s"
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - progress of a long test
