"""The write-ahead log of SQLite, and whether it is still what was written.

A connection finds the frames of its log through an index in shared memory and does not check them again. A
log that was overwritten in place is therefore not noticed, and the next checkpoint copies the garbage into
the database. SQLite checks every frame only when it opens a log after a crash. `sound_frames` has it do
that: in a copy, beside a small database, at the speed of SQLite and without a checksum of our own.
"""

import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24


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
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            # Any read opens the log. What it finds does not matter: the pages belong to another database.
            with suppress(apsw.Error):
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            return max(LogCount(connection).frames, 0)
        finally:
            connection.close(force=True)


def copy_frames(source: str, target: str, frames: int, page_bytes: int) -> None:
    """Write the first *frames* of one log into another."""
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
