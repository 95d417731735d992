"""Reading a SQLite store from outside, while its scheduler may be at work.

The hold is not taken, and no file is made or changed. A store whose log lies beside it is read through that
log, as any reader of SQLite does, which disturbs nobody. One without a log is read as it lies there: SQLite
would otherwise make a log, only in order to read. One whose log has lost its index is read in a copy.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import apsw

from duly.core.record import COLUMNS, Record
from duly.errors import StoreError
from duly.store.sqlite import APPLICATION_ID, migrations

_BUSY_MS = 2_000


def records_in(path: Path) -> Sequence[Record]:
    """The record of every task in the store at *path*. Raises StoreError."""
    if not path.exists():
        raise StoreError(store=str(path), reason="there is no such file; give the path of a store")
    if not path.is_file():
        raise StoreError(store=str(path), reason="is not a file; give the path of a store")
    try:
        return _settled(path.resolve(), str(path))
    except (apsw.Error, OSError) as error:
        raise StoreError(store=str(path), reason=_reason(error), cause=error) from error


def _settled(path: Path, name: str) -> Sequence[Record]:
    log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    if log.exists() and index.exists():
        return _read(path, name, "mode=ro")
    if log.exists():
        return _read_copy(path, log, name)
    records = _read(path, name, "mode=ro&immutable=1")
    # A scheduler that was started meanwhile may have written under our eyes.
    return _settled(path, name) if log.exists() else records


def _read_copy(path: Path, log: Path, name: str) -> Sequence[Record]:
    with TemporaryDirectory(prefix="duly-") as folder:
        copy = Path(folder) / "store"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, f"{copy}-wal")
        return _read(copy, name, "mode=ro")


def _read(path: Path, name: str, options: str) -> Sequence[Record]:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(str(path))}?{options}", flags=flags)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(_BUSY_MS)
        connection.execute("BEGIN")  # so that all that is read is of one moment
        if not _holds_tasks(connection, name):
            return []
        return connection.execute(f"SELECT {', '.join(COLUMNS)} FROM task ORDER BY id").fetchall()  # noqa: S608 (names of ours)
    finally:
        connection.close(force=True)


def _holds_tasks(connection: apsw.Connection, name: str) -> bool:
    """Whether there is anything in it. Raises StoreError unless it is a store that we can read."""
    version, known = connection.execute("PRAGMA user_version").get, len(migrations())
    if connection.execute("PRAGMA application_id").get != APPLICATION_ID:
        if connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise StoreError(store=name, reason="is a SQLite database of another program; give that of duly")
        return False
    if version > known:
        reason = f"has format {version}, written by a newer duly; this one knows up to {known}. Upgrade duly"
        raise StoreError(store=name, reason=reason)
    if version < known:
        reason = f"has the older format {version}; start its scheduler once to bring it up to date"
        raise StoreError(store=name, reason=reason)
    return True


_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (apsw.NotADBError, "is not a SQLite database; give the path of a store"),
    (apsw.CorruptError, "is damaged; restore it from a copy"),
    (apsw.BusyError, "is locked by another program; try again"),
    (PermissionError, "may not be read by you; ask for the permission, or run this as its owner"),
    (apsw.CantOpenError, "cannot be opened; may you read it, and the files beside it?"),
)


def _reason(error: BaseException) -> str:
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), f"failed: {error}")
