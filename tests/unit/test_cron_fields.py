"""One field of a cron expression: what it means, and what exactly is wrong with it when it is refused."""

import pytest

from duly.cron.fields import DAY, FIELDS, HOUR, MINUTE, MONTH, WEEKDAY, Field, parse_field
from duly.errors import FieldParseError, SchedulerError

MEGABYTE = 1_000_000


def values(field: Field, text: str) -> list[int]:
    mask = parse_field(field, text)
    return [value for value in range(64) if mask >> value & 1]


def refusal(field: Field, text: str) -> FieldParseError:
    with pytest.raises(FieldParseError) as caught:
        parse_field(field, text)
    return caught.value


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        (MINUTE, "*", list(range(60))),
        (HOUR, "*", list(range(24))),
        (DAY, "*", list(range(1, 32))),
        (MONTH, "*", list(range(1, 13))),
        (WEEKDAY, "*", list(range(7))),
        (MINUTE, "0", [0]),
        (MINUTE, "59", [59]),
        (HOUR, "23", [23]),
        (DAY, "1", [1]),
        (DAY, "31", [31]),
        (MONTH, "12", [12]),
        (WEEKDAY, "0", [0]),
        (WEEKDAY, "6", [6]),
        (MINUTE, "5-8", [5, 6, 7, 8]),
        (MINUTE, "5-5", [5]),
        (MINUTE, "0-59", list(range(60))),
        (MINUTE, "0,15,30,45", [0, 15, 30, 45]),
        (MINUTE, "45,0,30,15", [0, 15, 30, 45]),
        (MINUTE, "5,5,5", [5]),
        (HOUR, "0,9-11,10-12,23", [0, 9, 10, 11, 12, 23]),
        (MINUTE, "007", [7]),
        (MINUTE, "00", [0]),
        (HOUR, "08-009", [8, 9]),
    ],
)
def test_field_means(field: Field, text: str, expected: list[int]) -> None:
    """A star, a number, a range or a list of these stands for exactly its values."""
    assert values(field, text) == expected


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_number_is_in_range_or_refused(field: Field) -> None:
    """All numbers from 0 to 99 are tried in every field; those outside of its bounds are refused."""
    for number in range(100):
        if field.lowest <= number <= field.highest:
            assert values(field, str(number)) == [number]
        else:
            assert refusal(field, str(number)).reason.startswith(
                f"must be {field.lowest}-{field.highest}, not {number}"
            )


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_every_range_forward_or_refused(field: Field) -> None:
    """All ranges inside the bounds are tried in every field; those that run backwards are refused."""
    for first in range(field.lowest, field.highest + 1):
        for last in range(field.lowest, field.highest + 1):
            if first <= last:
                assert values(field, f"{first}-{last}") == list(range(first, last + 1))
            else:
                reason = refusal(field, f"{first}-{last}").reason
                assert reason == f"has a range that runs backwards ({first}-{last})"


STEP = "has a step (/), which POSIX cron does not have"
MACRO = "has a macro (@), which POSIX cron does not have"
QUARTZ = "has a Quartz token (? L W #)"
NAME = "has a name; POSIX cron has numbers only"
EMPTY = "has an empty list element"
STAR = "has * inside a list; * stands alone"
DIGITS = "has digits other than 0-9, or a range that is not first-last"


@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [
        (MINUTE, "*/15", STEP),
        (MINUTE, "10-40/10", STEP),
        (MINUTE, "5/20", STEP),
        (MINUTE, "0,*/15", STEP),
        (MINUTE, "/", STEP),
        (MONTH, "jan", NAME),
        (MONTH, "JAN-MAR", NAME),
        (WEEKDAY, "Mon", NAME),
        (WEEKDAY, "mon,tue", NAME),
        (WEEKDAY, "mon-fri", NAME),
        (MINUTE, "@daily", MACRO),
        (MINUTE, "@", MACRO),
        (DAY, "?", QUARTZ),
        (DAY, "L", QUARTZ),
        (DAY, "LW", QUARTZ),
        (DAY, "15W", QUARTZ),
        (WEEKDAY, "5L", QUARTZ),
        (WEEKDAY, "1#2", QUARTZ),
        (WEEKDAY, "7", "must be 0-6, not 7; Sunday is 0"),
        (WEEKDAY, "5-7", "must be 0-6, not 7; Sunday is 0"),
        (WEEKDAY, "007", "must be 0-6, not 7; Sunday is 0"),
        (HOUR, "22-2", "has a range that runs backwards (22-2)"),
        (WEEKDAY, "6-0", "has a range that runs backwards (6-0)"),
        (HOUR, "1,22-2", "has a range that runs backwards (22-2)"),
        (MINUTE, "60", "must be 0-59, not 60"),
        (MINUTE, "0-60", "must be 0-59, not 60"),
        (HOUR, "24", "must be 0-23, not 24"),
        (DAY, "0", "must be 1-31, not 0"),
        (DAY, "32", "must be 1-31, not 32"),
        (MONTH, "0", "must be 1-12, not 0"),
        (MONTH, "13", "must be 1-12, not 13"),
        (MINUTE, "100", "must be 0-59, not 100"),
        (MINUTE, "-1", "has a signed number"),
        (MINUTE, "+1", "has a signed number"),
        (MINUTE, "0x10", "has a hexadecimal number"),
        (MINUTE, "0X1f", "has a hexadecimal number"),
        (MINUTE, "1.5", "has a decimal number"),
        (MINUTE, "1.", "has a decimal number"),
        (MINUTE, ".5", "has a decimal number"),
        (MINUTE, "1e1", "has a number with an exponent"),
        (MINUTE, "1E+1", "has a number with an exponent"),
        (MINUTE, "", EMPTY),
        (MINUTE, ",", EMPTY),
        (MINUTE, "1,", EMPTY),
        (MINUTE, ",1", EMPTY),
        (MINUTE, "1,,2", EMPTY),
        (MINUTE, "*,5", STAR),
        (MINUTE, "5,*", STAR),
        (MINUTE, "-", DIGITS),
        (MINUTE, "5-", DIGITS),
        (MINUTE, "1-2-3", DIGITS),
        (MINUTE, "--1", DIGITS),
        (MINUTE, "**", "has '**', which is neither a number, a range nor *"),
        (MINUTE, "*-5", "has '*-5', which is neither a number, a range nor *"),
        (MINUTE, "1_0", "has '1_0', which is neither a number, a range nor *"),
        (MINUTE, "5 ", "has '5 ', which is neither a number, a range nor *"),
        (MINUTE, "5\n", "has '5\\n', which is neither a number, a range nor *"),
    ],
)
def test_refusal_says_why(field: Field, text: str, reason: str) -> None:
    """Whatever POSIX does not have is refused, with the reason that fits this very text."""
    assert refusal(field, text).reason == reason


# Arabic-Indic, Persian, Devanagari, full-width, superscript, subscript, bold, Roman, Chinese, circled.
OTHER_DIGITS = [
    "\u0663",
    "\u06f3",
    "\u0969",
    "\uff13",
    "\xb3",
    "\u2083",
    "\U0001d7d1",
    "\u2162",
    "\u4e09",
    "\u2462",
]


@pytest.mark.parametrize("digit", OTHER_DIGITS, ids=ascii)
@pytest.mark.parametrize("shape", ["{}", "1{}", "{}-5", "1-{}", "1,{}"])
def test_only_ascii_digits(shape: str, digit: str) -> None:
    """A digit of any other script is refused, wherever in a field it stands."""
    assert refusal(MINUTE, shape.format(digit)).reason.startswith("has ")


def test_refusal_has_the_facts() -> None:
    """The error names the field and repeats its value, in its message and in its details."""
    error = refusal(HOUR, "1,24")
    assert isinstance(error, SchedulerError)
    assert str(error) == error.message == "hour field must be 0-23, not 24"
    assert error.details == {"fieldValue": "1,24", "fieldName": "hour"}


@pytest.mark.parametrize(
    "text",
    [
        "9" * MEGABYTE,
        "1-" + "9" * MEGABYTE,
        "-" * MEGABYTE,
        "1-" * MEGABYTE,
        "x" * MEGABYTE,
        "," * MEGABYTE,
        "*" * MEGABYTE,
        "0x" + "f" * MEGABYTE,
        "." * MEGABYTE,
        "1e" * MEGABYTE,
    ],
    ids=lambda text: text[:4],
)
def test_megabyte_is_refused_briefly(text: str) -> None:
    """A megabyte of nonsense is refused at once, and the reason quotes only a little of it."""
    assert len(refusal(MINUTE, text).reason) < 100


def test_megabyte_that_is_valid() -> None:
    """Leading zeros and repeated elements are fine in any number."""
    assert values(MINUTE, "0" * MEGABYTE + "7") == [7]
    assert values(MINUTE, ",".join(["7"] * MEGABYTE)) == [7]


def test_reason_shows_nothing_raw() -> None:
    """Control characters of a refused text appear in the reason only in their escaped form."""
    assert refusal(MINUTE, "\x1b[31m").reason == "has '\\x1b[31m', which is neither a number, a range nor *"
