"""The trace emitter: dates the events of a process and hands them to file, monitor and listeners.

It owns the time of a trace: it asks the scheduler's clock, writes down every step of it, and never lets an
event be older than the one before. It must not harm anybody: what cannot be written is reported once, as an
event `RecorderFault` and on stderr, and `RecorderRecovered` is emitted when events are written again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from duly.clock import Step, Watchable, WatchedClock
from duly.events import Event, described, warn_operator
from duly.forks import process_id
from duly.instant import Instant, datetime_at, instant_of, milliseconds
from duly.verify import trace
from duly.verify.monitor import Monitor
from duly.verify.trace import CARRIED_CALL, Header, TraceEvent, micros
from duly.verify.writer import Carried, TraceWriter

TraceListener = Callable[[TraceEvent], object]
_UNNOTICED_US = 60_000_000
"""A plain clock that is ahead of steady time by more than this was set forward, and could not report it."""


class TraceEmitter:
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
        emit: Callable[..., object],
    ) -> None:
        self._proc = proc
        self._emit = emit
        self._clock = clock
        self._is_plain = isinstance(clock, WatchedClock)
        self.header = header
        self._tick_s = tick_s
        self.writer: TraceWriter | None = None
        self._monitor = monitor
        self._receivers: tuple[TraceListener, ...] = listeners if monitor is None else (monitor, *listeners)
        self._is_open = False
        self._pid = process_id()
        self.last_us: Instant | None = None
        """The time of the latest event, of this process or an earlier one."""
        self._is_silent = False
        self._is_faulty = False
        """Whether a fault was reported that is not over."""
        self._unwatch: Callable[[], None] | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self.listed: dict[str, Any] | None = None
        """The list in effect while the scheduler is active: the facts of its InitStart."""
        self.paused: set[str] = set()
        self.entries: dict[str, trace.EntryDeclared] = {}
        self.running: dict[int, str] = {}
        self.calls: set[int] = set()
        # A new file begins with the state before the event that comes next. So write the event first, and
        # change these afterwards.
        self._steady_ms: float | None = None

    def write(self, kind: type[Any], **facts: Any) -> None:
        if not self._is_silent:
            now_us = instant_of(self._clock.now())
            if self.last_us is not None and (self._is_plain or now_us < self.last_us):
                self._write_unnoticed_step(now_us, self.last_us)
            self._hand_on(kind, now_us, facts)

    def watch(self) -> None:
        """Begin to notice steps of the clock, and to tick."""
        if self._unwatch is None:
            self._unwatch = self._clock.watch(self._on_step)
            self._tick_later()

    def silence(self) -> None:
        """Record nothing any more, as a dead process would."""
        self.rest()
        self._is_silent = True

    def fail(self, reason: str) -> None:
        """Record nothing any more although the scheduler goes on, and report it."""
        if not self._is_silent:
            if self.writer is not None:
                self.writer.mark_incomplete()
            self.silence()
            self._report_fault(f"nothing more is recorded: {reason}", "")

    def rest(self) -> None:
        """Notice no more, and let go of the file, until there is something to write again."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        if self.writer is not None:
            self.writer.close()

    def task_states(self) -> dict[str, Any]:
        """What the beginning of a trace must say of the tasks."""
        facts = {"paused": sorted(self.paused), "entries": self.entries}
        return {name: each for name, each in facts.items() if each}

    def on_missed(self, event: Event) -> None:
        """A due was too old to be made up for (`catch_up`)."""
        due_ms = milliseconds(instant_of(datetime.fromisoformat(event.fields["scheduledTime"])))
        self.write(trace.Missed, id=event.fields["taskName"], due=due_ms)

    def close(self) -> None:
        self.write(trace.End)
        self.silence()

    def carried_over(self) -> Carried | None:
        """What a new file has to begin with; None while a call is outstanding."""
        if self.calls or self.last_us is None:
            return None
        t = milliseconds(self.last_us)
        events: list[TraceEvent] = []
        if self.listed is not None:
            events += (
                trace.InitStart(t=t, proc=self._proc, call=CARRIED_CALL, **self.listed),
                trace.InitEnd(t=t, proc=self._proc, call=CARRIED_CALL, ok=True, **self.task_states()),
            )
        return Carried(events, [(task, run) for run, task in self.running.items()])

    def _on_step(self, step: Step) -> None:
        if not self._is_silent:
            before_us = max(step.before_us, self.last_us or step.before_us)
            self._hand_on(trace.ClockStep, step.after_us, {"origin": milliseconds(before_us)})

    def _write_unnoticed_step(self, now_us: Instant, last_us: Instant) -> None:
        """Write down a step that nobody reported: back by a millisecond, or of a clock that has no reports.

        It is dated right after the last event, as far as steady time shows how long ago that was.
        """
        passed_us = self._passed_us()
        if now_us < last_us or now_us - last_us - passed_us > _UNNOTICED_US:
            after_us = now_us - passed_us
            self._hand_on(trace.ClockStep, after_us, {"origin": milliseconds(last_us)})

    def _passed_us(self) -> int:
        """How much steady time has passed since the last event; 0 if that was in another process."""
        steady_ms = _steady_ms()
        if steady_ms is None or self._steady_ms is None:
            return 0
        return max(round((steady_ms - self._steady_ms) * 1000), 0)

    def _hand_on(self, kind: type[Any], at_us: Instant, facts: dict[str, Any]) -> None:
        if process_id() != self._pid:
            return  # a forked child: the trace is of its parent
        self._steady_ms = _steady_ms()
        event = kind(t=milliseconds(at_us), proc=self._proc, m=self._steady_ms, **facts)
        self.last_us = at_us
        if self.writer is not None:
            self._file(event)
        for hear in self._receivers:
            try:
                hear(event)
            except BaseException as error:
                # Not even a listener that exits may end the scheduler that is being watched.
                warn_operator(f"duly: trace listener {hear!r} failed: {described(error)}")

    def _file(self, event: TraceEvent) -> None:
        assert self.writer is not None
        try:
            is_well = self.writer.write(event)
        except OSError as error:
            self._report_fault(described(error), "the trace cannot be written and has a gap from here: ")
        else:
            if is_well and self._is_faulty:
                self._report_recovery(self.writer)

    def _report_fault(self, error: str, words: str) -> None:
        """Report a fault once, by an event and on stderr: a log on the same full disk may not say it."""
        if not self._is_faulty:
            self._is_faulty = True
            trace = "" if self.writer is None else str(self.writer.path)
            self._emit("RecorderFault", trace=trace, error=error)
            warn_operator(f"duly: {words}{error}")

    def _report_recovery(self, writer: TraceWriter) -> None:
        self._is_faulty = False
        fields = {"trace": str(writer.path)}
        if writer.gap_ms is not None:
            lost = (datetime_at(micros(at_ms), UTC).isoformat() for at_ms in writer.gap_ms)
            fields |= zip(("from", "to"), lost, strict=True)
        self._emit("RecorderRecovered", **fields)

    def open(self) -> None:
        """Open the file before the first event, and go on from its last time."""
        if self._is_open:
            return
        self._is_open = True
        self._pid = process_id()
        if self.writer is not None:
            try:
                self.writer.open()
            except OSError as error:
                self._report_fault(described(error), "the trace cannot be opened: ")
            self.last_us = self.writer.last_us
        if self._monitor is not None:
            # What earlier processes left in the file is not known to a monitor that begins now.
            is_first = self.writer is None or self.writer.is_first
            self._monitor.begin(self.header if is_first else replace(self.header, store="unknown"))

    def _tick_later(self) -> None:
        if self._tick_s is not None:
            # Each tick sets the next: after a blocked loop there is one tick, not many.
            self._ticking = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self.write(trace.Tick)
        self._tick_later()


def _steady_ms() -> float | None:
    """Time that no step of the wall clock touches; None where no event loop runs."""
    try:
        steady_s = asyncio.get_running_loop().time()
    except RuntimeError:
        return None
    return round(steady_s * 1_000_000) / 1000


LISTENED = (
    *("NodeJoined", "NodeReturned", "NodeFenced", "TrustLost", "ServerChanged", "ListReconciled"),
    *("TaskInterruptedAgain", "TaskRunStarted", "StoreFault", "StoreRecovered"),
)
"""The events that say what happens to a node."""


class NodeName(NamedTuple):
    """What the header of a node's trace says."""

    name: str
    failover_us: int
    """How long the cluster may take to notice that a node is gone, and to release its runs."""


class NodeListener:
    """Writes down what happens to one node of a cluster.

    It is a listener like any other. It also knows the claims that runs are started for, and which runs were
    cut off.
    """

    def __init__(self, emitter: TraceEmitter) -> None:
        self._emitter = emitter
        self._is_reachable = True
        self._claims: dict[str, dict[str, Any]] = {}
        self.cut: set[int] = set()
        """The runs that were cut off, and whose callbacks have not come to their ends."""

    def claim_of(self, task: str) -> dict[str, Any]:
        """Token and run id of the claim that *task* is started for now."""
        return self._claims.pop(task, {})

    def __call__(self, event: Event) -> None:
        write, fields = self._emitter.write, event.fields
        match event.name:
            case "TaskRunStarted" if "token" in fields:
                self._claims[fields["taskName"]] = {
                    "token": fields["token"],
                    "run_id": fields.get("runId"),
                    "is_asked_for": fields.get("cause") == "manual",
                }
            case "NodeJoined":
                more = {"namespace": fields.get("namespace", ""), "lease_ms": fields.get("leaseMs", 0)}
                write(trace.NodeJoined, node=fields["node"], **more)
            case "NodeReturned":
                write(trace.NodeReturned, node=fields["node"])
            case "NodeFenced":
                write(trace.NodeFenced, node=fields["node"], name=fields.get("name", ""))
            case "TrustLost":
                self._lose_trust(fields["runs"])
            case "ServerChanged":
                server, forgot = str(fields.get("server", "")), fields.get("forgot", False)
                write(trace.ServerChanged, server=server, forgot=forgot)
            case "ListReconciled":
                write(trace.ListReconciled, generation=fields["generation"])
            case "TaskInterruptedAgain":
                self._back_off(fields)
            case "StoreFault" if self._is_reachable:
                self._is_reachable = False
                write(trace.Unreachable)
            case "StoreRecovered" if not self._is_reachable:
                self._is_reachable = True
                write(trace.Reachable)

    def _lose_trust(self, tasks: Sequence[str]) -> None:
        self._emitter.write(trace.TrustLost, runs=list(tasks))
        self.cut |= {run for run, task in self._emitter.running.items() if task in tasks}

    def _back_off(self, fields: Mapping[str, Any]) -> None:
        retry_ms = milliseconds(instant_of(datetime.fromisoformat(fields["retryAt"])))
        self._emitter.write(trace.TaskInterruptedAgain, id=fields["taskName"], retry=retry_ms)
