"""The trace file: appended line by line, so that a process that dies leaves a whole trace behind it.

Every line is handed to the operating system before the event goes on, which a kill -9 cannot undo; only the
power can (then, unless *sync*, the next start of the host begins a new file that does not claim to know what
came before). A file that has grown too large, or that could not be written for a while, is put aside, and a
new one begins with what must be known to read it alone. A disk that refuses never harms the scheduler.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
from msgspec.structs import replace

from duly.verify.trace import Event, Header, TraceError, header_of, micros

_CHUNK_BYTES = 1 << 16

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
        self.is_first = True
        """Whether there was no file before."""

    def open(self) -> None:
        """Open the file, after what is in it if that is of the same making. Raises OSError."""
        try:
            if self._continues():
                self._append_to()
            else:
                self._begin_first()
        except OSError:
            self.close()
            self._is_broken = True
            raise

    def write(self, event: Event) -> bool:
        """Whether one event is written. Raises OSError if it cannot be; later ones are tried all the same."""
        if self._descriptor is None and not self._is_broken:
            self.open()
        if self._is_broken and not self._is_begun_anew(follows=False):
            return False
        if self._size > self._rotate_bytes:
            self._is_begun_anew(follows=True)
        self._put(_encoder.encode(event) + b"\n")
        return True

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

    def _begin_first(self) -> None:
        """Begin a file; where there was another one, what came before is not known."""
        self.is_first = not self._path.exists()
        self._put_aside()
        self._begin(self._header if self.is_first else replace(self._header, store="unknown"), ())

    def _is_begun_anew(self, *, follows: bool) -> bool:
        """Put the file aside and begin another, if what is carried over can be said now."""
        carried = self._carried()
        if carried is None:
            return False
        self._put_aside()
        header = replace(self._header, store="unknown", running=carried.running, follows=follows)
        self._begin(header, carried.events)
        self._is_broken = False
        return True

    def _begin(self, header: Header, events: Sequence[Event]) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_EXCL
        self._descriptor, self._size = os.open(self._path, flags, 0o644), 0
        _lock(self._descriptor)
        for item in (header, *events):
            self._put(_encoder.encode(item) + b"\n")

    def _append_to(self) -> None:
        self.is_first = False
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        _lock(self._descriptor)
        size = os.fstat(self._descriptor).st_size
        self._size = _line_end(self._descriptor, size)
        if self._size < size:  # torn by the death of the last writer
            os.ftruncate(self._descriptor, self._size)
        begin = _line_end(self._descriptor, self._size - 1)
        self.last_us = _time_us(os.pread(self._descriptor, self._size - begin, begin))

    def _continues(self) -> bool:
        """Whether the file there is one that this header can go on with."""
        try:
            with self._path.open("rb") as file:
                first = file.readline(_CHUNK_BYTES)
        except FileNotFoundError:
            return False
        if not first.endswith(b"\n"):
            return False
        try:
            found = header_of(1, first)
        except TraceError:
            return False
        ours = replace(self._header, store=found.store, running=found.running, follows=found.follows)
        return ours == found

    def _put_aside(self) -> None:
        """Move the file to NAME.1, and the older ones up; the oldest goes. Raises OSError if it is in use."""
        if self._descriptor is None and self._path.exists():
            with self._path.open("rb") as file:
                _lock(file.fileno())
        for number in range(self._keep, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._keep == 0:
            self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return Path(f"{self._path}.{number}") if number else self._path


def _lock(descriptor: int) -> None:
    """Have the file for this process alone, as long as it is open. Raises OSError if another has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(
            error.errno, "another recorder is writing this trace; give each its own"
        ) from error


def _line_end(descriptor: int, size: int) -> int:
    """Where the last whole line within the first *size* bytes of a file ends."""
    end = size
    while end > 0:
        begin = max(end - _CHUNK_BYTES, 0)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _time_us(line: bytes) -> int | None:
    """The time of the event in *line*; None if it has none, as a header has not."""
    try:
        return micros(msgspec.json.decode(line)["t"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
