"""The owner of a scheduler: the one process and the one event loop that it works in.

A scheduler belongs to the loop on which `initialize` or `stop` is called, from that call until it is at rest
again: stopped, or never started. A call from anywhere else raises and changes nothing. Otherwise it would
wait for futures of another loop, which nothing can wake.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from duly.errors import ForeignEventLoopError, ForkedSchedulerError
from duly.forks import process_id


class Owner:
    """Says who may call a scheduler. *is_at_rest* tells whether it could work anywhere."""

    def __init__(self, is_at_rest: Callable[[], bool]) -> None:
        self._is_at_rest = is_at_rest
        self._lock = threading.Lock()  # two threads may call a scheduler that is at rest at the same time
        self.pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[object] = set()
        """Calls that have not returned."""

    def check_process(self) -> None:
        """Raise ForkedSchedulerError in a forked child of the owner."""
        if process_id() != self.pid and self._is_taken():
            raise ForkedSchedulerError(owner=self.pid, child=process_id())

    def check_loop(self) -> None:
        """Raise ForeignEventLoopError on a loop that is not the owner."""
        if self._is_owned_elsewhere() and self._loop is not None and not self._loop.is_closed():
            raise ForeignEventLoopError

    @contextmanager
    def call(self) -> Iterator[bool]:
        """One call on the running loop. Yields whether the owner was a loop that is closed by now.

        Raises ForkedSchedulerError or ForeignEventLoopError.
        """
        self.check_process()
        with self._lock:
            self.check_loop()
            if was_orphaned := self._is_owned_elsewhere():
                self._calls = set()  # the closed loop will never let them return
            self._loop, self.pid = asyncio.get_running_loop(), process_id()
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
