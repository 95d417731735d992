"""Firings as the cron commands show them: local and UTC, how far ahead, and what the clocks do meanwhile."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import click

from duly.cron import CronExpression
from duly.cron.notes import Note, notes, offset_text
from duly.errors import CronCalculationError
from duly.spoken import two_units


@dataclass(frozen=True, slots=True)
class Firing:
    """One time at which an expression is due."""

    local: datetime
    ahead: timedelta
    """How long after the origin, in real time."""
    notes: list[Note]


def firings(expression: CronExpression, origin: datetime, count: int) -> list[Firing]:
    """The next *count* firings; fewer at the end of time."""
    found = list(islice(_until_the_end(expression, origin), count))
    noted = notes(expression, origin, found)
    begun = origin.astimezone(UTC)
    return [
        Firing(local, local.astimezone(UTC) - begun, of_it) for local, of_it in zip(found, noted, strict=True)
    ]


def merged(each: list[list[Firing]], count: int) -> list[Firing]:
    """The first *count* of several lists of firings; those at the same instant are one."""
    by_instant: dict[datetime, Firing] = {}
    for row in sorted((row for rows in each for row in rows), key=lambda row: row.ahead):
        known = by_instant.setdefault(row.local.astimezone(UTC), row)
        known.notes.extend(note for note in row.notes if note not in known.notes)
    return list(by_instant.values())[:count]


def _until_the_end(expression: CronExpression, moment: datetime) -> Iterator[datetime]:
    while True:
        try:
            moment = expression.next_after(moment)
        except CronCalculationError:
            return
        yield moment


def table(rows: list[Firing]) -> Iterator[str]:
    """The firings as lines: what the clocks did before a firing stands above it, what concerns it below."""
    offset_width = max((len(_offset(row)) for row in rows), default=0)
    for row in rows:
        yield from (_note_line(note) for note in row.notes if note.kind != "repeated")
        local = click.style(f"{row.local:%a} {_face(row.local)} {_offset(row):<{offset_width}}", bold=True)
        utc = f"{_face(row.local.astimezone(UTC))} UTC"
        yield f"  {local}   {utc}   {ahead_text(row.ahead)}"
        yield from (_note_line(note) for note in row.notes if note.kind == "repeated")
    if not rows:
        yield "  never again before the year 10000"


def as_json(row: Firing) -> dict[str, Any]:
    """A firing for machines."""
    return {
        "local": row.local.isoformat(),
        "utc": row.local.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "weekday": row.local.isoweekday() % 7,
        "in_s": row.ahead.total_seconds(),
        "notes": [{"kind": note.kind, "text": note.text} for note in row.notes],
    }


def ahead_text(ahead: timedelta) -> str:
    """How far ahead, in the two largest units that it has: in 2h 5m."""
    return f"in {two_units(ahead // timedelta(seconds=1))}"


def _note_line(note: Note) -> str:
    return click.style(f"    {note.text}", fg="yellow")


def _face(moment: datetime) -> str:
    # Not strftime: %Y has no leading zeros on Linux, and offsets with seconds put seconds into UTC.
    return moment.replace(tzinfo=None).isoformat(" ", "seconds" if moment.second else "minutes")


def _offset(row: Firing) -> str:
    offset = row.local.utcoffset()
    assert offset is not None
    return offset_text(offset)
