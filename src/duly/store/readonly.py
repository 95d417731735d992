"""Reading a SQLite file that others write: from outside (`read_only`), or beside our own writer.

`read_only` makes and changes no file. A database whose log lies beside it is read through that log, as any
reader of SQLite does, which disturbs nobody. One without a log is read as it lies there: SQLite would
otherwise make a log, only in order to read. One whose log has lost its index is read in a copy.

`SideReader` reads a store that this process has open, in a thread of its own: a look at a million runs must
not keep a start from being written. SQLite lets one write and others read at once (WAL); a look sees all
that was written before it began.
"""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from urllib.parse import quote

import apsw

from duly.threads import Worker

T = TypeVar("T")

_BUSY_MS = 2_000


def read_only(path: Path, what: Callable[[apsw.Connection], T]) -> T:
    """What *what* finds in the database at *path*, all of one moment. *what* may be called more than once."""
    log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    if log.exists() and index.exists():
        return _read(path, "mode=ro", what)
    if log.exists():
        return _read_copy(path, log, what)
    found = _read(path, "mode=ro&immutable=1", what)
    # A scheduler that was started meanwhile may have written under our eyes.
    return read_only(path, what) if log.exists() else found


def _read_copy(path: Path, log: Path, what: Callable[[apsw.Connection], T]) -> T:
    with TemporaryDirectory(prefix="duly-") as folder:
        copy = Path(folder) / "store"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, f"{copy}-wal")
        return _read(copy, "mode=ro", what)


def _read(path: Path, options: str, what: Callable[[apsw.Connection], T]) -> T:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(os.fsencode(path))}?{options}", flags=flags)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(_BUSY_MS)
        connection.execute("BEGIN")
        return what(connection)
    finally:
        connection.close(force=True)


def connection_to(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    """A connection to the file at *path*, whose name may hold bytes that are no text."""
    try:
        name = os.fsencode(path).decode()
    except UnicodeDecodeError:
        # Only so does SQLite get the bytes as they are.
        name, flags = f"file:{quote(os.fsencode(path))}", flags | apsw.SQLITE_OPEN_URI
    return apsw.Connection(name, flags=flags, vfs=vfs)


class SideReader:
    """Reads the file at *path*, and never writes it."""

    def __init__(self, path: Path, *, busy_ms: int, vfs: str | None) -> None:
        self._path = path
        self._busy_ms = busy_ms
        self._vfs = vfs
        self._worker = Worker(f"duly reader of {path}")
        self._connection: apsw.Connection | None = None
        self._version: object = None

    async def look(self, query: Callable[[apsw.Connection], T], version: object) -> T:
        """What *query* finds. Another *version* than the last: the file is another, and is opened again."""
        return await self._worker.do(partial(self._look, query, version))

    async def close(self) -> None:
        """Look no more, until somebody asks again."""
        if self._version is not None:
            self._version = None
            await self._worker.do(self._disconnect)
            self._worker.end()

    def _look(self, query: Callable[[apsw.Connection], T], version: object) -> T:
        if self._version != version:
            self._disconnect()
        if self._connection is None:
            connection = connection_to(self._path, apsw.SQLITE_OPEN_READONLY, self._vfs)
            connection.set_busy_timeout(self._busy_ms)
            self._connection, self._version = connection, version
        try:
            return query(self._connection)
        except apsw.Error:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(force=True)
