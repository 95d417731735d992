"""Background tasks that outlast a program which cancels every task of its event loop.

asyncio shows all tasks of a loop to everybody (`asyncio.all_tasks`), and some programs cancel all they see.
The shutdown of a loop looks the same at first: `asyncio.run` cancels everything, waits, and closes the loop.
So a task of ours that was cancelled by somebody else is started again after a pause, by a timer and not by a
task: a loop that is being closed drops its timers without a word. A shutdown that takes longer than the pause
finds the new task, and ends it through `at_loop_shutdown`.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from duly.forks import end_if_forked, process_id

T = TypeVar("T")

RESTART_PAUSE_S = 1.0
"""Time for a loop that is shutting down to close, and a limit on how often a task is restarted."""


class Background:
    """A task that runs until *work* returns or `end` is called. Whatever else ends it, it is restarted."""

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        *,
        name: str,
        on_restart: Callable[[BaseException], object] = lambda _error: None,
    ) -> None:
        self._work = work
        self._name = name
        self._on_restart = on_restart
        self._pid = 0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """Whether it runs, or is about to be restarted."""
        return self._task is not None

    def start(self) -> None:
        """Run *work*, unless it is running."""
        if self._task is None:
            self._begin()

    def end(self) -> list[asyncio.Task[None]]:
        """Cancel the task; what there is to wait for."""
        # Forgotten before it is cancelled: any other end of the task counts as somebody else's, and restarts
        # it.
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return [] if task is None or not cancel(task) else [task]

    def _begin(self) -> None:
        self._pid = process_id()
        self._task = asyncio.get_running_loop().create_task(self._work(), name=self._name)
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task is not self._task:
            return
        # A forked child has a copy of this loop, but the task belongs to the parent.
        end_if_forked(self._pid, self._name)
        error = asyncio.CancelledError("something cancelled it") if task.cancelled() else task.exception()
        if error is None:
            self._task = None
        else:
            # A timer, not a task: a program that cancels all tasks of the loop does not see it.
            self._timer = task.get_loop().call_later(RESTART_PAUSE_S, self._restart, error)

    def _restart(self, error: BaseException) -> None:
        self._timer = None
        self._on_restart(error)
        self._begin()


class Signal:
    """Wakes those who wait for something to change; each looks for itself what has changed.

    Unlike asyncio's events it belongs to no event loop between uses, so a scheduler that was stopped on one
    loop can be initialized on another.
    """

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            # To wake a waiter whose loop was closed under it would raise.
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Return at the next `notify`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


def cancel(task: asyncio.Task[Any], message: str | None = None) -> bool:
    """Cancel *task*, unless it is done or its loop is closed. Whether it can be waited for."""
    return not task.get_loop().is_closed() and task.cancel(message)


async def first_done(*futures: asyncio.Future[Any]) -> set[asyncio.Future[Any]]:
    """Wait until one of *futures* is done, and cancel the others; those that are done.

    Returns when all of them have ended, and so does a cancellation: none of them outlives the caller.
    """
    try:
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in futures:
            future.cancel()
        # A cancelled task is not yet over: it may hold a lock or a connection until its last `finally`.
        await asyncio.wait(futures)
    return done


_AT_ONCE = 2_000
"""So many items are worked on in one turn of the loop: a few milliseconds."""


async def in_slices(items: Iterable[T]) -> AsyncIterator[list[T]]:
    """*items*, some at a time: the loop turns after each slice but the last. A long list blocks nobody."""
    left = iter(items)
    while some := list(islice(left, _AT_ONCE)):
        yield some
        if len(some) == _AT_ONCE:
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)


def retrieve_outcome(future: asyncio.Future[Any]) -> None:
    """Look at what *future* ended with, so that asyncio does not log that nobody did."""
    if not future.cancelled():
        future.exception()


def at_loop_shutdown(act: Callable[[], Awaitable[object]]) -> Callable[[], None]:
    """Await *act* when the running loop is shut down; the answer takes that back.

    `asyncio.run` and everything like it close the asynchronous generators of a loop after they have cancelled
    its tasks, and before they close it (`loop.shutdown_asyncgens`). That is the only notice a loop gives.
    """
    if sys.get_asyncgen_hooks().firstiter is None:
        return lambda: None  # a loop that does not keep track of generators, such as a simulated one
    is_wanted = True

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if is_wanted:
                await act()

    waiting = wait()
    with suppress(StopIteration):
        waiting.__anext__().send(None)  # the first step makes it known to the loop

    def take_back() -> None:
        nonlocal is_wanted
        is_wanted = False
        with suppress(StopIteration):
            waiting.aclose().send(None)

    return take_back
