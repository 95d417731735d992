"""Calendars of timers: their five fields, whether they ever come, how close their minutes lie together.

Only arithmetic on fields: which minutes of the clock, which dates. When such a minute is in a zone, across
DST, is for the timers to say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date, timedelta
from functools import lru_cache, reduce
from itertools import pairwise
from operator import or_
from typing import Any, NamedTuple

from duly.config.errors import EntryFault
from duly.config.schema import Calendar
from duly.config.values import known_keys
from duly.config.words import close_names, joined, quoted, shown

KEY = "on_calendar"
_MOST_CALENDARS = 1000
_DAY_MINUTES = 24 * 60
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTHS_WITH_DAY = tuple(
    sum(1 << month for month, length in enumerate(_LONGEST_MONTHS, start=1) if day <= length)
    for day in range(32)
)
"""For each day the months that have it, as a mask."""
# Every combination of date, weekday and leap year comes in 28 years, as long as no century is left out.
_FIRST_DATE, _DATES = date(2001, 1, 1), 28 * 365 + 7
_WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)


class Range(NamedTuple):
    """The values that a field may take."""

    lowest: int
    highest: int
    names: tuple[str, ...] = ()


RANGES = {
    "minute": Range(0, 59),
    "hour": Range(0, 23),
    "day_of_month": Range(1, 31),
    "month": Range(1, 12, _MONTHS),
    "day_of_week": Range(0, 6, _WEEKDAYS),
}
_ALIASES = {
    **dict.fromkeys(("minutes", "min"), "minute"),
    **dict.fromkeys(("hours",), "hour"),
    **dict.fromkeys(("day", "days", "dom", "date", "monthday"), "day_of_month"),
    **dict.fromkeys(("months", "mon"), "month"),
    **dict.fromkeys(("weekday", "weekdays", "dow"), "day_of_week"),
}


@dataclass(frozen=True, slots=True)
class CheckedCalendars:
    """The calendars of a timer, and what may surprise about how they are written."""

    calendars: tuple[Calendar, ...]
    surprises: tuple[str, ...]


def checked_calendars(value: object) -> CheckedCalendars:
    """The calendars that a value of `on_calendar` stands for. Raises EntryFault."""
    if isinstance(value, Mapping | Calendar):
        calendar, surprise = _calendar(value, KEY)
        return CheckedCalendars((calendar,), (surprise,) if surprise else ())
    if isinstance(value, str):
        raise EntryFault(f"{KEY} must be a mapping such as {{hour = 3, minute = 0}}; {_no_text(value)}", KEY)
    if not isinstance(value, list | tuple):
        raise EntryFault(f"{KEY} must be a mapping or a list of mappings, not {shown(value)}", KEY)
    if not value:
        raise EntryFault(f"{KEY} is an empty list, so it never fires; leave it out or name a time", KEY)
    if len(value) > _MOST_CALENDARS:
        raise EntryFault(f"{KEY} has {len(value)} calendars; at most {_MOST_CALENDARS} are allowed", KEY)
    where = [KEY] if len(value) == 1 else [f"{KEY}, calendar {number}" for number in range(1, len(value) + 1)]
    pairs = [_calendar(item, place) for item, place in zip(value, where, strict=True)]
    surprises = dict.fromkeys(surprise for _, surprise in pairs if surprise)
    return CheckedCalendars(tuple(calendar for calendar, _ in pairs), tuple(surprises))


def _no_text(value: str) -> str:
    return "cron texts are not read here" if len(value.split()) > 1 else f"{quoted(value)} is text"


def _calendar(value: object, where: str) -> tuple[Calendar, str | None]:
    written = _written(value, where)
    try:
        known_keys(written, tuple(RANGES), _ALIASES)
    except EntryFault as fault:
        raise EntryFault(f"{where}: {fault.reason}", KEY) from fault
    values = {name: _field(written[name], name, where) for name in RANGES if name in written}
    return Calendar(**values), _surprise(written)


def _written(value: object, where: str) -> dict[Any, Any]:
    if isinstance(value, Calendar):
        of_fields = {each.name: getattr(value, each.name) for each in fields(Calendar)}
        # None is the default of the class: whoever left the field out, left it out.
        return {name: content for name, content in of_fields.items() if content is not None}
    if isinstance(value, Mapping):
        return dict(value)
    raise EntryFault(f"{where} must be a mapping, not {shown(value)}", KEY)


def _field(value: object, name: str, where: str) -> tuple[int, ...] | None:
    what = f"{where}: {name}"
    if isinstance(value, str) and value == "*":
        return None
    if isinstance(value, list | tuple):
        if not value:
            raise EntryFault(f"{what} is an empty list, so it never matches; leave it out for every one", KEY)
        return tuple(sorted({_value(item, name, what, in_list=True) for item in value}))
    return (_value(value, name, what, in_list=False),)


def _value(value: object, name: str, what: str, *, in_list: bool) -> int:
    lowest, highest, names = RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int):
        allowed = "a list of whole numbers" if in_list else 'a whole number, a list of them or "*"'
        raise EntryFault(f"{what} must be {allowed}, not {shown(value)}{_number_of(value, name, names)}", KEY)
    number = int.__int__(value)
    if not lowest <= number <= highest:
        hint = "; Sunday is 0" if name == "day_of_week" and number == 7 else ""
        raise EntryFault(f"{what} must be {lowest} to {highest}, not {shown(number)}{hint}", KEY)
    return number


def _number_of(value: object, name: str, names: tuple[str, ...]) -> str:
    """What to write instead of a name, of digits in quotes, or of a step."""
    if not isinstance(value, str):
        return ""
    if value.isascii() and value.isdigit():
        return "; leave out the quotes"
    if "/" in value or "-" in value or "," in value:
        return "; steps and ranges are written as lists"
    wanted = value.strip().lower()
    short = {known[:3]: known for known in names}
    close = [short[wanted]] if wanted in short else close_names(wanted, names)
    return f"; {close[0].capitalize()} is {RANGES[name].lowest + names.index(close[0])}" if close else ""


def _surprise(written: Mapping[Any, Any]) -> str | None:
    if "minute" in written:
        return None
    if not written:
        return f'{KEY} is empty, which means every minute; write minute = "*" if that is meant'
    given = joined([name for name in RANGES if name in written], "and")
    return (
        f"{KEY} gives {given} and no minute, so it fires every minute of the matching hours;"
        ' write minute = 0 for once an hour, or minute = "*" if that is meant'
    )


# --- what calendars mean ---


def values_of(calendar: Calendar, name: str) -> tuple[int, ...]:
    """All the values that a field allows."""
    value: tuple[int, ...] | None = getattr(calendar, name)
    lowest, highest, _ = RANGES[name]
    return tuple(range(lowest, highest + 1)) if value is None else value


def ever_comes(calendar: Calendar) -> bool:
    """Whether one of its months has one of its days."""
    # Any date falls on any weekday sooner or later, so the weekday rules nothing out.
    _, _, day_mask, month_mask, _ = _masks(calendar)
    return _have_a_date(day_mask=day_mask, month_mask=month_mask)


def common(one: Calendar, other: Calendar) -> Calendar | None:
    """The calendar of the minutes that both name; None when there are none."""
    masks = [mine & theirs for mine, theirs in zip(_masks(one), _masks(other), strict=True)]
    if not all(masks) or not _have_a_date(day_mask=masks[2], month_mask=masks[3]):
        return None
    minute, hour, day, month, weekday = (tuple(_bits(mask)) for mask in masks)
    return Calendar(minute, hour, day, month, weekday)


def _have_a_date(*, day_mask: int, month_mask: int) -> bool:
    first_day = (day_mask & -day_mask).bit_length() - 1
    return bool(month_mask & _MONTHS_WITH_DAY[first_day])


@lru_cache(maxsize=4096)
def _masks(calendar: Calendar) -> tuple[int, ...]:
    """The fields as bit masks: thousands of timers may share a target, and many of them are compared."""
    return tuple(sum(1 << value for value in values_of(calendar, name)) for name in RANGES)


def _bits(mask: int) -> Iterator[int]:
    return (bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def first_time(calendar: Calendar) -> str:
    """The first minute of its days, as clocks show it."""
    return f"{values_of(calendar, 'hour')[0]:02}:{values_of(calendar, 'minute')[0]:02}"


@lru_cache(maxsize=4096)
def least_gap_sec(calendar: Calendar) -> int:
    """Less than this never lies between two of its minutes, whatever its dates are."""
    return 60 * min([*_gaps_within_a_day(calendar), _gap_overnight(calendar)])


@lru_cache(maxsize=4096)
def shortest_gap_sec(calendar: Calendar) -> int | None:
    """The least time between two of its minutes, on a clock that is never changed; None if it never comes."""
    if not ever_comes(calendar):
        return None
    within, overnight = _gaps_within_a_day(calendar), _gap_overnight(calendar)
    if within and min(within) <= overnight:
        return 60 * min(within)
    return 60 * min([*within, overnight + _DAY_MINUTES * (_shortest_gap_days(calendar) - 1)])


def _times(calendar: Calendar) -> list[int]:
    hours, minutes = values_of(calendar, "hour"), values_of(calendar, "minute")
    return [60 * hour + minute for hour in hours for minute in minutes]


def _gaps_within_a_day(calendar: Calendar) -> list[int]:
    return [later - earlier for earlier, later in pairwise(_times(calendar))]


def _gap_overnight(calendar: Calendar) -> int:
    times = _times(calendar)
    return _DAY_MINUTES - times[-1] + times[0]


def _shortest_gap_days(calendar: Calendar) -> int:
    if calendar.day_of_month is None and calendar.month is None and calendar.day_of_week is None:
        return 1
    return _shortest_gap_of_dates(
        *(values_of(calendar, name) for name in ("day_of_month", "month", "day_of_week"))
    )


def _shortest_gap_of_dates(days: tuple[int, ...], months: tuple[int, ...], weekdays: tuple[int, ...]) -> int:
    of_day, of_month, of_weekday = _date_masks()
    dates = (
        reduce(or_, (of_day[day] for day in days))
        & reduce(or_, (of_month[month] for month in months))
        & reduce(or_, (of_weekday[weekday] for weekday in weekdays))
    )
    # The zeros between two ones are the dates between two that match.
    gaps = f"{dates:b}".rstrip("0").split("1")[1:-1]
    return min(map(len, gaps), default=_DATES - 1) + 1


@lru_cache(maxsize=1)
def _date_masks() -> tuple[list[int], list[int], list[int]]:
    """For each day, month and weekday the dates that have it, as the bits of a number.

    A file can hold thousands of calendars. With these masks each takes microseconds.
    """
    of_day, of_month, of_weekday = [0] * 32, [0] * 13, [0] * 7
    for number in range(_DATES):
        each = _FIRST_DATE + timedelta(days=number)
        for masks, value in ((of_day, each.day), (of_month, each.month), (of_weekday, each.isoweekday() % 7)):
            masks[value] |= 1 << number
    return of_day, of_month, of_weekday
