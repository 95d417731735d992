"""What the time lines of a verification show: a second pass over the trace keeps only what is drawn.

There is one picture of the whole trace and one around each violation that is told in full. A picture holds a
bounded number of stretches: when it is full, neighbours of one kind that lie close together become one that
counts them, so that the longest trace takes no more memory than its drawing. Nothing here knows what a
drawing looks like.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta, tzinfo
from itertools import compress, islice
from typing import NamedTuple

from duly.verify.dues import face_at, minute_start_us
from duly.verify.reporting.history import History, Kind, Registration, Stretch, dues_of
from duly.verify.reporting.members import Biography, Members
from duly.verify.reporting.report import Finding, Report
from duly.verify.trace import Edition, InitEnd, RunEnd, RunStart, Taken, Trace, micros
from duly.verify.worlds import LONG_AGO_US

MOST_LANES = 40
MOST_STRETCHES = 3_000
MOST_IN_A_ZOOM = 300
_MOST_ZOOM_LANES = 6
_MOST_DUES = 200
"""Ticks in one lane; more could not be told apart."""
_MARGIN_US = 120_000_000
_DAY_US = 86_400_000_000
_MOST_DAYS = 10_000
_FAR = (InitEnd, Edition, Taken)
_FIRST_US, _LAST_US = -62_135_424_000_000_000, 253_402_128_000_000_000

ACROSS = frozenset({Kind.DOWN, Kind.CRASH, Kind.STEP, Kind.FAULT})
"""Drawn across all lanes; of the other kinds, those of no task are calls and have a lane of their own."""


class Flag(NamedTuple):
    """Where a violation is marked."""

    number: int
    task: str | None
    at_us: int
    words: str
    member: str = ""
    """In whose trace it became certain, in a cluster."""


class Change(NamedTuple):
    """The clocks of the zone change."""

    at_us: int
    by: timedelta


@dataclass(slots=True)
class Lane:
    """One task: its runs, and when it was due. *dues* is None where they are too many to be drawn."""

    runs: list[Stretch] = field(default_factory=list)
    dues: list[int] | None = field(default_factory=list)
    cron: str = ""
    holds: list[Stretch] = field(default_factory=list)
    """Which member of a cluster held its shard when."""


@dataclass(slots=True)
class Picture:
    """A window of time and what is drawn in it."""

    from_us: int
    to_us: int
    most: int
    spared: frozenset[int] = frozenset()
    """The lines of runs that are never put together with others."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    calls: list[Stretch] = field(default_factory=list)
    across: list[Stretch] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    members: Members | None = None
    """None where there is no cluster."""
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
        self.put(self._place(stretch), stretch)

    def put(self, row: list[Stretch], stretch: Stretch) -> None:
        """Draw a stretch in a row of this picture."""
        row.append(stretch)
        self._size += 1
        if self._size > self.most:
            self._thin()

    def _place(self, stretch: Stretch) -> list[Stretch]:
        if stretch.task is not None:
            return self.lanes[stretch.task].runs
        return self.across if stretch.kind in ACROSS else self.calls

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
            row[:] = self._merged(row)
        self._size = sum(map(len, self._rows()))

    def _rows(self) -> Iterator[list[Stretch]]:
        for lane in self.lanes.values():
            yield lane.runs
            yield lane.holds
        if self.members is not None:
            yield from (lane.marks for lane in self.members.lanes.values())
            yield from self.members.held.values()
        yield self.calls
        yield self.across

    def _merged(self, row: list[Stretch]) -> Iterator[Stretch]:
        last: dict[tuple[Kind, str], Stretch] = {}
        for stretch in sorted(row, key=lambda each: each.from_us):
            before = last.get((stretch.kind, stretch.member))
            if stretch.line in self.spared or stretch.end_line in self.spared:
                yield stretch
            elif before is not None and stretch.from_us - before.to_us < self._gap_us:
                before.to_us = max(before.to_us, stretch.to_us)
                before.count += stretch.count
            else:
                last[stretch.kind, stretch.member] = stretch
                yield stretch


class Pictures(NamedTuple):
    """All that is drawn of one verification."""

    overview: Picture | None
    """None when the trace has no event."""
    zooms: dict[int, Picture]
    """Around each violation that is told in full, by its number."""
    holders: Picture | None = None
    """Who held what, in a cluster."""
    biographies: tuple[Biography, ...] = ()


class _Collection:
    """The pictures while the trace is read."""

    def __init__(self, report: Report, overview: Picture) -> None:
        self.overview = overview
        self.zooms = {finding.number: zoom(report, finding) for finding in report.shown}
        # The overview is the last: what it gets it keeps, and may change.
        self._all = [*self.zooms.values(), overview]
        self._by_task: dict[str, list[Picture]] = defaultdict(list)
        for picture in self._all:
            for task in picture.lanes:
                self._by_task[task].append(picture)

    def admits(self, task: str) -> bool:
        """Whether a task, seen for the first time, is in any picture; the overview takes whom it can."""
        if task not in self.overview.lanes:
            if len(self.overview.lanes) >= MOST_LANES:
                self.overview.lanes_left_out += 1
            else:
                self.overview.lanes[task] = Lane()
                self._by_task[task].append(self.overview)
        return task in self._by_task

    def add(self, stretch: Stretch) -> None:
        """Draw a stretch wherever it belongs."""
        for picture in self._all if stretch.task is None else self._by_task[stretch.task]:
            if picture.covers(stretch):
                picture.add(stretch if picture is self.overview else replace(stretch))

    def finish(self, registrations: Iterable[Registration], zone: tzinfo) -> None:
        """Draw what can be worked out: dues, and the changes of the clocks."""
        by_task: dict[str, list[Registration]] = defaultdict(list)
        for registration in registrations:
            by_task[registration.task].append(registration)
        for picture in self._all:
            finish(picture, by_task, zone)


def finish(picture: Picture, registrations: Mapping[str, list[Registration]], zone: tzinfo) -> None:
    """Nothing more will be added to *picture*: draw what can be worked out."""
    picture.settle()
    picture.changes = list(_changes(picture.from_us, picture.to_us, zone))
    for task, lane in picture.lanes.items():
        _draw_dues(picture, lane, registrations.get(task, []), zone)


def pictures(report: Report, lines: Iterable[bytes]) -> Pictures:
    """What is drawn of the trace *lines*, which is read to its end."""
    first_us, last_us = report.outcome.first_us, report.outcome.last_us
    if first_us is None or last_us is None:
        return Pictures(None, {})
    overview = empty_overview(report, [first_us, last_us], MOST_LANES)
    overview.flags = [flag(finding) for finding in report.shown]
    collection = _Collection(report, overview)
    faults = frozenset(fault.line for fault in report.outcome.faults)
    history = History(Trace(lines), faults, collection.admits)
    for stretch in history:
        collection.add(stretch)
    collection.finish(history.registrations, report.zone)
    return Pictures(overview, collection.zooms)


def empty_overview(report: Report, events_us: Iterable[int], most_lanes: int) -> Picture:
    """A picture from the first to the last of *events_us*, with lanes for the tasks of violations."""
    # A clock that was set back may have the trace end before it began.
    times = [*events_us, *(finding.at_us for finding in report.shown)]
    air_us = max((max(times) - min(times)) // 50, 1_000_000)
    overview = Picture(*_window(times, air_us), MOST_STRETCHES)
    for finding in report.shown:
        for task in _tasks(finding)[: most_lanes - len(overview.lanes)]:
            overview.lanes.setdefault(task, Lane())
    return overview


def _window(times: list[int], margin_us: int) -> tuple[int, int]:
    """From before the first of *times* to after the last, within what datetime can hold."""
    return max(min(times) - margin_us, _FIRST_US), min(max(times) + margin_us, _LAST_US)


def zoom(report: Report, finding: Finding) -> Picture:
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
    picture = Picture(*_window(times, margin_us), MOST_IN_A_ZOOM, lines)
    picture.lanes = {task: Lane() for task in _tasks(finding)}
    picture.flags = [flag(finding)]
    return picture


def _tasks(finding: Finding) -> list[str]:
    """Whom a finding concerns: its task, and those of its events."""
    named = [] if finding.task is None else [finding.task]
    events = [position.event for position in finding.evidence]
    named += [event.id for event in events if isinstance(event, RunStart | RunEnd)]
    return list(dict.fromkeys(named))[:_MOST_ZOOM_LANES]


def flag(finding: Finding) -> Flag:
    """The mark of a finding."""
    words = "; ".join(f"{names}: {reason}" for names, reason in finding.objections)
    return Flag(finding.number, finding.task, finding.at_us, words)


def _draw_dues(picture: Picture, lane: Lane, registrations: list[Registration], zone: tzinfo) -> None:
    within = [
        each for each in registrations if each.from_us <= picture.to_us and each.to_us >= picture.from_us
    ]
    lane.cron = within[-1].cron if within else ""
    upcoming = (due_us for each in within for due_us in _dues(picture, each, zone))
    dues = list(islice(upcoming, _MOST_DUES + 1))
    lane.dues = dues if len(dues) <= _MOST_DUES else None


def _dues(picture: Picture, registration: Registration, zone: tzinfo) -> Iterator[int]:
    """The dues of one registration; that of the minute in which it took effect stands, too."""
    dues = dues_of(registration.cron, zone)
    if dues is None:
        return
    from_us = minute_start_us(max(registration.from_us, picture.from_us), zone) - 1
    yield from dues.between(from_us, min(registration.to_us, picture.to_us))


def _changes(from_us: int, to_us: int, zone: tzinfo) -> Iterator[Change]:
    """When the offset of *zone* changes: looked at day by day, then by halves; not over lifetimes."""
    if (to_us - from_us) // _DAY_US > _MOST_DAYS:
        return
    while from_us < to_us:
        next_us = min(from_us + _DAY_US, to_us)
        by = _offset(next_us, zone) - _offset(from_us, zone)
        if by:
            yield Change(_moment_of_change(from_us, next_us, zone), by)
        from_us = next_us


def _moment_of_change(low_us: int, high_us: int, zone: tzinfo) -> int:
    before = _offset(low_us, zone)
    while high_us - low_us > 1:
        middle_us = (low_us + high_us) // 2
        if _offset(middle_us, zone) == before:
            low_us = middle_us
        else:
            high_us = middle_us
    return high_us


def _offset(at_us: int, zone: tzinfo) -> timedelta:
    offset = face_at(at_us, zone).utcoffset()
    assert offset is not None
    return offset
