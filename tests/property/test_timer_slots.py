"""Slots of timers, by two independent readings: what fires them, and the monitor that watches."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duly.config import Timer
from duly.config.schema import Calendar
from duly.instant import NEVER_US, datetime_at, instant_of
from duly.timers.calendar import CalendarCache, slot_after, slot_at_or_before
from duly.verify.dues import Slots
from duly.verify.timers import zoned_timer
from tests.property.strategies import ZONES, near_transitions


def fields(low: int, high: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    some = st.lists(st.integers(low, high), min_size=1, max_size=4, unique=True)
    return st.none() | some.map(lambda values: tuple(sorted(values)))


calendars = st.builds(
    Calendar,
    minute=fields(0, 59),
    hour=fields(0, 23),
    day_of_month=fields(1, 31) | st.just("last"),
    month=st.none(),
    day_of_week=fields(0, 6),
)
keys_and_instants = st.sampled_from(ZONES).flatmap(lambda key: st.tuples(st.just(key), near_transitions(key)))


@st.composite
def timers(draw: Any, near: datetime) -> Timer:
    """A timer whose dates and moments lie near an instant."""
    dates = st.integers(-2, 4).map(lambda days: (near + timedelta(days=days)).date().isoformat())
    moments = st.integers(-3000, 6000).map(
        lambda minutes: (near + timedelta(minutes=minutes)).replace(tzinfo=None).isoformat(" ")
    )
    return Timer(
        draw(st.text(max_size=3)),
        "job",
        on_calendar=tuple(draw(st.lists(calendars, max_size=2))),
        every=draw(st.none() | st.integers(60, 90_000) | st.floats(0.5, 9000)),
        at=draw(st.none() | moments),
        random_delay_sec=draw(st.just(0) | st.integers(1, 90_000)),
        exclude=tuple(sorted(draw(st.sets(dates, max_size=3)))),
        dst=draw(st.sampled_from(["once", "both"])),
    )


@pytest.mark.heavy
@settings(max_examples=400)
@given(keys_and_instants, st.data())
@example(("Europe/Berlin", datetime(2026, 10, 25, 0, 0, tzinfo=UTC)), None)
def test_both_readings_agree(where: tuple[str, datetime], data: Any) -> None:
    """The monitor expects the slots that a timer fires for, and each slot is the latest one at its time."""
    zone, begins_us = ZoneInfo(where[0]), instant_of(where[1])
    half_past = (Calendar((30,), (2,)),)
    timer = (
        Timer("t", "job", on_calendar=half_past, dst="both") if data is None else data.draw(timers(where[1]))
    )
    anchor_us = begins_us - 12_345_678
    schedules = CalendarCache(zone).of(timer)
    slots = Slots(*zoned_timer(timer, zone, registered_us=anchor_us))
    at_us = begins_us
    for _ in range(6):
        slot_us = slot_after(schedules, at_us, anchor_us)
        assert slot_us == slots.after(at_us), datetime_at(at_us, zone)
        if slot_us >= NEVER_US:
            break
        assert slots.has(slot_us)
        assert slot_at_or_before(schedules, slot_us, anchor_us) == slot_us
        next_us = slot_after(schedules, slot_us, anchor_us)  # a moment may come a microsecond later
        assert slot_at_or_before(schedules, min(slot_us + 1, next_us - 1), anchor_us) == slot_us
        at_us = slot_us


def test_an_hour_that_comes_twice() -> None:
    """In the autumn of Berlin half past two is shown twice: one slot, or with dst = "both" two."""
    #  00:30 UTC  02:30 +02:00   once both
    #  01:00 UTC  02:00 +01:00
    #  01:30 UTC  02:30 +01:00        both
    zone, begins_us = ZoneInfo("Europe/Berlin"), instant_of(datetime(2026, 10, 25, tzinfo=UTC))
    once = Timer("t", "job", on_calendar=(Calendar((30,), (2,)),))
    for timer, hours in ((once, [0.5, 25.5]), (replace(once, dst="both"), [0.5, 1.5, 25.5])):
        schedules = CalendarCache(zone).of(timer)
        found, at_us = [], begins_us
        for _ in hours:
            at_us = slot_after(schedules, at_us)
            found.append((at_us - begins_us) / 3_600_000_000)
        assert found == hours


@pytest.mark.parametrize(
    ("zone", "begins", "calendar", "excluded", "dues"),
    [
        # Clocks went forward from 23:30 to 00:30, over midnight.
        ("America/Toronto", "1919-03-30 20:00", Calendar((15, 45), (0, 23)), "1919-03-30", "31 00:45"),
        ("America/Toronto", "1919-03-30 00:00", Calendar((15, 45), (0,), "last"), None, "31 00:45"),
        # Back from 00:01 to 23:01, so half past eleven came twice, and midnight too.
        ("America/St_Johns", "2010-11-06 12:00", Calendar((30,), (23,)), "2010-11-06", "07 23:30"),
        # Back by a day; and a day that nobody had.
        ("America/Juneau", "1867-10-18 12:00", Calendar((0,), (16,)), "1867-10-18", "19 16:00"),
        ("Pacific/Apia", "2011-12-29 12:00", Calendar((0,), (16,)), "2011-12-29", "31 16:00"),
    ],
)
def test_dates_that_end_oddly(
    zone: str, begins: str, calendar: Calendar, excluded: str | None, dues: str
) -> None:
    """Where clocks change over midnight, a date is left out whole, and no other minute with it."""
    host, exclude = ZoneInfo(zone), () if excluded is None else (excluded,)
    begins_us = instant_of(datetime.fromisoformat(begins).replace(tzinfo=host))
    timer = Timer("t", "job", on_calendar=(calendar,), exclude=exclude, dst="both")
    schedules = CalendarCache(host).of(timer)
    slot_us = slot_after(schedules, begins_us)
    assert f"{datetime_at(slot_us, host):%d %H:%M}" == dues
    assert Slots(*zoned_timer(timer, host)).after(begins_us) == slot_us
    before_us = slot_at_or_before(schedules, slot_us - 1)
    assert before_us is not None
    assert before_us <= begins_us
    assert slot_after(schedules, before_us) == slot_us


def test_a_moment_of_a_date_that_is_left_out() -> None:
    """Where midnight comes twice, a moment that is left out has no slot, and the search for one ends."""
    zone = ZoneInfo("America/Havana")  # on 2025-11-02 01:00 became 00:00 again
    timer = Timer("t", "job", at="2025-11-02 00:30", exclude=("2025-11-01", "2025-11-02"))
    schedules, at_us = CalendarCache(zone).of(timer), instant_of(datetime(2025, 11, 2, 0, 30, tzinfo=zone))
    for instant_us in (at_us - 1, at_us, at_us + 1):
        assert slot_at_or_before(schedules, instant_us) is None
        expected_us = Slots(*zoned_timer(timer, zone)).after(instant_us)
        assert slot_after(schedules, instant_us) == expected_us == NEVER_US


def test_last_days() -> None:
    """The last day of a month is the 28th to the 31st, and a weekday has to match as well."""
    begins_us = instant_of(datetime(2027, 12, 31, 9, tzinfo=UTC))
    for weekday, days in ((None, ["01-31", "02-29", "03-31", "04-30"]), ((5,), ["03-31", "06-30"])):
        calendar = Calendar((0, 30), (9,), "last", None, weekday)
        schedules = CalendarCache(ZoneInfo("UTC")).of(Timer("t", "job", on_calendar=(calendar,)))
        found: dict[str, list[int]] = {}
        at_us = begins_us + 3_600_000_000
        while len(found) < len(days):
            at_us = slot_after(schedules, at_us)
            found.setdefault(f"{datetime_at(at_us, UTC):%m-%d}", []).append(at_us)
        assert list(found) == days
        assert {len(slots) for slots in list(found.values())[:-1]} <= {2}
