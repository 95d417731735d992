"""The time fields of a cron line as calendars of a timer.

Steps, names, Sunday as 7 become lists of numbers, with the meaning that `duly.cron.spelling` vouches for. Day
and weekday are the one difference that numbers do not settle: a calendar wants both to match. Cron wants
either when both are restricted, which takes two calendars, and both when one of them begins with a star.
"""

from duly.config.schema import Calendar
from duly.config.words import quoted
from duly.cron import CronExpression
from duly.cron.fields import FIELDS, MONTH, WEEKDAY, Field, parse_field, values_of
from duly.cron.spelling import posix_spelling
from duly.errors import FieldParseError

_PLACES = {field: index for index, field in enumerate(FIELDS)}


class UnclearFieldError(Exception):
    """A time field that cannot be translated; the message says which and why."""

    def __init__(self, field: Field, word: str, reason: str) -> None:
        super().__init__(f"the {field.name} field {quoted(word)} {reason}")


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


def _values(field: Field, word: str) -> tuple[int, ...] | None:
    """The values that a field names; None for all of them."""
    words = ["*"] * 5
    words[_PLACES[field]] = word
    # Only what every cron reads: posix_spelling also takes blanks that are none to cron.
    spelled = (
        posix_spelling(" ".join(words)) if word.isascii() and word.isprintable() and "?" not in word else None
    )
    if spelled is None:
        raise UnclearFieldError(field, word, _fault(field, word))
    mask = CronExpression.parse(spelled).masks[_PLACES[field]]
    return None if mask == field.every else tuple(values_of(mask))


def _fault(field: Field, word: str) -> str:
    try:
        parse_field(field, word)
    except FieldParseError as error:
        if "/" not in word and not any(char.isalpha() for char in word):
            return error.reason
    if "/" in word:
        return "has a step that crons read differently, or not at all"
    return "has a name that cron does not know" if field in (MONTH, WEEKDAY) else "cannot be read"
