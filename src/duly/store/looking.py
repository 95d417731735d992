"""Looking into a store beside its writer: a connection and a thread of their own.

Whoever looks at a million runs must not keep a start from being written. SQLite lets one write and others
read at once (WAL); a look sees all that was written before it began.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw

from duly.threads import Worker

T = TypeVar("T")


def connection_to(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    """A connection to the file at *path*, whose name may hold bytes that are no text."""
    try:
        name = os.fsencode(path).decode()
    except UnicodeDecodeError:
        # Only so does SQLite get the bytes as they are.
        name, flags = f"file:{quote(os.fsencode(path))}", flags | apsw.SQLITE_OPEN_URI
    return apsw.Connection(name, flags=flags, vfs=vfs)


class Onlooker:
    """Reads the file at *path*, and never writes it."""

    def __init__(self, path: Path, *, busy_ms: int, vfs: str | None) -> None:
        self._path = path
        self._busy_ms = busy_ms
        self._vfs = vfs
        self._worker = Worker(f"duly onlooker {path}")
        self._connection: apsw.Connection | None = None
        self._version: object = None

    async def look(self, query: Callable[[apsw.Connection], T], version: object) -> T:
        """What *query* finds. Another *version* than the last: the file is another, and is opened anew."""
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
