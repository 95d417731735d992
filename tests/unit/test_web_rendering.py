"""When a page is made: at once for somebody who comes, in a moment of calm for a page that is open."""

import asyncio
from collections.abc import Mapping

import pytest
from starlette.requests import Request

from duly.web.live import Live
from duly.web.rendering import Gathered, Renderer, until_minute_begun_s
from duly.web.security import Visitor
from tests.worlds.daemons import us
from tests.worlds.web_serving import FakeSite


@pytest.mark.parametrize(
    ("clock", "wait_s"),
    [
        ("12:00:30", 0),
        ("12:00:59.899", 0),
        ("12:00:59.900", 0.3),
        ("12:00:59.999", 0.201),
        ("12:01:00.000", 0.2),
        ("12:01:00.150", 0.05),
        ("12:01:00.200", 0),
    ],
)
def test_no_page_is_begun_when_a_minute_begins(clock: str, wait_s: float) -> None:
    """Timers fire when a minute begins: pages that can wait are made a little later."""
    seconds, _, thousandths = clock.partition(".")
    at_us = us(seconds) + 1000 * int(thousandths or "0")
    assert until_minute_begun_s(at_us) == pytest.approx(wait_s)


def _request(headers: Mapping[str, str] | None = None) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    who = Visitor("operator", "", "somebody", has_tokens=False)
    scope = {"type": "http", "method": "GET", "path": "/x", "query_string": b"", "headers": raw}
    return Request({**scope, "server": ("localhost", 80), "scheme": "http", "state": {"visitor": who}})


async def test_an_open_page_waits_for_calm_and_a_new_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a burst an open page is not made again; when it is over, one making has all of it, for all."""
    monkeypatch.setattr("duly.web.rendering._SHARE", 0)
    site, loop = FakeSite(), asyncio.get_running_loop()
    made: list[float] = []
    site.live = Live("boot", calm_s=0.5, longest_s=30)
    leave = site.live.enter()
    renderer = Renderer(site, lambda _path, _ill: [], loop.time)

    async def gather() -> Gathered:
        made.append(loop.time())
        values = {"heading": "Hello", "message": "", "back": "/", "back_label": "Home"}
        return "message.html", values, 200

    def happens() -> None:
        site.live.publish("TimerFired", "2026-01-01T12:00:00+00:00", {})

    happens()
    opened = [loop.create_task(renderer.page(_request({"x-duly-part": "boot-1"}), gather))]
    await asyncio.wait(opened, timeout=0)
    whole = await renderer.page(_request(), gather)
    assert (whole.status_code, len(made), opened[0].done()) == (200, 1, False)
    happens()
    last_s = loop.time()
    opened += [loop.create_task(renderer.page(_request({"x-duly-part": "boot-2"}), gather)) for _ in range(3)]
    answers = await asyncio.gather(*opened)
    assert len(made) == 3
    assert min(made[1:]) >= last_s + 0.5
    assert not any("x-duly-again" in answer.headers for answer in answers)
    leave()


@pytest.mark.parametrize(("clients", "pace_s"), [(1, 0.05), (50, 2.5)])
async def test_many_readers_ask_less_often(
    clients: int, pace_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The more pages are open, the longer each waits between two questions."""
    monkeypatch.setattr("duly.web.rendering._SHARE", 0)
    site = FakeSite()
    leaving = [site.live.enter() for _ in range(clients)]
    renderer = Renderer(site, lambda _path, _ill: [], asyncio.get_running_loop().time)

    async def gather() -> Gathered:
        values = {"heading": "Hello", "message": "", "back": "/", "back_label": "Home"}
        return "message.html", values, 200

    answer = await renderer.page(_request(), gather)
    assert float(answer.headers["x-duly-pace"]) == pace_s
    for leave in leaving:
        leave()
