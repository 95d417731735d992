"""Calendars of timers: their five fields, whether they ever come, how close their minutes lie together.

Only arithmetic on fields: which minutes of the clock, which dates. When such a minute is in a zone, across
DST, is for the timers to say.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from duly.config.schema import Calendar, EntryFault, expression_of
from duly.config.values import all_of, known_keys
from duly.cron import CronExpression
from duly.cron.expression import has_a_date
from duly.cron.fields import FIELDS, MONTH, MONTH_NAMES, WEEKDAY, WEEKDAY_NAMES, Field, parse_field, values_of
from duly.cron.gaps import Gaps, gaps
from duly.cron.spelling import posix_spelling
from duly.errors import FieldParseError
from duly.formatting import close_names, joined, quoted, suggestion, value_text

KEY = "on_calendar"
LAST = "last"
DAY = "day"
"""What `day_of_month` may be called, too."""
_MOST_CALENDARS = 1000


CALENDAR_FIELDS = dict(zip(("minute", "hour", "day_of_month", "month", "day_of_week"), FIELDS, strict=True))
_NAMES = {MONTH: MONTH_NAMES, WEEKDAY: WEEKDAY_NAMES}
_ALIASES = {
    **dict.fromkeys(("minutes", "min"), "minute"),
    **dict.fromkeys(("hours",), "hour"),
    **dict.fromkeys(("days", "dom", "date", "monthday"), "day_of_month"),
    **dict.fromkeys(("months", "mon"), "month"),
    **dict.fromkeys(("weekday", "weekdays", "dow"), "day_of_week"),
}


def checked_calendars(value: object) -> tuple[tuple[Calendar, ...], tuple[str, ...]]:
    """The calendars that a value of `on_calendar` stands for, and what may surprise about how it is written.

    Raises EntryFault.
    """
    if isinstance(value, Mapping | Calendar):
        value = [value]
    if isinstance(value, str):
        raise EntryFault(f"{KEY} must be a mapping such as {{hour = 3, minute = 0}}; {_no_text(value)}", KEY)
    if not isinstance(value, list | tuple):
        raise EntryFault(f"{KEY} must be a mapping or a list of mappings, not {value_text(value)}", KEY)
    if not value:
        raise EntryFault(f"{KEY} is an empty list, so it never fires; leave it out or name a time", KEY)
    if len(value) > _MOST_CALENDARS:
        raise EntryFault(f"{KEY} has {len(value)} calendars; at most {_MOST_CALENDARS} are allowed", KEY)
    where = [KEY] if len(value) == 1 else [f"{KEY}, calendar {number}" for number in range(1, len(value) + 1)]
    pairs = all_of(lambda pair: _calendar(*pair), zip(value, where, strict=True))
    surprises = dict.fromkeys(surprise for _, surprise in pairs if surprise)
    return tuple(calendar for calendar, _ in pairs), tuple(surprises)


def _no_text(value: str) -> str:
    if len(value.split()) == len(FIELDS) or value.startswith("@"):
        return f"a text of cron has its own key: cron = {quoted(value)}"
    return f"{quoted(value)} is text"


def _calendar(value: object, where: str) -> tuple[Calendar, str | None]:
    written = _written(value, where)
    try:
        known_keys(written, (*CALENDAR_FIELDS, DAY), _ALIASES)
        if DAY in written:
            if "day_of_month" in written:
                raise EntryFault(f"{DAY} and day_of_month are the same; give one of them")  # noqa: TRY301
            written["day_of_month"] = written.pop(DAY)
    except EntryFault as fault:
        raise EntryFault(f"{where}: {fault.reason}", KEY) from fault
    given = [name for name in CALENDAR_FIELDS if name in written]
    values = all_of(lambda name: (name, _field(written[name], name, where)), given)
    return Calendar(**dict(values)), _surprise(written)


def _written(value: object, where: str) -> dict[Any, Any]:
    if isinstance(value, Calendar):
        of_fields = {each.name: getattr(value, each.name) for each in fields(Calendar)}
        # None is the default of the class, so the field was left out.
        return {name: content for name, content in of_fields.items() if content is not None}
    if isinstance(value, Mapping):
        return dict(value)
    raise EntryFault(f"{where} must be a mapping, not {value_text(value)}", KEY)


def _field(value: object, name: str, where: str) -> tuple[int, ...] | str | None:
    what = f"{where}: {name}"
    if isinstance(value, str):
        return LAST if (value, name) == (LAST, "day_of_month") else _of_text(value, name, what)
    if isinstance(value, list | tuple):
        if not value:
            raise EntryFault(f"{what} is an empty list, so it never matches; leave it out for every one", KEY)
        return tuple(sorted({each for item in value for each in _element(item, name, what)}))
    return (_value(value, name, what, in_list=False),)


def _element(value: object, name: str, what: str) -> tuple[int, ...]:
    if isinstance(value, str) and value not in {"*", LAST}:
        return _of_text(value, name, what) or tuple(values_of(CALENDAR_FIELDS[name].every))
    return (_value(value, name, what, in_list=True),)


def _of_text(text: str, name: str, what: str) -> tuple[int, ...] | None:
    """What a field says as cron says it: "9-17", "*/15", "mon-fri"."""
    try:
        return _values(CALENDAR_FIELDS[name], text)
    except UnclearFieldError as fault:
        close = close_names(text.strip().lower(), _NAMES.get(CALENDAR_FIELDS[name], ()))
        raise EntryFault(
            f"{what} {quoted(text)} {fault.reason}{f'; {suggestion(close)}' if close else ''}", KEY
        ) from fault


def _value(value: object, name: str, what: str, *, in_list: bool) -> int:
    field = CALENDAR_FIELDS[name]
    if isinstance(value, bool) or not isinstance(value, int):
        allowed = 'a number or a text such as "9-17" or "*/15"'
        allowed = f"a list, and each element {allowed}" if in_list else f"{allowed}, or a list of them"
        raise EntryFault(f"{what} must be {allowed}, not {value_text(value)}", KEY)
    number = int.__int__(value)
    if not field.lowest <= number <= field.highest:
        hint = "; Sunday is 0" if name == "day_of_week" and number == 7 else ""
        allowed = f"{field.lowest} to {field.highest}"
        raise EntryFault(f"{what} must be {allowed}, not {value_text(number)}{hint}", KEY)
    return number


def _surprise(written: Mapping[Any, Any]) -> str | None:
    if "minute" in written:
        return None
    if not written:
        return f'{KEY} is empty, which means every minute; write minute = "*" if that is meant'
    given = joined([name for name in CALENDAR_FIELDS if name in written], "and")
    return (
        f"{KEY} gives {given} and no minute, so it fires every minute of the matching hours;"
        ' write minute = 0 for once an hour, or minute = "*" if that is meant'
    )


# --- texts of cron ---
#
# Steps, names and Sunday as 7 become lists of numbers. A calendar wants day and weekday both to match. Cron
# wants either when both are restricted, which takes two calendars, and both when one of them begins with a
# star.


class UnclearFieldError(Exception):
    """A time field that cannot be translated; the message says which and why."""

    def __init__(self, field: Field, word: str, reason: str) -> None:
        super().__init__(f"the {field.name} field {quoted(word)} {reason}")
        self.reason = reason


def checked_cron(value: object, key: str) -> tuple[Calendar, ...]:
    """The calendars of a text such as "*/15 9-17 * * mon-fri". Raises EntryFault."""
    if not isinstance(value, str):
        reason = f'{key} must be a text such as "*/15 9-17 * * mon-fri", not {value_text(value)}'
        raise EntryFault(reason, key)
    text = value.strip(" \t")
    if text.lower() == "@reboot":
        raise EntryFault(f'{key} is no time of the clock with @reboot; write on_startup = "1s" instead', key)
    words = ((posix_spelling(text) or text) if text.startswith("@") else text).split()
    if len(words) != len(FIELDS):
        count = f"{len(words)} fields" if len(words) != 1 else "one field"
        more = "; there are no seconds and no years" if len(words) in {6, 7} else ""
        raise EntryFault(f"{key} needs five fields, and {quoted(value)} has {count}{more}", key)
    try:
        return calendars_of(words)
    except UnclearFieldError as error:
        raise EntryFault(f"{key}: {error}", key) from error


def calendars_of(words: list[str]) -> tuple[Calendar, ...]:
    """The calendars that fire when cron would start the line. Raises UnclearFieldError."""
    minute, hour, day, month, weekday = (
        _values(field, word) for field, word in zip(FIELDS, words, strict=True)
    )
    if words[2].startswith("*") or words[4].startswith("*"):
        return (Calendar(minute, hour, day, month, weekday),)
    if day is None or weekday is None:
        # Either is enough, and one of them lists every day.
        return (Calendar(minute, hour, None, month, None),)
    return Calendar(minute, hour, day, month, None), Calendar(minute, hour, None, month, weekday)


@lru_cache(maxsize=4096)
def _values(field: Field, word: str) -> tuple[int, ...] | None:
    """The values that a field names; None for all of them."""
    at = FIELDS.index(field)
    words = ["*"] * 5
    words[at] = word
    # Only what every cron reads: posix_spelling also takes blanks that are none to cron.
    spelled = (
        posix_spelling(" ".join(words)) if word.isascii() and word.isprintable() and "?" not in word else None
    )
    if spelled is None:
        raise UnclearFieldError(field, word, _fault(field, word))
    mask = CronExpression.parse(spelled).masks[at]
    return None if mask == field.every else tuple(values_of(mask))


def _fault(field: Field, word: str) -> str:
    try:
        parse_field(field, word)
    except FieldParseError as error:
        if "/" not in word and not any(char.isalpha() for char in word):
            return error.reason
    if word.upper() == "L" and field is FIELDS[2]:
        return f'cannot be read; the last day of a month is {KEY} = {{ day = "last", hour = 0, minute = 0 }}'
    if "/" in word:
        return "has a step that crons read differently, or not at all"
    return "has a name that cron does not know" if field in (MONTH, WEEKDAY) else "cannot be read"


# --- what calendars mean ---


@lru_cache(maxsize=4096)
def _masks(calendar: Calendar) -> tuple[int, ...]:
    """The fields as bit masks: thousands of timers may share a target, and many of them are compared.

    In the mask of days bit 0 stands for the last day of a month.
    """
    minutes, hours, days, months, weekdays = expression_of(calendar).masks
    return minutes, hours, 1 if calendar.day_of_month == LAST else days, months, weekdays


def ever_comes(calendar: Calendar) -> bool:
    """Whether one of its months has one of its days."""
    # Any date falls on any weekday sooner or later, so the weekday rules nothing out.
    _, _, days, months, _ = _masks(calendar)
    return has_a_date(days, months)


def common(one: Calendar, other: Calendar) -> Calendar | None:
    """The calendar of the minutes that both name; None when there are none."""
    masks = [mine & theirs for mine, theirs in zip(_masks(one), _masks(other), strict=True)]
    if not all(masks) or not has_a_date(masks[2], masks[3]):
        return None
    minutes, hours, days, months, weekdays = (tuple(values_of(mask)) for mask in masks)
    return Calendar(minutes, hours, days if masks[2] != 1 else LAST, months, weekdays)


def first_time(calendar: Calendar) -> str:
    """The first minute of its days, as clocks show it."""
    minutes, hours, *_ = map(values_of, _masks(calendar))
    return f"{hours[0]:02}:{minutes[0]:02}"


def gaps_of(calendar: Calendar) -> Gaps | None:
    """The least and the longest time between two of its minutes; None if it never comes."""
    return gaps(_masks(calendar))
