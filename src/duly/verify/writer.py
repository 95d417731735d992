"""The trace file: appended line by line, so that a process that dies leaves a whole trace behind it.

Every line is handed to the operating system before the event goes on. A kill -9 cannot undo that; only a loss
of power can (then, unless *sync*, the next start of the host begins a new file that does not claim to know
what came before).

When a write fails, events are lost until one succeeds again: a gap. While it lasts, half a line is taken back
and nothing else is changed: no file is created, renamed or dropped. The next event that can be written comes
after a header that says from when to when nothing was recorded. A recorder that dies meanwhile cannot write
that header, so the file gets a mark when the gap begins: the sticky bit, which means nothing to the system
and needs no room on a full disk.

A new file gets its name only when it is whole and synced. So no older file is dropped for one that cannot be
written, and a reader never finds half a beginning.
"""

import errno
import fcntl
import os
import stat
import zoneinfo
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta, tzinfo
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from duly.instant import milliseconds
from duly.processes.procfs import boot_id
from duly.verify.trace import VERSION, Header, StoreKnown, TraceError, TraceEvent, header_of, micros
from duly.version import __version__

_CHUNK_BYTES = 1 << 16
_RETRY_MS = 1000
"""How long to wait after a write that failed."""
_ROTATION_RETRY_MS = 60_000
_NEW_FILE_BEGINS = b'{"ev":"Header"'

_encoder = msgspec.json.Encoder()


class TraceGoneError(OSError):
    """The file was deleted, moved, replaced or truncated while a recorder was writing it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} {what} while it was being recorded; a new file begins there")
        self.path = path
        self.what = what


class Carried(NamedTuple):
    """What a new file must say to be read alone: the list in effect, and the runs in flight."""

    events: Sequence[TraceEvent]
    running: list[tuple[str, int]]


def is_due_again(tried: TraceEvent | None, event: TraceEvent, after_ms: int) -> bool:
    """Whether what failed at the event *tried* is to be tried again at *event*.

    Both clocks of a trace are asked: either may stand still or jump.
    """
    if tried is None or abs(event.t - tried.t) >= after_ms:
        return True
    return event.m is not None and tried.m is not None and event.m - tried.m >= after_ms


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
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 (links stay links)
        self._header = header
        self._rotate_bytes = rotate_bytes
        self._keep = keep
        self._sync = sync
        self._carried = carried
        self._descriptor: int | None = None
        self._place: tuple[int, int] | None = None
        """Device and inode of our file, open or not; None if we have none yet."""
        self._size = 0
        self._began_ms: float | None = None
        """The time of the first event in the file."""
        self._last_ms: float | None = None
        """The time of the last event that was written."""
        self._is_broken = False
        """Whether events have been lost since the last that was written."""
        self._lost_from_ms: float | None = None
        self._tried: TraceEvent | None = None
        """The event with which writing was last tried in vain."""
        self._rotation_tried: TraceEvent | None = None
        self.gap_ms: tuple[float, float] | None = None
        """The latest gap that is over and recorded."""
        self.last_us: int | None = None
        """The time of the last event that an earlier process left in the file."""
        self.is_first = True
        """Whether there was no file before."""

    def open(self) -> None:
        """Open the file, after what is in it if that is of the same making. Raises OSError."""
        try:
            self._open()
        except OSError as error:
            self._break_off(error, self._last_ms)
            raise

    def write(self, event: TraceEvent) -> bool:
        """Write one event. Whether it is written, and nothing is wrong with the file.

        Raises OSError when something goes wrong that somebody should know. Keep calling: what failed is
        tried again, at most once a second.
        """
        if self._is_broken and not is_due_again(self._tried, event, _RETRY_MS):
            return False
        try:
            failure = None if self._is_broken else self._appending_failure(event)
            is_well = self._is_resumed(event) if self._is_broken else self._rotation_tried is None
        except OSError:
            self._tried = event
            raise
        if failure is not None:
            raise failure
        return is_well

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def mark_incomplete(self) -> None:
        self._set_mark(is_incomplete=True)

    # --- the file at its place ---

    def _open(self) -> None:
        if self._place is not None:
            self._check_place()
        if self._continues():
            self._append_to()
        else:
            # A process that died while it rotated may have left no file but older ones.
            self.is_first = not self.path.exists() and not self._numbered_path(1).exists()
            self._begin([self._header if self.is_first else replace(self._header, store="unknown")])

    def _check_place(self) -> None:
        """Raise TraceGoneError unless the file is still the one that we write, as long as we left it."""
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise TraceGoneError(self.path, "was deleted or moved away") from None
        if (found.st_dev, found.st_ino) != self._place:
            raise TraceGoneError(self.path, "was replaced by another file")
        if found.st_size < self._size:
            raise TraceGoneError(self.path, "was truncated")

    def _continues(self) -> bool:
        """Whether the file there is one that this header can go on with."""
        try:
            with self.path.open("rb") as file:
                first = file.readline(_CHUNK_BYTES)
        except FileNotFoundError:
            return False
        if not first.endswith(b"\n"):
            return False
        try:
            found = header_of(1, first)
        except TraceError:
            return False
        ours = replace(
            self._header, store=found.store, running=found.running, follows=found.follows, gap=found.gap
        )
        return ours == found

    def _append_to(self) -> None:
        self.is_first = False
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            _lock(descriptor)
            found = os.fstat(descriptor)
            size = _line_end(descriptor, found.st_size)
            if size < found.st_size:  # torn by the death of the last writer
                os.ftruncate(descriptor, size)
            last_ms = _time_ms(os.pread(descriptor, size, _line_end(descriptor, size - 1)))
            began_ms = _first_time_ms(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._take(descriptor, size, began_ms)
        self._last_ms = last_ms
        self.last_us = None if last_ms is None else micros(last_ms)
        if found.st_mode & stat.S_ISVTX and not self._is_broken:
            self._is_broken, self._lost_from_ms = True, last_ms

    def _take(self, descriptor: int, size: int, began_ms: float | None) -> None:
        self.close()
        found = os.fstat(descriptor)
        self._descriptor, self._place, self._size = descriptor, (found.st_dev, found.st_ino), size
        self._began_ms = began_ms

    # --- events ---

    def _appending_failure(self, event: TraceEvent) -> OSError | None:
        """Append *event*, or find out that it cannot be appended to this file. What somebody should know.

        Raises OSError if it cannot be written at all.
        """
        try:
            if self._descriptor is None:
                self._open()
            self._check_place()
            if self._is_broken:  # as the mark of an earlier process says
                return None
            failure = self._rotation_failure(event)
            self._put([event])
        except OSError as error:
            self._break_off(error, event.t if self._last_ms is None else self._last_ms)
            if isinstance(error, TraceGoneError):
                return error  # there may be room for a new file right now
            raise
        return failure

    def _put(self, items: Sequence[Header | TraceEvent]) -> None:
        """Append all of *items*, or nothing."""
        assert self._descriptor is not None
        lines = _lines_of(items)
        try:
            _write_all(self._descriptor, lines)
            if self._sync:
                os.fsync(self._descriptor)
        except OSError:
            with suppress(OSError):  # if not now, then before the next write
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(lines)
        self._remember_times(items)

    def _remember_times(self, items: Sequence[Header | TraceEvent]) -> None:
        times = [item.t for item in items if not isinstance(item, Header)]
        if times:
            self._last_ms = times[-1]
            self._began_ms = times[0] if self._began_ms is None else self._began_ms

    # --- gaps ---

    def _break_off(self, error: OSError, from_ms: float | None) -> None:
        self._is_broken, self._tried = True, None
        self._lost_from_ms = from_ms
        if isinstance(error, TraceGoneError):
            self._lose_file()
        else:
            self.mark_incomplete()

    def _lose_file(self) -> None:
        """The gap begins where the lost file did: what was in it may be nowhere now."""
        if self._began_ms is not None:
            self._lost_from_ms = self._began_ms
        self.close()
        self._place = None

    def _is_resumed(self, event: TraceEvent) -> bool:
        """Write *event* after a header that records the gap, if what is carried over can be said now."""
        if self._lost_from_ms is None:
            self._lost_from_ms = event.t
        carried = self._carried()
        if carried is None:
            return False
        is_there = self._is_there()
        gap = self._lost_from_ms, event.t
        header = replace(self._header, store="unknown", running=carried.running, gap=gap)
        items: Sequence[Header | TraceEvent] = (header, *carried.events, event)
        if is_there:
            assert self._descriptor is not None
            os.ftruncate(self._descriptor, self._size)
            self._put(items)
            self._set_mark(is_incomplete=False)
        else:
            self._begin(items)
        self._is_broken, self.gap_ms = False, gap
        return True

    def _is_there(self) -> bool:
        """Whether our file can be appended to; otherwise a new one is needed."""
        if self._place is not None:
            try:
                self._check_place()
            except TraceGoneError:
                self._lose_file()
        if self._descriptor is not None:
            return True
        if self._continues():
            self._append_to()
            return True
        self.is_first = False
        return False

    def _set_mark(self, *, is_incomplete: bool) -> None:
        if self._descriptor is None:
            return
        with suppress(OSError):  # best effort: there is no other way to say it on a disk that takes no data
            mode = stat.S_IMODE(os.fstat(self._descriptor).st_mode) & ~stat.S_ISVTX
            os.fchmod(self._descriptor, mode | (stat.S_ISVTX if is_incomplete else 0))

    # --- new files ---

    def _rotation_failure(self, event: TraceEvent) -> OSError | None:
        """Begin a new file if this one is large. If that fails, the old one goes on."""
        is_large = self._size > self._rotate_bytes
        if not is_large or not is_due_again(self._rotation_tried, event, _ROTATION_RETRY_MS):
            return None
        carried = self._carried()
        if carried is None:
            return None
        header = replace(self._header, store="unknown", running=carried.running, follows=True)
        try:
            self._begin((header, *carried.events))
        except OSError as error:
            self._rotation_tried = event
            return error
        self._rotation_tried = None
        return None

    def _begin(self, items: Sequence[Header | TraceEvent]) -> None:
        """Begin a new file with *items*; the one that is there is put aside when the new one is on disk."""
        self._refuse_if_in_use()
        new = Path(f"{self.path}.new")
        descriptor = _create(new)
        lines = _lines_of(items)
        try:
            _lock(descriptor)
            _write_all(descriptor, lines)
            os.fsync(descriptor)
            self._put_aside()
            new.replace(self.path)
        except BaseException:
            os.close(descriptor)
            new.unlink(missing_ok=True)
            raise
        _sync_folder(self.path.parent)
        self._take(descriptor, len(lines), None)
        self._remember_times(items)

    def _refuse_if_in_use(self) -> None:
        """Raise OSError if another recorder writes the file that would be put aside."""
        if self._descriptor is not None:
            return
        with suppress(FileNotFoundError):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                _lock(descriptor)
            finally:
                os.close(descriptor)

    def _put_aside(self) -> None:
        """Move the file, if there is one, to NAME.1; the oldest goes only if no number is free."""
        if not self.path.exists():
            return
        free = (number for number in range(1, self._keep) if not self._numbered_path(number).exists())
        for number in range(next(free, self._keep), 0, -1):
            older = self._numbered_path(number - 1)
            if older.exists():
                older.replace(self._numbered_path(number))

    def _numbered_path(self, number: int) -> Path:
        return Path(f"{self.path}.{number}") if number else self.path


def _lines_of(items: Sequence[Header | TraceEvent]) -> bytes:
    return b"".join(_encoder.encode(item) + b"\n" for item in items)


def _write_all(descriptor: int, lines: bytes) -> None:
    """Write *lines* in one piece. Raises OSError if there is no room for all of it."""
    if os.write(descriptor, lines) < len(lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _create(path: Path) -> int:
    """A new file at *path*. What another recorder left there when it died is removed, and nothing else."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_EXCL
    try:
        return os.open(path, flags, 0o644)
    except FileExistsError:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            head = os.read(descriptor, len(_NEW_FILE_BEGINS))
            if not _NEW_FILE_BEGINS.startswith(head):
                raise
            _lock(descriptor)
            path.unlink()
        finally:
            os.close(descriptor)
    return os.open(path, flags, 0o644)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot; the file itself is synced
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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


def _time_ms(line: bytes) -> float | None:
    """The time of the event in *line*; None if it has none, as a header has not."""
    try:
        return msgspec.json.decode(line, type=_Dated).t
    except msgspec.MsgspecError:
        return None


def _first_time_ms(descriptor: int) -> float | None:
    """The time of the first event in a file, which comes after its header."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        file.readline()
        return _time_ms(file.readline())


class _Dated(msgspec.Struct):
    t: float


def header_for(zone: tzinfo, store: StoreKnown, persist_window_us: int, *, is_durable: bool) -> Header:
    """The header of a trace that begins on this host. *is_durable*: not even a loss of power loses a line."""
    if store not in {"fresh", "unknown"}:
        raise ValueError(f'store must be "fresh" or "unknown", not {store!r}')
    return Header(
        v=VERSION,
        tz=zone_name(zone),
        store=store,
        persist_window_ms=milliseconds(persist_window_us),
        impl=f"duly {__version__}",
        tzdata=tzdata_version(),
        boot="" if is_durable else boot_id(),
    )


def zone_name(zone: tzinfo) -> str:
    """The name under which a reader of the trace finds *zone* again."""
    name: Any = getattr(zone, "key", None) or _fixed_name(zone)
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise ValueError(
            f"a trace needs a zone with a name, and {zone!r} has none; give the scheduler and the recorder "
            "timezone=ZoneInfo('Europe/Berlin') or another from that list"
        ) from error
    return str(name)


def _fixed_name(zone: tzinfo) -> str | None:
    """The name of a zone of whole hours that never changes, such as datetime.UTC."""
    if type(zone).__module__ != "datetime":
        return None
    hours, rest = divmod(zone.utcoffset(None) or timedelta(0), timedelta(hours=1))
    if rest:
        return None
    return f"Etc/GMT{-hours:+d}" if hours else "UTC"  # POSIX counts westwards


def tzdata_version() -> str:
    """The version of the time zone data that this process uses, such as "2026a"; "" if it does not say."""
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / "Europe/Berlin").exists():
            return _version_in(folder)
    # Only where the system has no data of its own; it comes without types.
    return str(import_module("tzdata").IANA_VERSION)


def _version_in(folder: Path) -> str:
    for name in ("tzdata.zi", "+VERSION"):
        if (folder / name).exists():
            first, *_ = (folder / name).read_text(errors="replace").split("\n", 1)
            return first.removeprefix("# version ").strip()
    return ""
