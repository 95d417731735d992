"""Registrations that change: new, preserved, overridden, orphaned (spec/scheduler.md 4.2 and 5.2)."""

import asyncio
from datetime import timedelta

from duly import StoreError
from tests.worlds.scheduler import HOUR, MINUTE, World
from tests.worlds.stores import StoreFactory, hooked, records

BROKEN = ValueError("broken")


async def test_each_class_is_told(same_store: StoreFactory) -> None:
    """Every task is told as added, preserved, overridden or orphaned, with what changed."""
    world = World(same_store)
    await world.begin(
        world.task("same", "0 1 * * *"),
        world.task("cron", "0 1 * * *"),
        world.task("delay", "0 1 * * *"),
        world.task("both", "0 1 * * *"),
        world.task("gone", "0 1 * * *"),
    )
    await world.scheduler.stop()
    world.events.clear()
    await world.begin(
        world.task("same", "0 1 * * *"),
        world.task("cron", "0 2 * * *"),
        world.task("delay", "0 1 * * *", delay=HOUR),
        world.task("both", "0 2 * * *", delay=HOUR),
        world.task("new", "0 1 * * *"),
    )
    await world.scheduler.stop()
    seen = world.told("TaskAdded", "TaskPreserved", "TaskOverridden", "TaskOrphaned")
    assert {(name, fields["taskName"], fields.get("changeType")) for name, fields in seen} == {
        ("TaskAdded", "new", None),
        ("TaskPreserved", "same", None),
        ("TaskOverridden", "cron", "cron"),
        ("TaskOverridden", "delay", "retryDelay"),
        ("TaskOverridden", "both", "both"),
        ("TaskOrphaned", "gone", None),
    }
    changed = next(fields for name, fields in seen if fields.get("changeType") == "both")
    assert changed["oldState"] == {"cronExpression": "0 1 * * *", "retryDelayMs": 300_000}
    assert changed["newState"] == {"cronExpression": "0 2 * * *", "retryDelayMs": 3_600_000}
    assert set(await records(same_store())) == {"same", "cron", "delay", "both", "new"}


async def test_text_is_compared_exactly(same_store: StoreFactory) -> None:
    """Two spellings of one meaning are two configurations."""
    world = World(same_store)
    await world.begin(world.task("a", "0 1 * * *"))
    await world.scheduler.stop()
    await world.begin(world.task("a", "00 1 * * *"))
    await world.scheduler.stop()
    assert len(world.told("TaskOverridden")) == 1


async def test_override_resets_times_and_causes(same_store: StoreFactory) -> None:
    """An overridden task forgets its times, its pending retry, and the dues it missed."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 * * * *", outcomes=[BROKEN]))
    await world.scheduler.stop()
    await world.until("15:30")
    await world.begin(world.task("a", "0,1 * * * *"))
    await world.scheduler.stop()
    assert world.calls_of("a") == ["12:00:00"]
    record = (await records(same_store()))["a"]
    assert record[6:11] == (None, None, None, None, 0)


async def test_override_that_matches_the_minute_starts(same_store: StoreFactory) -> None:
    """An overridden task follows the startup rule like a new one."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 5 * * *"))
    await world.scheduler.initialize([world.task("a", "0 12 * * *")])
    await world.rest()
    assert world.calls == [("a", "12:00:00")]
    await world.scheduler.stop()


async def test_identical_list_changes_nothing_but_callbacks(same_store: StoreFactory) -> None:
    """Initializing again with the same list writes nothing and starts nothing; new callbacks are used."""
    place = hooked(same_store())
    world = World(lambda: place, "12:00:00")
    await world.begin(world.task("a"))
    before = place.writes
    called: list[str] = []

    async def new_callback() -> None:
        called.append("new")

    await world.scheduler.initialize([("a", "* * * * *", new_callback, timedelta(minutes=5))])
    await world.rest()
    assert place.writes == before
    assert (len(world.calls), called) == (1, [])
    await world.clock.advance(MINUTE)
    assert (len(world.calls), called) == (1, ["new"])
    await world.scheduler.stop()


async def test_run_of_a_staying_task_is_kept(same_store: StoreFactory) -> None:
    """A re-initialization leaves the runs of unchanged tasks alone, and their ends are recorded."""
    world = World(same_store, "12:00:00")
    stays = world.task("stays", "0 12 * * *", lasts=HOUR)
    await world.begin(stays, world.task("goes", "0 1 * * *"))
    await world.scheduler.initialize([stays, world.task("comes", "0 1 * * *")])
    await world.until("13:30")
    assert world.calls_of("stays") == ["12:00:00"]
    assert [fields["duration"] for _, fields in world.told("TaskRunCompleted")] == [3_600_000]
    await world.scheduler.stop()
    assert (await records(same_store()))["stays"][13] is None


async def test_run_that_ends_as_a_list_is_about_to_be_written(same_store: StoreFactory) -> None:
    """A run that ends while the ends before it are being written for a new list is not run again."""
    faulty, is_over = hooked(same_store()), asyncio.Event()
    world = World(lambda: faulty, "12:00:00")

    async def waits() -> None:
        world.calls.append(("waits", "12:00:00"))
        await is_over.wait()

    async def end_it() -> None:
        is_over.set()
        for _ in range(9):
            await asyncio.sleep(0)  # noqa: TID251 (lets it end)

    tasks = [world.task("ends", "0 12 * * *", lasts=MINUTE), ("waits", "0 12 * * *", waits, HOUR)]
    await world.begin(*tasks)
    faulty.fail(StoreError(store="x", reason="is broken"))
    await world.until("12:01:30")
    faulty.heal()
    faulty.before_save = end_it
    await world.scheduler.initialize([*tasks, world.task("new", "0 1 * * *")])
    await end_it()
    await world.until("12:30")
    assert world.calls == [("ends", "12:00:00"), ("waits", "12:00:00")]
    await world.scheduler.stop()


async def test_run_of_a_removed_task_finishes_and_is_forgotten(same_store: StoreFactory) -> None:
    """A removed task's run goes on to its end; nothing of it is kept, and no retry comes."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", lasts=timedelta(minutes=5), outcomes=[BROKEN]))
    await world.scheduler.initialize([world.task("b", "0 1 * * *")])
    await world.until("12:30")
    assert world.calls_of("a") == ["12:00:00"]
    ((_, fields),) = world.told("TaskRunFailed")
    assert "nextRetryAt" not in fields
    await world.scheduler.stop()
    assert set(await records(same_store())) == {"b"}


async def test_stop_waits_for_the_run_of_a_removed_task(same_store: StoreFactory) -> None:
    """Stop waits for every run in flight, also of tasks that are no longer registered."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", lasts=timedelta(minutes=5)))
    await world.scheduler.initialize([])
    await world.stop()
    assert len(world.told("TaskRunCompleted")) == 1


async def test_run_begun_before_an_override_arms_no_retry(same_store: StoreFactory) -> None:
    """A run begun under the old registration may fail without a retry under the new one."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=timedelta(minutes=5), outcomes=[BROKEN]))
    await world.clock.advance(MINUTE)
    await world.scheduler.initialize([world.task("a", "0 9 * * *")])
    await world.until("14:00")
    assert world.calls_of("a") == ["12:00:00"]
    await world.scheduler.stop()
    assert (await records(same_store()))["a"][6:14] == (None, None, None, None, 0, 0, 0, None)


async def test_overridden_task_waits_for_its_old_run(same_store: StoreFactory) -> None:
    """A due of the new registration while the old run is in flight starts right after that run."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=timedelta(minutes=5)))
    await world.clock.advance(MINUTE)
    await world.scheduler.initialize([world.task("a", "3 12 * * *")])
    await world.until("12:30")
    assert world.calls_of("a") == ["12:00:00", "12:05:00"]
    await world.scheduler.stop()


async def test_task_that_comes_back_finds_its_run(same_store: StoreFactory) -> None:
    """A task removed and registered again during its run does not start beside it."""
    world = World(same_store, "12:00:00")
    task = world.task("a", lasts=timedelta(minutes=5), outcomes=[BROKEN])
    await world.begin(task, world.task("b", "0 1 * * *"))
    await world.clock.advance(timedelta(seconds=10))
    await world.scheduler.initialize([world.task("b", "0 1 * * *")])
    await world.scheduler.initialize([task, world.task("b", "0 1 * * *")])
    await world.until("12:04:59")
    assert world.calls_of("a") == ["12:00:00"]
    await world.until("12:05")
    assert world.calls_of("a") == ["12:00:00", "12:05:00"]
    await world.stop()


async def test_task_that_came_back_running_is_interrupted_by_a_crash(same_store: StoreFactory) -> None:
    """A run that outlasted a removal and return of its task counts as running when the process dies."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=HOUR)
    await world.begin(task)
    await world.until("12:02")
    await world.scheduler.initialize([])
    await world.scheduler.initialize([task])
    await world.crash()
    await world.begin(task)
    assert world.calls_of("a") == ["12:00:00", "12:02:00"]
    await world.crash()


async def test_overridden_task_in_flight_is_interrupted_by_a_crash(same_store: StoreFactory) -> None:
    """A task overridden during its run is interrupted if the process then dies."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=HOUR))
    await world.until("12:02")
    new = world.task("a", "0 9 * * *")
    await world.scheduler.initialize([new])
    await world.crash()
    await world.begin(new)
    assert world.calls_of("a") == ["12:00:00", "12:02:00"]
    await world.scheduler.stop()


async def test_counts_of_initialization(same_store: StoreFactory) -> None:
    """Completion tells how many tasks were scheduled and how many were already."""
    world = World(same_store)
    first, second = world.task("a", "0 1 * * *"), world.task("b", "0 1 * * *")
    await world.begin(first)
    await world.scheduler.initialize([first, second])
    await world.scheduler.initialize([first, second])
    await world.scheduler.stop()
    counts = [tuple(fields.values()) for _, fields in world.told("SchedulerInitializationCompleted")]
    assert counts == [(1, 1, 0), (2, 1, 1), (2, 0, 2)]


async def test_orphan_tells_its_last_run(same_store: StoreFactory) -> None:
    """An orphan is told with its last execution and the identifier of the scheduler that wrote it."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a"), world.task("never", "0 1 * * *"))
    await world.scheduler.initialize([])
    await world.scheduler.stop()
    seen = {fields["taskName"]: fields for _, fields in world.told("TaskOrphaned")}
    assert seen["a"]["lastExecutionTime"] == "2026-01-01T12:00:00+00:00"
    assert seen["never"]["lastExecutionTime"] is None
    assert len(seen["a"]["schedulerIdentifier"]) == 32
