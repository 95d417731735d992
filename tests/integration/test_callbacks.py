"""Callbacks that misbehave harm nobody but themselves."""

import asyncio
import functools
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from unittest.mock import AsyncMock

import pytest

from duly import in_thread
from tests.worlds.scheduler import HOUR, MINUTE, World
from tests.worlds.stores import StoreFactory


class UnprintableError(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


RAISED = [
    ValueError("plain"),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    GeneratorExit(),
    BaseException("base"),
    StopAsyncIteration(),
    TimeoutError(),
    ExceptionGroup("many", [ValueError("one")]),
    UnprintableError(),
    RecursionError(),
    MemoryError(),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
async def test_whatever_a_callback_raises_is_a_failure(
    same_store: StoreFactory, error: BaseException
) -> None:
    """Any exception at all is a failed run with a retry; the next task and the next minute come as ever."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("bad", "0 12 * * *", outcomes=[error]), world.task("good"))
    await world.until("12:06")
    ((_, fields),) = world.told("TaskRunFailed")
    assert fields["error"].startswith(type(error).__name__)
    assert world.calls_of("bad") == ["12:00:00", "12:05:00"]
    assert len(world.calls_of("good")) == 7
    await world.scheduler.stop()


async def test_callback_that_cancels_itself(same_store: StoreFactory) -> None:
    """A callback that cancels its own task has failed, and nothing else is cancelled."""
    world = World(same_store, "12:00:00")

    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)  # noqa: TID251 (where the cancellation arrives)

    await world.begin(("a", "0 12 * * *", cancels, HOUR), world.task("good"))
    await world.clock.advance(MINUTE)
    assert len(world.told("TaskRunFailed")) == 1
    assert len(world.calls_of("good")) == 2
    await world.scheduler.stop()


@pytest.mark.parametrize(
    "junk", [None, 0, "text", object(), ValueError("returned, not raised"), NotImplemented]
)
async def test_whatever_a_callback_returns_is_ignored(same_store: StoreFactory, junk: object) -> None:
    """A callback that returns has succeeded, whatever it returns."""
    world = World(same_store, "12:00:00")

    async def returns() -> object:
        return junk

    await world.begin(("a", "0 12 * * *", returns, HOUR))
    assert len(world.told("TaskRunCompleted")) == 1
    await world.scheduler.stop()


class Counter:
    """An object with an async `__call__`, and an async method."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> None:
        """Count."""
        self.calls += 1

    async def method(self) -> None:
        """Count."""
        self.calls += 1


async def test_every_kind_of_async_callable(same_store: StoreFactory) -> None:
    """Functions, bound methods, partials, callable objects, mocks and threaded functions can be callbacks."""
    world = World(same_store, "12:00:00")
    thing, mock, plain = Counter(), AsyncMock(), []

    async def with_argument(n: int) -> None:
        plain.append(n)

    callbacks: dict[str, Callable[[], Awaitable[object]]] = {
        "object": thing,
        "method": thing.method,
        "partial": functools.partial(with_argument, 1),
        "partial of partial": functools.partial(functools.partial(with_argument, 2)),
        "mock": mock,
        "thread": in_thread(functools.partial(plain.append, 3)),
    }
    await world.begin(*[(name, "0 12 * * *", callback, HOUR) for name, callback in callbacks.items()])
    assert (thing.calls, mock.await_count, sorted(plain)) == (2, 1, [1, 2, 3])
    await world.scheduler.stop()


async def test_endless_recursion_is_a_failure(same_store: StoreFactory) -> None:
    """A callback that recurses without end fails like any other."""
    world = World(same_store, "12:00:00")

    async def recurses() -> None:
        def down(n: int) -> int:
            return down(n + 1)

        down(0)

    await world.begin(("a", "0 12 * * *", recurses, HOUR))
    assert "RecursionError" in world.told("TaskRunFailed")[0][1]["error"]
    await world.scheduler.stop()


async def test_thread_that_fails(same_store: StoreFactory) -> None:
    """What a blocking function raises in its thread is the failure of the run."""
    world = World(same_store, "12:00:00")

    def exits() -> None:
        sys.exit(2)

    def stops() -> None:
        raise StopIteration

    await world.begin(
        ("exit", "0 12 * * *", in_thread(exits), HOUR), ("stop", "0 12 * * *", in_thread(stops), HOUR)
    )
    errors = {fields["taskName"]: fields["error"] for _, fields in world.told("TaskRunFailed")}
    assert errors["exit"] == "SystemExit: 2"
    assert "StopIteration" in errors["stop"]
    await world.scheduler.stop()


async def test_blocked_thread_blocks_nobody(same_store: StoreFactory) -> None:
    """A hundred functions that block their threads leave the loop, and other threads, free."""
    world = World(same_store, "12:00:00")
    go_on = threading.Event()
    blocked = [(f"b{n}", "0 12 * * *", in_thread(go_on.wait), HOUR) for n in range(100)]
    await world.begin(*blocked, ("quick", "1 12 * * *", in_thread(lambda: None), HOUR))
    await world.clock.advance(MINUTE)
    assert [fields["taskName"] for _, fields in world.told("TaskRunCompleted")] == ["quick"]
    go_on.set()
    await world.scheduler.stop()
    assert len(world.told("TaskRunCompleted")) == 101


async def test_timed_out_thread_is_not_started_beside_itself(same_store: StoreFactory) -> None:
    """A thread cannot be killed: a timed-out run lasts until its function returns; none starts meanwhile."""
    world = World(same_store, "12:00:00")
    go_on = threading.Event()
    await world.begin(("a", "* * * * *", in_thread(go_on.wait), MINUTE), run_timeout=timedelta(seconds=30))
    await world.until("12:03")
    assert len(world.told("TaskRunStarted")) == 1
    go_on.set()
    await world.scheduler.stop()
    assert len(world.told("TaskRunFailed")) == 1


async def test_context_of_one_run_is_not_that_of_another(same_store: StoreFactory) -> None:
    """A run that fails inside a task it spawned harms neither the loop nor other runs."""
    world = World(same_store, "12:00:00")

    async def spawns() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))  # noqa: TID251 (a task that ends)
            group.create_task(world.task("x", outcomes=[ValueError("inner")])[2]())

    await world.begin(("a", "0 12 * * *", spawns, HOUR), world.task("good"))
    await world.clock.advance(MINUTE)
    assert "ExceptionGroup" in world.told("TaskRunFailed")[0][1]["error"]
    assert len(world.calls_of("good")) == 2
    await world.scheduler.stop()
