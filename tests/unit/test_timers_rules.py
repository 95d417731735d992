"""The decisions about one timer: pure answers, tried one by one."""

import itertools
from datetime import UTC
from random import Random
from typing import Any, cast

import msgspec
import pytest

from duly.core.causes import Reason
from duly.instant import EARLIEST_US, MINUTE_US, NEVER_US, SECOND_US, datetime_at
from duly.supervisor.results import TargetState
from duly.testing import VirtualClock
from duly.timers.calendar import CalendarCache
from duly.timers.dues import due_at, next_run_us, verdict, wakes_us
from duly.timers.record import (
    COLUMNS,
    DeclaredTimer,
    TimerRecordError,
    name_in,
    record_of,
    row_from,
    state_from,
    text_of,
)
from duly.timers.rules import RulesListener, TimerRules
from duly.timers.timer import Due, TimerState, ended, fired, span_us, stepped
from tests.worlds.timers import EXIT, HOURLY, SUCCESS, FakeTargets, daily, timer

HOUR_US = 60 * MINUTE_US
NOON_US = 1_767_268_800 * SECOND_US  # 2026-01-01 12:00 UTC
CALENDARS = CalendarCache(UTC)


def state(**options: Any) -> TimerState:
    """A timer as it was declared at noon; what is not a field of its state goes into its definition."""
    fields = {key: options.pop(key) for key in list(options) if key in TimerState.__struct_fields__}
    definition = timer(**options)
    calendars = CALENDARS.of(definition)
    item = TimerState(
        id=1,
        name="t",
        definition=definition,
        text=text_of(definition, UTC),
        calendars=calendars,
        registered_us=NOON_US,
        answered_us=NOON_US,
        slot_us=min((calendar.due_after(NOON_US) for calendar in calendars), default=NEVER_US),
    )
    return msgspec.structs.replace(item, **fields)


EVERYTHING = {
    "on_calendar": HOURLY,
    "on_startup_sec": 3600,
    "on_unit_active_sec": 3600,
    "startup_at_us": NOON_US + HOUR_US,
    "anchor_us": NOON_US,
    "retry_at_us": NOON_US + HOUR_US,
    "last_run_us": NOON_US,
}


def test_reasons_have_an_order() -> None:
    """Trigger, schedule, catch-up, startup, interval, retry: the first that is due names the run."""
    one_us = NOON_US + HOUR_US
    item = state(**EVERYTHING, triggered=True, interrupted=True)
    reasons = []
    for change in (
        {"triggered": False},
        {"slot_us": NEVER_US},
        {"interrupted": False},
        {"startup_triggered": True},
        {"anchor_us": None},
        {"retry_at_us": None},
    ):
        due = due_at(item, one_us, is_target_active=False)
        assert due is not None
        reasons.append(due.reason)
        item = msgspec.structs.replace(item, **change)
    assert reasons == ["trigger", "schedule", "catch-up", "startup", "interval", "retry"]
    assert due_at(item, one_us, is_target_active=False) is None


@pytest.mark.parametrize("seed", range(300))
def test_after_a_look_nothing_is_due(seed: int) -> None:
    """Whatever a look finds, nothing of it is due at the next look: no busy loop, no second record."""
    random = Random(seed)
    now_us = NOON_US + random.choice([0, 1, MINUTE_US, HOUR_US, HOUR_US + 61 * SECOND_US, 40 * HOUR_US])
    item = state(
        on_calendar=random.choice([(), HOURLY, daily(13)]),
        on_startup_sec=random.choice([None, 60]),
        on_unit_active_sec=random.choice([None, 0.000001, 60]),
        persistent=random.random() < 0.5,
        enabled=random.random() < 0.7,
        catch_up_window_sec=random.choice([0, 3600, 86400]),
        startup_at_us=random.choice([None, NOON_US, NOON_US + HOUR_US]),
        anchor_us=random.choice([None, NOON_US]),
        retry_at_us=random.choice([None, NOON_US, NOON_US + HOUR_US]),
        last_run_us=random.choice([None, NOON_US - HOUR_US]),
        interrupted=random.random() < 0.3,
        triggered=random.random() < 0.2,
        running_run=random.choice([None, 5]),
    )
    target: TargetState = random.choice(["idle", "active", "disabled", "missing"])
    is_stopping = random.random() < 0.2
    looked, due = verdict(item, now_us, target, is_stopping=is_stopping)
    if due is not None:
        assert target == "idle"
        assert looked.running_run is None
        assert not is_stopping
        looked, target = fired(looked, due, now_us, 7), "active"
    wakes = wakes_us(looked, is_target_active=target == "active", is_stopping=is_stopping)
    assert wakes > now_us, (item, target, is_stopping)
    again, nothing = verdict(looked, now_us, target, is_stopping=is_stopping)
    assert again is looked
    assert nothing is None


def test_a_look_before_the_wake_changes_nothing() -> None:
    """A timer that is looked at too early is left as it is: wake-ups may be wrong, decisions are not."""
    for names in itertools.chain.from_iterable(
        itertools.combinations(EVERYTHING, size) for size in range(len(EVERYTHING) + 1)
    ):
        item = state(**{name: EVERYTHING[name] for name in names})
        wakes = wakes_us(item, is_target_active=False, is_stopping=False)
        if wakes < NEVER_US:
            assert verdict(item, wakes - 1, "idle", is_stopping=False) == (item, None)
            assert verdict(item, wakes, "idle", is_stopping=False).due is not None


def test_a_run_cut_off_needs_a_look_at_once() -> None:
    """What was interrupted or asked for by hand is looked at at once; while stopping nothing is."""
    for flag in ({"interrupted": True}, {"triggered": True}):
        item = state(on_calendar=HOURLY, **flag)
        assert wakes_us(item, is_target_active=True, is_stopping=False) == EARLIEST_US
    item = state(on_calendar=HOURLY, interrupted=True)
    assert wakes_us(item, is_target_active=True, is_stopping=True) == NOON_US + HOUR_US


def test_next_run_of_a_disabled_timer_is_none() -> None:
    """A timer that is off has no next run, and one that is on has its earliest trigger."""
    assert next_run_us(state(on_calendar=HOURLY, enabled=False), is_target_active=False) is None
    assert next_run_us(state(**EVERYTHING), is_target_active=False) == NOON_US + HOUR_US
    assert next_run_us(state(on_unit_active_sec=1), is_target_active=False) is None


def test_a_length_of_time_beyond_all_time_is_harmless() -> None:
    """Spans of any size are whole microseconds, at least one, and never overflow."""
    assert span_us(1e305) > 0
    assert span_us(1e-12) == 1
    assert span_us(0) == 0
    item = state(on_unit_active_sec=1e305, anchor_us=NOON_US)
    assert due_at(item, NOON_US * 2, is_target_active=False) is None


def test_a_step_and_back_is_nothing() -> None:
    """A small step and the same step back leave every deadline where it was."""
    item = state(**EVERYTHING, is_anchored_here=True)
    there = stepped(item, NOON_US, NOON_US + 200 * SECOND_US)
    assert there != item
    assert stepped(there, NOON_US + 200 * SECOND_US, NOON_US) == item


def test_a_step_that_moves_nothing_leaves_the_very_same_timer() -> None:
    """A timer with nothing but slots is untouched by a step, so that it need not be written."""
    item = state(on_calendar=HOURLY)
    assert stepped(item, NOON_US, NOON_US + HOUR_US) is item
    assert stepped(item, NOON_US, NOON_US - MINUTE_US) is item


def test_a_success_clears_what_a_failure_left() -> None:
    """A success after failures leaves no retry and no attempt."""
    item = state(retry_intervals_sec=(30, 60))
    for run_id in (1, 2):
        item = fired(item, Due(Reason.RETRY, NOON_US), NOON_US, run_id)
        item = ended(item, EXIT, NOON_US, is_stopping=False)
    assert (item.retry_attempt, item.retry_at_us) == (2, NOON_US + 60 * SECOND_US)
    item = ended(fired(item, Due(Reason.RETRY, NOON_US), NOON_US, 3), SUCCESS, NOON_US, is_stopping=False)
    assert (item.retry_attempt, item.retry_at_us, item.running_run) == (0, None, None)


# --- records ---


def sound() -> list[Any]:
    """The record of a timer with a past."""
    item = state(on_calendar=HOURLY, last_exit=-1, last_result="exit", enabled_override=False)
    return list(record_of(item))


def test_a_record_comes_back() -> None:
    """What is kept of a timer is read as it was written; what is worked out again is worked out."""
    item = state(
        **{**EVERYTHING, "retry_at_us": None}, last_result="exit", last_exit=3, enabled_override=True
    )
    item = msgspec.structs.replace(item, last_missed_us=NOON_US, last_miss_reason="overlap", interrupted=True)
    declared = DeclaredTimer(item.definition, item.calendars, item.text)
    back = state_from(row_from(record_of(item)), declared, 0)
    assert back == msgspec.structs.replace(item, startup_at_us=None, anchor_us=None)


@pytest.mark.parametrize("column", COLUMNS)
def test_each_damaged_column_is_named(column: str) -> None:
    """A value of the wrong kind is an error that names the timer and the column."""
    record = sound()
    record[COLUMNS.index(column)] = b"?"
    with pytest.raises(TimerRecordError) as refused:
        row_from(record)
    assert column in refused.value.message
    assert refused.value.name == ("row 1" if column == "name" else "t")


@pytest.mark.parametrize("length", [0, 1, 5, 15, 17])
def test_a_record_of_another_length_is_refused(length: int) -> None:
    """A record that is too short or too long is not guessed at."""
    record = [*sound(), 0][:length]
    with pytest.raises(TimerRecordError):
        row_from(record)
    assert name_in(record)


def test_the_text_of_a_definition() -> None:
    """The text changes with everything that says when and how, and with nothing else."""
    text = text_of(timer(on_calendar=HOURLY), UTC)
    assert text == text_of(timer(on_calendar=HOURLY, description="words"), UTC)
    for other in (
        timer(on_calendar=daily(3)),
        timer(on_calendar=HOURLY, target="x"),
        timer(on_calendar=HOURLY, enabled=False),
        timer(on_calendar=HOURLY, persistent=False),
        timer(on_calendar=HOURLY, on_startup_sec=1),
        timer(on_calendar=HOURLY, on_unit_active_sec=1),
        timer(on_calendar=HOURLY, retry_intervals_sec=(1,)),
        timer(on_calendar=HOURLY, catch_up_window_sec=1),
        timer(on_calendar=HOURLY, timezone="Europe/Berlin"),
    ):
        assert text_of(other, UTC) != text


def test_an_end_is_an_anchor_of_its_own() -> None:
    """The end of a timer's own run is what its interval counts from, no matter who else tells of it."""
    item = fired(state(on_unit_active_sec=60), Due(Reason.TRIGGER, NOON_US), NOON_US, 1)
    item = ended(item, EXIT, NOON_US + SECOND_US, is_stopping=False)
    assert (item.anchor_us, item.is_anchored_here) == (NOON_US + SECOND_US, True)


async def test_a_target_about_to_be_started_is_claimed() -> None:
    """Between a firing and the start of its target another timer finds the target active, not idle."""
    targets = FakeTargets(VirtualClock(datetime_at(NOON_US, UTC)))
    book: dict[str, TimerState] = {}
    listener = cast("RulesListener", None)
    rules = TimerRules(targets, listener, book.get, lambda _: False)
    first, second = state(on_calendar=HOURLY), msgspec.structs.replace(state(on_calendar=HOURLY), name="u")
    (start,) = rules.looked_at([first], NOON_US + HOUR_US).starts
    book["t"] = start.after
    look = rules.looked_at([second], NOON_US + HOUR_US)
    assert list(look.starts) == []
    assert [after.last_miss_reason for _, after in look.changed] == ["overlap"]
    book["t"] = first  # the start was put back: the claim is void
    assert len(rules.looked_at([second], NOON_US + HOUR_US).starts) == 1
