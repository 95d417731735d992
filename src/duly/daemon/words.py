"""A timer's triggers in plain English: "At 03:30, every day; 5m after start-up". Pure.

Knows a timer's definition and nothing of the timers at work, so it may speak while their gate is closed.
"""

from functools import lru_cache

from duly.config.schema import Calendar, Timer
from duly.cron import CronExpression
from duly.cron.fields import FIELDS
from duly.cron.words import in_words

_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"))


def schedule_words(timer: Timer) -> str:
    """When a timer fires."""
    said = [_calendar_words(calendar) for calendar in timer.on_calendar]
    if timer.on_startup_sec is not None:
        said.append(f"{span(timer.on_startup_sec)} after start-up")
    if timer.on_unit_active_sec is not None:
        said.append(f"{span(timer.on_unit_active_sec)} after each run of {timer.target}")
    return "; ".join(said)


@lru_cache(maxsize=4096)
def _calendar_words(calendar: Calendar) -> str:
    return in_words(expression_of(calendar))


def expression_of(calendar: Calendar) -> CronExpression:
    """A calendar as an expression whose day and weekday must both match."""
    given = (calendar.minute, calendar.hour, calendar.day_of_month, calendar.month, calendar.day_of_week)
    masks = tuple(
        field.every if values is None else sum(1 << value for value in set(values))
        for field, values in zip(FIELDS, given, strict=True)
    )
    text = " ".join("*" if values is None else ",".join(map(str, values)) for values in given)
    minute, hour, day, month, weekday = masks
    return CronExpression.of_masks(text, (minute, hour, day, month, weekday))


def span(seconds: float) -> str:
    """A length of time as exactly as it was given, in the units it has: "1h 30m", "0.5s"."""
    left = seconds
    parts = []
    for unit_s, unit in _UNITS:
        number, left = divmod(left, unit_s)
        if number:
            parts.append(f"{number:.0f}{unit}")
    if left or not parts:
        parts.append(f"{left:g}s")
    return " ".join(parts)
