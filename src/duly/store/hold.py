"""The hold on a store: at most one live process has it, and it dies with that process.

It is a `flock` on a file beside the database, never on the database itself: SQLite's own locks belong to
the process, and closing any other descriptor of that file would silently drop them. The kernel releases a
flock when its holder ends, however it ends, so a stale file means nothing. A child made by fork closes its
copy, lest it keep the hold of a parent that died.
"""

import fcntl
import os
import socket
import weakref
from pathlib import Path

from duly.errors import StoreError, StoreInUseError

Place = tuple[int, int] | None
_held: "weakref.WeakSet[Hold]" = weakref.WeakSet()


class Hold:
    """The hold on the store at *path*, which may be a link: the file it leads to is what is held."""

    def __init__(self, path: Path, store: str) -> None:
        self._store = store
        self._path = f"{os.path.realpath(path)}.hold"
        self._descriptor: int | None = None
        self._place: Place = None

    def take(self) -> None:
        """Take the hold. Raises StoreInUseError if a live process has it."""
        assert self._descriptor is None
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            reason = (
                f"cannot be held: {error.strerror} ({Path(self._path).name}); "
                "is its directory there and writable?"
            )
            raise StoreError(store=self._store, reason=reason, cause=error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreInUseError(store=self._store, holder=holder or "unknown process") from None
        except OSError as error:
            os.close(descriptor)
            reason = f"cannot be held: {error.strerror}; does its file system know flock?"
            raise StoreError(store=self._store, reason=reason, cause=error) from error
        self._sign(descriptor)
        self._descriptor = descriptor
        self._place = _place(os.fstat(descriptor))
        _held.add(self)

    def check(self) -> None:
        """Take the hold again if somebody deleted its file. Raises StoreInUseError if it is too late."""
        if self._descriptor is not None and place_of(self._path) != self._place:
            self.release()
        if self._descriptor is None:
            self.take()

    def release(self) -> None:
        """Let go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)

    def _sign(self, descriptor: int) -> None:
        """Write who holds it. Only for messages: a disk too full for this line is not a reason to stop."""
        signature = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, signature, 0)
        except OSError:
            return


def place_of(path: str) -> Place:
    """Which file is at *path*, if any: another one of the same name is in another place."""
    try:
        return _place(os.stat(path))  # noqa: PTH116 (asked before every write, and a Path is slow)
    except FileNotFoundError:
        return None


def _place(status: os.stat_result) -> Place:
    return status.st_dev, status.st_ino


def _let_go_in_child() -> None:
    for hold in list(_held):
        hold.release()


os.register_at_fork(after_in_child=_let_go_in_child)
