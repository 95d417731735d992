"""Work that blocks, kept off the event loop: a store's one writer thread, and callbacks in threads.

Everything handed to a thread here is counted per event loop, so that a virtual clock can tell when all
of it has come to rest (`outstanding`). Nothing else may start threads.
"""

import asyncio
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from duly.background import retrieve_outcome
from duly.core.registration import is_async_callable
from duly.forks import end_if_forked, process_id

T = TypeVar("T")

ENDED_EARLY = "ended before it has come to its end"
"""The message of a cancellation by a time limit or by somebody's wish: a function in a thread outlasts it."""

_outstanding: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[asyncio.Future[Any], bool]] = (
    weakref.WeakKeyDictionary()
)


def outstanding(loop: asyncio.AbstractEventLoop) -> dict[asyncio.Future[Any], bool]:
    """The work that threads are doing for *loop* right now, and whether it is a callback's."""
    return _outstanding.setdefault(loop, {})


class _Work(Generic[T]):
    """One call to make in a thread, and the future that waits for it."""

    def __init__(self, function: Callable[[], T], *, is_callback: bool = False) -> None:
        self._function = function
        # The function sees what its caller sees, such as which run it belongs to.
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._pid = process_id()
        self.future: asyncio.Future[T] = self._loop.create_future()
        pending = outstanding(self._loop)
        pending[self.future] = is_callback
        self.future.add_done_callback(pending.pop)
        # A waiter gets what it raises. If the waiting was cancelled, nobody looks at the outcome.
        self.future.add_done_callback(retrieve_outcome)

    def perform(self) -> None:
        """Make the call, in whatever thread this is, and hand the outcome to the loop."""
        try:
            result = self._context.run(self._function)
        except BaseException as error:
            end_if_forked(self._pid, self._function, error)
            self._hand_over(self._fail, error)
        else:
            end_if_forked(self._pid, self._function)
            self._hand_over(self._succeed, result)

    def _hand_over(self, settle: Callable[[Any], None], outcome: object) -> None:
        try:
            self._loop.call_soon_threadsafe(settle, outcome)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return

    def _succeed(self, result: T) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.future.done():
            # A future refuses StopIteration, which would end the awaiting coroutine in silence.
            self.future.set_exception(
                RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
            )


class Works(Protocol):
    """What does blocking work in order: a thread, or, in a simulation, a turn of the loop."""

    async def do(self, function: Callable[[], T], /) -> T:
        """Do *function* and wait for it; it is done even if the waiting is cancelled."""

    def post(self, function: Callable[[], object], /) -> None:
        """Have *function* done some time; nobody waits for it."""

    def end(self) -> None:
        """Take no more work until the next is given."""


class Worker:
    """One thread that does what it is given in order. It starts with the first piece of work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[_Work[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: threading.Thread | None = None

    async def do(self, function: Callable[[], T]) -> T:
        """Call *function* in the thread. Once handed over it is done, even if the waiting is cancelled."""
        return await asyncio.shield(self._hand_in(function).future)

    def post(self, function: Callable[[], object]) -> None:
        """Have *function* called in the thread some time; nobody waits for it."""
        self._hand_in(function)

    def _hand_in(self, function: Callable[[], T]) -> _Work[T]:
        if self._thread is None:
            # With a queue of its own: the old one may still hold what ends a thread that a fork took away.
            works: queue.SimpleQueue[_Work[Any] | None] = queue.SimpleQueue()
            # A daemon, so that a disk that never answers cannot keep the process from ending.
            thread = threading.Thread(
                target=_work_through, args=(works, self._last), name=self._name, daemon=True
            )
            thread.start()  # raises when the host has no thread left; the next piece of work tries again
            self._thread, self._queue = thread, works
        work = _Work(function)
        # Handed over for good: from here on the function is called, whatever becomes of the caller.
        self._queue.put(work)
        return work

    def end(self) -> None:
        """Let the thread end when it has done what it was given."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread, self._last = None, self._thread


def _work_through(works: "queue.SimpleQueue[_Work[Any] | None]", last: threading.Thread | None) -> None:
    if last is not None:
        last.join()  # all work is done in the order in which it was given
    while (work := works.get()) is not None:
        work.perform()


class in_thread:  # noqa: N801 (used like a function)
    """Make a blocking function into a callback: each run calls it in a thread of its own.

    A thread cannot be killed. A run that is cancelled, by a time limit or `App.cancel`, therefore goes on
    until the function returns, and the task does not start again before that. Any other cancellation, such as
    that of the whole program, leaves the thread behind.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        if not callable(function):
            raise TypeError(f"in_thread needs a function, not {type(function).__name__}")
        if is_async_callable(function):
            raise TypeError(f"{function!r} is async already and needs no thread; register it as it is")
        self._function = function

    def __repr__(self) -> str:
        return f"in_thread({self._function!r})"

    async def __call__(self) -> object:
        """Call the function in a new thread and wait for it."""
        work = _Work(self._function, is_callback=True)
        threading.Thread(target=work.perform, name=f"duly {self._function!r}", daemon=True).start()
        return await outlasting_cancellation(work.future, only=ENDED_EARLY)


async def outlasting_cancellation(future: asyncio.Future[T], *, only: str | None = None) -> T:
    """Wait for *future* to the end; a cancellation in between (with message *only*) is raised after that."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            if only is not None and error.args != (only,):
                raise
            cancelled = error
    if cancelled is not None:
        # Looked at, or asyncio logs that nobody did.
        future.exception()
        raise cancelled
    return future.result()
