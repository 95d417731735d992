"""A table of runs as a trace: what any scheduler can be asked for, a row for every run, becomes trace lines.

Two CSV texts come in: the runs (task, start, end, ok) and the tasks (task, cron, retry_delay). What a table
cannot say is read in the scheduler's favour. The whole list is in effect from the first moment on, over a
store that may hold anything. A run whose end is not known ended when its task next started. What cannot be
understood is a `CsvError` that names the row; no row is left out in silence.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import groupby
from typing import TextIO

import msgspec

from duly.verify import trace
from duly.verify.dues import Dues, ScheduleTextError, instant_us
from duly.verify.trace import VERSION, Header, TraceError, TraceEvent, zone_of

NO_RETRY_MS = 1000 * 365 * 86_400_000
"""The delay of a task that is never retried: a thousand years."""

_YES, _NO = frozenset({"", "yes", "true", "1", "ok"}), frozenset({"no", "false", "0", "failed", "error"})
_EARLIEST_MS, _LATEST_MS = -62_000_000_000_000, 253_000_000_000_000


class CsvError(ValueError):
    """A table that cannot become a trace: which one, where, and what to do about it."""

    def __init__(self, table: str, line: int | None, reason: str) -> None:
        super().__init__(f"{table}, line {line}: {reason}" if line is not None else f"{table}: {reason}")
        self.table = table
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Cells:
    """One row: its cells by column, and how to complain about it."""

    table: str
    line: int
    cells: Mapping[str, str]

    def __getitem__(self, column: str) -> str:
        return self.cells[column]

    def error(self, reason: str) -> CsvError:
        return CsvError(self.table, self.line, reason)


@dataclass(frozen=True, slots=True)
class _Run:
    """A row of the runs. *number* identifies it; *end_ms* is None where nobody knows it."""

    number: int
    task: str
    start_ms: float
    end_ms: float | None
    ok: bool


def lines_from_csv(
    runs: TextIO, tasks: TextIO, *, zone: str, since: str | None = None, until: str | None = None
) -> Iterator[bytes]:
    """The trace that two CSV texts hold, line by line.

    The list is taken as in effect from *since* on (or else the first start), and the horizon is *until* (or
    else the last time in the table). Raises CsvError before the first line, or not at all.
    """
    info = _zone(zone)
    regs = list(_registrations(tasks, info))
    known = {name for name, _, _ in regs}
    all_runs = sorted(_runs(runs, info, known), key=lambda run: (run.start_ms, run.number))
    since_ms = _limit("--from", since, info)
    until_ms = _limit("--until", until, info)
    if since_ms is None:
        if not all_runs:
            raise CsvError(
                "runs", None, "it has no rows; say with --from since when the tasks should have run"
            )
        since_ms = all_runs[0].start_ms
    if until_ms is not None and until_ms < since_ms:
        raise CsvError("--until", None, "it lies before the first moment to be judged; choose a later time")
    in_sight = _within(all_runs, since_ms, until_ms)
    in_flight = [(run.task, run.number) for run in in_sight if run.start_ms < since_ms]
    header = Header(v=VERSION, tz=zone, store="unknown", impl="csv", running=in_flight, first_due="after")
    opening: list[TraceEvent] = [
        trace.InitStart(t=since_ms, call=1, regs=regs),
        trace.InitEnd(t=since_ms, call=1, ok=True),
    ]
    events = opening + _events(in_sight, since_ms, until_ms)
    horizon_ms = events[-1].t if until_ms is None else until_ms
    return (msgspec.json.encode(line) + b"\n" for line in (header, *events, trace.End(t=horizon_ms)))


def _zone(name: str) -> tzinfo:
    try:
        return zone_of(name)
    except TraceError as error:
        raise CsvError("--tz", None, error.reason) from error


def _within(runs: list[_Run], since_ms: float, until_ms: float | None) -> list[_Run]:
    """The runs that were in flight at any time that is judged, unknown ends made certain."""
    last_ms = math.inf if until_ms is None else until_ms
    ended = _with_ends(runs)
    return [
        run for run in ended if run.start_ms <= last_ms and (run.end_ms is None or run.end_ms >= since_ms)
    ]


def _with_ends(runs: list[_Run]) -> Iterator[_Run]:
    """Every run; one whose end nobody knows ended when its task next started, and well.

    It may really have overlapped; but that is not known, and only what is known is held against a scheduler.
    """
    for _, group in groupby(sorted(runs, key=lambda run: run.task), key=lambda run: run.task):
        of_task = list(group)
        next_starts = [run.start_ms for run in of_task[1:]]
        for run, next_ms in zip(of_task, [*next_starts, None], strict=True):
            yield _Run(run.number, run.task, run.start_ms, next_ms, ok=True) if run.end_ms is None else run


def _events(runs: Iterable[_Run], since_ms: float, until_ms: float | None) -> list[TraceEvent]:
    """Starts and ends in order; at one time the ends come first, but never before their own start."""
    keyed: list[tuple[tuple[float, int, int, int], TraceEvent]] = []
    for run in runs:
        if run.start_ms >= since_ms:
            start = trace.RunStart(t=run.start_ms, id=run.task, run=run.number)
            keyed.append(((run.start_ms, 1, run.number, 0), start))
        if run.end_ms is not None and (until_ms is None or run.end_ms <= until_ms):
            end = trace.RunEnd(t=run.end_ms, id=run.task, run=run.number, ok=run.ok)
            at_once = run.end_ms == run.start_ms
            keyed.append(((run.end_ms, int(at_once), run.number, 1), end))
    return [event for _, event in sorted(keyed, key=lambda pair: pair[0])]


def _registrations(tasks: TextIO, zone: tzinfo) -> Iterator[tuple[str, str, float]]:
    names: set[str] = set()
    for row in _rows("tasks", tasks, ("task", "cron", "retry_delay")):
        name, text = _name(row), row["cron"]
        if name in names:
            raise row.error(f'the task "{name}" has a row already; keep one of them')
        names.add(name)
        try:
            Dues(text, zone)
        except ScheduleTextError as error:
            hint = 'write five fields of numbers, lists and ranges, such as "0,30 8-17 * * 1-5"'
            raise row.error(f'the cron text "{text[:80]}" cannot be judged: {error}; {hint}') from error
        yield name, text, _delay_ms(row)
    if not names:
        raise CsvError("tasks", None, "it has no rows; give every task a row with its cron text")


def _runs(runs: TextIO, zone: tzinfo, known: set[str]) -> Iterator[_Run]:
    for number, row in enumerate(_rows("runs", runs, ("task", "start", "end", "ok")), start=1):
        name = _name(row)
        if name not in known:
            raise row.error(f'the task "{name}" is not among the tasks; add a row with its cron text there')
        if not row["start"]:
            raise row.error("the start is empty; every run needs one")
        start_ms = _time_ms(row, "start", zone)
        end_ms = _time_ms(row, "end", zone) if row["end"] else None
        if end_ms is None and row["ok"]:
            raise row.error("ok says that the run has ended; say when in end, or leave both empty")
        if end_ms is not None and end_ms < start_ms:
            raise row.error("the run ends before it starts; are the two exchanged, or is an offset missing?")
        yield _Run(number, name, start_ms, end_ms, _is_ok(row))


def _rows(table: str, text: TextIO, columns: tuple[str, ...]) -> Iterator[_Cells]:
    """The rows of *text*, which must have *columns*; empty lines are no rows."""
    reader = csv.reader(text, strict=True)
    try:
        heading = [cell.strip().removeprefix("\ufeff") for cell in next(reader, [])]
        _require(table, heading, columns)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield _row(table, reader.line_num, heading, cells)
    except csv.Error as error:
        raise CsvError(table, reader.line_num, f"not CSV: {error}") from error
    except UnicodeDecodeError as error:
        raise CsvError(table, reader.line_num + 1, "not UTF-8 text; save the file as UTF-8") from error


def _require(table: str, heading: list[str], columns: tuple[str, ...]) -> None:
    missing = [column for column in columns if column not in heading]
    if missing:
        wanted = ",".join(columns)
        raise CsvError(
            table, 1, f"no column {', '.join(missing)}; begin with a line that names them, such as {wanted}"
        )
    twice = [column for column in columns if heading.count(column) > 1]
    if twice:
        raise CsvError(table, 1, f"the column {', '.join(twice)} is there twice; keep one")


def _row(table: str, line: int, heading: list[str], cells: list[str]) -> _Cells:
    if len(cells) > len(heading):
        raise CsvError(
            table,
            line,
            'more cells than columns; put a cell that has commas in quotes, such as "0,30 * * * *"',
        )
    padded = [*cells, *[""] * (len(heading) - len(cells))]
    return _Cells(table, line, {name: cell.strip() for name, cell in zip(heading, padded, strict=True)})


def _name(row: _Cells) -> str:
    if not row["task"]:
        raise row.error("the task has no name; fill in the column task")
    return row["task"]


def _is_ok(row: _Cells) -> bool:
    word = row["ok"].lower()
    if word not in _YES | _NO:
        raise row.error(f'ok is "{word[:40]}"; write yes or no, or leave it empty for yes')
    return word in _YES


def _delay_ms(row: _Cells) -> float:
    if not (cell := row["retry_delay"]):
        return NO_RETRY_MS
    seconds = _number(cell)
    if seconds is None or not 0 <= seconds * 1000 <= NO_RETRY_MS:
        raise row.error(
            f'retry_delay is "{cell[:40]}"; write a number of seconds, or leave it empty for no retries'
        )
    return seconds * 1000


def _limit(option: str, text: str | None, zone: tzinfo) -> float | None:
    if text is None:
        return None
    try:
        return _moment_ms(text.strip(), zone)
    except ValueError as error:
        raise CsvError(option, None, str(error)) from error


def _time_ms(row: _Cells, column: str, zone: tzinfo) -> float:
    try:
        return _moment_ms(row[column], zone)
    except ValueError as error:
        raise row.error(f"{column}: {error}") from error


def _moment_ms(text: str, zone: tzinfo) -> float:
    """Epoch milliseconds as they are; ISO 8601 with its offset, or else in *zone*."""
    try:
        number = _number(text)
        milliseconds = instant_us(_moment(text, zone)) / 1000 if number is None else number
    except OverflowError:  # the first or the last day that datetime knows
        milliseconds = math.inf
    if not _EARLIEST_MS <= milliseconds <= _LATEST_MS:
        raise ValueError(f'"{text[:40]}" is not a moment between the years 5 and 9987')
    return int(milliseconds) if milliseconds == int(milliseconds) else milliseconds


def _moment(text: str, zone: tzinfo) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f'"{text[:40]}" is not a time; write it like 2026-03-29T02:30:00+01:00 or as epoch milliseconds'
        ) from None
    if moment.tzinfo is not None:
        return moment
    first, second = (moment.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return first
    # The clocks were set around that time, so the face alone is either two moments or none.
    is_shown = instant_us(first) < instant_us(second)
    what = "comes twice" if is_shown else "never comes"
    raise ValueError(f'"{text[:40]}" {what} in {zone}; write it with its offset, like {first.isoformat()}')


def _number(text: str) -> float | None:
    """A plain decimal number, and None for any other text."""
    digits = text.removeprefix("-").replace(".", "", 1)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        return None
    return float(text) if "." in text else int(text)
