"""Reading a SQLite store from outside, while its scheduler may be at work.

It is not locked, and no file is made or changed (`readonly`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from duly.core.record import COLUMNS, Record
from duly.errors import StoreError
from duly.store.history import OF_TASKS, OF_TIMES, HistoryReader
from duly.store.inspection import DAMAGE, damage_at
from duly.store.readonly import read_only
from duly.store.schema import Reasons, checked_version, number_of, reason_of

T = TypeVar("T")

_WITH_TASKS = 1
_WITH_RUNS = 2
_WITH_ORIGINS = 3
_WITH_REQUESTS = 5
_WITH_TASK_RUNS = 6
_WITH_ENTRIES = 7
_WITH_TIMES = 8
"""The formats that brought these tables."""


class Reader(HistoryReader):
    """The tables of a store, all as they are at one moment."""

    def __init__(self, connection: apsw.Connection, version: int) -> None:
        lacking = () if version >= _WITH_TIMES else OF_TIMES
        super().__init__(connection, lacking if version >= _WITH_TASK_RUNS else (*OF_TASKS, *lacking))
        self._version = version
        """0: there is nothing in it."""

    def tasks(self) -> Sequence[Record]:
        if self._version < _WITH_TASKS:
            return []
        columns = ", ".join(COLUMNS)
        if self._version < _WITH_ORIGINS:
            columns = columns.replace("origin_us", "last_attempt_us AS origin_us")
        if self._version < _WITH_REQUESTS:
            columns = columns.replace("paused", "0 AS paused").replace("requested_us", "NULL AS requested_us")
        if self._version < _WITH_ENTRIES:
            columns = columns.replace(", entry", ", NULL AS entry")
        return self._connection.execute(f"SELECT {columns} FROM task ORDER BY id").fetchall()  # noqa: S608 (names of ours)

    def timers(self) -> list[dict[str, Any]]:
        """The rows of the timers, by column."""
        names = [str(row[1]) for row in self._rows("PRAGMA table_info(timer)")]
        return [dict(zip(names, row, strict=True)) for row in self._rows("SELECT * FROM timer ORDER BY id")]

    def _rows(self, query: str, values: Any = None) -> list[Any]:
        return super()._rows(query, values) if self._version >= _WITH_RUNS else []


def empty_reader() -> Reader:
    """A store in which there is nothing."""
    return Reader(apsw.Connection(":memory:"), 0)


def records_in(path: Path) -> Sequence[Record]:
    """The record of every task in the store at *path*. Raises StoreError."""
    return read(path, Reader.tasks)


def read(path: Path, what: Callable[[Reader], T]) -> T:
    """What is to be read of the store at *path*. Raises StoreError. *what* may be called more than once."""
    if not path.exists():
        raise StoreError(store=str(path), reason="there is no such file; give the path of a store")
    if not path.is_file():
        raise StoreError(store=str(path), reason="is not a file; give the path of a store")
    name, file = str(path), path.resolve()
    try:
        return read_only(file, lambda connection: what(Reader(connection, _version(connection, name))))
    except apsw.NotADBError as error:
        reason = "is not a SQLite database; give the path of a store"
        raise StoreError(store=name, reason=reason, cause=error) from error
    except DAMAGE as error:
        raise damage_at(file, name, error) from error
    except (apsw.Error, OSError) as error:
        raise StoreError(store=name, reason=reason_of(error, _REASONS), cause=error) from error


def _version(connection: apsw.Connection, name: str) -> int:
    """The format of the store; 0 for an empty file. Raises StoreError unless we can read it."""
    version = checked_version(connection, name, remedy="give that of duly")
    if version < _WITH_TASKS and number_of(connection, "SELECT count(*) FROM sqlite_schema"):
        reason = f"has the older format {version}; start its scheduler once to bring it up to date"
        raise StoreError(store=name, reason=reason)
    return version


_REASONS: Reasons = (
    (apsw.BusyError, "is locked by another program; try again"),
    (PermissionError, "may not be read by you; ask for the permission, or run this as its owner"),
    (apsw.CantOpenError, "cannot be opened; may you read it, and the files beside it?"),
)
