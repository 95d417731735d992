"""The server: uvicorn's HTTP protocol inside the daemon's own loop, with every limit that keeps it small.

It listens at a loopback address, a unix socket that only its owner may open, or elsewhere with a token. There
is no ticking main loop and no signal handler: an idle dashboard costs no wake-ups. A connection has a limited
time to ask and to read. Beyond their limit a new one takes the place of the one that has kept quiet longest,
so that nobody shuts others out by saying nothing. The same happens when the process has no descriptor left.
"""

import asyncio
import errno
import functools
import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from duly.config.addresses import Address
from duly.daemon.acceptor import Acceptor
from duly.web.app import create_app
from duly.web.guard import Counts
from duly.web.security import HEADERS
from duly.web.settings import Limits, WebRefusedError, WebSettings, checked
from duly.web.site import Site

_LAST_WORDS_S = 1.0
_TURNS = 3
"""Of the loop, until a connection that was just let in is made, is ended, and is closed."""
_PROBE_S = 2.0
_LOGGED_A_MINUTE = 60


class _Sparing(logging.Filter):
    """Lets some records of a minute through: whoever sends nonsense must not fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counts(time.monotonic)

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 (logging calls it so)
        """Whether there is room for one more."""
        return self._counts.more("") <= _LOGGED_A_MINUTE


_logger = logging.getLogger("duly.web.http")
_logger.addFilter(_Sparing())


def _log_shortage(error: OSError | None) -> None:
    if error is None:
        _logger.info("connections are accepted again")
    else:
        _logger.error("connections have to wait: %s", error.strerror or error)


class WebServer:
    """Serves *site* from `start` to `close`. Raises WebRefusedError if it may not listen as it is told to."""

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
        self._settings = checked(settings)
        self._app = app or create_app(site, settings)
        self._state = ServerState()
        self._acceptor: Acceptor | None = None
        self._accepting: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self._place: tuple[int, int] | None = None
        self.address: Address | None = None
        """Where it listens, while it does."""

    @property
    def url(self) -> str:
        """Where a browser finds it; empty while it does not listen."""
        return "" if self.address is None else url_of(self.address)

    async def start(self) -> None:
        """Listen. Raises WebRefusedError."""
        wanted = self._settings.address
        listening = _unix_socket(wanted.path) if wanted.path is not None else _tcp_socket(wanted)
        if wanted.path is not None:
            self._place = _place_of(wanted.path)
            self.address = wanted
        else:
            self.address = Address(wanted.host, listening.getsockname()[1])
        limits = self._settings.limits
        config = uvicorn.Config(
            self._app,
            http=Connection,
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
        factory = functools.partial(
            Connection,
            config=config,
            server_state=self._state,
            app_state={},
            limits=limits,
            is_over=lambda: self._is_closing,
        )
        self._is_closing = False
        loop = asyncio.get_running_loop()

        def accept(connection: socket.socket) -> None:
            task = loop.create_task(loop.connect_accepted_socket(factory, connection))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

        self._acceptor = Acceptor(listening, accept, make_room=self._make_room, on_shortage=self._on_shortage)
        try:
            self._acceptor.start()
        except OSError as error:
            self._acceptor.close()
            raise WebRefusedError(f"it cannot listen at {wanted}: {error.strerror or error}") from error

    def _make_room(self) -> bool:
        return closed_longest_quiet(cast("set[Connection]", self._state.connections))

    async def close(self) -> None:
        """Listen no more, end the streams, give answers under way a moment, and close what is left."""
        if self._acceptor is None:
            return
        self._is_closing = True
        self._acceptor.close()
        self._remove()
        self._site.live.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_LAST_WORDS_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # noqa: TID251 (yields: they hear that nobody listens any more)
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_LAST_WORDS_S)
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # noqa: TID251 (yields: whoever was let in as it closed is shown the door)
        self._acceptor, self.address = None, None

    def _remove(self) -> None:
        path = self._settings.address.path
        with suppress(OSError):
            if path is not None and self._place is not None and _place_of(path) == self._place:
                Path(path).unlink()


class Connection(H11Protocol):
    """One connection, with a limit on everything that a client can take its time with."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        limits: Limits,
        is_over: Callable[[], bool],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._is_over = is_over
        self.logger = _logger
        self._limits = limits
        self._asking: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self.quiet_since_s = self.loop.time()

    @property
    def is_quiet(self) -> bool:
        """Whether it has yet to ask, or to say all of what it asks."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody came."""
        super().connection_made(transport)
        if self._is_over():
            transport.abort()
            return
        others = cast("set[Connection]", self.connections) - {self}
        if len(others) >= self._limits.connections and not closed_longest_quiet(others):
            transport.abort()
            return
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Somebody went."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something came; the head of a request has to be whole in time, however it trickles in."""
        before = cast("RequestResponseCycle | None", self.cycle)  # there is none before the first request
        if self._asking is None and (before is None or before.response_complete):
            self._expect()
        super().data_received(data)
        if self.cycle is not before:
            self.quiet_since_s = self.loop.time()
            self._arrived()

    def pause_writing(self) -> None:
        """The reader does not read."""
        super().pause_writing()
        if self._reading is None:
            self._reading = self.loop.call_later(self._limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The reader reads."""
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

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

    def _expect(self) -> None:
        self._asking = self.loop.call_later(self._limits.request_s, self.transport.abort)

    def _arrived(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _stop_waiting(self) -> None:
        self._arrived()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


def closed_longest_quiet(connections: set[Connection]) -> bool:
    """Close the one of *connections* that has kept quiet longest; whether there was one."""
    quiet = [each for each in connections if each.is_quiet and not each.transport.is_closing()]
    if not quiet:
        return False
    min(quiet, key=lambda each: each.quiet_since_s).transport.abort()
    return True


def url_of(where: Address) -> str:
    """Where a browser finds what listens at *where*."""
    if where.path is not None:
        return str(where)
    host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(where.host, where.host)  # noqa: S104
    return f"http://{Address(host, where.port)}/"


def _tcp_socket(where: Address) -> socket.socket:
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


def _unix_socket(path: str) -> socket.socket:
    """A socket at *path* that only its owner may open. One that nobody answers at is replaced."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(Path(path).lstat().st_mode):
            raise WebRefusedError(f"{path} is not a socket; remove it, or choose another path")
        if _is_answered(path):
            raise WebRefusedError(f"another program listens at {path}; choose another path")
        with suppress(FileNotFoundError):
            Path(path).unlink()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        # The mode is set as the socket is made: there is no moment at which others may open it.
        before = os.umask(0o177)
        try:
            made.bind(path)
        finally:
            os.umask(before)
    except OSError as error:
        made.close()
        raise WebRefusedError(f"it cannot listen at {path}: {error.strerror or error}") from error
    return made


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _place_of(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
