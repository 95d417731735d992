"""What is asked of runs that are in memory: the same questions that SQL answers for those in a store."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from duly.instant import Instant

if TYPE_CHECKING:
    from duly.store.history import RunRow


def newest_of(
    rows: "Iterable[RunRow]", service: str | None, timer: str | None, before: int | None
) -> "list[RunRow]":
    """Those of a service or timer (None: of all) with an id below *before*, newest first."""
    chosen = (
        row
        for row in rows
        if service in {None, row.service}
        and timer in {None, row.timer}
        and (before is None or row.id < before)
    )
    return sorted(chosen, key=lambda row: -row.id)


def next_id_of(rows: "Iterable[RunRow]", service: str, after: int) -> int | None:
    """The next run of a service after one."""
    return min((row.id for row in rows if row.service == service and row.id > after), default=None)


def started_between(rows: "Iterable[RunRow]", from_us: Instant, to_us: Instant) -> "list[RunRow]":
    """Those that started then, or before and have not ended; newest first, without their output."""
    chosen = (
        row for row in rows if row.started_us < to_us and (row.started_us >= from_us or row.ended_us is None)
    )
    return [bare(row) for row in sorted(chosen, key=lambda row: (-row.started_us, -row.id))]


def ended_of(rows: "Iterable[RunRow]", service: str) -> "list[RunRow]":
    """Those of a service that have ended, newest first, without their output."""
    chosen = (row for row in rows if row.service == service and row.ended_us is not None)
    return [bare(row) for row in sorted(chosen, key=lambda row: -row.id)]


def results_of(rows: "Iterable[RunRow]", since_us: Instant) -> list[str | None]:
    """How those that started since then ended; None for one that has not."""
    return [row.result for row in rows if row.started_us >= since_us]


def bare(row: "RunRow") -> "RunRow":
    """The row without its output."""
    return msgspec.structs.replace(row, output="") if row.output else row
