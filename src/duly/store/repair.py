"""Repair of a damaged SQLite store: a new file with every row that can still be read.

The damaged file is kept, with its log, under another name. The new one takes its place in one step. Rows are
read from both ends of each table, because a damaged page in the middle hides what comes after it. A row that
is not sound is left out: its task or timer starts over, which is what the report says.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import apsw

from duly.errors import StoreError
from duly.store.files import LOG_SUFFIXES, keep_log, kept_name
from duly.store.inspection import DAMAGE, Defect, ExpectedTable, findings_at, rows_in, tables_of
from duly.store.lock import FileLock
from duly.store.schema import in_transaction, migrate, migrations

_SOUND_HEADER = b"SQLite format 3\0"
_COMMON_PAGE_BYTES = 4096


class Salvaged(NamedTuple):
    table: str
    rows: int
    lost: list[str]
    """What could not be read, in words."""


class Repair(NamedTuple):
    kept: str
    """The name under which the damaged file is kept."""
    tables: list[Salvaged]


def repair_store(path: Path) -> Repair | None:
    """Repair the store at *path*; None if nothing is wrong with it. Raises StoreError or StoreInUseError."""
    name, file = str(path), Path(os.path.realpath(path))
    lock = FileLock(file, name)
    lock.acquire()
    try:
        if not findings_at(file, most=1):
            return None
        with TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as folder:
            return _replace_file(file, name, Path(folder))
    except OSError as error:
        raise StoreError(store=name, reason=f"cannot be repaired: {error.strerror}", cause=error) from error
    finally:
        lock.release()


def _replace_file(file: Path, name: str, folder: Path) -> Repair:
    new = folder / "new"
    with _readable_copy(file, folder / "copy") as damaged:
        salvaged = _salvage(damaged, new)
    if not any(each.rows for each in salvaged):
        raise StoreError(
            store=name, reason="holds nothing that can be read; move it away, and the tasks start over"
        )
    kept = kept_name(str(file), "damaged")
    try:
        # A second name first: whatever fails below, nothing of the damaged file is lost.
        Path(kept).hardlink_to(file)
    except OSError:  # not every file system has links
        shutil.copyfile(file, kept)
    # The log first: beside the new file SQLite would replay it.
    keep_log(str(file), kept)
    # In one step: a crash leaves the old file here or the new one, and never half of one.
    new.replace(file)
    return Repair(Path(kept).name, salvaged)


@contextmanager
def _readable_copy(file: Path, copy: Path) -> Iterator[apsw.Connection]:
    for suffix in ("", *LOG_SUFFIXES[:1]):
        if os.path.lexists(f"{file}{suffix}"):
            shutil.copyfile(f"{file}{suffix}", f"{copy}{suffix}")
    connection = apsw.Connection(str(copy))
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except DAMAGE:
        connection.close(force=True)
        _mend_header(copy)
        connection = apsw.Connection(str(copy))
    try:
        yield connection
    finally:
        connection.close(force=True)


def _mend_header(copy: Path) -> None:
    """Write the fixed parts of the first hundred bytes again; without them SQLite reads nothing at all."""
    with copy.open("r+b") as file:
        header = bytearray(file.read(100).ljust(100, b"\0"))
        page_bytes = int.from_bytes(header[16:18])
        if page_bytes not in {1 << power for power in range(9, 16)}:
            header[16:18] = _COMMON_PAGE_BYTES.to_bytes(2)
        header[:16] = _SOUND_HEADER
        header[18:24] = bytes([2, 2, 0, 64, 32, 32])
        header[44:48] = (4).to_bytes(4)
        header[56:60] = (1).to_bytes(4)
        file.seek(0)
        file.write(header)


def _salvage(damaged: apsw.Connection, new: Path) -> list[Salvaged]:
    connection = apsw.Connection(str(new))
    try:
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection, 0, migrations())
        return [_salvage_table(damaged, connection, table) for table in tables_of(damaged)]
    finally:
        connection.close()


def _salvage_table(damaged: apsw.Connection, new: apsw.Connection, table: ExpectedTable) -> Salvaged:
    rows: dict[tuple[Any, ...], None] = {}
    lost: dict[str, None] = {}
    for order in ("ASC", "DESC"):
        broken = False
        for row in rows_in(damaged, table, order):
            if isinstance(row, Defect):
                lost[row.what] = None
                broken = row.is_end
            else:
                rows[row] = None
        if not broken:
            break
    values = ", ".join("?" * len(table.columns))
    statement = f"INSERT OR IGNORE INTO {table.name} ({', '.join(table.columns)}) VALUES ({values})"  # noqa: S608 (names of ours)
    before = new.total_changes()

    def insert(connection: apsw.Connection) -> None:
        for row in rows:
            try:
                connection.execute(statement, row)
            except apsw.ConstraintError as error:
                lost[f"row {row[0]}: {error}"] = None

    in_transaction(insert, new)
    return Salvaged(table.name, new.total_changes() - before, list(lost))
