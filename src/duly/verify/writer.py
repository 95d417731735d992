"""The trace file: appended line by line, so that a process that dies leaves a whole trace behind it.

Every line is handed to the operating system before the event goes on, which a kill -9 cannot undo; only the
power can (then, unless *sync*, the next start of the host begins a new file that does not claim to know what
came before). A file that has grown too large, or that could not be written for a while, is put aside, and a
new one begins with what must be known to read it alone. A disk that refuses never harms the scheduler.
"""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from duly.verify.trace import Event, Header, TraceError, header_of, micros

_TAIL_BYTES = 1 << 16

_encoder = msgspec.json.Encoder()


class Carried(NamedTuple):
    """What a new file must say to be read alone: the list in effect, and the runs in flight."""

    events: Sequence[Event]
    running: list[tuple[str, int]]


class TraceWriter:
    """Writes the events of one process after those of earlier ones.

    *rotate_bytes* is the size at which a file is put aside as `NAME.1`, the older ones moving up to
    `NAME.{keep}`. *sync* makes every event durable against a loss of power, at the price of a disk's sync
    each. *carried* answers what a new file has to begin with, or None while that cannot be said.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: Header,
        *,
        rotate_bytes: int = 64 << 20,
        keep: int = 9,
        sync: bool = False,
        carried: Callable[[], Carried | None] = lambda: None,
    ) -> None:
        self._path = Path(os.path.abspath(path))  # noqa: PTH100 (links stay links)
        self._header = header
        self._rotate_bytes = rotate_bytes
        self._keep = keep
        self._sync = sync
        self._carried = carried
        self._descriptor: int | None = None
        self._size = 0
        self._is_broken = False
        self.last_us: int | None = None
        """The time of the last event that an earlier process left in the file."""

    def open(self) -> None:
        """Open the file, after what is in it if that is of the same making. Raises OSError."""
        if self._continues():
            self._append_to()
        else:
            self._put_aside()
            self._begin(self._header, ())

    def write(self, event: Event) -> None:
        """Write one event. Raises OSError if it cannot be written; later events are tried all the same."""
        if self._descriptor is None and not self._is_broken:
            self.open()
        if self._is_broken and not self._is_begun_anew():
            return
        self._put(_encoder.encode(event) + b"\n")
        if self._size > self._rotate_bytes:
            self._is_begun_anew()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _put(self, line: bytes) -> None:
        assert self._descriptor is not None
        try:
            if os.write(self._descriptor, line) < len(line):
                self._take_back()
            if self._sync:
                os.fsync(self._descriptor)
        except OSError:
            self._is_broken = True
            raise
        self._size += len(line)

    def _take_back(self) -> NoReturn:
        """Undo half a line, for which there was no more room."""
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, self._size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _is_begun_anew(self) -> bool:
        """Put the file aside and begin another, if what is carried over can be said now."""
        carried = self._carried()
        if carried is None:
            return False
        self.close()
        self._put_aside()
        header = msgspec.structs.replace(self._header, store="unknown", running=carried.running)
        self._begin(header, carried.events)
        self._is_broken = False
        return True

    def _begin(self, header: Header, events: Sequence[Event]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_EXCL
        self._descriptor, self._size = os.open(self._path, flags, 0o644), 0
        for item in (header, *events):
            self._put(_encoder.encode(item) + b"\n")

    def _append_to(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        size = os.fstat(self._descriptor).st_size
        tail = os.pread(self._descriptor, _TAIL_BYTES, max(size - _TAIL_BYTES, 0))
        torn = len(tail) - (tail.rfind(b"\n") + 1)
        self._size = size - torn
        if torn:  # by the death of the last writer
            os.ftruncate(self._descriptor, self._size)
        self.last_us = _last_us(tail[: len(tail) - torn])

    def _continues(self) -> bool:
        """Whether the file there is one that this header can go on with."""
        try:
            with self._path.open("rb") as file:
                first = file.readline(_TAIL_BYTES)
        except FileNotFoundError:
            return False
        if not first.endswith(b"\n"):
            return False
        try:
            found = header_of(1, first)
        except TraceError:
            return False
        ours = msgspec.structs.replace(self._header, store=found.store, running=found.running)
        return ours == found

    def _put_aside(self) -> None:
        """Move the file to NAME.1, and the older ones up; the oldest goes."""
        for number in range(self._keep, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._keep == 0:
            self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return Path(f"{self._path}.{number}") if number else self._path


def _last_us(tail: bytes) -> int | None:
    """The latest time in the last whole lines of a file: only the last one counts."""
    lines = tail.splitlines()
    if not lines:
        return None
    try:
        event = msgspec.json.decode(lines[-1])
        return micros(event["t"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
