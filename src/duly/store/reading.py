"""Reading a SQLite store from outside, while its scheduler may be at work.

It is not locked, and no file is made or changed (`readonly`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from duly.core.record import COLUMNS, Record
from duly.errors import StoreError
from duly.store.history import MissRow, RunRow
from duly.store.inspection import DAMAGE, damage_at
from duly.store.readonly import read_only
from duly.store.schema import APPLICATION_ID, migrations, sql
from duly.store.tables import list_query, misses_query

T = TypeVar("T")

_WITH_TASKS = 1
_WITH_RUNS = 2
_WITH_ORIGINS = 3
"""The formats that brought these tables."""


class Reader:
    """The tables of a store, all as they are at one moment."""

    def __init__(self, connection: apsw.Connection, version: int) -> None:
        self._connection = connection
        self._version = version
        """0: there is nothing in it."""

    def tasks(self) -> Sequence[Record]:
        """The record of every task."""
        if self._version < _WITH_TASKS:
            return []
        columns = ", ".join(COLUMNS)
        if self._version < _WITH_ORIGINS:
            columns = columns.replace("origin_us", "last_attempt_us AS origin_us")
        return self._connection.execute(f"SELECT {columns} FROM task ORDER BY id").fetchall()  # noqa: S608 (names of ours)

    def services(self) -> dict[str, str]:
        """The services that were declared last, each with its definition, as JSON."""
        return dict(self._rows("SELECT name, definition FROM service ORDER BY rowid"))

    def timers(self) -> list[dict[str, Any]]:
        """The rows of the timers, by column."""
        if self._version < _WITH_RUNS:
            return []
        names = [str(row[1]) for row in self._rows("PRAGMA table_info(timer)")]
        return [dict(zip(names, row, strict=True)) for row in self._rows("SELECT * FROM timer ORDER BY id")]

    def runs(
        self,
        *,
        service: str | None = None,
        timer: str | None = None,
        before: int | None = None,
        limit: int,
    ) -> list[RunRow]:
        """Runs, newest first."""
        return self._runs(*list_query(service, timer, before, limit))

    def run(self, run_id: int) -> RunRow | None:
        """One run."""
        return next(iter(self._runs(sql("run_one"), (run_id,))), None)

    def open_runs(self) -> list[RunRow]:
        """The runs of which no end is known, oldest first."""
        return self._runs(sql("run_open"))

    def last_ends(self) -> dict[str, RunRow]:
        """Of each service the newest run that has ended."""
        return {row.service: row for row in self._runs(sql("run_last_ends"))}

    def misses(self, *, timer: str | None = None, limit: int) -> list[MissRow]:
        """Misses, newest first."""
        found = self._rows(*misses_query(timer, limit))
        return [msgspec.convert(row, MissRow) for row in found]

    def _runs(self, query: str, values: Any = None) -> list[RunRow]:
        return [msgspec.convert(row, RunRow) for row in self._rows(query, values)]

    def _rows(self, query: str, values: Any = None) -> list[Any]:
        if self._version < _WITH_RUNS:
            return []
        return self._connection.execute(query, values).fetchall()


def nothing() -> Reader:
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
        raise StoreError(store=name, reason=_reason(error), cause=error) from error


def _version(connection: apsw.Connection, name: str) -> int:
    """The format of the store; 0 for an empty file. Raises StoreError unless we can read it."""
    version, known = connection.execute("PRAGMA user_version").get, len(migrations())
    if connection.execute("PRAGMA application_id").get != APPLICATION_ID:
        if connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise StoreError(store=name, reason="is a SQLite database of another program; give that of duly")
        return 0
    assert isinstance(version, int)
    if version > known:
        reason = f"has format {version}, written by a newer duly; this one knows up to {known}. Upgrade duly"
        raise StoreError(store=name, reason=reason)
    if version < _WITH_TASKS:
        reason = f"has the older format {version}; start its scheduler once to bring it up to date"
        raise StoreError(store=name, reason=reason)
    return version


_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (apsw.BusyError, "is locked by another program; try again"),
    (PermissionError, "may not be read by you; ask for the permission, or run this as its owner"),
    (apsw.CantOpenError, "cannot be opened; may you read it, and the files beside it?"),
)


def _reason(error: BaseException) -> str:
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), f"failed: {error}")
