"""The lock on a SQLite store: at most one live scheduler has it, and it ends with its process.

It is a `flock` on the database file itself. So every name of that file is the same lock: a symbolic link, a
hard link, a bind mount of the single file into two containers. No second file is needed beside the store. The
kernel releases the lock when its process ends, however it ends.

SQLite locks the same file with POSIX locks. Those do not collide with a flock on a local disk, but they have
a trap: a process that closes *any* descriptor of a file loses all its POSIX locks on it. Two rules follow. A
file that this process has locked is never opened here again, and the descriptor is closed only after the
connections of SQLite. A child made by fork closes its copy: it must not keep the lock of a parent that died.
"""

import fcntl
import os
import stat
import threading
import weakref
from pathlib import Path

from duly.errors import StoreError, StoreInUseError
from duly.store.files import state_at, state_of

_LOCKS_OF_THE_HOST = Path("/proc/locks")
_FLAGS = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_locked: "weakref.WeakSet[FileLock]" = weakref.WeakSet()
_opening = threading.Lock()


class FileLock:
    """The lock on the file at *path*. *store* is the name for messages."""

    def __init__(self, path: Path, store: str) -> None:
        self._path = str(path)
        self._store = store
        self.descriptor: int | None = None
        """The locked file, to be read only with calls that do not close it."""
        self.identity: tuple[int, int] | None = None

    def acquire(self) -> None:
        """Lock the file; an empty one is made if there is none. Raises StoreInUseError or StoreError."""
        assert self.descriptor is None
        # Asking who has the file and entering it in `_locked` are one step: two threads must not both find it
        # free.
        with _opening:
            while (descriptor := self._lock_what_is_there()) is None:
                continue  # another file came to the path before this one was locked
            self.descriptor = descriptor
            self.identity = state_of(os.fstat(descriptor)).identity
            _locked.add(self)

    def release(self) -> None:
        """Unlock the file. SQLite must have closed it."""
        if self.descriptor is not None:
            # Closed, not unlocked: a forked child shares the parent's lock, and LOCK_UN would take it away.
            os.close(self.descriptor)
            self.descriptor = self.identity = None
            _locked.discard(self)

    def _lock_what_is_there(self) -> int | None:
        here = state_at(self._path)
        # Asked before the file is opened: to close it again would drop the locks of SQLite on it.
        if here is not None and any(lock.identity == here.identity for lock in _locked):
            raise StoreInUseError(store=self._store, holder=f"process {os.getpid()}, this one")
        try:
            descriptor = os.open(self._path, _FLAGS, 0o644)
        except OSError as error:
            reason = (
                f"cannot be opened: {error.strerror}; is it a file, and is its directory there and writable?"
            )
            raise StoreError(store=self._store, reason=reason, cause=error) from error
        try:
            locked = self._locked(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        # The file may have been replaced between open and flock: then this lock is on a file that nobody
        # looks at.
        here = state_at(self._path)
        if here is None or here.identity != locked:
            os.close(descriptor)
            return None
        return descriptor

    def _locked(self, descriptor: int) -> tuple[int, int]:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(store=self._store, reason="is not a regular file; choose another path")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreInUseError(store=self._store, holder=_holder_of(status.st_ino)) from None
        except OSError as error:
            reason = f"cannot be locked: {error.strerror}; does its file system support flock?"
            raise StoreError(store=self._store, reason=reason, cause=error) from error
        return status.st_dev, status.st_ino


def _holder_of(inode: int) -> str:
    """Who has locked the file with this inode number, as far as this host knows. Only for a message.

    The device in `/proc/locks` is not the one of `stat` on overlayfs and btrfs, so it is not compared.
    """
    try:
        lines = _LOCKS_OF_THE_HOST.read_text().splitlines()
    except OSError:
        return "unknown process"
    for fields in map(str.split, lines):
        # 12: FLOCK  ADVISORY  WRITE 4711 fe:01:2113 0 EOF
        if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
            return f"process {fields[4]}"
    return "a process that is not visible here, perhaps in another container"


def _release_in_child() -> None:
    for lock in list(_locked):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
