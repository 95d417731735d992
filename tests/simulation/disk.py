"""A disk that can lose power: what was written and not synced may be gone, or torn, when it comes back.

It is a SQLite file system over real files. Every write goes through at once, so that all who read see it;
besides, the disk keeps what is *durable*: the contents at the last sync, and the changes since, one by one.
A kill of the process keeps every change. A power cut keeps what was synced, and of the rest what chance says,
in units of a sector. After either the disk is dead to the process that used it, and the survivors are
found in a new folder.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any

import apsw

from tests.simulation.steady import CrashPoints, Point

SECTOR_BYTES = 512
DATABASE = "state.db"
_numbers = count()


class DiskFault(StrEnum):
    """What can be wrong with a disk."""

    FULL = "full"
    WRITE_ERROR = "write-error"
    SYNC_ERROR = "sync-error"
    READ_ERROR = "read-error"


class Cut(StrEnum):
    """What a crash does to changes that were not synced."""

    KILL = "kill"
    """Nothing: the process died and the machine did not."""
    LOSE = "lose"
    PREFIX = "prefix"
    """The first ones survive, and the next one is torn."""
    ANY = "any"
    """Each survives, or does not, or is torn."""


@dataclass(slots=True)
class Image:
    """What is durable of one file, and what has changed since. A change without bytes is a truncation."""

    durable: bytearray = field(default_factory=bytearray)
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)
    is_name_durable: bool = False
    is_deleted: bool = False

    def sync(self) -> None:
        """Make every change durable."""
        for change in self.changes:
            _apply(self.durable, change)
        self.changes.clear()


class SimDisk(apsw.VFS):
    """The file system of a simulated host."""

    def __init__(self, folder: Path, points: CrashPoints, rng: random.Random) -> None:
        self.name = f"duly-simulated-{next(_numbers)}"
        self._root = folder
        self._points = points
        self._rng = rng
        self._generation = 0
        self.images: dict[str, Image] = {}
        self._are_names_durable = False
        """Whether no file has come or gone since the last sync."""
        self.is_dead = False
        self.on_fatal: Callable[[], None] = lambda: None
        self.fault: DiskFault | None = None
        self.fault_rate = 1.0
        self.is_sync_ignored = False
        """For tests: a disk that lies."""
        self.slept_us = 0
        """How long SQLite has waited for a lock, in virtual time."""
        self.sync_failed = False
        """Whether a sync has failed: then nobody knows what is on the disk."""
        self.folder.mkdir(parents=True)
        super().__init__(self.name, "")

    @property
    def folder(self) -> Path:
        """Where the files are now."""
        return self._root / str(self._generation)

    @property
    def path(self) -> Path:
        """The database."""
        return self.folder / DATABASE

    # --- what SQLite calls ---

    def xOpen(self, name: "str | apsw.URIFilename | None", flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (SQLite's name)
        """Open a file; a new one is in its folder only until the next loss of power."""
        if name is None:
            return super().xOpen(name, flags)
        key = Path(name if isinstance(name, str) else name.filename()).name
        if not self.is_dead and (key not in self.images or self.images[key].is_deleted):
            self.images[key] = Image()
            self._are_names_durable = False
        return _SimFile(self, key, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 (SQLite's name)
        """Delete a file; until something is synced, a loss of power brings it back."""
        if self.may_change():
            super().xDelete(filename, syncdir)
            image = self.images.get(Path(filename).name)
            if image is not None:
                image.is_deleted = True
                self._are_names_durable = False
            if syncdir:
                self.sync_names()

    def xSleep(self, microseconds: int) -> int:  # noqa: N802 (SQLite's name)
        """Wait for a lock, in virtual time."""
        self.slept_us += microseconds
        return microseconds

    # --- what files ask ---

    def may_change(self) -> bool:
        """Count a crash point; whether the process is still alive after it."""
        if not self.is_dead and self._points.is_fatal(Point.DISK):
            self.is_dead = True
            self.on_fatal()
        return not self.is_dead

    def fails(self, *faults: DiskFault) -> bool:
        """Whether an operation that these faults affect fails now."""
        if self.fault not in faults or self.is_dead:
            return False
        return self.fault_rate >= 1 or self._rng.random() < self.fault_rate

    def sync_names(self) -> None:
        """Make durable which files there are."""
        if self._are_names_durable:
            return
        for key in [key for key, image in self.images.items() if image.is_deleted]:
            del self.images[key]
        for image in self.images.values():
            image.is_name_durable = True
        self._are_names_durable = True

    # --- crashes ---

    def kill(self) -> None:
        """Let nothing of the present process reach the disk any more."""
        self.is_dead = True

    def come_back(self, cut: Cut) -> None:
        """Put what survived into a new folder, for the next process."""
        survivors = {key: self._survivor(image, cut) for key, image in self.images.items()}
        self._generation += 1
        self.folder.mkdir()
        for key, contents in survivors.items():
            if contents is not None:
                (self.folder / key).write_bytes(contents)
        self.reread()
        self.is_dead = self.sync_failed = False

    def reread(self) -> None:
        """Take the files as they are for durable: somebody else wrote them, with no process around."""
        self.images = {
            file.name: Image(bytearray(file.read_bytes()), is_name_durable=True)
            for file in sorted(self.folder.iterdir())
            if file.name == DATABASE or file.name in _SIDES
        }

    def _survivor(self, image: Image, cut: Cut) -> bytes | None:
        if cut is Cut.KILL:
            return None if image.is_deleted else _with(image.durable, image.changes)
        is_lost = not image.is_name_durable and (cut is Cut.LOSE or self._rng.random() < 0.5)
        is_gone = image.is_deleted and cut is not Cut.LOSE and self._rng.random() < 0.5
        return None if is_lost or is_gone else _with(image.durable, self._surviving(image.changes, cut))

    def _surviving(self, changes: list[tuple[int, bytes | None]], cut: Cut) -> list[tuple[int, bytes | None]]:
        if cut is Cut.LOSE or not changes:
            return []
        if cut is Cut.PREFIX:
            kept = self._rng.randint(0, len(changes))
            return [*changes[:kept], *(self._torn(change) for change in changes[kept : kept + 1])]
        chosen = [self._rng.choice((change, None, self._torn(change))) for change in changes]
        return [change for change in chosen if change is not None]

    def _torn(self, change: tuple[int, bytes | None]) -> tuple[int, bytes | None]:
        """The part of a write that reached its first sectors; the rest stays as it was."""
        offset, data = change
        if data is None:
            return change
        sectors = max(-(-len(data) // SECTOR_BYTES), 1)
        return offset, data[: self._rng.randrange(sectors) * SECTOR_BYTES]


class _SimFile(apsw.VFSFile):
    def __init__(self, disk: SimDisk, key: str, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._key = key
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 (SQLite's name)
        if self._disk.fails(DiskFault.READ_ERROR):
            raise apsw.IOError
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 (SQLite's name)
        disk = self._disk
        if not disk.may_change():
            return
        if disk.fault is not None and disk.fails(DiskFault.FULL, DiskFault.WRITE_ERROR):
            raise apsw.FullError if disk.fault is DiskFault.FULL else apsw.IOError
        super().xWrite(data, offset)
        disk.images[self._key].changes.append((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 (SQLite's name)
        disk = self._disk
        if disk.may_change():
            super().xTruncate(newsize)
            disk.images[self._key].changes.append((newsize, None))

    def xSync(self, _flags: int) -> None:  # noqa: N802 (SQLite's name)
        disk = self._disk
        if not disk.may_change():
            return
        if disk.fails(DiskFault.SYNC_ERROR):
            disk.sync_failed = True
            raise apsw.IOError
        if not disk.is_sync_ignored:
            disk.images[self._key].sync()
            disk.sync_names()


_SIDES = (f"{DATABASE}-wal", f"{DATABASE}-journal")


def _with(durable: bytearray, changes: list[tuple[int, bytes | None]]) -> bytes:
    contents = bytearray(durable)
    for change in changes:
        _apply(contents, change)
    return bytes(contents)


def _apply(contents: bytearray, change: tuple[int, bytes | None]) -> None:
    offset, data = change
    if data is None:
        del contents[offset:]
        return
    if len(contents) < offset:
        contents.extend(bytes(offset - len(contents)))
    contents[offset : offset + len(data)] = data
