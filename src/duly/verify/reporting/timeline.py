"""What the time lines of a verification show: a second pass over the trace keeps only what is drawn.

There is one picture of the whole trace and one around each violation that is shown in full. A picture holds a
bounded number of stretches: when it is full, neighbours of one kind that lie close together become one that
counts them, so that the longest trace takes no more memory than its drawing. Nothing here knows what a
drawing looks like.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from itertools import compress, islice
from typing import NamedTuple

from duly.verify.dues import minute_start_us
from duly.verify.reporting.axis import OffsetChange, TimeAxis
from duly.verify.reporting.history import RegisteredTime, Stretch, StretchKind, TraceHistory, dues_of
from duly.verify.reporting.report import Report, ReportFinding
from duly.verify.trace import InitEnd, ListReconciled, RunEnd, RunStart, Trace, micros
from duly.verify.worlds import LONG_AGO_US

MOST_LANES = 40
MOST_STRETCHES = 3_000
MOST_IN_A_ZOOM = 300
_MOST_ZOOM_LANES = 6
_MOST_DUES = 200
"""Ticks in one lane; more could not be told apart."""
_MARGIN_US = 120_000_000
_FAR = (InitEnd, ListReconciled)
_FIRST_US, _LAST_US = -62_135_424_000_000_000, 253_402_128_000_000_000

_CALLS = frozenset({StretchKind.INITIALIZE, StretchKind.STOP})
"""Calls have a lane of their own; what else is of no task is drawn across all lanes."""


class Flag(NamedTuple):
    """Where a violation is marked."""

    number: int
    task: str | None
    at_us: int
    words: str


@dataclass(slots=True)
class TaskLane:
    """One task: its runs, and when it was due. *dues* is None where they are too many to be drawn."""

    runs: list[Stretch] = field(default_factory=list)
    dues: list[int] | None = field(default_factory=list)
    cron: str = ""


@dataclass(slots=True)
class TimeWindow:
    """A window of time and what is drawn in it."""

    from_us: int
    to_us: int
    most: int
    spared: frozenset[int] = frozenset()
    """The lines of runs that are never put together with others."""
    lanes: dict[str, TaskLane] = field(default_factory=dict)
    calls: list[Stretch] = field(default_factory=list)
    across: list[Stretch] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    changes: list[OffsetChange] = field(default_factory=list)
    nodes: dict[str, int] | None = None
    """The numbers of the nodes of a cluster, which give their colours; None where there is none."""
    lanes_left_out: int = 0
    _size: int = 0
    _gap_us: int = 0

    @property
    def is_thinned(self) -> bool:
        """Whether some marks stand for several."""
        return self._gap_us > 0

    def covers(self, stretch: Stretch) -> bool:
        """Whether any of it lies in the window."""
        return stretch.to_us >= self.from_us and stretch.from_us <= self.to_us

    def add(self, stretch: Stretch) -> None:
        """Draw a stretch, which is the picture's own from now on."""
        if stretch.task is not None:
            self.lanes[stretch.task].runs.append(stretch)
        else:
            (self.calls if stretch.kind in _CALLS else self.across).append(stretch)
        self._size += 1
        if self._size > self.most:
            self._thin()

    def _thin(self) -> None:
        """Put together what lies closer than a gap, and double the gap until there is room again."""
        span_us = max(self.to_us - self.from_us, 1)
        self._gap_us = self._gap_us or max(span_us // 1000, 1)
        self._merge()
        while self._size > self.most * 2 // 3 and self._gap_us <= span_us:
            self._gap_us *= 2
            self._merge()

    def settle(self) -> None:
        """Nothing more will be added: the last are thinned like the first."""
        if self.is_thinned:
            self._merge()

    def _merge(self) -> None:
        for row in self._rows():
            row[:] = self._merged_stretches(row)
        self._size = sum(map(len, self._rows()))

    def _rows(self) -> Iterator[list[Stretch]]:
        for lane in self.lanes.values():
            yield lane.runs
        yield self.calls
        yield self.across

    def _merged_stretches(self, row: list[Stretch]) -> Iterator[Stretch]:
        last: dict[tuple[StretchKind, str], Stretch] = {}
        for stretch in sorted(row, key=lambda each: each.from_us):
            before = last.get((stretch.kind, stretch.node))
            if stretch.line in self.spared or stretch.end_line in self.spared:
                yield stretch
            elif before is not None and stretch.from_us - before.to_us < self._gap_us:
                before.to_us = max(before.to_us, stretch.to_us)
                before.count += stretch.count
            else:
                last[stretch.kind, stretch.node] = stretch
                yield stretch


class NodeRow(NamedTuple):
    """One node of a cluster in a few words."""

    name: str
    from_us: int
    to_us: int
    processes: int
    starts: int
    cut_off: int
    """How many of its runs were cut off."""
    ending: str


class Pictures(NamedTuple):
    """All that is drawn of one verification."""

    overview: TimeWindow | None
    """None when the trace has no event."""
    zooms: dict[int, TimeWindow]
    """Around each violation that is shown in full, by its number."""
    nodes: tuple[NodeRow, ...] = ()
    """The nodes of a cluster, in the order of their first signs."""


class Collection:
    """The pictures while the trace is read; lanes may be added to the overview before it is."""

    def __init__(self, report: Report, events_us: Iterable[int], most_lanes: int) -> None:
        self.overview = _empty_overview(report, events_us, most_lanes)
        self.zooms = {finding.number: _zoom(report, finding) for finding in report.shown}
        # The overview is the last: what it gets it keeps, and may change.
        self.all = [*self.zooms.values(), self.overview]
        self._most_lanes = most_lanes
        self._by_task: dict[str, list[TimeWindow]] = defaultdict(list)
        for picture in self.all:
            for task in picture.lanes:
                self._by_task[task].append(picture)

    def admits(self, task: str) -> bool:
        """Whether a task, seen for the first time, is in any picture; the overview takes what it can."""
        if task not in self.overview.lanes:
            if len(self.overview.lanes) >= self._most_lanes:
                self.overview.lanes_left_out += 1
            else:
                self.overview.lanes[task] = TaskLane()
                self._by_task[task].append(self.overview)
        return task in self._by_task

    def add(self, stretch: Stretch) -> None:
        """Draw a stretch wherever it belongs."""
        for picture in self.all if stretch.task is None else self._by_task[stretch.task]:
            if picture.covers(stretch):
                picture.add(stretch if picture is self.overview else replace(stretch))

    def finish(self, registrations: Mapping[str, list[RegisteredTime]], zone: tzinfo) -> None:
        """Nothing more will be added: draw what can be worked out, dues and the changes of the clocks."""
        for picture in self.all:
            picture.settle()
            picture.changes = list(TimeAxis(picture.from_us, picture.to_us, zone).clock_changes())
            for task, lane in picture.lanes.items():
                _draw_dues(picture, lane, registrations.get(task, []), zone)


def pictures(report: Report, lines: Iterable[bytes]) -> Pictures:
    """What is drawn of the trace *lines*, which is read to its end."""
    first_us, last_us = report.outcome.first_us, report.outcome.last_us
    if first_us is None or last_us is None:
        return Pictures(None, {})
    collection = Collection(report, [first_us, last_us], MOST_LANES)
    faults = frozenset(fault.line for fault in report.outcome.faults)
    history = TraceHistory(Trace(lines), faults, collection.admits)
    for stretch in history:
        collection.add(stretch)
    by_task: dict[str, list[RegisteredTime]] = defaultdict(list)
    for registration in history.registrations:
        by_task[registration.task].append(registration)
    collection.finish(by_task, report.zone)
    return Pictures(collection.overview, collection.zooms)


def _empty_overview(report: Report, events_us: Iterable[int], most_lanes: int) -> TimeWindow:
    """A picture from the first to the last of *events_us*, with lanes for the tasks of violations."""
    # A clock that was set back may have the trace end before it began.
    times = [*events_us, *(finding.at_us for finding in report.shown)]
    air_us = max((max(times) - min(times)) // 50, 1_000_000)
    overview = TimeWindow(*_window(times, air_us), MOST_STRETCHES)
    overview.flags = [_flag(finding) for finding in report.shown]
    for finding in report.shown:
        for task in _tasks(finding)[: most_lanes - len(overview.lanes)]:
            overview.lanes.setdefault(task, TaskLane())
    return overview


def _window(times: list[int], margin_us: int) -> tuple[int, int]:
    """From before the first of *times* to after the last, within what datetime can hold."""
    return max(min(times) - margin_us, _FIRST_US), min(max(times) + margin_us, _LAST_US)


def _zoom(report: Report, finding: ReportFinding) -> TimeWindow:
    """The picture around one finding: from before its first event to after its last.

    When the list of a task took effect, perhaps a year ago, is worth a line, but not a picture of the year.
    """
    is_near = [not isinstance(each.event, _FAR) or finding.task is None for each in finding.evidence]
    times = [finding.at_us, *(each.at_us for each in compress(finding.evidence, is_near))]
    times = [each for each in times if each > LONG_AGO_US]
    if finding.is_liveness:
        times.append(finding.at_us + micros(report.header.delta_ms))
    margin_us = max(_MARGIN_US, (max(times) - min(times)) // 4)
    lines = frozenset(position.line for position in finding.evidence)
    picture = TimeWindow(*_window(times, margin_us), MOST_IN_A_ZOOM, lines)
    picture.lanes = {task: TaskLane() for task in _tasks(finding)}
    picture.flags = [_flag(finding)]
    return picture


def _tasks(finding: ReportFinding) -> list[str]:
    """The tasks that a finding concerns: its task, and those of its events."""
    named = [] if finding.task is None else [finding.task]
    events = [position.event for position in finding.evidence]
    named += [event.id for event in events if isinstance(event, RunStart | RunEnd)]
    return list(dict.fromkeys(named))[:_MOST_ZOOM_LANES]


def _flag(finding: ReportFinding) -> Flag:
    """The mark of a finding."""
    words = "; ".join(f"{names}: {reason}" for names, reason in finding.objections)
    return Flag(finding.number, finding.task, finding.at_us, words)


def _draw_dues(
    picture: TimeWindow, lane: TaskLane, registrations: list[RegisteredTime], zone: tzinfo
) -> None:
    within = [
        each for each in registrations if each.from_us <= picture.to_us and each.to_us >= picture.from_us
    ]
    lane.cron = within[-1].cron if within else ""
    upcoming = (due_us for each in within for due_us in _dues(picture, each, zone))
    dues = list(islice(upcoming, _MOST_DUES + 1))
    lane.dues = dues if len(dues) <= _MOST_DUES else None


def _dues(picture: TimeWindow, registration: RegisteredTime, zone: tzinfo) -> Iterator[int]:
    """The dues of one registration; that of the minute in which it took effect stands, too."""
    dues = dues_of(registration.cron, zone)
    if dues is None:
        return
    from_us = minute_start_us(max(registration.from_us, picture.from_us), zone) - 1
    yield from dues.between(from_us, min(registration.to_us, picture.to_us))
