"""`initialize` and `stop` in every order (spec/scheduler.md 4)."""

import asyncio
from datetime import timedelta

import pytest

from duly import (
    NegativeRetryDelayError,
    Scheduler,
    SchedulerError,
    SchedulerState,
    ScheduleTaskError,
    StopSchedulerError,
    StoreError,
)
from tests.worlds.scheduler import HOUR, MINUTE, Registration, World, at
from tests.worlds.stores import StoreFactory, fail_over, hooked


async def test_empty_list_then_stop(same_store: StoreFactory) -> None:
    """A scheduler with nothing to do starts and stops."""
    world = World(same_store)
    await world.begin()
    assert str(world.scheduler.state) == "Running"
    await world.scheduler.stop()
    assert str(world.scheduler.state) == "Stopped"


async def test_states_are_the_words_of_the_contract() -> None:
    """A state equals its name as text."""
    assert [state.value for state in SchedulerState] == [
        "Uninitialized",
        "Initializing",
        "Running",
        "Reinitializing",
        "Stopping",
        "Stopped",
    ]
    assert Scheduler(":memory:").state == "Uninitialized"


async def test_stop_before_initialize(same_store: StoreFactory) -> None:
    """Stopping what was never started does nothing."""
    world = World(same_store)
    await world.scheduler.stop()
    await world.scheduler.stop()
    assert world.events == []


async def test_stop_twice_and_at_once(same_store: StoreFactory) -> None:
    """Any number of stops, one after the other or together, all return."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", lasts=MINUTE))
    stops = asyncio.gather(*(world.scheduler.stop() for _ in range(3)))
    await world.clock.advance(MINUTE)
    await stops
    await world.scheduler.stop()
    assert [name for name, _ in world.told("SchedulerStopRequested", "SchedulerStopped")] == [
        "SchedulerStopRequested",
        "SchedulerStopped",
    ]


async def test_stop_waits_for_runs_and_records_them(same_store: StoreFactory) -> None:
    """Stop returns when the runs in flight have ended, and their ends are remembered."""
    world = World(same_store, "12:00:00")
    task = world.task("a", lasts=timedelta(minutes=3))
    await world.begin(task)
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.until("12:02:59")
    assert (stopping.done(), world.scheduler.state) == (False, "Stopping")
    await world.until("12:03")
    assert stopping.done()
    await world.begin(task)
    assert world.calls_of("a") == ["12:00:00", "12:03:00"]  # not interrupted: for the dues of 12:01 to 12:03
    assert world.told("TaskRunStarted")[-1][1]["cause"] == "cron"
    await world.stop()


async def test_no_run_starts_once_stop_is_requested(same_store: StoreFactory) -> None:
    """Dues that come while stop waits start nothing, and are answered after the next initialize."""
    world = World(same_store, "12:00:00")
    slow, quick = world.task("slow", "0 12 * * *", lasts=timedelta(minutes=3)), world.task("quick")
    await world.begin(slow, quick)
    await world.clock.advance(timedelta(seconds=10))
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.until("12:05")
    await stopping
    assert world.calls_of("quick") == ["12:00:00"]
    await world.begin(slow, quick)
    assert world.calls_of("quick") == ["12:00:00", "12:05:00"]
    await world.scheduler.stop()


async def test_stop_at_the_due_instant_never_starts_after_the_request(same_store: StoreFactory) -> None:
    """A start that was being written when stop was called is not carried out, and is still owed."""
    world = World(same_store)
    task = world.task("a", "1 12 * * *")
    await world.begin(task)

    async def stop_at_due() -> None:
        await world.clock.sleep_until(world.clock.now() + timedelta(seconds=30))
        await asyncio.sleep(0)  # noqa: TID251 (lets the poller begin its write)
        called = len(world.calls)
        await world.scheduler.stop()
        assert len(world.calls) == called

    stopping = asyncio.create_task(stop_at_due())
    await world.until("12:01")
    await stopping
    await world.begin(task)
    assert len(world.calls) == 1
    await world.scheduler.stop()


async def test_initialize_after_stop(same_store: StoreFactory) -> None:
    """A stopped scheduler may be initialized again, as often as one likes."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a"))
    for _ in range(3):
        await world.scheduler.stop()
        await world.scheduler.initialize([world.task("a")])
        await world.clock.advance(MINUTE)
    assert world.calls_of("a") == ["12:00:00", "12:01:00", "12:02:00", "12:03:00"]
    await world.scheduler.stop()


async def test_concurrent_initializes_are_served_in_call_order(same_store: StoreFactory) -> None:
    """The list of the call made last is the one that holds."""
    world = World(same_store)
    first = asyncio.create_task(world.scheduler.initialize([world.task("a", "0 1 * * *")]))
    await world.scheduler.initialize([world.task("b", "0 1 * * *")])
    await first
    await asyncio.gather(*(world.scheduler.initialize([world.task(f"t{n}", "1 12 * * *")]) for n in range(5)))
    await world.until("12:01")
    assert [who for who, _ in world.calls] == ["t4"]
    await world.scheduler.stop()


async def test_stop_waits_for_an_initialize_called_before(same_store: StoreFactory) -> None:
    """A stop called while an initialize is under way stops what that one started, which starts nothing."""
    world = World(same_store)
    starting = asyncio.create_task(world.scheduler.initialize([world.task("a")]))
    await world.scheduler.stop()
    assert starting.done()
    await starting
    await world.clock.advance(HOUR)
    assert (world.scheduler.state, world.calls) == ("Stopped", [])


async def test_stop_does_not_raise_for_a_failed_initialize(same_store: StoreFactory) -> None:
    """The failure of an initialize is raised there, not by the stop that waited for it."""
    faulty = hooked(same_store())
    faulty.fail(StoreError(store="x", reason="is broken"))
    world = World(lambda: faulty)
    starting = asyncio.create_task(world.scheduler.initialize([world.task("a")]))
    await world.scheduler.stop()
    with pytest.raises(ScheduleTaskError):
        await starting
    assert world.scheduler.state == "Uninitialized"


async def test_call_never_awaited_blocks_nobody(same_store: StoreFactory) -> None:
    """An initialize that is called and forgotten holds up no other call."""
    world = World(same_store)
    forgotten = world.scheduler.initialize([world.task("a")])
    await world.scheduler.initialize([world.task("b")])
    await world.scheduler.stop()
    forgotten.close()


async def test_bad_argument_changes_nothing(same_store: StoreFactory) -> None:
    """A bad list raises at the call, and a running scheduler goes on as it was."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a"))
    with pytest.raises(NegativeRetryDelayError):
        await world.scheduler.initialize([world.task("b", delay=timedelta(seconds=-1))])
    assert world.scheduler.state == "Running"
    await world.clock.advance(MINUTE)
    assert world.calls_of("a") == ["12:00:00", "12:01:00"]
    await world.scheduler.stop()


async def failed_reinitialize(same_store: StoreFactory) -> tuple[World, Registration]:
    """A world in which a new list has failed for the store's sake, with a run of two minutes in flight."""
    faulty = hooked(same_store())
    world = World(lambda: faulty, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=timedelta(minutes=2))
    await world.begin(task)
    faulty.fail(StoreError(store="x", reason="is broken"))
    with pytest.raises(ScheduleTaskError) as raised:
        await world.scheduler.initialize([world.task("b", "0 1 * * *")])
    assert raised.value.message == "Failed to schedule task 'b': Store x: is broken"
    assert set(raised.value.details) == {"name", "cronExpression", "cause"}
    assert raised.value.__cause__ is raised.value.details["cause"]
    assert world.scheduler.state == "Uninitialized"
    assert len(world.told("SchedulerInitializationFailed")) == 1
    faulty.heal()
    return world, task


async def test_failed_reinitialize_leaves_uninitialized(same_store: StoreFactory) -> None:
    """If the store fails a new list, that is said at once; the end of a run in flight is recorded still."""
    world, task = await failed_reinitialize(same_store)
    await world.until("12:03")
    await world.begin(task)
    assert world.calls_of("a") == ["12:00:00"]  # its end was recorded; nothing is owed
    await world.scheduler.stop()


async def test_initialize_after_a_failed_one_does_not_wait_for_runs(same_store: StoreFactory) -> None:
    """A list that comes while such a run is in flight takes effect at once, and knows of the run."""
    world, task = await failed_reinitialize(same_store)
    await world.scheduler.initialize([task])
    assert (world.scheduler.state, world.clock.now()) == ("Running", at("12:00"))
    await world.until("12:05")
    assert world.calls_of("a") == ["12:00:00"]
    await world.scheduler.stop()
    await world.begin(task)
    assert world.calls_of("a") == ["12:00:00"]
    await world.scheduler.stop()


async def test_stop_after_a_failed_initialize_waits_for_runs(same_store: StoreFactory) -> None:
    """A stop after a failed list waits for the run in flight and records it, like any other."""
    world, task = await failed_reinitialize(same_store)
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.until("12:01:59")
    assert not stopping.done()
    await world.until("12:02")
    await stopping
    await world.begin(task)
    assert world.calls_of("a") == ["12:00:00"]
    await world.scheduler.stop()


async def test_stop_after_two_failed_initializes_waits_for_runs(same_store: StoreFactory) -> None:
    """Nor does a second list that fails make a stop forget the run in flight."""
    world, _ = await failed_reinitialize(same_store)
    hooked(world.same_store()).fail(StoreError(store="x", reason="is broken"))
    with pytest.raises(ScheduleTaskError):
        await world.scheduler.initialize([world.task("c")])
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.until("12:01:59")
    assert not stopping.done()
    await world.until("12:02")
    await stopping


async def test_failed_first_initialize_lets_go_of_the_store(same_store: StoreFactory) -> None:
    """After a failed start the same store can be used by another scheduler."""
    faulty = hooked(same_store())
    faulty.fail(StoreError(store="x", reason="is broken"))
    world = World(lambda: faulty)
    with pytest.raises(ScheduleTaskError):
        await world.begin(world.task("a"))
    assert world.scheduler.state == "Uninitialized"
    faulty.heal()
    await world.begin(world.task("a"))
    assert len(world.calls) == 1
    await world.scheduler.stop()


async def test_stop_that_cannot_write_says_so(same_store: StoreFactory) -> None:
    """A stop that cannot record the last ends raises StopSchedulerError and lets go all the same."""
    faulty = hooked(same_store())
    world = World(lambda: faulty, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=MINUTE)
    await world.begin(task)
    faulty.fail(StoreError(store="x", reason="is broken"))
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.clock.advance(MINUTE)
    with pytest.raises(StopSchedulerError, match="Failed to stop scheduler: Store x: is broken") as raised:
        await stopping
    assert isinstance(raised.value.details["cause"], StoreError)
    assert world.scheduler.state == "Stopped"
    faulty.heal()
    fail_over(faulty)
    await world.begin(task)
    assert world.told("TaskRunStarted")[-1][1]["cause"] == "interrupted"  # its end was never recorded
    await world.stop()


async def test_stop_inside_a_callback_returns_when_the_others_ended(same_store: StoreFactory) -> None:
    """A callback may stop its own scheduler: it waits for the other runs, not for itself."""
    world = World(same_store, "12:00:00")
    seen: list[str] = []

    async def stopper() -> None:
        await world.scheduler.stop()
        seen.append("stop returned")

    await world.begin(world.task("other", lasts=MINUTE), ("stopper", "0 12 * * *", stopper, HOUR))
    await world.clock.advance(timedelta(seconds=59))
    assert seen == []
    await world.clock.advance(timedelta(seconds=1))
    assert (seen, world.scheduler.state) == (["stop returned"], "Stopped")
    assert len(world.told("TaskRunCompleted")) == 2
    assert len(world.told("SchedulerStopped")) == 1


async def test_stop_inside_a_callback_calls_off_what_was_not_yet_called(same_store: StoreFactory) -> None:
    """A run whose callback is not yet called when stop is waits for the next life, written though it is."""
    world = World(same_store, "12:00:00")

    async def stopper() -> None:
        await world.scheduler.stop()

    registrations = [("stopper", "0 12 * * *", stopper, HOUR), world.task("other", "0 12 * * *")]
    await world.begin(*registrations)
    assert (world.calls, world.scheduler.state) == ([], "Stopped")
    assert ("TaskSkipped", {"taskName": "other", "reason": "called off before it was called"}) in world.told()
    await world.begin(*registrations)
    assert world.calls_of("other") == ["12:00:00"]
    await world.scheduler.stop()


@pytest.mark.parametrize("style", ["task", "gather", "wait_for"])
async def test_stop_behind_a_task_inside_a_callback(same_store: StoreFactory, style: str) -> None:
    """Stop through a task, gather or wait_for inside a callback does not deadlock either."""
    world = World(same_store, "12:00:00")

    async def stopper() -> None:
        if style == "task":
            await asyncio.create_task(world.scheduler.stop())
        elif style == "gather":
            await asyncio.gather(world.scheduler.stop(), world.scheduler.stop())
        else:
            await asyncio.wait_for(world.scheduler.stop(), 60)

    await world.begin(("stopper", "0 12 * * *", stopper, HOUR))
    await world.rest()
    assert world.scheduler.state == "Stopped"
    assert len(world.told("TaskRunCompleted")) == 1


async def test_two_callbacks_stop_at_once(same_store: StoreFactory) -> None:
    """Two callbacks that both stop the scheduler, while somebody outside does too, all return."""
    world = World(same_store, "12:00:00")

    async def stopper() -> None:
        await world.clock.sleep_until(world.clock.now() + MINUTE)
        await world.scheduler.stop()

    await world.begin(("a", "* * * * *", stopper, HOUR), ("b", "* * * * *", stopper, HOUR))
    outside = asyncio.create_task(world.scheduler.stop())
    await world.clock.advance(MINUTE)
    assert outside.done()
    assert world.scheduler.state == "Stopped"
    assert len(world.told("TaskRunCompleted")) == 2


async def test_initialize_inside_a_callback(same_store: StoreFactory) -> None:
    """A callback may register another list, even one without itself."""
    world = World(same_store, "12:00:00")

    async def changer() -> None:
        await world.scheduler.initialize([world.task("next")])

    await world.begin(("changer", "0 12 * * *", changer, HOUR))
    await world.clock.advance(MINUTE)
    assert world.calls_of("next") == ["12:00:00", "12:01:00"]
    await world.scheduler.stop()


async def test_initialize_inside_a_stopping_callback_is_refused(same_store: StoreFactory) -> None:
    """A run that a stop waits for cannot wait for an initialize after that stop; it is told so."""
    world = World(same_store, "12:00:00")
    raised: list[SchedulerError] = []

    async def confused() -> None:
        await world.scheduler.stop()
        try:
            await world.scheduler.initialize([world.task("x")])
        except SchedulerError as error:
            raised.append(error)

    await world.begin(("confused", "0 12 * * *", confused, HOUR))
    assert "stop() is waiting for" in raised[0].message
    assert world.scheduler.state == "Stopped"


async def test_failing_initialize_inside_a_callback_does_not_deadlock(same_store: StoreFactory) -> None:
    """A callback whose initialize fails gets the error, and the scheduler is down."""
    faulty = hooked(same_store())
    world = World(lambda: faulty, "12:00:00")
    raised: list[SchedulerError] = []

    async def changer() -> None:
        faulty.fail(StoreError(store="x", reason="is broken"))
        try:
            await world.scheduler.initialize([world.task("x")])
        except SchedulerError as error:
            raised.append(error)

    await world.begin(("changer", "0 12 * * *", changer, HOUR))
    assert isinstance(raised[0], ScheduleTaskError)
    assert world.scheduler.state == "Uninitialized"


async def test_cancelled_stop_can_be_repeated(same_store: StoreFactory) -> None:
    """A stop given up half-way starts nothing new, and a second stop finishes it."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", lasts=HOUR))
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.rest()
    stopping.cancel()
    await world.clock.advance(MINUTE)
    assert world.scheduler.state == "Stopping"
    await world.stop()
    assert world.scheduler.state == "Stopped"


async def test_exactly_two_public_methods() -> None:
    """A scheduler shows `initialize`, `stop` and `state`, and nothing else."""
    assert {name for name in dir(Scheduler) if not name.startswith("_")} == {"initialize", "stop", "state"}


@pytest.mark.sqlite_only("it is about a path")
async def test_nothing_is_touched_before_initialize(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Making a scheduler creates no file, needs no loop, starts no thread."""
    folder = tmp_path_factory.mktemp("empty")
    Scheduler(folder / "state.db")
    assert list(folder.iterdir()) == []


async def test_cancelled_initialize_takes_effect_whole(same_store: StoreFactory) -> None:
    """An initialize that nobody waits for any more is carried through, and the scheduler can be stopped."""
    world = World(same_store, "12:00:00")
    starting = asyncio.create_task(world.scheduler.initialize([world.task("a")]))
    for _ in range(4):
        await asyncio.sleep(0)  # noqa: TID251 (lets it begin)
    starting.cancel()
    await world.rest()
    assert starting.done()
    assert (world.scheduler.state, world.calls_of("a")) == ("Running", ["12:00:00"])
    await world.scheduler.stop()


async def test_odd_names_through_a_whole_life(same_store: StoreFactory) -> None:
    """Names with control characters, emoji, or a megabyte of letters are tasks like any other."""
    world = World(same_store, "12:00:00")
    names = ["\n", "\0", "\x1b[2J", "🗓️", "\u202eevil", "x" * 1_000_000, "'; DROP TABLE task; --"]
    tasks = [world.task(name) for name in names]
    await world.begin(*tasks)
    await world.scheduler.stop()
    await world.begin(*tasks)
    await world.clock.advance(MINUTE)
    await world.scheduler.stop()
    assert all(world.calls_of(name) == ["12:00:00", "12:01:00"] for name in names)
    assert len(world.told("TaskPreserved")) == len(names)


async def test_stop_while_a_start_is_written(same_store: StoreFactory) -> None:
    """A start that was on disk when stop was requested is not carried out, and taken back from the disk."""
    stops: list[asyncio.Task[None]] = []

    async def stop_once() -> None:
        if not stops:
            stops.append(asyncio.create_task(world.scheduler.stop()))
        await asyncio.sleep(0)  # noqa: TID251 (so that the stop can begin)
        await asyncio.sleep(0)  # noqa: TID251

    place = hooked(same_store())
    place.after_save = stop_once
    world = World(lambda: place)
    task = world.task("a", "1 12 * * *")
    await world.begin(task)
    await world.until("12:01")
    await stops[0]
    assert world.calls == []
    await world.begin(task)
    assert [fields["cause"] for _, fields in world.told("TaskRunStarted")] == ["cron"]
    await world.scheduler.stop()


async def test_stop_cancelled_before_its_turn_changes_nothing(same_store: StoreFactory) -> None:
    """A stop given up while it waited for an initialize lets the scheduler go on."""
    world = World(same_store, "12:00:00")
    starting = asyncio.create_task(world.scheduler.initialize([world.task("a")]))
    stopping = asyncio.create_task(world.scheduler.stop())
    await asyncio.sleep(0)  # noqa: TID251 (lets both begin)
    stopping.cancel()
    await starting
    await world.clock.advance(MINUTE)
    assert (world.scheduler.state, world.calls_of("a")) == ("Running", ["12:00:00", "12:01:00"])
    await world.scheduler.stop()
