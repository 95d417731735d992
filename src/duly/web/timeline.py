"""The time line: what ran in the last 24 hours and what comes in the next, one lane for each service. Pure.

A lane is drawn in percent of its width, so it fits every screen without being measured. Runs that lie closer
together than can be seen apart become one bar, which shows the worst of them; a lane therefore has a bounded
number of shapes, however busy its service is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from duly.formatting import counted
from duly.instant import MINUTE_US, SECOND_US, Instant, instant_of
from duly.store.history import MissRow, RunRow, length_us
from duly.verify.reporting.axis import OffsetChange, TimeAxis
from duly.web import formatting
from duly.web.formatting import Moment
from duly.web.runs import run_mark, run_title

HOUR_US = 60 * MINUTE_US
REACHES = (24, 6, 1)
"""How many hours it looks in either direction: the usual first."""
CELLS = 288
"""What lies closer together than this part of its past is drawn as one: five minutes of a day."""
MOST_LANES = 14
MOST_SLOTS = 100
"""Slots of a lane that are drawn one by one; more become a band."""

_THINNEST = 0.02
"""Percent; a shape without any width is not drawn at all."""
_BADNESS = {"busy": 1, "calm": 0, "good": 0, "warn": 2, "bad": 3}


class LaneShape(NamedTuple):
    """One thing on a lane. *at* and *width* are percentages."""

    kind: str
    """run, miss, slot, band or retry."""
    tone: str
    at: str
    width: str
    title: str


class GridLine(NamedTuple):
    """A line across all lanes."""

    kind: str
    """hour, day, now or dst."""
    at: str
    label: str
    side: str
    """Which side of the line its label is on: so that it does not leave the picture."""


class ServiceLane(NamedTuple):
    """One service, or all that have no lane of their own."""

    label: str
    href: str
    shapes: tuple[LaneShape, ...]
    summary: str


class TimelineView(NamedTuple):
    hours: int
    """How far it looks in either direction."""
    lanes: tuple[ServiceLane, ...]
    ticks: tuple[GridLine, ...]
    legend: tuple[tuple[str, str, str], ...]
    """Of what occurs: kind, tone, word."""


class Window(NamedTuple):
    """The stretch of time that is shown: some hours before and after a moment."""

    moment: Moment
    hours: int = REACHES[0]

    @property
    def now_us(self) -> Instant:
        return self.moment.now_us

    @property
    def reach_us(self) -> int:
        """How far it looks in either direction."""
        return self.hours * HOUR_US

    @property
    def cell_us(self) -> int:
        """What lies closer together is drawn as one."""
        return self.reach_us // CELLS

    @property
    def from_us(self) -> Instant:
        return self.now_us - self.reach_us

    @property
    def to_us(self) -> Instant:
        return self.now_us + self.reach_us

    @property
    def axis(self) -> TimeAxis:
        return TimeAxis(self.from_us, self.to_us, self.moment.zone)

    def percent(self, at_us: Instant) -> float:
        """Where an instant lies, kept within."""
        return self.axis.share(at_us) * 100

    def holds(self, at_us: Instant) -> bool:
        return self.from_us <= at_us <= self.to_us


@dataclass(slots=True)
class Matter:
    id: str
    runs: list[RunRow] = field(default_factory=list)
    misses: list[MissRow] = field(default_factory=list)
    slots: list[Instant] = field(default_factory=list)
    """To come; a next one alone, where that is all that is known."""
    retries: list[Instant] = field(default_factory=list)
    kind: str = "services"
    """Which pages it has."""

    def expect(self, next_us: Instant | None, retry_us: Instant | None, window: Window) -> None:
        """Note when it comes next, if that is shown; a retry that answers a slot is only a retry."""
        if next_us is not None and next_us != retry_us and window.holds(next_us):
            self.slots.append(next_us)
        if retry_us is not None and window.holds(retry_us):
            self.retries.append(retry_us)

    def add_slots(self, slots: Iterable[Instant]) -> None:
        self.slots = sorted({*self.slots, *slots})


def window_at(moment: Moment, hours: int = REACHES[0]) -> Window:
    """The window around a moment; the same for a while, so that a page does not change without need."""
    passed_us = moment.now_us % (MINUTE_US if hours > 1 else 5 * SECOND_US)
    return Window(moment._replace(now_us=moment.now_us - passed_us), hours)


def hours_of(text: str) -> int:
    return next((hours for hours in REACHES if str(hours) == text), REACHES[0])


def pick_lanes(matters: Iterable[Matter], most: int = MOST_LANES) -> tuple[list[Matter], list[Matter]]:
    """Those that get a lane of their own, in the order in which they came, and the other ones."""
    telling = [one for one in matters if one.runs or one.misses or one.slots or one.retries]
    if len(telling) <= most:
        return telling, []
    ranked = sorted(range(len(telling)), key=lambda index: _weight(telling[index]), reverse=True)
    picked = set(ranked[: most - 1])
    return (
        [one for index, one in enumerate(telling) if index in picked],
        [one for index, one in enumerate(telling) if index not in picked],
    )


def _weight(matter: Matter) -> tuple[int, int, int]:
    newest = max(matter.runs, key=lambda row: row.started_us, default=None)
    is_bad = newest is not None and newest.result not in {None, "success"}
    is_running = newest is not None and newest.ended_us is None
    return (2 * is_bad + bool(matter.misses) + bool(matter.retries), int(is_running), len(matter.runs))


def timeline_of(own: Sequence[Matter], rest: Sequence[Matter], window: Window) -> TimelineView:
    """The picture of some lanes, and of one for all the rest."""
    lanes = [_lane(one, one.id, formatting.address(one.kind, one.id), window) for one in own]
    if rest:
        together = Matter(
            "",
            runs=[row for one in rest for row in one.runs],
            misses=[row for one in rest for row in one.misses],
            slots=sorted({slot_us for one in rest for slot_us in one.slots[:1]}),
        )
        lanes.append(_lane(together, f"{len(rest):,} others", f"/{rest[0].kind}", window))
    shapes = [shape for lane in lanes for shape in lane.shapes]
    return TimelineView(window.hours, tuple(lanes), tuple(_grid(window)), _legend(shapes))


def _lane(matter: Matter, label: str, href: str, window: Window) -> ServiceLane:
    shapes = (
        *_slots(matter.slots, window),
        *_runs(matter.runs, window),
        *(
            _point("retry", "warn", at_us, f"retry at {window.moment.clock(at_us)}", window)
            for at_us in matter.retries
            if window.holds(at_us)
        ),
        *_misses(matter.misses, window),
    )
    return ServiceLane(label, href, shapes, _summary(matter, window))


def _point(kind: str, tone: str, at_us: Instant, title: str, window: Window) -> LaneShape:
    return LaneShape(kind, tone, f"{window.percent(at_us):.3f}%", "0", title)


# --- runs ---


def _runs(rows: Sequence[RunRow], window: Window) -> Iterator[LaneShape]:
    cells: dict[int, list[RunRow]] = {}
    for row in sorted(rows, key=lambda row: row.started_us):
        end_us = _end_us(row, window.now_us)
        if end_us < window.from_us or row.started_us > window.to_us:
            continue
        if end_us - row.started_us > window.cell_us:
            yield _bar([row], window)
        else:
            cells.setdefault(row.started_us // window.cell_us, []).append(row)
    for together in cells.values():
        yield _bar(together, window)


def _end_us(row: RunRow, now_us: Instant) -> Instant:
    """Where a run ends in the picture: it is as long as it lasted, though the clock was set meanwhile."""
    return row.started_us + (length_us(row, now_us) or 0)


def _bar(rows: Sequence[RunRow], window: Window) -> LaneShape:
    """One run; or several that lie too close to be seen apart, which look like the worst of them."""
    tones = [run_mark(row).tone for row in rows]
    if len(rows) == 1:
        end_us, title = _end_us(rows[0], window.now_us), run_title(rows[0], window.moment)
    else:
        end_us, title = (
            rows[-1].started_us,
            f"{len(rows)} runs from {window.moment.clock(rows[0].started_us)}",
        )
        bad = tones.count("bad") + tones.count("warn")
        title += f": {bad} not successful" if bad else ""
    at, until = window.percent(rows[0].started_us), window.percent(end_us)
    tone = max(tones, key=lambda tone: _BADNESS[tone])
    return LaneShape("run", tone, f"{at:.3f}%", f"{max(until - at, _THINNEST):.3f}%", title)


# --- what did not run, and what will ---


def _misses(rows: Iterable[MissRow], window: Window) -> Iterator[LaneShape]:
    cells: dict[int, list[MissRow]] = {}
    for row in rows:
        if window.holds(row.at_us):
            cells.setdefault(row.at_us // window.cell_us, []).append(row)
    for together in cells.values():
        first = together[0]
        more = f", and {len(together) - 1} more" if len(together) > 1 else ""
        title = f"missed {window.moment.clock(first.at_us)}: {first.reason}{more}"
        yield _point("miss", "bad", first.at_us, title, window)


def _slots(slots: Sequence[Instant], window: Window) -> Iterator[LaneShape]:
    ahead = [at_us for at_us in slots if window.now_us <= at_us <= window.to_us]
    if len(ahead) > MOST_SLOTS:
        at, title = window.percent(ahead[0]), "fires too often to be drawn one by one"
        yield LaneShape("band", "calm", f"{at:.3f}%", f"{100 - at:.3f}%", title)
        return
    for at_us in ahead:
        yield _point("slot", "calm", at_us, f"next at {window.moment.clock(at_us)}", window)


def _summary(matter: Matter, window: Window) -> str:
    bad = sum(run_mark(row).tone == "bad" for row in matter.runs)
    parts = [counted(len(matter.runs), "run")]
    parts += [f"{bad} failed"] if bad else []
    parts += [f"{len(matter.misses)} missed"] if matter.misses else []
    ahead = sum(window.now_us <= at_us <= window.to_us for at_us in matter.slots)
    parts += [f"{ahead if ahead <= MOST_SLOTS else f'more than {MOST_SLOTS}'} to come"] if ahead else []
    return ", ".join(parts)


_LEGEND: Mapping[tuple[str, str], str] = {
    ("run", "good"): "success",
    ("run", "bad"): "failed",
    ("run", "warn"): "interrupted",
    ("run", "busy"): "running",
    ("miss", "bad"): "missed",
    ("retry", "warn"): "retry",
    ("slot", "calm"): "to come",
    ("band", "calm"): "to come, often",
}


def _legend(shapes: Iterable[LaneShape]) -> tuple[tuple[str, str, str], ...]:
    there = {(shape.kind, shape.tone) for shape in shapes}
    return tuple((*key, word) for key, word in _LEGEND.items() if key in there)


# --- the lines across ---


def _grid(window: Window) -> Iterator[GridLine]:
    changes = list(window.axis.clock_changes())
    for face in window.axis.ticks():
        at_us = instant_of(face)
        is_day = face.hour == face.minute == 0
        label = f"{face:%a} {face.day}" if is_day else f"{face:%H:%M}"
        has_room = _has_room(at_us, window, changes)
        yield _grid_line("day" if is_day else "hour", at_us, label if has_room else "", window)
    for at_us, by in changes:
        sign = "+" if by > timedelta(0) else "−"
        length = formatting.length(abs(by) // timedelta(microseconds=1))
        yield _grid_line("dst", at_us, f"clocks {sign}{length}", window)
    yield _grid_line("now", window.now_us, "now", window)


def _has_room(at_us: Instant, window: Window, changes: Sequence[OffsetChange]) -> bool:
    """Whether a label, which is at the right of its line, meets no other that matters more."""
    hour_us = window.reach_us // 24
    return (
        not -5 * hour_us < at_us - window.now_us < 2 * hour_us
        and at_us < window.to_us - 4 * hour_us
        and all(abs(at_us - change.at_us) > 6 * hour_us for change in changes)
    )


def _grid_line(kind: str, at_us: Instant, label: str, window: Window) -> GridLine:
    percent = window.percent(at_us)
    return GridLine(kind, f"{percent:.3f}%", label, "start" if percent < 92 else "end")
