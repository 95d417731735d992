"""Results, retries, and what is remembered of a run (spec/timers.md 5 and 6)."""

import pytest

from duly.supervisor.results import RunResult
from tests.worlds.timers import (
    EXIT,
    HOUR,
    HOURLY,
    INTERRUPTED,
    KILLED,
    MINUTE,
    MINUTELY,
    NO_PROGRAM,
    OVERDUE,
    SUCCESS,
    TimerWorld,
    timer,
)

DEFAULT = (30, 120, 600)


async def test_retries_come_after_growing_pauses_and_then_no_more() -> None:
    """A job that exits with a code is retried 30 s, 2 min and 10 min after each end, then not any more."""
    world = TimerWorld("12:59:30")
    world.targets.always["job"] = EXIT
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=DEFAULT))
    await world.until("13:59:00")
    assert world.runs() == [
        ("01 13:00:00", "schedule"),
        ("01 13:00:30", "retry"),
        ("01 13:02:30", "retry"),
        ("01 13:12:30", "retry"),
    ]
    attempts = [(fields["attempt"], fields["retryAt"][11:19]) for fields in world.told("TimerRetryScheduled")]
    assert attempts == [(1, "13:00:30"), (2, "13:02:30"), (3, "13:12:30")]
    assert world.state().retry_at_us is None


async def test_a_fresh_slot_gives_the_budget_back() -> None:
    """After a used-up budget the next slot fires and has all its retries again."""
    world = TimerWorld("12:59:30")
    world.targets.always["job"] = EXIT
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(30,)))
    await world.until("14:30:00")
    assert [reason for _, reason in world.runs()] == ["schedule", "retry", "schedule", "retry"]


async def test_a_success_ends_the_retries() -> None:
    """A retry that succeeds is the last one, and the next failure begins with the first pause."""
    world = TimerWorld("12:59:30")
    world.targets.ends["job"] = [EXIT, EXIT, SUCCESS, EXIT]
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=DEFAULT))
    await world.until("14:00:40")
    assert world.runs() == [
        ("01 13:00:00", "schedule"),
        ("01 13:00:30", "retry"),
        ("01 13:02:30", "retry"),
        ("01 14:00:00", "schedule"),
        ("01 14:00:30", "retry"),
    ]


async def test_a_due_slot_replaces_a_pending_retry() -> None:
    """A slot that comes before a retry takes its place: one run, and the old deadline is void."""
    world = TimerWorld("12:59:30")
    world.targets.ends["job"] = [EXIT]
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(3630,)))
    await world.until("14:30:00")
    assert world.runs() == [("01 13:00:00", "schedule"), ("01 14:00:00", "schedule")]


async def test_a_slot_and_a_retry_at_one_instant_are_one_run() -> None:
    """A retry that falls on a slot gives one run, named by the slot."""
    world = TimerWorld("12:59:30")
    world.targets.ends["job"] = [EXIT]
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(3600,)))
    await world.until("14:30:00")
    assert world.runs() == [("01 13:00:00", "schedule"), ("01 14:00:00", "schedule")]


@pytest.mark.parametrize("end", [KILLED, OVERDUE, NO_PROGRAM, INTERRUPTED], ids=lambda end: end.result)
async def test_only_an_exit_is_retried(end: RunResult) -> None:
    """A job that was killed, timed out, could not be made or was stopped is not retried."""
    world = TimerWorld("12:59:30")
    world.targets.always["job"] = end
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(30,)))
    await world.until("13:59:00")
    assert world.runs() == [("01 13:00:00", "schedule")]
    assert world.state().last_result == end.result
    assert not world.state().interrupted


async def test_retries_do_not_survive_a_restart() -> None:
    """A pending retry is forgotten by a restart; the next slot counts."""
    world = TimerWorld("12:59:30")
    world.targets.always["job"] = EXIT
    definition = timer(on_calendar=HOURLY, retry_intervals_sec=(600,))
    await world.begin(definition)
    await world.until("13:01:00")
    await world.stop()
    world.runs()
    await world.begin(definition)
    await world.until("14:00:00")
    assert world.runs() == [("01 14:00:00", "schedule")]


async def test_the_state_tells_of_the_last_run() -> None:
    """Times, exit code and result are those of the last run, and are kept over a restart."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = MINUTE
    world.targets.ends["job"] = [SUCCESS, EXIT]
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    await world.until("14:30:00")
    for _ in range(2):
        state = world.state()
        assert world.shown(state.last_run_us) == "01 14:00:00"
        assert world.shown(state.last_success_us) == "01 13:01:00"
        assert world.shown(state.last_failure_us) == "01 14:01:00"
        assert (state.last_exit, state.last_result) == (3, "exit")
        await world.stop()
        await world.begin(definition)


async def test_a_run_under_way_has_no_result() -> None:
    """Fault: the exit code of the previous run taken for this one's. While a run goes on there is none."""
    world = TimerWorld("12:59:30")
    world.targets.ends["job"] = [EXIT]
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    await world.until("13:30:00")
    assert world.state().last_exit == 3
    world.targets.lasts["job"] = 10 * MINUTE
    await world.until("14:05:00")
    assert (world.state().last_exit, world.state().last_result) == (None, None)
    await world.crash()
    await world.begin(timer(on_calendar=HOURLY, catch_up_window_sec=0, enabled=True))
    assert (world.state().last_exit, world.state().last_result) == (None, "interrupted")


async def test_a_late_completion_of_another_run_changes_only_the_anchor() -> None:
    """Fault: the exit code of the previous run taken for this one's. Another run's end is not the timer's."""
    world = TimerWorld("12:59:30")
    await world.begin(timer(on_calendar=HOURLY, on_unit_active_sec=7200))
    await world.until("13:30:00")
    world.targets.ends["job"] = [EXIT]
    await world.targets.by_hand("job")
    await world.until("13:31:00")
    state = world.state()
    assert (state.last_result, state.last_exit, state.last_failure_us) == ("success", 0, None)
    assert world.shown(state.anchor_us) == "01 13:30:00"
    assert state.retry_at_us is None


async def test_a_hung_job_ends_by_its_timeout_and_its_timer_goes_on() -> None:
    """Fault: a hung job that outlives its timeout and blocks its timer for ever. Its end frees the timer."""
    world = TimerWorld("12:00:30")
    world.targets.lasts["job"] = HOUR * 1000
    await world.begin(timer(on_calendar=MINUTELY))
    await world.until("12:03:30")
    assert len(world.runs()) == 1
    assert len(world.misses) == 2
    world.targets.end("job", OVERDUE)
    world.targets.lasts["job"] *= 0
    await world.until("12:05:30")
    assert world.runs() == [("01 12:04:00", "schedule"), ("01 12:05:00", "schedule")]


async def test_the_start_is_written_before_the_target_is_started() -> None:
    """When a target is started the store already says so, with the id of the run."""
    world = TimerWorld("12:59:30")
    await world.begin(timer(on_calendar=HOURLY))
    seen = []
    run = world.targets.run

    async def looking(*args: object, **options: object) -> RunResult:
        (record,) = world.repository.records.values()
        seen.append((record[14], options["run_id"]))
        return await run(*args, **options)  # type: ignore[arg-type]

    world.targets.run = looking  # type: ignore[method-assign]
    await world.until("13:00:00")
    assert len(seen) == 1
    assert seen[0][0] == seen[0][1] is not None
    (record,) = world.repository.records.values()
    assert record[14] is None
