"""The server: uvicorn's HTTP protocol inside the daemon's own loop, with every limit that keeps it small.

It listens at a loopback address, a unix socket that only its owner may open, or elsewhere with a token. There
is no ticking main loop and no signal handler: an idle dashboard costs no wake-ups. A connection has a limited
time to ask and to read. Beyond their limit a new one takes the place of the one that has kept quiet longest,
so that nobody shuts others out by saying nothing. The same happens when the process has no descriptor left.
"""

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from duly.config.values import ListenAddress
from duly.daemon.acceptor import Acceptor
from duly.sockets import SocketPathError, unix_socket
from duly.web.app import create_app
from duly.web.authentication import Counts
from duly.web.security import HEADERS
from duly.web.settings import WebLimits, WebRefusedError, WebSettings, checked_settings
from duly.web.site import Site

# Long enough for answers that are ready; the end of the daemon must not wait for a client that does not read.
_LAST_WORDS_S = 1.0
_TURNS = 3
"""Of the loop, until a connection that was just let in is made, is ended, and is closed."""
_LOGGED_A_MINUTE = 60


class _Sparing(logging.Filter):
    """Lets some records of a minute through, so that nobody can fill the disk with bad requests."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counts(time.monotonic)

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 (logging calls it so)
        return self._counts.more("") <= _LOGGED_A_MINUTE


_logger = logging.getLogger("duly.web.http")
_logger.addFilter(_Sparing())


def _log_shortage(error: OSError | None) -> None:
    if error is None:
        _logger.info("connections are accepted again")
    else:
        _logger.error("connections have to wait: %s", error.strerror or error)


class WebServer:
    """Serves *site* from `start` to `close`. Raises WebRefusedError if the settings are not safe."""

    def __init__(
        self,
        site: Site,
        settings: WebSettings,
        *,
        app: ASGIApp | None = None,
        on_shortage: Callable[[OSError | None], object] = _log_shortage,
    ) -> None:
        self._site = site
        self._on_shortage = on_shortage
        self._settings = checked_settings(settings)
        self._app = app or create_app(site, settings)
        self._state = ServerState()
        self._acceptor: Acceptor | None = None
        self._accepting: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self._remove_socket: Callable[[], None] = lambda: None
        self.address: ListenAddress | None = None
        """Where it listens, while it does."""

    @property
    def url(self) -> str:
        """Where a browser finds it; empty while it does not listen."""
        return "" if self.address is None else url_of(self.address)

    async def start(self) -> None:
        """Listen. Raises WebRefusedError."""
        wanted = self._settings.address
        if wanted.path is None:
            listening = _tcp_socket(wanted)
            self.address = ListenAddress(wanted.host, listening.getsockname()[1])
        else:
            listening, self._remove_socket = _unix_socket(wanted.path)
            self.address = wanted
        factory = partial(
            HttpConnection,
            config=_uvicorn_config(self._app, self._settings.limits),
            server_state=self._state,
            app_state={},
            limits=self._settings.limits,
            is_over=lambda: self._is_closing,
        )
        self._is_closing = False
        loop = asyncio.get_running_loop()

        def accept(connection: socket.socket) -> None:
            task = loop.create_task(loop.connect_accepted_socket(factory, connection))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

        connections = cast("set[HttpConnection]", self._state.connections)
        self._acceptor = Acceptor(
            listening,
            accept,
            make_room=partial(closed_longest_quiet, connections),
            on_shortage=self._on_shortage,
        )
        try:
            self._acceptor.start()
        except OSError as error:
            self._acceptor.close()
            raise WebRefusedError(f"it cannot listen at {wanted}: {error.strerror or error}") from error

    async def close(self) -> None:
        """Listen no more, end the streams, give answers under way a moment, and close what is left."""
        if self._acceptor is None:
            return
        self._is_closing = True
        self._acceptor.close()
        self._remove_socket()
        # Streams end by themselves now; without this, those that wait for events would use up the moment.
        self._site.live.close()
        # Closes idle connections at once, and the others after their answer.
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_LAST_WORDS_S)
        # Whatever is left does not read or does not end: first its connection, then its task.
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # noqa: TID251 (yields: their handlers see the disconnect)
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_LAST_WORDS_S)
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # noqa: TID251 (yields: connections accepted while it closed are ended)
        self._acceptor, self.address = None, None


def _uvicorn_config(app: ASGIApp, limits: WebLimits) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=HttpConnection,
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_keep_alive=round(limits.idle_s),
    )
    config.load()
    return config


class HttpConnection(H11Protocol):
    """One connection, with a limit on everything that a client can take its time with."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        limits: WebLimits,
        is_over: Callable[[], bool],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._is_over = is_over
        self.logger = _logger
        self._limits = limits
        self._timeouts: dict[str, asyncio.TimerHandle] = {}
        self.quiet_since_s = self.loop.time()

    @property
    def is_quiet(self) -> bool:
        """Whether it has yet to ask, or to say all of what it asks."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        others = cast("set[HttpConnection]", self.connections) - {self}
        is_full = len(others) >= self._limits.connections
        # The kernel may have let it in before we stopped listening.
        if self._is_over() or (is_full and not closed_longest_quiet(others)):
            transport.abort()
        else:
            self._limit("request", self._limits.request_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lift("request", "reading")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something came; the head of a request has to be whole in time, however it trickles in."""
        before = cast("RequestResponseCycle | None", self.cycle)  # there is none before the first request
        if before is None or before.response_complete:
            self._limit("request", self._limits.request_s)
        super().data_received(data)
        if self.cycle is not before:
            self.quiet_since_s = self.loop.time()
            self._lift("request")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit("reading", self._limits.write_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._lift("reading")

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing of somebody who would rather have a web socket: the request is like any other."""

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request: with all the headers, and nothing of what came."""
        more = {
            "cache-control": "no-store",
            "content-type": "text/plain; charset=utf-8",
            "connection": "close",
        }
        headers = [*HEADERS.items(), *more.items()]
        with suppress(h11.LocalProtocolError):
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=f"{msg}\n".encode()),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _limit(self, what: str, seconds: float) -> None:
        """Close the connection unless `_lift` is called in time; a limit that is set already stays."""
        if what not in self._timeouts:
            self._timeouts[what] = self.loop.call_later(seconds, self.transport.abort)

    def _lift(self, *limits: str) -> None:
        for what in limits:
            if (timeout := self._timeouts.pop(what, None)) is not None:
                timeout.cancel()


def closed_longest_quiet(connections: set[HttpConnection]) -> bool:
    """Close the one of *connections* that has kept quiet longest; whether there was one."""
    quiet = [each for each in connections if each.is_quiet and not each.transport.is_closing()]
    if not quiet:
        return False
    min(quiet, key=lambda each: each.quiet_since_s).transport.abort()
    return True


def url_of(where: ListenAddress) -> str:
    if where.path is not None:
        return str(where)
    host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(where.host, where.host)  # noqa: S104
    return f"http://{ListenAddress(host, where.port)}/"


def _tcp_socket(where: ListenAddress) -> socket.socket:
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise WebRefusedError(f"{where} is no address of this machine: {error.strerror}") from error
    family, kind, protocol, _, place = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"another program listens at {where}; write another listen = under [dashboard]"
            raise WebRefusedError(reason) from error
        raise WebRefusedError(f"it cannot listen at {where}: {error.strerror}") from error
    return made


def _unix_socket(path: str) -> tuple[socket.socket, Callable[[], None]]:
    try:
        return unix_socket(path)
    except SocketPathError as error:
        taken = f"another program listens at {path}; choose another path"
        raise WebRefusedError(taken if error.is_answered else f"{path}: {error.reason}") from error
