"""The recorder: writes down what happens at the boundary of a scheduler, and nothing that it says of itself.

It stands around `initialize`, `stop` and every callback. What it writes is therefore what a user saw: when a
call was made and when it returned, when a callback was called and when it ended. It knows nothing of stores,
dues or causes. It must never harm what it watches: when it cannot write, it says so once and goes on.
"""

import asyncio
import functools
import inspect
import os
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from datetime import timedelta, tzinfo
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from msgspec.structs import replace

from duly.clock import Clock, Step, Watchable, watchable
from duly.events import described, tell_operator
from duly.instant import Instant, duration_us, instant_of, milliseconds
from duly.verify.monitor import Monitor
from duly.verify.origin import header_for, zone_of_host
from duly.verify.trace import (
    ClockStep,
    End,
    Event,
    Header,
    InitEnd,
    InitStart,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
    Tick,
)
from duly.verify.writer import Carried, TraceWriter

TraceListener = Callable[[Event], object]
_MICROSECOND = timedelta(microseconds=1)

TOOK_EFFECT = "the list has taken effect all the same"
FAILED = "the list has not taken effect"
STOPS_ALL_THE_SAME = "the scheduler is stopping all the same"
"""What our scheduler notes on the cancellation of a call that had begun."""


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
    *monitor* judges what happens while it happens; *listeners* get every event of the trace.
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
        self.recorded: Recorded | None = None

    def wrap(self, scheduler: S) -> S:
        """The scheduler to use from now on in place of *scheduler*: the same two methods, the same state."""
        if self.recorded is not None:
            raise RuntimeError("this recorder has a scheduler already; a trace tells of one only")
        clock = self._clock or getattr(scheduler, "_clock", None)
        zone = self._timezone or getattr(scheduler, "_zone", None) or zone_of_host()
        header = header_for(zone, self._store, self._persist_window_us, is_durable=self._sync)
        ledger = Ledger(
            self._proc,
            watchable(clock),
            header,
            monitor=self._monitor,
            listeners=self._listeners,
            tick_s=self._tick_s,
        )
        if self._path is not None:
            ledger.writer = TraceWriter(
                self._path, header, carried=ledger.carried, sync=self._sync, **self._rotation
            )
        self.recorded = Recorded(scheduler, ledger)
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


class Ledger:
    """Dates the events of one process and hands them on: to the file, the monitor, the listeners."""

    def __init__(
        self,
        proc: str,
        clock: Watchable,
        header: Header,
        *,
        monitor: Monitor | None,
        listeners: tuple[TraceListener, ...],
        tick_s: float | None,
    ) -> None:
        self._proc = proc
        self._clock = clock
        self.header = header
        self._tick_s = tick_s
        self.writer: TraceWriter | None = None
        self._monitor = monitor
        self._hearers: tuple[TraceListener, ...] = (*((monitor,) if monitor is not None else ()), *listeners)
        self._is_open = False
        self.last_us: Instant | None = None
        """The time of the latest event, of this process or an earlier one."""
        self._is_silent = False
        self._is_complained_of = False
        self._unwatch: Callable[[], None] | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self.regs: list[tuple[str, str, float]] | None = None
        """The list in effect while the scheduler is active."""
        self.running: dict[int, str] = {}
        self.calls: set[int] = set()

    def write(self, kind: type[Any], **facts: Any) -> None:
        """Record that something happened just now."""
        if not self._is_silent:
            now_us = instant_of(self._clock.now())
            self._check_order(now_us)
            self._hand_on(kind, now_us, facts)

    def watch(self) -> None:
        """Begin to notice steps of the clock, and to tick."""
        if self._unwatch is None:
            self._unwatch = self._clock.watch(self._on_step)
            self._tick_later()

    def unwatch(self) -> None:
        """Notice no more."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    def silence(self) -> None:
        """Record nothing any more, as a dead process would."""
        self.unwatch()
        self._is_silent = True

    def close(self) -> None:
        """Mark the end of the recording, and close the file."""
        self.write(End)
        self.silence()
        if self.writer is not None:
            self.writer.close()

    def carried(self) -> Carried | None:
        """What a new file has to begin with; None while a call is outstanding, or nothing is active."""
        if self.regs is None or self.calls or self.last_us is None:
            return None
        t = milliseconds(self.last_us)
        events = (
            InitStart(t=t, proc=self._proc, call=0, regs=self.regs),
            InitEnd(t=t, proc=self._proc, call=0, ok=True),
        )
        return Carried(events, [(task, run) for run, task in self.running.items()])

    def _on_step(self, step: Step) -> None:
        if not self._is_silent:
            before_us = max(step.before_us, self.last_us or step.before_us)
            self._hand_on(ClockStep, step.after_us, {"origin": milliseconds(before_us)})

    def _check_order(self, now_us: Instant) -> None:
        """Write down a step back that nobody told of, be it of a millisecond or during the night."""
        if self.last_us is not None and now_us < self.last_us:
            self._hand_on(ClockStep, now_us, {"origin": milliseconds(self.last_us)})

    def _hand_on(self, kind: type[Any], at_us: Instant, facts: dict[str, Any]) -> None:
        steady_ms = round(asyncio.get_running_loop().time() * 1000, 3)
        event = kind(t=milliseconds(at_us), proc=self._proc, m=steady_ms, **facts)
        self.last_us = at_us
        if self.writer is not None:
            self._file(event)
        for hear in self._hearers:
            try:
                hear(event)
            except Exception as error:
                tell_operator(f"duly: trace listener {hear!r} failed: {described(error)}")

    def _file(self, event: Event) -> None:
        assert self.writer is not None
        try:
            self.writer.write(event)
        except OSError as error:
            if not self._is_complained_of:
                tell_operator(
                    f"duly: the trace cannot be written and has a gap from here: {described(error)}"
                )
            self._is_complained_of = True
        else:
            self._is_complained_of = False

    def open(self) -> None:
        """Open the file before the first event, and go on from its last time."""
        if self._is_open:
            return
        self._is_open = True
        if self.writer is not None:
            self._open_file(self.writer)
        if self._monitor is not None:
            # What earlier processes left in the file is not known to a monitor that begins now.
            is_first = self.last_us is None
            self._monitor.begin(self.header if is_first else replace(self.header, store="unknown"))

    def _open_file(self, writer: TraceWriter) -> None:
        try:
            writer.open()
        except OSError as error:
            tell_operator(f"duly: the trace cannot be opened: {described(error)}")
            self._is_complained_of = True
        self.last_us = writer.last_us

    def _tick_later(self) -> None:
        if self._tick_s is not None:
            self._ticking = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self.write(Tick)
        self._tick_later()


class Recorded:
    """A scheduler with a recorder around it: the same two methods, the same state."""

    def __init__(self, scheduler: Schedules, ledger: Ledger) -> None:
        self._scheduler = scheduler
        self.ledger = ledger
        self._call_numbers = count(1)
        self._run_numbers = count(1)
        self._inits: set[int] = set()
        self._put_off: list[_PutOff] = []
        """Stops that returned while something ran: from inside a run, or given up. They end with the runs."""

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
        ledger, number = self.ledger, next(self._call_numbers)
        ledger.open()
        ledger.calls.add(number)
        self._inits.add(number)
        ledger.write(InitStart, call=number, regs=regs)
        ledger.watch()
        outcome: dict[str, bool] = {"ok": False}
        try:
            await call
            outcome["ok"] = True
        except asyncio.CancelledError as error:
            notes = getattr(error, "__notes__", ())
            outcome = {"ok": TOOK_EFFECT in notes, "void": TOOK_EFFECT not in notes and FAILED not in notes}
            raise
        except GeneratorExit:
            ledger.silence()
            raise
        finally:
            ledger.calls.discard(number)
            self._inits.discard(number)
            if not outcome.get("void"):
                ledger.regs = regs if outcome["ok"] else None
            if outcome["ok"]:
                self._void_given_up()
            ledger.write(InitEnd, call=number, **outcome)
            self._write_put_off()

    async def _stop(self, call: Awaitable[None]) -> None:
        number = next(self._call_numbers)
        self.ledger.open()
        self.ledger.calls.add(number)
        self.ledger.write(StopStart, call=number)
        regs, self.ledger.regs = self.ledger.regs, None
        outcome: dict[str, bool] = {"ok": False}
        inits, is_given_up = frozenset(self._inits), False
        try:
            await call
            outcome = {}
        except asyncio.CancelledError as error:
            is_given_up = True
            is_void = STOPS_ALL_THE_SAME not in getattr(error, "__notes__", ())
            outcome = {"void": True} if is_void else {}
            self.ledger.regs = regs if is_void else None
            raise
        except GeneratorExit:
            self.ledger.silence()
            raise
        finally:
            self.ledger.calls.discard(number)
            self._put_off.append(_PutOff(number, outcome, inits, is_given_up=is_given_up))
            self._write_put_off()

    def _recorded_item(self, item: Any) -> Any:
        """The registration with a recorder around its callback, if there is one that a scheduler takes."""
        if not isinstance(item, list | tuple) or len(item) != 4 or not _is_async(item[2]):
            return item
        name, cron, callback, delay = item
        return name, cron, self._recorded_callback(name, callback), delay

    def _recorded_callback(self, name: str, callback: Callable[[], Awaitable[object]]) -> Any:
        async def recorded() -> object:
            ledger, run = self.ledger, next(self._run_numbers)
            ledger.running[run] = name
            ledger.write(RunStart, id=name, run=run)
            ok = False
            try:
                result = await callback()
                ok = True
            except GeneratorExit:  # the interpreter is going: this is no end that anybody saw
                ledger.silence()
                raise
            finally:
                del ledger.running[run]
                ledger.write(RunEnd, id=name, run=run, ok=ok)
                self._write_put_off()
            return result

        return functools.update_wrapper(recorded, callback)

    def _void_given_up(self) -> None:
        """A list takes effect in place of the stops that were given up."""
        for stop in [stop for stop in self._put_off if stop.is_given_up]:
            self._put_off.remove(stop)
            self.ledger.write(StopEnd, call=stop.number, void=True)

    def _write_put_off(self) -> None:
        """Write the ends of the stops that are over."""
        put_off, self._put_off = self._put_off, []
        for stop in put_off:
            if "void" in stop.outcome or not (self.ledger.running or stop.inits & self._inits):
                self.ledger.write(StopEnd, call=stop.number, **stop.outcome)
            else:
                self._put_off.append(stop)
        if put_off and self.ledger.regs is None and not self.ledger.calls and not self._put_off:
            self.ledger.unwatch()


class _PutOff(NamedTuple):
    """A stop that returned, or was given up, and is over when nothing runs and *inits* have returned."""

    number: int
    outcome: dict[str, bool]
    inits: frozenset[int]
    is_given_up: bool


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
