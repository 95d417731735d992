"""Triggers of APScheduler 3 as cron texts, where they mean exactly the same; where not, an error says why.

Its fields look like cron's and are not: weekday 0 is Monday, and day and weekday must both match.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import Any

from duly.verify.dues import CronTextError, Dues

_BOUNDS = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23)}
_BOUNDS |= {"day": (1, 31), "month": (1, 12), "day_of_week": (0, 6)}
_UNSAYABLE = ("year", "week")
_ORDINARY = ("AllExpression", "RangeExpression", "MonthRangeExpression", "WeekdayRangeExpression")


class NotCronError(ValueError):
    """A trigger that no five-field cron text means exactly."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def cron_text_of(trigger: Any, zone: tzinfo) -> str:
    """The cron text that in *zone* means what *trigger* does. Raises NotCronError if there is none."""
    if type(trigger).__name__ != "CronTrigger":
        raise NotCronError(f"its trigger is {type(trigger).__name__}, not CronTrigger")
    _require_plain(trigger, zone)
    fields = {field.name: field for field in trigger.fields}
    for name in _UNSAYABLE:
        if str(fields[name]) != "*":
            raise NotCronError(f"cron has no field {name}")
    numbers = {name: _numbers(fields[name], *bounds) for name, bounds in _BOUNDS.items()}
    if numbers["second"] != {0}:
        raise NotCronError("it fires at seconds other than 0")
    text = _text(numbers)
    try:
        Dues(text, UTC)
    except CronTextError as error:
        raise NotCronError(f'as cron text it is "{text}", and {error}') from error
    return text


def _require_plain(trigger: Any, zone: tzinfo) -> None:
    if trigger.jitter:
        raise NotCronError("it fires at random within its jitter")
    if trigger.start_date is not None or trigger.end_date is not None:
        raise NotCronError("it is limited by start_date or end_date")
    if _name(trigger.timezone) != _name(zone):
        raise NotCronError(f"its zone is {trigger.timezone}, and the scheduler's {zone}")


def _name(zone: Any) -> str:
    """What tells zones apart: the name of ZoneInfo's and pytz's, or else the offset, which never changes."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    return str(name) if name else datetime(2000, 1, 1, tzinfo=zone).strftime("%Z")


def _text(numbers: dict[str, set[int]]) -> str:
    weekdays = {(weekday + 1) % 7 for weekday in numbers["day_of_week"]}
    day, weekday = _field(numbers["day"], 1, 31), _field(weekdays, 0, 6)
    if day != "*" != weekday:
        raise NotCronError("it restricts both day and weekday; cron fires when either matches")
    minute, hour = _field(numbers["minute"], 0, 59), _field(numbers["hour"], 0, 23)
    return f"{minute} {hour} {day} {_field(numbers['month'], 1, 12)} {weekday}"


def _numbers(field: Any, low: int, high: int) -> set[int]:
    """The numbers at which a field matches."""
    named: set[int] = set()
    for expression in field.expressions:
        if type(expression).__name__ not in _ORDINARY:
            raise NotCronError(f'cron cannot say "{expression}" in the field {field.name}')
        first = getattr(expression, "first", low)
        last = getattr(expression, "last", None)
        named.update(range(first, (high if last is None else last) + 1, expression.step or 1))
    return named


def _field(numbers: set[int], low: int, high: int) -> str:
    """Numbers as a cron field: `*` for all, or else ranges."""
    if len(numbers) == high - low + 1:
        return "*"
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in _ranges(numbers))


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges
