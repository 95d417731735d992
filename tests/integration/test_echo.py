"""The output of services on the daemon's own: whole lines, no matter who reads them, and however."""

import os
import re
import threading

from duly.daemon.echo import Echo


class Reader:
    """A pipe for an echo, and a thread that reads it to its end."""

    def __init__(self, *, blocks: bool = True) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self.writing, blocks)
        self._read = b""
        self._begins = threading.Event()
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def begin(self) -> None:
        """Read from now on."""
        self._begins.set()

    def all(self) -> bytes:
        """All that was written, once nobody writes any more."""
        os.close(self.writing)
        self._thread.join(60)
        os.close(self._reading)
        return self._read

    def _take(self) -> None:
        self._begins.wait(60)
        while piece := os.read(self._reading, 1 << 16):
            self._read += piece


class Listed(Echo):
    """An echo that lists what it is handed instead of writing it."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def put(self, lines: bytes) -> None:
        """List *lines*."""
        self.pieces.append(lines)


def test_lines_carry_the_name_of_their_service() -> None:
    """However a service cuts what it writes, each line is shown whole, with its name."""
    reader = Reader()
    reader.begin()
    echo = Echo(reader.writing)
    take = echo.begin(1, "web")
    for piece in (b"one\ntw", b"o\n", b"\nfour\nfi", b"ve"):
        take(piece)
    echo.end(1)
    echo.close(20)
    assert reader.all() == b"web | one\nweb | two\nweb | \nweb | four\nweb | five\n"


def test_a_flood_is_one_piece() -> None:
    """What comes together is handed on together, however many lines it has."""
    echo = Listed()
    echo.begin(1, "web")(b"y\n" * 30_000)
    echo.close(20)
    assert echo.pieces == [b"web | y\n" * 30_000]


def test_a_line_without_end_is_cut() -> None:
    """A line that is too long to wait for its end is shown in parts."""
    reader = Reader()
    reader.begin()
    echo = Echo(reader.writing)
    echo.begin(1, "web")(b"x" * 10_000)
    echo.end(1)
    echo.close(20)
    lines = reader.all().splitlines()
    assert [len(line) for line in lines] == [4096 + 6, 4096 + 6, 10_000 - 2 * 4096 + 6]


def test_an_output_that_does_not_block_is_waited_for() -> None:
    """Where others have made our output non-blocking, a full pipe ends nothing: all is shown in the end."""
    reader = Reader(blocks=False)
    echo = Echo(reader.writing)
    take = echo.begin(1, "web")
    for _ in range(4):
        take(b"y\n" * 10_000)
    reader.begin()
    echo.close(20)
    assert reader.all() == b"web | y\n" * 40_000


def test_what_nobody_takes_is_counted() -> None:
    """Lines that pile up beyond the limit are dropped, and how many is said."""
    reader = Reader()
    echo = Echo(reader.writing)
    take = echo.begin(1, "web")
    for _ in range(20):
        take(b"y\n" * 30_000)
    reader.begin()
    echo.close(20)
    shown = reader.all()
    seen = re.findall(rb"duly: (\d+) output lines dropped: the reader of descriptor \d+ is too slow", shown)
    assert seen
    assert shown.count(b"web | y\n") + sum(map(int, seen)) == 20 * 30_000
