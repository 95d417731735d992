"""The slots of a timer's calendars, worked out by the checker's own reading of civil time (`dues`).

A slot is a minute that matches every field of a calendar: unlike in cron, day and weekday both have to match.
"""

from collections.abc import Sequence
from datetime import date, tzinfo
from functools import lru_cache
from typing import Protocol

from duly.verify.dues import NEVER_US, Dues

_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class CalendarLike(Protocol):
    """A calendar as declared; None stands for every value."""

    @property
    def minute(self) -> Sequence[int] | None: ...  # noqa: D102
    @property
    def hour(self) -> Sequence[int] | None: ...  # noqa: D102
    @property
    def day_of_month(self) -> Sequence[int] | None: ...  # noqa: D102
    @property
    def month(self) -> Sequence[int] | None: ...  # noqa: D102
    @property
    def day_of_week(self) -> Sequence[int] | None: ...  # noqa: D102


class _CalendarDues(Dues):
    """The slots of one calendar."""

    def __init__(self, calendar: CalendarLike, zone: tzinfo) -> None:
        super().__init__("0 0 * * *", zone)  # a text that is little to read: all of it is replaced
        self._minutes = _numbers(calendar.minute, 0, 59)
        self._hours = _numbers(calendar.hour, 0, 23)
        self._days = _numbers(calendar.day_of_month, 1, 31)
        self._months = _numbers(calendar.month, 1, 12)
        self._weekdays = _numbers(calendar.day_of_week, 0, 6)
        self._times = _times(self._hours, self._minutes)
        self._ever = any(day <= _LONGEST_MONTHS[month - 1] for month in self._months for day in self._days)

    def after(self, at_us: int) -> int:
        """The first slot later than *at_us*."""
        return super().after(at_us) if self._ever else NEVER_US

    def _is_day(self, day: date) -> bool:
        is_in_month = day.month in self._months and day.day in self._days
        return is_in_month and day.isoweekday() % 7 in self._weekdays


class Slots:
    """The slots of all calendars of one timer."""

    def __init__(self, calendars: Sequence[CalendarLike], zone: tzinfo) -> None:
        self._dues = [_CalendarDues(calendar, zone) for calendar in calendars]

    def after(self, at_us: int) -> int:
        """The first slot later than *at_us*; NEVER_US when there is none."""
        return min((dues.after(at_us) for dues in self._dues), default=NEVER_US)

    def has(self, at_us: int) -> bool:
        """Whether this instant is a slot."""
        return self.after(at_us - 1) == at_us


@lru_cache(256)
def _times(hours: frozenset[int], minutes: frozenset[int]) -> list[tuple[int, int]]:
    """The times of a day, shared by the calendars that have the same: thousands may fire at every minute."""
    return [(hour, minute) for hour in sorted(hours) for minute in sorted(minutes)]


def _numbers(named: Sequence[int] | None, low: int, high: int) -> frozenset[int]:
    return frozenset(range(low, high + 1) if named is None else named)
