"""What a command prints: an answer for people or for machines, tables, and the error that ends it.

A command takes `json_option`, and hands its answer to `print_answer` in both forms. An error is shown to
people on stderr, and to machines as one object on stdout. Whatever comes from outside is made printable, so
that no control character reaches the terminal.
"""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any

import click

from duly.formatting import apart, printable
from duly.instant import instant_of, time_of

_GAP = "  "
_LEAST_WIDTH = 4

_AS_JSON = "duly.as_json"


def _keep(context: click.Context, _parameter: click.Parameter, value: object) -> None:
    context.meta[_AS_JSON] = value


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_keep, help="Answer with one JSON object."
)


def wants_json() -> bool:
    """Whether the command that runs now was given `--json`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_AS_JSON))


def print_answer(
    answer: Any, lines: Iterable[str], *, indent: int | None = 2, ensure_ascii: bool = False
) -> None:
    """Print *answer* as JSON if that is wanted, or else *lines*, which are made only then."""
    if wants_json():
        click.echo(json_text(answer, indent=indent, ensure_ascii=ensure_ascii))
        return
    for line in lines:
        click.echo(line)


def json_text(answer: Any, *, indent: int | None = 2, ensure_ascii: bool = False) -> str:
    """An answer for machines. A path may hold bytes that are no text; those are escaped."""
    text = json.dumps(answer, indent=indent, ensure_ascii=ensure_ascii)
    return text.encode(errors="backslashreplace").decode()


class CommandError(click.ClickException):
    """A command that cannot do what was asked: why, what to do instead, and the code it ends with.

    *facts* are added to the JSON object.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        exit_code: int = 2,
        hint: str = "",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code  # type: ignore[misc] # click reads it from the instance
        self.hint = hint
        self.facts = dict(facts or {})
        # As the command had it: its context is gone by the time that click shows an error.
        context = click.get_current_context(silent=True)
        self.color = context.color if context else None
        self.as_json = wants_json()

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it, for people on stderr, for machines on stdout."""
        if self.as_json:
            error = {"code": self.code, "message": self.message, **self.facts}
            click.echo(json.dumps({"error": error}, indent=2))
            return
        said = f"{click.style('error:', fg='red', bold=True)} {printable(self.message)}"
        for line in (said, "", self.hint) if self.hint else (said,):
            click.echo(line, file, err=True, color=self.color)


# --- tables ---
#
# A table is as wide as the terminal, never wider, and never wrapped. Columns shrink first (those that may),
# then the least important ones are left out; what is cut ends in an ellipsis.


def width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


@dataclass(frozen=True, slots=True)
class Cell:
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
        if leaving.rank == 0:  # no room for those that should stay: the first alone, cut if need be
            return kept[:1], {kept[0].key: min(natural[kept[0].key], columns_wide)}
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


# --- runs and results ---


_COLOURS = {"success": "green", "running": "cyan", "interrupted": "yellow", "cancelled": "yellow"}
STATES = {
    "running": "green",
    "done": "green",
    "starting": "cyan",
    "waiting": "cyan",
    "backing off": "yellow",
    "skipped": "yellow",
    "unknown": "yellow",
    "failed": "red",
    "invalid": "red",
}
"""The colours of what services are up to."""


def result_cell(result: str | None, *, is_running: bool) -> Cell:
    """How a run ended, or that it has not."""
    said = "running" if is_running else result or "-"
    return Cell(said, None if said == "-" else _COLOURS.get(said, "red"))


def exit_text(run: dict[str, Any]) -> str:
    """The exit code of a run, or the signal that ended it."""
    if run["exit_code"] is not None:
        return str(run["exit_code"])
    return f"signal {run['signal']}" if run["signal"] is not None else "-"


def unreadable(error: OSError) -> CommandError:
    """The error for a file that cannot be read."""
    about = f'"{error.filename}": ' if error.filename is not None else ""
    return CommandError("unreadable", f"{about}{error.strerror or error}")


def times_are_those_of(zone_name: str) -> str:
    """The line below times that says by which clocks they are."""
    return click.style(f"Times are those of {printable(zone_name)}.", dim=True)


def untried(error: Exception) -> str:
    """What an error says, without the promise that a scheduler keeps and a command does not."""
    return str(error).removesuffix("; it is tried again")


# --- times, which are ISO texts in JSON ---

utc = partial(time_of, zone=UTC)
"""The ISO text of an instant, in UTC; None for none."""


def relative(moment: datetime | None, now: datetime) -> str:
    """How far *moment* lies from *now*: "5m ago", "in 2h", "now", or "-" when there is none."""
    return "-" if moment is None else apart(instant_of(moment), instant_of(now))


def relative_text(text: str | None, now: datetime) -> str:
    """The same, of an ISO time."""
    return relative(None if text is None else datetime.fromisoformat(text), now)
