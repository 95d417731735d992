"""Timers over the real supervisor, with processes in virtual time."""

import asyncio
from datetime import UTC, timedelta

from duly.config.schema import Timer
from duly.events import Announcer
from duly.store.history import RunRow
from duly.supervisor.supervisor import Supervisor
from duly.timers.local import LocalTimers
from duly.timers.record import MemoryTimerRepository
from duly.timers.rules import Targets
from tests.worlds.supervisor import World, at, oneshot, world_of
from tests.worlds.timers import HOURLY, MINUTELY, state_of, timer


def as_targets(supervisor: Supervisor) -> Targets:
    """A supervisor is what timers need; the type checker says so."""
    return supervisor


async def opened(world: World, repository: MemoryTimerRepository, *definitions: Timer) -> LocalTimers:
    """The timers of a supervisor that has started."""
    announcer = Announcer([world.events.append], world.clock.now)
    timers = LocalTimers(repository, as_targets(world.supervisor), world.clock, announcer, zone=UTC)

    def on_run_ended(row: RunRow) -> None:
        assert row.ended_us is not None
        timers.service_ended(row.service, row.ended_us)

    world.supervisor.on_run_ended.append(on_run_ended)
    await timers.start(definitions, started_up_us=world.supervisor.started_up_us, is_start_up=True)
    await world.rest()
    return timers


async def test_a_run_is_in_the_history_with_its_timer_and_reason() -> None:
    """A fired run is a run of the service, with the id that the timer knows it by."""
    world = world_of(lasts={"job": 5})
    await world.start(oneshot("job"), boot=set())
    timers = await opened(world, MemoryTimerRepository(), timer(on_calendar=MINUTELY))
    await world.after(62)
    (row,) = await world.runs("job")
    assert (row.timer, row.reason, row.id) == ("t", "schedule", state_of(timers, "t").running_run)
    await world.after(10)
    (row,) = await world.runs("job")
    assert row.result == "success"
    assert state_of(timers, "t").last_result == "success"
    await timers.stop()
    await world.stop()


async def test_a_number_given_again_is_not_mistaken() -> None:
    """What became of a run is said of a run of that timer only, even if another has its number by now."""
    world = world_of(lasts={"job": 5})
    await world.start(oneshot("job"), boot=set())
    timers = await opened(world, MemoryTimerRepository(), timer(on_calendar=MINUTELY))
    await world.after(62)
    run_id = state_of(timers, "t").running_run
    assert run_id is not None
    assert world.supervisor.outcome(run_id, "t") == "running"
    assert world.supervisor.outcome(run_id, "another") is None
    await world.after(10)
    assert world.supervisor.outcome(run_id, "t") == "success"
    assert world.supervisor.outcome(run_id, "another") is None
    await timers.stop()
    await world.stop()


async def test_intervals_hear_of_runs_by_hand() -> None:
    """The end of a run by hand is the anchor of an interval, and it fires after that, again and again."""
    world = world_of(lasts={"job": 5})
    await world.start(oneshot("job"), boot=set())
    timers = await opened(world, MemoryTimerRepository(), timer(on_unit_active_sec=60))
    await world.after(100)
    assert await world.runs("job") == []
    await world.do(world.supervisor.start_service("job"))
    await world.after(140)
    assert [row.reason for row in await world.runs("job")] == ["manual", "interval", "interval"]
    await timers.stop()
    await world.stop()


async def test_a_hung_job_is_killed_by_its_timeout_and_the_next_slot_fires() -> None:
    """Fault: a hung job that outlives its timeout and blocks its timer for ever. The next slot fires."""
    world = world_of(kill_grace_sec=10)
    world.processes.script("job", ignores_term=True)
    await world.start(oneshot("job", timeout_sec=30), boot=set())
    timers = await opened(world, MemoryTimerRepository(), timer(on_calendar=MINUTELY))
    await world.after(3 * 60 + 1)
    results = [row.result for row in await world.runs("job")]
    assert results == ["timeout", "timeout", None]
    assert state_of(timers, "t").last_miss_reason is None
    stopping = await world.do(timers.close())
    await world.stop()
    await stopping


async def test_a_shutdown_cuts_a_run_off_and_the_next_start_catches_up() -> None:
    """A stop of the supervisor interrupts the run, and the next session makes up for it."""
    repository = MemoryTimerRepository()
    world = world_of(stays=("job",))
    await world.start(oneshot("job"), boot=set())
    timers = await opened(world, repository, timer(on_calendar=HOURLY))
    await world.after(3600 + 60)
    closing = asyncio.ensure_future(timers.close())
    await world.stop()
    await closing
    (record,) = repository.records.values()
    assert record[9] == "interrupted"
    assert record[13] == 1
    later = World(database=world.database)
    await later.clock.advance(world.clock.now() - later.clock.now())
    later.processes.script("job")
    await later.start(oneshot("job"), boot=set())
    timers = await opened(later, repository, timer(on_calendar=HOURLY))
    assert state_of(timers, "t").running_reason == "catch-up"
    await timers.stop()
    await later.stop()


async def test_the_switch_leaves_the_run_to_the_supervisor() -> None:
    """After the switch was closed the run goes on, ends, and is in the history; reopened, it is nobody's."""
    repository = MemoryTimerRepository()
    world = world_of(lasts={"job": 600})
    await world.start(oneshot("job"), boot=set())
    timers = await opened(world, repository, timer(on_calendar=HOURLY))
    await world.after(3600 + 60)
    world.supervisor.on_run_ended.clear()
    await timers.stop()
    await world.rest()
    assert world.living() == ["job"]
    timers = await opened(world, repository, timer(on_calendar=HOURLY))
    await world.after(900)
    (row,) = await world.runs("job")
    assert (row.result, row.timer) == ("success", "t")
    assert (state_of(timers, "t").last_result, state_of(timers, "t").interrupted) == (None, False)
    await timers.stop()
    await world.stop()


async def test_an_interval_that_passed_while_a_group_was_ending() -> None:
    """A job that leaves somebody behind is active until that is gone; an interval that passed is due then."""
    world = world_of(kill_grace_sec=10)
    world.processes.script("job", lasts=timedelta(seconds=1), leaves_behind=True)
    await world.start(oneshot("job"), boot=set())
    hourly, often = timer("hourly", on_calendar=HOURLY), timer("often", on_unit_active_sec=5)
    timers = await opened(world, MemoryTimerRepository(), hourly, often)
    await world.after(3600 + 12)
    rows = await world.runs("job")
    assert [row.timer for row in rows] == ["hourly", "often"]
    assert at(3600 + 11) <= rows[1].started_us < at(3600 + 12)
    await timers.stop()
    await world.stop()
