"""Standby: controls of an app in a process that waits, carried out by the process that holds the store.

    standby                                        holder
    tries the lock of the file twice a second      has the lock, and a socket beside the file
    connects, writes a request      ---------->    calls the same control of its own app
    reads an answer                 <----------    writes an answer; of run_now a second one, at the end

A request and an answer are a line of JSON each; a connection has one request. Only the user of the holder may
open the socket (its mode). The lock says who holds the store, the socket only carries requests: a socket that
a dead holder left is replaced by the next holder.

What happens when a part fails:
    the holder ends      the kernel releases lock and connection. Who waits for an answer gets
                         HolderAwayError: the request may have been carried out. Nothing asks twice
    nobody listens       the standby tries again for 2 s, or takes over itself, and then HolderAwayError
    the standby ends     what it has asked for is done all the same
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec

from duly import errors
from duly.errors import HolderAwayError, SchedulerError
from duly.sockets import unix_socket

Controls = Mapping[str, Callable[..., Awaitable[Any]]]

_LONGEST_LINE = 64 * 2**20
_PATIENCE_S = 2.0
"""So long a standby looks for a holder: one may be about to take over."""
_PAUSE_S = 0.1
_BUILTINS = (ValueError, TypeError, TimeoutError)
"""What a control raises beside errors of ours."""


class _Request(msgspec.Struct):
    control: str
    params: dict[str, Any]


class _Answer(msgspec.Struct, omit_defaults=True):
    value: Any = None
    error: str | None = None
    """The class of what the control has raised."""
    message: str = ""
    details: dict[str, Any] = {}


_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode_request = msgspec.json.Decoder(_Request).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


class ControlServer:
    """Carries out what standby processes ask, at the socket *path*."""

    def __init__(self, path: str, controls: Controls) -> None:
        self._path = path
        self._controls = controls
        self._server: asyncio.Server | None = None
        self._remove: Callable[[], None] = lambda: None
        self._serving: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Listen. Raises SocketPathError."""
        # It replaces a socket that is there: only the holder of the lock comes here.
        listening, self._remove = unix_socket(self._path)
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=_LONGEST_LINE)

    def close(self) -> None:
        """Stop listening. A standby that waits for an answer learns that there is none."""
        if self._server is not None:
            self._server.close()
            self._remove()
            self._server = None
        # Cut off and not waited for: a control may wait for a run, and stop waits for runs itself.
        for task in self._serving:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            # A standby that ended needs no answer; asyncio logs a cancelled connection as a fault.
            with suppress(ConnectionError, asyncio.CancelledError):
                await self._answer(await reader.readline(), writer)
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            request = _decode_request(line)
            value = await self._controls[request.control](**self._params(request))
            if isawaitable(value):  # a run: that it was asked for, and then how it ended
                writer.write(_encode(_Answer()) + b"\n")
                await writer.drain()
                value = await value
            answer = _Answer(value)
        except Exception as error:
            answer = _failure(error)
        writer.write(_encode(answer) + b"\n")
        await writer.drain()

    def _params(self, request: _Request) -> dict[str, Any]:
        hints = get_type_hints(self._controls[request.control])
        return {name: msgspec.convert(value, hints[name]) for name, value in request.params.items()}


async def asked(
    path: str, store: str, control: str, params: Mapping[str, Any], *, is_waiting: Callable[[], bool]
) -> "tuple[Any, asyncio.StreamReader, asyncio.StreamWriter] | None":
    """What the holder answers, and where it may answer once more; None if this process waits no longer.

    Raises HolderAwayError, or what the control has raised.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _PATIENCE_S
    while is_waiting():
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=_LONGEST_LINE)
        except OSError as error:
            # Nobody listens: between two holders, or while the new one opens its socket.
            if loop.time() > until_s:
                raise HolderAwayError(store=store, is_asked=False) from error
            await asyncio.sleep(_PAUSE_S)  # noqa: TID251 (the other process lives by the host's time)
            continue
        try:
            writer.write(_encode(_Request(control, dict(params))) + b"\n")
            # From here on the request may be carried out. So it is not sent again if the connection breaks.
            return await _next(reader, store), reader, writer
        except BaseException:
            writer.close()
            raise
    return None


async def end_of_run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, store: str) -> None:
    """Return when the run has ended that was asked for. Raises what it has raised, or HolderAwayError."""
    try:
        await _next(reader, store)
    finally:
        writer.close()


async def _next(reader: asyncio.StreamReader, store: str) -> Any:
    try:
        line = await reader.readline()
    except ConnectionError:
        line = b""
    # Also half a line: the holder ended while it wrote.
    if not line.endswith(b"\n"):
        raise HolderAwayError(store=store, is_asked=True)
    answer = _decode_answer(line)
    if answer.error is not None:
        raise raised(answer.error, answer.message, answer.details)
    return answer.value


def _failure(error: Exception) -> _Answer:
    if isinstance(error, SchedulerError):
        return _Answer(error=type(error).__name__, message=error.message, details=error.details)
    kind = next((kind for kind in _BUILTINS if isinstance(error, kind)), type(error))
    return _Answer(error=kind.__name__, message=str(error))


def raised(name: str, message: str, details: Mapping[str, Any] = MappingProxyType({})) -> Exception:
    """What another process has raised, by *name* of its class: errors of ours and of Python as they were."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, SchedulerError):
        # Without its constructor: what came is the message that it made, not what it was made from.
        error: SchedulerError = kind.__new__(kind)
        SchedulerError.__init__(error, message, dict(details))
        return error
    builtin = next((kind for kind in _BUILTINS if kind.__name__ == name), None)
    return RuntimeError(f"{name}: {message}") if builtin is None else builtin(message)
