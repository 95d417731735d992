"""Cron expressions: what is refused and how, what equals what, and plain days without a clock change."""

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from duly.cron import CronExpression
from duly.errors import CronCalculationError, FieldParseError, InvalidCronExpressionError
from tests.unit.cron_meaning import are_equivalent

MEGABYTE = 1_000_000


def refusal(text: str) -> InvalidCronExpressionError:
    with pytest.raises(InvalidCronExpressionError) as caught:
        CronExpression.parse(text)
    return caught.value


def at(text: str, zone: tzinfo = UTC) -> datetime:
    """The aware datetime that a test writes as plain text."""
    return datetime.fromisoformat(text).replace(tzinfo=zone)


# --- texts ---


@pytest.mark.parametrize(
    "text",
    [
        "* * * * *",
        "0 0 1 1 0",
        "59 23 31 12 6",
        "  0\t9 *  * \t1-5 ",
        "\t0 9 * * 1-5\t",
        "00 009 01 01 00",
        "0 0 29 2 *",
        "0 0 29,30,31 2 *",
        "0 0 31 4,5 *",
        "0 0 31 4 1",
        "0 0 30 2 0-6",
        "0 0 31 2,4,6,9,11 3",
    ],
)
def test_valid_text_is_kept(text: str) -> None:
    """A valid text is kept exactly as it was given, blanks and zeros included."""
    assert CronExpression.parse(text).text == text


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("*/5 * * * *", "minute", "has a step (/), which POSIX cron does not have"),
        ("0 22-2 * * *", "hour", "has a range that runs backwards (22-2)"),
        ("0 0 L * *", "day", "has a Quartz token (? L W #)"),
        ("0 0 * jan *", "month", "has a name; POSIX cron has numbers only"),
        ("0 0 * * 7", "weekday", "must be 0-6, not 7; Sunday is 0"),
        ("0 0 * * mon-fri", "weekday", "has a name; POSIX cron has numbers only"),
        ("@daily * * * *", "minute", "has a macro (@), which POSIX cron does not have"),
        ("@daily", "expression", "is a macro (@), which POSIX cron does not have"),
        ("@reboot", "expression", "is a macro (@), which POSIX cron does not have"),
        ("", "expression", "must have 5 fields (minute hour day month weekday), not 0"),
        (" \t ", "expression", "must have 5 fields (minute hour day month weekday), not 0"),
        ("* * * *", "expression", "must have 5 fields (minute hour day month weekday), not 4"),
        ("0 * * * * *", "expression", "must have 5 fields (minute hour day month weekday), not 6"),
        ("0 0 9 * * ? 2026", "expression", "must have 5 fields (minute hour day month weekday), not 7"),
        ("0 0 30 2 *", "expression", "can never match: no such day in any of its months"),
        ("0 0 31 2,4,6,9,11 *", "expression", "can never match: no such day in any of its months"),
        ("0 0 30,31 02 *", "expression", "can never match: no such day in any of its months"),
    ],
)
def test_refusal(text: str, field: str, reason: str) -> None:
    """A refused text is answered with its field, the reason, and both in one sentence."""
    error = refusal(text)
    assert str(error) == error.message == f'Invalid cron expression "{text}": {field} field {reason}'
    assert error.details == {"expression": text, "field": field, "reason": reason}


@pytest.mark.parametrize(
    "blank", ["\r", "\n", "\r\n", "\v", "\f", "\xa0", "\u2003", "\u3000", "\x1c", "\0"], ids=ascii
)
def test_only_blank_and_tab_separate(blank: str) -> None:
    """No other white space separates fields, or stands before or after them."""
    assert refusal(blank.join("01234")).details["field"] == "expression"
    assert refusal(f"0 0 * * *{blank}").details["field"] == "weekday"
    assert refusal(f"{blank}0 0 * * *").details["field"] == "minute"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("60 24 0 13 7", "minute"),
        ("0 24 0 13 7", "hour"),
        ("0 0 0 13 7", "day"),
        ("0 0 1 13 7", "month"),
        ("0 0 1 1 7", "weekday"),
        ("0 0 30 2 7", "weekday"),
    ],
)
def test_leftmost_bad_field(text: str, field: str) -> None:
    """Of several bad fields the leftmost one is reported; a bad field comes before a date that never is."""
    assert refusal(text).details["field"] == field


def test_bad_field_is_the_cause() -> None:
    """The error about one field is the cause of the error about the expression."""
    cause = refusal("0 24 * * *").__cause__
    assert isinstance(cause, FieldParseError)
    assert cause.details == {"fieldValue": "24", "fieldName": "hour"}


def test_whole_expression_fault_has_no_cause() -> None:
    """A fault of the whole expression is not blamed on a field."""
    assert refusal("* * *").__cause__ is None
    assert refusal("0 0 30 2 *").__cause__ is None


@pytest.mark.parametrize("thing", [None, 5, 5.0, b"* * * * *", ["*"] * 5, {}, object], ids=repr)
def test_only_text_is_parsed(thing: object) -> None:
    """Anything but text is refused as a whole, hashable or not."""
    with pytest.raises(InvalidCronExpressionError) as caught:
        CronExpression.parse(thing)  # type: ignore[arg-type]
    assert caught.value.details["reason"] == f"must be text, not {type(thing).__name__}"


@pytest.mark.parametrize(
    "text",
    ["*" * MEGABYTE, "* " * MEGABYTE, " " * MEGABYTE, "9" * MEGABYTE + " * * * *", "@" * MEGABYTE],
    ids=["stars", "fields", "blanks", "digits", "at"],
)
def test_megabyte_is_refused_briefly(text: str) -> None:
    """A megabyte is refused at once; the message quotes a little, the details keep it all."""
    error = refusal(text)
    assert len(error.message) < 500
    assert error.details["expression"] == text


def test_megabyte_that_is_valid() -> None:
    """A megabyte of blanks and leading zeros parses, and is kept as it is."""
    text = " " * MEGABYTE + "0" * MEGABYTE + "5 * * * *"
    expression = CronExpression.parse(text)
    assert expression.text == text
    assert are_equivalent(expression, CronExpression.parse("5 * * * *"))


def test_made_by_parse_only() -> None:
    """Calling the class says what to call instead."""
    with pytest.raises(TypeError, match="parse"):
        CronExpression()


# --- the same, or as good as the same ---


def test_equal_by_text() -> None:
    """Two expressions are equal when their texts are, and only then."""
    nine = CronExpression.parse("0 9 * * *")
    assert nine == CronExpression.parse("0 9 * * *")
    assert hash(nine) == hash(CronExpression.parse("0 9 * * *"))
    assert nine != CronExpression.parse("0  9 * * *")
    assert nine != "0 9 * * *"
    assert len({nine, CronExpression.parse("0 9 * * *"), CronExpression.parse("00 9 * * *")}) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0 9 * * *", " 00\t09 * * * "),
        ("0-59 * * * *", "* * * * *"),
        ("0 0 1-31 * *", "0 0 * * *"),
        ("0 0 * * 0-6", "0 0 * * *"),
        ("0 0 5 * 0-6", "0 0 * * *"),
        ("0 0 1-31 * 1", "0 0 * * *"),
        ("0 0 30,31 2 1", "0 0 31 2 1"),
        ("0 0 1-28,29 2 *", "0 0 * 2 *"),
        ("0 0 28,31 2 *", "0 0 28 2 *"),
        ("30,0 * * * *", "0,30,30 * * * *"),
        ("0 0 1 * *", "0 0 1 1-12 *"),
    ],
)
def test_equivalent_by_meaning(one: str, other: str) -> None:
    """Two expressions are equivalent when they are due at the same times, however they are written."""
    first, second = CronExpression.parse(one), CronExpression.parse(other)
    assert are_equivalent(first, second)
    assert are_equivalent(second, first)
    assert first != second


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0 9 * * *", "0 10 * * *"),
        ("0 0 1 * *", "0 0 * * 1"),
        ("0 0 1 * 1", "0 0 1 * *"),
        ("0 0 31 4 1", "0 0 30,31 4 1"),
        ("0 0 29 2 *", "0 0 28,29 2 *"),
        ("0 0 29 2 *", "0 0 29 2 0"),
    ],
)
def test_not_equivalent(one: str, other: str) -> None:
    """Two expressions that are ever due at different times are not equivalent."""
    assert not are_equivalent(CronExpression.parse(one), CronExpression.parse(other))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled(protocol: int) -> None:
    """An expression survives pickling, text and behaviour."""
    expression = CronExpression.parse("0 9\t* * 1-5")
    again = pickle.loads(pickle.dumps(expression, protocol))
    assert again == expression
    assert again.text == expression.text
    assert again.next_after(at("2026-01-03")) == at("2026-01-05T09:00")


def test_copied() -> None:
    """Copies, shallow and deep, are equal to the original."""
    expression = CronExpression.parse("0 9 * * 1-5")
    assert copy.copy(expression) == copy.deepcopy(expression) == expression


def test_repr_is_how_to_make_it() -> None:
    """The representation is the call that makes the expression."""
    assert repr(CronExpression.parse("0 9 * * *")) == "CronExpression.parse('0 9 * * *')"


# --- which datetimes ---


def asked_everything(expression: CronExpression, moment: datetime) -> list[ValueError]:
    errors = []
    for question in (
        expression.next_after,
        expression.previous_at_or_before,
        expression.matches,
        lambda moment: expression.upcoming(moment, 1),
    ):
        with pytest.raises(ValueError) as caught:
            question(moment)
        errors.append(caught.value)
    return errors


def test_naive_datetime_is_refused() -> None:
    """A datetime without a zone is refused by every question, with what to do about it."""
    for error in asked_everything(CronExpression.parse("* * * * *"), datetime(2026, 1, 1)):  # noqa: DTZ001 - the point
        assert "aware" in str(error)
        assert "tzinfo" in str(error)


class PytzLike(tzinfo):
    """What gives pytz zones away: `localize`, without which their offsets are wrong."""

    def localize(self, moment: datetime) -> datetime:
        """Attach the zone."""
        return moment.replace(tzinfo=self)

    def utcoffset(self, moment: datetime | None) -> timedelta:
        """Local mean time, as pytz answers when it was not localized."""
        return timedelta(minutes=53)

    def dst(self, moment: datetime | None) -> timedelta:
        """No summer time."""
        return timedelta(0)

    def tzname(self, moment: datetime | None) -> str:
        """A name."""
        return type(self).__name__

    def __str__(self) -> str:
        return "Europe/Berlin"


def test_pytz_zone_is_refused() -> None:
    """A zone in the manner of pytz is refused by every question, with the name to use instead."""
    for error in asked_everything(CronExpression.parse("* * * * *"), datetime(2026, 1, 1, tzinfo=PytzLike())):
        assert str(error) == "pytz zones cannot be used; write ZoneInfo('Europe/Berlin') instead"


class Plain(tzinfo):
    """A home-made zone that cannot be hashed or compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("zones are not compared")

    def utcoffset(self, moment: datetime | None) -> timedelta:
        """One and a half hours east."""
        return timedelta(minutes=90)

    def dst(self, moment: datetime | None) -> timedelta:
        """No summer time."""
        return timedelta(0)

    def tzname(self, moment: datetime | None) -> str:
        """A name."""
        return type(self).__name__


def test_any_tzinfo_will_do() -> None:
    """A fixed offset, UTC and a home-made zone all work, and the answer is in the zone of the question."""
    expression = CronExpression.parse("0 9 * * *")
    for zone in (
        UTC,
        timezone(timedelta(hours=-11)),
        timezone(timedelta(seconds=1)),
        Plain(),
        ZoneInfo("UTC"),
    ):
        found = expression.next_after(at("2026-01-01T09:00", zone))
        assert found.isoformat()[:16] == "2026-01-02T09:00"
        assert found.tzinfo is zone
        assert expression.previous_at_or_before(found) is not None
        assert expression.matches(found)


# --- plain days ---


@pytest.mark.parametrize(
    ("text", "origin", "following"),
    [
        ("* * * * *", "2026-01-01T00:00", ["2026-01-01T00:01", "2026-01-01T00:02"]),
        ("* * * * *", "2026-01-01T00:00:00.000001", ["2026-01-01T00:01"]),
        ("* * * * *", "2025-12-31T23:59:59.999999", ["2026-01-01T00:00"]),
        ("0 * * * *", "2026-01-01T00:00", ["2026-01-01T01:00"]),
        ("59 23 * * *", "2026-01-01T23:59", ["2026-01-02T23:59"]),
        ("0 9 * * 1-5", "2026-01-02T09:00", ["2026-01-05T09:00", "2026-01-06T09:00"]),
        ("0 0 * * 0", "2026-01-01T00:00", ["2026-01-04T00:00", "2026-01-11T00:00"]),
        ("0 0 31 * *", "2026-01-31T00:00", ["2026-03-31T00:00", "2026-05-31T00:00"]),
        ("0 0 30 * *", "2026-01-30T00:00", ["2026-03-30T00:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 29 2 *", "2096-02-29T00:00", ["2104-02-29T00:00"]),
        (
            "0 0 28,29,30,31 2 *",
            "2027-01-01T00:00",
            ["2027-02-28T00:00", "2028-02-28T00:00", "2028-02-29T00:00"],
        ),
        # Day and weekday both restricted: either is enough.
        ("0 0 13 * 5", "2026-02-01T00:00", ["2026-02-06T00:00", "2026-02-13T00:00", "2026-02-20T00:00"]),
        ("0 0 13 * 5", "2026-06-30T00:00", ["2026-07-03T00:00", "2026-07-10T00:00", "2026-07-13T00:00"]),
        ("0 0 31 4 1", "2026-03-31T00:00", ["2026-04-06T00:00", "2026-04-13T00:00"]),
        ("0 0 29 2 1", "2027-02-28T00:00", ["2028-02-07T00:00"]),
        # One of them a star: the other alone decides. `1-31` is not a star.
        ("0 0 13 * *", "2026-02-01T00:00", ["2026-02-13T00:00", "2026-03-13T00:00"]),
        ("0 0 1-31 * 5", "2026-02-01T00:00", ["2026-02-02T00:00"]),
        (
            "15,45 8,20 1 1,7 *",
            "2026-01-01T08:45",
            ["2026-01-01T20:15", "2026-01-01T20:45", "2026-07-01T08:15"],
        ),
    ],
)
def test_next_after(text: str, origin: str, following: list[str]) -> None:
    """The next occurrences follow the origin strictly, one after the other; looking back finds them again."""
    expression = CronExpression.parse(text)
    found = expression.upcoming(at(origin), len(following))
    assert found == [at(moment) for moment in following]
    for moment in found:
        assert expression.matches(moment)
        assert expression.previous_at_or_before(moment) == moment
    for earlier, later in pairwise(found):
        assert expression.previous_at_or_before(later - timedelta(microseconds=1)) == earlier


@pytest.mark.parametrize(
    ("text", "origin", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00", "2026-01-01T00:00"),
        ("* * * * *", "2026-01-01T00:00:59.999999", "2026-01-01T00:00"),
        ("0 9 * * *", "2026-01-01T08:59:59", "2025-12-31T09:00"),
        ("59 23 31 12 *", "2026-12-31T23:58", "2025-12-31T23:59"),
        ("0 0 29 2 *", "2026-01-01T00:00", "2024-02-29T00:00"),
        ("0 0 29 2 *", "2104-02-28T00:00", "2096-02-29T00:00"),
        ("0 0 31 4 1", "2026-04-05T00:00", "2025-04-28T00:00"),
        ("30 8-10 * * *", "2026-01-01T10:29", "2026-01-01T09:30"),
        ("30 8-10 * * *", "2026-01-01T08:29", "2025-12-31T10:30"),
    ],
)
def test_previous_at_or_before(text: str, origin: str, expected: str) -> None:
    """The previous occurrence is the origin's own minute, or the latest one before it."""
    assert CronExpression.parse(text).previous_at_or_before(at(origin)) == at(expected)


def test_matches_the_whole_minute() -> None:
    """An expression matches from the first microsecond of a due minute to its last, and no further."""
    expression = CronExpression.parse("30 9 * * *")
    assert expression.matches(at("2026-01-01T09:30"))
    assert expression.matches(at("2026-01-01T09:30:59.999999"))
    assert not expression.matches(at("2026-01-01T09:29:59.999999"))
    assert not expression.matches(at("2026-01-01T09:31"))


def test_upcoming_none() -> None:
    """No occurrences asked for, none given."""
    assert CronExpression.parse("* * * * *").upcoming(at("2026-01-01"), 0) == []


def test_masks_and_either_day() -> None:
    """The parsed values can be read, and whether day and weekday are alternatives."""
    expression = CronExpression.parse("0,2 1 3 4 0,6")
    assert expression.masks == (0b101, 0b10, 0b1000, 0b10000, 0b1000001)
    assert expression.either_day
    assert not CronExpression.parse("0 0 1 * *").either_day
    assert not CronExpression.parse("0 0 * * 1").either_day
    assert CronExpression.parse("0 0 1-31 * 0-6").either_day


# --- the ends of time ---

ZONES_AT_THE_ENDS = [
    UTC,
    ZoneInfo("UTC"),
    ZoneInfo("Europe/Berlin"),
    ZoneInfo("Pacific/Kiritimati"),
    ZoneInfo("America/New_York"),
    ZoneInfo("Pacific/Pago_Pago"),
    timezone(timedelta(hours=23, minutes=59)),
    timezone(-timedelta(hours=23, minutes=59)),
]


@pytest.mark.parametrize("zone", ZONES_AT_THE_ENDS, ids=str)
def test_year_9999(zone: tzinfo) -> None:
    """Occurrences are found well into the last year; after them there is an error, not an overflow."""
    expression = CronExpression.parse("0 0 1 * *")
    december = at("9999-12-01", zone)
    assert expression.next_after(at("9999-11-01", zone)) == december
    assert expression.previous_at_or_before(at("9999-12-20", zone)) == december
    assert expression.previous_at_or_before(at("9999-12-31T23:59:59.999999", zone)) == december
    assert expression.matches(december)
    for origin in ("9999-12-01", "9999-12-29T12:00", "9999-12-31T23:59:59.999999"):
        moment = at(origin, zone)
        with pytest.raises(CronCalculationError) as caught:
            expression.next_after(moment)
        error = caught.value
        reason = "there is no occurrence after that time within the years 1 to 9999"
        assert error.message == f"Failed to calculate next occurrence: {reason}"
        assert error.details["expression"] == "0 0 1 * *"
        assert error.details["currentTime"] == moment.isoformat()
        assert error.details.keys() == {"expression", "currentTime", "cause"}
        assert error.__cause__ is not None


@pytest.mark.parametrize("zone", ZONES_AT_THE_ENDS, ids=str)
def test_year_1(zone: tzinfo) -> None:
    """Occurrences are found well into the first year; before them there is an error, not an overflow."""
    expression = CronExpression.parse("0 0 15 * *")
    january = at("0001-01-15", zone)
    assert expression.previous_at_or_before(at("0001-02-14", zone)) == january
    assert expression.next_after(at("0001-01-01", zone)) == january
    assert expression.matches(january)
    for origin in ("0001-01-14T23:59", "0001-01-02", "0001-01-01"):
        with pytest.raises(CronCalculationError, match="no occurrence before that time"):
            expression.previous_at_or_before(at(origin, zone))


def test_leap_day_past_the_end() -> None:
    """An expression whose last occurrence is years before the end of time has no next one."""
    expression = CronExpression.parse("0 0 29 2 *")
    assert expression.next_after(at("9992-03-01")) == at("9996-02-29")
    with pytest.raises(CronCalculationError):
        expression.next_after(at("9996-02-29"))
    assert expression.previous_at_or_before(at("0004-03-01")) == at("0004-02-29")
    with pytest.raises(CronCalculationError):
        expression.previous_at_or_before(at("0004-02-28"))
