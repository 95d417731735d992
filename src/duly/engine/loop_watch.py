"""The loop watch: which callback blocks the event loop.

Only another thread can see that, and only meanwhile: it asks which task the loop is in, and whether the loop
has turned since it last asked. The loop announces it afterwards. On a node the heartbeat thread looks anyway.
A scheduler on a store of its own has a thread for it (`LoopWatcher`).
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from duly.clock import Steady, steady_us
from duly.events import Announcer
from duly.instant import SECOND_US
from duly.marks import mark

_BLOCKED_US = SECOND_US
"""A loop that is blocked for longer is reported."""
_LOOK_S = 0.25


class LoopWatch:
    """Watches the running event loop."""

    def __init__(self, announcer: Announcer, steady: Steady = steady_us) -> None:
        self._loop = asyncio.get_running_loop()
        self._announce = announcer.announce
        self._steady = steady
        self._is_turn_awaited = False
        self._is_blocked = False
        self._blocking: asyncio.Task[Any] | None = None
        """What ran in the loop when somebody last looked, and since when it was seen."""
        self._blocking_since_us = 0

    def look(self) -> bool:
        """Whether one callback blocks the loop for too long by now. Called several times a second."""
        at_us, task = self._steady(), asyncio.current_task(self._loop)
        if task is not self._blocking or not self._is_turn_awaited:
            # Many short callbacks in a row block nothing for long: each new one starts over.
            self._blocking, self._blocking_since_us = task, at_us
        if not self._is_turn_awaited:
            self._is_turn_awaited = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_turn)
        elif at_us - self._blocking_since_us > _BLOCKED_US:
            self._is_blocked = True
        return self._is_blocked

    def _on_turn(self) -> None:
        """Note that the loop turns, and announce which task has blocked it."""
        task, self._blocking, self._is_turn_awaited = self._blocking, None, False
        was_blocked, self._is_blocked = self._is_blocked, False
        if was_blocked and task is not None:
            mark("loop blocked")
            seconds = (self._steady() - self._blocking_since_us) / SECOND_US
            self._announce("LoopBlocked", taskName=task.get_name(), seconds=round(seconds, 1))


class LoopWatcher:
    """A thread that looks while *is_running* says so, for schedulers without a heartbeat thread."""

    def __init__(self, announcer: Announcer, is_running: Callable[[], object]) -> None:
        self._watch = LoopWatch(announcer)
        self._is_running = is_running
        # The thread waits on it and does not sleep, so that `stop` ends it at once.
        self._is_over = threading.Event()
        threading.Thread(target=self._look_on, name="duly loop watch", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _look_on(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            if self._is_running():  # each look wakes the loop
                self._watch.look()
