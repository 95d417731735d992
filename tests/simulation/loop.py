"""An event loop in virtual time, which runs one handle at a time and can die between any two of them.

When nothing is ready it jumps to the next timer. There are no threads, no files and no waiting, so what
it does depends on nothing but what it is given. One loop is one process of the simulated program: a crash
leaves it standing in mid-air, and `bury` then takes apart what it had in flight, without letting time
pass.
"""

import asyncio
import heapq
import warnings
from asyncio import events
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, TypeVar, TypeVarTuple

from duly.instant import SECOND_US
from tests.simulation.steady import CrashPoints, Steady

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_AT_ONCE = 50_000
"""Handles that may run within one instant of virtual time."""

_ROUNDS_TO_DIE = 20
_MOST_CANCELLED = 200


class StandstillError(Exception):
    """A process goes round and round within one instant, so time cannot pass."""

    def __init__(self) -> None:
        super().__init__(f"time stands still: {MOST_AT_ONCE} turns of the loop within one instant")


class _Handle(asyncio.Handle):
    """A handle that is made without looking whether anybody debugs."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: "SimLoop", context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process."""

    # What BaseEventLoop keeps; named here because its stubs do not.
    _ready: Any
    _scheduled: Any
    _timer_cancelled_count: int
    _thread_id: int | None

    def __init__(self, steady: Steady, points: CrashPoints, on_fatal: Callable[[], None]) -> None:
        super().__init__()
        self.set_debug(False)
        self._steady = steady
        self._points = points
        self._on_fatal = on_fatal
        self.is_dead = False
        self.is_blocked = False
        """Whether the handle that ran last does not give way: nothing else runs until that is over."""
        self.complaints: list[str] = []
        """What asyncio would have logged: exceptions that nobody took."""
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        """Steady time, in seconds."""
        return self._steady.now_us / SECOND_US

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As `BaseEventLoop` does, and quicker: the most frequent thing a loop is asked for."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def next_us(self) -> int | None:
        """When this loop next has something to do; None if it waits for somebody else."""
        if self._ready:
            return self._steady.now_us
        self._forget_cancelled()
        return _micros(self._scheduled[0]) if self._scheduled else None

    def run_until(self, until_us: int) -> bool:
        """Let the process live until *until_us*. False if it died before."""
        if not self.is_dead and self._steady.now_us <= until_us:
            if self._ready or (self._scheduled and _micros(self._scheduled[0]) <= until_us):
                self.within(lambda: self._live_until(until_us))
            else:  # most often, and quicker
                self._steady.now_us = until_us
        return not self.is_dead

    def within(self, act: Callable[[], T]) -> T:
        """Do *act* as if a handle of this loop did it."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return act()
        finally:
            events._set_running_loop(before)

    def die(self) -> None:
        """Run no more handles: the one that is running, if any, is the last."""
        self.is_dead = True

    def bury(self) -> None:
        """Take apart what a dead process had in flight. Whatever it touches must be out of reach already."""
        self.is_dead = True
        with warnings.catch_warnings():
            # What had been called and not yet begun never will be; that is what dying means.
            warnings.filterwarnings("ignore", message=".*was never awaited", category=RuntimeWarning)
            self.within(self._cancel_everything)
        self.complaints.clear()
        self.close()

    # --- living ---

    def _live_until(self, until_us: int) -> None:
        ready, points, steady = self._ready, self._points, self._steady
        most, at_us = points.awaits + MOST_AT_ONCE, steady.now_us
        while True:
            if steady.now_us != at_us:
                most, at_us = points.awaits + MOST_AT_ONCE, steady.now_us
            while ready:
                if points.awaits > most:
                    raise StandstillError
                if points.awaits >= points.fatal_await:
                    self._on_fatal()
                    self.is_dead = True
                    return
                points.awaits += 1
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle._run()
                    except SystemExit:  # of a task that a callback left alone; a real loop ends of it, too
                        self._on_fatal()
                        self.is_dead = True
                    if self.is_dead or self.is_blocked:
                        return
            if not self._pass_time(until_us):
                return

    def _pass_time(self, until_us: int) -> bool:
        """Go to the next timer, if it comes before *until_us*; else just there."""
        self._forget_cancelled()
        scheduled, steady = self._scheduled, self._steady
        if not scheduled or (next_us := _micros(scheduled[0])) > until_us:
            steady.now_us = max(steady.now_us, until_us)
            return False
        steady.now_us = max(steady.now_us, next_us)
        while scheduled and _micros(scheduled[0]) <= steady.now_us:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            self._ready.append(handle)
        return True

    def _forget_cancelled(self) -> None:
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if self._timer_cancelled_count > _MOST_CANCELLED:
            kept = [handle for handle in scheduled if not handle._cancelled]
            heapq.heapify(kept)
            self._scheduled, self._timer_cancelled_count = kept, 0

    # --- dying ---

    def _cancel_everything(self) -> None:
        for _ in range(_ROUNDS_TO_DIE):
            tasks = asyncio.all_tasks(self)
            for task in tasks:
                task.cancel()
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle._cancelled:
                    with suppress(SystemExit, KeyboardInterrupt):
                        handle._run()
            if not tasks and not self._ready:
                return
        for task in asyncio.all_tasks(self):  # it refuses to be cancelled, as it may
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(RuntimeError, AttributeError):
                task.get_coro().close()

    def _complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _write_to_self(self) -> None:
        """Wake the loop: never needed, since nobody else is there to be waited for."""


def _micros(handle: asyncio.TimerHandle) -> int:
    return round(handle.when() * SECOND_US)
