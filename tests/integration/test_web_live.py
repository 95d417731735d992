"""Live events over real sockets: catching up, many readers, slow ones, and those that vanish."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from duly.instant import SECOND_US
from duly.processes.output import Tail
from duly.store.history import RunRow
from duly.web.live import Live, TooManyError
from duly.web.settings import WebLimits
from tests.simulation.loop import SimLoop
from tests.simulation.steady import CrashPoints, Steady
from tests.worlds.daemons import us
from tests.worlds.web_serving import QUICK, FakeSite, Served, serving, settings

GET = "GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"


class Reader:
    """A client of a stream: what came, piece by piece."""

    def __init__(self, served: Served, path: str = "/api/v1/events", last_id: str | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.port), timeout=60)
        more = "" if last_id is None else f"Last-Event-ID: {last_id}\r\n"
        self.socket.sendall(GET.format(path=path, more=more).encode())
        self.received = b""

    def until(self, wanted: bytes) -> bytes:
        """Everything, once *wanted* is in it."""
        while wanted not in self.received:
            chunk = self.socket.recv(65536)
            assert chunk, f"the stream ended without {wanted!r}: {self.received!r}"
            self.received += chunk
        return self.received

    def rest(self) -> bytes:
        """Everything, once the server has ended it."""
        while chunk := self.socket.recv(65536):
            self.received += chunk
        return self.received

    def close(self) -> None:
        """Vanish."""
        self.socket.close()


def publish(served: Served, *numbers: int) -> None:
    def tell() -> None:
        for number in numbers:
            served.site.live.publish("TimerFired", "2026-01-01T12:00:00+00:00", {"runId": number})

    served.on_loop(tell)


def until(served: Served, condition: Callable[[], bool]) -> None:
    """Return once *condition* holds in the server's loop, looked at after each turn of it."""
    done = threading.Event()

    def look() -> None:
        if condition():
            done.set()
        else:
            served.loop.call_later(0.005, look)

    served.loop.call_soon_threadsafe(look)
    assert done.wait(60)


def test_events_come_as_they_happen() -> None:
    """A reader hears what happens from now on, each event with its id and as one line of JSON."""
    with serving() as served:
        publish(served, 1)
        reader = Reader(served)
        assert b"event: hello\nid: boot-1\n" in reader.until(b"event: hello\nid: boot-1\ndata: {}\n\n")
        publish(served, 2)
        seen = reader.until(b'"runId":2')
        assert b"content-type: text/event-stream" in seen
        assert b"transfer-encoding: chunked" in seen.lower()
        assert b'"runId":1' not in seen
        assert b"id: boot-2\ndata: {" in seen
        reader.close()


def test_pages_are_told_in_brief() -> None:
    """Who asks for it briefly hears how many events there were and the last id, and of none of them more."""
    with serving() as served:
        publish(served, 1, 2)
        reader = Reader(served, "/api/v1/events?brief=true", last_id="boot-1")
        assert b'id: boot-2\ndata: {"events":1}\n\n' in reader.until(b'"events":1')
        publish(served, 3, 4, 5)
        assert b'id: boot-5\ndata: {"events":3}\n\n' in reader.until(b'"events":3')
        assert b"runId" not in reader.received
        reader.close()


def test_calm() -> None:
    """It is calm when nothing has happened for a moment; what goes on and on is not waited for to the end."""
    live, loop = Live("boot", calm_s=0.05, longest_s=0.2), SimLoop(Steady(), CrashPoints(), lambda: None)

    def happen() -> None:
        live.publish("TimerFired", "2026-01-01T12:00:00+00:00", {})

    async def waited_s() -> float:
        began_s = loop.time()
        await live.calm()
        return round(loop.time() - began_s, 6)

    async def scenario() -> None:
        leave = live.enter()
        assert await waited_s() == 0
        happening = [loop.call_later(n / 100, happen) for n in range(100)]
        happen()
        assert await waited_s() == 0.2
        for each in happening:
            each.cancel()
        happen()
        assert await waited_s() == 0.05
        leave()

    loop.run_until(SECOND_US)  # nothing happened right before it began
    task = loop.create_task(scenario())
    assert loop.run_until(60 * SECOND_US)
    task.result()
    loop.bury()


async def test_nobody_waits_for_calm_at_the_end() -> None:
    """Who waits for calm when the streams are ended does not keep the daemon from ending."""
    live = Live("boot", calm_s=3600, longest_s=3600)
    live.enter()
    live.publish("TimerFired", "2026-01-01T12:00:00+00:00", {})
    waiting = asyncio.ensure_future(live.calm())
    await asyncio.wait([waiting], timeout=0)
    assert not waiting.done()
    live.close()
    await asyncio.wait_for(waiting, 60)


@pytest.mark.parametrize(
    ("last_id", "word", "runs"),
    [
        ("boot-3", b"hello", [4, 5]),
        ("boot-5", b"hello", []),
        ("boot-0", b"reset", []),
        ("boot-1", b"reset", []),
        ("boot-2", b"hello", [3, 4, 5]),
        ("boot-6", b"reset", []),
        ("other-3", b"reset", []),
        ("nonsense", b"reset", []),
        ("boot-", b"reset", []),
        ("boot--1", b"reset", []),
        ("boot-" + "9" * 30, b"reset", []),
        ("", b"hello", []),
    ],
)
def test_catching_up(last_id: str, word: bytes, runs: list[int]) -> None:
    """Anyone who comes back hears what happened meanwhile, or that it is not known any more."""
    site = FakeSite()
    site.live = Live("boot", ring=3)
    with serving(site=site) as served:
        publish(served, 1, 2, 3, 4, 5)
        reader = Reader(served, last_id=last_id)
        reader.until(b"event: " + word + b"\n")
        publish(served, 99)
        seen = reader.until(b'"runId":99')
        found = [
            json.loads(line[6:]).get("runId") for line in seen.split(b"\n") if line.startswith(b"data: {")
        ]
        assert [number for number in found if number is not None] == [*runs, 99]
        reader.close()


def test_last_id_in_the_query() -> None:
    """A script that makes a new stream says in the query what it heard last."""
    with serving() as served:
        publish(served, 1, 2)
        reader = Reader(served, "/api/v1/events?last_event_id=boot-1")
        assert b'"runId":1' not in reader.until(b'"runId":2')
        reader.close()


def test_a_burst_beyond_the_ring() -> None:
    """A reader that a burst has overtaken is told to look at everything again, and then goes on."""
    site = FakeSite()
    site.live = Live("boot", ring=10)
    with serving(site=site) as served:
        reader = Reader(served)
        reader.until(b"event: hello")
        publish(served, *range(100))
        assert b'"runId"' not in reader.until(b"event: reset\nid: boot-100\n")
        publish(served, 7)
        assert b"id: boot-101" in reader.until(b'"runId":7')
        reader.close()


def test_a_burst_is_told_when_it_is_over() -> None:
    """What happens close together is told in one piece, but does not wait for ever to be told."""

    async def main() -> None:
        live = Live("boot", calm_s=0.05, longest_s=60)
        stream = live.stream(None)
        await anext(stream)
        telling = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)  # noqa: TID251 (yields: the stream begins to wait)
        for number in range(3):
            live.publish("TimerFired", "now", {"runId": number})
        assert not telling.done()
        assert (await telling).count(b"runId") == 3
        hasty = Live("boot", calm_s=60, longest_s=0.05)
        hasty_stream = hasty.stream(None)
        await anext(hasty_stream)
        telling = asyncio.ensure_future(anext(hasty_stream))
        await asyncio.sleep(0)  # noqa: TID251 (yields: the stream begins to wait)
        hasty.publish("TimerFired", "now", {"runId": 7})
        assert b'"runId":7' in await asyncio.wait_for(telling, 60)
        await stream.aclose()
        await hasty_stream.aclose()

    asyncio.run(main())


def test_two_hundred_readers() -> None:
    """Two hundred readers hear everything in order, others are served, and when they go nothing is left."""
    with serving() as served:
        readers = [Reader(served) for _ in range(200)]
        for reader in readers:
            reader.until(b"event: hello")
        assert served.on_loop(lambda: served.site.live.clients) == 200
        publish(served, *range(50))
        assert served.ask("GET", "/api/v1/status").status == 200
        for reader in readers:
            seen = reader.until(b'"runId":49')
            assert [seen.index(b'"runId":%d}' % number) for number in range(50)] == sorted(
                seen.index(b'"runId":%d}' % number) for number in range(50)
            )
            reader.close()
        until(served, lambda: served.site.live.clients == 0)
        assert served.on_loop(lambda: len(served.site.live._waiting)) == 0
        until(served, lambda: not served.server._state.connections and not served.server._state.tasks)


def test_too_many_readers() -> None:
    """Beyond the limit a reader is sent away with 503, and there is room again when one goes."""
    site = FakeSite()
    site.live = Live("boot", most_clients=2)
    with serving(site=site) as served:
        readers = [Reader(served) for _ in range(2)]
        for reader in readers:
            reader.until(b"event: hello")
        refused = served.ask("GET", "/api/v1/events")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "busy", "30")
        readers.pop().close()
        until(served, lambda: site.live.clients == 1)
        again = Reader(served)
        again.until(b"event: hello")
        again.close()
        readers.pop().close()


def test_reader_that_does_not_read() -> None:
    """A reader that stays and does not read is let go of, and no memory is spent on it meanwhile."""
    site = FakeSite()
    site.live = Live("boot", calm_s=0)
    with serving(settings(limits=QUICK), site) as served:
        reader = Reader(served)
        reader.until(b"event: hello")
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)

        def tell() -> None:
            for number in range(1_500):
                site.live.publish(
                    "TimerFired", "now", {"timer": "x" * 200, "added": ["y" * 200] * 20, "runId": number}
                )

        while site.live.clients:
            served.on_loop(tell)
            threading.Event().wait(0.05)
        reader.close()
        assert served.ask("GET", "/api/v1/status").status == 200


def test_streams_end_with_the_server() -> None:
    """When the server closes, streams end in order and at once."""
    with serving(settings(limits=WebLimits())) as served:
        reader = Reader(served)
        reader.until(b"event: hello")
        asyncio.run_coroutine_threadsafe(served.server.close(), served.loop).result(60)
        assert reader.rest().endswith(b"0\r\n\r\n")
        reader.close()
        with pytest.raises(TooManyError):
            served.site.live.enter()


def test_heartbeat() -> None:
    """While nothing happens, a comment is sent from time to time."""

    async def main() -> None:
        stream = Live("boot").stream(None, heartbeat_s=0.01)
        assert b"hello" in await anext(stream)
        assert await anext(stream) == b": still here\n\n"
        await stream.aclose()

    asyncio.run(main())


def running(site: FakeSite) -> Tail:
    """A run under way, and its output so far."""
    tail = Tail(1024)
    tail.write(b"so far\n")
    site.backend.outputs[2] = tail
    site.backend.endings[2] = asyncio.Event()
    return tail


def test_following_a_run() -> None:
    """The output of a run comes as it is written, and the end of the run ends the stream."""
    site = FakeSite()
    with serving(site=site) as served:
        tail: Tail = served.on_loop(lambda: running(site))
        reader = Reader(served, "/api/v1/logs/stream?run=2")
        assert b'"output":"so far\\n"' in reader.until(b"event: log\n")
        served.on_loop(lambda: tail.write(b"<b>more</b>\x1b[31m\n"))
        reader.until(b'event: piece\ndata: {"text":"<b>more</b>\\u001b[31m\\n","lost_bytes":0,"at":"')
        ended = RunRow(
            id=2, service="web", reason="boot", started_us=us("11:00"), ended_us=us("12:00"), result="success"
        )

        async def end() -> None:
            await site.backend.history.put([ended], [])
            site.backend.endings[2].set()

        asyncio.run_coroutine_threadsafe(end(), served.loop).result(60)
        seen = reader.until(b"event: end\n")
        reader.until(b"0\r\n\r\n")
        assert b'"result":"success"' in seen
        reader.close()


def test_followers_that_vanish_leave_nothing() -> None:
    """A follower that goes while the run is silent is noticed at once, and watches no more."""
    site = FakeSite()
    with serving(site=site) as served:
        tail: Any = served.on_loop(lambda: running(site))
        readers = [Reader(served, "/api/v1/logs/stream?run=2") for _ in range(20)]
        for reader in readers:
            reader.until(b"event: log")
            reader.close()
        until(served, lambda: site.live.clients == 0)
        until(served, lambda: not served.server._state.tasks)
        assert served.on_loop(lambda: len(tail._followers)) == 0


def test_who_comes_as_it_closes() -> None:
    """A connection that is let in while the server closes is ended at once, not left behind."""
    with serving() as served:
        request = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        assert served.raw(request).startswith(b"HTTP/1.1")
        served.on_loop(lambda: setattr(served.server, "_is_closing", True))
        assert served.raw(request) == b""
