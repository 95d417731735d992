"""Crashes (spec/scheduler.md 3.4 and 5.4): what a new scheduler makes of what the old one left."""

from datetime import timedelta

from tests.worlds.scheduler import HOUR, World
from tests.worlds.stores import StoreFactory

BROKEN = ValueError("broken")


async def test_interrupted_task_restarts_at_once(same_store: StoreFactory) -> None:
    """A task that was running when the process died starts at the next initialize, whatever its cron says."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=timedelta(minutes=10))
    await world.begin(task)
    await world.until("12:03")
    await world.crash()
    await world.until("17:23")
    await world.begin(task)
    assert world.calls_of("a") == ["12:00:00", "17:23:00"]
    assert [fields["cause"] for _, fields in world.told("TaskRunStarted")] == ["startup", "interrupted"]
    await world.stop()
    assert len(world.told("TaskRunCompleted")) == 1


async def test_interrupted_is_answered_once(same_store: StoreFactory) -> None:
    """Once restarted and finished, an interrupted task owes nothing more."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=timedelta(minutes=1))
    await world.begin(task)
    await world.crash()
    await world.begin(task)
    await world.until("12:30")
    await world.scheduler.stop()
    await world.begin(task)
    await world.until("13:30")
    assert world.calls_of("a") == ["12:00:00", "12:00:00"]
    await world.scheduler.stop()


async def test_crash_after_crash(same_store: StoreFactory) -> None:
    """A task cut off again and again is restarted each time; no end is ever invented."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=HOUR)
    for _ in range(4):
        await world.begin(task)
        await world.crash()
    assert len(world.calls) == 4
    assert world.told("TaskRunCompleted", "TaskRunFailed") == []


async def test_crash_before_the_restart_keeps_the_task_interrupted(same_store: StoreFactory) -> None:
    """If the process dies after initialize and before the restart, the task is still interrupted."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=HOUR)
    await world.begin(task)
    await world.crash()
    world.scheduler = world.new_scheduler()
    await world.scheduler.initialize([task])
    await world.crash()  # before anything came to rest
    assert len(world.calls) == 1
    await world.begin(task)
    assert len(world.calls) == 2
    await world.crash()


async def test_nothing_recorded_after_a_crash(same_store: StoreFactory) -> None:
    """A run that was in flight leaves no trace after the crash: no end, no event, no write."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=timedelta(minutes=1), outcomes=[BROKEN]))
    await world.crash()
    world.events.clear()
    await world.until("13:00")
    assert world.events == []


async def test_task_that_ended_before_the_crash_is_not_interrupted(same_store: StoreFactory) -> None:
    """Only what was running is restarted; what had ended waits for its next due."""
    world = World(same_store, "12:00:00")
    ended, running = world.task("ended"), world.task("running", lasts=HOUR)
    await world.begin(ended, running)
    await world.until("12:00:20")
    await world.crash()
    world.calls.clear()
    await world.begin(ended, running)
    assert world.calls == [("running", "12:00:20")]
    await world.crash()


async def test_removed_task_is_not_interrupted(same_store: StoreFactory) -> None:
    """Removal clears an interruption: a task that comes back later is new."""
    world = World(same_store, "12:00:00")
    task, other = world.task("a", "0 12 * * *", lasts=HOUR), world.task("b", "0 5 * * *")
    await world.begin(task, other)
    await world.crash()
    await world.until("12:10")
    await world.begin(other)
    await world.scheduler.stop()
    await world.begin(task, other)
    assert world.calls == [("a", "12:00:00")]
    await world.scheduler.stop()


async def test_override_keeps_an_interruption(same_store: StoreFactory) -> None:
    """An override resets everything but the interruption."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=HOUR))
    await world.crash()
    await world.until("12:10")
    await world.begin(world.task("a", "0 9 * * *"))
    assert world.calls_of("a") == ["12:00:00", "12:10:00"]
    await world.scheduler.stop()


async def test_minute_is_not_run_twice_over_a_quick_restart(same_store: StoreFactory) -> None:
    """Crashing and coming back within the minute of a finished run starts nothing again."""
    world = World(same_store, "12:00:00")
    task = world.task("a")
    for _ in range(5):
        await world.begin(task)
        await world.clock.advance(timedelta(seconds=5))
        await world.crash()
    assert world.calls == [("a", "12:00:00")]


async def test_same_scheduler_knows_nothing_after_its_crash(same_store: StoreFactory) -> None:
    """A scheduler object that is used again after a crash finds what a new process would find."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=timedelta(minutes=5))
    await world.begin(task)
    await world.crash()
    await world.scheduler.initialize([task])
    await world.rest()
    assert [fields["cause"] for _, fields in world.told("TaskRunStarted")] == ["startup", "interrupted"]
    await world.stop()
