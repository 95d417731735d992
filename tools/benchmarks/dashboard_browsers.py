"""Browsers without a screen: they load a page, read its events, and ask for it again as `app.js` does.

All of them live in one loop and make nothing of what they read, so that fifty cost little beside the daemon
they look at.
"""

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

_PACE_S = 1.0
_JITTER_S = 0.25
_PATIENCE_S = 60.0
_REDRAWN_S = 3.0
TIMELINE = "/api/v1/timeline?first=0&count=36&parts=300&span=172800000000"
"""What `timeline.js` asks for of the overview."""


class Answer(NamedTuple):
    """What a server said."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One connection that is kept; a new one takes its place when the server has closed it."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str, **headers: str) -> Answer:
        """The answer to a GET."""
        try:
            return await self._asked(path, headers)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            return await self._asked(path, headers)

    async def begin(self, path: str, **headers: str) -> asyncio.StreamReader:
        """Send a GET, and leave it to the caller to read."""
        if self._streams is None:
            host, _, port = self._host.rpartition(":")
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        lines = [f"GET {path} HTTP/1.1", f"Host: {self._host}", "Accept: */*", "Sec-Fetch-Site: same-origin"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        return reader

    async def _asked(self, path: str, headers: dict[str, str]) -> Answer:
        reader = await self.begin(path, **headers)
        status, seen = await head(reader)
        return Answer(status, seen, await reader.readexactly(int(seen.get("content-length", "0"))))

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return int(first.split()[1]), {name.lower(): value for name, _, value in pairs}


class _Page:
    """One open page."""

    def __init__(self, url: str, path: str) -> None:
        self._url = url
        self._path = path
        self._news = asyncio.Event()
        self._heard = self._etag = ""
        self._drawn_s = 0.0
        self.refreshes = 0

    async def look(self) -> None:
        """Load it, and keep it up to date until cancelled."""
        asking = Connection(self._url)
        answer = await asking.get(self._path)
        if answer.status != 200:
            raise RuntimeError(f"{self._path} is answered with {answer.status}")
        async with asyncio.TaskGroup() as both:
            both.create_task(self._listen())
            both.create_task(self._refresh(asking))

    async def _listen(self) -> None:
        hearing = Connection(self._url)
        reader = await hearing.begin("/api/v1/events?brief=true")
        status, _ = await head(reader)
        if status != 200:
            raise RuntimeError(f"the stream of events is answered with {status}")
        while line := await reader.readline():
            if line.startswith(b"id: "):
                self._heard = line[4:].strip().decode()
            elif line.startswith(b'data: {"'):
                self._news.set()
        hearing.close()

    async def _refresh(self, asking: Connection) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(random.random() * _JITTER_S)  # noqa: TID251 (as a browser does)
            self._news.clear()
            headers = {"X_Duly_Part": self._heard} | ({"If_None_Match": self._etag} if self._etag else {})
            answer = await asking.get(self._path, **headers)
            self._etag = answer.headers.get("etag", "")
            self.refreshes += 1
            if self._path == "/" and answer.status == 200 and time.monotonic() > self._drawn_s + _REDRAWN_S:
                self._drawn_s = time.monotonic()
                await asking.get(TIMELINE)
            if "x-duly-again" in answer.headers:
                self._news.set()
            pace_s = max(float(answer.headers.get("x-duly-pace", "0")), _PACE_S)
            await asyncio.sleep(pace_s)  # noqa: TID251 (as a browser does)


class Browsers:
    """Open pages, one at each of *paths*, in a thread of their own; `with` closes them."""

    def __init__(self, url: str, paths: Sequence[str]) -> None:
        self._url = url
        self._paths = paths
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._fault: BaseException | None = None
        self._pages: list[_Page] = []
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    @property
    def refreshes(self) -> int:
        """How often pages were made up to date, all together."""
        return sum(page.refreshes for page in self._pages)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        if self._fault is not None:
            raise self._fault

    async def _run(self) -> None:
        self._pages = [_Page(self._url, path) for path in self._paths]
        looking = asyncio.gather(self._over.wait(), *(page.look() for page in self._pages))
        over = asyncio.ensure_future(self._over.wait())
        either: list[asyncio.Future[Any]] = [looking, over]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            self._fault = looking.exception()
        looking.cancel()
        over.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await looking


def timed(url: str, paths: Sequence[str]) -> list[float]:
    """How long each of these requests took, one after another, in seconds."""

    async def ask() -> list[float]:
        connection, times_s = Connection(url), []
        for path in paths:
            began_s = time.perf_counter()
            answer = await connection.get(path)
            times_s.append(time.perf_counter() - began_s)
            if answer.status != 200:
                raise RuntimeError(f"{path} is answered with {answer.status}")
        connection.close()
        return times_s

    return _run(ask)


def _run(ask: Callable[[], Awaitable[list[float]]]) -> list[float]:
    async def within() -> list[float]:
        async with asyncio.timeout(_PATIENCE_S * 10):
            return await ask()

    return asyncio.run(within())
