"""The ledger: dates the events of one process and hands them on to the file, the monitor and the listeners.

It owns the time of a trace: it asks the scheduler's clock, writes down every step of it, and never lets an
event be older than the one before. It must not harm anybody: what cannot be written is reported once, as an
event `RecorderFault` and on stderr, and `RecorderRecovered` is emitted when events are written again.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC
from typing import Any, NamedTuple

from msgspec.structs import replace

from duly.clock import Step, Watchable, WatchedClock
from duly.events import described, tell_operator
from duly.forks import process_id
from duly.instant import Instant, datetime_at, instant_of, milliseconds
from duly.verify.monitor import Monitor
from duly.verify.trace import (
    CARRIED_CALL,
    ClockStep,
    End,
    Event,
    Header,
    InitEnd,
    InitStart,
    Taken,
    Tick,
    micros,
)
from duly.verify.writer import Carried, TraceWriter

TraceListener = Callable[[Event], object]
_UNTOLD_US = 60_000_000
"""A plain clock that is ahead of steady time by more than this was set forward, and could not tell."""


class Hold(NamedTuple):
    """For which term a member of a cluster holds a shard, and under which edition it took it."""

    term: int
    edition: int
    server: str = ""


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
        self._hearers: tuple[TraceListener, ...] = (*((monitor,) if monitor is not None else ()), *listeners)
        self._is_open = False
        self._pid = process_id()
        self.last_us: Instant | None = None
        """The time of the latest event, of this process or an earlier one."""
        self._is_silent = False
        self._is_faulty = False
        """Whether a fault was reported that is not over."""
        self._unwatch: Callable[[], None] | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self.regs: list[tuple[str, str, float]] | None = None
        """The list in effect while the scheduler is active."""
        self.running: dict[int, str] = {}
        self.calls: set[int] = set()
        self.holds: dict[int, Hold] = {}
        """The shards that are held, if it is of a member of a cluster."""
        # What a new file must begin with is the state before the event that comes next; so whoever has
        # something to write writes it first, and changes these afterwards.
        self._steady_ms: float | None = None

    def write(self, kind: type[Any], **facts: Any) -> None:
        """Record that something happened just now."""
        if not self._is_silent:
            now_us = instant_of(self._clock.now())
            if self.last_us is not None and (self._is_plain or now_us < self.last_us):
                self._note_untold_step(now_us, self.last_us)
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
        self.unwatch()
        if self.writer is not None:
            self.writer.close()

    def close(self) -> None:
        """Mark the end of the recording, and close the file."""
        self.write(End)
        self.silence()

    def carried(self) -> Carried | None:
        """What a new file has to begin with; None while a call is outstanding."""
        if self.calls or self.last_us is None:
            return None
        t = milliseconds(self.last_us)
        events: list[Event] = []
        if self.regs is not None:
            events += (
                InitStart(t=t, proc=self._proc, call=CARRIED_CALL, regs=self.regs),
                InitEnd(t=t, proc=self._proc, call=CARRIED_CALL, ok=True),
            )
        events += (
            Taken(t=t, proc=self._proc, shard=shard, **hold._asdict()) for shard, hold in self.holds.items()
        )
        return Carried(events, [(task, run) for run, task in self.running.items()])

    def _on_step(self, step: Step) -> None:
        if not self._is_silent:
            before_us = max(step.before_us, self.last_us or step.before_us)
            self._hand_on(ClockStep, step.after_us, {"origin": milliseconds(before_us)})

    def _note_untold_step(self, now_us: Instant, last_us: Instant) -> None:
        """Write down a step that nobody told of: back by a millisecond, or of a clock that cannot tell.

        It is dated right after the last event, as far as steady time tells how long ago that was.
        """
        passed_us = self._passed_us()
        if now_us < last_us or now_us - last_us - passed_us > _UNTOLD_US:
            after_us = now_us - passed_us
            self._hand_on(ClockStep, after_us, {"origin": milliseconds(last_us)})

    def _passed_us(self) -> int:
        """How much steady time has passed since the last event; 0 if that was in another process."""
        steady_ms = _steady_ms()
        if steady_ms is None or self._steady_ms is None:
            return 0
        return max(round((steady_ms - self._steady_ms) * 1000), 0)

    def _hand_on(self, kind: type[Any], at_us: Instant, facts: dict[str, Any]) -> None:
        if process_id() != self._pid:
            return  # a forked child: the trace tells of its parent
        self._steady_ms = _steady_ms()
        event = kind(t=milliseconds(at_us), proc=self._proc, m=self._steady_ms, **facts)
        self.last_us = at_us
        if self.writer is not None:
            self._file(event)
        for hear in self._hearers:
            try:
                hear(event)
            except BaseException as error:
                # Not even a listener that exits may end the scheduler that is being watched.
                tell_operator(f"duly: trace listener {hear!r} failed: {described(error)}")

    def _file(self, event: Event) -> None:
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
            tell_operator(f"duly: {words}{error}")

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
            self._open_file(self.writer)
        if self._monitor is not None:
            # What earlier processes left in the file is not known to a monitor that begins now.
            is_first = self.writer is None or self.writer.is_first
            self._monitor.begin(self.header if is_first else replace(self.header, store="unknown"))

    def _open_file(self, writer: TraceWriter) -> None:
        try:
            writer.open()
        except OSError as error:
            self._report_fault(described(error), "the trace cannot be opened: ")
        self.last_us = writer.last_us

    def _tick_later(self) -> None:
        if self._tick_s is not None:
            self._ticking = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self.write(Tick)
        self._tick_later()


def _steady_ms() -> float | None:
    """Time that no step of the wall clock touches; None where no event loop runs."""
    try:
        steady_s = asyncio.get_running_loop().time()
    except RuntimeError:
        return None
    return round(steady_s * 1_000_000) / 1000
