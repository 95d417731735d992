"""What the checker cannot see in a trace, looked up in the store.

A list takes effect for all of its tasks or for none; and when everything rests, the row of every task
agrees with what was seen of its last run.
"""

from collections.abc import Sequence
from typing import Any

from duly.core.record import COLUMNS, Record
from duly.verify import trace
from tests.simulation.host import Host, List

_NAME, _CRON, _DELAY = COLUMNS.index("name"), COLUMNS.index("cron"), COLUMNS.index("retry_delay_us")
_SINCE, _ATTEMPT = COLUMNS.index("running_since_us"), COLUMNS.index("last_attempt_us")
_NONSENSE = "out of order"
_SUCCESS, _FAILURE = COLUMNS.index("last_success_us"), COLUMNS.index("last_failure_us")


def torn_list(host: Host, damaged: Sequence[Record] = ()) -> list[str]:
    """What is wrong with the set of rows: it must be one of the lists that can be in effect, whole.

    A row that is still damaged counts as the row it was, one of *damaged*.
    """
    stored = {(row[_NAME], row[_CRON], row[_DELAY]) for row in _undamaged(host.rows, damaged)}
    lists = [host.effective, *host.outstanding.values()]
    if stored in [_configurations(each) for each in lists]:
        return []
    return [f"the store holds {sorted(stored)}, which is none of the lists that can be in effect: {lists}"]


def stored_list(host: Host, damaged: Sequence[Record] = ()) -> List:
    """The list that the store holds; a row that is still damaged counts as the row it was."""
    return [(row[_NAME], row[_CRON], row[_DELAY] / 1000) for row in _undamaged(host.rows, damaged)]


def _undamaged(rows: Sequence[Record], damaged: Sequence[Record]) -> list[Record]:
    broken, before = still_damaged(rows), {row[0]: row for row in damaged}
    return [before.get(row[0], row) if row[0] in broken else row for row in rows]


def _configurations(regs: List) -> set[tuple[str, str, int]]:
    return {(name, cron, round(delay_ms * 1000)) for name, cron, delay_ms in regs}


def disagreements(host: Host) -> list[str]:
    """Where the rows of a program at rest say something else than the trace, since its last list."""
    rows = {row[_NAME]: row for row in host.rows}
    return [
        f"the row of {name!r} says {rows[name]} and the trace {event}"
        for name, event in _last_runs(host.trace).items()
        if name in rows and not _agrees(rows[name], event)
    ]


def _last_runs(events: Sequence[trace.TraceEvent]) -> dict[str, trace.RunStart | trace.RunEnd]:
    """The last event of each task's last run, if nothing but runs came since that run began."""
    last: dict[str, trace.RunStart | trace.RunEnd] = {}
    ended: set[str] = set()
    for event in reversed(events):
        match event:
            case trace.RunEnd():
                if event.id not in last:
                    last[event.id] = event
                    ended.add(event.id)
            case trace.RunStart():
                last.setdefault(event.id, event)
                ended.discard(event.id)
            case trace.End():
                continue
            case _:
                break
    return {name: event for name, event in last.items() if name not in ended}


def _agrees(row: Record, event: trace.RunStart | trace.RunEnd) -> bool:
    at_us = trace.micros(event.t)
    if isinstance(event, trace.RunStart):
        return row[_SINCE] is not None and row[_SINCE] == row[_ATTEMPT] <= at_us
    return row[_SINCE] is None and bool(row[_SUCCESS if event.ok else _FAILURE] == at_us)


def damaged(rows: Sequence[Record], name: str) -> tuple[list[Any], list[Any]]:
    """The row of the task *name* as it was, and as no program could have written it."""
    before = [row for row in rows if row[_NAME] == name]
    return before, [[*row[:_CRON], _NONSENSE, *row[_CRON + 1 :]] for row in before]


def still_damaged(rows: Sequence[Record]) -> set[int]:
    """The ids of the rows that are damaged."""
    return {row[0] for row in rows if row[_CRON] == _NONSENSE}
