"""Copying: the tasks of a store of one scheduler to an empty board, read back and compared."""

import uuid
from collections.abc import Sequence
from datetime import UTC

from duly.cluster.identity import drawn
from duly.core.record import record_of, task_from
from duly.core.schedule import Schedules
from duly.core.task import Task
from duly.errors import StoreError
from duly.instant import Instant
from duly.store import Board, Store
from duly.store.board import Change, Row, Stored


async def copied(source: Store, board: Board) -> int:
    """Copy all tasks with their history; how many there were. *source* is held meanwhile, and not changed.

    Raises TaskTryDeserializeError for a task that cannot be read, StoreInUseError while a scheduler is on
    *source*, and StoreError if *board* holds tasks already.
    """
    contents = await source.open(uuid.uuid4().hex)  # noqa: TID251 (of a file that had none)
    try:
        schedules = Schedules(UTC)  # it only carries the texts: nothing is worked out from them here
        tasks = [task_from(record, schedules.of) for record in contents.records]
        await board.open(contents.scheduler_id)
        try:
            await _put(board, tasks)
        finally:
            await board.close()
    finally:
        await source.close()
    return len(tasks)


async def _put(board: Board, tasks: Sequence[Task]) -> None:
    def decide(stored: Sequence[Stored], _now_us: Instant, _scheduler_id: str) -> Change:
        if stored:
            raise StoreError(store=board.name, reason="holds tasks already; copy to an empty database")
        return Change([Row(task) for task in tasks], [])

    member = drawn()
    await board.join(member, "duly store copy", ttl_us=board.ttl_us)
    try:
        # A list of its own, which the first real one supersedes: it keeps every task that it has unchanged.
        await board.publish(member, f"copied by {member:x}", decide)
        stored: list[Stored] = []

        def look(rows: Sequence[Stored], _now_us: Instant, _scheduler_id: str) -> Change:
            stored[:] = rows
            return Change((), ())

        await board.claim(member, look)
        if sorted(tuple(row.record) for row in stored) != sorted(record_of(task) for task in tasks):
            raise StoreError(store=board.name, reason="does not read back as it was written; do not use it")
    finally:
        await board.leave(member)
