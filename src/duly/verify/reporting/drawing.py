"""A picture laid out on paper: where its marks, labels and lines lie. The template `page.html` draws them.

One row for each task, time to the right. Of one scheduler the first row has its calls. In a cluster each run
has a cap in the colour of its node. Colours and strokes are named by classes and live in the page's style,
which knows light and dark. Every mark says in its title what it is, so that nothing is shown by colour alone,
and pointing at it needs no script.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta, tzinfo
from typing import NamedTuple

from duly.formatting import shortened, spelled_length
from duly.instant import duration_us
from duly.verify.dues import instant_us
from duly.verify.properties import instant_text
from duly.verify.reporting.axis import TimeAxis
from duly.verify.reporting.history import Stretch, StretchKind
from duly.verify.reporting.report import Chain
from duly.verify.reporting.timeline import Flag, TaskLane, TimeWindow

WIDTH, GUTTER, RIGHT, TOP = 1100, 170, 14, 22
FLAG_PX = 7.5
COLOURS = 8
"""Of nodes; names and titles show what these cannot."""
_LEAST_PX = 2.5
_LABEL_PX = 6.2
"""The width of a letter, about."""
_LEAST_NAMED_PX = 9
_LONGEST_NAME, _LONGEST_NODE = 24, 16
_MOST_ROWS = 3
_MOST_TITLED_DUES = 60
_CLASSES = {StretchKind.SUCCEEDED: "ok", StretchKind.LOST: "cut"}
"""The others are classes by their names."""
_LABELS = {
    StretchKind.CRASH: "crash",
    StretchKind.STEP: "clock set",
    StretchKind.FAULT: "fault",
    StretchKind.LIST: "list",
    StretchKind.SERVER: "another server",
}


@dataclass(slots=True)
class Bar:
    """A run or a call. *again* says for what it makes up, *label* what stands to its right."""

    style: str
    x: float
    y: float
    width: float
    height: float
    title: str
    is_failed: bool = False
    again: str = ""
    cap: int | None = None
    label: str = ""
    label_x: float = 0.0


class LaneRow(NamedTuple):
    name: str
    title: str
    style: str
    top: float
    dues: list[tuple[str, str]]
    """The path of each mark, or of all together, and its title."""
    bars: list[Bar]


class Crossing(NamedTuple):
    """A line across all rows, with a word above it where there is room."""

    x: float
    style: str
    label: str
    title: str
    label_x: float | None = None


class Drawing:
    """A picture on its paper; *label* says what it shows to those who cannot see it."""

    def __init__(self, picture: TimeWindow, zone: tzinfo, chain: Chain, *, label: str, lane_px: int) -> None:
        self.label = label
        self.lane_px = lane_px
        self._picture = picture
        self._chain = chain
        self._axis = TimeAxis(picture.from_us, picture.to_us, zone)
        self.rows = list(self._rows())
        self.foot = TOP + lane_px * len(self.rows)

    # --- words ---

    def _text(self, at_us: int) -> str:
        return instant_text(at_us, self._axis.zone)

    def _span(self, from_us: int, to_us: int) -> str:
        return f"{self._text(from_us)} to {self._text(to_us)} ({spelled_length(to_us - from_us)})"

    def _where(self, stretch: Stretch) -> str:
        """The lines of the trace that a stretch is made of."""
        if stretch.line == stretch.end_line:
            return self._chain.words(stretch.line)
        if len(self._chain.names) > 1:
            return f"{self._chain.words(stretch.line)} and {self._chain.words(stretch.end_line)}"
        return f"{self._chain.unit}s {stretch.line} and {stretch.end_line}"

    def _words(self, stretch: Stretch) -> str:
        """What a mark says when it is pointed at."""
        between = self._span(stretch.from_us, stretch.to_us)
        if stretch.count > 1:
            return f"{stretch.count:,} × {stretch.kind.value}: {between}"
        when = self._text(stretch.from_us) if stretch.to_us == stretch.from_us else between
        what = stretch.words or stretch.kind.value
        if stretch.task is not None:
            what = f"{stretch.task}, {what}: {stretch.kind.value}"
        return f"{what}, {when}, {self._where(stretch)}" if stretch.line else f"{what}, {when}"

    # --- rows ---

    def _x(self, at_us: int) -> float:
        """How far to the right an instant is; what lies outside the window is at its edge."""
        return round(GUTTER + self._axis.share(at_us) * (WIDTH - GUTTER - RIGHT), 1)

    def _rows(self) -> Iterator[LaneRow]:
        top, height = TOP, self.lane_px
        if self._picture.nodes is None:
            calls = [
                (0, self._bar(call, top + height * 0.25, height * 0.5, _call_label(call)))
                for call in sorted(self._picture.calls, key=lambda each: each.from_us)
            ]
            bars = _with_labels(calls)
            yield LaneRow("scheduler", "calls of initialize and stop", "name calls", top, [], bars)
            top += height
        for name, lane in self._picture.lanes.items():
            title = f"{name}: {lane.cron}" if lane.cron else name
            dues = list(self._dues(name, lane.dues or [], top))
            yield LaneRow(shortened(name, _LONGEST_NAME), title, "name", top, dues, self._runs(lane, top))
            top += height

    def _bar(self, stretch: Stretch, y: float, height: float, label: str = "") -> Bar:
        x = self._x(stretch.from_us)
        width = round(max(self._x(stretch.to_us) - x, _LEAST_PX), 1)
        style = _CLASSES.get(stretch.kind, stretch.kind.name.lower()) + (" many" if stretch.count > 1 else "")
        return Bar(style, x, y, width, height, self._words(stretch), label=label)

    def _runs(self, lane: TaskLane, top: float) -> list[Bar]:
        placed = _with_rows(lane.runs)
        depth = max((row for row, _ in placed), default=0) + 1
        band = (self.lane_px * 0.55 - 3) / depth
        bars = []
        for row, run in placed:
            y = top + self.lane_px * 0.45 + band * row
            bar = self._bar(run, y, band - (1 if depth > 1 else 0))
            bar.is_failed = run.kind is StretchKind.FAILED and run.count == 1
            bar.again = run.words if run.count == 1 and run.is_again else ""
            if self._picture.nodes is not None:
                bar.cap = self._picture.nodes[run.node] % COLOURS
                bar.label = shortened(run.node, _LONGEST_NODE) if bar.height >= _LEAST_NAMED_PX else ""
            bars.append((row, bar))
        return _with_labels(bars)

    def _dues(self, name: str, dues: list[int], top: float) -> Iterator[tuple[str, str]]:
        marks = [f"M{self._x(due_us):g} {top + 1:g}v{self.lane_px - 2:g}" for due_us in dues]
        if len(dues) > _MOST_TITLED_DUES:
            yield "".join(marks), f"{name} is due"
            return
        for due_us, mark in zip(dues, marks, strict=True):
            yield mark, f"{name} is due: {self._text(due_us)}"

    # --- across all rows ---

    def downtimes(self) -> Iterator[tuple[float, float, str]]:
        for each in self._picture.across:
            if each.kind is StretchKind.DOWN:
                x, words = self._x(each.from_us), f"not active: {self._span(each.from_us, each.to_us)}"
                yield x, round(self._x(each.to_us) - x, 1), words

    def ticks(self) -> Iterator[tuple[float, list[tuple[str, float, float, str]]]]:
        """Round times: where each is, and what stands below it (style, place, text)."""
        day = ""
        has_times = not self._axis.has_days_only
        for face in self._axis.ticks():
            x, today = self._x(instant_us(face)), f"{face:%a %Y-%m-%d}"
            texts: list[tuple[str, float, float, str]] = []
            if has_times or face.hour or face.minute or face.second or day == today:
                time = f"{face:%H:%M:%S}" if face.second else f"{face:%H:%M}"
                texts.append(("time", _kept_within(x, time), self.foot + 16, time))
            if today != day:
                y = self.foot + (28 if has_times else 16)
                texts.append(("date", _kept_within(x, today), y, today))
            day = today
            yield x, texts

    def crossings(self) -> Iterator[Crossing]:
        """The lines, and the words where there is room for them."""
        free_x = 0.0
        for each in sorted([*self._events(), *self._clock_changes()]):
            half = len(each.label) * _LABEL_PX / 2
            middle = _kept_within(each.x, each.label, margin=2)
            if middle - half < free_x:
                yield each
                continue
            free_x = middle + half + 6
            yield each._replace(label_x=middle)

    def _events(self) -> Iterator[Crossing]:
        for each in self._picture.across:
            if (label := _LABELS.get(each.kind)) is not None:
                shown = f"{each.count:,} × {label}" if each.count > 1 else each.label or label
                style = each.kind.name.lower()
                name = shortened(shown, _LONGEST_NAME)
                yield Crossing(self._x(each.from_us), style, name, self._words(each))

    def _clock_changes(self) -> Iterator[Crossing]:
        for change in self._picture.changes:
            way = "forward" if change.by > timedelta(0) else "back"
            by, when = spelled_length(duration_us(abs(change.by))), self._text(change.at_us)
            title = f"the clocks of the zone go {way} by {by}: {when}"
            yield Crossing(self._x(change.at_us), "dst", f"clocks {way}", title)

    def flags(self) -> Iterator[tuple[float, float, Flag]]:
        """The numbers of the violations; where several would cover each other, the first stands for all."""
        taken: dict[float, float] = {}
        tops = dict(
            zip(reversed(self._picture.lanes), (row.top for row in reversed(self.rows)), strict=False)
        )
        for flag in sorted(self._picture.flags, key=lambda each: (each.at_us, each.number)):
            top, x = tops.get(flag.task or "", TOP), self._x(flag.at_us)
            if x - taken.get(top, -100.0) >= 2 * FLAG_PX:
                taken[top] = x
                yield x, top + FLAG_PX + 1, flag


def _call_label(call: Stretch) -> str:
    return call.kind.value if call.count == 1 else f"{call.count:,} × {call.kind.value}"


def _with_labels(bars: Sequence[tuple[int, Bar]]) -> list[Bar]:
    """The bars, each with its row; labels are left out where there is no room before the next of that row."""
    next_x = dict.fromkeys(range(_MOST_ROWS), float(WIDTH - RIGHT))
    rooms = []
    for row, bar in reversed(bars):
        rooms.append(next_x[row])
        next_x[row] = bar.x
    taken_x = dict.fromkeys(range(_MOST_ROWS), 0.0)
    for (row, bar), room_x in zip(bars, reversed(rooms), strict=True):
        taken_x[row] = max(taken_x[row], bar.x + bar.width)
        bar.label_x = taken_x[row] + 4
        if bar.label_x + len(bar.label) * _LABEL_PX >= room_x:
            bar.label = ""
    return [bar for _, bar in bars]


def _with_rows(runs: Iterable[Stretch]) -> list[tuple[int, Stretch]]:
    """Each run and its row in the lane: runs that overlap lie below each other."""
    ends_us: list[int | None] = [None] * _MOST_ROWS
    placed = []
    for run in sorted(runs, key=lambda each: (each.from_us, each.line)):
        free = [row for row, end_us in enumerate(ends_us) if end_us is None or end_us <= run.from_us]
        row = free[0] if free else _MOST_ROWS - 1
        ends_us[row] = max(ends_us[row] or run.to_us, run.to_us)
        placed.append((row, run))
    return placed


def _kept_within(x: float, text: str, margin: float = 0) -> float:
    """The middle of a text at *x*, moved where it would leave the paper."""
    half = len(text) * _LABEL_PX / 2
    return min(max(x, GUTTER + half), WIDTH - half - margin)
