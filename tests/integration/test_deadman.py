"""The dead-man's switch: pinged after a success, with servers that answer, refuse, hang and redirect."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from duly import Event, Scheduler
from duly.events import LEVELS
from duly.observe import DeadMan
from duly.observe.deadman import PingError, ping
from duly.testing import VirtualClock
from tests.worlds.scheduler import MINUTE, at

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATH = "/s3cret?key=s3cret"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Says what it is told to anyone who connects, and remembers the requests."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        """One for each connection, then 200; None: say nothing until the other side gives up."""
        self.requests: list[bytes] = []
        self._connection: socket.socket | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.host}{PATH}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more, and let go of anyone who still waits."""
        if self._connection is not None:
            with suppress(OSError):  # it is closed already
                self._connection.shutdown(socket.SHUT_RDWR)
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(60)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connection = connection
            with connection, suppress(ConnectionResetError):  # a ping that was given up
                self.requests.append(connection.recv(4096))
                answer = self.answers.pop(0) if self.answers else OK
                if answer is None:
                    connection.recv(1)  # returns when the other side has closed
                else:
                    connection.sendall(answer)


@pytest.fixture
def server() -> Iterator[Server]:
    with closing(Server()) as running:
        yield running


def success(name: str = "backup") -> Event:
    fields = {"service": name, "runId": 1, "reason": "schedule", "result": "success", "duration": 1}
    return Event("ServiceRunEnded", LEVELS["ServiceRunEnded"], NOW, fields)


def failure(name: str = "backup") -> Event:
    return Event("ServiceRunEnded", logging.INFO, NOW, {"service": name, "result": "exit", "duration": 1})


def told_by(
    act: Callable[[DeadMan], Any], urls: dict[str, str], timeout_s: float = 60.0, times: int = 1
) -> list[Event]:
    """What a switch tells when *act* is done to it and all its pings have ended, so many times."""
    seen: list[Event] = []

    async def scenario() -> None:
        deadman = DeadMan(urls, [seen.append], now=lambda: NOW, timeout_s=timeout_s, pause_s=0)
        for _ in range(times):
            act(deadman)
            while deadman._pings:
                await asyncio.wait(list(deadman._pings))
        await deadman.close()

    asyncio.run(scenario())
    return seen


def test_ping_after_success(server: Server) -> None:
    """A success fetches the URL once, as an ordinary request; a failure or a stranger's success does not."""

    def act(deadman: DeadMan) -> None:
        deadman(failure())
        deadman(success("other"))
        deadman(success())

    assert told_by(act, {"backup": server.url}) == []
    [request] = server.requests
    lines = request.decode().split("\r\n")
    assert lines[0] == f"GET {PATH} HTTP/1.1"
    assert f"Host: {server.host}" in lines


def test_one_retry(server: Server) -> None:
    """A ping that fails is tried once more, and if that works nothing is told."""
    server.answers = [b"HTTP/1.1 503 no\r\n\r\n"]
    assert told_by(lambda deadman: deadman(success()), {"backup": server.url}) == []
    assert len(server.requests) == 2


def test_an_outage_is_told_once(server: Server) -> None:
    """Failures are told once until a ping works again, and without the secret parts of the URL."""
    bad = b"HTTP/1.1 500 no\r\n\r\n"
    server.answers = [bad, bad, bad, bad, OK, bad, bad]
    seen = told_by(lambda deadman: deadman(success()), {"backup": server.url}, times=4)
    assert [event.name for event in seen] == ["DeadManPingFailed"] * 2
    assert seen[0].level == logging.WARNING
    assert seen[0].fields == {"service": "backup", "host": server.host, "reason": "it answered with 500"}
    assert len(server.requests) == 7


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "it answered with 302"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "it answered with 404"),
        (b"220 mail.example.org ESMTP\r\n", "its answer is not HTTP"),
        (b"HTTP/1.1 abc\r\n", "its answer is not HTTP"),
        (b"", "its answer is not HTTP"),
        (b"x" * 100_000, "its answer is not HTTP"),
    ],
)
def test_answers_that_are_none(server: Server, answer: bytes, reason: str) -> None:
    """Redirects are not followed, and whatever is not 2xx is a failure."""
    server.answers = [answer, answer]
    [seen] = told_by(lambda deadman: deadman(success()), {"backup": server.url})
    assert seen.fields["reason"] == reason
    assert len(server.requests) == 2


def test_a_server_that_hangs(server: Server) -> None:
    """Silence is a failure when the time is up, however often it is broken by a byte."""
    server.answers = [None]
    begun_s = time.monotonic()
    with pytest.raises(PingError, match=r"no answer within 0\.2 seconds"):
        ping(server.url, timeout_s=0.2)
    assert time.monotonic() - begun_s < 60


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/s3cret", "http://name.invalid/s3cret", f"http://{'x' * 70}.org/s3cret"]
)
def test_nobody_there(url: str) -> None:
    """A host that cannot be reached is told as such, by name."""
    with pytest.raises(PingError, match=r"cannot be reached") as caught:
        ping(url, timeout_s=60)
    assert "s3cret" not in str(caught.value)


def test_not_tls(server: Server) -> None:
    """A server that does not speak TLS is not spoken to without it."""
    server.answers = [b"HTTP/1.1 200 OK\r\n\r\n"]
    with pytest.raises(PingError, match="no safe connection"):
        ping(server.url.replace("http:", "https:"), timeout_s=60)
    assert b"s3cret" not in server.requests[0]


def test_nobody_waits(server: Server) -> None:
    """A host that hangs delays neither the one who tells of a success nor the pings to other hosts."""
    with closing(Server()) as hanging:
        hanging.answers = [None]

        async def scenario() -> None:
            deadman = DeadMan({"slow": hanging.url, "fast": server.url}, timeout_s=60)
            begun_s = time.monotonic()
            deadman(success("slow"))
            deadman(success("fast"))
            assert time.monotonic() - begun_s < 30  # half of what the slow one gets
            [fast] = [ping for ping in deadman._pings if "fast" in str(ping.get_coro().cr_frame.f_locals)]  # type: ignore[union-attr]
            await fast
            await deadman.close(grace_s=0)

        asyncio.run(scenario())
        assert len(server.requests) == 1


def test_successes_that_wait_are_one(server: Server) -> None:
    """Successes that come faster than pings are answered by fewer pings, never by none."""

    def act(deadman: DeadMan) -> None:
        for _ in range(100):
            deadman(success())

    assert told_by(act, {"backup": server.url}) == []
    assert len(server.requests) == 1


@pytest.mark.parametrize("url", ["", "s3cret", "ftp://x/s3cret", "https:///s3cret", "https://x/s3cret\n", 3])
def test_bad_urls(url: Any) -> None:
    """A URL that cannot be pinged is refused at once, and not repeated."""
    with pytest.raises(ValueError, match="must begin with https:// or http:// and name a host") as caught:
        DeadMan({"backup": url})
    assert "s3cret" not in str(caught.value)


def test_nothing_secret_in_the_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the host of a ping that failed, and no more of its URL."""
    caplog.set_level(logging.DEBUG)
    server.answers = [b"HTTP/1.1 500 s3cret\r\n\r\n"] * 2
    told_by(lambda deadman: deadman(success()), {"backup": server.url})
    assert server.host in caplog.text
    assert "s3cret" not in caplog.text


def test_a_scheduler_that_is_watched(server: Server) -> None:
    """A task of an embedded scheduler pings when it has completed, and not when it failed."""

    async def scenario() -> None:
        clock = VirtualClock(at("12:00:30"))
        deadman = DeadMan({"a": server.url, "b": server.url})
        scheduler = Scheduler(":memory:", clock=clock, timezone=UTC, listeners=[deadman])

        async def fine() -> None: ...

        async def bad() -> None:
            raise ValueError

        await scheduler.initialize([("a", "1 12 * * *", fine, MINUTE), ("b", "1 12 * * *", bad, 60 * MINUTE)])
        await clock.advance(MINUTE)
        await scheduler.stop()
        await deadman.close(grace_s=10)

    asyncio.run(scenario())
    assert len(server.requests) == 1
