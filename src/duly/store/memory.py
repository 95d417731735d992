"""Stores that forget when the process ends: for tests, and for programs that need no memory.

It keeps records, not tasks, so what comes back has gone through the same conversion as in every other store.
Give the same MemoryStore to a second scheduler to see what a restart would see.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

import apsw

from duly.core.record import Record, record_of
from duly.core.task import Task
from duly.errors import StoreError, StoreInUseError, TaskListMismatchError
from duly.store.protocol import Contents
from duly.store.schema import in_transaction, migrate, migrations

T = TypeVar("T")


class MemoryStore:
    """Records in a dict."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        """By task id. Tests may look, and may damage."""
        self._scheduler_id = ""
        self._held = False

    @property
    def name(self) -> str:
        return ":memory:"

    @cached_property
    def tables(self) -> "MemoryDatabase":
        """The other tables, for a history. Made when somebody asks."""
        return MemoryDatabase()

    async def open(self, new_id: str) -> Contents:
        if self._held:
            raise StoreInUseError(store=self.name, holder="a scheduler of this process")
        self._held = True
        self._scheduler_id = self._scheduler_id or new_id
        return Contents(self._scheduler_id, list(self.records.values()))

    async def replace(self, *, put: Sequence[Task], removed: Sequence[int]) -> None:
        self._check_held()
        for task_id in removed:
            self.records.pop(task_id, None)
        self.records.update((task.id, record_of(task)) for task in put)

    async def save(self, tasks: Sequence[Task]) -> None:
        self._check_held()
        present = sum(task.id in self.records for task in tasks)
        if present != len(tasks):
            raise TaskListMismatchError(expected=len(tasks), actual=present)
        self.records.update((task.id, record_of(task)) for task in tasks)

    async def close(self) -> None:
        self._held = False

    async def drop(self) -> None:
        self._held = False

    def _check_held(self) -> None:
        if not self._held:
            raise StoreError(store=self.name, reason="is not open")


class MemoryDatabase:
    """The tables of a SQLite store without a file, for a history."""

    name = ":memory:"

    def __init__(self) -> None:
        self.restorers: list[Callable[[apsw.Connection], object]] = []
        self._connection = apsw.Connection(":memory:")
        migrate(self._connection, 0, migrations())

    async def look(self, query: Callable[[apsw.Connection], T]) -> T:
        return query(self._connection)

    async def write(self, change: Callable[[apsw.Connection], object]) -> None:
        in_transaction(change, self._connection)
