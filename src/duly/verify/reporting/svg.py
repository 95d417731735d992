"""A picture of a time line as SVG: one lane for each task, time from left to right.

Colours and strokes are named by classes and live in the page's style, which knows light and dark. Whatever
came from a trace is escaped here, on its way into the text. Every mark says in its title what it is, so that
nothing is told by colour alone, and pointing at it needs no script.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, tzinfo
from html import escape
from typing import NamedTuple

from duly.verify.dues import face_at, instant_us
from duly.verify.reporting.history import Kind, Stretch
from duly.verify.reporting.report import instant_text
from duly.verify.reporting.timeline import Flag, Lane, Picture

_WIDTH, _GUTTER, _RIGHT = 1100, 170, 14
_TOP, _BOTTOM = 22, 34
_LEAST_PX = 2.5
_FLAG_PX = 7.5
_MOST_ROWS = 3
_MOST_TITLED_DUES = 60
_LONGEST_NAME = 24
_LABEL_PX = 6.2
"""The width of a letter, about."""
_MOST_TICKS = 9
_SECOND, _MINUTE, _HOUR, _DAY = (timedelta(seconds=each) for each in (1, 60, 3600, 86_400))
_STEPS = (
    *(_SECOND * each for each in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * each for each in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * each for each in (1, 2, 3, 6, 12)),
    *(_DAY * each for each in (1, 2, 7, 14, 28, 91, 182, 365, 1826, 3652, 36_525, 365_250)),
)
_CLASSES = {
    Kind.SUCCEEDED: "ok",
    Kind.FAILED: "failed",
    Kind.CUT: "cut",
    Kind.UNFINISHED: "unfinished",
    Kind.INITIALIZE: "initialize",
    Kind.STOP: "stop",
    Kind.CRASH: "crash",
    Kind.STEP: "step",
    Kind.FAULT: "fault",
}


def safe(text: str) -> str:
    """Text for a page: markup is inert, and what cannot be seen is shown in escaped form."""
    return escape("".join(char if char.isprintable() else ascii(char)[1:-1] for char in text))


class _Scale(NamedTuple):
    """Where an instant lies on the paper."""

    from_us: int
    to_us: int
    zone: tzinfo

    def x(self, at_us: int) -> float:
        share = (at_us - self.from_us) / max(self.to_us - self.from_us, 1)
        return round(_GUTTER + min(max(share, 0.0), 1.0) * (_WIDTH - _GUTTER - _RIGHT), 1)

    def text(self, at_us: int) -> str:
        return instant_text(at_us, self.zone)


def svg(picture: Picture, zone: tzinfo, *, label: str, lane_px: int) -> str:
    """The picture as an `svg` element; *label* says what it shows to those who cannot see it."""
    scale = _Scale(picture.from_us, picture.to_us, zone)
    tops = {name: _TOP + lane_px * index for index, name in enumerate((None, *picture.lanes))}
    foot = _TOP + lane_px * len(tops)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {foot + _BOTTOM}" role="img" aria-label="{safe(label)}">',
        *_grounds(picture, tops, foot, lane_px),
        *_downtimes(picture.across, scale, foot),
        *_axis(scale, foot),
        *_calls(picture.calls, scale, _TOP, lane_px),
    ]
    for name, lane in picture.lanes.items():
        parts += _lane(name, lane, scale, tops[name], lane_px)
    parts += _lines(picture, scale, foot)
    parts += _flags(picture.flags, tops, scale, foot)
    return "\n".join([*parts, "</svg>"])


def _grounds(picture: Picture, tops: dict[str | None, int], foot: int, lane_px: int) -> Iterator[str]:
    width = _WIDTH - _GUTTER - _RIGHT
    yield f'<rect class="ground" x="{_GUTTER}" y="{_TOP}" width="{width}" height="{foot - _TOP}"/>'
    for name, top in tops.items():
        middle = top + lane_px / 2 + 4
        shown, title, style = "scheduler", "calls of initialize and stop", "name calls"
        if name is not None:
            cron = picture.lanes[name].cron
            shown, title, style = _shortened(name), f"{name}: {cron}" if cron else name, "name"
        yield (
            f'<text class="{style}" x="{_GUTTER - 10}" y="{middle}" text-anchor="end">'
            f"{safe(shown)}<title>{safe(title)}</title></text>"
        )
        yield f'<line class="rule" x1="{_GUTTER}" y1="{top}" x2="{_WIDTH - _RIGHT}" y2="{top}"/>'


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _downtimes(across: Iterable[Stretch], scale: _Scale, foot: int) -> Iterator[str]:
    for stretch in across:
        if stretch.kind is Kind.DOWN:
            x, right = scale.x(stretch.from_us), scale.x(stretch.to_us)
            title = f"not active: {_between(stretch, scale)}"
            yield _rect("down", _Box(x, _TOP, right - x, foot - _TOP), title)


class _Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def _rect(style: str, box: _Box, title: str) -> str:
    place = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:.1f}" height="{box.height:g}"'
    return f'<rect class="{style}" {place}><title>{safe(title)}</title></rect>'


def _between(stretch: Stretch, scale: _Scale) -> str:
    lasted = timedelta(microseconds=stretch.to_us - stretch.from_us)
    return f"{scale.text(stretch.from_us)} to {scale.text(stretch.to_us)} ({_lasting(lasted)})"


def _lasting(lasted: timedelta) -> str:
    """A length of time in the unit that suits it."""
    seconds = lasted.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * size or (unit == "s" and seconds >= 1):
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1000:.4g} ms"


def _axis(scale: _Scale, foot: int) -> Iterator[str]:
    day = ""
    for face in _ticks(scale):
        x, today = scale.x(instant_us(face)), f"{face:%a %Y-%m-%d}"
        yield f'<line class="tick" x1="{x}" y1="{_TOP}" x2="{x}" y2="{foot + 4}"/>'
        has_time = face.hour or face.minute or face.second or day == today
        time = f"{face:%H:%M:%S}" if face.second else f"{face:%H:%M}"
        if has_time or _is_short(scale):
            yield _time("time", x, foot + 16, time)
        if today != day:
            yield _time("date", x, foot + (28 if _is_short(scale) else 16), today)
        day = today


def _time(style: str, x: float, y: int, text: str) -> str:
    """A time below its tick, moved where it would leave the paper."""
    half = len(text) * _LABEL_PX / 2
    middle = min(max(x, _GUTTER + half), _WIDTH - half)
    return f'<text class="{style}" x="{middle:g}" y="{y}" text-anchor="middle">{text}</text>'


def _is_short(scale: _Scale) -> bool:
    """Whether the ticks lie less than a day apart, and so have times."""
    return _step(scale) < _DAY


def _step(scale: _Scale) -> timedelta:
    span = timedelta(microseconds=scale.to_us - scale.from_us)
    return next((step for step in _STEPS if span / step <= _MOST_TICKS), _STEPS[-1])


def _ticks(scale: _Scale) -> Iterator[datetime]:
    """Round times of the zone's clocks; one that the clocks skip or repeat stands where it comes first."""
    step = _step(scale)
    face = face_at(scale.from_us, scale.zone).replace(tzinfo=None)
    floor = datetime.min + (face - datetime.min) // step * step  # noqa: DTZ901 (a face, not an instant)
    before_us = scale.from_us - 1
    for count in range(_MOST_TICKS + 3):
        try:
            tick = (floor + count * step).replace(tzinfo=scale.zone)
            at_us = instant_us(tick)
        except OverflowError:
            return
        if before_us < at_us <= scale.to_us:
            yield face_at(at_us, scale.zone)
            before_us = at_us


def _calls(calls: list[Stretch], scale: _Scale, top: int, lane_px: int) -> Iterator[str]:
    """Calls as bars, each with its name where there is room before the next."""
    in_order = sorted(calls, key=lambda each: each.from_us)
    rooms = [*(scale.x(call.from_us) for call in in_order[1:]), _WIDTH - _RIGHT]
    taken_x = 0.0
    for call, room_x in zip(in_order, rooms, strict=False):
        yield _bar(call, scale, top + lane_px * 0.25, lane_px * 0.5)
        taken_x = max(taken_x, scale.x(call.to_us), scale.x(call.from_us) + _LEAST_PX)
        text = call.kind.value if call.count == 1 else f"{call.count:,} × {call.kind.value}"
        if taken_x + 4 + len(text) * _LABEL_PX < room_x:
            yield f'<text class="call" x="{taken_x + 4:g}" y="{top + lane_px / 2 + 4:g}">{text}</text>'


def _bar(stretch: Stretch, scale: _Scale, y: float, height: float) -> str:
    x = scale.x(stretch.from_us)
    width = max(scale.x(stretch.to_us) - x, _LEAST_PX)
    style = _CLASSES[stretch.kind] + (" many" if stretch.count > 1 else "")
    return _rect(style, _Box(x, y, width, height), _words(stretch, scale))


def _words(stretch: Stretch, scale: _Scale) -> str:
    """What a mark says when it is pointed at."""
    if stretch.count > 1:
        return f"{stretch.count:,} × {stretch.kind.value}: {_between(stretch, scale)}"
    when = scale.text(stretch.from_us) if stretch.to_us == stretch.from_us else _between(stretch, scale)
    what = stretch.words or stretch.kind.value
    if stretch.task is not None:
        what = f"{stretch.task}, {what}: {stretch.kind.value}"
    is_one = stretch.line == stretch.end_line
    lines = f"line {stretch.line}" if is_one else f"lines {stretch.line} and {stretch.end_line}"
    return f"{what}, {when}, {lines}"


def _lane(name: str, lane: Lane, scale: _Scale, top: int, lane_px: int) -> Iterator[str]:
    yield from _dues(name, lane.dues or [], scale, top, lane_px)
    rows = _rows(lane.runs)
    depth = max((row for row, _ in rows), default=0) + 1
    height = (lane_px * 0.55 - 3) / depth
    for row, run in rows:
        y = top + lane_px - 3 - height * (depth - row)
        yield _bar(run, scale, y, height - (1 if depth > 1 else 0))
        if run.kind is Kind.FAILED and run.count == 1:
            x = max(scale.x(run.to_us), scale.x(run.from_us) + _LEAST_PX)
            yield f'<path class="failure" d="M{x:g} {y - 2:g}v{height + 3:g}"/>'
        if run.count == 1 and run.words.endswith(("retry", "crash")):
            place = f"M{scale.x(run.from_us):g} {y - 1:g}l-3.5 -5h7z"
            yield f'<path class="again" d="{place}"><title>{safe(run.words)}</title></path>'


def _rows(runs: list[Stretch]) -> list[tuple[int, Stretch]]:
    """Each run and its row in the lane: runs that overlap lie below each other."""
    ends_us: list[int | None] = [None] * _MOST_ROWS
    placed = []
    for run in sorted(runs, key=lambda each: (each.from_us, each.line)):
        free = [row for row, end_us in enumerate(ends_us) if end_us is None or end_us <= run.from_us]
        row = free[0] if free else _MOST_ROWS - 1
        ends_us[row] = max(ends_us[row] or run.to_us, run.to_us)
        placed.append((row, run))
    return placed


def _dues(name: str, dues: list[int], scale: _Scale, top: int, lane_px: int) -> Iterator[str]:
    marks = [f"M{scale.x(due_us):g} {top + 1}v{lane_px - 2}" for due_us in dues]
    if len(dues) > _MOST_TITLED_DUES:
        yield f'<path class="due" d="{"".join(marks)}"><title>{safe(name)} is due</title></path>'
        return
    for due_us, mark in zip(dues, marks, strict=True):
        title = safe(f"{name} is due: {scale.text(due_us)}")
        yield f'<path class="due" d="{mark}"><title>{title}</title></path>'


class _Crossing(NamedTuple):
    """A line across all lanes, with a word above it."""

    x: float
    style: str
    label: str
    title: str


def _lines(picture: Picture, scale: _Scale, foot: int) -> Iterator[str]:
    crossings = sorted([*_events(picture.across, scale), *_clock_changes(picture, scale)])
    free_x = 0.0
    for crossing in crossings:
        x, style, label, title = crossing
        yield (
            f'<g class="{style}"><path class="wide" d="M{x:g} {_TOP - 4}V{foot}"/>'
            f'<path d="M{x:g} {_TOP - 4}V{foot}"/><title>{safe(title)}</title></g>'
        )
        half = len(label) * _LABEL_PX / 2
        middle = min(max(x, _GUTTER + half), _WIDTH - half - 2)
        if middle - half >= free_x:
            place = f'x="{middle:g}" y="{_TOP - 9}" text-anchor="middle"'
            yield f'<text class="{style} label" {place}>{label}</text>'
            free_x = middle + half + 6


def _events(across: Iterable[Stretch], scale: _Scale) -> Iterator[_Crossing]:
    labels = {Kind.CRASH: "crash", Kind.STEP: "clock set", Kind.FAULT: "fault"}
    for stretch in across:
        if (label := labels.get(stretch.kind)) is not None:
            many = f"{stretch.count:,} × " if stretch.count > 1 else ""
            title = _words(stretch, scale)
            yield _Crossing(scale.x(stretch.from_us), _CLASSES[stretch.kind], f"{many}{label}", title)


def _clock_changes(picture: Picture, scale: _Scale) -> Iterator[_Crossing]:
    for change in picture.changes:
        by = _lasting(abs(change.by))
        way = "forward" if change.by > timedelta(0) else "back"
        title = f"the clocks of the zone go {way} by {by}: {scale.text(change.at_us)}"
        yield _Crossing(scale.x(change.at_us), "dst", f"clocks {way}", title)


def _flags(flags: list[Flag], tops: dict[str | None, int], scale: _Scale, foot: int) -> Iterator[str]:
    """The numbers of the violations; where several would cover each other, the first stands for all."""
    taken: dict[int, float] = {}
    for flag in sorted(flags, key=lambda each: (each.at_us, each.number)):
        top = tops.get(flag.task, _TOP)
        x = scale.x(flag.at_us)
        if x - taken.get(top, -100.0) < 2 * _FLAG_PX:
            continue
        taken[top] = x
        y = top + _FLAG_PX + 1
        yield (
            f'<a class="flag" href="#v{flag.number}"><path d="M{x:g} {_TOP}V{foot}"/>'
            f'<circle cx="{x:g}" cy="{y:g}" r="{_FLAG_PX}"/>'
            f'<text x="{x:g}" y="{y + 3.5:g}" text-anchor="middle">{flag.number}</text>'
            f"<title>{safe(flag.words)}</title></a>"
        )
