"""Unix sockets at a path."""

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress

# A program that lives answers a connection at once, from the queue of the kernel; a stopped one does too.
_PROBE_S = 2.0


class SocketPathError(Exception):
    """No socket can be made at a path, and why. *is_answered*: another program listens there."""

    def __init__(self, reason: str, *, is_answered: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_answered = is_answered


def unix_socket(path: str) -> tuple[socket.socket, Callable[[], None]]:
    """A socket at *path* that only its owner may open, and what removes it. Raises SocketPathError.

    One that nobody answers at is a dead program's, and is replaced.
    """
    _clear(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        # The mode is set as the socket is made: there is no moment at which others may open it.
        before = os.umask(0o177)
        try:
            made.bind(path)
        finally:
            os.umask(before)
        ours = os.lstat(path)
    except OSError as error:
        made.close()
        reason = f"cannot be made: {error.strerror or error}; is its directory there and writable?"
        raise SocketPathError(reason) from error

    def remove() -> None:
        # Unless another program has put its own socket in the place of ours meanwhile.
        with suppress(OSError):
            if os.path.samestat(os.lstat(path), ours):
                os.unlink(path)  # noqa: PTH108 (a path as it was declared)

    return made, remove


def _clear(path: str) -> None:
    """Remove the socket of a dead program. Raises SocketPathError if it is no socket, or is answered."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # nothing is there; or the bind says better why nothing can be
    if not stat.S_ISSOCK(mode):
        raise SocketPathError("there is a file that is not a socket; remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 (as above)
        except OSError as error:
            reason = f"cannot be replaced: {error.strerror or error}; remove it if no program uses it"
            raise SocketPathError(reason) from error
        else:
            raise SocketPathError("another program listens there", is_answered=True)
