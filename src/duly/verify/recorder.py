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
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta, tzinfo
from itertools import count
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import tzlocal

from duly.clock import Clock, watchable
from duly.events import FAILED, STOPS_ALL_THE_SAME, TOOK_EFFECT, Announcer, Event
from duly.instant import duration_us, milliseconds
from duly.verify import trace
from duly.verify.emitter import LISTENED, NodeListener, NodeName, TraceEmitter, TraceListener
from duly.verify.monitor import Monitor
from duly.verify.timers import CHANGES, TimerMonitor, ZonedTimer
from duly.verify.trace import Header, StoreKnown
from duly.verify.worlds import DEFAULT
from duly.verify.writer import Carried, TraceWriter, header_for, zone_name

_MICROSECOND = timedelta(microseconds=1)


S = TypeVar("S")
R = TypeVar("R", bound="Recorded")


class Recorder:
    """Records one scheduler into a trace file, or with *path* None only for its listeners.

    *clock* and *timezone* are those of the scheduler; ours is asked for them. *store* is "fresh" if the
    scheduler's store is known to hold no tasks when the trace begins. *persist_window* is how long the end of
    a run may take to be on disk. A *tick* is written at such intervals, so that a silence can be dated.
    *monitor* judges what happens while it happens; *listeners* get every event of the trace. *node* is for a
    node of a cluster; the scheduler is asked for it if it is one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        clock: Clock | None = None,
        timezone: tzinfo | None = None,
        store: StoreKnown = "unknown",
        persist_window: timedelta = timedelta(seconds=1),
        tick: timedelta | None = timedelta(minutes=1),
        monitor: Monitor | None = None,
        listeners: Iterable[TraceListener] = (),
        rotate_bytes: int = 64 << 20,
        keep: int = 9,
        sync: bool = False,
        proc: str | None = None,
        node: NodeName | None = None,
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
        self._node = node
        self.recorded: Recorded | None = None

    def wrap(self, scheduler: S) -> S:
        """The scheduler to use from now on in place of *scheduler*: the same two methods, the same state.

        An App stays what it is: its lists and its controls are recorded, too.
        """
        app: Any = scheduler
        if getattr(app, "_declarations", None) is None:
            return cast("S", self._around(app, Recorded))
        app._scheduler = recorded = self._around(app._scheduler, RecordedApp)  # noqa: SLF001 (made for each other)
        app._backend = RecordedControls(app._backend, recorded)  # noqa: SLF001
        app._backend.allow(app._declarations.kinds, app._declarations.limits)  # noqa: SLF001
        return scheduler

    def _around(self, scheduler: Any, kind: "type[R]") -> "R":
        if self.recorded is not None:
            raise RuntimeError("this recorder has a scheduler already; a trace is of one only")
        clock = self._clock or getattr(scheduler, "_clock", None)
        zone = self._timezone or getattr(scheduler, "_zone", None) or tzlocal.get_localzone()
        header = header_for(zone, self._store, self._persist_window_us, is_durable=self._sync)
        node = self._node or getattr(getattr(scheduler, "_backend", None), "node", None)
        if node is not None:
            header.node, header.failover_ms = node.name, milliseconds(node.failover_us)
            header.tick_ms = (self._tick_s or 0) * 1000
        watched = watchable(clock)
        announcer = _announcer_of(scheduler, watched)
        emitter = TraceEmitter(
            self._proc,
            watched,
            header,
            monitor=self._monitor,
            listeners=self._listeners,
            tick_s=self._tick_s,
            emit=announcer.announce,
        )
        if self._path is not None:
            emitter.writer = TraceWriter(
                self._path, header, carried=emitter.carried_over, sync=self._sync, **self._rotation
            )
        self.recorded = recorded = kind(scheduler, emitter)
        if node is not None:
            recorded.node = NodeListener(emitter)
            announcer.listen(recorded.node, LISTENED)
        announcer.listen(emitter.on_missed, ("TaskMissed",))
        return recorded

    def close(self) -> None:
        if self.recorded is not None:
            self.recorded.emitter.close()

    def abandon(self) -> None:
        """Record nothing any more, as if the process had died here (`duly.testing.crash`)."""
        if self.recorded is not None:
            self.recorded.emitter.silence()

    @property
    def header(self) -> Header:
        assert self.recorded is not None, "wrap a scheduler first"
        return self.recorded.emitter.header


class Recorded:
    """A scheduler with a recorder around it: the same two methods, the same state."""

    def __init__(self, scheduler: Any, emitter: TraceEmitter) -> None:
        self._scheduler = scheduler
        self.emitter = emitter
        self.node: NodeListener | None = None
        """What happens to it, if it is a node of a cluster."""
        self._call_numbers = count(1)
        self._run_numbers = count(1)
        self._inits: set[int] = set()
        self._put_off: list[_PutOff] = []
        """Stops that go on although their caller has gone on, too."""
        self._inside: ContextVar[int | None] = ContextVar("duly_recorded_run", default=None)

    @property
    def state(self) -> Any:
        return getattr(self._scheduler, "state", None)

    def initialize(self, registrations: Sequence[Sequence[Any]]) -> Coroutine[Any, Any, None]:
        """As the scheduler's own. A bad argument raises here and leaves no trace."""
        recorded = registrations
        if isinstance(registrations, list | tuple):
            recorded = [self._recorded_item(item) for item in registrations]
        call = self._scheduler.initialize(recorded)
        return _recorded_call(self._initialize(call, {"regs": _regs(registrations)}), call)

    def stop(self) -> Coroutine[Any, Any, None]:
        call = self._scheduler.stop()
        return _recorded_call(self._stop(call), call)

    async def _drop(self) -> None:
        """Be dropped as by a crash (`duly.testing.crash`), and record nothing of it."""
        self.emitter.silence()
        await self._scheduler._drop()  # noqa: SLF001 (for the one friend a scheduler has)

    async def _initialize(self, call: Awaitable[None], listed: dict[str, Any]) -> None:
        self._check_owner(call)
        emitter, number = self.emitter, next(self._call_numbers)
        emitter.open()
        # Written before the scheduler is asked: whatever it does for the call comes later in the trace.
        emitter.write(trace.InitStart, call=number, **listed)
        emitter.calls.add(number)
        self._inits.add(number)
        emitter.watch()
        outcome: dict[str, Any] = {"ok": False}
        try:
            await _watched(call, self._on_call_closed)
            outcome["ok"] = True
            outcome |= await self._states_after(listed)
        except asyncio.CancelledError as error:
            notes = getattr(error, "__notes__", ())
            outcome = {"ok": TOOK_EFFECT in notes, "void": TOOK_EFFECT not in notes and FAILED not in notes}
            raise
        finally:
            if outcome["ok"]:
                # Before the end of the call: the list takes effect in place of those stops.
                self._void_given_up()
            emitter.write(trace.InitEnd, call=number, **outcome)
            emitter.calls.discard(number)
            self._inits.discard(number)
            if not outcome.get("void"):
                emitter.listed = listed if outcome["ok"] else None
            self._write_put_off()

    async def _states_after(self, listed: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 (for an App)
        """What the end of a call says of the tasks when its list has taken effect."""
        return {}

    async def _stop(self, call: Awaitable[None]) -> None:
        self._check_owner(call)
        emitter, number = self.emitter, next(self._call_numbers)
        emitter.open()
        emitter.write(trace.StopStart, call=number)
        emitter.calls.add(number)
        listed, emitter.listed = emitter.listed, None
        inits, outcome = frozenset(self._inits), {"ok": False}
        try:
            await _watched(call, self._on_call_closed)
            outcome = {}
        except asyncio.CancelledError as error:
            if STOPS_ALL_THE_SAME in getattr(error, "__notes__", ()):
                self._put_off.append(_PutOff(number, inits, is_given_up=True))
                self._write_put_off()
            else:
                emitter.listed = listed
                self._end_stop(number, {"void": True})
            raise
        except BaseException:
            self._end_stop(number, outcome)
            raise
        # A stop inside a callback returns while that callback still runs (decision 0006).
        if self._inside.get() in emitter.running:
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
        self.emitter.write(trace.StopEnd, call=number, **outcome)
        self.emitter.calls.discard(number)
        if is_over and self.emitter.listed is None and not self.emitter.calls and not self.emitter.running:
            self.emitter.rest()

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
            emitter, run = self.emitter, next(self._run_numbers)
            self._inside.set(run)
            claim = self.node.claim_of(name) if self.node is not None else {}
            if claim.pop("is_asked_for", False):  # on another node, or by another program
                number = next(self._call_numbers)
                emitter.write(trace.ControlStart, call=number, control="run", id=name)
                emitter.write(trace.ControlEnd, call=number, ok=True)
            # Before the body: if the process dies in it, the trace must show the start.
            emitter.write(trace.RunStart, id=name, run=run, **claim)
            emitter.running[run] = name
            ok = False
            try:
                result = await _watched(callback(), self._on_run_closed)
                ok = True
            finally:
                if not self._is_cut_off(run):
                    emitter.write(trace.RunEnd, id=name, run=run, ok=ok)
                # After the end is written: a stop that waits for this run is over only then.
                del emitter.running[run]
                self._write_put_off()
            return result

        return functools.update_wrapper(recorded, callback)

    def _is_cut_off(self, run: int) -> bool:
        """Whether *run* ends because its node lost its trust: that is no end that anybody may record."""
        if self.node is None or run not in self.node.cut:
            return False
        self.node.cut.discard(run)
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def _on_run_closed(self, loop: asyncio.AbstractEventLoop) -> None:
        """A run was closed from outside: it has failed, unless its whole loop is gone."""
        if not _is_current(loop):
            self.emitter.silence()  # as a dead process would: this is no end that anybody saw

    def _on_call_closed(self, loop: asyncio.AbstractEventLoop) -> None:
        """A call was closed from outside: what became of its list, or of its stop, nobody can know."""
        if _is_current(loop):
            self.emitter.fail("a call of initialize() or stop() was closed before it returned")
        else:
            self.emitter.silence()

    def _void_given_up(self) -> None:
        """A list takes effect in place of the stops that were given up."""
        for stop in [stop for stop in self._put_off if stop.is_given_up]:
            self._put_off.remove(stop)
            self._end_stop(stop.number, {"void": True})

    def _write_put_off(self) -> None:
        """Write the ends of the stops that are over by now."""
        if self._put_off and not self.emitter.running:
            for stop in [stop for stop in self._put_off if not stop.inits & self._inits]:
                self._put_off.remove(stop)
                self._end_stop(stop.number, {}, is_over=not stop.is_given_up)


class RecordedApp(Recorded):
    """The scheduler inside of an App, with a recorder around it."""

    kinds: Mapping[str, Any]
    limits: Mapping[str, int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _bring(self, registrations: Sequence[Any]) -> Coroutine[Any, Any, None]:
        recorded = [
            item._replace(callback=self._recorded_callback(item.name, item.callback))
            for item in registrations
        ]
        call = self._scheduler._bring(recorded)  # noqa: SLF001 (as the App itself does)
        regs = [
            (item.name, item.expression.text, milliseconds(item.retry_delay_us)) for item in registrations
        ]
        options = {item.name: _options(item.options) for item in registrations}
        listed = {
            "regs": regs,
            "options": {name: each for name, each in options.items() if each != DEFAULT},
            "kinds": {name: self._kind_declared(each) for name, each in self.kinds.items()},
            "limits": dict(self.limits),
        }
        return _recorded_call(self._initialize(call, listed), call)

    async def _states_after(self, listed: dict[str, Any]) -> dict[str, Any]:
        """Which tasks are paused: a trace that begins over an old store cannot know."""
        try:
            tasks = await self._backend.tasks()
        except Exception:  # then nothing is owed before it is seen to run
            self.emitter.paused = {name for name, *_ in listed["regs"]}
        else:
            self.emitter.paused = {task.name for task in tasks if task.paused}
            self.emitter.entries = {task.name: _entry(task) for task in tasks if task.entry is not None}
        return self.emitter.task_states()

    def _kind_declared(self, kind: Any) -> trace.KindDeclared:
        delay_ms = milliseconds(kind.retry_delay_us)
        return trace.KindDeclared(delay_ms=delay_ms, options=_options(kind.options))

    def callback_of_entry(self, callback_of: Callable[[str], Any], text: str) -> Any:
        """The callback of an entry; the engine names the asyncio task of each run by the task."""
        callback = callback_of(text)

        async def recorded() -> object:
            running = asyncio.current_task()
            assert running is not None
            return await self._recorded_callback(running.get_name(), callback)()

        return recorded

    async def control(self, what: str, task: str, call: Awaitable[Any], **more: Any) -> Any:
        """A control of one task, from its call to its return."""
        emitter, number = self.emitter, next(self._call_numbers)
        # It may take effect at any instant from here to its return; the judge keeps both worlds.
        emitter.write(trace.ControlStart, call=number, control=what, id=task, **more)
        emitter.calls.add(number)
        ok, answer = False, None
        try:
            answer = await call
            ok = True
        finally:
            emitter.write(trace.ControlEnd, call=number, ok=ok, hit=answer is not False)
            emitter.calls.discard(number)
            if ok and what == "pause":
                emitter.paused.add(task)
            elif ok and what in {"resume", "remove"}:
                emitter.paused.discard(task)
                emitter.entries.pop(task, None) if what == "remove" else None
            elif ok and what == "add":
                emitter.entries[task] = more["entry"]
        return answer


class RecordedControls:
    """What an App controls its tasks with, and a recorder around that."""

    def __init__(self, backend: Any, recorded: RecordedApp) -> None:
        self._backend = backend
        self._recorded = recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def request(self, name: str) -> Awaitable[None]:
        return self._recorded.control("run", name, self._backend.request(name))

    def cancel(self, name: str) -> Awaitable[bool]:
        return self._recorded.control("cancel", name, self._backend.cancel(name))

    def allow(self, kinds: Mapping[str, Any], limits: Mapping[str, int]) -> None:
        self._recorded.kinds, self._recorded.limits = kinds, limits
        self._backend.allow(RecordedKinds(kinds, self._recorded), limits)

    def add(self, entry: Any) -> Awaitable[None]:
        declared = _entry_of(entry.schedule, entry.text)
        return self._recorded.control("add", entry.name, self._backend.add(entry), entry=declared)

    def remove(self, name: str) -> Awaitable[None]:
        return self._recorded.control("remove", name, self._backend.remove(name))

    def set_paused(self, name: str, *, paused: bool) -> Awaitable[None]:
        what = "pause" if paused else "resume"
        return self._recorded.control(what, name, self._backend.set_paused(name, paused=paused))


class RecordedKinds(Mapping[str, Any]):
    """The kinds of an App; what is called for an entry of one is recorded."""

    def __init__(self, kinds: Mapping[str, Any], recorded: RecordedApp) -> None:
        self._kinds = kinds
        self._recorded = recorded

    def __getitem__(self, name: str) -> Any:
        kind = self._kinds[name]
        return kind._replace(
            callback_of=functools.partial(self._recorded.callback_of_entry, kind.callback_of)
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def _entry(task: Any) -> trace.EntryDeclared:
    return _entry_of(task.schedule.text, task.entry)


def _entry_of(schedule: str, text: str) -> trace.EntryDeclared:
    facts = msgspec.json.decode(text)
    return trace.EntryDeclared(schedule=schedule, kind=facts["kind"], enabled=facts.get("enabled", True))


def _options(options: Any) -> trace.OptionsDeclared:
    longest_us, window_us = options.retry_longest_us, options.catch_up_us
    return trace.OptionsDeclared(
        enabled=options.enabled,
        retry_factor=options.retry_factor,
        max_delay_ms=None if longest_us is None else milliseconds(longest_us),
        attempts=options.attempts,
        catch_up_ms=None if window_us is None else milliseconds(window_us),
        limit=options.limit,
    )


class _PutOff(NamedTuple):
    """A stop that goes on although its caller does not wait; over when nothing runs and *inits* returned."""

    number: int
    inits: frozenset[int]
    is_given_up: bool


def _outcome(stopping: asyncio.Task[Any]) -> dict[str, bool]:
    return {} if not stopping.cancelled() and stopping.exception() is None else {"ok": False}


class _Closable(Coroutine[Any, Any, Any]):
    """Awaits something, and calls *on_close* first if it is closed from outside.

    A coroutine that is closed raises GeneratorExit. So may anything that is awaited, of its own accord. Only
    here, between the two, can they be told apart: closing calls `close`, and raising does not.
    """

    def __init__(self, steps: Coroutine[Any, Any, Any], on_close: Callable[[], object]) -> None:
        self._steps = steps
        self._on_close = on_close

    def __await__(self) -> Generator[Any, Any, Any]:
        return cast("Generator[Any, Any, Any]", self)

    def __iter__(self) -> "_Closable":
        return self

    def __next__(self) -> Any:
        return self._steps.send(None)

    def send(self, value: Any) -> Any:
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        return self._steps.throw(*error)

    def close(self) -> None:
        self._on_close()
        self._steps.close()


def _watched(awaited: Awaitable[Any], on_close: Callable[[asyncio.AbstractEventLoop], None]) -> _Closable:
    """Await something; if it is closed, *on_close* is called with the loop that runs now."""
    return _Closable(_result_of(awaited), functools.partial(on_close, asyncio.get_running_loop()))


def _recorded_call(recorded: Coroutine[Any, Any, None], call: Awaitable[None]) -> _Closable:
    """A recorded call that need never be awaited: closing it closes the call inside, too."""

    def close() -> None:
        recorded.close()
        if isinstance(call, Coroutine):
            call.close()

    return _Closable(recorded, close)


async def _result_of(awaited: Awaitable[Any]) -> Any:
    return await awaited


def _is_current(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is done by something that *loop* runs. If not, the loop is gone, or about to go."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _announcer_of(scheduler: object, clock: Clock) -> Announcer:
    """The announcer of a scheduler of ours; for others one that writes to the log only."""
    announcer = getattr(scheduler, "_announcer", None)
    return announcer if isinstance(announcer, Announcer) else Announcer((), clock.now)


def _is_async(callback: object) -> bool:
    """Whether calling *callback* gives something to await; if not, the scheduler says so itself."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    return not isinstance(callback, type) and (
        inspect.iscoroutinefunction(callback)
        or inspect.iscoroutinefunction(getattr(callback, "__call__", None))  # noqa: B004
        or type(getattr(callback, "_is_coroutine", None)) is object
    )


def _regs(registrations: Sequence[Sequence[Any]]) -> trace.Regs:
    return [
        (str(name), str(cron), milliseconds(delay // _MICROSECOND)) for name, cron, _, delay in registrations
    ]


# --- a daemon ---

_UP = "TimersEnabled"


class TimerRecorder:
    """Records one daemon into the file *path*. Give it to the daemon as a listener.

    What it writes is what the monitor of timers listens to, so the same monitor can judge the trace later,
    and together with the traces of other machines. Times are those that timers go by: the host's, or the
    database's where machines share timers. It begins when that is known.

    *declared* answers with the timers at work. *node* is who writes: a machine by itself, or with a failover
    time one that shares its timers. *emit* is called with what goes wrong.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        declared: Callable[[], Iterable[ZonedTimer]],
        node: NodeName,
        *,
        clock: Clock,
        zone: tzinfo,
        tick_s: float,
        emit: Callable[..., object],
    ) -> None:
        header = header_for(zone, "unknown", 0, is_durable=False)
        header.kind, header.node, header.tick_ms = "timers", node.name, tick_s * 1000
        header.failover_ms = milliseconds(node.failover_us)
        proc = uuid.uuid4().hex[:8]  # noqa: TID251 (which process this is)
        self._emitter = TraceEmitter(
            proc, watchable(clock), header, monitor=None, listeners=(), tick_s=tick_s, emit=emit
        )
        self._emitter.writer = TraceWriter(path, header, carried=self._carried_over)
        self._declared = declared
        self._node = NodeListener(self._emitter) if node.failover_us else None
        self._timers: list[trace.TimerDeclared] = []
        self._is_begun = self._is_changed = self._is_up = False

    def __call__(self, event: Event) -> None:
        if not self._is_begun:
            if self._node is not None and event.name != "NodeJoined":
                return  # the time of the database is not known yet
            self._is_begun = True
            self._emitter.open()
            self._emitter.watch()
        if event.name == _UP or (self._is_changed and event.name not in CHANGES):
            self._write_timers()
        self._is_changed = self._is_up and event.name in CHANGES
        self._is_up = event.name == _UP or (
            self._is_up and event.name not in {"TimersDisabled", "SupervisorStopping"}
        )
        if self._node is not None and event.name in LISTENED:
            self._node(event)
        elif event.name in TimerMonitor.handlers or self._is_changed:
            self._emitter.write(trace.Told, name=event.name, fields=event.fields)

    def close(self) -> None:
        if self._is_begun:
            self._emitter.write(trace.StopStart, call=1)
            self._emitter.write(trace.StopEnd, call=1)
            self._emitter.silence()

    def _write_timers(self) -> None:
        self._timers = [
            msgspec.structs.replace(timer, zone=zone_name(zone)) for timer, zone in self._declared()
        ]
        self._emitter.write(trace.Timers, timers=self._timers)

    def _carried_over(self) -> Carried | None:
        if self._emitter.last_us is None:
            return None
        t = milliseconds(self._emitter.last_us)
        up = [trace.Told(t=t, name=_UP, fields={"timers": len(self._timers)})] if self._is_up else []
        return Carried([trace.Timers(t=t, timers=self._timers), *up], [])
