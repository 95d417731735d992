"""The daemon's end of the socket: who may ask, how much, and for how long.

The socket is made with mode 0600 and asks the kernel who is at the other end: the daemon's own user or root.
Whatever a client does (nothing, rubbish, too much, vanish in the middle) costs the daemon a task and a
timeout, nothing else. What was begun for a client that vanished is done to its end; only streams end with
their reader.

Nobody can shut others out. Beyond the limit of connections a new one takes the place of the one that has kept
the daemon waiting longest, for a request or while it should read. Requests that may take long (starting,
stopping, following output) fill only half of the places, so `duly status` and `duly stop` always find one.
"""

import asyncio
import errno
import os
import socket
import stat
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

from duly.daemon.acceptor import Acceptor
from duly.daemon.backend import Backend
from duly.daemon.operations import Operation, operation_called, params_for
from duly.daemon.protocol import (
    BAD_REQUEST,
    BUSY,
    FAILED,
    LONGEST_REQUEST,
    OperationError,
    Request,
    checked_path,
    error_line,
    request_from,
    result_line,
)
from duly.errors import SchedulerError
from duly.events import described, tell_operator

MOST_CLIENTS = 64
IDLE_S = 60.0
"""How long a client may take to ask, or to read."""
_LAST_WORDS_S = 1.0
_PROBE_S = 2.0


class SocketError(SchedulerError):
    """The daemon cannot listen; says where, why, and what to do."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(f"Socket {path}: {reason}", {"path": path, "reason": reason})


class Server:
    """Answers clients at the socket *path* with the operations of *backend*.

    `start` may be called only by whoever holds the store: then a socket that nobody answers at is a dead
    daemon's, and is replaced.
    """

    def __init__(
        self,
        path: Path,
        backend: Backend,
        *,
        most_clients: int = MOST_CLIENTS,
        idle_s: float = IDLE_S,
        on_shortage: Callable[[OSError | None], object] = lambda _: None,
    ) -> None:
        self._path = path
        self._backend = backend
        self._most_clients = most_clients
        self._most_long = max(most_clients // 2, 1)
        self._idle_s = idle_s
        self._on_shortage = on_shortage
        self._acceptor: Acceptor | None = None
        self._place: tuple[int, int] | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._waited_for: dict[asyncio.StreamWriter, None] = {}
        """The connections that keep us waiting, the longest wait first."""
        self._works: set[asyncio.Task[None]] = set()
        self._long: set[asyncio.Task[None]] = set()
        """Those of the works that may take long."""

    async def start(self) -> None:
        """Listen. Raises SocketError, PathTooLongError."""
        checked_path(str(self._path))
        listening = _bound(self._path)
        self._place = _place_of(self._path)
        self._acceptor = Acceptor(
            listening, self._on_connection, make_room=self._make_room, on_shortage=self._on_shortage
        )
        try:
            self._acceptor.start()
        except OSError as error:
            self._acceptor.close()
            self._remove()
            reason = f"cannot be listened at: {error.strerror or error}"
            raise SocketError(path=str(self._path), reason=reason) from error

    async def close(self) -> None:
        """Listen no more, give those at the socket a moment for their answers, and remove it."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        await asyncio.sleep(0)  # noqa: TID251 (yields: who was accepted just now has a task that began)
        # Removed at once: whoever comes now finds nobody, instead of waiting for an answer.
        self._remove()
        if self._works:
            await asyncio.wait(self._works, timeout=_LAST_WORDS_S)
        # Answers that are ready have now been handed to the kernel, or will not be read.
        for client in list(self._clients):
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients, timeout=_LAST_WORDS_S)
        self._acceptor = None

    def _remove(self) -> None:
        """Remove the socket, unless another daemon has put its own in its place."""
        with suppress(OSError):
            if self._place is not None and _place_of(self._path) == self._place:
                self._path.unlink()
        self._place = None

    # --- one client ---

    def _on_connection(self, connection: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(connection), name="duly client")
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    def _make_room(self) -> bool:
        """Close the connection that has kept us waiting longest; whether there was one."""
        silent = next(iter(self._waited_for), None)
        if silent is None:
            return False
        del self._waited_for[silent]
        silent.transport.abort()
        return True

    @contextmanager
    def _waiting_for(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """While it is the client's turn, its place may go to another one."""
        self._waited_for[writer] = None
        try:
            yield
        finally:
            self._waited_for.pop(writer, None)

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LONGEST_REQUEST)
        try:
            await self._served(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            return  # vanished, or was too slow; cancelled: we are closing
        except Exception as error:
            tell_operator(f"duly: a client of the socket could not be served: {described(error)}")
        finally:
            writer.close()

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = _peer(writer)
        if who is None:
            await self._send(
                writer, error_line(OperationError(FAILED, "this daemon belongs to another user"))
            )
            return
        if len(self._clients) > self._most_clients and not self._make_room():
            message = f"the daemon has {self._most_clients} clients already; try again"
            await self._send(writer, error_line(OperationError(BUSY, message)))
            return
        while (line := await self._line(reader, writer)) is not None:
            await self._answer(line, who, reader, writer)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """The next request; None when there is none any more."""
        try:
            with self._waiting_for(writer):
                async with asyncio.timeout(self._idle_s):
                    return await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return None  # without its newline it is no request: whoever sent it vanished
        except asyncio.LimitOverrunError:
            message = f"a request may have {LONGEST_REQUEST} bytes, and this one has more"
            await self._send(writer, error_line(OperationError(BAD_REQUEST, message)))
            return None

    async def _answer(
        self, line: bytes, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            request = request_from(line)
            operation = operation_called(request.op)
            is_stream = operation.stream is not None and request.params.get("follow") is True
            is_long = is_stream or operation.may_take_long
            if is_long:
                self._check_may_take_long()
            if is_stream:
                await self._stream(operation, request, who, reader, writer)
                return
            work = self._begin(self._worked(operation, request, who, writer), is_long=is_long)
        except OperationError as error:
            await self._send(writer, error_line(error))
            return
        # A client that vanishes, or a server that closes, leaves no operation half done.
        await asyncio.shield(work)

    def _check_may_take_long(self) -> None:
        if len(self._long) >= self._most_long:
            message = f"the daemon is busy with {self._most_long} requests that take long; try again"
            raise OperationError(BUSY, message)

    def _begin(self, work: Coroutine[Any, Any, None], *, is_long: bool) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        for tasks in (self._works, self._long) if is_long else (self._works,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    async def _worked(
        self, operation: Operation, request: Request, who: str, writer: asyncio.StreamWriter
    ) -> None:
        try:
            params = params_for(operation, request.params)
            answer = result_line(await operation.function(self._backend, params, who))
        except Exception as error:
            answer = error_line(_refusal(request.op, error))
        with suppress(OSError, TimeoutError):
            await self._send(writer, answer)

    async def _stream(
        self,
        operation: Operation,
        request: Request,
        who: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        assert operation.stream is not None
        pieces = operation.stream(self._backend, params_for(operation, request.params), who)
        # A reader who has gone does not say so by writing, and the run may be silent for days.
        gone = asyncio.create_task(reader.read(1))
        # One of the works: when the daemon ends, so do the runs, and their followers are to hear of that.
        sending = self._begin(self._sent(pieces, request.op, writer), is_long=True)
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.wait({gone, sending})
        if not sending.cancelled():
            sending.result()
        if not gone.cancelled() or sending.cancelled():
            raise ConnectionResetError

    async def _sent(
        self, pieces: AsyncGenerator[object, None], op: str, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with aclosing(pieces) as stream:
                async for piece in stream:
                    await self._send(writer, result_line(piece, more=True))
        except (OSError, TimeoutError):
            raise
        except Exception as error:
            await self._send(writer, error_line(_refusal(op, error)))
            return
        await self._send(writer, result_line(None))

    async def _send(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        writer.write(line)
        with self._waiting_for(writer):
            async with asyncio.timeout(self._idle_s):
                await writer.drain()


def _refusal(op: str, error: Exception) -> OperationError:
    """What a client is told of an error."""
    if isinstance(error, OperationError):
        return error
    if isinstance(error, SchedulerError):
        return OperationError(FAILED, error.message)
    tell_operator(f"duly: operation {op} failed: {described(error)}")
    return OperationError(FAILED, f"the daemon could not do it: {described(error)}")


def _peer(writer: asyncio.StreamWriter) -> str | None:
    """Who is at the other end; None if that is neither our user nor root."""
    connection = writer.get_extra_info("socket")
    credentials = getattr(socket, "SO_PEERCRED", None)
    if credentials is None:
        return f"uid {os.geteuid()}"  # where the kernel does not tell, the mode of the socket decides alone
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, credentials, 12))
    return f"uid {uid}" if uid in {0, os.geteuid()} else None


# --- the socket ---


def _bound(path: Path) -> socket.socket:
    """A socket at *path*, which nobody else may open. Raises SocketError."""
    try:
        return _bound_once(path)
    except FileExistsError:
        _clear(path)
    try:
        return _bound_once(path)
    except FileExistsError:
        reason = "another program has just put something there; choose another path"
        raise SocketError(path=str(path), reason=reason) from None


def _bound_once(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        # The mode is set as the socket is made: there is no moment at which others may open it.
        before = os.umask(0o177)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        made.close()
        if error.errno in _IN_USE:
            raise FileExistsError from error
        reason = f"cannot be made: {error.strerror or error}; is its directory there and writable?"
        raise SocketError(path=str(path), reason=reason) from error
    return made


_IN_USE = frozenset({errno.EADDRINUSE, errno.EEXIST})


def _clear(path: Path) -> None:
    """Remove the socket of a dead daemon. Raises SocketError if it is no socket, or the daemon lives."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        reason = "there is a file that is not a socket; remove it, or choose another path"
        raise SocketError(path=str(path), reason=reason)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            reason = f"cannot be replaced: {error.strerror or error}; remove it if no daemon uses it"
            raise SocketError(path=str(path), reason=reason) from error
    reason = "a daemon is listening there already; stop it with `duly stop`, or give each its own socket"
    raise SocketError(path=str(path), reason=reason)


def _place_of(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
