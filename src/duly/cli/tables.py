"""Tables for people: as wide as the terminal, never wider, never wrapped. Pure.

Columns shrink first (those that may), then the least important ones are left out; what is cut ends in an
ellipsis. Whatever comes from outside is made printable, so no cell can move the cursor or change a colour.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from duly.cli.refusals import printable, width

_GAP = "  "
_LEAST_WIDTH = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """One text, and the colour it has on a terminal."""

    text: str
    colour: str | None = None
    dim: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Those with the highest *rank* are left out first; rank 0 stays."""

    key: str
    title: str
    rank: int = 0
    least: int | None = None
    """How narrow it may become; None: it keeps its width or goes."""
    right: bool = False


Row = Mapping[str, Cell | str]


def terminal_width() -> int | None:
    """How many columns there are, or None where nobody looks: a pipe gets whole lines."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return max(shutil.get_terminal_size().columns, _LEAST_WIDTH)


def table(columns: Sequence[Column], rows: Sequence[Row], columns_wide: int | None) -> list[str]:
    """The lines of a table: its titles, then a line for each row."""
    cells = [{column.key: _cell(row.get(column.key, "")) for column in columns} for row in rows]
    natural = {
        column.key: max([width(column.title), *(width(row[column.key].text) for row in cells)])
        for column in columns
    }
    kept, widths = fitted(columns, natural, columns_wide)
    titles = {column.key: Cell(column.title.upper(), dim=True) for column in kept}
    return [_line(kept, row, widths) for row in (titles, *cells)]


def fitted(
    columns: Sequence[Column], natural: Mapping[str, int], columns_wide: int | None
) -> tuple[list[Column], dict[str, int]]:
    """The columns that are shown in *columns_wide* columns of a terminal, and how wide each is."""
    kept = list(columns)
    while True:
        widths = {column.key: natural[column.key] for column in kept}
        if columns_wide is None:
            return kept, widths
        _shrink(kept, widths, _total(kept, widths) - columns_wide)
        if _total(kept, widths) <= columns_wide:
            return kept, widths
        leaving = max(reversed(kept), key=lambda column: column.rank)
        if leaving.rank == 0:
            return _squeezed(kept, natural, columns_wide)
        kept.remove(leaving)


def clipped(text: str, columns_wide: int) -> str:
    """The text in at most *columns_wide* columns; if it was longer, it ends in an ellipsis."""
    if width(text) <= columns_wide:
        return text
    kept, used = [], 0
    for char in text:
        used += width(char)
        if used > columns_wide - 1:
            break
        kept.append(char)
    return "".join(kept) + "…" if columns_wide > 0 else ""


def _shrink(kept: Sequence[Column], widths: dict[str, int], over: int) -> None:
    """Take *over* columns of the terminal from those that may become narrower, the widest first."""
    while over > 0:
        able = [column for column in kept if column.least is not None and widths[column.key] > column.least]
        if not able:
            return
        widest = max(able, key=lambda column: (widths[column.key], column.rank))
        widths[widest.key] -= 1
        over -= 1


def _squeezed(
    kept: list[Column], natural: Mapping[str, int], columns_wide: int
) -> tuple[list[Column], dict[str, int]]:
    """The first column alone, cut if need be: there is no room for those that should stay."""
    return kept[:1], {kept[0].key: min(natural[kept[0].key], columns_wide)}


def _total(kept: Sequence[Column], widths: Mapping[str, int]) -> int:
    return sum(widths[column.key] for column in kept) + len(_GAP) * (len(kept) - 1)


def _cell(given: Cell | str) -> Cell:
    cell = Cell(given) if isinstance(given, str) else given
    return Cell(printable(cell.text), cell.colour, cell.dim)


def _line(kept: Sequence[Column], row: Mapping[str, Cell], widths: Mapping[str, int]) -> str:
    parts = []
    for column in kept:
        cell = row[column.key]
        text = clipped(cell.text, widths[column.key])
        space = " " * (widths[column.key] - width(text))
        styled = click.style(text, fg=cell.colour, dim=cell.dim or None) if cell.colour or cell.dim else text
        parts.append(f"{space}{styled}" if column.right else f"{styled}{space}")
    return _GAP.join(parts).rstrip()
