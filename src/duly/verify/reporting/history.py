"""A trace as stretches of time: runs, calls, crashes, downtime, and which task was registered when.

This is for drawing, not for judging: whatever is wrong with a trace, what it says is shown if it can be,
and nothing is objected to. A stretch is yielded as soon as it has ended, so only what is going on is kept.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from duly.verify import trace
from duly.verify.dues import Dues, ScheduleTextError
from duly.verify.properties import instant_text
from duly.verify.trace import Fault, Position, Trace, micros, zone_of


class StretchKind(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CUT = "cut off by a crash"
    LOST = "cut off: its node lost its trust"
    UNFINISHED = "not ended in this trace"
    INITIALIZE = "initialize"
    STOP = "stop"
    DOWN = "not active"
    CRASH = "crash"
    STEP = "clock set"
    FAULT = "fault of the trace"
    LIST = "list"
    SERVER = "another server"


@dataclass(slots=True)
class Stretch:
    """Something that lasted, or happened at once; of a task, or of the scheduler as a whole."""

    kind: StretchKind
    task: str | None
    from_us: int
    to_us: int
    line: int
    end_line: int
    words: str = ""
    count: int = 1
    is_again: bool = False
    """Whether it is a run that makes up for the one before."""
    node: str = ""
    """Which node of a cluster ran it."""
    label: str = ""
    """The word at its mark, if that is another than its kind's."""


AGAIN = {
    StretchKind.CUT: "again after a crash",
    StretchKind.LOST: "again after a loss",
    StretchKind.FAILED: "retry",
}
"""What a run is, by how the one before it ended."""


class RegisteredTime(NamedTuple):
    """From when to when a task was registered with a cron text."""

    task: str
    cron: str
    from_us: int
    to_us: int


class _Begun(NamedTuple):
    """A run, a call or a downtime that has not ended."""

    line: int
    at_us: int
    number: int | None = None
    words: str = ""
    regs: trace.Regs = []  # noqa: RUF012 (a NamedTuple's default, never changed)

    def stretch(self, kind: StretchKind, task: str | None, line: int, at_us: int, words: str) -> Stretch:
        # A clock that was set back may show an end before its start.
        to_us, is_again = max(self.at_us, at_us), self.words in AGAIN.values()
        return Stretch(kind, task, self.at_us, to_us, self.line, line, words, is_again=is_again)


def point(kind: StretchKind, line: int, at_us: int, words: str = "", label: str = "") -> Stretch:
    """What happened at once, and concerns all tasks."""
    return Stretch(kind, None, at_us, at_us, line, line, words, label=label)


def dues_of(cron: str, zone: tzinfo) -> Dues | None:
    """The dues of a cron text; None if it is none."""
    try:
        return Dues(cron, zone)
    except ScheduleTextError:
        return None


def why_again(kind: StretchKind, ended_us: int, at_us: int, dues: Dues | None) -> str:
    """What can be said of the cause of a run at *at_us* from how and when the one before it ended."""
    if kind is StretchKind.FAILED and (dues is None or dues.after(ended_us) <= at_us):
        return ""
    return AGAIN.get(kind, "")


class TraceHistory:
    """The stretches of a trace, once, in the order of their ends; *admits* says which tasks are included."""

    def __init__(self, items: Trace, fault_lines: frozenset[int], admits: Callable[[str], bool]) -> None:
        self.registrations: list[RegisteredTime] = []
        self._items = items
        self._zone: tzinfo = zone_of(items.header.tz)
        self._fault_lines = fault_lines
        self._admits = lru_cache(maxsize=None)(admits)
        self._registered: dict[str, tuple[str, int]] = {}
        self._schedule = lru_cache(maxsize=1000)(lambda cron: dues_of(cron, self._zone))
        self._running: dict[str, list[_Begun]] = defaultdict(list)
        self._calls: dict[tuple[StretchKind, int], _Begun] = {}
        self._last_runs: dict[str, tuple[StretchKind, int]] = {}
        self._down_from: _Begun | None = None
        self._is_stopped = False
        self._proc: str | None = None
        self._last: Position | None = None

    def __iter__(self) -> Iterator[Stretch]:
        for item in self._items:
            if isinstance(item, Fault):
                if self._last is not None:
                    yield point(StretchKind.FAULT, item.line, self._last.at_us, item.reason)
                continue
            if self._last is None:
                self._begin(item)
            line, at_us, event = item
            if line in self._fault_lines:
                yield point(StretchKind.FAULT, line, at_us)
            if event.proc is not None and event.proc != self._proc:
                yield from self._other_process(event.proc)
            # Nearly all events are these two.
            if type(event) is trace.RunStart:
                if self._admits(event.id):
                    words = self._why(event.id, at_us)
                    self._running[event.id].append(_Begun(line, at_us, event.run, words))
            elif type(event) is trace.RunEnd:
                if self._admits(event.id) and (begun := self._take_run(event.id, event.run)) is not None:
                    kind = StretchKind.SUCCEEDED if event.ok else StretchKind.FAILED
                    yield self._run(kind, event.id, begun, line, at_us)
            else:
                yield from self._on_event(item)
            self._last = item
        if self._last is not None:
            yield from self._rest(self._last)

    def _begin(self, first: Position) -> None:
        self._down_from = _Begun(first.line, first.at_us)
        for task, number in self._items.header.running:
            if self._admits(task):
                words = "begun before the trace"
                self._running[task].append(_Begun(first.line, first.at_us, number, words))

    def _on_event(self, position: Position) -> Iterator[Stretch]:
        """What has ended with this event."""
        line, at_us, event = position
        match event:
            case trace.InitStart():
                self._calls[StretchKind.INITIALIZE, event.call] = _Begun(line, at_us, regs=event.regs)
                self._is_stopped = False
            case trace.InitEnd():
                yield from self._initialize_ends(line, at_us, event)
            case trace.StopStart():
                self._calls[StretchKind.STOP, event.call] = _Begun(line, at_us)
                self._goes_down(line, at_us)
            case trace.StopEnd():
                yield from self._stop_ends(line, at_us, event)
            case trace.Crash():
                yield from self._crash(line, at_us, "crash")
            case trace.Missed() if event.run is not None and self._admits(event.id):
                self._take_run(event.id, event.run)  # it was never called
            case trace.ClockStep():
                words = f"clock set from {instant_text(micros(event.origin), self._zone)}"
                yield point(StretchKind.STEP, line, at_us, words)
            case _:
                pass

    def _other_process(self, proc: str) -> Iterator[Stretch]:
        """A process that is followed by another without having stopped must have died."""
        if self._proc is not None and self._last is not None:
            is_busy = bool(self._calls) or any(self._running.values())
            if is_busy or not self._is_stopped:
                words = "crash (seen by the process that came after)"
                yield from self._crash(self._last.line, self._last.at_us, words)
        self._proc = proc

    # --- runs ---

    def _why(self, task: str, at_us: int) -> str:
        """What can be said of a run's cause from the run before it."""
        before = self._last_runs.get(task)
        if before is None or before[0] is StretchKind.SUCCEEDED:
            return ""
        known = self._registered.get(task)
        return why_again(*before, at_us, self._schedule(known[0]) if known else None)

    def _take_run(self, task: str, number: int | None) -> _Begun | None:
        """The run of *task* with *number*; the oldest if it has none."""
        running = self._running[task]
        for index, begun in enumerate(running):
            if number is None or begun.number == number:
                return running.pop(index)
        return None

    def _run(self, kind: StretchKind, task: str, begun: _Begun, line: int, at_us: int) -> Stretch:
        self._last_runs[task] = kind, at_us
        name = "run" if begun.number is None else f"run {begun.number}"
        return begun.stretch(kind, task, line, at_us, f"{name}, {begun.words}" if begun.words else name)

    # --- calls ---

    def _initialize_ends(self, line: int, at_us: int, event: trace.InitEnd) -> Iterator[Stretch]:
        begun = self._calls.pop((StretchKind.INITIALIZE, event.call), None)
        if begun is None:
            return
        words = f"initialize of {len(begun.regs):,} tasks{_ending(event)}"
        yield begun.stretch(StretchKind.INITIALIZE, None, line, at_us, words)
        if event.void:
            return
        if not event.ok:
            self._goes_down(line, at_us)
            return
        self._register({task: cron for task, cron, _ in begun.regs}, at_us)
        is_stopping = any(kind is StretchKind.STOP for kind, _ in self._calls)
        if not is_stopping:
            yield from self._comes_up(line, at_us)

    def _stop_ends(self, line: int, at_us: int, event: trace.StopEnd) -> Iterator[Stretch]:
        begun = self._calls.pop((StretchKind.STOP, event.call), None)
        self._is_stopped = not event.void
        if begun is None:
            return
        yield begun.stretch(StretchKind.STOP, None, line, at_us, f"stop{_ending(event)}")
        # One that was given up has not ended the activity that it seemed to end.
        down = self._down_from
        if event.void and down is not None and down.line == begun.line:
            self._down_from = None

    def _register(self, crons: dict[str, str], at_us: int) -> None:
        for task in [task for task, (cron, _) in self._registered.items() if crons.get(task) != cron]:
            self._unregister(task, at_us)
        for task, cron in crons.items():
            if task not in self._registered and self._admits(task):
                self._registered[task] = cron, at_us

    def _unregister(self, task: str, at_us: int) -> None:
        cron, from_us = self._registered.pop(task)
        self.registrations.append(RegisteredTime(task, cron, from_us, at_us))

    # --- up and down ---

    def _goes_down(self, line: int, at_us: int) -> None:
        if self._down_from is None:
            self._down_from = _Begun(line, at_us)

    def _comes_up(self, line: int, at_us: int) -> Iterator[Stretch]:
        if self._down_from is not None:
            yield self._down_from.stretch(StretchKind.DOWN, None, line, at_us, "not active")
            self._down_from = None

    def _crash(self, line: int, at_us: int, words: str) -> Iterator[Stretch]:
        yield point(StretchKind.CRASH, line, at_us, words)
        yield from self._cut_all(StretchKind.CUT, line, at_us)
        self._goes_down(line, at_us)
        self._proc = None

    def _cut_all(self, kind: StretchKind, line: int, at_us: int) -> Iterator[Stretch]:
        """Nothing that is going on goes on."""
        for task, running in self._running.items():
            for begun in running:
                yield self._run(kind, task, begun, line, at_us)
        self._running.clear()
        for (call_kind, call), begun in self._calls.items():
            yield begun.stretch(call_kind, None, line, at_us, f"{call_kind} (call {call}), {kind}")
        self._calls.clear()

    def _rest(self, last: Position) -> Iterator[Stretch]:
        """What was still going on at the end of the trace."""
        yield from self._cut_all(StretchKind.UNFINISHED, last.line, last.at_us)
        yield from self._comes_up(last.line, last.at_us)
        for task in list(self._registered):
            self._unregister(task, last.at_us)


def _ending(event: trace.InitEnd | trace.StopEnd) -> str:
    return ", given up" if event.void else "" if event.ok else ", raised"
