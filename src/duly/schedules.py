"""When a task is due, as a program says it: `every("5m")`, `crontab("*/15 * * * mon-fri")`, `daily("03:30")`.

Each function makes a `Schedule`, a frozen value. Its text is what stores and traces keep (`core/timing.py`).
Mistakes are reported here, where they are made, in the words of Python.
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Literal, overload

from duly.core.timing import is_plain
from duly.cron import CronExpression
from duly.cron.spelling import posix_spelling, spelling_fault, spelling_hint
from duly.errors import InvalidCronExpressionError, InvalidScheduleError
from duly.formatting import counted
from duly.instant import LATEST_US, SECOND_US, datetime_at, duration_us, instant_of

Length = str | timedelta
"""A length of time: "30s", "1h 30m", or a timedelta."""

SHORTEST_PERIOD_SEC = 0.1

_UNITS_US = {"s": SECOND_US, "m": 60 * SECOND_US, "h": 3_600 * SECOND_US, "d": 86_400 * SECOND_US}
_UNITS_US |= {"min": _UNITS_US["m"], "w": 7 * _UNITS_US["d"]}
_PART = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?\s*(min|[smhdw])\s*")
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_QUARTZ = (
    ("L", "the last day", re.compile("([0-9]+|[A-Z]{3})?LW?")),
    ("W", "the nearest weekday", re.compile("[0-9]+W")),
    ("#", "the nth weekday", re.compile(".+#.+")),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a task is due. Make one with `every`, `crontab`, `daily`, `weekly`, `monthly` or `once`."""

    text: str
    """As it is stored, without the zone and the spread of a task."""
    local: datetime | None = None
    """A moment without a zone, which is meant in the zone of the task."""


def crontab(text: str) -> Schedule:
    """A crontab line's schedule, with steps, names, `@daily`, Sunday as 7 and ranges that wrap around.

    Raises InvalidScheduleError for what POSIX cron cannot say, such as `L`, `W`, `#` and seconds.
    """
    _check_text("crontab()", text, "*/15 9-17 * * mon-fri")
    try:
        return Schedule(CronExpression.parse(text).text)
    except InvalidCronExpressionError as error:
        spelled = posix_spelling(text)
        if spelled is None:
            raise InvalidScheduleError(text=text, reason=_refusal(text)) from error
        return Schedule(spelled)


def _refusal(text: str) -> str:
    """Why *text* is no schedule of a crontab, and what to write instead."""
    fields = text.split()
    period = text.strip().removeprefix("@every ")
    if _parsed_us(period) > 0:
        return f"it is a length of time; write every({period!r})"
    if fields[:1] == ["@reboot"]:
        return "a start-up is not a time; call the function before app.run()"
    if text.strip().startswith("@"):
        return "there is no such macro; there are @hourly, @daily, @weekly, @monthly, @yearly"
    if fields and fields[0].startswith(("TZ=", "CRON_TZ=")):
        zone = fields[0].partition("=")[2]
        return f"a zone is no part of it; say timezone={zone!r} where the task is declared"
    if len(fields) in {6, 7}:
        return f"it has {len(fields)} fields; crontab has five and no seconds. For seconds use every('30s')"
    if len(fields) != 5:
        return f"it has {counted(len(fields), 'field')}; crontab has five: minute hour day month weekday"
    words = re.split("[,/-]", f"{fields[2]},{fields[4]}".upper())
    for sign, meaning, pattern in _QUARTZ:
        if any(map(pattern.fullmatch, words)):
            hint = " Use monthly(day='last', at=...)" if sign == "L" else ""
            return f"{sign} ({meaning}) has no meaning in POSIX cron.{hint}"
    return spelling_fault(text)


@overload
def every(length: Length, /, *, after_end: bool = False) -> Schedule: ...
@overload
def every(
    *,
    weeks: float = 0,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    after_end: bool = False,
) -> Schedule: ...
def every(length: Length | None = None, /, *, after_end: bool = False, **units: float) -> Schedule:
    """Every so often: `every("30s")`, `every(minutes=5)`.

    The first run comes one period after the task was first registered. The times are multiples of the period
    from then on, also after a restart. Of those that were missed, one is made up for. With *after_end* the
    period counts from the end of the last run.
    """
    if (length is None) == (not units):
        raise TypeError("every() needs a length such as '5m', or units such as minutes=5")
    try:
        period = timedelta(**units) if length is None else length
    except (TypeError, OverflowError) as error:
        message = f"every() needs a length such as '5m', or weeks, days, hours, minutes and seconds: {error}"
        raise TypeError(message) from None
    period_us = length_of("every()", period)
    if period_us < SHORTEST_PERIOD_SEC * SECOND_US:
        raise ValueError(f"every() needs a period of at least {SHORTEST_PERIOD_SEC} s")
    return Schedule(f"{'@after' if after_end else '@every'} {_seconds(period_us)}")


def once(moment: datetime | str) -> Schedule:
    """At one moment: a datetime, or a text such as "2026-12-24 18:00". Without a zone, that of the task."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ValueError(f"once() needs a time such as '2026-12-24 18:00', not {moment!r}") from None
    if not isinstance(moment, datetime):
        raise TypeError(f"once() needs a datetime, not {type(moment).__name__}")
    if moment.tzinfo is None:
        return Schedule("", local=moment)
    return Schedule(f"@at {_iso(moment)}")


def daily(at: str) -> Schedule:
    """Every day at a time such as "03:30"."""
    hour, minute = clock_of("daily()", at)
    return Schedule(f"{minute} {hour} * * *")


def weekly(at: str) -> Schedule:
    """Every week: "mon 09:00", "mon,thu 09:00", "mon-fri 09:00"."""
    _check_text("weekly()", at, "mon 09:00")
    days, _, clock = at.strip().rpartition(" ")
    named = "".join(days.split())
    # As crontab reads them; by name, because numbers mean other days elsewhere.
    spelled = posix_spelling(f"0 0 * * {named}") if re.fullmatch("[A-Za-z,-]+", named) else None
    if spelled is None:
        raise ValueError(f"weekly() needs a day and a time such as 'mon 09:00', not {at!r}")
    hour, minute = clock_of("weekly()", clock)
    return Schedule(f"{minute} {hour} * * {spelled.split()[4]}")


def monthly(*, day: int | Literal["last"] = 1, at: str) -> Schedule:
    """Every month, on a day or on its last one. Months without that day are left out."""
    hour, minute = clock_of("monthly()", at)
    if day == "last":
        return Schedule(f"@last {hour:02}:{minute:02}")
    if type(day) is not int or not 1 <= day <= 31:
        raise ValueError(f"monthly() needs a day from 1 to 31 or 'last', not {day!r}")
    return Schedule(f"{minute} {hour} {day} * *")


# --- for the App ---


def task_text(
    name: str, schedule: Schedule | str, zone: tzinfo | None, spread_us: int, default: tzinfo
) -> str:
    """The whole text of a task's schedule. Raises InvalidScheduleError or InvalidCronExpressionError."""
    if isinstance(schedule, str):
        schedule = _strict(schedule)
    text = schedule.text
    if schedule.local is not None:
        # A moment that a clock change skips is taken with the offset before it, as cron does.
        text = f"@at {_iso(schedule.local.replace(tzinfo=zone or default))}"
    later_s = offset_s(name, spread_us)
    has_zone = zone is not None and (is_plain(text) or text.startswith("@last "))
    return f"{f'TZ={zone} ' if has_zone else ''}{f'+{later_s}s ' if later_s else ''}{text}"


def _strict(text: str) -> Schedule:
    """A POSIX cron text as `Scheduler` takes it; the error offers what would do."""
    try:
        return Schedule(CronExpression.parse(text).text)
    except InvalidCronExpressionError as error:
        hint = spelling_hint(text)
        reason = f"{error.details['field']} field {error.details['reason']}; {hint}"
        if hint is None:
            reason = _refusal(text)
        raise InvalidScheduleError(text=text, reason=reason) from error


def offset_s(name: str, spread_us: int) -> int:
    """A number of seconds below the spread, the same for the same name wherever it is computed."""
    seconds = spread_us // SECOND_US
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % seconds if seconds else 0


def length_of(what: str, length: object) -> int:
    """A length of time in microseconds. Raises TypeError or ValueError that names *what* needs it."""
    if isinstance(length, timedelta):
        us = duration_us(length)
    elif isinstance(length, str):
        us = _parsed_us(length)
    else:
        raise TypeError(
            f"{what} needs a length of time such as '5m' or a timedelta, not {type(length).__name__}"
        )
    if not 0 < us <= LATEST_US:
        raise ValueError(f"{what} needs a length of time such as '5m' or '1h 30m', not {length!r}")
    return us


@lru_cache(maxsize=256)
def _parsed_us(text: str) -> int:
    us, position, rest = 0, 0, text.strip().lower()
    while (part := _PART.match(rest, position)) is not None:
        unit_us = _UNITS_US[part[3]]
        us += int(part[1]) * unit_us + int((part[2] or "").ljust(6, "0")) * unit_us // SECOND_US
        position = part.end()
    return us if position == len(rest) else 0


def _seconds(us: int) -> str:
    whole, rest = divmod(us, SECOND_US)
    return f"{whole}.{rest:06}".rstrip("0") + "s" if rest else f"{whole}s"


def _check_text(what: str, value: object, sample: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} needs a text such as {sample!r}, not {type(value).__name__}")


def clock_of(what: str, text: str) -> tuple[int, int]:
    """The hour and minute of a time of day. Raises TypeError or ValueError that names *what* needs it."""
    _check_text(what, text, "03:30")
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{what} needs a time of day such as '03:30', not {text!r}")
    return int(match[1]), int(match[2])


def _iso(moment: datetime) -> str:
    return datetime_at(instant_of(moment), UTC).isoformat().replace("+00:00", "Z")
