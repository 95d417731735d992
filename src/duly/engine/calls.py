"""Calls of a scheduler: who may make them, and in which order they are served.

A scheduler belongs to one process and one event loop: the loop on which `initialize` or `stop` is called,
from that call until it is at rest again (stopped, or never started). A call from anywhere else raises and
changes nothing. Otherwise it would wait for futures of another loop, which nothing can wake.

Calls are served one at a time. A call gets its number when it is made, which may be before it is first
awaited (`create_task(s.initialize(a))`, then `await s.initialize(b)`: a comes first). A call that is made and
never awaited must not hold up the others, so only calls that have begun stand in the queue.
"""

import asyncio
import threading
from bisect import insort
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count

from duly.background import Signal
from duly.errors import ForeignEventLoopError, ForkedSchedulerError
from duly.forks import process_id

_numbers = count()


class Owner:
    """Which process and loop may call a scheduler; while *is_at_rest* is true, any may."""

    def __init__(self, is_at_rest: Callable[[], bool]) -> None:
        self._is_at_rest = is_at_rest
        self._lock = threading.Lock()  # two threads may call a scheduler that is at rest at the same time
        self.pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[object] = set()
        """Calls that have not returned."""

    def check_process(self) -> None:
        """Raise ForkedSchedulerError in a forked child of the owner."""
        # At rest nothing of the parent's is tied to it: then a child may take it.
        if process_id() != self.pid and self._is_taken():
            raise ForkedSchedulerError(owner=self.pid, child=process_id())

    def check_loop(self) -> None:
        """Raise ForeignEventLoopError on a loop that is not the owner."""
        # A closed loop never lets go by itself: from that one a scheduler may be taken over.
        if self._is_owned_elsewhere() and self._loop is not None and not self._loop.is_closed():
            raise ForeignEventLoopError

    @contextmanager
    def call(self) -> Iterator[bool]:
        """One call on the running loop. Yields whether the owner was a loop that is closed by now.

        Raises ForkedSchedulerError or ForeignEventLoopError.
        """
        self.check_process()
        # Checking and taking are one step: of two threads, one wins and the other raises.
        with self._lock:
            self.check_loop()
            if was_orphaned := self._is_owned_elsewhere():
                self._calls = set()  # the closed loop will never let them return
            self._loop, self.pid = asyncio.get_running_loop(), process_id()
            # This very set is kept: a later owner replaces it, and our end must not touch the calls of that
            # one.
            call, calls = object(), self._calls
            calls.add(call)
        try:
            yield was_orphaned
        finally:
            calls.discard(call)

    def _is_owned_elsewhere(self) -> bool:
        return self._loop is not asyncio.get_running_loop() and self._is_taken()

    def _is_taken(self) -> bool:
        return bool(self._calls) or not self._is_at_rest()


class Turns:
    def __init__(self) -> None:
        self._begun: list[int] = []
        self._serving = False
        self._changed = Signal()

    def number(self) -> int:
        return next(_numbers)

    @asynccontextmanager
    async def of(self, number: int, check: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Wait until it is the turn of *number*; the others wait until the block ends.

        *check* is called before each wait and may raise, when waiting would be for ever.
        """
        insort(self._begun, number)
        try:
            # Calls with a lower number that were handed to the loop begin now, before we look who is first.
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
            while self._serving or self._begun[0] != number:
                check()
                await self._changed.wait()
            self._serving = True
        finally:
            # Also if it was cancelled in the queue, or those behind it would wait for ever.
            self._begun.remove(number)
            self._changed.notify()
        try:
            yield
        finally:
            self._serving = False
            self._changed.notify()
