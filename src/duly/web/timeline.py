"""The time line: what ran in the last 24 hours and what comes in the next, one lane for each service. Pure.

A lane is drawn in percent of its width, so it fits every screen without being measured. Runs that lie closer
together than can be seen apart become one bar, which shows the worst of them; a lane therefore has a bounded
number of shapes, however busy its service is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from duly.instant import MINUTE_US, SECOND_US, Instant, datetime_at, instant_of
from duly.store.history import MissRow, RunRow, length_us
from duly.web import words

HOUR_US = 60 * MINUTE_US
REACHES = (24, 6, 1)
"""How many hours it looks in either direction: the usual first."""
CELLS = 288
"""What lies closer together than this part of its past is drawn as one: five minutes of a day."""
MOST_LANES = 14
MOST_SLOTS = 100
"""Slots of a lane that are drawn one by one; more become a band."""

_TICK_MINUTES = {24: 360, 6: 120, 1: 15}
_THINNEST = 0.02
"""Percent; a shape without any width is not drawn at all."""
_KIND = "services"
_BADNESS = {"busy": 1, "calm": 0, "good": 0, "warn": 2, "bad": 3}


class Shape(NamedTuple):
    """One thing on a lane. *at* and *width* are percentages."""

    kind: str
    """run, miss, slot, band or retry."""
    tone: str
    at: str
    width: str
    title: str


class Tick(NamedTuple):
    """A line across all lanes."""

    kind: str
    """hour, day, now or dst."""
    at: str
    label: str
    side: str
    """Which side of the line its label is on: so that it does not leave the picture."""


@dataclass(slots=True)
class Matter:
    """What a lane is made of."""

    id: str
    runs: list[RunRow] = field(default_factory=list)
    misses: list[MissRow] = field(default_factory=list)
    slots: list[Instant] = field(default_factory=list)
    """To come; a next one alone, where that is all that is known."""
    retries: list[Instant] = field(default_factory=list)
    kind: str = _KIND
    """Which pages it has."""


class Lane(NamedTuple):
    """One service, or all that have no lane of their own."""

    label: str
    href: str
    shapes: tuple[Shape, ...]
    summary: str


class Timeline(NamedTuple):
    """The whole picture."""

    hours: int
    """How far it looks in either direction."""
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    hidden: int
    """How many more services there are than lanes."""
    legend: tuple[tuple[str, str, str], ...]
    """Of what occurs: kind, tone, word."""


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of time that is shown."""

    now_us: Instant
    hours: int = REACHES[0]
    reach_us: int = field(init=False)
    """How far it looks in either direction."""
    cell_us: int = field(init=False)
    """What lies closer together is drawn as one."""
    from_us: Instant = field(init=False)
    to_us: Instant = field(init=False)

    def __post_init__(self) -> None:
        reach_us = self.hours * HOUR_US
        ends = {"from_us": self.now_us - reach_us, "to_us": self.now_us + reach_us}
        for name, value in {"reach_us": reach_us, "cell_us": reach_us // CELLS, **ends}.items():
            object.__setattr__(self, name, value)

    def percent(self, at_us: Instant) -> float:
        """Where an instant lies, kept within."""
        return min(max((at_us - self.from_us) / (2 * self.reach_us) * 100, 0.0), 100.0)

    def holds(self, at_us: Instant) -> bool:
        """Whether an instant is shown."""
        return self.from_us <= at_us <= self.to_us


def window_at(now_us: Instant, hours: int = REACHES[0]) -> Window:
    """The window around a moment; the same for a while, so that a page does not change without need."""
    return Window(now_us - now_us % (MINUTE_US if hours > 1 else 5 * SECOND_US), hours)


def hours_of(text: str) -> int:
    """How far somebody wants to look."""
    return next((hours for hours in REACHES if str(hours) == text), REACHES[0])


def chosen(matters: Iterable[Matter], most: int = MOST_LANES) -> tuple[list[Matter], list[Matter]]:
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
    runs = matter.runs
    newest = (runs[0] if len(runs) == 1 else max(runs, key=lambda row: row.id)) if runs else None
    is_bad = newest is not None and newest.result not in {None, "success"}
    is_running = newest is not None and newest.ended_us is None
    return (2 * is_bad + bool(matter.misses) + bool(matter.retries), int(is_running), len(matter.runs))


def drawn(
    own: Sequence[Matter],
    rest: Sequence[Matter],
    window: Window,
    zone: tzinfo,
    quiet: Sequence[Instant] = (),
) -> Timeline:
    """The picture of some lanes, and of one for all the rest.

    *quiet*: the next slots of still more services, of which there is nothing else to tell.
    """
    lanes = [_lane(one, one.id, words.address(one.kind, one.id), window, zone) for one in own]
    hidden = len(rest) + len(quiet)
    if hidden:
        together = Matter(
            "",
            runs=[row for one in rest for row in one.runs],
            misses=[row for one in rest for row in one.misses],
            slots=sorted({slot_us for one in rest for slot_us in one.slots[:1]}.union(quiet)),
        )
        kind = rest[0].kind if rest else _KIND
        lanes.append(_lane(together, f"{hidden:,} others", f"/{kind}", window, zone))
    shapes = [shape for lane in lanes for shape in lane.shapes]
    return Timeline(window.hours, tuple(lanes), tuple(_ticks(window, zone)), hidden, _legend(shapes))


def _lane(matter: Matter, label: str, href: str, window: Window, zone: tzinfo) -> Lane:
    shapes = (
        *_slots(matter.slots, window, zone),
        *_runs(matter.runs, window, zone),
        *_retries(matter.retries, window, zone),
        *_misses(matter.misses, window, zone),
    )
    return Lane(label, href, shapes, _summary(matter, window))


# --- runs ---


def _runs(rows: Sequence[RunRow], window: Window, zone: tzinfo) -> Iterator[Shape]:
    cells: dict[int, list[RunRow]] = {}
    for row in sorted(rows, key=lambda row: row.started_us):
        end_us = _end_us(row, window.now_us)
        if end_us < window.from_us or row.started_us > window.to_us:
            continue
        if end_us - row.started_us > window.cell_us:
            yield _run_shape(row, row.started_us, end_us, window, zone)
        else:
            cells.setdefault(row.started_us // window.cell_us, []).append(row)
    for together in cells.values():
        yield _together(together, window, zone)


def _end_us(row: RunRow, now_us: Instant) -> Instant:
    """Where a run ends in the picture: it is as long as it lasted, though the clock was set meanwhile."""
    return row.started_us + (length_us(row, now_us) or 0)


def _run_shape(row: RunRow, from_us: Instant, to_us: Instant, window: Window, zone: tzinfo) -> Shape:
    at, until = window.percent(from_us), window.percent(max(to_us, from_us))
    return Shape(
        "run",
        mark_of(row).tone,
        f"{at:.3f}%",
        f"{max(until - at, _THINNEST):.3f}%",
        run_title(row, window.now_us, zone),
    )


def _together(rows: Sequence[RunRow], window: Window, zone: tzinfo) -> Shape:
    tones = [mark_of(row).tone for row in rows]
    badness = [_BADNESS[tone] for tone in tones]
    worst = rows[badness.index(max(badness))]
    if len(rows) == 1:
        return _run_shape(worst, worst.started_us, _end_us(worst, window.now_us), window, zone)
    at, until = window.percent(rows[0].started_us), window.percent(rows[-1].started_us)
    bad = tones.count("bad") + tones.count("warn")
    told = f"{len(rows)} runs from {words.clock(rows[0].started_us, zone, window.now_us)}"
    title = f"{told}: {bad} not successful" if bad else told
    return Shape("run", mark_of(worst).tone, f"{at:.3f}%", f"{max(until - at, _THINNEST):.3f}%", title)


def mark_of(row: RunRow) -> words.Mark:
    """How the result of a run is shown."""
    return words.result_mark(row.result, is_running=row.ended_us is None, exit_code=row.exit_code)


def run_title(row: RunRow, now_us: Instant, zone: tzinfo) -> str:
    """A run in one line."""
    lasted = f" after {words.length(length_us(row))}" if row.ended_us is not None else ""
    began = words.clock(row.started_us, zone, now_us)
    return (
        f"run {row.id} of {words.visible(row.service)}, {began}: {mark_of(row).word}{lasted} ({row.reason})"
    )


# --- what did not run, and what will ---


def _misses(rows: Iterable[MissRow], window: Window, zone: tzinfo) -> Iterator[Shape]:
    cells: dict[int, list[MissRow]] = {}
    for row in rows:
        if window.holds(row.at_us):
            cells.setdefault(row.at_us // window.cell_us, []).append(row)
    for together in cells.values():
        first = together[0]
        more = f", and {len(together) - 1} more" if len(together) > 1 else ""
        title = f"missed {words.clock(first.at_us, zone, window.now_us)}: {first.reason}{more}"
        yield Shape("miss", "bad", f"{window.percent(first.at_us):.3f}%", "0", title)


def _slots(slots: Sequence[Instant], window: Window, zone: tzinfo) -> Iterator[Shape]:
    ahead = [at_us for at_us in slots if window.now_us <= at_us <= window.to_us]
    if len(ahead) > MOST_SLOTS:
        at = window.percent(ahead[0])
        yield Shape(
            "band", "calm", f"{at:.3f}%", f"{100 - at:.3f}%", "fires too often to be drawn one by one"
        )
        return
    for at_us in ahead:
        title = f"next at {words.clock(at_us, zone, window.now_us)}"
        yield Shape("slot", "calm", f"{window.percent(at_us):.3f}%", "0", title)


def _retries(retries: Iterable[Instant], window: Window, zone: tzinfo) -> Iterator[Shape]:
    for at_us in retries:
        if window.holds(at_us):
            title = f"retry at {words.clock(at_us, zone, window.now_us)}"
            yield Shape("retry", "warn", f"{window.percent(at_us):.3f}%", "0", title)


def _summary(matter: Matter, window: Window) -> str:
    bad = sum(mark_of(row).tone == "bad" for row in matter.runs)
    told = [_counted(len(matter.runs), "run")]
    told += [f"{bad} failed"] if bad else []
    told += [f"{len(matter.misses)} missed"] if matter.misses else []
    ahead = sum(window.now_us <= at_us <= window.to_us for at_us in matter.slots)
    told += [f"{ahead if ahead <= MOST_SLOTS else f'more than {MOST_SLOTS}'} to come"] if ahead else []
    return ", ".join(told)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


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


def _legend(shapes: Iterable[Shape]) -> tuple[tuple[str, str, str], ...]:
    there = {(shape.kind, shape.tone) for shape in shapes}
    return tuple((*key, word) for key, word in _LEGEND.items() if key in there)


# --- the lines across ---


def _ticks(window: Window, zone: tzinfo) -> Iterator[Tick]:
    changes = list(clock_changes(window, zone))
    first = datetime_at(window.from_us, zone).date() - timedelta(days=1)
    face = datetime(first.year, first.month, first.day)  # noqa: DTZ001 (what clocks show, until it has a zone)
    for _ in range(5 * 24 * 60 // _TICK_MINUTES[window.hours]):
        at_us = instant_of(face.replace(tzinfo=zone))
        if window.holds(at_us):
            is_day = face.hour == face.minute == 0
            label = f"{face:%a} {face.day}" if is_day else f"{face:%H:%M}"
            has_room = _has_room(at_us, window, changes)
            yield _tick("day" if is_day else "hour", at_us, label if has_room else "", window)
        face += timedelta(minutes=_TICK_MINUTES[window.hours])
    for at_us, change_us in changes:
        sign = "+" if change_us > 0 else "−"
        yield _tick("dst", at_us, f"clocks {sign}{words.length(abs(change_us))}", window)
    yield _tick("now", window.now_us, "now", window)


def _has_room(at_us: Instant, window: Window, changes: Sequence[tuple[Instant, int]]) -> bool:
    """Whether a label, which is at the right of its line, meets no other that matters more."""
    hour_us = window.reach_us // 24
    return (
        not -5 * hour_us < at_us - window.now_us < 2 * hour_us
        and at_us < window.to_us - 4 * hour_us
        and all(abs(at_us - change_us) > 6 * hour_us for change_us, _ in changes)
    )


def _tick(kind: str, at_us: Instant, label: str, window: Window) -> Tick:
    percent = window.percent(at_us)
    return Tick(kind, f"{percent:.3f}%", label, "start" if percent < 92 else "end")


def clock_changes(window: Window, zone: tzinfo) -> Iterator[tuple[Instant, int]]:
    """When within the window the clocks of *zone* are changed, and by how much."""
    at_us = window.from_us
    while at_us < window.to_us:
        until_us = at_us + HOUR_US
        change_us = _offset_us(until_us, zone) - _offset_us(at_us, zone)
        if change_us:
            yield _first_with(at_us, until_us, zone), change_us
        at_us = until_us


def _first_with(before_us: Instant, after_us: Instant, zone: tzinfo) -> Instant:
    """The first second at which the offset is that of *after_us*."""
    offset_us = _offset_us(after_us, zone)
    while after_us - before_us > 1_000_000:
        middle_us = (before_us + after_us) // 2
        if _offset_us(middle_us, zone) == offset_us:
            after_us = middle_us
        else:
            before_us = middle_us
    return after_us - after_us % 1_000_000


def _offset_us(at_us: Instant, zone: tzinfo) -> int:
    offset = datetime_at(at_us, zone).utcoffset()
    assert offset is not None
    return round(offset.total_seconds() * 1_000_000)


# --- the last runs of one service ---


class Column(NamedTuple):
    """One run in the strip of a service's last runs."""

    at: str
    width: str
    top: str
    height: str
    tone: str
    title: str


class Strip(NamedTuple):
    """The last runs of a service: their results side by side, and how long each took."""

    columns: tuple[Column, ...]
    longest: str
    median: str
    median_at: str | None
    """How far down the line of the median is."""
    summary: str


STRIP = 60
"""Runs in a strip."""


def strip_of(rows: Sequence[RunRow], now_us: Instant, zone: tzinfo) -> Strip | None:
    """The strip of some runs, which come newest first; None for none."""
    shown = list(reversed(rows[:STRIP]))
    if not shown:
        return None
    lasted = [length_us(row, now_us) or 0 for row in shown]
    longest_us = max(*lasted, 1)
    ended = sorted(us for us, row in zip(lasted, shown, strict=True) if row.ended_us is not None)
    median_us = ended[len(ended) // 2] if ended else None
    step = 100 / STRIP
    begin = 100 - step * len(shown)
    columns = []
    for index, (row, us) in enumerate(zip(shown, lasted, strict=True)):
        tall = max(us / longest_us * 100, 2.0)
        columns.append(
            Column(
                f"{begin + index * step:.3f}%",
                f"{step * 0.72:.3f}%",
                f"{100 - tall:.2f}%",
                f"{tall:.2f}%",
                mark_of(row).tone,
                run_title(row, now_us, zone),
            )
        )
    good = sum(row.result == "success" for row in shown)
    return Strip(
        tuple(columns),
        words.length(longest_us),
        words.length(median_us),
        None if median_us is None else f"{100 - median_us / longest_us * 100:.2f}%",
        f"the last {_counted(len(shown), 'run')}: {good} successful",
    )
