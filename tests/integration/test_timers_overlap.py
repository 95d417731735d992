"""What becomes of a due that finds its target active: `overlap` and `lock` (spec/timers.md 4.1)."""

import pytest

from duly.timers.requests import TimerError, TimerRefusal
from tests.worlds.timers import HOUR, HOURLY, MINUTE, MINUTELY, SECOND, TimerWorld, timer


async def test_a_queued_due_runs_right_after() -> None:
    """However many slots come during a run, one run follows it at once, and none of them is a miss."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 150 * MINUTE
    await world.begin(timer(on_calendar=HOURLY, overlap="queue"))
    await world.until("15:15:00")
    assert world.next_run() == "-"
    world.targets.lasts["job"] = MINUTE
    await world.until("15:59:00")
    assert world.runs() == [("01 13:00:00", "schedule"), ("01 15:30:00", "catch-up")]
    assert world.misses == []
    assert [fields["scheduledTime"] for fields in world.told("TimerQueued")] == ["2026-01-01T14:00:00+00:00"]
    await world.until("16:30:00")
    assert world.runs() == [("01 16:00:00", "schedule")]


async def test_a_queued_due_does_not_depend_on_catching_up() -> None:
    """A timer that makes up for nothing still runs what was queued."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 70 * MINUTE
    await world.begin(timer(on_calendar=HOURLY, overlap="queue", persistent=False))
    await world.until("14:30:00")
    assert world.runs() == [("01 13:00:00", "schedule"), ("01 14:10:00", "catch-up")]


async def test_a_due_is_queued_behind_a_run_by_hand() -> None:
    """A run that somebody started by hand is waited for like one of a timer."""
    world = TimerWorld("12:59:50")
    world.targets.lasts["job"] = 30 * SECOND
    await world.begin(timer(on_calendar=HOURLY, overlap="queue"))
    await world.targets.by_hand("job")
    await world.until("13:30:00")
    assert world.runs() == [("01 12:59:50", "manual"), ("01 13:00:20", "schedule")]


async def test_a_startup_trigger_is_queued() -> None:
    """A start-up trigger that finds its target active comes when that has ended, once."""
    world = TimerWorld("12:00:00")
    world.targets.lasts["job"] = 10 * MINUTE
    await world.targets.by_hand("job")
    await world.begin(timer(on_startup_sec=60, overlap="queue"))
    await world.until("14:00:00")
    assert world.runs() == [("01 12:00:00", "manual"), ("01 12:10:00", "startup")]


async def test_a_queued_slot_survives_a_crash() -> None:
    """What was queued when the daemon died is caught up with by the next one."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 3 * HOUR
    definition = timer(on_calendar=HOURLY, overlap="queue")
    await world.begin(definition)
    await world.until("14:10:00")
    await world.crash()
    world.runs()
    await world.begin(definition)
    assert world.runs() == [("01 14:10:00", "catch-up")]


async def test_a_queued_due_is_dropped_with_its_timer() -> None:
    """A timer that is switched off while it waits does not run."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 90 * MINUTE
    await world.begin(timer(on_calendar=HOURLY, overlap="queue"))
    await world.until("14:10:00")
    await world.timers.disable("t")
    await world.until("14:50:00")
    assert world.runs() == [("01 13:00:00", "schedule")]
    assert world.misses == [("t", "01 14:00:00", "disabled")]


async def test_a_trigger_is_not_queued() -> None:
    """Somebody who triggers a timer whose target runs is refused at once, as ever."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 90 * MINUTE
    await world.begin(timer(on_calendar=HOURLY, overlap="queue"))
    await world.until("13:10:00")
    with pytest.raises(TimerError) as refusal:
        await world.timers.trigger("t")
    assert refusal.value.kind is TimerRefusal.OVERLAP


async def test_a_run_is_replaced() -> None:
    """With "replace" the old run is ended, and the new one begins for its own slot."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 90 * SECOND
    await world.begin(timer(on_calendar=MINUTELY, overlap="replace"))
    await world.until("13:03:30")
    assert world.runs() == [(f"01 13:0{minute}:00", "schedule") for minute in range(4)]
    assert world.misses == []
    assert world.state().last_failure_us is None


async def test_timers_with_one_lock_take_turns() -> None:
    """Of timers with the same lock one runs at a time, each on its own target; what is queued follows."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 10 * SECOND
    await world.begin(
        timer("a", on_calendar=HOURLY, lock="disk"),
        timer("b", "other", on_calendar=HOURLY, lock="disk", overlap="queue"),
        timer("c", "other", on_calendar=HOURLY, lock="disk"),
    )
    await world.until("13:30:00")
    assert world.runs() == [("01 13:00:00", "schedule")]
    assert world.runs("other") == [("01 13:00:10", "schedule")]
    assert world.misses == [("c", "01 13:00:00", "overlap")]


async def test_an_interval_waits_for_the_lock() -> None:
    """An interval that passes while another holds the lock is not missed: it comes when the lock is free."""
    world = TimerWorld("12:00:00")
    world.targets.lasts["other"] = 10 * MINUTE
    await world.begin(
        timer("a", on_startup_sec=60, on_unit_active_sec=300, lock="disk"),
        timer("b", "other", on_startup_sec=120, lock="disk"),
    )
    await world.until("12:15:00")
    assert world.runs() == [("01 12:01:00", "startup"), ("01 12:12:00", "interval")]
    assert world.misses == []
