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
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

from duly.background import first_done
from duly.daemon.acceptor import Acceptor
from duly.daemon.backend import DaemonBackend
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
from duly.events import described, warn_operator
from duly.sockets import SocketPathError, unix_socket

MOST_CLIENTS = 64
IDLE_S = 60.0
"""How long a client may take to ask, or to read."""
# Long enough for answers that are ready; a client that does not read must not keep the daemon from ending.
_LAST_WORDS_S = 1.0
_TAKEN = "a daemon is listening there already; stop it with `duly stop`, or give each its own socket"


class SocketError(SchedulerError):
    """The daemon cannot listen; says where, why, and what to do."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(f"Socket {path}: {reason}", {"path": path, "reason": reason})


class Server:
    """Answers clients at the socket *path* with the operations of *backend*.

    `start` may be called only while the store is held: then a socket that nobody answers at is a dead
    daemon's, and is replaced.
    """

    def __init__(
        self,
        path: Path,
        backend: DaemonBackend,
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
        self._remove_socket: Callable[[], None] = lambda: None
        self._clients: set[asyncio.Task[None]] = set()
        self._placed: set[asyncio.Task[None]] = set()
        """The clients that have a place; the others wait for one."""
        self._waited_for: dict[asyncio.StreamWriter, None] = {}
        """The connections that keep us waiting, the longest wait first."""
        # Set when a client leaves or keeps us waiting; who finds all places taken then looks again.
        self._may_have_room = asyncio.Event()
        self._works: set[asyncio.Task[None]] = set()
        self._long: set[asyncio.Task[None]] = set()
        """Those of the works that may take long."""

    async def start(self) -> None:
        """Listen. Raises SocketError, PathTooLongError."""
        path = checked_path(str(self._path))
        try:
            listening, self._remove_socket = unix_socket(path)
        except SocketPathError as error:
            raise SocketError(path=path, reason=_TAKEN if error.is_answered else error.reason) from error
        self._acceptor = Acceptor(
            listening, self._on_connection, make_room=self._make_room, on_shortage=self._on_shortage
        )
        try:
            self._acceptor.start()
        except OSError as error:
            self._acceptor.close()
            self._remove_socket()
            raise SocketError(
                path=path, reason=f"cannot be listened at: {error.strerror or error}"
            ) from error

    async def close(self) -> None:
        """Listen no more, give those at the socket a moment for their answers, and remove it."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        await asyncio.sleep(0)  # noqa: TID251 (yields: who was accepted just now has a task that began)
        # Removed at once: a client that comes now is refused, instead of waiting for an answer.
        self._remove_socket()
        if self._works:
            await asyncio.wait(self._works, timeout=_LAST_WORDS_S)
        # Answers that are ready have now been handed to the kernel, or will not be read.
        for client in list(self._clients):
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients, timeout=_LAST_WORDS_S)
        self._acceptor = None

    # --- one client ---

    def _on_connection(self, connection: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(connection), name="duly client")
        self._clients.add(task)
        task.add_done_callback(self._on_gone)

    def _on_gone(self, client: asyncio.Task[None]) -> None:
        self._clients.discard(client)
        self._placed.discard(client)
        self._may_have_room.set()

    def _make_room(self) -> bool:
        """Close the connection that has kept us waiting longest; whether there was one."""
        silent = next(iter(self._waited_for), None)
        if silent is None:
            return False
        del self._waited_for[silent]
        silent.transport.abort()
        return True

    async def _has_place(self) -> bool:
        """Take a place, and wait for it if need be; False if there is none for too long.

        Only who has a place counts: of a crowd that comes at one instant nobody would get any.
        """
        client = asyncio.current_task()
        assert client is not None
        try:
            async with asyncio.timeout(self._idle_s):
                while len(self._placed) >= self._most_clients and not self._make_room():
                    # All are being answered at this instant: the first answer makes room.
                    self._may_have_room.clear()
                    await self._may_have_room.wait()
        except TimeoutError:
            return False
        self._placed.add(client)
        return True

    @contextmanager
    def _waiting_for(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """While it is the client's turn, its place may go to another one."""
        self._waited_for[writer] = None
        self._may_have_room.set()
        try:
            yield
        finally:
            self._waited_for.pop(writer, None)

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LONGEST_REQUEST)
        try:
            await self._serve_requests(reader, writer)
        except (OSError, TimeoutError) as error:
            # Vanished, or was too slow. The streams keep the error, whose frames keep the streams. The
            # collector may end such a cycle in any order, and asyncio then logs that nobody saw the error.
            error.__traceback__ = None
        except asyncio.CancelledError:
            return  # we are closing
        except Exception as error:
            warn_operator(f"duly: a client of the socket could not be served: {described(error)}")
        finally:
            writer.close()

    async def _serve_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = _peer(writer)
        if who is None:
            await self._send(
                writer, error_line(OperationError(FAILED, "this daemon belongs to another user"))
            )
            return
        if not await self._has_place():
            message = f"the daemon has {self._most_clients} clients already; try again"
            await self._send(writer, error_line(OperationError(BUSY, message)))
            return
        while (line := await self._next_request(reader, writer)) is not None:
            await self._answer(line, who, reader, writer)

    async def _next_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """The next request; None when there is none any more, or the client is gone.

        What a client has sent ahead is there still when its place has gone to another one. To answer it would
        keep the daemon busy for nobody: twenty requests each of 500 clients held it up for minutes.
        """
        if writer.is_closing():
            return None
        try:
            with self._waiting_for(writer):
                async with asyncio.timeout(self._idle_s):
                    return await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return None  # without its newline it is no request: the client vanished
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
            work = self._begin(self._perform(operation, request, who, writer), is_long=is_long)
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

    async def _perform(
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
        # One of the works: when the daemon ends, so do the runs, and their followers must learn of that.
        sending = self._begin(self._send_pieces(pieces, request.op, writer), is_long=True)
        done = await first_done(gone, sending)
        if sending in done:
            sending.result()
        if gone in done:
            raise ConnectionResetError

    async def _send_pieces(
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
            # A client that does not read is dropped: its answer must not stay in memory.
            async with asyncio.timeout(self._idle_s):
                await writer.drain()


def _refusal(op: str, error: Exception) -> OperationError:
    if isinstance(error, OperationError):
        return error
    if isinstance(error, SchedulerError):
        return OperationError(FAILED, error.message)
    warn_operator(f"duly: operation {op} failed: {described(error)}")
    return OperationError(FAILED, f"the daemon could not do it: {described(error)}")


def _peer(writer: asyncio.StreamWriter) -> str | None:
    """Who is at the other end; None if that is neither our user nor root."""
    connection = writer.get_extra_info("socket")
    credentials = getattr(socket, "SO_PEERCRED", None)
    if credentials is None:
        return f"uid {os.geteuid()}"  # where the kernel does not say, the mode of the socket decides alone
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, credentials, 12))
    return f"uid {uid}" if uid in {0, os.geteuid()} else None
