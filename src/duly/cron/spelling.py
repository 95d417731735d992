"""The POSIX way to write what other crons write: steps, names, macros, Sunday as 7, ranges across midnight.

`duly` refuses these texts instead of guessing, and then owes the reader the text that would do. A spelling
is offered only when every cron that knows the refused text agrees on its meaning; where dialects differ, or
POSIX has no words for it, there is none. A field that needs no change keeps its own text.

Knows nothing of dates; what it offers always parses.
"""

import re

from duly.cron.expression import CronExpression
from duly.cron.fields import (
    DAY,
    FIELDS,
    HOUR,
    MINUTE,
    MONTH,
    MONTH_NAMES,
    WEEKDAY,
    WEEKDAY_NAMES,
    Field,
    parse_field,
    runs_of,
)
from duly.errors import FieldParseError, InvalidCronExpressionError

# Nothing a person wrote is longer, and nobody reads a hint that is.
_LONGEST = 1000
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_ELEMENT = re.compile(
    r"(?:(?P<star>\*)|(?P<first>[0-9]+|[a-z]+)(?:-(?P<last>[0-9]+|[a-z]+))?)(?:/(?P<step>[0-9]+))?"
)

_TAKEN = {field: f"*, {field.lowest}-{field.highest}" for field in FIELDS}
_TAKEN |= {MONTH: "*, 1-12, jan-dec", WEEKDAY: "*, 0-7, sun-sat"}


class _NoSpellingError(Exception):
    """There is no POSIX text for this, or none that all dialects would agree on."""


def posix_spelling(text: str) -> str | None:
    """The POSIX text that means what *text* means, or None where there is none."""
    if len(text) > _LONGEST:
        return None
    words = _MACROS.get(text.strip().lower(), text).lower().split()
    if len(words) != 5:  # With a field for seconds or years POSIX cannot follow.
        return None
    try:
        spelled = _posix_text(words)
        CronExpression.parse(spelled)
    except (_NoSpellingError, InvalidCronExpressionError):
        return None
    return spelled


def spelling_hint(text: str) -> str | None:
    """What to write instead of a text that only other crons know, for the end of an error message."""
    spelled = posix_spelling(text)
    return None if spelled is None else f"write {spelled!r}, or crontab({text!r}) in an App"


def spelling_fault(text: str) -> str:
    """Why a text of five fields has no POSIX spelling."""
    words = text.lower().split()
    for field, word in zip(FIELDS, words, strict=True):
        try:
            _values(field, "*" if word == "?" else word)
        except _NoSpellingError:
            return f"{field.name} field has {word!r}; it takes {_TAKEN[field]}, lists, ranges and steps"
    try:
        CronExpression.parse(_posix_text(words))
    except InvalidCronExpressionError as error:
        return str(error.details["reason"])
    except _NoSpellingError:
        pass
    return "crons do not agree on what day and weekday mean together when they are written so"


def _posix_text(words: list[str]) -> str:
    minute, hour, day, month, weekday = words
    if day == "?" and any(digit in weekday for digit in "1234567"):
        # A dialect with `?` may count from Sunday as 1 (Quartz) or as 0 (the rest).
        raise _NoSpellingError
    spelled_day, spelled_weekday = _spelled_days(day, weekday)
    return " ".join(
        (_field(MINUTE, minute), _field(HOUR, hour), spelled_day, _field(MONTH, month), spelled_weekday)
    )


def _spelled_days(day: str, weekday: str) -> tuple[str, str]:
    """Day and weekday together: whether either is enough or both must match hangs on how they are written.

    Vixie cron and its children take a field that begins with a star, `*/2` included, for unrestricted, and
    then both must match. POSIX takes only `*` for that, so `*/2` spelled out would turn "odd days that are
    Mondays" into "odd days, and Mondays". That has no POSIX text; others read it the other way round.
    """
    day, weekday = ("*" if word == "?" else word for word in (day, weekday))
    if not day.startswith("*") and not weekday.startswith("*"):
        return _days_field(DAY, day), _days_field(WEEKDAY, weekday)
    days, weekdays = _values(DAY, day), _values(WEEKDAY, weekday)
    if not _is_every(DAY, days) and not _is_every(WEEKDAY, weekdays):
        raise _NoSpellingError
    return _field(DAY, day), _field(WEEKDAY, weekday)


def _field(field: Field, word: str) -> str:
    """One field. A text that names all values becomes `*`."""
    return "*" if _is_every(field, _values(field, word)) else _days_field(field, word)


def _days_field(field: Field, word: str) -> str:
    """One field of days. A text that names all values stays as it is: `1-31` restricts, unlike `*`."""
    try:
        parse_field(field, word)
    except FieldParseError:
        return compact(_values(field, word))
    return word


def _is_every(field: Field, values: set[int]) -> bool:
    return len(values) == field.highest - field.lowest + 1


def _values(field: Field, word: str) -> set[int]:
    return {value for element in word.split(",") for value in _element_values(field, element)}


def _element_values(field: Field, element: str) -> list[int]:
    parts = _ELEMENT.fullmatch(element)
    if parts is None:
        raise _NoSpellingError
    star, first, last, step_digits = parts.group("star", "first", "last", "step")
    step = _step(step_digits)
    if star:
        return list(range(field.lowest, field.highest + 1))[::step]
    start = _value(field, first)
    if last is None and step_digits is None:
        return [start % 7] if field is WEEKDAY else [start]
    if last is None:
        return _stepped_to_the_end(field, start, step)
    return _range(field, start, _value(field, last))[::step]


def _stepped_to_the_end(field: Field, start: int, step: int) -> list[int]:
    if field is WEEKDAY and (7 - start) % step == 0:
        # Whether the week ends at 6 or at 7, which is Sunday again, is a matter of dialect.
        raise _NoSpellingError
    return list(range(start, field.highest + 1, step))


def _range(field: Field, first: int, last: int) -> list[int]:
    """The values from *first* to *last*, across the end of the day, week, month or year if need be."""
    if field is WEEKDAY and first != last:  # 7-3 is 0-3, but 7-7 is Sunday alone
        first %= 7
    if first <= last:
        values = [*range(first, last + 1)]
    else:
        values = [*range(first, field.highest + 1), *range(field.lowest, last + 1)]
    return [value % 7 for value in values] if field is WEEKDAY else values


def _step(digits: str | None) -> int:
    if digits is None:
        return 1
    significant = digits.lstrip("0")
    if not 1 <= len(significant) <= 2:
        raise _NoSpellingError
    return int(significant)


def _value(field: Field, token: str) -> int:
    value = _number_of_name(field, token) if token.isalpha() else int(token)
    highest = 7 if field is WEEKDAY else field.highest
    if value is None or not field.lowest <= value <= highest:
        raise _NoSpellingError
    return value


def _number_of_name(field: Field, token: str) -> int | None:
    names = {MONTH: MONTH_NAMES, WEEKDAY: WEEKDAY_NAMES}.get(field, ())
    numbered = enumerate(names, start=field.lowest)
    return next((number for number, name in numbered if token in (name, name[:3])), None)


def compact(values: set[int]) -> str:
    """A list of the values; with ranges in it when some run of three or more makes that worthwhile."""
    runs = runs_of(values)
    if all(len(run) < 3 for run in runs):
        return ",".join(str(value) for run in runs for value in run)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
