"""A trace told as stretches of time: runs, calls, crashes, downtime, and which task was registered when.

This is for drawing, not for judging: whatever is wrong with a trace, what it says is told as well as it can
be, and nothing is objected to. A stretch is told as soon as it has ended, so only what is going on is kept.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from duly.verify.dues import CronTextError, Dues
from duly.verify.reporting.report import instant_text
from duly.verify.trace import (
    ClockStep,
    Crash,
    Fault,
    InitEnd,
    InitStart,
    Missed,
    Position,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
    Trace,
    micros,
    zone_of,
)


class Kind(StrEnum):
    """What a stretch of time was."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CUT = "cut off by a crash"
    LOST = "cut off with its shard"
    UNFINISHED = "not ended in this trace"
    INITIALIZE = "initialize"
    STOP = "stop"
    DOWN = "not active"
    CRASH = "crash"
    STEP = "clock set"
    FAULT = "fault of the trace"
    ALIVE = "alive"
    HELD = "held"
    UNREACHABLE = "board out of reach"
    SILENT = "silent"
    EDITION = "edition"
    SERVER = "another server"


@dataclass(slots=True)
class Stretch:
    """Something that lasted, or happened at once; of a task, or of the scheduler as a whole."""

    kind: Kind
    task: str | None
    from_us: int
    to_us: int
    line: int
    end_line: int
    words: str = ""
    count: int = 1
    is_again: bool = False
    """Whether it is a run that makes up for the one before."""
    member: str = ""
    """Whose it was, in a cluster."""
    label: str = ""
    """The word at its mark, if that is another than its kind's."""


AGAIN = {Kind.CUT: "again after a crash", Kind.LOST: "again after a loss", Kind.FAILED: "retry"}
"""What a run is, by how the one before it ended."""


class Registration(NamedTuple):
    """From when to when a task was registered with a cron text."""

    task: str
    cron: str
    from_us: int
    to_us: int


class _Begun(NamedTuple):
    """A run or a call that has not ended."""

    at_us: int
    line: int
    number: int | None
    words: str = ""
    regs: list[tuple[str, str, float]] = []  # noqa: RUF012 (a NamedTuple's default, never changed)


def _ending(event: InitEnd | StopEnd) -> str:
    """How a call ended, if not well."""
    return ", given up" if event.void else "" if event.ok else ", raised"


def dues_of(cron: str, zone: tzinfo) -> Dues | None:
    """The dues of a cron text; None if it is none."""
    try:
        return Dues(cron, zone)
    except CronTextError:
        return None


def why_again(kind: Kind, ended_us: int, at_us: int, dues: Dues | None) -> str:
    """What can be said of the cause of a run at *at_us* from how and when the one before it ended."""
    if kind is Kind.FAILED and (dues is None or dues.within(ended_us, at_us)):
        return ""
    return AGAIN.get(kind, "")


class History:
    """The stretches of a trace, once, in the order of their ends; *admits* says which tasks are told of."""

    def __init__(self, trace: Trace, fault_lines: frozenset[int], admits: Callable[[str], bool]) -> None:
        self.registrations: list[Registration] = []
        self._trace = trace
        self._zone: tzinfo = zone_of(trace.header.tz)
        self._fault_lines = fault_lines
        self._admits = lru_cache(maxsize=None)(admits)
        self._registered: dict[str, tuple[str, int]] = {}
        self._schedule = lru_cache(maxsize=1000)(lambda cron: dues_of(cron, self._zone))
        self._running: dict[str, list[_Begun]] = defaultdict(list)
        self._calls: dict[tuple[Kind, int], _Begun] = {}
        self._last_runs: dict[str, tuple[Kind, int]] = {}
        self._down_from: _Begun | None = None
        self._is_stopped = False
        self._proc: str | None = None
        self._last: Position | None = None

    def __iter__(self) -> Iterator[Stretch]:
        for item in self._trace:
            if isinstance(item, Fault):
                if self._last is not None:
                    at_us = self._last.at_us
                    yield Stretch(Kind.FAULT, None, at_us, at_us, item.line, item.line, item.reason)
                continue
            if self._last is None:
                self._begin(item)
            line, at_us, event = item
            if line in self._fault_lines:
                yield Stretch(Kind.FAULT, None, at_us, at_us, line, line)
            if event.proc is not None and event.proc != self._proc:
                yield from self._other_process(event.proc)
            # Nearly all events are these two.
            if type(event) is RunStart:
                self._run_begins(line, at_us, event)
            elif type(event) is RunEnd:
                run = self._run_ended(line, at_us, event)
                if run is not None:
                    yield run
            else:
                yield from self._told(item)
            self._last = item
        if self._last is not None:
            yield from self._rest(self._last)

    def _begin(self, first: Position) -> None:
        self._down_from = _Begun(first.at_us, first.line, None)
        for task, number in self._trace.header.running:
            if self._admits(task):
                words = "begun before the trace"
                self._running[task].append(_Begun(first.at_us, first.line, number, words))

    def _told(self, position: Position) -> Iterator[Stretch]:
        """What has ended with this event."""
        line, at_us, event = position
        match event:
            case InitStart():
                self._calls[Kind.INITIALIZE, event.call] = _Begun(at_us, line, event.call, regs=event.regs)
                self._is_stopped = False
            case InitEnd():
                yield from self._initialize_ends(line, at_us, event)
            case StopStart():
                self._calls[Kind.STOP, event.call] = _Begun(at_us, line, event.call)
                self._goes_down(line, at_us)
            case StopEnd():
                yield from self._stop_ends(line, at_us, event)
            case Crash():
                yield from self._crash(line, at_us, "crash")
            case Missed() if event.run is not None and self._admits(event.id):
                self._taken(event.id, event.run)  # it was never called
            case ClockStep():
                words = f"clock set from {instant_text(micros(event.origin), self._zone)}"
                yield Stretch(Kind.STEP, None, at_us, at_us, line, line, words)
            case _:
                pass

    def _other_process(self, proc: str) -> Iterator[Stretch]:
        """A process that is followed by another without having stopped must have died."""
        if self._proc is not None and self._last is not None:
            is_busy = bool(self._calls) or any(self._running.values())
            if is_busy or not self._is_stopped:
                yield from self._crash(
                    self._last.line, self._last.at_us, "crash (seen by the process that came after)"
                )
        self._proc = proc

    def _run_begins(self, line: int, at_us: int, event: RunStart) -> None:
        if self._admits(event.id):
            words = self._why(event.id, at_us)
            self._running[event.id].append(_Begun(at_us, line, event.run, words))

    def _why(self, task: str, at_us: int) -> str:
        """What can be said of a run's cause from the run before it."""
        before = self._last_runs.get(task)
        if before is None or before[0] is Kind.SUCCEEDED:
            return ""
        known = self._registered.get(task)
        return why_again(*before, at_us, self._schedule(known[0]) if known else None)

    def _run_ended(self, line: int, at_us: int, event: RunEnd) -> Stretch | None:
        begun = self._taken(event.id, event.run) if self._admits(event.id) else None
        if begun is None:
            return None
        return self._run(Kind.SUCCEEDED if event.ok else Kind.FAILED, event.id, begun, at_us, line)

    def _taken(self, task: str, number: int | None) -> _Begun | None:
        """The run of *task* with *number*; the oldest if it has none."""
        running = self._running[task]
        for index, begun in enumerate(running):
            if number is None or begun.number == number:
                return running.pop(index)
        return None

    def _run(self, kind: Kind, task: str, begun: _Begun, at_us: int, line: int) -> Stretch:
        self._last_runs[task] = kind, at_us
        words = f"run {begun.number}" if begun.number is not None else "run"
        if begun.words:
            words += f", {begun.words}"
        # A clock that was set back may show an end before its start.
        to_us, is_again = max(begun.at_us, at_us), begun.words in AGAIN.values()
        return Stretch(kind, task, begun.at_us, to_us, begun.line, line, words, is_again=is_again)

    def _initialize_ends(self, line: int, at_us: int, event: InitEnd) -> Iterator[Stretch]:
        begun = self._calls.get((Kind.INITIALIZE, event.call))
        if begun is None:
            return
        words = f"initialize of {len(begun.regs):,} tasks{_ending(event)}"
        yield from self._call_ends(Kind.INITIALIZE, event.call, line, at_us, words)
        if event.void:
            return
        if not event.ok:
            self._goes_down(line, at_us)
            return
        self._register({task: cron for task, cron, _ in begun.regs}, at_us)
        is_stopping = any(kind is Kind.STOP for kind, _ in self._calls)
        if self._down_from is not None and not is_stopping:
            yield self._down(line, at_us)
            self._down_from = None

    def _stop_ends(self, line: int, at_us: int, event: StopEnd) -> Iterator[Stretch]:
        begun = self._calls.get((Kind.STOP, event.call))
        yield from self._call_ends(Kind.STOP, event.call, line, at_us, f"stop{_ending(event)}")
        self._is_stopped = not event.void
        # One that was given up has not ended the activity that it seemed to end.
        down = self._down_from
        if event.void and begun is not None and down is not None and down.line == begun.line:
            self._down_from = None

    def _call_ends(self, kind: Kind, call: int, line: int, at_us: int, words: str) -> Iterator[Stretch]:
        begun = self._calls.pop((kind, call), None)
        if begun is not None:
            yield Stretch(kind, None, begun.at_us, max(begun.at_us, at_us), begun.line, line, words)

    def _register(self, crons: dict[str, str], at_us: int) -> None:
        for task in [task for task, (cron, _) in self._registered.items() if crons.get(task) != cron]:
            self._unregister(task, at_us)
        for task, cron in crons.items():
            if task not in self._registered and self._admits(task):
                self._registered[task] = cron, at_us

    def _unregister(self, task: str, at_us: int) -> None:
        cron, from_us = self._registered.pop(task)
        self.registrations.append(Registration(task, cron, from_us, at_us))

    def _goes_down(self, line: int, at_us: int) -> None:
        if self._down_from is None:
            self._down_from = _Begun(at_us, line, None)

    def _down(self, line: int, at_us: int) -> Stretch:
        assert self._down_from is not None
        from_us = self._down_from.at_us
        return Stretch(
            Kind.DOWN, None, from_us, max(from_us, at_us), self._down_from.line, line, "not active"
        )

    def _crash(self, line: int, at_us: int, words: str) -> Iterator[Stretch]:
        yield Stretch(Kind.CRASH, None, at_us, at_us, line, line, words)
        yield from self._cut(Kind.CUT, at_us, line)
        self._goes_down(line, at_us)
        self._proc = None

    def _cut(self, kind: Kind, at_us: int, line: int) -> Iterator[Stretch]:
        """Nothing that is going on goes on."""
        for task, running in self._running.items():
            for begun in running:
                yield self._run(kind, task, begun, at_us, line)
        self._running.clear()
        for (call_kind, call), begun in self._calls.items():
            words = f"{call_kind} (call {call}), {kind}"
            yield Stretch(call_kind, None, begun.at_us, max(begun.at_us, at_us), begun.line, line, words)
        self._calls.clear()

    def _rest(self, last: Position) -> Iterator[Stretch]:
        """What was still going on at the end of the trace."""
        line, at_us, _ = last
        yield from self._cut(Kind.UNFINISHED, at_us, line)
        if self._down_from is not None:
            yield self._down(line, at_us)
        for task in list(self._registered):
            self._unregister(task, at_us)
