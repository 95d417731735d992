"""The paper that time lines are drawn on: where an instant lies, the ticks below, lines across all rows.

Colours and strokes are named by classes and live in the page's style, which knows light and dark. Whatever
came from a trace is escaped on its way into the text. Every mark says in its title what it is, so that
nothing is told by colour alone, and pointing at it needs no script.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, tzinfo
from html import escape
from typing import NamedTuple

from duly.verify.dues import face_at, instant_us
from duly.verify.reporting.history import Stretch
from duly.verify.reporting.report import Chain, instant_text

WIDTH, GUTTER, RIGHT = 1100, 170, 14
TOP, BOTTOM = 22, 34
LEAST_PX = 2.5
LABEL_PX = 6.2
"""The width of a letter, about."""
_MOST_TICKS = 9
_SECOND, _MINUTE, _HOUR, _DAY = (timedelta(seconds=each) for each in (1, 60, 3600, 86_400))
_STEPS = (
    *(_SECOND * each for each in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * each for each in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * each for each in (1, 2, 3, 6, 12)),
    *(_DAY * each for each in (1, 2, 7, 14, 28, 91, 182, 365, 1826, 3652, 36_525, 365_250)),
)


def safe(text: str) -> str:
    """Text for a page: markup is inert, and what cannot be seen is shown in escaped form."""
    return escape("".join(char if char.isprintable() else ascii(char)[1:-1] for char in text))


class Scale(NamedTuple):
    """Where an instant lies on the paper, and how times and places are written."""

    from_us: int
    to_us: int
    zone: tzinfo
    chain: Chain

    def x(self, at_us: int) -> float:
        """How far to the right it is; what lies outside the window is at its edge."""
        share = (at_us - self.from_us) / max(self.to_us - self.from_us, 1)
        return round(GUTTER + min(max(share, 0.0), 1.0) * (WIDTH - GUTTER - RIGHT), 1)

    def text(self, at_us: int) -> str:
        """The time in words."""
        return instant_text(at_us, self.zone)

    def span(self, from_us: int, to_us: int) -> str:
        """From when to when, and how long that is."""
        lasted = timedelta(microseconds=to_us - from_us)
        return f"{self.text(from_us)} to {self.text(to_us)} ({lasting(lasted)})"

    def where(self, stretch: Stretch) -> str:
        """The lines in which a stretch is told."""
        if stretch.line == stretch.end_line:
            return self.chain.words(stretch.line)
        if len(self.chain.names) > 1:
            return f"{self.chain.words(stretch.line)} and {self.chain.words(stretch.end_line)}"
        return f"{self.chain.unit}s {stretch.line} and {stretch.end_line}"

    def words(self, stretch: Stretch) -> str:
        """What a mark says when it is pointed at."""
        between = self.span(stretch.from_us, stretch.to_us)
        if stretch.count > 1:
            return f"{stretch.count:,} × {stretch.kind.value}: {between}"
        when = self.text(stretch.from_us) if stretch.to_us == stretch.from_us else between
        what = stretch.words or stretch.kind.value
        if stretch.task is not None:
            what = f"{stretch.task}, {what}: {stretch.kind.value}"
        return f"{what}, {when}, {self.where(stretch)}" if stretch.line else f"{what}, {when}"


def lasting(lasted: timedelta) -> str:
    """A length of time in the unit that suits it."""
    seconds = lasted.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * size or (unit == "s" and seconds >= 1):
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1000:.4g} ms"


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


def rect(style: str, box: Box, title: str) -> str:
    """A rectangle that says what it is."""
    place = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:.1f}" height="{box.height:g}"'
    return f'<rect class="{style}" {place}><title>{safe(title)}</title></rect>'


def shortened(name: str, longest: int = 24) -> str:
    """A name that fits."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


# --- the axis ---


def axis(scale: Scale, foot: int) -> Iterator[str]:
    """Ticks at round times, and these below."""
    day = ""
    for face in _ticks(scale):
        x, today = scale.x(instant_us(face)), f"{face:%a %Y-%m-%d}"
        yield f'<line class="tick" x1="{x}" y1="{TOP}" x2="{x}" y2="{foot + 4}"/>'
        has_time = face.hour or face.minute or face.second or day == today
        time = f"{face:%H:%M:%S}" if face.second else f"{face:%H:%M}"
        if has_time or _is_short(scale):
            yield _time("time", x, foot + 16, time)
        if today != day:
            yield _time("date", x, foot + (28 if _is_short(scale) else 16), today)
        day = today


def _time(style: str, x: float, y: int, text: str) -> str:
    """A time below its tick, moved where it would leave the paper."""
    half = len(text) * LABEL_PX / 2
    middle = min(max(x, GUTTER + half), WIDTH - half)
    return f'<text class="{style}" x="{middle:g}" y="{y}" text-anchor="middle">{text}</text>'


def _is_short(scale: Scale) -> bool:
    """Whether the ticks lie less than a day apart, and so have times."""
    return _step(scale) < _DAY


def _step(scale: Scale) -> timedelta:
    span = timedelta(microseconds=scale.to_us - scale.from_us)
    return next((step for step in _STEPS if span / step <= _MOST_TICKS), _STEPS[-1])


def _ticks(scale: Scale) -> Iterator[datetime]:
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


# --- lines across ---


class Crossing(NamedTuple):
    """A line across all rows, with a word above it."""

    x: float
    style: str
    label: str
    title: str


def crossings_drawn(crossings: Iterable[Crossing], foot: int) -> Iterator[str]:
    """The lines, and the words where there is room for them."""
    free_x = 0.0
    for x, style, label, title in sorted(crossings):
        yield (
            f'<g class="{style}"><path class="wide" d="M{x:g} {TOP - 4}V{foot}"/>'
            f'<path d="M{x:g} {TOP - 4}V{foot}"/><title>{safe(title)}</title></g>'
        )
        half = len(label) * LABEL_PX / 2
        middle = min(max(x, GUTTER + half), WIDTH - half - 2)
        if middle - half >= free_x:
            place = f'x="{middle:g}" y="{TOP - 9}" text-anchor="middle"'
            yield f'<text class="{style} label" {place}>{safe(label)}</text>'
            free_x = middle + half + 6
