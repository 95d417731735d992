"""A cable between a client and a server that can be cut, pulled, or made long.

`Proxy(port)` listens on a loopback port of its own and carries bytes to *port* and back. Its loop runs in a
thread, so a test may block. Every method returns when what it says is true: after `cut()` no connection is
open and none is accepted.

What it cannot do: its kernel acknowledges what arrives, also while nothing is delivered. TCP's own timeouts
(keepalives, tcp_user_timeout) therefore see a healthy peer, as they do when a server hangs.
"""

import asyncio
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

LOOPBACK = "127.0.0.1"
CHUNK = 65536
CHUNKS_UNDERWAY = 16
PATIENCE_S = 60.0
# Below the ports that outgoing connections get: a killed server finds its port free when it comes back.
PORTS = range(16000, 32000)

_candidates: Iterator[int] = itertools.islice(itertools.cycle(PORTS), os.getpid() * 101 % len(PORTS), None)


def listening_socket() -> socket.socket:
    """A socket bound to a free port of the loopback address; it does not listen yet."""
    for port in itertools.islice(_candidates, len(PORTS)):
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((LOOPBACK, port))
        except OSError:
            bound.close()
        else:
            return bound
    raise RuntimeError("no free port")


def free_port() -> int:
    """A port that was free a moment ago, and that no outgoing connection is given."""
    with listening_socket() as bound:
        return int(bound.getsockname()[1])


def through(url: str, port: int) -> str:
    """The URL of the same database, reached by another port of the loopback address."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}{at}{LOOPBACK}:{port}"))


def reset(connection: socket.socket) -> None:
    """Close a connection so that the peer learns it at once, whatever is still underway."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Way:
    """One direction of all connections: open or not, and how long it takes."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.delay_s = 0.0

    async def carry(self, source: socket.socket, sink: socket.socket, held: threading.Event) -> None:
        """Bring everything, and the end of it, from *source* to *sink*, in order."""
        underway: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_UNDERWAY)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._take(source, underway))
            both.create_task(self._give(sink, underway, held))

    async def opened(self, held: threading.Event) -> None:
        """Wait until something may pass; who watches *held* learns that it could not."""
        if not self.open.is_set():
            held.set()
            await self.open.wait()

    async def _take(self, source: socket.socket, underway: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        chunk = b"not the end"
        while chunk:
            chunk = await loop.sock_recv(source, CHUNK)
            await underway.put((loop.time() + self.delay_s, chunk))

    async def _give(
        self, sink: socket.socket, underway: asyncio.Queue[tuple[float, bytes]], held: threading.Event
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, chunk = await underway.get()
            await _until(due_s)
            await self.opened(held)
            if not chunk:
                sink.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(sink, chunk)


async def _until(due_s: float) -> None:
    loop = asyncio.get_running_loop()
    if due_s <= loop.time():
        return
    come = asyncio.Event()
    timer = loop.call_at(due_s, come.set)
    try:
        await come.wait()
    finally:
        timer.cancel()


class Proxy:
    """A port that leads to another port, until told otherwise."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = listening_socket()
        self._listener.setblocking(False)
        self._listener.listen()
        self.port = int(self._listener.getsockname()[1])
        self.accepted = 0
        self._held = threading.Event()
        self._links: set[asyncio.Task[None]] = set()
        self._is_listening = True
        self._loop = asyncio.new_event_loop()
        self._requests, self._answers = Way(), Way()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy {self.port}", daemon=True)
        self._thread.start()
        self._loop.call_soon_threadsafe(self._loop.add_reader, self._listener, self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._links)

    def cut(self) -> None:
        """Reset all connections and refuse new ones, until `heal`."""
        self._do(self._cut())

    def swallow(self) -> None:
        """Accept, and deliver nothing in either direction until `heal`: a pulled cable."""
        self._do(self._swallow(self._requests, self._answers))

    def swallow_answers(self) -> None:
        """Deliver requests and hold back the answers until `heal`: who asked cannot know what happened."""
        self._do(self._swallow(self._answers))

    def delay(self, seconds: float, *, requests: bool = True, answers: bool = True) -> None:
        """Let everything that is sent from now on take so much longer, each way."""
        self._do(self._delay(seconds if requests else None, seconds if answers else None))

    def heal(self) -> None:
        """Carry everything at once again, also what was swallowed where a connection is still open."""
        self._do(self._heal())

    def retarget(self, port: int) -> None:
        """Lead new connections to another port, and reset those to the old one."""
        self._do(self._retarget(port))

    def wait_until_held(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until something has arrived and was held back since the last `swallow` or `swallow_answers`.

        When answers are swallowed this means: the server has answered, so what was asked is done.
        """
        assert self._held.wait(timeout_s), f"nothing was sent through port {self.port} in {timeout_s:g} s"

    def close(self) -> None:
        """Reset all connections and give the port back."""
        if self._loop.is_closed():
            return
        self._do(self._cut())
        self._listener.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _do(self, step: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(PATIENCE_S)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # it was gone before we looked
            return
        self.accepted += 1
        link = self._loop.create_task(self._serve(client))
        self._links.add(link)
        link.add_done_callback(self._links.discard)
        link.add_done_callback(lambda _: client.close())  # also if it was cut before it had begun

    async def _serve(self, client: socket.socket) -> None:
        server = socket.socket()
        close: Callable[[socket.socket], None] = reset
        try:
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._requests.opened(self._held)
            await self._loop.sock_connect(server, (LOOPBACK, self._target))
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._requests.carry(client, server, self._held))
                ways.create_task(self._answers.carry(server, client, self._held))
            close = socket.socket.close  # all was said, by both: let it arrive
        except* OSError:
            pass  # either end is gone: the other end learns it by the reset below
        finally:
            close(client)
            close(server)

    async def _cut(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._loop.remove_reader(self._listener)
            self._listener.shutdown(socket.SHUT_RDWR)  # it listens no more, but keeps its port
        await self._drop()

    async def _drop(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _swallow(self, *ways: Way) -> None:
        self._held.clear()
        for way in ways:
            way.open.clear()

    async def _delay(self, requests_s: float | None, answers_s: float | None) -> None:
        if requests_s is not None:
            self._requests.delay_s = requests_s
        if answers_s is not None:
            self._answers.delay_s = answers_s

    async def _heal(self) -> None:
        for way in (self._requests, self._answers):
            way.delay_s = 0.0
            way.open.set()
        if not self._is_listening:
            self._is_listening = True
            self._listener.listen()
            self._loop.add_reader(self._listener, self._accept)

    async def _retarget(self, port: int) -> None:
        self._target = port
        await self._drop()
