"""Custody: who keeps the tasks of a scheduler, and takes in a new list of them.

A scheduler on a store of its own keeps all its tasks (`engine.sole`); a member of a cluster keeps a share of
them that comes and goes (`duly.cluster`). Either fills the book that the poller works on, and answers for its
being written. The scheduler above knows only this face, and never two of them at once.
"""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Protocol

from duly.core.reconciliation import Reconciliation
from duly.core.record import COLUMNS, Record, task_from
from duly.core.registration import Registration
from duly.core.schedule import Schedules
from duly.core.task import Task
from duly.engine.book import Book
from duly.engine.poller import Poller
from duly.errors import ScheduleTaskError, TaskTryDeserializeError
from duly.marks import mark


class Custody(Protocol):
    """Keeps the tasks of one scheduler."""

    @property
    def book(self) -> Book[Task]:
        """The tasks kept here."""
        ...

    @property
    def poller(self) -> Poller[Task]:
        """What starts them."""
        ...

    async def begin(self, registrations: list[Registration], zone: tzinfo) -> Reconciliation:
        """Open what remembers, and make *registrations* the tasks. If it raises, nothing is open."""
        ...

    async def change(self, registrations: list[Registration]) -> Reconciliation:
        """Make *registrations* the tasks in place of those before."""
        ...

    async def retire(self) -> None:
        """Nothing starts here any more: let others have what they could do."""
        ...

    async def end(self) -> None:
        """Write what is not yet written, and let go. It lets go also if it raises."""
        ...

    async def drop(self) -> None:
        """Let go as a crash would."""
        ...


def tasks_read(
    records: Sequence[Record], registrations: Sequence[Registration], schedules: Schedules, store: str
) -> tuple[dict[str, Task], list[int]]:
    """The stored tasks by name, and the ids of those that cannot be read and are not registered.

    Raises ScheduleTaskError for one that is registered and cannot be read.
    """
    crons = {item.name: item.expression.text for item in registrations}
    tasks: dict[str, Task] = {}
    unreadable = []
    for record in records:
        try:
            task = task_from(record, schedules.of)
        except TaskTryDeserializeError as error:
            task_id, name = record[0], record[COLUMNS.index("name")]
            if name in crons:
                mark("unreadable row refused")
                refused = ScheduleTaskError(name=name, cron_expression=crons[name], cause=error)
                refused.add_note(
                    f"The row is in the table task of {store}; restore a copy, or run `duly store repair`"
                )
                raise refused from error
            mark("unreadable row removed")
            unreadable.append(task_id)
        else:
            tasks[task.name] = task
    return tasks, unreadable
