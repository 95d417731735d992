"""The history of task runs: each run that has ended is a row, written soon after, beside the work.

It is the history of `store.history`, in the same table. Only ends are recorded: a start is durable in the row
of its task, and what that says of a run that a crash cut off becomes a row at the next start. So a history
costs one row for each run, some hundred of them in one transaction. Ends of the last half second may be
missing after a crash. Nothing that a task does next depends on it.
"""

import os
import socket
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import cache
from typing import NamedTuple
from uuid import UUID

from duly.background import Background
from duly.clock import Watchable
from duly.core.causes import Cause, Start, scheduled_us
from duly.core.task import Task
from duly.engine.runs import ActiveRun
from duly.engine.tasks import run_id_from, run_id_of
from duly.errors import StoreError
from duly.events import Announcer, described
from duly.instant import SECOND_US, Instant, datetime_at, instant_of
from duly.store.history import History, HistoryDatabase, Result, RunRow, WantedTaskRuns
from duly.store.memory import MemoryDatabase, MemoryStore
from duly.store.protocol import Store
from duly.store.sqlite import SQLiteStore

_GATHER_S = 0.5
"""What ends within this time is written together."""
_PRUNED_EVERY_US = 24 * 3600 * SECOND_US
_PRUNED_AFTER = 1_000
"""After so many runs old ones are looked for, however little time has passed."""
_TRACEBACK_BYTES = 16 * 1024
_MESSAGE_CHARACTERS = 4_000


class HistoryLimits(NamedTuple):
    """How long runs are remembered, and how many of each task."""

    age_us: int
    runs: int


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A run that has ended, as the history has it."""

    id: UUID | None
    """As `Run.id`. None if it was cut off on another node: that knew it."""
    task: str
    due: datetime | None
    """What it answered: its due, its retry time, or when it was asked for."""
    started: datetime
    ended: datetime
    """Of a run that was interrupted: when that was noticed."""
    cause: str
    """Empty if it was interrupted, unless it was a retry."""
    attempt: int
    node: str
    """The host and the process that ran it."""
    result: str
    """success, failure, timeout, cancelled or interrupted."""
    error: str | None = None
    """The class of what it raised."""
    message: str = ""
    traceback: str = ""
    """No longer than 16 KiB: of a longer one the middle is left out, and says so."""


def task_run(row: RunRow, zone: tzinfo) -> TaskRun:
    """The run that *row* keeps, with its times in *zone*."""
    assert row.ended_us is not None
    error, _, message = row.message.partition(": ")
    return TaskRun(
        None if row.run_id is None else UUID(row.run_id),
        row.service,
        None if row.scheduled_us is None else datetime_at(row.scheduled_us, zone),
        datetime_at(row.started_us, zone),
        datetime_at(row.ended_us, zone),
        row.reason,
        row.attempt or 1,
        row.node or "",
        row.result or "",
        error or None,
        message,
        row.output,
    )


def result_of(run: ActiveRun[Task], error: BaseException | None) -> Result:
    if error is None:
        return Result.SUCCESS
    if run.is_cancelled:
        return Result.CANCELLED
    return Result.TIMEOUT if run.is_timed_out else Result.FAILURE


def message_of(error: BaseException | None) -> str:
    """The class of *error*, a colon, and what it says; empty without one."""
    return "" if error is None else described(error)[:_MESSAGE_CHARACTERS]


def traceback_of(error: BaseException | None) -> str:
    """The traceback of *error*. A long one loses its middle: the call and the fault are at its ends."""
    if error is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")
    except Exception as failure:  # an exception may be of a class that cannot be formatted
        return f"(the traceback cannot be formatted: {described(failure)})\n"
    if len(text) <= _TRACEBACK_BYTES:
        return text.decode()
    marker = f"\n... the middle is left out; the whole has {len(text):,} bytes ...\n"
    head = (_TRACEBACK_BYTES - len(marker)) // 4
    tail = _TRACEBACK_BYTES - len(marker) - head
    return text[:head].decode(errors="ignore") + marker + text[-tail:].decode(errors="ignore")


@cache
def this_node(pid: int) -> str:
    """What the node of this process is called."""
    return f"{socket.gethostname()}:{pid}"


class TaskHistory:
    """The history of one scheduler on a store of its own."""

    def __init__(self, store: Store, clock: Watchable, announcer: Announcer, limits: HistoryLimits) -> None:
        self._clock = clock
        self._announce = announcer.announce
        self._limits = limits
        self._rows = History(_database_of(store), clock, announcer, gather_s=_GATHER_S)
        self._pruning = Background(self._prune, name="duly pruner")
        self._prune_at_us: Instant = 0
        self._recorded = 0

    async def begin(self, interrupted: Iterable[Task]) -> None:
        """Begin a new life of the program, which found these tasks running. Raises StoreError."""
        # Before any row is made: ids go on where the last life ended.
        await self._rows.read_last_id()
        now_us = instant_of(self._clock.now())
        for task in interrupted:
            assert task.running_since_us is not None
            origin_us = task.running_since_us if task.origin_us is None else task.origin_us
            row = RunRow(
                id=self._rows.new_id(),
                service=task.name,
                reason=Cause.RETRY.value if task.retry_count else "",
                scheduled_us=origin_us,
                started_us=task.running_since_us,
                ended_us=max(now_us, task.running_since_us),
                result=Result.INTERRUPTED.value,
                attempt=task.retry_count + 1,
                run_id=str(run_id_from(task.scheduler_id, task.name, origin_us)),
            )
            self._rows.record_run(row)

    def record(self, run: ActiveRun[Task], error: BaseException | None) -> None:
        """Have a run that has ended written soon."""
        start = run.start
        assert isinstance(start, Start)
        row = RunRow(
            id=self._rows.new_id(),
            service=run.name,
            reason=start.cause.value,
            scheduled_us=scheduled_us(start),
            started_us=run.started_us,
            ended_us=run.ended_us,
            lasted_us=max(run.ended_us - run.called_us, 0),
            result=result_of(run, error).value,
            message=message_of(error),
            output=traceback_of(error),
            attempt=start.after.retry_count + 1,
            run_id=str(run_id_of(start.before, run.started_us)),
            node=this_node(os.getpid()),
        )
        self._rows.record_run(row)
        self._recorded += 1
        if run.ended_us >= self._prune_at_us or self._recorded >= _PRUNED_AFTER:
            self._prune_at_us, self._recorded = run.ended_us + _PRUNED_EVERY_US, 0
            # In the background: to delete thousands of rows takes longer than a run may wait.
            self._pruning.start()

    async def runs(self, wanted: WantedTaskRuns) -> Sequence[RunRow]:
        """Newest first, also those that are not yet written. Raises StoreError."""
        return await self._rows.task_runs(wanted)

    async def close(self) -> None:
        """Write what is not yet written. A store that cannot do that has been announced."""
        self._pruning.end()
        try:
            await self._rows.close()
        except StoreError:
            return  # as an event; what tasks must remember was written, or is raised, without it

    def drop(self) -> None:
        """Write nothing more, as after a crash."""
        self._pruning.end()
        self._rows.drop()

    async def _prune(self) -> None:
        oldest_us = instant_of(self._clock.now()) - self._limits.age_us
        try:
            await self._rows.prune(oldest_us=oldest_us, runs=self._limits.runs, misses=False)
        except StoreError as error:  # the next day, or after a thousand runs, it is tried again
            self._announce("StoreFault", error=f"old runs are not forgotten: {described(error)}")


def _database_of(store: Store) -> HistoryDatabase:
    """Where the runs of the tasks in *store* are kept: a store that a user wrote has no table for them."""
    if isinstance(store, SQLiteStore):
        return store
    return store.tables if isinstance(store, MemoryStore) else MemoryDatabase()
