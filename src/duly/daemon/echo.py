"""The output of all services on the daemon's own output, line by line, each with the name of its service.

That is what people expect of a container: `docker logs` shows it. A thread does the writing, because a
terminal that was stopped or a full pipe must not stop the daemon; what piles up behind it is dropped, and
counted. The daemon's log goes the same way, for the same reason.
"""

import io
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable

_MOST_WAITING = 1 << 20
_LONGEST_LINE = 4096


class Echo:
    """Writes lines to a descriptor, from a thread of its own."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        self._is_closed = False
        self._runs: dict[int, _Lines] = {}
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
            self._own_up()
            self._is_closed = True
            self._changed.notify()
        self._thread.join(patience_s)

    def put(self, lines: bytes) -> None:
        """Write whole *lines* soon."""
        with self._changed:
            if self._waiting and self._waiting_bytes + len(lines) > _MOST_WAITING:
                self._lost += lines.count(b"\n")
                return
            self._own_up()
            self._waiting.append(lines)
            self._waiting_bytes += len(lines)
            self._changed.notify()

    def _own_up(self) -> None:
        if self._lost:
            notice = f"duly: {self._lost} lines were not shown here, because nobody took them\n".encode()
            self._lost = 0
            self._waiting.append(notice)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_closed:
                        return
                    self._changed.wait()
                lines = b"".join(self._waiting)
                self._waiting.clear()
                self._waiting_bytes = 0
            try:
                self._write(lines)
            except OSError:
                return  # nobody is there to read; the tail of each run is kept in the store

    def _write(self, lines: bytes) -> None:
        left = memoryview(lines)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                # Whoever shares our output has made it so that it does not block.
                select.select([], [self._descriptor], [])


class EchoHandler(logging.Handler):
    """Hands the lines of a log to an echo."""

    def __init__(self, echo: Echo) -> None:
        super().__init__()
        self._echo = echo

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record* soon."""
        try:
            self._echo.put(self.format(record).encode(errors="backslashreplace") + b"\n")
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Write what waits, if that can be done soon."""
        self._echo.close()
        super().close()


class EchoStream(io.TextIOBase):
    """A stderr that hands what is written to an echo: nobody who says a word there has to wait."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo

    def write(self, text: str) -> int:
        """Write *text* soon."""
        self._echo.put(text.encode(errors="backslashreplace"))
        return len(text)

    def writable(self) -> bool:
        """Yes."""
        return True


class _Lines:
    """Cuts what comes into lines; one without an end is cut when it gets too long."""

    def __init__(self, prefix: bytes, put: Callable[[bytes], None]) -> None:
        self._prefix = prefix
        self._put = put
        self._rest = b""

    def end(self) -> None:
        """Nothing more comes."""
        if self._rest:
            self._put(self._prefix + self._rest + b"\n")
            self._rest = b""

    def take(self, received: bytes) -> None:
        """More came."""
        whole, newline, self._rest = (self._rest + received).rpartition(b"\n")
        if newline:
            # All at once: a service that writes a million lines a second must not cost a call for each.
            self._put(self._prefix + whole.replace(b"\n", b"\n" + self._prefix) + b"\n")
        while len(self._rest) > _LONGEST_LINE:
            self._put(self._prefix + self._rest[:_LONGEST_LINE] + b"\n")
            self._rest = self._rest[_LONGEST_LINE:]
