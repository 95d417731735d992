"""The output of all services on the daemon's own output, line by line, each with the name of its service.

That is what people expect of a container: `docker logs` shows it. A thread does the writing, because a
terminal that was stopped or a full pipe must not stop the daemon. The daemon's log goes the same way, for the
same reason.

Lines that cannot be written are dropped and counted: when a slow reader leaves too many waiting, and while
writing fails, as on a full disk. Writing is then tried again, less and less often. As soon as it works, one
line says how many lines are missing at that place. Until then `faults` says it, and health shows that. Only
a pipe without a reader is given up: nobody is left who could miss a line.
"""

import errno
import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable

from duly.instant import back_off

_MOST_WAITING = 1 << 20
_LONGEST_LINE = 4096
_FIRST_PAUSE_S = 1
_LONGEST_PAUSE_S = 16
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NAMES = {1: "stdout", 2: "stderr"}


class Echo:
    """Writes lines to a descriptor, from a thread of its own."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._name = _NAMES.get(descriptor, f"descriptor {descriptor}")
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        """Lines dropped that no notice reports yet. While there are any, all that comes is dropped, too: the
        notice then stands where the lines are missing."""
        self._noticed = 0
        """Lines dropped that the notice under way reports."""
        self._reason = ""
        self._last_byte = b"\n"
        self._is_closed = False
        self._runs: dict[int, _Lines] = {}
        # Between the loop, which puts lines, and the thread, which writes them and may hang for ever.
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="duly echo", daemon=True)
        self._thread.start()

    def begin(self, run_id: int, service: str) -> Callable[[bytes], None]:
        """What takes the output of a run of *service*, in pieces as they come."""
        self._runs[run_id] = lines = _Lines(f"{service} | ".encode(), self.put)
        return lines.take

    def end(self, run_id: int) -> None:
        """Show what a run wrote last, without the end of a line."""
        lines = self._runs.pop(run_id, None)
        if lines is not None:
            lines.end()

    def close(self, patience_s: float = 1.0) -> None:
        """Write what waits, if that can be done soon."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(patience_s)

    def put(self, lines: bytes) -> None:
        """Write whole *lines* soon."""
        with self._changed:
            if not self._thread.is_alive():
                return
            if self._dropped:
                self._dropped += _count(lines)
            elif self._waiting and self._waiting_bytes + len(lines) > _MOST_WAITING:
                self._dropped = _count(lines)
                self._reason = f"the reader of {self._name} is too slow"
            else:
                self._waiting.append(lines)
                self._waiting_bytes += len(lines)
                self._changed.notify()

    def put_text(self, text: str) -> None:
        self.put(text.encode(errors="backslashreplace"))

    def faults(self) -> list[str]:
        """The lines dropped and the reason, in a sentence, until the output itself reports them."""
        with self._changed:
            number = self._dropped + self._noticed
            return [self._sentence(number)] if number and self._thread.is_alive() else []

    def _sentence(self, number: int) -> str:
        return f"{number} output {'line' if number == 1 else 'lines'} dropped: {self._reason}"

    def _write_all(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while (batch := self._next_batch()) is not None:
            fault = self._write(*batch)
            if fault is None:
                pause_s = _FIRST_PAUSE_S
                continue
            if isinstance(fault, BrokenPipeError):
                return  # the tail of each run is kept in the store
            with self._changed:
                if self._is_closed:
                    return
                self._changed.wait_for(lambda: self._is_closed, pause_s)
            pause_s = back_off(pause_s, _LONGEST_PAUSE_S)

    def _next_batch(self) -> tuple[bytes, bytes] | None:
        """The lines to write next, and a notice of those dropped after them; None when it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._dropped or self._is_closed)
            if not self._waiting and not self._dropped:
                return None
            lines = b"".join(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            self._noticed, self._dropped = self._dropped, 0
            if not self._noticed:
                return lines, b""
            torn = b"" if (lines[-1:] or self._last_byte) == b"\n" else b"\n"
            return lines, torn + f"duly: {self._sentence(self._noticed)}\n".encode()

    def _write(self, lines: bytes, notice: bytes) -> OSError | None:
        """Write a batch. If that fails, what is left of it is dropped, and the error is the answer."""
        left = memoryview(lines + notice)
        while left:
            try:
                # Outside of the lock: the loop, which puts lines, must not wait for a reader.
                written = os.write(self._descriptor, left)
            except BlockingIOError:
                # Another process has set our output, which it shares, to non-blocking.
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._drop_unwritten(bytes(left[: max(len(left) - len(notice), 0)]), error)
                return error
            else:
                self._last_byte = bytes(left[written - 1 : written])
                left = left[written:]
        with self._changed:
            self._noticed = 0
        return None

    def _drop_unwritten(self, lines: bytes, error: OSError) -> None:
        """Drop *lines*, and what came since: its place is after a notice that cannot be written now."""
        with self._changed:
            self._dropped += self._noticed + sum(map(_count, [lines, *self._waiting]))
            self._noticed = 0
            self._waiting.clear()
            self._waiting_bytes = 0
            is_full = error.errno in _DISK_FULL
            said = f"{self._name} cannot be written: {error.strerror}"
            self._reason = f"the disk behind {self._name} is full" if is_full else said


def _count(lines: bytes) -> int:
    return lines.count(b"\n") + bool(lines and not lines.endswith(b"\n"))


class WriteStream(io.TextIOBase):
    """A stderr that hands what is written to *take*: neither the log nor anybody else there has to wait."""

    def __init__(self, take: Callable[[str], object]) -> None:
        self._take = take

    def write(self, text: str) -> int:
        self._take(text)
        return len(text)

    def writable(self) -> bool:
        return True


class _Lines:
    """Cuts what comes into lines; one without an end is cut when it gets too long."""

    def __init__(self, prefix: bytes, put: Callable[[bytes], None]) -> None:
        self._prefix = prefix
        self._put = put
        self._rest = b""

    def end(self) -> None:
        if self._rest:
            self._put(self._prefix + self._rest + b"\n")
            self._rest = b""

    def take(self, received: bytes) -> None:
        whole, newline, self._rest = (self._rest + received).rpartition(b"\n")
        if newline:
            # All at once: a service that writes a million lines a second must not cost a call for each.
            self._put(self._prefix + whole.replace(b"\n", b"\n" + self._prefix) + b"\n")
        while len(self._rest) > _LONGEST_LINE:
            self._put(self._prefix + self._rest[:_LONGEST_LINE] + b"\n")
            self._rest = self._rest[_LONGEST_LINE:]
