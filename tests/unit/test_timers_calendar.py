"""Calendars as expressions: all fields must match, and words say so."""

import copy
import pickle
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from duly.config.schema import Calendar, expression_of
from duly.cron import CronExpression
from duly.cron.english import in_english
from duly.errors import CronCalculationError
from duly.instant import NEVER_US, instant_of
from duly.timers.calendar import CalendarCache, slot_after, slot_at_or_before
from tests.unit.cron_meaning import are_equivalent
from tests.worlds.timers import daily, timer

FRIDAY_13TH = Calendar(minute=(0,), hour=(9,), day_of_month=(13,), day_of_week=(5,))
NEVER = Calendar(minute=(0,), hour=(0,), day_of_month=(30, 31), month=(2,))


def is_slot(calendar: Calendar, moment: datetime) -> bool:
    """Whether a minute of UTC matches, field by field, with no code of ours."""
    pairs = (
        (calendar.minute, moment.minute),
        (calendar.hour, moment.hour),
        (calendar.day_of_month, moment.day),
        (calendar.month, moment.month),
        (calendar.day_of_week, moment.isoweekday() % 7),
    )
    return all(chosen is None or value in chosen for chosen, value in pairs)


def some_calendar(random: Random) -> Calendar:
    """A calendar with some of its fields restricted."""

    def field(lowest: int, highest: int, most: int) -> tuple[int, ...] | None:
        if random.random() < 0.4:
            return None
        return tuple(random.choices(range(lowest, highest + 1), k=random.randint(1, most)))

    return Calendar(field(0, 59, 4), field(0, 23, 4), field(1, 31, 12), field(1, 12, 8), field(0, 6, 4))


@pytest.mark.parametrize("seed", range(40))
def test_slots_are_the_minutes_that_match(seed: int) -> None:
    """The next and the previous slot are those that a walk over the minutes finds."""
    random = Random(seed)
    calendar = some_calendar(random)
    expression = expression_of(calendar)
    start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=random.randrange(525_600))
    minutes = (start + timedelta(minutes=n) for n in range(1, 50_000))
    walked = next((minute for minute in minutes if is_slot(calendar, minute)), None)
    if walked is None:
        return
    assert expression.next_after(start) == walked, f"{calendar} after {start}"
    assert expression.previous_at_or_before(walked + timedelta(seconds=59)) == walked
    assert expression.matches(walked)


def test_day_and_weekday_are_both_needed() -> None:
    """Friday the 13th comes when both agree, not on every Friday and every 13th."""
    after = datetime(2026, 3, 14, tzinfo=UTC)
    assert expression_of(FRIDAY_13TH).next_after(after) == datetime(2026, 11, 13, 9, tzinfo=UTC)


def test_a_leap_day_on_a_weekday_is_found() -> None:
    """The next 29 February that is a Monday is decades away, and is found."""
    calendar = Calendar(minute=(0,), hour=(0,), day_of_month=(29,), month=(2,), day_of_week=(1,))
    found = expression_of(calendar).next_after(datetime(2026, 1, 1, tzinfo=UTC))
    assert found == datetime(2044, 2, 29, tzinfo=UTC)


def test_a_date_that_never_comes() -> None:
    """30 February has no next and no previous occurrence, and a timer with it alone no slot."""
    expression = expression_of(NEVER)
    assert not expression.has_a_date
    with pytest.raises(CronCalculationError):
        expression.next_after(datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(CronCalculationError):
        expression.previous_at_or_before(datetime(2026, 1, 1, tzinfo=UTC))
    calendars = CalendarCache(UTC).of(timer(on_calendar=NEVER))
    assert calendars == ()
    assert slot_after(calendars, 0) == NEVER_US
    assert slot_at_or_before(calendars, 0) is None


def test_slots_before_the_first_are_none() -> None:
    """At the beginning of time there is no slot before."""
    calendars = CalendarCache(UTC).of(timer(on_calendar=daily(3)))
    earliest_us = instant_of(datetime(1, 1, 3, 1, tzinfo=UTC))
    assert slot_at_or_before(calendars, earliest_us) is None


def test_timers_share_their_schedules() -> None:
    """Timers with the same calendar and zone share one schedule, and so its last answer."""
    calendar_cache = CalendarCache(UTC)
    (one,) = calendar_cache.of(timer("a", on_calendar=daily(3)))
    (same,) = calendar_cache.of(timer("b", on_calendar=daily(3)))
    (other,) = calendar_cache.of(timer("c", on_calendar=daily(3), timezone="Europe/Berlin"))
    assert one is same
    assert other is not one


def test_expressions_of_masks_are_values() -> None:
    """An expression without cron text can be copied, pickled, compared and shown like any other."""
    expression = expression_of(FRIDAY_13TH)
    for same in (copy.copy(expression), pickle.loads(pickle.dumps(expression)), expression_of(FRIDAY_13TH)):
        assert same == expression
        assert same.next_after(datetime(2026, 3, 14, tzinfo=UTC)).day == 13
    assert repr(expression).startswith("CronExpression.of_masks('0 9 13 * 5'")
    assert expression != CronExpression.parse("0 9 13 * 5")
    like_cron = CronExpression.of_masks("0 9 13 * 5", expression.masks)
    assert like_cron != CronExpression.parse("0 9 13 * 5")
    assert pickle.loads(pickle.dumps(like_cron)) == like_cron
    assert not are_equivalent(like_cron, CronExpression.parse("0 9 13 * 5"))


@pytest.mark.parametrize("masks", [(0, 1, 2, 2, 1), (1, 1, 1, 2, 1), (1 << 60, 1, 2, 2, 1)])
def test_masks_outside_their_fields_are_refused(masks: tuple[int, int, int, int, int]) -> None:
    """A mask that is empty, or has a value that its field has not, is refused."""
    with pytest.raises(ValueError, match="mask"):
        CronExpression.of_masks("x", masks)


@pytest.mark.parametrize(
    ("calendar", "words"),
    [
        (Calendar(), "Every minute"),
        (daily(3), "At 03:00, every day"),
        (FRIDAY_13TH, "At 09:00, on the 13th of the month if that is a Friday"),
        (
            Calendar(minute=(0,), hour=(9,), day_of_month=(1, 2, 3), month=(6,), day_of_week=(0, 6)),
            "At 09:00, on the 1st to 3rd of June if that is a Saturday or a Sunday",
        ),
        (
            Calendar(minute=(0,), hour=(9,), day_of_month=(1,), day_of_week=(1, 2, 3)),
            "At 09:00, on the 1st of the month if that is a Monday, a Tuesday or a Wednesday",
        ),
        (Calendar(minute=(0,), hour=(9,), day_of_week=(1, 2, 3, 4, 5)), "At 09:00, Monday to Friday"),
    ],
)
def test_calendars_in_words(calendar: Calendar, words: str) -> None:
    """A calendar reads as people would say it, and one with day and weekday says that both are needed."""
    assert in_english(expression_of(calendar)) == words


def test_cron_text_still_says_that_either_is_enough() -> None:
    """The sentence of a cron text with day and weekday is another than that of the calendar."""
    assert "either is enough" in in_english(CronExpression.parse("0 9 13 * 5"))
