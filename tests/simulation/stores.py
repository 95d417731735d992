"""The store under a simulated scheduler: the real one, with a worker that is a turn of the loop, and faults.

The worker does what the writer thread does, one piece of work after another, but in the loop's own thread
and in virtual time, so that a crash can come before the work, after it, and before anybody has heard of
it. `SimulatedStore` stands between scheduler and store: it makes calls fail, loses acknowledgements, and lets
nothing of a dead process through.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from duly.core.task import Task
from duly.errors import StoreError
from duly.instant import SECOND_US
from duly.store import Contents, Store
from tests.simulation.steady import CrashPoints, Point

T = TypeVar("T")
_Work = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SimWorker:
    """Does work in order, in turns of the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, points: CrashPoints, on_fatal: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._points = points
        self._on_fatal = on_fatal
        self._queue: deque[_Work] = deque()
        self._is_busy = False
        self.is_dead = False
        self.lag_us = 0
        """How long every piece of work takes: half of it before, half of it after."""
        self.waited_us: Callable[[], int] = lambda: 0
        """How long the work itself has waited, in virtual time, since it was last asked."""

    async def do(self, function: Callable[[], T]) -> T:
        """Do *function* in its turn. Once handed over it is done, even if the waiting is cancelled."""
        if self.is_dead:
            return function()
        future: asyncio.Future[T] = self._given(function)
        return await future

    def post(self, function: Callable[[], object]) -> None:
        """Have *function* done some time; nobody waits for it."""
        if not self.is_dead:
            self._given(function).add_done_callback(_noted)

    def end(self) -> None:
        """Nothing: there is no thread to let go."""

    def _given(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        future = self._loop.create_future()
        self._queue.append((function, future))
        if not self._is_busy:
            self._is_busy = True
            self._later(self.lag_us // 2, self._perform)
        return future

    def _later(self, delay_us: int, act: Callable[..., None], *args: Any) -> None:
        if delay_us:
            self._loop.call_later(delay_us / SECOND_US, act, *args)
        else:
            self._loop.call_soon(act, *args)

    def _perform(self) -> None:
        function, future = self._queue.popleft()
        if self._dies_at(Point.BEFORE_WRITE):
            return
        result, fault = None, None
        self.waited_us()
        try:
            result = function()
        except Exception as error:
            fault = error
        if not self.is_dead and not self._dies_at(Point.UNACKNOWLEDGED):
            self._later(self.waited_us() + self.lag_us // 2, self._settle, future, fault, result)

    def _dies_at(self, point: Point) -> bool:
        if not self.is_dead and self._points.is_fatal(point):
            self._on_fatal()
        return self.is_dead

    def _settle(self, future: "asyncio.Future[Any]", error: Exception | None, result: object) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        self._is_busy = bool(self._queue)
        if self._is_busy:
            self._later(self.lag_us // 2, self._perform)


class SimulatedStore:
    """A store as a simulated scheduler sees it."""

    def __init__(self, store: Store, worker: SimWorker, *, has_worker: bool) -> None:
        self._store = store
        self._worker = worker
        self._has_worker = has_worker
        self.is_dead = False
        self.is_refusing = False
        """Fail instead of writing."""
        self.is_losing = False
        """Write, and fail all the same."""
        self.on_doubt: Callable[[], None] = lambda: None
        """Called when a list was to be written and nobody knows whether it was."""
        self.in_doubt: Callable[[], bool] = lambda: False
        """Whether a write that has just failed may have happened."""

    @property
    def name(self) -> str:
        """The name of the store inside."""
        return self._store.name

    async def open(self, new_id: str) -> Contents:
        """Take hold of the store inside."""
        self._check_alive()
        return await self._passed_on(lambda: self._store.open(new_id))

    async def replace(self, *, put: Sequence[Task], removed: Sequence[int]) -> None:
        """Replace, or fail."""
        try:
            await self._written(lambda: self._store.replace(put=put, removed=removed))
        except StoreError:
            if self.is_losing or self.in_doubt():
                self.on_doubt()
            raise

    async def save(self, tasks: Sequence[Task]) -> None:
        """Save, or fail."""
        await self._written(lambda: self._store.save(tasks))

    async def close(self) -> None:
        """Close the store inside."""
        self._check_alive()
        await self._passed_on(self._store.close)

    async def drop(self) -> None:
        """Let go of the store inside, as the dead do."""
        await self._store.drop()

    def _check_alive(self) -> None:
        if self.is_dead:
            raise asyncio.CancelledError

    async def _written(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._check_alive()
        if self.is_refusing:
            raise StoreError(store=self.name, reason="cannot be written just now")
        await self._passed_on(write)
        if self.is_losing:
            raise StoreError(store=self.name, reason="did not answer")

    def _passed_on(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        if self._has_worker:
            return call()
        return self._worker.do(lambda: driven(call()))


def driven(coroutine: Coroutine[Any, Any, T]) -> T:
    """The answer of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as answer:
        result: T = answer.value
        return result
    coroutine.close()
    raise RuntimeError("it waits, and here is nobody who could wait for it")


def _noted(future: "asyncio.Future[Any]") -> None:
    """Look at the outcome, so that the loop does not complain that nobody did."""
    if not future.cancelled():
        future.exception()
