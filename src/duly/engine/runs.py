"""Runs: callbacks in flight, each in an asyncio task of its own.

Whatever a callback does ends here: it may raise anything, cancel itself, exit, return nonsense. A run knows
which task it belongs to and whether that task was registered again or removed since it began. Between its
start being written and its callback being called it may yet be called off. It does not know the store; what
an end means is for the poller to say.
"""

import asyncio
import types
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from typing import Any, Generic

import msgspec

from duly.background import Signal, cancel
from duly.core.registration import Callback
from duly.engine.rules import Begin, T
from duly.events import CUT_OFF
from duly.forks import end_if_forked, process_id
from duly.instant import Instant
from duly.threads import ENDED_EARLY

_ENDS_AT_ONCE = 64
_CYCLES_TO_DIE = 10
"""Turns of the loop that a cancelled run gets to end, before it is left behind."""

current_run: ContextVar["ActiveRun[Any] | None"] = ContextVar("duly_current_run", default=None)
"""The run whose callback is executing here, also in the tasks and threads it started."""


class ActiveRun(msgspec.Struct, Generic[T], eq=False):
    """One execution of one callback."""

    name: str
    callback: Callback
    before: T
    """The item without this run, for the case that it is called off."""
    started_us: Instant
    """When its start was recorded."""
    start: Begin[T] | None = None
    """Why it was started."""
    token: int | None = None
    """The fencing token of its row, in a cluster."""
    called_us: Instant = 0
    """When its callback was called."""
    ended_us: Instant = 0
    """When its callback returned or raised."""
    ahead_us: int = 0
    """How far the clock was set before that end, by steps that its item does not know yet."""
    timeout_us: int | None = None
    """So long after its call it is cancelled."""
    is_superseded: bool = False
    """Its task was overridden or removed since: its end arms no retry and sets no times."""
    is_timed_out: bool = False
    is_cancelled: bool = False
    """Somebody has asked for its end."""
    is_dropped: bool = False
    result: object = None
    """What its callback returned. Tasks ignore it; of timers it is how their target ended."""
    task: asyncio.Task[None] | None = None


class Runs(Generic[T]):
    def __init__(
        self,
        now_us: Callable[[], Instant],
        on_call: Callable[[ActiveRun[T]], bool],
        on_end: Callable[[ActiveRun[T], BaseException | None], None],
        *,
        on_uncalled: Callable[[ActiveRun[T]], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._now_us = now_us
        self._on_call = on_call
        self._on_end = on_end
        self._on_uncalled = on_uncalled
        self._on_fault = on_fault
        self.pid = process_id()
        """The process whose runs these are; a forked child of it has none."""
        self._live: set[ActiveRun[T]] = set()
        self._finished: deque[tuple[ActiveRun[T], BaseException | None]] = deque()
        self._waiting: Counter[ActiveRun[T]] = Counter()
        """Runs that are themselves inside `initialize` or `stop`; to wait for those is to wait for ever."""
        self._changed = Signal()

    def names(self) -> list[str]:
        """The tasks whose runs are in flight, in order."""
        return sorted(run.name for run in self._live)

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, run: ActiveRun[T]) -> None:
        """Have the callback of *run* called, soon."""
        self._live.add(run)
        # Not through create_task: a user's eager task factory would call the callback here and now.
        performing = self._perform(run)
        # Brought to its first wait by hand: a task that is cancelled before its first step never enters its
        # coroutine, and nobody would learn that it was not called.
        performing.send(None)
        run.task = asyncio.Task(performing, loop=asyncio.get_running_loop(), name=run.name)

    def time_out(self, run: ActiveRun[T]) -> None:
        """Cancel a run that took too long, unless its callback has just come to its end."""
        if not run.ended_us:
            run.is_timed_out = True
            self._cancel_callback(run)

    def cancel(self, name: str) -> bool:
        """Cancel the run of the task *name* whose callback has been called; whether there is one."""
        running = [run for run in self._live if run.name == name and run.called_us and not run.ended_us]
        for run in running:
            if not run.is_cancelled:  # a second wish must not cut short how the callback cleans up
                run.is_cancelled = True
                self._cancel_callback(run)
        return bool(running)

    def _cancel_callback(self, run: ActiveRun[T]) -> None:
        if run.task is not None:
            run.task.cancel(ENDED_EARLY)

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

    def _leave_wait(self, run: ActiveRun[T]) -> None:
        if self._waiting[run] <= 1:
            del self._waiting[run]
        else:
            self._waiting[run] -= 1

    async def wait_for_ends(self, *, but_waiting: bool) -> None:
        """Return when no run is in flight, or, with *but_waiting*, only such as wait for the scheduler."""
        while self._live - self._waiting.keys() if but_waiting else self._live:
            await self._changed.wait()

    def abandon(self, runs: Iterable[ActiveRun[T]]) -> None:
        """End these runs as a crash would, as far as that can be done here: they have no end.

        A run whose callback has returned or raised already keeps its end.
        """
        self._cut_off([run for run in runs if not run.ended_us])

    def _cut_off(self, runs: Iterable[ActiveRun[T]]) -> None:
        for run in runs:
            run.is_dropped = True
            self._live.discard(run)
            self._waiting.pop(run, None)
            if run.task is not None:
                cancel(run.task, CUT_OFF)
        self._changed.notify()

    async def drop(self) -> None:
        """End all runs as a crash would."""
        self._cut_off(list(self._live))
        # One that refuses to be cancelled is left behind, as nobody can kill it.
        for _ in range(_CYCLES_TO_DIE):
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)

    async def _perform(self, run: ActiveRun[T]) -> None:
        try:
            await _first_step()
        except asyncio.CancelledError:
            # By something that cancels every task it sees. A coroutine that has not begun would not notice.
            if run in self._live:
                self._forget(run)
                self._on_uncalled(run)
            raise
        end_if_forked(self.pid, run.name)
        # In the context of this task only: callbacks that run beside it have their own.
        current_run.set(run)
        error: BaseException | None = None
        try:
            run.called_us = self._now_us()
            if not self._on_call(run):
                self._forget(run)
                return
            run.result = await run.callback()
        except BaseException as raised:
            # SystemExit and KeyboardInterrupt too: one task's exit is not the program's.
            error = raised
        # A callback that forks comes back here twice. The child must not note an end that is the parent's.
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

    def _forget(self, run: ActiveRun[T]) -> None:
        """Let go of a run that was called off before its callback was called."""
        self._live.discard(run)
        self._changed.notify()

    def _settle(self) -> None:
        """Do what follows from the ends of runs, some at a time: in a burst the starts come first."""
        if len(self._finished) > _ENDS_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._settle)
        for _ in range(min(len(self._finished), _ENDS_AT_ONCE)):
            run, error = self._finished.popleft()
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
