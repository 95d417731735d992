"""Line charts with logarithmic axes, as SVG: one line for each contestant, named at its end."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

Line = Sequence[tuple[float, float]]
"""Points from left to right."""

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 590, 20, 365
_COLOURS = ("#0b5cad", "#c2410c", "#15803d", "#7c3aed", "#a16207", "#475569")
_TEXT_PX = 16

_HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" \
font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="white"/>
"""


def chart(lines: Mapping[str, Line], *, x_title: str, y_title: str) -> str:
    """The chart of *lines*, by name. All values are positive."""
    points = [point for line in lines.values() for point in line]
    x_axis = _Axis([x for x, _ in points], _LEFT, _RIGHT)
    y_axis = _Axis([y for _, y in points], _BOTTOM, _TOP)
    parts = [*_grid(x_axis, y_axis), *_titles(x_title, y_title), *_curves(lines, x_axis, y_axis)]
    return _HEAD + "\n".join(parts) + "\n</svg>\n"


class _Axis:
    """Whole decades around some values, laid on the pixels from *begin* to *end*."""

    def __init__(self, values: Sequence[float], begin: int, end: int) -> None:
        self._lowest = floor(log10(min(values)))
        self._decades = max(ceil(log10(max(values))) - self._lowest, 1)
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        """The pixel of a value."""
        share = (log10(value) - self._lowest) / self._decades
        return round(self._begin + share * (self._end - self._begin), 1)

    @property
    def ticks(self) -> Sequence[float]:
        """The powers of ten."""
        return [10.0 ** (self._lowest + step) for step in range(self._decades + 1)]


def _grid(x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    for value in x_axis.ticks:
        yield _stroke([(x_axis.at(value), _BOTTOM), (x_axis.at(value), _TOP)], "#d4d4d8")
        yield _text(x_axis.at(value), _BOTTOM + 18, f"{value:,g}", anchor="middle")
    for value in y_axis.ticks:
        yield _stroke([(_LEFT, y_axis.at(value)), (_RIGHT, y_axis.at(value))], "#d4d4d8")
        yield _text(_LEFT - 8, y_axis.at(value) + 4, f"{value:,g}", anchor="end")


def _titles(x_title: str, y_title: str) -> Iterator[str]:
    yield _text((_LEFT + _RIGHT) / 2, _HEIGHT - 12, x_title, anchor="middle")
    middle = (_TOP + _BOTTOM) / 2
    yield _text(16, middle, y_title, anchor="middle", more=f' transform="rotate(-90 16 {middle})"')


def _curves(lines: Mapping[str, Line], x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    free_px = float(_TOP)
    by_end = sorted(lines.items(), key=lambda named: y_axis.at(named[1][-1][1]))
    colours = dict(zip(lines, _COLOURS, strict=False))
    for name, line in by_end:
        places = [(x_axis.at(x), y_axis.at(y)) for x, y in line]
        yield _stroke(places, colours[name], width=2.5)
        yield from (f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colours[name]}"/>' for x, y in places)
        # Names that would lie on one another go one below the other.
        free_px = max(places[-1][1] + 4, free_px)
        yield _text(places[-1][0] + 9, free_px, name, fill=colours[name])
        free_px += _TEXT_PX


def _stroke(places: Sequence[tuple[float, float]], colour: str, *, width: float = 1) -> str:
    path = " ".join(f"{x},{y}" for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", fill: str = "#27272a", more: str = ""
) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}"{more}>{escape(text)}</text>'
