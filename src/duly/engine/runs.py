"""Runs: callbacks in flight, each in an asyncio task of its own.

Whatever a callback does ends here: it may raise anything, cancel itself, exit, return nonsense. A run knows
which task it belongs to and whether that task was registered anew or removed since it began. Between its
start being written and its callback being called it may yet be called off. It does not know the store; what
an end means is for the poller to say.
"""

import asyncio
import types
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic

from duly.background import cancel
from duly.core.registration import Callback
from duly.engine.rules import T
from duly.engine.signal import Signal
from duly.events import CUT_OFF
from duly.forks import end_if_forked, process_id
from duly.instant import Instant
from duly.threads import OVERDUE

current_run: ContextVar["Run[Any] | None"] = ContextVar("duly_current_run", default=None)
"""The run whose callback is executing here, also in the tasks and threads it started."""


@dataclass(slots=True, eq=False)
class Run(Generic[T]):
    """One execution of one callback."""

    name: str
    callback: Callback
    before: T
    """The item without this run, for the case that it is called off."""
    started_us: Instant
    """When its start was recorded."""
    called_us: Instant = 0
    """When its callback was called."""
    ended_us: Instant = 0
    """When its callback returned or raised."""
    ahead_us: int = 0
    """How far the clock was set before that end, by steps of which its item is yet to be told."""
    is_superseded: bool = False
    """Its task was overridden or removed since: its end arms no retry and sets no times."""
    is_timed_out: bool = False
    is_dropped: bool = False
    task: asyncio.Task[None] | None = None


class Runs(Generic[T]):
    """The runs in flight."""

    def __init__(
        self,
        now_us: Callable[[], Instant],
        on_call: Callable[[Run[T]], bool],
        on_end: Callable[[Run[T], BaseException | None], None],
        *,
        on_uncalled: Callable[[Run[T]], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._now_us = now_us
        self._on_call = on_call
        self._on_end = on_end
        self._on_uncalled = on_uncalled
        self._on_fault = on_fault
        self.pid = process_id()
        """The process whose runs these are; a forked child of it has none."""
        self._live: set[Run[T]] = set()
        self._finished: list[tuple[Run[T], BaseException | None]] = []
        self._waiting: Counter[Run[T]] = Counter()
        """Runs that are themselves inside `initialize` or `stop`; to wait for those is to wait for ever."""
        self._changed = Signal()

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, run: Run[T]) -> None:
        """Have the callback of *run* called, soon."""
        self._live.add(run)
        # Not through create_task: a user's eager task factory would call the callback here and now.
        performing = self._perform(run)
        performing.send(None)
        run.task = asyncio.Task(performing, loop=asyncio.get_running_loop(), name=run.name)

    def cancel(self, run: Run[T]) -> None:
        """Cancel a run that took too long, unless its callback has just come to its end."""
        if run.ended_us:
            return
        run.is_timed_out = True
        if run.task is not None:
            run.task.cancel(OVERDUE)

    def is_inside(self) -> bool:
        """Whether the caller is one of these runs, or was started by one."""
        return current_run.get() in self._live

    def enter_wait(self) -> Callable[[], None]:
        """Note that the calling run, if it is one, now waits for the scheduler; the answer ends that."""
        run = current_run.get()
        if run is None or run not in self._live:
            return lambda: None
        self._waiting[run] += 1
        self._changed.notify()
        return lambda: self._leave_wait(run)

    def _leave_wait(self, run: Run[T]) -> None:
        if self._waiting[run] <= 1:
            del self._waiting[run]
        else:
            self._waiting[run] -= 1

    async def ended(self, *, but_waiting: bool) -> None:
        """Return when no run is in flight, or, with *but_waiting*, only such as wait for the scheduler."""
        while self._live - self._waiting.keys() if but_waiting else self._live:
            await self._changed.wait()

    def abandon(self, runs: Iterable[Run[T]]) -> None:
        """End these runs as a crash would, as far as that can be done here: their ends are never heard of.

        One whose callback has come to its end is not among them: that can be told.
        """
        self._cut([run for run in runs if not run.ended_us])

    def _cut(self, runs: Iterable[Run[T]]) -> None:
        for run in runs:
            run.is_dropped = True
            self._live.discard(run)
            self._waiting.pop(run, None)
            if run.task is not None:
                cancel(run.task, CUT_OFF)
        self._changed.notify()

    async def drop(self) -> None:
        """End all runs as a crash would."""
        self._cut(list(self._live))
        # One that refuses to be cancelled is left behind, as nobody can kill it.
        for _ in range(_CYCLES_TO_DIE):
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)

    async def _perform(self, run: Run[T]) -> None:
        try:
            await _first_step()
        except asyncio.CancelledError:
            # By something that cancels every task it sees. A coroutine that has not begun would not notice.
            if run in self._live:
                self._forget(run)
                self._on_uncalled(run)
            raise
        end_if_forked(self.pid, run.name)
        current_run.set(run)
        error: BaseException | None = None
        try:
            run.called_us = self._now_us()
            if not self._on_call(run):
                self._forget(run)
                return
            await run.callback()
        except BaseException as raised:
            # SystemExit and KeyboardInterrupt too: one task's exit is not the program's.
            error = raised
        end_if_forked(self.pid, run.name, error)
        try:
            run.ended_us = self._now_us()
        except Exception:
            run.ended_us = run.called_us  # a clock that fails must not keep a run from ending
        assert run.task is not None
        loop = run.task.get_loop()
        if loop.is_closed():
            return  # nobody has ended it: it is being destroyed, together with its loop
        self._finished.append((run, error))
        if len(self._finished) == 1:
            # After whatever is ready to run: callbacks that wait to be called come before our paperwork.
            loop.call_soon(self._settle)

    def _forget(self, run: Run[T]) -> None:
        """Let go of a run that was called off before its callback was called."""
        self._live.discard(run)
        self._changed.notify()

    def _settle(self) -> None:
        """Do what follows from the ends of runs."""
        finished, self._finished = self._finished, []
        for run, error in finished:
            self._live.discard(run)
            self._waiting.pop(run, None)
            if not run.is_dropped:
                try:
                    self._on_end(run, error)
                except Exception as fault:
                    self._on_fault(fault)  # the ends of the others are still to be seen to
        self._changed.notify()


@types.coroutine
def _first_step() -> Generator[None, None, None]:
    """Wait for the first step of a task whose coroutine has been brought this far already."""
    yield


_CYCLES_TO_DIE = 10
