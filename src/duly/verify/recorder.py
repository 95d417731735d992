"""The recorder: writes down what happens at the boundary of a scheduler, and nothing that it says of itself.

It stands around `initialize`, `stop` and every callback. What it writes is therefore what a user saw: when a
call was made and when it returned, when a callback was called and when it ended. It knows nothing of stores,
dues or causes. It must never harm what it watches: when it cannot write, it says so once and goes on. Nor can
a callback harm it: whatever a callback raises is the end of that run and of nothing else.
"""

import asyncio
import functools
import inspect
import os
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextvars import ContextVar
from datetime import timedelta, tzinfo
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from duly.clock import Clock, watchable
from duly.events import CUT_OFF, FAILED, STOPS_ALL_THE_SAME, TOOK_EFFECT, Announcer
from duly.instant import duration_us, milliseconds
from duly.verify.ledger import Ledger, TraceListener
from duly.verify.membership import HEARD, Announces, Holdings, Membership
from duly.verify.monitor import Monitor
from duly.verify.origin import header_for, zone_of_host
from duly.verify.trace import (
    Header,
    InitEnd,
    InitStart,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
)
from duly.verify.writer import TraceWriter

_MICROSECOND = timedelta(microseconds=1)


class Schedules(Protocol):
    """What can be recorded: something with the two methods of a scheduler."""

    def initialize(self, registrations: Sequence[Sequence[Any]], /) -> Awaitable[None]:
        """Make these the tasks."""
        ...

    def stop(self) -> Awaitable[None]:
        """Start no more runs and wait for those in flight."""
        ...


S = TypeVar("S", bound=Schedules)


class Recorder:
    """Records one scheduler into a trace file, or with *path* None only for its listeners.

    *clock* and *timezone* are those of the scheduler; ours is asked for them. *store* is "fresh" if the
    scheduler's store is known to hold no tasks when the trace begins. *persist_window* is how long the end of
    a run may take to be on disk. A *tick* is written at such intervals, so that a silence can be dated.
    *monitor* judges what happens while it happens; *listeners* get every event of the trace. A member of a
    cluster is asked for its *membership*; it must announce what it takes and loses.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        timezone: tzinfo | None = None,
        store: str = "unknown",
        persist_window: timedelta = timedelta(seconds=1),
        tick: timedelta | None = timedelta(minutes=1),
        monitor: Monitor | None = None,
        listeners: Iterable[TraceListener] = (),
        rotate_bytes: int = 64 << 20,
        keep: int = 9,
        sync: bool = False,
        proc: str | None = None,
        membership: Membership | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._timezone = timezone
        self._store = store
        self._persist_window_us = duration_us(persist_window)
        self._tick_s = tick.total_seconds() if tick is not None else None
        self._monitor = monitor
        self._listeners = tuple(listeners)
        self._rotation = {"rotate_bytes": rotate_bytes, "keep": keep}
        self._sync = sync
        self._proc = proc or uuid.uuid4().hex[:8]  # noqa: TID251 (which process this is)
        self._membership = membership
        self.recorded: Recorded | None = None

    def wrap(self, scheduler: S) -> S:
        """The scheduler to use from now on in place of *scheduler*: the same two methods, the same state."""
        if self.recorded is not None:
            raise RuntimeError("this recorder has a scheduler already; a trace tells of one only")
        clock = self._clock or getattr(scheduler, "_clock", None)
        zone = self._timezone or getattr(scheduler, "_zone", None) or zone_of_host()
        header = header_for(zone, self._store, self._persist_window_us, is_durable=self._sync)
        member = self._membership or getattr(getattr(scheduler, "_custody", None), "membership", None)
        if member is not None:
            header.member, header.shards = member.name, member.shards
            header.failover_ms = milliseconds(member.failover_us)
            header.tick_ms = (self._tick_s or 0) * 1000
        watched = watchable(clock)
        ledger = Ledger(
            self._proc,
            watched,
            header,
            monitor=self._monitor,
            listeners=self._listeners,
            tick_s=self._tick_s,
            emit=_announcer_of(scheduler, watched).announce,
        )
        if self._path is not None:
            ledger.writer = TraceWriter(
                self._path, header, carried=ledger.carried, sync=self._sync, **self._rotation
            )
        self.recorded = Recorded(scheduler, ledger)
        if member is not None:
            holdings = self.recorded.holdings = Holdings(ledger, member.shards)
            cast("Announces", getattr(scheduler, "_announcer", None)).listen(holdings, HEARD)
        return cast("S", self.recorded)

    def close(self) -> None:
        """End the recording. The scheduler is not touched."""
        if self.recorded is not None:
            self.recorded.ledger.close()

    def abandon(self) -> None:
        """Record nothing any more, as if the process had died here (`duly.testing.crash`)."""
        if self.recorded is not None:
            self.recorded.ledger.silence()

    @property
    def header(self) -> Header:
        """The header of the trace, once a scheduler is wrapped."""
        assert self.recorded is not None, "wrap a scheduler first"
        return self.recorded.ledger.header


class Recorded:
    """A scheduler with a recorder around it: the same two methods, the same state."""

    def __init__(self, scheduler: Schedules, ledger: Ledger) -> None:
        self._scheduler = scheduler
        self.ledger = ledger
        self.holdings: Holdings | None = None
        """What it holds, if it is a member of a cluster."""
        self._call_numbers = count(1)
        self._run_numbers = count(1)
        self._inits: set[int] = set()
        self._put_off: list[_PutOff] = []
        """Stops that go on although their caller has gone on, too."""
        self._inside: ContextVar[int | None] = ContextVar("duly_recorded_run", default=None)

    @property
    def state(self) -> Any:
        """Where the scheduler is in its life."""
        return getattr(self._scheduler, "state", None)

    def initialize(self, registrations: Sequence[Sequence[Any]]) -> Coroutine[Any, Any, None]:
        """As the scheduler's own. A bad argument raises here and leaves no trace."""
        recorded = registrations
        if isinstance(registrations, list | tuple):
            recorded = [self._recorded_item(item) for item in registrations]
        call = self._scheduler.initialize(recorded)
        return _Call(self._initialize(call, _regs(registrations)), call)

    def stop(self) -> Coroutine[Any, Any, None]:
        """As the scheduler's own."""
        call = self._scheduler.stop()
        return _Call(self._stop(call), call)

    async def _drop(self) -> None:
        """Be dropped as by a crash (`duly.testing.crash`), and record nothing of it."""
        self.ledger.silence()
        await cast("Any", self._scheduler)._drop()  # noqa: SLF001 (for the one friend a scheduler has)

    async def _initialize(self, call: Awaitable[None], regs: list[tuple[str, str, float]]) -> None:
        self._check_owner(call)
        ledger, number = self.ledger, next(self._call_numbers)
        ledger.open()
        ledger.write(InitStart, call=number, regs=regs)
        if self.holdings is not None:
            self.holdings.brought[number] = regs
        ledger.calls.add(number)
        self._inits.add(number)
        ledger.watch()
        outcome: dict[str, bool] = {"ok": False}
        try:
            await _Watched(call, self._on_call_closed)
            outcome["ok"] = True
        except asyncio.CancelledError as error:
            notes = getattr(error, "__notes__", ())
            outcome = {"ok": TOOK_EFFECT in notes, "void": TOOK_EFFECT not in notes and FAILED not in notes}
            raise
        finally:
            if outcome["ok"]:
                self._void_given_up()
            ledger.write(InitEnd, call=number, **outcome)
            ledger.calls.discard(number)
            if self.holdings is not None:
                self.holdings.settle(number, ok=outcome["ok"])
            self._inits.discard(number)
            if not outcome.get("void"):
                ledger.regs = regs if outcome["ok"] else None
            self._write_put_off()

    async def _stop(self, call: Awaitable[None]) -> None:
        self._check_owner(call)
        ledger, number = self.ledger, next(self._call_numbers)
        ledger.open()
        ledger.write(StopStart, call=number)
        ledger.calls.add(number)
        regs, ledger.regs = ledger.regs, None
        inits, outcome = frozenset(self._inits), {"ok": False}
        try:
            await _Watched(call, self._on_call_closed)
            outcome = {}
        except asyncio.CancelledError as error:
            if STOPS_ALL_THE_SAME in getattr(error, "__notes__", ()):
                self._put_off.append(_PutOff(number, inits, is_given_up=True))
                self._write_put_off()
            else:
                ledger.regs = regs
                self._end_stop(number, {"void": True})
            raise
        except BaseException:
            self._end_stop(number, outcome)
            raise
        if self._inside.get() in ledger.running:
            self._put_off_inside(number, inits)
        else:
            self._end_stop(number, outcome)

    def _check_owner(self, call: Awaitable[None]) -> None:
        """Raise what a call from another loop or process raises, before anything is written of it."""
        check = getattr(self._scheduler, "_check_owner", None)
        try:
            if check is not None:
                check()
        except BaseException:
            if isinstance(call, Coroutine):
                call.close()
            raise

    def _end_stop(self, number: int, outcome: dict[str, bool], *, is_over: bool = True) -> None:
        """A stop has ended; unless it *is_over*, its scheduler still watches the clock, and so must we."""
        self.ledger.write(StopEnd, call=number, **outcome)
        self.ledger.calls.discard(number)
        if is_over and self.ledger.regs is None and not self.ledger.calls and not self.ledger.running:
            self.ledger.rest()

    def _put_off_inside(self, number: int, inits: frozenset[int]) -> None:
        """A stop from inside a run goes on in the background, and is over when that says so."""
        background = getattr(self._scheduler, "_stop_for_inside", None)
        if isinstance(background, asyncio.Task):
            background.add_done_callback(lambda task: self._end_stop(number, _outcome(task)))
        else:
            self._put_off.append(_PutOff(number, inits, is_given_up=False))

    def _recorded_item(self, item: Any) -> Any:
        """The registration with a recorder around its callback, if there is one that a scheduler takes."""
        if not isinstance(item, list | tuple) or len(item) != 4 or not _is_async(item[2]):
            return item
        name, cron, callback, delay = item
        return name, cron, self._recorded_callback(name, callback), delay

    def _recorded_callback(self, name: str, callback: Callable[[], Awaitable[object]]) -> Any:
        async def recorded() -> object:
            ledger, run = self.ledger, next(self._run_numbers)
            self._inside.set(run)
            place = self.holdings.place_of(name) if self.holdings is not None else {}
            ledger.write(RunStart, id=name, run=run, **place)
            ledger.running[run] = name
            ok = False
            try:
                result = await _Watched(callback(), self._on_run_closed)
                ok = True
            except asyncio.CancelledError as error:
                if self.holdings is not None and error.args == (CUT_OFF,):
                    self.holdings.note_cut(place)
                raise
            finally:
                ledger.write(RunEnd, id=name, run=run, ok=ok, **place)
                del ledger.running[run]
                self._write_put_off()
            return result

        return functools.update_wrapper(recorded, callback)

    def _on_run_closed(self, loop: asyncio.AbstractEventLoop) -> None:
        """A run was closed from outside: it has failed, unless its whole loop is gone."""
        if not _is_current(loop):
            self.ledger.silence()  # as a dead process would: this is no end that anybody saw

    def _on_call_closed(self, loop: asyncio.AbstractEventLoop) -> None:
        """A call was closed from outside: what became of its list, or of its stop, nobody can know."""
        if _is_current(loop):
            self.ledger.fail("a call of initialize() or stop() was closed before it returned")
        else:
            self.ledger.silence()

    def _void_given_up(self) -> None:
        """A list takes effect in place of the stops that were given up."""
        for stop in [stop for stop in self._put_off if stop.is_given_up]:
            self._put_off.remove(stop)
            self._end_stop(stop.number, {"void": True})

    def _write_put_off(self) -> None:
        """Write the ends of the stops that are over by now."""
        if self._put_off and not self.ledger.running:
            for stop in [stop for stop in self._put_off if not stop.inits & self._inits]:
                self._put_off.remove(stop)
                self._end_stop(stop.number, {}, is_over=not stop.is_given_up)


class _PutOff(NamedTuple):
    """A stop that goes on although its caller does not wait; over when nothing runs and *inits* returned."""

    number: int
    inits: frozenset[int]
    is_given_up: bool


def _outcome(stopping: asyncio.Task[Any]) -> dict[str, bool]:
    return {} if not stopping.cancelled() and stopping.exception() is None else {"ok": False}


class _Watched(Awaitable[Any]):
    """Awaits something, and calls *on_close* first if the waiting is closed from outside.

    A coroutine that is closed raises GeneratorExit. So may anything that is awaited, of its own accord. Only
    here, between the two, can they be told apart: closing calls `close`, and raising does not.
    """

    def __init__(
        self, awaited: Awaitable[Any], on_close: Callable[[asyncio.AbstractEventLoop], None]
    ) -> None:
        self._steps = _result_of(awaited).__await__()
        self._loop = asyncio.get_running_loop()
        self._on_close = on_close

    def __await__(self) -> Generator[Any, Any, Any]:
        return cast("Generator[Any, Any, Any]", self)

    def __iter__(self) -> "_Watched":
        return self

    def __next__(self) -> Any:
        return next(self._steps)

    def send(self, value: Any) -> Any:
        """As a coroutine does."""
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        """As a coroutine does."""
        return self._steps.throw(*error)

    def close(self) -> None:
        """As a coroutine does."""
        self._on_close(self._loop)
        self._steps.close()


def _is_current(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is done by something that *loop* runs. If not, the loop is gone, or about to go."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _result_of(awaited: Awaitable[Any]) -> Any:
    return await awaited


class _Call(Coroutine[Any, Any, None]):
    """A recorded call of which nobody need hear again: closing it closes the call inside, too."""

    def __init__(self, recorded: Coroutine[Any, Any, None], call: Awaitable[None]) -> None:
        self._recorded = recorded
        self._call = call

    def __await__(self) -> Generator[Any, None, None]:
        return self._recorded.__await__()

    def send(self, value: Any) -> Any:
        """As a coroutine does."""
        return self._recorded.send(value)

    def throw(self, *error: Any) -> Any:
        """As a coroutine does."""
        return self._recorded.throw(*error)

    def close(self) -> None:
        """As a coroutine does."""
        self._recorded.close()
        if isinstance(self._call, Coroutine):
            self._call.close()


def _announcer_of(scheduler: object, clock: Clock) -> Announcer:
    """The announcer of a scheduler of ours; for others one that tells the log only."""
    announcer = getattr(scheduler, "_announcer", None)
    return announcer if isinstance(announcer, Announcer) else Announcer((), clock.now)


def _is_async(callback: object) -> bool:
    """Whether calling *callback* gives something to await; if not, the scheduler shall say so itself."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    return not isinstance(callback, type) and (
        inspect.iscoroutinefunction(callback)
        or inspect.iscoroutinefunction(getattr(callback, "__call__", None))  # noqa: B004
        or type(getattr(callback, "_is_coroutine", None)) is object
    )


def _regs(registrations: Sequence[Sequence[Any]]) -> list[tuple[str, str, float]]:
    return [
        (str(name), str(cron), milliseconds(delay // _MICROSECOND)) for name, cron, _, delay in registrations
    ]
