"""The checker's own cron against the brute-force walker, and against what the scheduler accepts."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duly.cron import CronExpression
from duly.errors import InvalidCronExpressionError
from duly.verify.dues import NEVER_US, Dues, ScheduleTextError, face_at, instant_us, minute_start_us
from tests.property.strategies import ZONES, frequent_texts, near_transitions, texts
from tests.property.walker import firings

MICROSECOND = timedelta(microseconds=1)
keys_and_instants = st.sampled_from(ZONES).flatmap(lambda key: st.tuples(st.just(key), near_transitions(key)))
fields = st.text(alphabet="0123456789*-,/ \tLW#?٣x+.", max_size=8)


@pytest.mark.heavy
@settings(max_examples=150)
@given(frequent_texts(), keys_and_instants)
@example("* * * * *", ("Pacific/Kwajalein", datetime(1969, 10, 1, 3, 0, tzinfo=UTC)))
@example("44 0 * * *", ("Africa/Monrovia", datetime(1972, 1, 7, 0, 44, 45, tzinfo=UTC)))
def test_dues_as_walked(text: str, where: tuple[str, datetime]) -> None:
    """The dues are those that a walk through the following days meets, in their order."""
    zone, instant = ZoneInfo(where[0]), where[1]
    walked = firings(text, zone, instant + MICROSECOND, instant + timedelta(days=3))
    expected = [instant_us(shown.instant) for shown in islice(walked, 5)]
    dues = Dues(text, zone)
    found: list[int] = []
    at_us = instant_us(instant)
    while len(found) < len(expected):
        at_us = dues.after(at_us)
        found.append(at_us)
    assert found == expected


@settings(max_examples=150)
@given(frequent_texts(), st.integers(0, 2**52))
def test_utc_is_like_a_zone_that_is_never_set(text: str, at_us: int) -> None:
    """UTC, where the search begins right at the moment, has the dues of a zone with the same clocks."""
    utc, same = Dues(text, ZoneInfo("UTC")), Dues(text, ZoneInfo("Etc/GMT"))
    for _ in range(5):
        assert utc.after(at_us) == same.after(at_us)
        assert utc.after(at_us - 1) == same.after(at_us - 1)
        at_us = same.after(at_us)


@pytest.mark.heavy
@settings(max_examples=300)
@given(frequent_texts(), st.lists(st.integers(0, 10_000), min_size=1, max_size=20))
def test_questions_in_any_order(text: str, minutes: list[int]) -> None:
    """What was asked before changes no answer, wherever time jumps between two questions."""
    begin_us, zone = instant_us(datetime(2026, 3, 27, tzinfo=UTC)), ZoneInfo("Europe/Berlin")
    dues = Dues(text, zone)
    for minute in minutes:
        at_us = begin_us + minute * 60_000_000
        assert dues.after(at_us) == Dues(text, zone).after(at_us)


@pytest.mark.heavy
@settings(max_examples=150)
@given(frequent_texts(), keys_and_instants, st.integers(-3000, 3000), st.integers(0, 12_000))
@example("* * * * *", ("Pacific/Kwajalein", datetime(1969, 10, 1, 3, 0, tzinfo=UTC)), -3000, 6000)
@example("0-59 23 * * *", ("America/Havana", datetime(2026, 11, 1, 4, 0, tzinfo=UTC)), -60, 60)
def test_counted_as_listed(text: str, where: tuple[str, datetime], before: int, length: int) -> None:
    """As many dues are counted, by days, as there are when each is asked for, also where clocks are set."""
    zone = ZoneInfo(where[0])
    from_us = instant_us(where[1]) + before * 30_000_000
    to_us = from_us + length * 30_000_000
    listed = Dues(text, zone).between(from_us - 1, to_us - 1)
    assert Dues(text, zone).count(from_us, to_us) == sum(1 for _ in listed)


@settings(max_examples=400)
@given(st.one_of(texts(), st.lists(fields, min_size=3, max_size=6).map(" ".join), st.text(max_size=12)))
@example("0 0 30 2 *")
@example("0 0 31 4 1")
@example("00 007 * * *")
@example(" \t0 0 * * * ")
@example("0 0 * * 7")
def test_same_texts_are_valid(text: str) -> None:
    """The checker and the scheduler take the same texts for valid, each by its own reading."""
    try:
        CronExpression.parse(text)
    except InvalidCronExpressionError:
        with pytest.raises(ScheduleTextError):
            Dues(text, ZoneInfo("UTC"))
    else:
        Dues(text, ZoneInfo("UTC"))


def test_no_due_after_the_last_year() -> None:
    """At the end of what datetime can hold there is no due any more, and asking is no error."""
    dues = Dues("0 0 29 2 *", ZoneInfo("Europe/Berlin"))
    assert dues.after(instant_us(datetime(9999, 12, 1, tzinfo=UTC))) == NEVER_US


@given(keys_and_instants)
def test_minutes_begin_when_the_clock_shows_it(where: tuple[str, datetime]) -> None:
    """The civil minute of an instant began when the clock showed its second :00, odd offsets included."""
    zone, at_us = ZoneInfo(where[0]), instant_us(where[1])
    start_us = minute_start_us(at_us, zone)
    assert at_us - 60_000_000 < start_us <= at_us
    assert face_at(at_us, zone).second == (at_us - start_us) // 1_000_000
