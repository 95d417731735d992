"""The text of a file that somebody named: ordinary, readable, of a sane size, UTF-8; or one clear sentence.

A path can be anything: a directory, a pipe that nobody writes to, a device. None of them may block or fill
the memory, so what the path is gets asked before it is opened, and again afterwards.
"""

import os
import stat
from pathlib import Path

from duly.config.errors import ConfigError, FileFault

MOST_BYTES = 1024 * 1024
_SORTS = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a pipe, not a file",
    stat.S_IFSOCK: "is a socket, not a file",
    stat.S_IFCHR: "is a device, not a file",
    stat.S_IFBLK: "is a device, not a file",
}


def text_of(path: Path) -> str:
    """The text of a file. Raises ConfigError."""
    return decoded(path, content_of(path))


def content_of(path: Path, if_missing: str = "does not exist") -> bytes:
    """What is in an ordinary file, or the beginning of it if that is too much. Raises ConfigError."""
    try:
        _regular(path, os.stat(path).st_mode)  # noqa: PTH116 - Path.stat hides nothing either way
        # Without blocking: between the two questions the file may have become a pipe.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            _regular(path, os.fstat(file.fileno()).st_mode)
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise _unusable(path, if_missing) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unusable(path, _said(error)) from error


def _regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise _unusable(path, _SORTS.get(stat.S_IFMT(mode), "is not an ordinary file"))


def _said(error: OSError | ValueError) -> str:
    if isinstance(error, PermissionError):
        return "cannot be read: permission denied"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"cannot be read: {(reason or str(error)).lower()}"


def decoded(path: Path, content: bytes) -> str:
    """The text that *content* is. Raises ConfigError if it is none, or too much."""
    if len(content) > MOST_BYTES:
        raise _unusable(path, "is larger than 1 MiB, which no such file is; is it the right one?")
    if b"\0" in content:
        raise _unusable(path, "is binary, not text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(path, [FileFault("is not UTF-8 text", line)]) from error


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(path, [FileFault(reason)])
