"""What tasks in several processes note of themselves: one line for each start and each end, in one file.

Every line goes past all buffers with one write to the end of the file, so that what was noted before a kill
is there. Times are those of the host's wall clock, which is also the clock of a database on the same host.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple, Self


class Note(NamedTuple):
    """One line."""

    is_start: bool
    pid: int
    name: str
    run: str
    """Identifies runs that are to be begun again if they are cut off."""
    at_us: int


def now_us() -> int:
    """The clock of all notes."""
    return time.time_ns() // 1_000  # noqa: TID251 (a benchmark of the host's clock)


class Notebook:
    """The end of the file to which one process writes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._pid = os.getpid()

    def note_start(self, name: str, run: str) -> None:
        """A run begins now."""
        os.write(self._file, f"S {self._pid} {name} {run} {now_us()}\n".encode())

    def note_end(self, name: str, run: str) -> None:
        """It is over."""
        os.write(self._file, f"E {self._pid} {name} {run} {now_us()}\n".encode())


class Reading:
    """Reads what has been noted so far, each line once."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""
        self.notes: list[Note] = []
        """Everything read so far, in the order of the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read_on(self) -> list[Note]:
        """What is new since the last time."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        found = [_note_in(line.decode()) for line in lines]
        self.notes += found
        return found


def _note_in(line: str) -> Note:
    kind, pid, name, run, at_us = line.split(" ")
    return Note(kind == "S", int(pid), name, run, int(at_us))
