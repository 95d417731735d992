"""What came before and after a run: its neighbours, the run that it tries again, and the slot that began it.

A retry says of itself only when it was due. Which run it tries again follows from the runs of its timer: the
one before it, which for a second retry is the first; and behind all retries stands the run for a slot.
"""

from collections.abc import Sequence
from typing import NamedTuple

from duly.daemon.backend import Rows
from duly.instant import Instant
from duly.store.history import RunRow

_RETRIES_FOLLOWED = 50
_RETRY = "retry"
_FOR_A_SLOT = frozenset({"schedule", "catch-up"})


class Lineage(NamedTuple):
    """The runs around one. Ids, of runs that are there."""

    older: int | None = None
    """The run before it, of the same service."""
    newer: int | None = None
    retried: int | None = None
    """The run that it tries again."""
    slot_us: Instant | None = None
    """The slot that it answers, or, of a retry, that the first attempt was for."""
    slot_run: int | None = None
    """The run that answered that slot, where it is another."""


async def lineage_of(history: Rows, row: RunRow) -> Lineage:
    """Look up what is around a run."""
    older = await history.runs(service=row.service, before=row.id, limit=1, with_output=False)
    earlier: list[RunRow] = []
    if row.reason == _RETRY and row.timer is not None:
        earlier = await history.runs(
            timer=row.timer, before=row.id, limit=_RETRIES_FOLLOWED, with_output=False
        )
    found = retried_by(row, earlier)
    return found._replace(
        older=older[0].id if older else None, newer=await history.next_id(row.service, row.id)
    )


def retried_by(row: RunRow, earlier: Sequence[RunRow]) -> Lineage:
    """What a run tries again, if it is a retry, and the slot; *earlier* are its timer's, newest first."""
    if row.reason in _FOR_A_SLOT:
        return Lineage(slot_us=row.scheduled_us)
    if row.reason != _RETRY or not earlier or earlier[0].service != row.service:
        return Lineage()
    first = next((one for one in earlier if one.reason != _RETRY), None)
    if first is None or first.reason not in _FOR_A_SLOT:
        return Lineage(retried=earlier[0].id)
    return Lineage(retried=earlier[0].id, slot_us=first.scheduled_us, slot_run=first.id)
