"""The files of a SQLite store, as seen from outside: what another program did to them while they are in use.

SQLite does not notice. It goes on writing into a file that was deleted, and it replays the log of one
database over another that was put in its place. So before each write the files are compared with what they
were, which costs two calls of `stat`.

A connection finds the frames of its log through an index in shared memory and does not check them again. A
log that was overwritten in place is therefore not noticed, and the next checkpoint copies the garbage into
the database. SQLite checks every frame only when it opens a log after a crash. `sound_frames` has it do
that: in a copy, beside a small database, at the speed of SQLite and without a checksum of our own.
"""

import os
import shutil
from contextlib import suppress
from enum import StrEnum
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import apsw

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
LOG_SUFFIXES = ("-wal", "-shm")
"""What SQLite keeps beside a database: the log, and the index of that log."""


class FileState(NamedTuple):
    """Which file is at a path, and what can be seen of its content without reading it."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    """When its content was written."""
    changed_ns: int
    """When it, its name or its rights were changed."""

    @property
    def identity(self) -> tuple[int, int]:
        """The same for every name of a file, and different for another file of the same name."""
        return self.device, self.inode


def state_of(status: os.stat_result) -> FileState:
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def state_at(path: str) -> FileState | None:
    try:
        return state_of(os.stat(path))  # noqa: PTH116 (asked before every write, and a Path is slow)
    except (FileNotFoundError, NotADirectoryError):
        return None


class StoreFiles(NamedTuple):
    """The database and its log."""

    database: FileState | None
    log: FileState | None


def files_at(path: str) -> StoreFiles:
    return StoreFiles(state_at(path), state_at(f"{path}-wal"))


class FileChange(StrEnum):
    """What another program did to the files. The value is for messages."""

    REPLACED = "was moved, deleted or replaced while in use"
    OVERWRITTEN = "was written by another program while in use"
    LOG_REMOVED = "lost its log (-wal) to another program while in use"
    LOG_DAMAGED = "has a log (-wal) that was damaged by another program or by the disk"


def change_between(noted: StoreFiles, now: StoreFiles) -> FileChange | None:
    """What happened to the files since they were *noted*; None if only we have written them.

    Between two checkpoints of ours nobody writes the database file itself, and a log never gets shorter.
    """
    if now.database is None or noted.database is None or now.database.identity != noted.database.identity:
        return FileChange.REPLACED
    if now.database[:4] != noted.database[:4]:  # rights and names may change
        return FileChange.OVERWRITTEN
    if noted.log is None:
        return None
    if now.log is None or now.log.identity != noted.log.identity:
        return FileChange.LOG_REMOVED
    return FileChange.LOG_DAMAGED if now.log.size_bytes < noted.log.size_bytes else None


def kept_name(path: str, why: str) -> str:
    """A free name beside *path* to keep files under: *why* is "damaged" or "replaced".

    The log keeps its suffix, so SQLite can open what is kept, and `duly store check` too.
    """
    for number in count(1):
        name = f"{path}.{why}-{number}"
        if not any(os.path.lexists(name + suffix) for suffix in ("", *LOG_SUFFIXES)):
            return name
    raise AssertionError("unreachable")


def keep_log(path: str, kept: str) -> None:
    """Move the log of the store at *path* and its index to *kept*. No connection may have them open."""
    # The log before its index: SQLite makes a new index, but would replay a log that is left at its place.
    for suffix in LOG_SUFFIXES:
        if os.path.lexists(path + suffix):
            Path(path + suffix).rename(kept + suffix)


def copy_open_file(descriptor: int, target: str) -> None:
    """Copy a file that is open here. It is not closed: that would drop the locks of SQLite on it."""
    with open(target, "xb") as copy, open(descriptor, "rb", closefd=False) as source:  # noqa: PTH123 (a descriptor)
        source.seek(0)
        shutil.copyfileobj(source, copy)
        # On disk before the caller changes the original.
        copy.flush()
        os.fsync(copy.fileno())


# --- the write-ahead log ---


class LogCount:
    """How many frames the log of an open database has, and how many of them are in the database too."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.frames, self.copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)


def sound_frames(log: str, page_bytes: int) -> int:
    """How many frames from the start of the file *log* are whole. Raises OSError."""
    with TemporaryDirectory(prefix="duly-") as folder:
        path = Path(folder) / "log"
        path.write_bytes(_small_database(page_bytes))
        shutil.copyfile(log, f"{path}-wal")
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            # To copy a log into a database that is thrown away would be work for nothing.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            # Any read opens the log. What it finds does not matter: the pages belong to another database.
            with suppress(apsw.Error):
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            return max(LogCount(connection).frames, 0)
        finally:
            connection.close(force=True)


def copy_frames(source: str, target: str, frames: int, page_bytes: int) -> None:
    size_bytes = _HEADER_BYTES + frames * (_FRAME_HEADER_BYTES + page_bytes)
    with open(source, "rb") as log:  # noqa: PTH123 (as the names of SQLite come: with a suffix)
        Path(target).write_bytes(log.read(size_bytes))


@cache
def _small_database(page_bytes: int) -> bytes:
    connection = apsw.Connection(":memory:")
    connection.execute(f"PRAGMA page_size = {page_bytes}")
    connection.execute("CREATE TABLE empty (a)")
    content = bytearray(connection.serialize("main"))
    content[18] = content[19] = 2  # the header's mark for "has a write-ahead log"
    return bytes(content)
