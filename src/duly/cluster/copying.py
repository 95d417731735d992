"""Copying: the tasks of a store of one scheduler to an empty namespace, read back and compared."""

import uuid
from datetime import tzinfo

from duly.cluster.postgres import PostgresStore
from duly.cluster.store import Link, stored_rows
from duly.cluster.table import Put, ReadDigest, ReadNodes, Reconcile, hash_of, row_name
from duly.cluster.tasks import TaskCodec, definition_of
from duly.core.record import task_from
from duly.core.task import Task, cut_off, wakes_us
from duly.core.timetable import Timetables
from duly.errors import StoreError
from duly.instant import zone_key
from duly.store import Store


async def copied(source: Store, target: PostgresStore, zone: tzinfo) -> int:
    """Copy all tasks with what is remembered of each; how many there are. *source* is held, and not changed.

    *zone* is that of the schedulers: it is part of each definition. A run that is on *source* was cut off,
    for nobody holds that store. Raises TaskTryDeserializeError for a task that cannot be read,
    StoreInUseError while a scheduler is on *source*, and StoreError if the namespace is in use.
    """
    contents = await source.open(uuid.uuid4().hex)  # noqa: TID251 (of a file that had none)
    try:
        schedules = Timetables(zone)
        tasks = [cut_off(task_from(record, schedules.of)) for record in contents.records]
        await target.open(contents.scheduler_id)
        link = target.connect()
        try:
            await _put(link, target, [_row(task, zone_key(zone)) for task in tasks])
        finally:
            link.leave()
    finally:
        await source.close()
    return len(tasks)


def _row(task: Task, zone: str) -> Put:
    name = row_name(task.name)
    definition = definition_of(task.schedule.text, task.retry_delay_us, zone)
    return Put(name, hash_of(name, definition), definition, TaskCodec().state(task), wakes_us(task))


async def _put(link: Link, target: PostgresStore, rows: list[Put]) -> None:
    """Write *rows* in one transaction, and read them back. Raises StoreError."""
    digest = await link.do(ReadDigest())
    nodes = (await link.do(ReadNodes())).all
    if digest.rows or any(node.fenced_us is None for node in nodes):
        reason = f"has {'tasks' if digest.rows else 'living nodes'} in namespace {target.namespace!r}"
        raise StoreError(store=target.name, reason=f"{reason}; copy to another namespace or database")
    outcome = await link.do(Reconcile(node=0, put=rows, removed=[], base=digest.generation))
    if outcome.is_other:
        raise StoreError(store=target.name, reason="was given other tasks just now; nothing was copied")
    written = {row.name: (row.definition, row.state, row.wake_us) for row in rows}
    stored = await stored_rows(link)
    if written != {name: (view.definition, view.state, view.wake_us) for name, view in stored.items()}:
        raise StoreError(store=target.name, reason="does not read back as it was written; do not use it")
