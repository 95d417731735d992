"""How commands speak of runs, results and counts. Pure."""

import json
from typing import Any

from duly.cli.tables import Cell

_COLOURS = {"success": "green", "running": "cyan", "interrupted": "yellow"}
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


def json_text(answer: Any, *, indent: int | None = 2) -> str:
    """An answer for machines. A path may hold bytes that are no text; those are escaped."""
    text = json.dumps(answer, indent=indent, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()


def result_cell(result: str | None, *, is_running: bool) -> Cell:
    """How a run ended, or that it has not."""
    said = "running" if is_running else result or "-"
    return Cell(said, None if said == "-" else _COLOURS.get(said, "red"))


def exit_text(run: dict[str, Any]) -> str:
    """The exit code of a run, or the signal that ended it."""
    if run["exit_code"] is not None:
        return str(run["exit_code"])
    return f"signal {run['signal']}" if run["signal"] is not None else "-"


def counted(number: int, noun: str, many: str | None = None) -> str:
    """A number with its noun."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def untried(error: Exception) -> str:
    """What an error says, without the promise that a scheduler keeps and a command does not."""
    return str(error).removesuffix("; it is tried again")
