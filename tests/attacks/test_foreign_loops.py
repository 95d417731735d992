"""Calls from another thread or another event loop than the one a scheduler works in."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duly import Event, ForeignEventLoopError, Scheduler, SchedulerError
from duly.store import MemoryStore, SQLiteStore, Store
from duly.testing import VirtualClock
from duly.verify import Recorder, judged

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PATIENCE_S = 60.0
SENTENCE = "this scheduler belongs to another event loop"

StoreFactory = Callable[[], Store]
Loop = Callable[[], AbstractContextManager[asyncio.AbstractEventLoop]]


@pytest.fixture(params=["memory", "sqlite"])
def own_store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    """Make a store on one and the same place."""
    if request.param == "sqlite":
        return lambda: SQLiteStore(tmp_path / "state.db")
    memory = MemoryStore()
    return lambda: memory


class World:
    """A scheduler, its clock, and who was called when and why."""

    def __init__(self, store: Store) -> None:
        self.clock = VirtualClock(NOON)
        self.calls: list[str] = []
        self.events: list[Event] = []
        self.scheduler = Scheduler(store, clock=self.clock, timezone=UTC, listeners=[self.events.append])

    async def callback(self) -> None:
        """Note the call."""
        self.calls.append(f"{self.clock.now():%H:%M}")

    async def endless(self) -> None:
        """Note the call, and never end."""
        await self.callback()
        await asyncio.Event().wait()

    async def initialize(self, callback: Callable[[], Awaitable[object]] | None = None) -> None:
        """Start, with one task that is due every minute."""
        await self.scheduler.initialize([("a", "* * * * *", callback or self.callback, MINUTE)])

    def causes(self) -> list[str]:
        """Why each run was started."""
        return [event.fields["cause"] for event in self.events if event.name == "TaskRunStarted"]


async def raised_in_a_thread(call: Callable[[], Awaitable[None]]) -> BaseException | None:
    """What a call raises on an event loop of another thread."""

    async def called() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await call()

    def in_the_thread() -> BaseException | None:
        try:
            asyncio.run(called())
        except BaseException as error:
            return error
        return None

    return await asyncio.get_running_loop().run_in_executor(None, in_the_thread)


@pytest.mark.parametrize("method", ["stop", "initialize"])
async def test_call_from_another_thread(own_store: StoreFactory, method: str) -> None:
    """A call from another thread raises at once, changes nothing, and the owner's stop works."""
    world = World(own_store())
    await world.initialize()
    call = world.scheduler.stop if method == "stop" else world.initialize
    error = await raised_in_a_thread(call)
    assert isinstance(error, ForeignEventLoopError)
    assert isinstance(error, SchedulerError)
    assert str(error).startswith(SENTENCE)
    assert world.scheduler.state == "Running"
    await world.clock.advance(MINUTE)
    assert world.calls == ["12:00", "12:01"]
    async with asyncio.timeout(PATIENCE_S):
        await world.scheduler.stop()
    assert world.scheduler.state == "Stopped"


async def test_call_from_another_thread_while_the_owner_stops() -> None:
    """A foreign stop raises also while the owner waits for a run, and the owner is not disturbed."""
    world = World(MemoryStore())
    go_on = asyncio.Event()
    await world.initialize(go_on.wait)
    await world.clock.advance(timedelta(0))
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.clock.advance(timedelta(0))
    assert isinstance(await raised_in_a_thread(world.scheduler.stop), ForeignEventLoopError)
    go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        await stopping
    assert world.scheduler.state == "Stopped"


async def test_call_handed_to_the_owner() -> None:
    """A thread may hand its call to the loop that owns the scheduler, as the message says."""
    world = World(MemoryStore())
    await world.initialize()
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(
        None, lambda: asyncio.run_coroutine_threadsafe(world.scheduler.stop(), loop).result(PATIENCE_S)
    )
    assert world.scheduler.state == "Stopped"


def test_call_on_another_loop_of_the_same_thread(own_store: StoreFactory) -> None:
    """A loop that is not running still owns its scheduler."""
    world = World(own_store())
    owner = asyncio.new_event_loop()
    try:
        owner.run_until_complete(world.initialize())
        for call in (world.scheduler.stop, world.initialize):
            with pytest.raises(ForeignEventLoopError, match=SENTENCE):
                asyncio.run(asyncio.wait_for(call(), PATIENCE_S))
        owner.run_until_complete(asyncio.wait_for(world.scheduler.stop(), PATIENCE_S))
        asyncio.run(world.scheduler.stop())  # at rest it belongs to nobody
    finally:
        owner.close()


def test_two_threads_initialize_at_once() -> None:
    """Of two threads that initialize at the same time one is refused; nothing hangs."""
    for _ in range(20):
        world, barrier = World(MemoryStore()), threading.Barrier(2)
        outcomes: list[BaseException | None] = []

        async def use(world: World, barrier: threading.Barrier) -> None:
            call = world.initialize()
            barrier.wait()
            try:
                await call
            finally:
                barrier.wait()  # nobody stops before both were answered
            await world.scheduler.stop()

        def run(world: World, barrier: threading.Barrier, outcomes: list[BaseException | None]) -> None:
            try:
                asyncio.run(use(world, barrier))
            except ForeignEventLoopError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)

        threads = [threading.Thread(target=run, args=(world, barrier, outcomes)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ForeignEventLoopError", "NoneType"]


async def test_refused_call_leaves_no_trace(tmp_path: Path) -> None:
    """A recorder writes nothing of a call that another loop made: it has changed nothing."""
    world = World(MemoryStore())
    trace = tmp_path / "trace.jsonl"
    recorder = Recorder(trace, store="fresh", tick=None)
    recorded = recorder.wrap(world.scheduler)
    await recorded.initialize([("a", "* * * * *", world.callback, MINUTE)])
    assert isinstance(await raised_in_a_thread(recorded.stop), ForeignEventLoopError)
    assert isinstance(await raised_in_a_thread(lambda: recorded.initialize([])), ForeignEventLoopError)
    await world.clock.advance(MINUTE)
    await recorded.stop()
    recorder.close()
    lines = trace.read_bytes().splitlines(keepends=True)
    assert [sum(kind in line for line in lines) for kind in (b'"InitStart"', b'"StopStart"')] == [1, 1]
    outcome = judged(lines)
    assert (outcome.faults, outcome.violations) == ([], [])


# --- a loop that is closed while it owns a scheduler ---


@contextmanager
def shut_down_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that is shut down as `asyncio.run` does."""
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@contextmanager
def closed_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that is closed, and nothing else, when its tasks have been cancelled."""
    loop = asyncio.new_event_loop()
    yield loop
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()


LOOPS = pytest.mark.parametrize("loop_of_the_owner", [shut_down_loop, closed_loop])


@LOOPS
def test_initialize_after_the_owner_was_closed(own_store: StoreFactory, loop_of_the_owner: Loop) -> None:
    """After a loop was closed without a stop a scheduler begins as after a crash: what ran starts again."""
    world = World(own_store())
    with loop_of_the_owner() as loop:
        loop.run_until_complete(world.initialize(world.endless))
        loop.run_until_complete(world.clock.advance(timedelta(0)))
    assert world.calls == ["12:00"]

    async def again() -> None:
        await world.initialize()
        await world.clock.advance(MINUTE)
        await asyncio.wait_for(world.scheduler.stop(), PATIENCE_S)

    asyncio.run(again())
    assert world.calls == ["12:00", "12:00", "12:01"]
    assert world.causes() == ["startup", "interrupted", "cron"]
    assert [event.name for event in world.events].count("SchedulerAborted") == 1


@LOOPS
def test_stop_after_the_owner_was_closed(own_store: StoreFactory, loop_of_the_owner: Loop) -> None:
    """A stop after that releases the store, so that another scheduler can have it."""
    world = World(own_store())
    with loop_of_the_owner() as loop:
        loop.run_until_complete(world.initialize())
    asyncio.run(asyncio.wait_for(world.scheduler.stop(), PATIENCE_S))
    assert world.scheduler.state == "Stopped"
    other = World(own_store())

    async def life() -> None:
        await other.initialize()
        await other.scheduler.stop()

    asyncio.run(life())


def test_loop_that_is_shut_down_releases_the_store(own_store: StoreFactory) -> None:
    """Once `asyncio.run` has ended, another scheduler of the same process can have the store."""
    world, other = World(own_store()), World(own_store())
    asyncio.run(world.initialize())
    assert world.scheduler.state == "Stopped"

    async def life() -> None:
        await other.initialize()
        await other.scheduler.stop()

    asyncio.run(life())
