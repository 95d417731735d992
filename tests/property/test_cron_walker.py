"""`duly.cron` against the brute-force walker, at the places where clocks change, and against its own laws."""

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from duly.cron import CronExpression
from tests.property.strategies import ZONES, frequent_texts, near_transitions, texts
from tests.property.walker import Shown, firings

MICROSECOND = timedelta(microseconds=1)
HORIZON = timedelta(days=3)

walked = settings(max_examples=150)
quick = settings(max_examples=400)

keys_and_instants = st.sampled_from(ZONES).flatmap(lambda key: st.tuples(st.just(key), near_transitions(key)))


def reproduce(text: str, key: str, instant: datetime) -> None:
    """Prints, with a failing example, what to paste into a shell."""
    note(
        "from duly.cron import CronExpression\nfrom datetime import datetime\nfrom zoneinfo import ZoneInfo\n"
        f"expression = CronExpression.parse({text!r})\n"
        f"moment = datetime.fromisoformat({instant.isoformat()!r}).astimezone(ZoneInfo({key!r}))\n"
        f"# the clock shows {instant.astimezone(ZoneInfo(key)).isoformat()}"
    )


def utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def as_shown(moment: datetime) -> Shown:
    """An answer in the walker's terms. It must be a first showing: it exists, and its fold is 0."""
    assert moment.fold == 0
    assert utc(moment).astimezone(moment.tzinfo).replace(fold=0) == moment
    assert utc(moment).astimezone(moment.tzinfo).fold == 0
    return Shown(utc(moment), moment.replace(tzinfo=None))


@walked
@given(frequent_texts(), keys_and_instants)
@example("* * * * *", ("Africa/Niamey", datetime(1912, 1, 1, 0, 30, tzinfo=UTC)))
@example("* * * * *", ("Pacific/Kwajalein", datetime(1969, 10, 1, 3, 0, tzinfo=UTC)))
@example("44 0 * * *", ("Africa/Monrovia", datetime(1972, 1, 7, 0, 44, 45, tzinfo=UTC)))
def test_next_as_walked(text: str, where: tuple[str, datetime]) -> None:
    """The next occurrences are those that a walk through the following days meets, in their order."""
    key, instant = where
    reproduce(text, key, instant)
    zone, end = ZoneInfo(key), instant + HORIZON
    due = list(islice(firings(text, zone, instant + MICROSECOND, end), 5))
    expression, origin = CronExpression.parse(text), instant.astimezone(zone)
    if not due:
        assert utc(expression.next_after(origin)) >= end
        return
    assert [as_shown(moment) for moment in expression.upcoming(origin, len(due))] == due


@pytest.mark.heavy
@walked
@given(frequent_texts(), keys_and_instants)
@example("* * * * *", ("Africa/Niamey", datetime(1912, 1, 1, 0, 30, tzinfo=UTC)))
@example("* * * * *", ("Pacific/Kwajalein", datetime(1969, 10, 1, 3, 0, tzinfo=UTC)))
@example("44 0 * * *", ("Africa/Monrovia", datetime(1972, 1, 7, 0, 44, 45, tzinfo=UTC)))
def test_previous_as_walked(text: str, where: tuple[str, datetime]) -> None:
    """The previous occurrence is the last one that a walk through the days before has met."""
    key, instant = where
    reproduce(text, key, instant)
    zone, begin = ZoneInfo(key), instant - HORIZON
    due = list(firings(text, zone, begin, instant + MICROSECOND))
    found = CronExpression.parse(text).previous_at_or_before(instant.astimezone(zone))
    if due:
        assert as_shown(found) == due[-1]
    else:
        assert utc(found) < begin


@walked
@given(frequent_texts(), keys_and_instants)
def test_matches_as_walked(text: str, where: tuple[str, datetime]) -> None:
    """Of the instants around a clock change those match that lie in the first minute after an occurrence."""
    key, instant = where
    reproduce(text, key, instant)
    zone, reach = ZoneInfo(key), timedelta(hours=2)
    due = [
        shown.instant
        for shown in firings(text, zone, instant - reach - timedelta(minutes=1), instant + reach)
    ]
    expression = CronExpression.parse(text)
    for half_minutes in range(-240, 240):
        asked = instant + half_minutes * timedelta(seconds=30)
        before = bisect_right(due, asked)
        since = asked - due[before - 1] if before else HORIZON
        face = asked.astimezone(zone)
        # Within a minute of the occurrence, and no jump of the clock in between.
        into_minute = timedelta(seconds=face.second, microseconds=face.microsecond)
        assert expression.matches(face) == (since == into_minute), f"at {face.isoformat()}"


@quick
@given(texts(), keys_and_instants)
def test_laws(text: str, where: tuple[str, datetime]) -> None:
    """What any expression obeys at any instant: strictly later, at or before, found again, matching."""
    key, instant = where
    reproduce(text, key, instant)
    expression, moment = CronExpression.parse(text), instant.astimezone(ZoneInfo(key))
    following, previous = expression.next_after(moment), expression.previous_at_or_before(moment)
    assert utc(previous) <= instant < utc(following)
    as_shown(following)
    as_shown(previous)
    assert expression.matches(following)
    assert expression.matches(previous)
    assert expression.previous_at_or_before(following) == following
    assert expression.previous_at_or_before(previous) == previous
    assert expression.next_after(previous) == following
    just_before = (utc(following) - MICROSECOND).astimezone(moment.tzinfo)
    assert expression.previous_at_or_before(just_before) == previous
    assert expression.matches(moment) == (
        utc(previous) > instant - timedelta(minutes=1)
        and previous.replace(tzinfo=None) == moment.replace(second=0, microsecond=0, tzinfo=None)
    )


@quick
@given(texts(), keys_and_instants, st.timedeltas(timedelta(0), timedelta(days=2)))
def test_later_origin_later_answer(text: str, where: tuple[str, datetime], later: timedelta) -> None:
    """Neither answer ever goes back when the origin goes forward."""
    key, instant = where
    reproduce(text, key, instant)
    expression, zone = CronExpression.parse(text), ZoneInfo(key)
    first, second = instant.astimezone(zone), (instant + later).astimezone(zone)
    assert utc(expression.next_after(first)) <= utc(expression.next_after(second))
    assert utc(expression.previous_at_or_before(first)) <= utc(expression.previous_at_or_before(second))


@pytest.mark.heavy
@quick
@given(texts(), keys_and_instants, st.sampled_from([1930, 1972, 2011, 2026, 2200]))
def test_memory_changes_no_answer(text: str, where: tuple[str, datetime], other_year: int) -> None:
    """A question about another year in between does not change an answer, nor does the form of the zone."""
    key, instant = where
    reproduce(text, key, instant)
    expression, moment = CronExpression.parse(text), instant.astimezone(ZoneInfo(key))
    fresh = instant.astimezone(ZoneInfo.no_cache(key))

    def answers(moment: datetime) -> list[object]:
        found = expression.next_after(moment), expression.previous_at_or_before(moment)
        return [*map(utc, found), expression.matches(moment)]

    first = answers(moment)
    expression.next_after(moment.replace(year=other_year, month=2, day=1))
    assert answers(moment) == first
    assert answers(fresh) == first


@pytest.mark.heavy
@quick
@given(texts(), keys_and_instants)
def test_fold_and_gap_are_only_spellings(text: str, where: tuple[str, datetime]) -> None:
    """A face that does not exist, or with a stray fold, is answered like the instant Python takes it for."""
    key, instant = where
    reproduce(text, key, instant)
    expression, zone = CronExpression.parse(text), ZoneInfo(key)
    for fold in (0, 1):
        face = instant.astimezone(zone).replace(tzinfo=zone, fold=fold) + timedelta(hours=1)
        face = face.replace(fold=fold)
        real = utc(face).astimezone(zone)
        assert expression.next_after(face) == expression.next_after(real)
        assert expression.previous_at_or_before(face) == expression.previous_at_or_before(real)


def test_walker_agrees_with_a_clock_table() -> None:
    """The walker itself is checked by hand: New York, the night the clocks go back."""
    due = firings("30 * * * *", ZoneInfo("America/New_York"), *window("2026-11-01T04:00", "2026-11-01T08:00"))
    assert [shown.instant.isoformat()[11:16] for shown in due] == ["04:30", "05:30", "07:30"]


def window(begin: str, end: str) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(begin).replace(tzinfo=UTC), datetime.fromisoformat(end).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("begin", "end", "minutes"),
    [
        ("1972-01-07T00:43:30", "1972-01-07T00:45:00", ["23:59"]),
        ("1972-01-07T00:43:31", "1972-01-07T00:46:00", ["00:45"]),
    ],
)
def test_walker_counts_seconds(begin: str, end: str, minutes: list[str]) -> None:
    """The walker finds the second :00 of a civil minute where the offset has seconds: Monrovia, 1972."""
    due = firings("* * * * *", ZoneInfo("Africa/Monrovia"), *window(begin, end))
    assert [shown.civil.isoformat()[11:16] for shown in due] == minutes
