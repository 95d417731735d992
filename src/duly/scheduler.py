"""The scheduler: `initialize` and `stop`, and nothing else (spec/scheduler.md 1 and 4).

This is the outermost shell. It checks arguments, serves lifecycle calls in order, opens and closes the store,
and hands everything else to the poller. It decides nothing about tasks.
"""

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta, tzinfo
from enum import StrEnum
from typing import Any, NoReturn

import tzlocal

from duly.background import RESTART_PAUSE_S, at_loop_shutdown, cancel, retrieve_outcome
from duly.clock import Clock, watchable
from duly.cluster.clock import DatabaseClock
from duly.cluster.store import ClusterStore
from duly.cluster.tasks import place_of, task_backend_of
from duly.core.reconciliation import Reconciliation
from duly.core.registration import Registration, validated
from duly.core.task import Task
from duly.engine.calls import Owner, Turns
from duly.engine.limits import RunLimits
from duly.engine.task_backend import TaskWatcher
from duly.engine.tasks import emit_outcome
from duly.errors import ListRefusedError, ScheduleTaskError, StopSchedulerError, StoreInUseError
from duly.events import FAILED, STOPS_ALL_THE_SAME, TOOK_EFFECT, Announcer, Listener, described
from duly.forks import end_if_forked, process_id
from duly.instant import duration_us
from duly.marks import mark
from duly.store import Store
from duly.threads import outlasting_cancellation

TaskTuple = tuple[str, str, Callable[[], Awaitable[object]], timedelta]
"""A registration: name, cron text, async callback, retry delay. A list is taken too, but has no types."""

_CLEAR = (StoreInUseError, ScheduleTaskError, ListRefusedError)
"""Errors of `initialize` that are raised as they are."""
_RELEASE_S = 5.0
"""How long the shutdown of an event loop waits for the store: a disk that never answers must not stop it."""


class SchedulerState(StrEnum):
    """Where a scheduler is in its life."""

    UNINITIALIZED = "Uninitialized"
    INITIALIZING = "Initializing"
    RUNNING = "Running"
    REINITIALIZING = "Reinitializing"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


class Scheduler:
    """Runs registered tasks when they are due, once, and remembers.

    *store* is a path, ":memory:", or a Store. *timezone* is the zone whose civil time the cron expressions
    mean; the host's by default. *listeners* are called with every event. *max_concurrent_runs* delays starts
    beyond the limit; *run_timeout* cancels longer runs, which then count as failed.
    """

    def __init__(
        self,
        store: "str | os.PathLike[str] | Store | ClusterStore",
        *,
        clock: Clock | None = None,
        timezone: tzinfo | None = None,
        listeners: Iterable[Listener] = (),
        max_concurrent_runs: int | None = None,
        run_timeout: timedelta | None = None,
    ) -> None:
        place = place_of(store)
        self._zone = _checked_zone(timezone)
        self._clock = watched = (
            DatabaseClock() if clock is None and isinstance(place, ClusterStore) else watchable(clock)
        )
        checked = _checked_listeners(listeners)
        self._announcer = Announcer(checked, watched.now)
        self._announce = self._announcer.announce
        limits = RunLimits(_checked_limit(max_concurrent_runs), _checked_timeout_us(run_timeout))
        self._backend = task_backend_of(place, watched, self._announcer, limits)
        self._poller = self._backend.poller
        objects: list[object] = [*checked]
        for watcher in objects:
            if isinstance(watcher, TaskWatcher):
                watcher.watch_tasks(self._backend.known)
        self._state = SchedulerState.UNINITIALIZED
        self._owner = Owner(self._is_at_rest)
        self._is_orphaned = False
        """The loop on which it was initialized was closed without a stop, and nothing was released yet."""
        self._forget_shutdown: Callable[[], None] | None = None
        self._turns = Turns()
        self._stops_requested = 0
        self._is_stop_served = False
        self._letting_go: asyncio.Task[None] | None = None
        self._runs_ended: asyncio.Task[None] | None = None
        self._initializing: asyncio.Task[None] | None = None
        self._stop_for_inside: asyncio.Task[None] | None = None
        self._is_stopping_inside = False
        """A callback has called `stop`, and that is not over yet."""

    @property
    def state(self) -> SchedulerState:
        """Where the scheduler is in its life. Raises ForkedSchedulerError."""
        self._owner.check_process()
        return self._state

    def initialize(self, registrations: Sequence[TaskTuple]) -> Coroutine[Any, Any, None]:
        """Make *registrations* the tasks of this scheduler; the answer must be awaited.

        Each is (name, cron text, async callback, retry delay as a timedelta). A bad argument raises here and
        now. Raises ForkedSchedulerError, and when awaited ForeignEventLoopError.
        """
        self._owner.check_process()
        return self._initialize(validated(registrations), self._turns.number())

    def _bring(self, registrations: list[Registration]) -> Coroutine[Any, Any, None]:
        """Like `initialize`, for registrations that are checked already (`duly.App`)."""
        self._owner.check_process()
        return self._initialize(registrations, self._turns.number())

    def stop(self) -> Coroutine[Any, Any, None]:
        """Start no more runs, wait for those in flight, record their results, let go of everything.

        From inside a callback it returns when all other runs have ended; the rest happens when the callback
        has returned too. Raises ForkedSchedulerError, and when awaited ForeignEventLoopError.
        """
        self._owner.check_process()
        return self._stop(self._turns.number())

    # --- who may call ---

    @contextmanager
    def _one_call(self) -> Iterator[None]:
        """Let one call do its work. Raises ForkedSchedulerError or ForeignEventLoopError."""
        with self._owner.call() as was_orphaned:
            if was_orphaned:
                # A call that waited on the closed loop, for a turn or for a release, waits for ever.
                self._is_orphaned = True
                self._turns = Turns()
                self._stops_requested, self._is_stop_served, self._is_stopping_inside = 0, False, False
                self._poller.forget_holds()
            self._announcer.pid = process_id()
            yield

    def _check_owner(self) -> None:
        """Raise what a call from here would raise, for a recorder that would write down the call."""
        self._owner.check_process()
        self._owner.check_loop()

    def _is_at_rest(self) -> bool:
        """Whether nothing of it is tied to an event loop."""
        return (
            self._state in {SchedulerState.UNINITIALIZED, SchedulerState.STOPPED}
            and not len(self._poller.runs)
            and not self._is_stopping_inside
            and all(task is None or task.done() for task in (self._letting_go, self._runs_ended))
        )

    async def _on_loop_shutdown(self) -> None:
        self._forget_shutdown = None
        end_if_forked(self._owner.pid, "duly scheduler")
        with suppress(TimeoutError):
            # A store that hangs must not keep the loop from closing.
            async with asyncio.timeout(_RELEASE_S):
                await self._abort()

    async def _abort(self) -> None:
        """Release everything as a crash would: the loop is shut down, and nobody has called `stop`."""
        self._is_orphaned = False
        if not self._is_at_rest():
            try:
                await self._drop()
            finally:
                self._state = SchedulerState.STOPPED
                self._announce("SchedulerAborted", reason="its event loop was shut down without stop()")

    # --- initialize ---

    async def _initialize(self, registrations: list[Registration], number: int) -> None:
        with self._one_call():
            if self._is_stop_wanted():
                self._check_outside(registrations)
            # If this call is a run's: a shutdown must not wait for that run, which waits for it.
            leave = self._poller.runs.enter_wait()
            try:
                async with self._turns.of(number, lambda: self._check_not_awaited(registrations)):
                    await self._initialize_in_turn(registrations)
            finally:
                leave()

    async def _initialize_in_turn(self, registrations: list[Registration]) -> None:
        self._poller.hold()
        try:
            # A list that has begun to take effect does so whole, even if the call is cancelled.
            self._initializing = asyncio.ensure_future(self._initialize_now(registrations))
            await outlasting_cancellation(self._initializing)
        except asyncio.CancelledError as cancelled:
            # For the caller who gave it up, and for a recorder: what became of the list.
            cancelled.add_note(_what_became_of(self._initializing))
            raise
        finally:
            # Two turns of the loop later: the caller, who awaits this call or a task of it, goes on before
            # the first callback is called.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._poller.release)

    def _check_not_awaited(self, registrations: list[Registration]) -> None:
        if self._is_stop_served:
            self._check_outside(registrations)

    def _check_outside(self, registrations: list[Registration]) -> None:
        if self._poller.runs.is_inside():
            # The stop waits for the calling run, which would wait for the stop.
            error = RuntimeError("initialize() was called by a run that a stop() is waiting for")
            self._fail(error, registrations)

    async def _initialize_now(self, registrations: list[Registration]) -> None:
        if self._is_orphaned:
            await self._abort()
        if self._state is SchedulerState.STOPPING:  # by a stop that was cancelled half-way
            await self._shut_down_quietly()
        if self._runs_ended is not None:  # by a failed initialize, which nobody waited for
            # Cancelled so that letting go need not wait for the runs: the new list takes them over.
            self._runs_ended.cancel()
            await self._let_go_of_it()
        if self._state is SchedulerState.RUNNING:
            await self._reinitialize(registrations)
        else:
            await self._initialize_first(registrations)

    async def _initialize_first(self, registrations: list[Registration]) -> None:
        self._state = SchedulerState.INITIALIZING
        self._announce("SchedulerInitializationStarted", totalRegistrations=len(registrations))
        try:
            outcome = await self._backend.begin(registrations, self._zone or tzlocal.get_localzone())
        except BaseException as error:
            self._state = SchedulerState.UNINITIALIZED
            self._fail(error, registrations)
        # One hook at a time: an earlier life on this loop may have left its own.
        self._ignore_shutdown()
        self._forget_shutdown = at_loop_shutdown(self._on_loop_shutdown)
        await self._go(outcome, scheduled=outcome.tasks)

    async def _reinitialize(self, registrations: list[Registration]) -> None:
        self._state = SchedulerState.REINITIALIZING
        self._announce("SchedulerReinitializationStarted")
        try:
            outcome = await self._backend.change(registrations)
        except BaseException as error:
            mark("reinitialize failed")
            self._shut_down_in_time()
            self._state = SchedulerState.UNINITIALIZED
            self._fail(error, registrations)
        await self._go(outcome, scheduled=[*outcome.added, *(change.after for change in outcome.overridden)])

    async def _go(self, outcome: Reconciliation, *, scheduled: Collection[Task]) -> None:
        await emit_outcome(self._announcer, outcome, scheduled, self._backend.zone)
        self._state = SchedulerState.RUNNING
        # A stop that was called meanwhile waits for its turn, and nothing may start from that call on.
        self._poller.is_closed = self._is_stop_wanted()
        if self._backend.count:
            self._poller.begin()
        else:
            await self._poller.end()

    def _fail(self, error: BaseException, registrations: list[Registration]) -> NoReturn:
        """Emit *error* and raise it, as a ScheduleTaskError unless it is clear as it is."""
        self._announce("SchedulerInitializationFailed", error=described(error))
        if isinstance(error, _CLEAR) or not isinstance(error, Exception):
            raise error
        name, cron = (registrations[0].name, registrations[0].expression.text) if registrations else ("", "")
        raise ScheduleTaskError(name=name, cron_expression=cron, cause=error) from error

    # --- stop ---

    async def _stop(self, number: int) -> None:
        with self._one_call():
            await self._stop_here(number)

    async def _stop_here(self, number: int) -> None:
        if self._poller.runs.is_inside():
            with _noting_cancellation(STOPS_ALL_THE_SAME):
                await self._stop_from_inside()
            return
        self._stops_requested += 1
        # At the call, not at its turn: nothing starts after a stop was requested (S1a, spec/model.md 5).
        self._poller.is_closed = True
        try:
            async with self._turns.of(number):
                self._is_stop_served = True
                try:
                    with _noting_cancellation(STOPS_ALL_THE_SAME):
                        await self._stop_in_turn()
                finally:
                    self._is_stop_served = False
        finally:
            self._stops_requested -= 1
            if not self._is_stop_wanted() and self._state is SchedulerState.RUNNING:
                self._poller.reopen()  # this stop was cancelled before its turn came

    async def _stop_from_inside(self) -> None:
        """Stop in the background, since the calling run cannot wait for its own end; wait for the others."""
        mark("stop from inside")
        self._poller.is_closed = True
        if not self._is_stopping_inside:
            self._is_stopping_inside = True
            self._begin_stop_for_inside()
        leave = self._poller.runs.enter_wait()
        try:
            await self._poller.runs.wait_for_ends(but_waiting=True)
        finally:
            leave()

    def _is_stop_wanted(self) -> bool:
        return self._stops_requested > 0 or self._is_stopping_inside

    def _begin_stop_for_inside(self) -> None:
        if not self._is_stopping_inside:
            return  # dropped before it could be begun again
        outside = contextvars.Context()
        self._stop_for_inside = asyncio.get_running_loop().create_task(self.stop(), context=outside)
        self._stop_for_inside.add_done_callback(self._on_stopped_for_inside)

    def _on_stopped_for_inside(self, stopping: asyncio.Task[None]) -> None:
        if stopping is not self._stop_for_inside:
            return
        if stopping.cancelled():
            # Nobody waits for it who could call it again.
            stopping.get_loop().call_later(RESTART_PAUSE_S, self._begin_stop_for_inside)
        else:
            self._is_stopping_inside = False
            retrieve_outcome(stopping)  # a fault of the store was announced as an event

    async def _stop_in_turn(self) -> None:
        if self._is_orphaned:
            await self._abort()
        await self._let_go_of_it()
        if self._state in {SchedulerState.UNINITIALIZED, SchedulerState.STOPPED}:
            # An initialize that failed may have left runs in flight, and so may a second one after it.
            await self._poller.runs.wait_for_ends(but_waiting=False)
            return
        if self._state is not SchedulerState.STOPPING:
            self._state = SchedulerState.STOPPING
            self._announce("SchedulerStopRequested")
        try:
            await self._shut_down(but_waiting=False)
        except Exception as error:
            mark("stop failed")
            self._state = SchedulerState.STOPPED
            self._ignore_shutdown()
            raise StopSchedulerError(error) from error
        self._ignore_shutdown()
        self._state = SchedulerState.STOPPED
        self._announce("SchedulerStopped")

    async def _shut_down(self, *, but_waiting: bool) -> None:
        """Wait for the runs in flight, write what they left, let go of the store."""
        self._poller.is_closed = True
        # The runs first: their ends are to be written before the store is let go.
        await self._poller.runs.wait_for_ends(but_waiting=but_waiting)
        # A caller who gives up waiting does not undo it: the next stop or initialize waits for the same.
        if self._letting_go is None:
            self._letting_go = asyncio.ensure_future(self._backend.end())
            self._letting_go.add_done_callback(retrieve_outcome)
        letting_go = self._letting_go
        await _wait_for_end(letting_go)
        self._letting_go = None
        if letting_go.cancelled():  # by something that cancels every task it sees
            await self._shut_down(but_waiting=but_waiting)
        else:
            letting_go.result()

    def _shut_down_in_time(self) -> None:
        """Shut down when the runs in flight have ended, or a new list comes; nobody waits for it now."""
        self._poller.is_closed = True
        self._runs_ended = asyncio.ensure_future(self._poller.runs.wait_for_ends(but_waiting=False))
        self._letting_go = asyncio.ensure_future(self._let_go_after(self._runs_ended))

    async def _let_go_after(self, runs_ended: asyncio.Task[None]) -> None:
        await asyncio.wait([runs_ended])
        try:
            await self._backend.end()
        except Exception as error:
            self._announce("StoreFault", error=described(error))

    async def _let_go_of_it(self) -> None:
        """Wait until what `_shut_down_in_time` began is done."""
        while self._runs_ended is not None and self._letting_go is not None:
            letting_go = self._letting_go
            await _wait_for_end(letting_go)
            self._runs_ended = self._letting_go = None
            if letting_go.cancelled():  # by something that cancels every task it sees
                self._shut_down_in_time()

    async def _shut_down_quietly(self) -> None:
        """Shut down after a failure that is being raised; a second fault is emitted, not raised over it."""
        try:
            await self._shut_down(but_waiting=True)
        except Exception as error:
            self._announce("StoreFault", error=described(error))

    async def _drop(self) -> None:
        """Let go of everything as a crash would (`duly.testing.crash`)."""
        # Pending calls end before the backend drops: one that goes on would open the store again.
        calls = self._initializing, self._runs_ended, self._letting_go, self._stop_for_inside
        self._runs_ended = self._letting_go = self._stop_for_inside = None
        self._is_stopping_inside = False
        for call in calls:
            # A crash may be called from within one of them, which must get to its end.
            if call is not None and call is not asyncio.current_task():
                cancel(call)
        self._ignore_shutdown()
        self._state = SchedulerState.UNINITIALIZED
        await self._backend.drop()

    def _ignore_shutdown(self) -> None:
        if self._forget_shutdown is not None:
            self._forget_shutdown()
            self._forget_shutdown = None


@contextmanager
def _noting_cancellation(note: str) -> Iterator[None]:
    """Note on a cancellation what becomes of the call, for the caller who gave it up and for a recorder."""
    try:
        yield
    except asyncio.CancelledError as cancelled:
        cancelled.add_note(note)
        raise


def _what_became_of(initializing: asyncio.Task[None] | None) -> str:
    if initializing is None or initializing.cancelled() or initializing.exception() is not None:
        return FAILED
    return TOOK_EFFECT


async def _wait_for_end(task: asyncio.Task[None]) -> None:
    """Wait for *task*, whatever it ends with; it may be one of a loop that is closed by now."""
    if not task.done():
        await asyncio.wait([task])


def _checked_zone(zone: Any) -> tzinfo | None:
    if zone is not None and not isinstance(zone, tzinfo):
        raise TypeError(
            f"timezone must be a tzinfo such as ZoneInfo('Europe/Berlin'), not {type(zone).__name__}"
        )
    if hasattr(zone, "localize"):
        raise TypeError(f"pytz zones cannot be used; write ZoneInfo({str(zone)!r}) instead")
    return zone


def _checked_listeners(listeners: Iterable[Listener]) -> list[Listener]:
    checked = list(listeners)
    for listener in checked:
        if not callable(listener):
            raise TypeError(f"a listener must be callable, not {type(listener).__name__}")
    return checked


def _checked_limit(limit: Any) -> int | None:
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ValueError(f"max_concurrent_runs must be a whole number of at least 1, or None, not {limit!r}")
    return limit


def _checked_timeout_us(timeout: Any) -> int | None:
    if timeout is None:
        return None
    if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
        raise ValueError(f"run_timeout must be a timedelta above zero, or None, not {timeout!r}")
    return duration_us(timeout)
