"""A store in one SQLite file: WAL, `synchronous=FULL`, one writer thread.

Every write is one transaction made of one or two statements, whatever the number of tasks. A connection that
failed is closed and opened anew for the next write, so a fault that passes (a full disk, a lock, a pulled
network mount) needs no restart. The file is never written before it is known to be ours and not newer.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

import apsw
import msgspec

from duly.core.record import STATE_COLUMNS, record_of, state_of
from duly.core.task import Task
from duly.errors import StoreError, TaskListMismatchError
from duly.marks import mark
from duly.store.hold import Hold, Place, place_of
from duly.store.looking import Onlooker, connection_to
from duly.store.protocol import Contents
from duly.threads import Worker, Works

T = TypeVar("T")

APPLICATION_ID = 0x64756C79  # "duly", so that `file` and we can tell our databases from others
_CHECKPOINT_PAGES = 1_000
_FEW = range(1, 51)
"""So many tasks are bound value by value, which takes half the time of JSON; for more SQLite reads JSON."""

_encoded = msgspec.json.Encoder().encode


class OnWrite(Protocol):
    """Who is told of writes. It must not raise."""

    def __call__(self, seconds: float, /, *, is_written: bool) -> object:
        """Hear of one."""
        ...


class SQLiteStore:
    """Tasks in a SQLite file.

    *busy_ms* is how long a write waits for another program's lock before it fails for now. *vfs* names a
    SQLite file system other than the default; tests use it for disks that fail. *worker* does the blocking
    work elsewhere than in a thread of its own; a simulation has none.
    """

    def __init__(
        self, path: Path, *, busy_ms: int = 2_000, vfs: str | None = None, worker: Works | None = None
    ) -> None:
        self._name = str(path)
        # Absolute from here on: a program that changes directory must not change its store.
        self._path = Path(os.path.abspath(path))  # noqa: PTH100 (links stay links)
        self._busy_ms = busy_ms
        self._vfs = vfs
        self._hold = Hold(self._path, self._name)
        self._worker = Worker(f"duly store {path}") if worker is None else worker
        self._onlooker = Onlooker(self._path, busy_ms=busy_ms, vfs=vfs) if worker is None else None
        self._connection: apsw.Connection | None = None
        self._files = str(self._path), f"{self._path}-wal"
        self._places: tuple[Place, ...] = ()
        self._scheduler_id = self._new_id = ""
        self._wal_pages = 0
        self._is_open = False
        self.on_write: OnWrite | None = None
        """Told, in the writer's thread, how many seconds each write took and whether it was written."""

    @property
    def name(self) -> str:
        """The path as it was given."""
        return self._name

    async def open(self, new_id: str) -> Contents:
        """Take hold of the file, bring it up to date, and read it."""
        try:
            return await self._worker.do(partial(self._open, new_id))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                await self._worker.do(self._shut)  # what nobody waits for any more may yet succeed
            self._worker.end()
            raise

    async def replace(self, *, put: Sequence[Task], removed: Sequence[int]) -> None:
        """Write tasks whole and forget others, in one transaction."""
        statements = []
        if removed:
            statements.append((sql("remove"), _encoded(removed).decode()))
        if put:
            statements.append((sql("put"), _encoded([record_of(task) for task in put]).decode()))
        change = partial(self._execute, statements)
        await self._worker.do(partial(self._write, partial(_in_transaction, change)))
        self._checkpoint_soon()

    async def save(self, tasks: Sequence[Task]) -> None:
        """Write what running changed, in one transaction."""
        change = partial(self._save, [(task.id, *state_of(task)) for task in tasks])
        # One row is written whole or not at all, without our saying so.
        write = change if len(tasks) == 1 else partial(_in_transaction, change)
        await self._worker.do(partial(self._write, write))
        self._checkpoint_soon()

    async def read(self, query: Callable[[apsw.Connection], T]) -> T:
        """What *query* finds in the other tables of the file. Raises StoreError."""
        return await self._worker.do(lambda: self._guarded(partial(query, self._connected())))

    async def look(self, query: Callable[[apsw.Connection], T]) -> T:
        """Like `read`, beside the writer: what takes long keeps nobody from writing. Raises StoreError."""
        if self._onlooker is None or not self._is_open or self._connection is None:
            return await self.read(query)
        try:
            return await self._onlooker.look(query, self._places)
        except (apsw.Error, OSError) as error:
            raise StoreError(store=self.name, reason=_reason(error), cause=error) from error

    async def write(self, change: Callable[[apsw.Connection], object]) -> None:
        """Make *change* to the other tables of the file, in one transaction. Raises StoreError."""
        await self._worker.do(partial(self._write, partial(_in_transaction, change)))
        self._checkpoint_soon()

    async def close(self) -> None:
        """Close the file and let go of it."""
        if self._onlooker is not None:
            await self._onlooker.close()
        await self._worker.do(self._shut)
        self._worker.end()

    async def drop(self) -> None:
        """Let go without another write, as the end of the process would."""
        if self._onlooker is not None:
            await self._onlooker.close()
        await self._worker.do(self._abandon)
        self._worker.end()

    # --- in the worker thread ---

    def _open(self, new_id: str) -> Contents:
        self._hold.take()
        self._is_open = True
        try:
            self._scheduler_id, self._new_id = "", new_id
            connection = self._connected()
            records = self._guarded(lambda: connection.execute(sql("load")).fetchall())
        except BaseException:
            self._shut()
            raise
        return Contents(self._scheduler_id, records)

    def _save(self, rows: Sequence[tuple[Any, ...]], connection: apsw.Connection) -> None:
        if len(rows) in _FEW:
            connection.execute(_save_few(len(rows)), tuple(chain.from_iterable(rows)))
        else:
            connection.execute(_save_many(), (_encoded(rows).decode(),))
        if (actual := connection.changes()) != len(rows):
            raise TaskListMismatchError(expected=len(rows), actual=actual)

    def _execute(self, statements: Sequence[tuple[str, str]], connection: apsw.Connection) -> None:
        for statement, rows in statements:
            connection.execute(statement, (rows,))

    def _write(self, write: Callable[[apsw.Connection], object]) -> None:
        if (told := self.on_write) is None:
            self._write_now(write)
            return
        begun_s, is_written = time.perf_counter(), False
        try:
            self._write_now(write)
            is_written = True
        finally:
            told(time.perf_counter() - begun_s, is_written=is_written)

    def _write_now(self, write: Callable[[apsw.Connection], object]) -> None:
        self._check_in_place()
        connection = self._connected()
        try:
            self._guarded(partial(write, connection))
        except StoreError as error:
            # Busy leaves a connection as good as before. After anything else a fresh one is safer.
            if not isinstance(error.__cause__, apsw.BusyError):
                mark("connection renewed")
                self._disconnect()
            raise

    def _check_in_place(self) -> None:
        """Notice a file that was deleted or replaced: SQLite would go on writing into the void."""
        if self._is_open:
            self._hold.check()
        if self._connection is None or self._places == self._places_now():
            return
        self._disconnect()
        raise StoreError(
            store=self.name, reason="was moved, deleted or replaced while in use; writing it anew"
        )

    def _connected(self) -> apsw.Connection:
        if not self._is_open:
            raise StoreError(store=self.name, reason="is not open")
        if self._connection is None:
            self._connection = self._guarded(self._connect)
            self._places = self._places_now()
        return self._connection

    def _places_now(self) -> tuple[Place, ...]:
        file, log = self._files
        return place_of(file), place_of(log)

    def _connect(self) -> apsw.Connection:
        connection = connection_to(
            self._path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, self._vfs
        )
        try:
            connection.set_busy_timeout(self._busy_ms)
            version = _checked_version(connection, self.name)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            # We checkpoint after a write has been acknowledged, not while somebody waits for it.
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.set_wal_hook(self._note_wal)
            migrate(connection, version, migrations())
            self._scheduler_id = _identified(connection, self._scheduler_id or self._new_id)
        except BaseException:
            connection.close(force=True)
            raise
        return connection

    def _note_wal(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_soon(self) -> None:
        if self._wal_pages > _CHECKPOINT_PAGES:
            self._wal_pages = 0
            self._worker.post(self._checkpoint)

    def _checkpoint(self) -> None:
        if self._connection is not None:
            # If it cannot be done now (a reader, a full disk) the log grows until the next try.
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _shut(self) -> None:
        # In the worker, behind every write already handed over.
        self._is_open = False
        self._disconnect()
        self._hold.release()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closing folds the log back into the file. If it cannot, the log keeps what is in it.
            with suppress(apsw.Error):
                connection.close(force=True)

    def _abandon(self) -> None:
        if self._connection is not None:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._shut()

    def _guarded(self, act: Callable[[], T]) -> T:
        """Do *act*; whatever SQLite or the file system says against it becomes a StoreError."""
        try:
            return act()
        except (apsw.Error, OSError) as error:
            raise StoreError(store=self.name, reason=_reason(error), cause=error) from error


def migrate(connection: apsw.Connection, version: int, steps: Sequence[str]) -> None:
    """Bring a database of format *version* to the newest, in one transaction. Step n leads to format n."""
    if version >= len(steps):
        return

    def change(connection: apsw.Connection) -> None:
        for step in steps[version:]:
            connection.execute(step)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")

    _in_transaction(change, connection)


@cache
def migrations() -> tuple[str, ...]:
    """The steps from an empty database to the present format."""
    folder = files("duly.store").joinpath("sql", "sqlite")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name[:4].isdigit())
    return tuple(folder.joinpath(name).read_text() for name in names)


@cache
def sql(name: str) -> str:
    """One of our statements, by name."""
    return files("duly.store").joinpath("sql", "sqlite", f"{name}.sql").read_text()


@cache
def _save_few(number: int) -> str:
    """The statement that saves *number* tasks, each value bound by itself."""
    row = f"({', '.join(['?'] * (1 + len(STATE_COLUMNS)))})"
    return sql("save").format(rows=f"VALUES {', '.join([row] * number)}")


@cache
def _save_many() -> str:
    """The statement that saves any number of tasks, bound as one JSON text."""
    return sql("save").format(rows=sql("save_many"))


def _in_transaction(change: Callable[[apsw.Connection], object], connection: apsw.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        change(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has rolled back by itself after some faults
            connection.execute("ROLLBACK")
        raise


def _checked_version(connection: apsw.Connection, name: str) -> int:
    """The format of the database, if it is ours to use; it is only read to find out."""
    version = _number(connection, "PRAGMA user_version")
    known = len(migrations())
    if version > known:
        reason = f"has format {version}, written by a newer duly; this one knows up to {known}. Upgrade duly"
        raise StoreError(store=name, reason=reason)
    is_ours = _number(connection, "PRAGMA application_id") == APPLICATION_ID
    if not is_ours and _number(connection, "SELECT count(*) FROM sqlite_schema"):
        raise StoreError(store=name, reason="is a SQLite database of another program; choose another path")
    return version


def _number(connection: apsw.Connection, query: str) -> int:
    value = connection.execute(query).get
    assert isinstance(value, int)
    return value


def _identified(connection: apsw.Connection, new_id: str) -> str:
    """The scheduler identifier of the database, which is *new_id* if it had none."""

    def change(connection: apsw.Connection) -> None:
        connection.execute(
            "INSERT INTO scheduler SELECT ? WHERE NOT EXISTS (SELECT * FROM scheduler)", (new_id,)
        )

    _in_transaction(change, connection)
    return str(connection.execute("SELECT id FROM scheduler").get)


_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (apsw.FullError, "the disk is full; free some space and writing resumes by itself"),
    (apsw.ReadOnlyError, "is read-only; make the file and its directory writable"),
    (apsw.BusyError, "is locked by another program; it is tried again"),
    (apsw.LockedError, "is locked; it is tried again"),
    (apsw.NotADBError, "is not a SQLite database; choose another path or restore the file from a copy"),
    (apsw.CorruptError, "is damaged; restore it from a copy, or move it away to begin anew"),
    (apsw.CantOpenError, "cannot be opened; is it a file, and is its directory there and writable?"),
    (apsw.IOError, "cannot be read or written (input/output error); look at the disk"),
)


def _reason(error: BaseException) -> str:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    return f"failed: {error}"
