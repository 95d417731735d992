"""The output of a run: its last bytes, kept for later, and each new byte, for followers.

However much a process writes, no more than the limit is kept. What was dropped is counted, never hidden: the
bytes kept as text and `lost_bytes` add up to all that was written. Text begins at the beginning of a line
where it can, and never inside a character. A process that writes without end is let write only as fast as the
event loop has time for it.
"""

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable

from duly.events import described, warn_operator

Follower = Callable[[bytes], object]


class Tail:
    """The last *limit_bytes* of what was written."""

    def __init__(self, limit_bytes: int, elapsed_s: Callable[[], float] | None = None) -> None:
        """*elapsed_s* says how long the run has lasted; with it, the time of each line is known."""
        if limit_bytes < 0:
            raise ValueError("a tail cannot keep fewer than 0 bytes")
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self._last_dropped: int | None = None
        self._followers: dict[object, Follower] = {}
        self._elapsed_s = elapsed_s
        self._lines = 0
        """How many were ended."""
        self._is_in_line = False
        self._times: list[tuple[int, int]] = []
        self.written_bytes = 0
        """All that was ever written."""

    def write(self, chunk: bytes) -> None:
        """Add *chunk* to the end, and pass it on to the followers."""
        if not chunk:
            return
        self.written_bytes += len(chunk)
        self._note_time(chunk)
        self._keep(chunk)
        # A copy: a follower may end itself, or another, while it is called.
        for key, follower in tuple(self._followers.items()):
            try:
                follower(chunk)
            except BaseException as error:
                # Not even a follower that raises CancelledError may end the reading of a pipe.
                self._followers.pop(key, None)
                warn_operator(f"duly: {follower!r} no longer follows an output: {described(error)}")

    def _note_time(self, chunk: bytes) -> None:
        """Note when the first line that begins in *chunk* came: once a second, and not without end."""
        if self._elapsed_s is None:
            return
        now_s, line = int(self._elapsed_s()), self._lines + self._is_in_line
        begins = not self._is_in_line or chunk.find(b"\n", 0, -1) >= 0
        if begins and (not self._times or now_s > self._times[-1][1]):
            self._times.append((line, now_s))
            if len(self._times) > _MOST_TIMES:
                del self._times[1:-1:2]
        self._lines += chunk.count(b"\n")
        self._is_in_line = chunk[-1] != _NEWLINE

    def times(self) -> list[tuple[int, int]]:
        """When the lines of `text` came: from a line on (the first is 0), so many seconds after the start."""
        first = self._lines - self._kept.count(b"\n", self._cut())
        # Of those before it, the last one is the time of the first line.
        return list({max(line - first, 0): at_s for line, at_s in self._times}.items())

    def _keep(self, chunk: bytes) -> None:
        # Room is made before it is filled, so that never more than the limit is held.
        excess = len(self._kept) + len(chunk) - self._limit_bytes
        if excess <= 0:
            self._kept += chunk
            return
        if excess < len(self._kept):
            self._last_dropped = self._kept[excess - 1]
            del self._kept[:excess]
            self._kept += chunk
            return
        past = excess - len(self._kept)
        self._last_dropped = chunk[past - 1] if past else self._kept[-1]
        self._kept = bytearray(chunk[past:])

    @property
    def lost_bytes(self) -> int:
        """How much of what was written `text` no longer holds."""
        return self.written_bytes - len(self._kept) + self._cut()

    def text(self) -> str:
        """What is kept, as text; bytes that are not UTF-8 are replaced."""
        return self._kept[self._cut() :].decode("utf-8", "replace")

    def watch(self, follower: Follower) -> Callable[[], None]:
        """Call *follower* with everything written from now on; the answer ends that."""
        key = object()
        self._followers[key] = follower

        def end() -> None:
            self._followers.pop(key, None)

        return end

    def _cut(self) -> int:
        """How many of the kept bytes belong to a line or character whose beginning was dropped."""
        if self._last_dropped is None or self._last_dropped == _NEWLINE:
            return 0
        line_end = self._kept.find(b"\n") + 1
        if 0 < line_end < len(self._kept):
            return line_end
        # One line fills it all: its end is worth more than nothing.
        begun = 0
        while begun < min(_LONGEST_REST, len(self._kept)) and self._kept[begun] & 0xC0 == _CONTINUATION:
            begun += 1
        return begun


_MOST_TIMES = 4096
_NEWLINE = 0x0A
_CONTINUATION = 0x80
_LONGEST_REST = 3
"""A character of UTF-8 has at most four bytes, so at most three are left of one that was cut."""


class Pipe:
    """The reading end of a process's output, read by the event loop into a tail as it comes.

    One read a wake-up, and only so many in a span of time. Then the pipe is left to fill: a process that
    writes without end has to wait, instead of all other processes.
    """

    def __init__(self, descriptor: int, tail: Tail) -> None:
        self._descriptor = descriptor
        self._tail = tail
        self._loop = asyncio.get_running_loop()
        self._span_began_s = self._loop.time()
        self._reads = 0
        self._resumption: asyncio.TimerHandle | None = None
        self._loop.add_reader(descriptor, self._on_readable)

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def close(self) -> None:
        """Read what is there without waiting for more, and close, even if somebody holds the other end."""
        if not self.is_open:
            return
        # Not until it is empty: somebody may be filling it as fast as we read.
        (left,) = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)))
        while left > 0 and self._descriptor >= 0 and (chunk := self._read(left)):
            left -= len(chunk)
        self._end()

    def _on_readable(self) -> None:
        if not self._read(_CHUNK_BYTES) or not self.is_open:
            return
        now_s = self._loop.time()
        if now_s - self._span_began_s >= _SPAN_S:
            self._span_began_s, self._reads = now_s, 0
        self._reads += 1
        if self._reads >= _READS_A_SPAN:
            self._loop.remove_reader(self._descriptor)
            # Until then the pipe fills, and the process has to wait when it is full.
            self._resumption = self._loop.call_at(self._span_began_s + _SPAN_S, self._resume)

    def _resume(self) -> None:
        self._resumption = None
        self._loop.add_reader(self._descriptor, self._on_readable)

    def _read(self, most: int) -> bytes:
        """What is there now, at most *most* bytes. At the end of the output the pipe is closed."""
        try:
            chunk = os.read(self._descriptor, min(most, _CHUNK_BYTES))
        except BlockingIOError:
            return b""
        if not chunk:
            self._end()
        self._tail.write(chunk)
        return chunk

    def _end(self) -> None:
        if not self.is_open:
            return  # a follower closed it while it was called
        if self._resumption is not None:
            self._resumption.cancel()
            self._resumption = None
        # Before the close: the next file that is opened may get the same number.
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1


_CHUNK_BYTES = 65536
_SPAN_S = 0.01
_READS_A_SPAN = 8
