"""Cron across clock changes, written as clock tables: what the wall clock shows, and which of it is due.

In a table the left column is the instant (UTC), the right one what the clock shows. A civil minute that is
never shown never occurs; one that is shown twice occurs the first time. Every expected time carries its
offset, so each row says which of two equal faces is meant.
"""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from duly.cron import CronExpression

MICROSECOND = timedelta(microseconds=1)


def at(text: str, key: str) -> datetime:
    """The instant that *text* names with its offset, as the clocks of a zone show it."""
    return datetime.fromisoformat(text).astimezone(ZoneInfo(key))


def shown(moment: datetime) -> str:
    return moment.isoformat(" ", "minutes")


def just_before(moment: datetime) -> datetime:
    return (moment.astimezone(UTC) - MICROSECOND).astimezone(moment.tzinfo)


def check(key: str, text: str, origin: str, expected: list[str]) -> None:
    """The occurrences after *origin* are *expected*: asked forwards, backwards and one by one."""
    expression = CronExpression.parse(text)
    found = expression.upcoming(at(origin, key), len(expected))
    assert [shown(moment) for moment in found] == expected
    last = at(origin, key)
    for moment in found:
        assert moment.astimezone(UTC) > last.astimezone(UTC)
        assert moment.fold == 0
        assert moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) == moment.replace(
            tzinfo=None
        )
        assert expression.matches(moment)
        assert expression.previous_at_or_before(moment) == moment
        assert expression.next_after(just_before(moment)) == moment
        last = moment
    for earlier, later in pairwise(found):
        assert expression.previous_at_or_before(just_before(later)) == earlier


# America/New_York, 8 March 2026: forward by an hour.
#
#     06:58   01:58 -05
#     06:59   01:59 -05
#     07:00   03:00 -04    02:00 to 02:59 are not shown
#     07:01   03:01 -04
@pytest.mark.parametrize(
    ("text", "origin", "expected"),
    [
        ("* * * * *", "2026-03-08 01:58-05:00", ["2026-03-08 01:59-05:00", "2026-03-08 03:00-04:00"]),
        ("30 * * * *", "2026-03-08 01:00-05:00", ["2026-03-08 01:30-05:00", "2026-03-08 03:30-04:00"]),
        ("30 2 * * *", "2026-03-07 00:00-05:00", ["2026-03-07 02:30-05:00", "2026-03-09 02:30-04:00"]),
        ("0 3 * * *", "2026-03-08 01:59-05:00", ["2026-03-08 03:00-04:00", "2026-03-09 03:00-04:00"]),
        ("0 2,3 * * *", "2026-03-08 00:00-05:00", ["2026-03-08 03:00-04:00", "2026-03-09 02:00-04:00"]),
        ("30 2 8 3 *", "2026-01-01 00:00-05:00", ["2027-03-08 02:30-05:00"]),
        ("30 2 * 3 0", "2026-03-01 03:00-05:00", ["2026-03-15 02:30-04:00"]),
    ],
)
def test_new_york_forward(text: str, origin: str, expected: list[str]) -> None:
    """In New York the hour that spring skips never occurs; what comes after it is due at once."""
    check("America/New_York", text, origin, expected)


# America/New_York, 1 November 2026: back by an hour.
#
#     05:00   01:00 -04
#     05:59   01:59 -04
#     06:00   01:00 -05    01:00 to 01:59 are shown again
#     06:59   01:59 -05
#     07:00   02:00 -05
@pytest.mark.parametrize(
    ("text", "origin", "expected"),
    [
        ("* * * * *", "2026-11-01 01:58-04:00", ["2026-11-01 01:59-04:00", "2026-11-01 02:00-05:00"]),
        ("* * * * *", "2026-11-01 01:00-05:00", ["2026-11-01 02:00-05:00"]),
        ("* * * * *", "2026-11-01 01:30-05:00", ["2026-11-01 02:00-05:00"]),
        ("30 * * * *", "2026-11-01 01:00-04:00", ["2026-11-01 01:30-04:00", "2026-11-01 02:30-05:00"]),
        ("30 1 * * *", "2026-11-01 00:00-04:00", ["2026-11-01 01:30-04:00", "2026-11-02 01:30-05:00"]),
        ("30 1 * * *", "2026-11-01 01:00-05:00", ["2026-11-02 01:30-05:00"]),
        ("0 1,2 * * *", "2026-11-01 00:00-04:00", ["2026-11-01 01:00-04:00", "2026-11-01 02:00-05:00"]),
        ("0 0 * * *", "2026-11-01 00:00-04:00", ["2026-11-02 00:00-05:00"]),
    ],
)
def test_new_york_back(text: str, origin: str, expected: list[str]) -> None:
    """In New York the hour that autumn repeats occurs when it is first shown, even for every-minute tasks."""
    check("America/New_York", text, origin, expected)


def test_second_showing_is_not_due() -> None:
    """A repeated minute matches with fold 0 and not with fold 1; before it lies the first showing."""
    expression = CronExpression.parse("30 1 * * *")
    first = datetime(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York"))
    second = first.replace(fold=1)
    for seconds in (0, 59):
        assert expression.matches(first.replace(second=seconds))
        assert not expression.matches(second.replace(second=seconds))
    assert shown(expression.previous_at_or_before(second)) == "2026-11-01 01:30-04:00"
    assert shown(expression.next_after(second)) == "2026-11-02 01:30-05:00"
    every = CronExpression.parse("* * * * *")
    assert shown(every.previous_at_or_before(second)) == "2026-11-01 01:59-04:00"
    assert not every.matches(second)


def test_fold_where_nothing_repeats() -> None:
    """On an ordinary day fold=1 changes nothing, and is not handed on."""
    moment = datetime(2026, 7, 1, 9, 0, tzinfo=ZoneInfo("America/New_York"), fold=1)
    expression = CronExpression.parse("0 * * * *")
    assert expression.matches(moment)
    assert expression.next_after(moment).fold == 0
    assert expression.previous_at_or_before(moment).fold == 0
    assert shown(expression.next_after(moment)) == "2026-07-01 10:00-04:00"
    assert shown(expression.previous_at_or_before(moment)) == "2026-07-01 09:00-04:00"


def test_origin_inside_a_gap() -> None:
    """A face that is never shown is taken for the instant Python gives it: fold 0 after the gap, 1 before."""
    every, daily = CronExpression.parse("* * * * *"), CronExpression.parse("30 2 * * *")
    after_gap = datetime(2026, 3, 8, 2, 30, tzinfo=ZoneInfo("America/New_York"))  # 03:30 -04
    before_gap = after_gap.replace(fold=1)  # 01:30 -05
    assert shown(every.next_after(after_gap)) == "2026-03-08 03:31-04:00"
    assert shown(every.previous_at_or_before(after_gap)) == "2026-03-08 03:30-04:00"
    assert shown(every.next_after(before_gap)) == "2026-03-08 01:31-05:00"
    assert shown(every.previous_at_or_before(before_gap)) == "2026-03-08 01:30-05:00"
    for moment in (after_gap, before_gap):
        assert not daily.matches(moment)
        assert not every.matches(moment)
        assert shown(daily.next_after(moment)) == "2026-03-09 02:30-04:00"
        assert shown(daily.previous_at_or_before(moment)) == "2026-03-07 02:30-05:00"


# Europe/Berlin, 29 March 2026 and 25 October 2026.
#
#     00:59   01:59 +01             00:59   02:59 +02
#     01:00   03:00 +02             01:00   02:00 +01    02:00 to 02:59 again
#                                   02:00   03:00 +01
@pytest.mark.parametrize(
    ("text", "origin", "expected"),
    [
        ("*  * * * *", "2026-03-29 01:59+01:00", ["2026-03-29 03:00+02:00", "2026-03-29 03:01+02:00"]),
        ("30 2 * * *", "2026-03-28 02:30+01:00", ["2026-03-30 02:30+02:00"]),
        ("30 2 29 3 *", "2025-03-29 02:30+01:00", ["2027-03-29 02:30+02:00"]),
        ("* * * * *", "2026-10-25 02:59+02:00", ["2026-10-25 03:00+01:00"]),
        ("30 2 * * *", "2026-10-24 02:30+02:00", ["2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"]),
        ("0 9 * * 1-5", "2026-10-23 09:00+02:00", ["2026-10-26 09:00+01:00"]),
    ],
)
def test_berlin(text: str, origin: str, expected: list[str]) -> None:
    """Berlin skips and repeats the hour from two to three."""
    check("Europe/Berlin", text, origin, expected)


# Australia/Lord_Howe shifts by half an hour: 5 April 2026 and 4 October 2026.
#
#     14:59   01:59 +11               15:29   01:59 +1030
#     15:00   01:30 +1030             15:30   02:30 +11     02:00 to 02:29 are not shown
#     15:30   02:00 +1030
@pytest.mark.parametrize(
    ("text", "origin", "expected"),
    [
        (
            "0,15,30,45 * * * *",
            "2026-04-05 01:30+11:00",
            ["2026-04-05 01:45+11:00", "2026-04-05 02:00+10:30"],
        ),
        ("45 1 * * *", "2026-04-05 01:45+11:00", ["2026-04-06 01:45+10:30"]),
        (
            "0,15,30,45 * * * *",
            "2026-10-04 01:45+10:30",
            ["2026-10-04 02:30+11:00", "2026-10-04 02:45+11:00"],
        ),
        ("15 2 * * *", "2026-10-03 02:15+10:30", ["2026-10-05 02:15+11:00"]),
        ("30 2 * * *", "2026-10-03 02:30+10:30", ["2026-10-04 02:30+11:00", "2026-10-05 02:30+11:00"]),
    ],
)
def test_lord_howe(text: str, origin: str, expected: list[str]) -> None:
    """Lord Howe Island changes its clocks by half an hour."""
    check("Australia/Lord_Howe", text, origin, expected)


# Pacific/Apia, 2011: Friday 30 December was skipped to cross the date line.
#
#     30th 09:59   29th 23:59 -10   Thursday
#     30th 10:00   31st 00:00 +14   Saturday
@pytest.mark.parametrize(
    ("text", "origin", "expected"),
    [
        ("* * * * *", "2011-12-29 23:59-10:00", ["2011-12-31 00:00+14:00"]),
        ("0 9 * * *", "2011-12-28 09:00-10:00", ["2011-12-29 09:00-10:00", "2011-12-31 09:00+14:00"]),
        ("0 9 * * 5", "2011-12-23 09:00-10:00", ["2012-01-06 09:00+14:00"]),
        ("0 9 30 12 *", "2010-12-31 00:00-10:00", ["2012-12-30 09:00+14:00"]),
        ("0 0 30 * 5", "2011-12-25 00:00-10:00", ["2012-01-06 00:00+14:00"]),
    ],
)
def test_apia_skips_a_day(text: str, origin: str, expected: list[str]) -> None:
    """On Samoa the 30th of December 2011 never occurred."""
    check("Pacific/Apia", text, origin, expected)


# Pacific/Kwajalein skipped 21 August 1993, a Saturday, and had 30 September 1969 nearly twice.
#
#     1993:  21st 11:59   20th 23:59 -12         1969:  30th 12:59   30th 23:59 +11
#            21st 12:00   22nd 00:00 +12                30th 13:00   30th 01:00 -12    23 hours again
#                                                  1 Oct 12:00   1 Oct 00:00 -12
@pytest.mark.parametrize(
    ("text", "origin", "expected"),
    [
        ("0 0,12 * * *", "1993-08-20 00:00-12:00", ["1993-08-20 12:00-12:00", "1993-08-22 00:00+12:00"]),
        ("0 12 * * 6", "1993-08-14 12:00-12:00", ["1993-08-28 12:00+12:00"]),
        ("0 0,12 * * *", "1969-09-30 00:00+11:00", ["1969-09-30 12:00+11:00", "1969-10-01 00:00-12:00"]),
        ("* * * * *", "1969-09-30 23:59+11:00", ["1969-10-01 00:00-12:00"]),
        ("* * * * *", "1969-09-30 07:00-12:00", ["1969-10-01 00:00-12:00"]),
    ],
)
def test_kwajalein_changes_sides(text: str, origin: str, expected: list[str]) -> None:
    """Kwajalein changed sides of the date line twice: a day nearly repeated, a day skipped."""
    check("Pacific/Kwajalein", text, origin, expected)


# Clocks that go forward at midnight: the day begins at 01:00, and its midnight is not shown.
#
#     America/Sao_Paulo, 4 November 2018   02:59   23:59 -03       03:00   01:00 -02
#     Asia/Beirut, 30 March 2025           21:59   23:59 +02       22:00   01:00 +03
#     Africa/Cairo, 25 April 2025          21:59   23:59 +02       22:00   01:00 +03
@pytest.mark.parametrize(
    ("key", "days", "before", "after"),
    [
        ("America/Sao_Paulo", ("2018-11-03", "2018-11-04", "2018-11-05"), "-03:00", "-02:00"),
        ("Asia/Beirut", ("2025-03-29", "2025-03-30", "2025-03-31"), "+02:00", "+03:00"),
        ("Africa/Cairo", ("2025-04-24", "2025-04-25", "2025-04-26"), "+02:00", "+03:00"),
    ],
)
def test_midnight_is_skipped(key: str, days: tuple[str, str, str], before: str, after: str) -> None:
    """Where the clock jumps over midnight, midnight tasks wait a day and later ones do not."""
    eve, day, next_day = days
    check(key, "0 0 * * *", f"{eve} 00:00{before}", [f"{next_day} 00:00{after}"])
    check(key, "30 0 * * *", f"{eve} 00:30{before}", [f"{next_day} 00:30{after}"])
    check(key, "0 1 * * *", f"{eve} 01:00{before}", [f"{day} 01:00{after}", f"{next_day} 01:00{after}"])
    check(key, "* * * * *", f"{eve} 23:58{before}", [f"{eve} 23:59{before}", f"{day} 01:00{after}"])


# Clocks that go back at midnight: the last hour of the day is shown twice, midnight once.
#
#     America/Sao_Paulo, 17 February 2018   01:59   23:59 -02      02:00   23:00 -03      03:00   00:00 -03
#     Asia/Beirut, 25 October 2025          20:59   23:59 +03      21:00   23:00 +02      22:00   00:00 +02
#     Africa/Cairo, 30 October 2025         20:59   23:59 +03      21:00   23:00 +02      22:00   00:00 +02
@pytest.mark.parametrize(
    ("key", "eve", "day", "before", "after"),
    [
        ("America/Sao_Paulo", "2018-02-17", "2018-02-18", "-02:00", "-03:00"),
        ("Asia/Beirut", "2025-10-25", "2025-10-26", "+03:00", "+02:00"),
        ("Africa/Cairo", "2025-10-30", "2025-10-31", "+03:00", "+02:00"),
    ],
)
def test_hour_before_midnight_repeats(key: str, eve: str, day: str, before: str, after: str) -> None:
    """Where the clock goes back at midnight, the hour before it occurs once, midnight at its only showing."""
    check(key, "* * * * *", f"{eve} 23:58{before}", [f"{eve} 23:59{before}", f"{day} 00:00{after}"])
    check(key, "* * * * *", f"{eve} 23:30{after}", [f"{day} 00:00{after}"])
    check(key, "30 23 * * *", f"{eve} 00:00{before}", [f"{eve} 23:30{before}", f"{day} 23:30{after}"])
    check(key, "0 0 * * *", f"{eve} 00:00{before}", [f"{day} 00:00{after}"])


# Africa/Casablanca, 2025: an hour back for Ramadan on 23 February, forward again on 6 April.
#
#     23 February   01:59   02:59 +01      02:00   02:00 +00    02:00 to 02:59 again
#     6 April       01:59   01:59 +00      02:00   03:00 +01    02:00 to 02:59 not shown
@pytest.mark.parametrize(
    ("text", "origin", "expected"),
    [
        ("30 2 * * *", "2025-02-22 02:30+01:00", ["2025-02-23 02:30+01:00", "2025-02-24 02:30+00:00"]),
        ("* * * * *", "2025-02-23 02:59+01:00", ["2025-02-23 03:00+00:00"]),
        ("30 2 * * *", "2025-04-05 02:30+00:00", ["2025-04-07 02:30+01:00"]),
        ("* * * * *", "2025-04-06 01:59+00:00", ["2025-04-06 03:00+01:00"]),
    ],
)
def test_casablanca_ramadan(text: str, origin: str, expected: list[str]) -> None:
    """Morocco leaves its summer time for the month of Ramadan."""
    check("Africa/Casablanca", text, origin, expected)


# Antarctica/Troll shifts by two hours: 30 March 2025 and 26 October 2025.
#
#     00:59   00:59 +00                 00:59   02:59 +02
#     01:00   03:00 +02                 01:00   01:00 +00    01:00 to 02:59 again
#                                       03:00   03:00 +00
@pytest.mark.parametrize(
    ("text", "origin", "expected"),
    [
        ("30 * * * *", "2025-03-30 00:00+00:00", ["2025-03-30 00:30+00:00", "2025-03-30 03:30+02:00"]),
        ("0 1,2 * * *", "2025-03-29 02:00+00:00", ["2025-03-31 01:00+02:00"]),
        ("30 * * * *", "2025-10-26 02:00+02:00", ["2025-10-26 02:30+02:00", "2025-10-26 03:30+00:00"]),
        ("0 1,2 * * *", "2025-10-26 02:00+02:00", ["2025-10-27 01:00+00:00"]),
    ],
)
def test_troll_two_hours(text: str, origin: str, expected: list[str]) -> None:
    """Troll station changes its clocks by two hours."""
    check("Antarctica/Troll", text, origin, expected)


# Europe/Dublin, where winter is the exception in law: 30 March 2025 and 26 October 2025.
#
#     00:59   00:59 +00                 00:59   01:59 +01
#     01:00   02:00 +01                 01:00   01:00 +00    01:00 to 01:59 again
#
# Atlantic/Azores change at the same instants, around their midnight.
#
#     00:59   23:59 -01                 00:59   00:59 +00
#     01:00   01:00 +00                 01:00   00:00 -01    00:00 to 00:59 again
@pytest.mark.parametrize(
    ("key", "text", "origin", "expected"),
    [
        ("Europe/Dublin", "30 1 * * *", "2025-03-29 01:30+00:00", ["2025-03-31 01:30+01:00"]),
        ("Europe/Dublin", "* * * * *", "2025-03-30 00:59+00:00", ["2025-03-30 02:00+01:00"]),
        (
            "Europe/Dublin",
            "30 1 * * *",
            "2025-10-25 01:30+01:00",
            ["2025-10-26 01:30+01:00", "2025-10-27 01:30+00:00"],
        ),
        ("Europe/Dublin", "* * * * *", "2025-10-26 01:59+01:00", ["2025-10-26 02:00+00:00"]),
        ("Atlantic/Azores", "0 0 * * *", "2025-03-29 00:00-01:00", ["2025-03-31 00:00+00:00"]),
        ("Atlantic/Azores", "0 0 30 3 *", "2025-01-01 00:00-01:00", ["2026-03-30 00:00+00:00"]),
        (
            "Atlantic/Azores",
            "0 0 * * *",
            "2025-10-25 00:00+00:00",
            ["2025-10-26 00:00+00:00", "2025-10-27 00:00-01:00"],
        ),
        ("Atlantic/Azores", "* * * * *", "2025-10-26 00:59+00:00", ["2025-10-26 01:00-01:00"]),
    ],
)
def test_dublin_and_azores(key: str, text: str, origin: str, expected: list[str]) -> None:
    """A summer time that is the law's standard, and one that changes at midnight, are nothing special."""
    check(key, text, origin, expected)


# Africa/Monrovia, 7 January 1972: from 44 min 30 s behind to UTC.
#
#     00:43:30   23:59:00 -00:44:30
#     00:44:29   23:59:59 -00:44:30
#     00:44:30   00:44:30 +00          00:00:00 to 00:44:29 are not shown, so 00:44 has no second :00
#     00:45:00   00:45:00 +00
def test_monrovia_half_a_minute() -> None:
    """A minute occurs when its second :00 is shown; one of which only the rest is shown does not occur."""
    every = CronExpression.parse("* * * * *")
    before = at("1972-01-06 23:59:00-00:44:30", "Africa/Monrovia")
    after = at("1972-01-07 00:45+00:00", "Africa/Monrovia")
    inside = at("1972-01-07 00:44:45+00:00", "Africa/Monrovia")
    assert every.next_after(before) == after
    assert every.next_after(inside) == after
    assert every.previous_at_or_before(just_before(after)) == before
    assert every.previous_at_or_before(inside) == before
    assert every.matches(before.replace(second=59))
    assert every.matches(after)
    assert not every.matches(inside)
    assert not CronExpression.parse("44 0 * * *").matches(inside)
    check("Africa/Monrovia", "44 0 * * *", "1972-01-06 00:44-00:44:30", ["1972-01-08 00:44+00:00"])
    check("Africa/Monrovia", "0 0 * * *", "1972-01-06 00:00-00:44:30", ["1972-01-08 00:00+00:00"])


def test_answers_do_not_depend_on_earlier_questions() -> None:
    """Whether the zone was asked about another year just before makes no difference to an answer."""
    every = CronExpression.parse("* * * * *")
    moment = at("1972-01-07 00:44:45+00:00", "Africa/Monrovia")
    for other_year in ("1960", "1972", "2026"):
        every.next_after(at(f"{other_year}-02-01 00:00+00:00", "Africa/Monrovia"))
        assert not every.matches(moment)
        assert every.next_after(moment) == at("1972-01-07 00:45+00:00", "Africa/Monrovia")


# Africa/Niamey, New Year 1912: from local mean time back to -01.
#
#     23:51:31   23:59:59 +00:08:28
#     23:51:32   22:51:32 -01          until midnight everything is shown again
#     00:00:00   23:00:00 -01          a new year in UTC, still the old one here
#     01:00:00   00:00:00 -01
def test_niamey_repeats_across_new_year() -> None:
    """A repetition that reaches across the turn of the year is one repetition."""
    every = CronExpression.parse("* * * * *")
    last = at("1911-12-31 23:59:00+00:08:28", "Africa/Niamey")
    midnight = at("1912-01-01 00:00-01:00", "Africa/Niamey")
    assert every.next_after(last) == midnight
    for instant in ("1911-12-31 23:55+00:00", "1912-01-01 00:00+00:00", "1912-01-01 00:30+00:00"):
        repeated = at(instant, "Africa/Niamey")
        assert every.next_after(repeated) == midnight
        assert every.previous_at_or_before(repeated) == last
        assert not every.matches(repeated)
