"""A picture of a time line as SVG: one row for each task, and each member of a cluster, time to the right.

Of one scheduler the first row has its calls. In a cluster each run has a cap in the colour of the member that
carried it out, and below it a strip tells who held its shard: where the two differ, something is wrong.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta, tzinfo
from typing import NamedTuple

from duly.verify.reporting.history import Kind, Stretch
from duly.verify.reporting.members import Members
from duly.verify.reporting.members_svg import (
    Band,
    colour,
    failovers_drawn,
    holds_drawn,
    member_drawn,
    steps_drawn,
)
from duly.verify.reporting.paper import (
    BOTTOM,
    GUTTER,
    LABEL_PX,
    LEAST_PX,
    RIGHT,
    TOP,
    WIDTH,
    Box,
    Crossing,
    Scale,
    axis,
    crossings_drawn,
    lasting,
    rect,
    safe,
    shortened,
)
from duly.verify.reporting.report import Chain
from duly.verify.reporting.timeline import Flag, Lane, Picture

_FLAG_PX = 7.5
_MOST_ROWS = 3
_MOST_TITLED_DUES = 60
_LONGEST_MEMBER = 16
_STRIP_PX, _CAP_PX, _LEAST_NAMED_PX = 4, 4, 9
_CLASSES = {
    Kind.SUCCEEDED: "ok",
    Kind.FAILED: "failed",
    Kind.CUT: "cut",
    Kind.LOST: "cut",
    Kind.UNFINISHED: "unfinished",
    Kind.INITIALIZE: "initialize",
    Kind.STOP: "stop",
    Kind.CRASH: "crash",
    Kind.STEP: "step",
    Kind.FAULT: "fault",
    Kind.EDITION: "edition",
    Kind.SERVER: "server",
}
_LABELS = {
    Kind.CRASH: "crash",
    Kind.STEP: "clock set",
    Kind.FAULT: "fault",
    Kind.EDITION: "edition",
    Kind.SERVER: "another server",
}


class _Row(NamedTuple):
    """A row of the picture; no two have the same kind and name."""

    kind: str
    name: str = ""


_CALLS, _FREE = _Row("calls"), _Row("free")


def svg(picture: Picture, zone: tzinfo, *, label: str, lane_px: int, chain: Chain | None = None) -> str:
    """The picture as an `svg` element; *label* says what it shows to those who cannot see it."""
    scale = Scale(picture.from_us, picture.to_us, zone, chain or Chain())
    tops = {row: TOP + lane_px * index for index, row in enumerate(_rows_of(picture))}
    foot = TOP + lane_px * len(tops)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {foot + BOTTOM}" role="group" aria-label="{safe(label)}">',
        *_grounds(picture, tops, foot, lane_px),
        *_downtimes(picture.across, scale, foot),
        *axis(scale, foot),
    ]
    if _CALLS in tops:
        parts += _calls(picture.calls, scale, tops[_CALLS], lane_px)
    if picture.members is not None:
        parts += _members(picture.members, scale, tops, lane_px)
    for name, lane in picture.lanes.items():
        parts += _lane(name, lane, picture.members, scale, Band(tops[_Row("task", name)], lane_px))
    parts += crossings_drawn([*_events(picture.across, scale), *_clock_changes(picture, scale)], foot)
    parts += _flags(picture.flags, tops, scale, foot)
    return "\n".join([*parts, "</svg>"])


def _rows_of(picture: Picture) -> Iterator[_Row]:
    members = picture.members
    if members is None:
        yield _CALLS
    else:
        if members.free is not None:
            yield _FREE
        yield from (_Row("member", name) for name in members.lanes)
        yield from (_Row("shard", str(shard)) for shard in members.held)
    yield from (_Row("task", name) for name in picture.lanes)


def _grounds(picture: Picture, tops: dict[_Row, int], foot: int, lane_px: int) -> Iterator[str]:
    width = WIDTH - GUTTER - RIGHT
    yield f'<rect class="ground" x="{GUTTER}" y="{TOP}" width="{width}" height="{foot - TOP}"/>'
    for row, top in tops.items():
        shown, title = _name(row, picture)
        style = "name" if row.kind in {"task", "member"} else "name calls"
        yield (
            f'<text class="{style}" x="{GUTTER - 10}" y="{top + lane_px / 2 + 4}" text-anchor="end">'
            f"{safe(shown)}<title>{safe(title)}</title></text>"
        )
        yield f'<line class="rule" x1="{GUTTER}" y1="{top}" x2="{WIDTH - RIGHT}" y2="{top}"/>'


def _name(row: _Row, picture: Picture) -> tuple[str, str]:
    """What a row is called, and what it says when it is pointed at."""
    match row.kind:
        case "task":
            cron = picture.lanes[row.name].cron
            return shortened(row.name), f"{row.name}: {cron}" if cron else row.name
        case "member":
            return shortened(row.name), f"member {row.name}"
        case "shard":
            return f"shard {row.name}", f"who held shard {row.name}"
        case "free":
            return "held by nobody", "shards without a living holder"
        case _:
            return "scheduler", "calls of initialize and stop"


def _downtimes(across: Iterable[Stretch], scale: Scale, foot: int) -> Iterator[str]:
    for stretch in across:
        if stretch.kind is Kind.DOWN:
            x, right = scale.x(stretch.from_us), scale.x(stretch.to_us)
            title = f"not active: {scale.span(stretch.from_us, stretch.to_us)}"
            yield rect("down", Box(x, TOP, right - x, foot - TOP), title)


def _members(members: Members, scale: Scale, tops: dict[_Row, int], lane_px: int) -> Iterator[str]:
    """The rows that only a cluster has."""
    if members.free is not None:
        told = f"of {members.shards:,} shards without a living holder"
        band = Band(tops[_FREE], lane_px)
        yield from steps_drawn("free", members.free, told, scale, band, most=members.shards)
    bands = {row.name: Band(top, lane_px) for row, top in tops.items() if row.kind == "member"}
    for name, band in bands.items():
        yield from member_drawn(name, members, scale, band)
    for shard, holds in members.held.items():
        rows = _rows(holds)
        bars = _bars(rows, tops[_Row("shard", str(shard))] + 4, lane_px - 8)
        for row, hold in rows:
            yield from holds_drawn([hold], members, scale, bars.band(row), is_named=True)
    yield from failovers_drawn(members.failovers, bands, scale)


def _calls(calls: list[Stretch], scale: Scale, top: int, lane_px: int) -> Iterator[str]:
    """Calls as bars, each with its name where there is room before the next."""
    in_order = sorted(calls, key=lambda each: each.from_us)
    rooms = [*(scale.x(call.from_us) for call in in_order[1:]), WIDTH - RIGHT]
    taken_x = 0.0
    for call, room_x in zip(in_order, rooms, strict=False):
        yield _bar(call, scale, top + lane_px * 0.25, lane_px * 0.5)
        taken_x = max(taken_x, scale.x(call.to_us), scale.x(call.from_us) + LEAST_PX)
        text = call.kind.value if call.count == 1 else f"{call.count:,} × {call.kind.value}"
        if taken_x + 4 + len(text) * LABEL_PX < room_x:
            yield f'<text class="call" x="{taken_x + 4:g}" y="{top + lane_px / 2 + 4:g}">{text}</text>'


def _bar(stretch: Stretch, scale: Scale, y: float, height: float) -> str:
    x = scale.x(stretch.from_us)
    width = max(scale.x(stretch.to_us) - x, LEAST_PX)
    style = _CLASSES[stretch.kind] + (" many" if stretch.count > 1 else "")
    return rect(style, Box(x, y, width, height), scale.words(stretch))


class _Bars(NamedTuple):
    """How the bars of a lane lie below each other."""

    top: float
    height: float
    depth: int

    def band(self, row: int) -> Band:
        """Where a bar goes."""
        return Band(self.top + self.height * row, self.height - (1 if self.depth > 1 else 0))


def _bars(rows: list[tuple[int, Stretch]], top: float, height: float) -> _Bars:
    depth = max((row for row, _ in rows), default=0) + 1
    return _Bars(top, height / depth, depth)


def _lane(name: str, lane: Lane, members: Members | None, scale: Scale, band: Band) -> Iterator[str]:
    yield from _dues(name, lane.dues or [], scale, band)
    top, bottom = band.top + band.height * 0.45, band.top + band.height - 3
    if members is not None:
        yield from holds_drawn(lane.holds, members, scale, Band(bottom - _STRIP_PX, _STRIP_PX))
        bottom -= _STRIP_PX
    rows = _rows(lane.runs)
    bars = _bars(rows, top, bottom - top)
    for row, run in rows:
        y, height = bars.band(row)
        yield _bar(run, scale, y, height)
        if run.kind is Kind.FAILED and run.count == 1:
            x = max(scale.x(run.to_us), scale.x(run.from_us) + LEAST_PX)
            yield f'<path class="failure" d="M{x:g} {y - 2:g}v{bars.height + 3:g}"/>'
        if run.count == 1 and run.is_again:
            place = f"M{scale.x(run.from_us):g} {y - 1:g}l-3.5 -5h7z"
            yield f'<path class="again" d="{place}"><title>{safe(run.words)}</title></path>'
    if members is not None:
        yield from _hands(rows, members, scale, bars)


def _hands(rows: list[tuple[int, Stretch]], members: Members, scale: Scale, bars: _Bars) -> Iterator[str]:
    """Whose each run is: a cap in the colour of the member, and its name where there is room."""
    taken_x = dict.fromkeys(range(_MOST_ROWS), 0.0)
    for (row, run), room_x in zip(rows, _rooms(rows, scale), strict=True):
        x, (y, height) = scale.x(run.from_us), bars.band(row)
        right = max(scale.x(run.to_us), x + LEAST_PX)
        place = f'x="{x:g}" y="{y:g}" width="{right - x:.1f}" height="{min(_CAP_PX, height / 2):g}"'
        yield f'<rect class="cap {colour(members, run.member)}" {place}/>'
        taken_x[row] = max(taken_x[row], right)
        text = shortened(run.member, _LONGEST_MEMBER)
        if height >= _LEAST_NAMED_PX and taken_x[row] + 4 + len(text) * LABEL_PX < room_x:
            yield f'<text class="who" x="{taken_x[row] + 3:g}" y="{y + height / 2 + 4:g}">{safe(text)}</text>'


def _rooms(rows: list[tuple[int, Stretch]], scale: Scale) -> list[float]:
    """How far to the right there is room beside each run in its row."""
    next_x = dict.fromkeys(range(_MOST_ROWS), float(WIDTH - RIGHT))
    rooms = []
    for row, run in reversed(rows):
        rooms.append(next_x[row])
        next_x[row] = scale.x(run.from_us)
    return rooms[::-1]


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


def _dues(name: str, dues: list[int], scale: Scale, band: Band) -> Iterator[str]:
    marks = [f"M{scale.x(due_us):g} {band.top + 1:g}v{band.height - 2:g}" for due_us in dues]
    if len(dues) > _MOST_TITLED_DUES:
        yield f'<path class="due" d="{"".join(marks)}"><title>{safe(name)} is due</title></path>'
        return
    for due_us, mark in zip(dues, marks, strict=True):
        title = safe(f"{name} is due: {scale.text(due_us)}")
        yield f'<path class="due" d="{mark}"><title>{title}</title></path>'


def _events(across: Iterable[Stretch], scale: Scale) -> Iterator[Crossing]:
    for stretch in across:
        if (label := _LABELS.get(stretch.kind)) is not None:
            shown = f"{stretch.count:,} × {label}" if stretch.count > 1 else stretch.label or label
            x, style, title = scale.x(stretch.from_us), _CLASSES[stretch.kind], scale.words(stretch)
            yield Crossing(x, style, shortened(shown), title)


def _clock_changes(picture: Picture, scale: Scale) -> Iterator[Crossing]:
    for change in picture.changes:
        by = lasting(abs(change.by))
        way = "forward" if change.by > timedelta(0) else "back"
        title = f"the clocks of the zone go {way} by {by}: {scale.text(change.at_us)}"
        yield Crossing(scale.x(change.at_us), "dst", f"clocks {way}", title)


def _flags(flags: list[Flag], tops: dict[_Row, int], scale: Scale, foot: int) -> Iterator[str]:
    """The numbers of the violations; where several would cover each other, the first stands for all."""
    taken: dict[int, float] = {}
    for flag in sorted(flags, key=lambda each: (each.at_us, each.number)):
        rows = [_Row("member", flag.member)]
        if flag.task is not None:
            rows.insert(0, _Row("task", flag.task))
        top = next((tops[row] for row in rows if row in tops), TOP)
        x = scale.x(flag.at_us)
        if x - taken.get(top, -100.0) < 2 * _FLAG_PX:
            continue
        taken[top] = x
        y = top + _FLAG_PX + 1
        yield (
            f'<a class="flag" href="#v{flag.number}"><path d="M{x:g} {TOP}V{foot}"/>'
            f'<circle cx="{x:g}" cy="{y:g}" r="{_FLAG_PX}"/>'
            f'<text x="{x:g}" y="{y + 3.5:g}" text-anchor="middle">{flag.number}</text>'
            f"<title>{safe(flag.words)}</title></a>"
        )
