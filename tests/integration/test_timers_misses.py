"""When timers do not fire: each miss has a reason and is recorded once, not retried (spec/timers.md 4)."""

import asyncio

import pytest

from duly.supervisor.results import Refused, ServiceError
from duly.timers.requests import TimerError, TimerRefusal
from tests.worlds.timers import EXIT, HOUR, HOURLY, MINUTE, MINUTELY, SECOND, TimerWorld, timer


async def test_a_slot_during_a_run_is_an_overlap() -> None:
    """A slot that comes while the target runs is missed, recorded once, and not made up for after the run."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 90 * MINUTE
    await world.begin(timer(on_calendar=HOURLY))
    await world.until("14:59:00")
    assert world.runs() == [("01 13:00:00", "schedule")]
    assert world.misses == [("t", "01 14:00:00", "overlap")]
    assert [fields["slot"] for fields in world.told("TimerMissed")] == ["2026-01-01T14:00:00+00:00"]
    await world.until("15:00:00")
    assert world.runs() == [("01 15:00:00", "schedule")]
    state = world.state()
    assert (world.shown(state.last_missed_us), state.last_miss_reason) == ("01 14:00:00", "overlap")


async def test_two_timers_of_one_target_do_not_both_start_it() -> None:
    """Of two timers due together for one target the first declared fires, and the other has an overlap."""
    world = TimerWorld("12:59:30")
    await world.begin(timer("a", on_calendar=HOURLY), timer("b", on_calendar=HOURLY))
    await world.until("13:30:00")
    assert [item.timer for item in world.targets.began] == ["a"]
    assert world.misses == [("b", "01 13:00:00", "overlap")]
    assert world.targets.collisions == 0


async def test_a_run_by_hand_is_an_overlap_for_a_slot() -> None:
    """A slot that finds its target started by hand is an overlap."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 10 * MINUTE
    await world.begin(timer(on_calendar=HOURLY))
    await world.targets.by_hand("job")
    await world.until("13:30:00")
    assert world.runs() == [("01 12:59:30", "manual")]
    assert world.misses == [("t", "01 13:00:00", "overlap")]


async def test_a_startup_trigger_with_an_overlap_has_come() -> None:
    """A start-up trigger that finds its target active is missed, once, and does not come later."""
    world = TimerWorld("12:00:00")
    world.targets.lasts["job"] = 10 * MINUTE
    await world.targets.by_hand("job")
    await world.begin(timer(on_startup_sec=60))
    await world.until("13:00:00")
    assert world.misses == [("t", "01 12:01:00", "overlap")]
    assert world.runs() == [("01 12:00:00", "manual")]
    assert world.state().startup_triggered


async def test_a_disabled_timer_misses_each_slot_once() -> None:
    """A disabled timer records each slot as missed, and nothing between."""
    world = TimerWorld("12:00:30")
    await world.begin(timer(on_calendar=HOURLY, enabled=False, on_unit_active_sec=1))
    await world.targets.by_hand("job")
    await world.until("14:30:00")
    assert world.misses == [("t", "01 13:00:00", "disabled"), ("t", "01 14:00:00", "disabled")]
    assert world.next_run() == "-"
    assert world.runs() == [("01 12:00:30", "manual")]


@pytest.mark.parametrize(
    ("state", "reason"), [("disabled", "disabled-target"), ("missing", "target-not-found")]
)
async def test_a_target_that_cannot_be_started(state: str, reason: str) -> None:
    """A disabled or missing target is a miss at each slot, with its own reason; others go on."""
    world = TimerWorld("12:00:30")
    world.targets.states["job"] = state  # type: ignore[assignment]
    await world.begin(timer(on_calendar=HOURLY), timer("o", "other", on_calendar=HOURLY))
    await world.until("14:30:00")
    assert world.misses == [("t", "01 13:00:00", reason), ("t", "01 14:00:00", reason)]
    assert len(world.runs("other")) == 2


async def test_an_interval_with_a_missing_target_is_missed_once_per_interval() -> None:
    """An interval whose target cannot be started is due again one interval later, not at every look."""
    world = TimerWorld("12:00:00")
    world.targets.last_ends["job"] = world.started_up_us - 60_000_000
    world.targets.states["job"] = "disabled"
    await world.begin(timer(on_unit_active_sec=600))
    await world.until("12:30:00")
    assert [when for _, when, _ in world.misses] == ["01 12:09:00", "01 12:19:00", "01 12:29:00"]


async def test_a_retry_that_finds_its_target_active_is_given_up() -> None:
    """A retry does not wait for somebody else's run: it is an overlap, and over."""
    world = TimerWorld("12:59:30")
    world.targets.ends["job"] = [EXIT]
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(60,)))
    await world.until("13:00:30")
    world.targets.lasts["job"] = 5 * MINUTE
    await world.targets.by_hand("job")
    await world.until("13:30:00")
    assert world.misses == [("t", "01 13:01:00", "overlap")]
    assert [reason for _, reason in world.runs()] == ["schedule", "manual"]
    assert world.state().retry_at_us is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Refused.ACTIVE, "overlap"),
        (Refused.RELOADING, "overlap"),
        (Refused.DISABLED, "disabled-target"),
        (Refused.UNKNOWN, "target-not-found"),
    ],
)
async def test_a_refusal_at_the_last_moment_is_a_miss(kind: Refused, reason: str) -> None:
    """What becomes impossible between the decision and the start is a miss, not a failed run."""
    world = TimerWorld("12:59:30")
    world.targets.refusals = [ServiceError(kind, "job")]
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(60,)))
    await world.until("13:30:00")
    assert world.misses == [("t", "01 13:00:00", reason)]
    state = world.state()
    assert (state.last_run_us, state.last_result, state.retry_at_us) == (None, None, None)
    assert world.told("TimerRunEnded") == []
    await world.until("14:00:00")
    assert world.runs() == [("01 14:00:00", "schedule")]


async def test_a_supervisor_that_breaks_is_a_spawn_error() -> None:
    """An error that nobody foresaw ends the run as a spawn error, and the timer goes on."""
    world = TimerWorld("12:59:30")
    world.targets.refusals = [RuntimeError("boom")]  # type: ignore[list-item]
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(60,)))
    await world.until("14:00:00")
    assert world.told("TimerRunEnded")[0]["result"] == "spawn-error"
    assert world.runs() == [("01 14:00:00", "schedule")]


# --- by hand ---


async def test_trigger_fires_now() -> None:
    """A trigger starts a run at once, answers with its id, and leaves the slots as they were."""
    world = TimerWorld("12:30:00")
    timers = await world.begin(timer(on_calendar=HOURLY))
    run_id = await timers.trigger("t")
    await world.rest()
    (began,) = world.targets.began
    assert (began.run_id, began.reason, began.timer) == (run_id, "trigger", "t")
    assert world.next_run() == "01 13:00:00"


async def test_trigger_works_on_a_disabled_timer() -> None:
    """By hand is by hand: a disabled timer can be triggered, and stays disabled."""
    world = TimerWorld("12:30:00")
    timers = await world.begin(timer(on_calendar=HOURLY, enabled=False))
    await timers.trigger("t")
    await world.until("13:30:00")
    assert [reason for _, reason in world.runs()] == ["trigger"]
    assert world.misses == [("t", "01 13:00:00", "disabled")]


async def test_trigger_is_refused_with_a_reason() -> None:
    """A trigger that cannot be is an error that says why, and no miss."""
    world = TimerWorld("12:30:00")
    world.targets.lasts["job"] = HOUR
    world.targets.states["off"] = "disabled"
    timers = await world.begin(
        timer(on_calendar=HOURLY),
        timer("gone", "gone", on_startup_sec=9999),
        timer("off", "off", on_startup_sec=9999),
    )
    await timers.trigger("t")
    for name, kind in (
        ("t", TimerRefusal.OVERLAP),
        ("gone", TimerRefusal.TARGET_NOT_FOUND),
        ("off", TimerRefusal.DISABLED_TARGET),
        ("nobody", TimerRefusal.UNKNOWN),
    ):
        with pytest.raises(TimerError) as refused:
            await timers.trigger(name)
        assert refused.value.kind is kind
    assert world.misses == []


async def test_trigger_in_the_race_with_another_start() -> None:
    """A trigger overtaken by somebody else's start of the target is refused, not left waiting."""
    world = TimerWorld("12:30:00")
    timers = await world.begin(timer("a", on_calendar=HOURLY), timer("b", on_calendar=HOURLY))
    world.targets.lasts["job"] = HOUR
    both = await asyncio.gather(timers.trigger("a"), timers.trigger("b"), return_exceptions=True)
    assert isinstance(both[0], int)
    assert isinstance(both[1], TimerError)
    assert both[1].kind is TimerRefusal.OVERLAP


async def test_two_triggers_at_once_are_one_run() -> None:
    """Two people who trigger a timer in the same moment get the same run, or one is told of an overlap."""
    world = TimerWorld("12:30:00")
    timers = await world.begin(timer(on_calendar=HOURLY))
    both = await asyncio.gather(timers.trigger("t"), timers.trigger("t"), return_exceptions=True)
    assert len(world.targets.began) == 1
    assert all(item == both[0] or isinstance(item, TimerError) for item in both)


async def test_a_trigger_that_is_given_up_does_not_fire_later() -> None:
    """Anyone who stops waiting for a trigger before it began has not asked for anything."""
    world = TimerWorld("12:30:00")
    timers = await world.begin(timer(on_calendar=HOURLY))
    timers._poller.hold()
    asking = asyncio.ensure_future(timers.trigger("t"))
    await world.after(SECOND)
    asking.cancel()
    await world.after(SECOND)
    timers._poller.release()
    await world.until("12:50:00")
    assert world.runs() == []


async def test_a_trigger_replaces_a_pending_retry() -> None:
    """A run by hand is a fresh start: the pending retry is gone, and the budget is given back."""
    world = TimerWorld("12:59:30")
    world.targets.ends["job"] = [EXIT, EXIT]
    timers = await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(60, 600)))
    await world.until("13:00:30")
    await timers.trigger("t")
    await world.until("13:30:00")
    assert world.runs() == [
        ("01 13:00:00", "schedule"),
        ("01 13:00:30", "trigger"),
        ("01 13:01:30", "retry"),
    ]


async def test_disable_and_enable_at_run_time() -> None:
    """A timer disabled at run time misses its slots until it is enabled; a pending retry is dropped."""
    world = TimerWorld("12:59:30")
    world.targets.ends["job"] = [EXIT]
    timers = await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(60,)))
    await world.until("13:00:30")
    await timers.disable("t")
    await world.until("14:30:00")
    assert world.runs() == [("01 13:00:00", "schedule")]
    assert world.misses == [("t", "01 14:00:00", "disabled")]
    await timers.enable("t")
    await world.until("15:00:00")
    assert world.runs() == [("01 15:00:00", "schedule")]
    assert world.state().enabled_override is None


async def test_a_failure_after_disabling_is_not_retried() -> None:
    """A run that fails after its timer was disabled is not retried."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"], world.targets.always["job"] = MINUTE, EXIT
    timers = await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(60,)))
    await world.until("13:00:30")
    await timers.disable("t")
    await world.until("13:50:00")
    assert len(world.runs()) == 1
    assert world.misses == []


async def test_disabling_survives_a_restart_and_a_reload() -> None:
    """What was switched at run time stays so over a reload, a crash and a restart."""
    world = TimerWorld("12:00:30")
    definition = timer(on_calendar=MINUTELY)
    timers = await world.begin(definition)
    await timers.disable("t")
    await timers.reload([timer(on_calendar=MINUTELY, description="new words")])
    await timers.reload([timer(on_calendar=MINUTELY, persistent=False)])
    await world.crash()
    await world.begin(definition)
    await world.until("12:05:00")
    assert world.runs() == []
    assert not world.state().is_enabled


async def test_enabling_a_timer_disabled_by_the_file() -> None:
    """A timer that the file disables can be enabled at run time."""
    world = TimerWorld("12:00:30")
    timers = await world.begin(timer(on_calendar=HOURLY, enabled=False))
    await timers.enable("t")
    await world.until("13:00:00")
    assert world.runs() == [("01 13:00:00", "schedule")]
    with pytest.raises(TimerError):
        await timers.enable("nobody")


async def test_a_refusal_because_we_stop_is_made_up_by_the_next_start() -> None:
    """A start that the supervisor refuses because it is stopping is missed, and caught up with later."""
    world = TimerWorld("12:59:30")
    world.targets.refusals = [ServiceError(Refused.STOPPING, "job")]
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    await world.until("13:00:10")
    assert world.misses == [("t", "01 13:00:00", "shutdown")]
    await world.stop()
    await world.until("13:20:00")
    await world.begin(definition)
    assert world.runs() == [("01 13:20:00", "catch-up")]
