"""The client's end of the socket: blocking, small, quick to import. No event loop, no database.

The caller gets the result, or an OperationError with the daemon's own message, or an UnreachableError that
says why nobody answers. A stopped daemon never answers; a daemon that is busy with a long request still
answers other clients. That is how a client that waits for a long time knows one from the other.
"""

import socket
import struct
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from duly.daemon.protocol import (
    FAILED,
    UNREACHABLE,
    OperationError,
    PathTooLongError,
    UnreachableError,
    answer_from,
    checked_path,
    request_line,
)

_CHUNK = 1 << 16
_CONNECT_S = 5
_SILENT = "it says nothing; is it stopped or overloaded?"

_REASONS: tuple[tuple[type[OSError], str, str], ...] = (
    (FileNotFoundError, "down", "there is no socket; is it running?"),
    (ConnectionRefusedError, "down", "it has died and left its socket behind"),
    (PermissionError, "closed", "you may not open its socket; run this as its owner"),
    (TimeoutError, "silent", _SILENT),
    (BlockingIOError, "silent", _SILENT),
)


class Client:
    """Asks the daemon behind the socket at *path*. It may be silent for *patience_s*.

    With *is_waiting* an answer may take longer, if after that silence the daemon still answers others.
    """

    def __init__(self, path: str, *, patience_s: float = 60.0, is_waiting: bool = False) -> None:
        self.path = path
        self._patience_s = patience_s
        self._is_waiting = is_waiting

    def ask(self, op: str, **params: Any) -> Any:
        """The result of one operation. Raises UnreachableError, OperationError."""
        *_, last = self.stream(op, **params)
        return last

    def stream(self, op: str, **params: Any) -> Generator[Any, None, None]:
        """The results of a streaming operation, as they come. Raises UnreachableError, OperationError."""
        is_answered = False
        with closing(self._connected()) as connection:
            try:
                connection.sendall(request_line(op, params))
                for result in self._results(connection):
                    is_answered = True
                    yield result
            except TimeoutError as error:
                if not is_answered:
                    raise UnreachableError(self.path, _SILENT, state="silent", is_asked=True) from error
                message = f"the daemon at {self.path} answers no longer: {_SILENT}"
                raise OperationError(UNREACHABLE, message) from error
            except OSError as error:
                raise OperationError(FAILED, f"the daemon at {self.path} hung up: {error}") from error

    def _connected(self) -> socket.socket:
        try:
            checked_path(self.path)
        except PathTooLongError as error:
            raise UnreachableError(self.path, str(error)) from error
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Blocking, with the kernel's own time-out: a socket with a time-out of Python's does not block,
            # and is refused at once when many connect at the same moment and the daemon's queue is full.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _CONNECT_S, 0))
            connection.connect(self.path)
            connection.settimeout(self._patience_s)
        except OSError as error:
            connection.close()
            known = (each for each in _REASONS if isinstance(error, each[0]))
            _, state, reason = next(known, (OSError, "down", error.strerror or str(error)))
            raise UnreachableError(self.path, reason, state=state) from error
        return connection

    def _results(self, connection: socket.socket) -> Iterator[Any]:
        buffered, is_more = bytearray(), True
        while is_more:
            while (end := buffered.find(b"\n")) < 0:
                if not (received := self._received(connection)):
                    raise OperationError(FAILED, "the daemon ended before it answered")
                buffered += received
            answer = answer_from(bytes(buffered[:end]))
            del buffered[: end + 1]
            yield answer.result
            is_more = answer.more

    def _received(self, connection: socket.socket) -> bytes:
        while True:
            try:
                return connection.recv(_CHUNK)
            except TimeoutError:
                if not self._is_waiting or not self._is_answering():
                    raise

    def _is_answering(self) -> bool:
        try:
            Client(self.path, patience_s=self._patience_s).ask("status")
        except UnreachableError:
            return False
        except OperationError:
            return True  # it refuses, or is about to go: either way somebody is at work
        return True
