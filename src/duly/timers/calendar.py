"""Schedules of timers: what says when a timer has a slot, as timetables that answer in instants.

A calendar is a cron expression whose five fields must all match, so it is laid on the same arithmetic and the
same DST rules. One that names a date that never comes is left out here, once, so that nobody searches eight
thousand years for it at every look. A fixed rate (`every`) counts from the registration of its timer: that is
the anchor of the answers. On top of these come what a timer may say of all its slots: which dates it leaves
out, that an hour that is shown twice counts twice, and by how much it is late on purpose.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import ClassVar
from zoneinfo import ZoneInfo

import msgspec

from duly.config.schema import Calendar, Timer, expression_of
from duly.core.timetable import CronTimetable, Every, LastDay, Once, Shifted, Timetable, shown_us
from duly.cron.notes import clock_changes
from duly.errors import CronCalculationError
from duly.instant import LATEST_US, NEVER_US, SECOND_US, Instant, datetime_at, instant_of
from duly.schedules import offset_s

Calendars = tuple[Timetable, ...]

_MICROSECOND = timedelta(microseconds=1)
_LONGEST_REPEAT_US = 24 * 3600 * SECOND_US
"""No clock was ever set back by more."""


def zone_of(timer: Timer, default: tzinfo) -> tzinfo:
    """The zone whose civil time a timer means."""
    return default if timer.timezone is None else ZoneInfo(timer.timezone)


class CalendarCache:
    """The schedules in use, one for each calendar and zone, however many timers share it."""

    def __init__(self, default: tzinfo) -> None:
        self.default = default
        self._schedules: dict[tuple[Calendar, int], CronTimetable] = {}

    def of(self, timer: Timer) -> Calendars:
        """The schedules of a timer, without those that never come."""
        return tuple(self._each(timer, zone_of(timer, self.default)))

    def _each(self, timer: Timer, zone: tzinfo) -> Iterator[Timetable]:
        calendars = (self._schedule(calendar, zone) for calendar in timer.on_calendar)
        schedules: list[Timetable] = [
            _BothTimes(calendar) if timer.dst == "both" else calendar
            for calendar in calendars
            if calendar.expression.has_a_date
        ]
        if timer.at is not None:
            moment = datetime.fromisoformat(timer.at)
            # A moment that a clock change skips is taken with the offset before it, as in the library.
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
            schedules.append(Once("", instant_of(moment)))
        if timer.every is not None:
            schedules.append(Every("", round(timer.every * SECOND_US)))
        dates = _dates_of(timer.exclude)
        later_us = offset_s(timer.id, round(timer.random_delay_sec * SECOND_US)) * SECOND_US
        for each in schedules:
            on_days = _OtherDays(each, zone, dates) if dates else each
            yield Shifted("", on_days, later_us) if later_us else on_days

    def _schedule(self, calendar: Calendar, zone: tzinfo) -> CronTimetable:
        # By id: a zone need not be hashable, and its schedule keeps it alive.
        schedule = self._schedules.get((calendar, id(zone)))
        if schedule is None:
            kind = LastDay if calendar.day_of_month == "last" else CronTimetable
            schedule = self._schedules[calendar, id(zone)] = kind(expression_of(calendar), zone)
        return schedule


@lru_cache(maxsize=64)
def _dates_of(texts: tuple[str, ...]) -> frozenset[date]:
    """Thousands of timers may exclude the same holidays."""
    return frozenset(map(date.fromisoformat, texts))


class _OtherDays(msgspec.Struct, gc=False, eq=False):
    """Another schedule, without what it has on certain dates of a zone."""

    is_by_minute: ClassVar[bool] = False
    is_from_end: ClassVar[bool] = False
    base: Timetable
    zone: tzinfo
    dates: frozenset[date]

    @property
    def text(self) -> str:
        return self.base.text

    def due_after(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        due_us = self.base.due_after(instant_us, anchor_us)
        # Each turn goes on, and never past the end of the date; so it ends after finitely many dates.
        while due_us < NEVER_US and (face := datetime_at(due_us, self.zone)).date() in self.dates:
            due_us = self.base.due_after(max(due_us, min(shown_us(face, time.max))), anchor_us)
        return due_us

    def due_at_or_before(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        due_us = self.base.due_at_or_before(instant_us, anchor_us)
        while (face := datetime_at(due_us, self.zone)).date() in self.dates:
            # A moment that is yet to come answers with any instant before it, which is no due of its own.
            if self.base.due_after(due_us - 1, anchor_us) != due_us:
                break
            due_us = self.base.due_at_or_before(min(due_us, max(shown_us(face, time.min))) - 1, anchor_us)
        return due_us


class _BothTimes(msgspec.Struct, gc=False, eq=False):
    """A calendar whose minutes are due also when the clocks, set back, show them a second time."""

    is_by_minute: ClassVar[bool] = True
    is_from_end: ClassVar[bool] = False
    first: CronTimetable
    """It is due when they are shown first."""

    @property
    def text(self) -> str:
        return self.first.text

    def due_after(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        due_us = self.first.due_after(instant_us, anchor_us)
        for begins_us, ends_us, again in self._repeats(instant_us, min(due_us, LATEST_US)):
            again_us = again.due_after(max(instant_us, begins_us - 1))
            if again_us < ends_us:
                return min(due_us, again_us)
        return due_us

    def due_at_or_before(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        due_us = self.first.due_at_or_before(instant_us, anchor_us)
        for begins_us, ends_us, again in self._repeats(due_us, instant_us):
            again_us = again.due_at_or_before(min(instant_us, ends_us - 1))
            due_us = max(due_us, again_us) if again_us >= begins_us else due_us
        return due_us

    def _repeats(
        self, from_us: Instant, until_us: Instant
    ) -> Iterator[tuple[Instant, Instant, CronTimetable]]:
        """When what was shown is shown again, from and until; and the calendar by the clocks of that time."""
        zone = self.first.zone
        after, until = (datetime_at(at_us, zone) for at_us in (from_us - _LONGEST_REPEAT_US, until_us))
        for change in clock_changes(zone, after, until):
            begins_us = instant_of((change.shown_after - change.offset).replace(tzinfo=UTC))
            length_us = (change.shown_before - change.shown_after) // _MICROSECOND
            if begins_us + length_us > from_us:
                again = type(self.first)(self.first.expression, timezone(change.offset))
                yield begins_us, begins_us + length_us, again


def slot_after(calendars: Calendars, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
    """The first slot later than *instant_us*; NEVER_US when there is none.

    *anchor_us* is when the timer was registered.
    """
    if len(calendars) == 1:
        return calendars[0].due_after(instant_us, anchor_us)
    return min((calendar.due_after(instant_us, anchor_us) for calendar in calendars), default=NEVER_US)


def slot_at_or_before(calendars: Calendars, instant_us: Instant, anchor_us: Instant = 0) -> Instant | None:
    """The latest slot that is not later than *instant_us*."""
    slots = []
    for calendar in calendars:
        with suppress(CronCalculationError):  # there was none since the beginning of time
            slot_us = calendar.due_at_or_before(instant_us, anchor_us)
            # A single moment that is yet to come has none before it.
            if calendar.due_after(slot_us - 1, anchor_us) == slot_us:
                slots.append(slot_us)
    return max(slots, default=None)
