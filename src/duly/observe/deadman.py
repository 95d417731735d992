"""A dead-man's switch: a URL is fetched after each success, so that something outside notices silence.

A ping never blocks, delays or fails a run. Hosts have a thread each, so that one that hangs keeps nobody else
waiting. It is tried twice; redirects are not followed, proxies not used. A failure is reported once for each
outage, as an event `DeadManPingFailed`. A URL is as good as a password: only its host is ever shown.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import MappingProxyType
from urllib.parse import urlsplit

from duly import __version__
from duly.clock import HostClock
from duly.events import Announcer, Event, Listener
from duly.threads import Worker

TIMEOUT_S = 10.0
_PAUSE_S = 1.0
_MOST_WORKERS = 32
_LONGEST_ANSWER = 4096

Urls = Callable[[str], str | None]


class PingError(Exception):
    """A ping that failed; says why, without the URL."""


class DeadMan:
    """Pings on success. *urls* has the URL of each task or service, or is a function that knows them.

    Give it to a scheduler or a daemon as a listener. *listeners* get the failures as events.
    """

    def __init__(
        self,
        urls: Mapping[str, str] | Urls,
        listeners: Iterable[Listener] = (),
        *,
        now: Callable[[], datetime] | None = None,
        timeout_s: float = TIMEOUT_S,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._url_of = urls if callable(urls) else urls.get
        if not callable(urls):
            for name, url in urls.items():
                _check(name, url)
        self._announcer = Announcer(listeners, HostClock().now if now is None else now)
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._workers: dict[int | str, Worker] = {}
        self._waiting: set[str] = set()
        """Whose ping has not begun: another success meanwhile needs no second one."""
        self._failing: set[str] = set()
        self._pings: set[asyncio.Task[None]] = set()

    def listener(self, event: Event) -> None:
        if event.name == "TaskRunCompleted":
            self._ping_soon("taskName", event.fields["taskName"])
        elif event.name == "ServiceRunEnded" and event.fields["result"] == "success":
            self._ping_soon("service", event.fields["service"])

    __call__ = listener

    async def close(self, grace_s: float = 0) -> None:
        """Wait a little for the pings under way, and let go of the threads."""
        if self._pings:
            _, left = await asyncio.wait(list(self._pings), timeout=grace_s)
            for ping in left:
                ping.cancel()
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()

    def _ping_soon(self, sort: str, name: str) -> None:
        url = self._url_of(name)
        if not url or name in self._waiting:
            return
        self._waiting.add(name)
        task = asyncio.get_running_loop().create_task(self._ping(sort, name, url), name="duly ping")
        self._pings.add(task)
        task.add_done_callback(self._pings.discard)

    async def _ping(self, sort: str, name: str, url: str) -> None:
        host = urlsplit(url).netloc.rpartition("@")[2]
        attempt = partial(ping, url, timeout_s=self._timeout_s, begun=partial(self._waiting.discard, name))
        try:
            await self._worker_of(host).do(partial(_twice, attempt, self._pause_s))
        except PingError as error:
            if name not in self._failing:
                self._failing.add(name)
                self._announcer.announce("DeadManPingFailed", **{sort: name}, host=host, reason=str(error))
        else:
            self._failing.discard(name)
        finally:
            self._waiting.discard(name)

    def _worker_of(self, host: str) -> Worker:
        # Beyond so many hosts some share a thread: the number of threads stays bounded.
        key = host if host in self._workers or len(self._workers) < _MOST_WORKERS else hash(host) % 4
        return self._workers.setdefault(key, Worker(f"duly ping {host}"))


def _twice(attempt: Callable[[], None], pause_s: float) -> None:
    try:
        attempt()
    except PingError:
        time.sleep(pause_s)
        attempt()


def ping(
    url: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float = TIMEOUT_S,
    begun: Callable[[], object] = lambda: None,
) -> None:
    """Fetch *url*, or post *body* to it, and do not look at what it says.

    Blocks. Raises PingError unless it answers with 2xx.
    """
    begun()
    try:
        status = _status_of(url, _request(url, body, headers), time.monotonic() + timeout_s)
    except ssl.SSLError as error:
        raise PingError(f"no safe connection: {error.reason or type(error).__name__}") from None
    except TimeoutError:
        raise PingError(f"no answer within {timeout_s:g} seconds") from None
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or type(error).__name__
        raise PingError(f"cannot be reached: {said}") from None
    if status is None:
        raise PingError("its answer is not HTTP")
    if not 200 <= status < 300:
        raise PingError(f"it answered with {status}")


def _status_of(url: str, request: bytes, deadline_s: float) -> int | None:
    """The status that a server answers with; None if what it says is not HTTP."""
    parts = urlsplit(url)
    host, is_safe = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_safe else 80)
    with socket.create_connection((host, port), timeout=_left_s(deadline_s)) as plain:
        connection = plain
        if is_safe:
            # One deadline for all steps: the handshake gets what the connection has left.
            plain.settimeout(_left_s(deadline_s))
            connection = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        with connection:
            connection.settimeout(_left_s(deadline_s))
            connection.sendall(request)
            return _read_status(connection, deadline_s)


def _request(url: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    lines = (
        f"{'GET' if body is None else 'POST'} {target} HTTP/1.1",
        f"Host: {host}",
        f"User-Agent: duly/{__version__}",
        "Accept: */*",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
        *(() if body is None else (f"Content-Length: {len(body)}",)),
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + (body or b"")


def _read_status(connection: socket.socket, deadline_s: float) -> int | None:
    """The status in the first line; the rest is not waited for."""
    read = b""
    while b"\n" not in read and len(read) < _LONGEST_ANSWER:
        # One deadline for all of it: a server that sends a byte a second must not hold the thread.
        connection.settimeout(_left_s(deadline_s))
        if not (more := connection.recv(_LONGEST_ANSWER)):
            break
        read += more
    words = read.partition(b"\n")[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        return None
    with suppress(ValueError):
        return int(words[1])
    return None


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _check(name: str, url: str) -> None:
    """Refuse a URL that cannot be pinged, without repeating it."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except (ValueError, AttributeError, TypeError):
        is_usable = False
    if not is_usable or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"the URL to ping for {name!r} must begin with https:// or http:// and name a host")
