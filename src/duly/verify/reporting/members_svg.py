"""The rows of a cluster's picture as SVG: shards held by each member as a band, and what befell it.

A member has its colour in the whole page; there are eight, and names and titles tell what colours cannot.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import NamedTuple

from duly.verify.reporting.history import Kind, Stretch
from duly.verify.reporting.members import Failover, Level, Members
from duly.verify.reporting.paper import GUTTER, LABEL_PX, LEAST_PX, Box, Scale, lasting, rect, safe, shortened
from duly.verify.reporting.report import counted

COLOURS = 8
_SWATCH_PX = 4
_ARROW_PX = 5
_LEAST_LABELLED_PX = 14
_GROUNDS = {Kind.ALIVE: "alive", Kind.SILENT: "silent", Kind.UNREACHABLE: "unreachable"}


class Band(NamedTuple):
    """From where to where on the paper a row goes, from above to below."""

    top: float
    height: float

    @property
    def middle(self) -> float:
        """Half-way down."""
        return self.top + self.height / 2


def colour(members: Members, name: str) -> str:
    """The class that has the colour of a member."""
    return f"m{members.colours[name] % COLOURS}"


def member_drawn(name: str, members: Members, scale: Scale, band: Band) -> Iterator[str]:
    """The row of one member."""
    lane, own = members.lanes[name], colour(members, name)
    most = max((level.number for each in members.lanes.values() for level in each.levels), default=0)
    yield rect(f"cap {own}", Box(GUTTER - _SWATCH_PX, band.top + 1, _SWATCH_PX, band.height - 1), name)
    for kind, style in _GROUNDS.items():
        for mark in lane.marks:
            if mark.kind is kind:
                yield _ground(style, mark, scale, band)
    told = f"of {members.shards:,} shards held by {name}"
    yield from steps_drawn(own, lane.levels, told, scale, band, most=most)
    for mark in lane.marks:
        yield from _mark(mark, scale, band)


def _ground(style: str, mark: Stretch, scale: Scale, band: Band) -> str:
    x = scale.x(mark.from_us)
    width = max(scale.x(mark.to_us) - x, LEAST_PX)
    return rect(style, Box(x, band.top + 1, width, band.height - 1), scale.words(mark))


def steps_drawn(
    style: str, levels: list[Level], told: str, scale: Scale, band: Band, *, most: int
) -> Iterator[str]:
    """How many it was when, *most* filling the row; each with its number where there is room."""
    foot, full = band.top + band.height, band.height - 4
    line: list[str] = []
    before = 0
    for level, following in pairwise([*levels, Level(scale.to_us, 0)]):
        x, right = scale.x(level.at_us), scale.x(following.at_us)
        height = full * level.number / max(most, 1)
        if before or level.number:
            begin = f"H{x:g}" if before else f"M{x:g} {foot:g}"
            line.append(f"{begin}V{foot - height:g}")
        before = level.number
        if not level.number or right <= x:
            continue
        title = f"{level.number:,} {told}: {scale.span(level.at_us, following.at_us)}"
        yield rect(f"band {style}", Box(x, foot - height, right - x, height), title)
        text = f"{level.number:,}"
        if right - x > len(text) * LABEL_PX + 6:
            y = foot - (height / 2 - 4 if height >= _LEAST_LABELLED_PX else height + 3)
            yield f'<text class="level" x="{(x + right) / 2:g}" y="{y:g}" text-anchor="middle">{text}</text>'
    if line:
        end = f"H{scale.x(scale.to_us):g}" if before else ""
        yield f'<path class="steps {style}" d="{"".join(line)}{end}"/>'


def _mark(mark: Stretch, scale: Scale, band: Band) -> Iterator[str]:
    """A mark of something that happened at once."""
    x, y = scale.x(mark.from_us), band.middle
    title = f"<title>{safe(scale.words(mark))}</title>"
    match mark.kind:
        case Kind.CRASH:
            cross = f"M{x - 5:g} {y - 5:g}l10 10m0 -10l-10 10"
            yield f'<g class="death"><path class="wide" d="{cross}"/><path d="{cross}"/>{title}</g>'
        case Kind.STOP:
            yield f'<rect class="stop" x="{x - 4:g}" y="{y - 4:g}" width="8" height="8">{title}</rect>'
        case Kind.STEP:
            line = f"M{x:g} {band.top + 1:g}v{band.height - 1:g}"
            yield f'<g class="step"><path class="wide" d="{line}"/><path d="{line}"/>{title}</g>'
        case _:
            return


def holds_drawn(
    holds: Iterable[Stretch], members: Members, scale: Scale, band: Band, *, is_named: bool = False
) -> Iterator[str]:
    """Who held a shard when, as bars in the colours of the members."""
    for hold in holds:
        x = scale.x(hold.from_us)
        width = max(scale.x(hold.to_us) - x, LEAST_PX)
        style = f"{'hold named' if is_named else 'hold'} {colour(members, hold.member)}"
        yield rect(style, Box(x, band.top, width, band.height), scale.words(hold))
        text = shortened(hold.member)
        if is_named and band.height >= _LEAST_LABELLED_PX and width > len(text) * LABEL_PX + 8:
            yield f'<text class="level" x="{x + 4:g}" y="{band.middle + 4:g}">{safe(text)}</text>'


def failovers_drawn(failovers: Iterable[Failover], bands: Mapping[str, Band], scale: Scale) -> Iterator[str]:
    """Arrows from who lost shards to who took them; without a shaft where the loser has no row."""
    for failover in failovers:
        own, other = bands[failover.member], bands.get(failover.other)
        x, is_upwards = scale.x(failover.taken_us), other is not None and other.top > own.top
        tip = own.middle
        base = tip + _ARROW_PX * (1.6 if is_upwards else -1.6)
        shaft = ""
        if other is not None and other is not own:
            path = f"M{scale.x(failover.lost_us):g} {other.middle:g}L{x:g} {base:g}"
            shaft = f'<path class="wide" d="{path}"/><path d="{path}"/>'
        head = f"M{x:g} {tip:g}L{x - _ARROW_PX:g} {base:g}h{2 * _ARROW_PX}z"
        yield (
            f'<g class="failover">{shaft}<path class="head" d="{head}"/>'
            f"<title>{safe(_told(failover, scale))}</title></g>"
        )


def _told(failover: Failover, scale: Scale) -> str:
    shards = counted(failover.shards, "shard")
    of = f" of {failover.other}" if failover.other else ""
    after = lasting(timedelta(microseconds=max(failover.taken_us - failover.lost_us, 0)))
    when, where = scale.text(failover.taken_us), scale.chain.words(failover.line)
    return f"{failover.member} took over {shards}{of}, {after} after the loss, {when}, {where}"
