"""The five fields of a POSIX cron expression: text to a bit mask, bit n standing for value n.

Only what POSIX has: `*`, numbers, ranges, comma lists of these. Everything else is refused with a reason
that says what is wrong with this very text; nothing is guessed. Knows nothing of dates or zones.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from duly.errors import FieldParseError


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One of the five fields and the values it may take."""

    name: str
    lowest: int
    highest: int
    every: int
    """The mask of all values: what `*` means."""
    numbers: Mapping[str, int]
    """The masks of the values as they are mostly written."""


def _field(name: str, lowest: int, highest: int) -> Field:
    numbers = {str(value): 1 << value for value in range(lowest, highest + 1)}
    return Field(name, lowest, highest, (2 << highest) - (1 << lowest), numbers)


MINUTE = _field("minute", 0, 59)
HOUR = _field("hour", 0, 23)
DAY = _field("day", 1, 31)
MONTH = _field("month", 1, 12)
WEEKDAY = _field("weekday", 0, 6)
FIELDS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)
MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
WEEKDAY_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")

# [0-9], not \d: POSIX knows the ten ASCII digits, Python's \d knows several hundred.
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")


# A field of a megabyte (leading zeros) is valid; keeping thousands of those would be a leak.
_LONGEST_KEPT = 256


def parse_field(field: Field, text: str) -> int:
    """The mask of the values that *text* allows. Raises FieldParseError."""
    if text == "*":
        return field.every
    return _kept_mask(field, text) if len(text) <= _LONGEST_KEPT else _mask(field, text)


def _mask(field: Field, text: str) -> int:
    mask = 0
    for element in text.split(","):
        mask |= field.numbers.get(element) or _element_mask(field, text, element)
    return mask


_kept_mask = lru_cache(maxsize=4096)(_mask)


def values_of(mask: int) -> list[int]:
    """The values that *mask* stands for, in order."""
    return [value for value in range(mask.bit_length()) if mask >> value & 1]


def runs_of(values: Iterable[int]) -> list[list[int]]:
    """The values, in order, cut where a number is left out: [1, 2, 5] is [1, 2] and [5]."""
    runs = groupby(enumerate(sorted(values)), lambda numbered: numbered[1] - numbered[0])
    return [[value for _, value in run] for _, run in runs]


def _element_mask(field: Field, text: str, element: str) -> int:
    if element.isascii() and element.isdigit():
        return 1 << _value(field, text, element)
    if bounds := _RANGE.fullmatch(element):
        first, last = (_value(field, text, bound) for bound in bounds.groups())
        if first > last:
            raise _refusal(field, text, f"has a range that runs backwards ({element})")
        return (2 << last) - (1 << first)
    raise _refusal(field, text, _fault(element))


def _value(field: Field, text: str, digits: str) -> int:
    if len(digits) <= 2 and field.lowest <= (value := int(digits)) <= field.highest:
        return value
    significant = digits.lstrip("0") or "0"
    # Compare lengths first: int() of a megabyte of digits is a denial of service.
    value = int(significant) if len(significant) <= 2 else -1
    if not field.lowest <= value <= field.highest:
        hint = "; Sunday is 0" if field is WEEKDAY and value == 7 else ""
        shown = significant if len(significant) <= 20 else significant[:20] + "…"
        raise _refusal(field, text, f"must be {field.lowest}-{field.highest}, not {shown}{hint}")
    return value


_FAULTS = (
    (re.compile(r""), "has an empty list element"),
    (re.compile(r"\*"), "has * inside a list; * stands alone"),
    (re.compile(r".*/.*", re.DOTALL), "has a step (/), which POSIX cron does not have"),
    (re.compile(r"@.*", re.DOTALL), "has a macro (@), which POSIX cron does not have"),
    (re.compile(r"\?|L|[0-9]*[LW]|LW|[0-9]+#[0-9]+", re.ASCII), "has a Quartz token (? L W #)"),
    (re.compile(r"[A-Za-z]+(-[A-Za-z]+)?"), "has a name; POSIX cron has numbers only"),
    (re.compile(r"[+-][0-9]+"), "has a signed number"),
    (re.compile(r"0[xX][0-9a-fA-F]+"), "has a hexadecimal number"),
    (re.compile(r"[0-9]*\.[0-9]*"), "has a decimal number"),
    (re.compile(r"[0-9]+[eE][+-]?[0-9]+"), "has a number with an exponent"),
    (re.compile(r"[\d-]+"), "has digits other than 0-9, or a range that is not first-last"),
)


def _fault(element: str) -> str:
    """What is wrong with an element that is neither a number nor a range."""
    for pattern, reason in _FAULTS:
        if pattern.fullmatch(element):
            return reason
    shown = element if len(element) <= 20 else element[:20] + "…"
    return f"has {shown!r}, which is neither a number, a range nor *"


def _refusal(field: Field, text: str, reason: str) -> FieldParseError:
    return FieldParseError(field_name=field.name, field_value=text, reason=reason)
