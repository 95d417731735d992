"""Reading a SQLite file without making or changing any file beside it.

A database whose log lies beside it is read through that log, as any reader of SQLite does, which disturbs
nobody. One without a log is read as it lies there: SQLite would otherwise make a log, only in order to read.
One whose log has lost its index is read in a copy.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from urllib.parse import quote

import apsw

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
