"""The JSON API: the same operations as the socket, as its OpenAPI document says, whatever is sent to it."""

import asyncio
import html
import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duly.daemon.operations import OPERATIONS
from duly.daemon.protocol import EXITS
from duly.errors import StoreError
from duly.store.history import MissRow
from duly.web.acting import STATUSES
from tests.worlds.daemons import us
from tests.worlds.web_serving import JSON, OPERATOR, FakeSite, Served, serving, settings

BEARER = {"authorization": f"Bearer {OPERATOR}"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server whose token we have."""
    with serving(settings(operator_token=OPERATOR)) as each:
        yield each


def get(served: Served, path: str) -> tuple[int, Any]:
    reply = served.ask("GET", f"/api/v1/{path}", BEARER)
    return reply.status, json.loads(reply.body)


def post(served: Served, name: str, **params: Any) -> tuple[int, Any]:
    reply = served.ask("POST", f"/api/v1/{name}", {**BEARER, **JSON}, json.dumps(params).encode())
    return reply.status, json.loads(reply.body)


# --- what it answers ---


def test_reading(served: Served) -> None:
    """Every operation that reads is there by GET, with its parameters in the query."""
    assert get(served, "status")[1]["version"] == "9.9"
    assert [each["id"] for each in get(served, "services")[1]["services"]] == ["web", "backup", "mail"]
    assert [each["id"] for each in get(served, "timers")[1]["timers"]] == ["backup", "poll"]
    _, seen = get(served, "history?id=backup&limit=1")
    assert ([run["id"] for run in seen["runs"]], seen["more"]) == ([4], True)
    assert get(served, "logs?run=1&lines=1")[1]["output"] == "three\n"


def test_one_run(served: Served) -> None:
    """One run is told by its number."""
    _, seen = get(served, "run?id=4")
    assert (seen["service"], seen["result"], seen["duration_s"]) == ("backup", "exit", 60)


def test_why(served: Served) -> None:
    """What became of a minute, or of the latest slot, is told as `duly why` tells it."""
    _, seen = get(served, "why?id=backup")
    assert (seen["kind"], seen["run"]["id"], seen["slot"]) == ("fired", 4, "2026-01-01T03:30:00+00:00")
    assert seen["sentence"].startswith('"backup" fired for its slot')
    _, seen = get(served, "why?id=backup&at=2026-01-01T04:00")
    assert (seen["kind"], seen["run"]) == ("no-slot", None)
    assert "its slots are before it at" in seen["sentence"]


def test_next(served: Served) -> None:
    """The next firings of one timer, or of all that fire, come in order."""
    days = [f"2026-01-0{day}T03:30:00+00:00" for day in (2, 3, 4)]
    for path in ("next?count=3", "next?id=backup&count=3"):
        assert [firing["at"] for firing in get(served, path)[1]["firings"]] == days
    assert get(served, "next?id=poll")[1]["firings"] == [], "it is disabled"


def test_pages_of_misses() -> None:
    """Misses come newest first, and in pages."""
    site = FakeSite()
    with serving(settings(operator_token=OPERATOR), site) as served:
        put = site.backend.history.put([], [MissRow("poll", us(f"12:{n:02}"), "overlap") for n in range(9)])
        asyncio.run_coroutine_threadsafe(put, served.loop).result(10)
        pages = [get(served, f"misses?skip={skip}&limit=4")[1] for skip in (0, 4, 8)]
        assert [len(page["misses"]) for page in pages] == [4, 4, 2]
        assert [page["more"] for page in pages] == [True, True, False]
        times = [miss["at"] for page in pages for miss in page["misses"]]
        assert times == sorted(times, reverse=True)
        assert get(served, "misses?timer=backup")[1]["misses"] == []
        site.backend.snapshots = None
        assert get(served, "misses")[1]["misses"] == [], "the timers are off"


def test_definitions_without_secrets(served: Served) -> None:
    """A definition tells the names in its environment, and neither values nor their digests."""
    _, seen = get(served, "definitions")
    (backup,) = [each for each in seen["services"] if each["id"] == "backup"]
    assert backup["env"] == ["TOKEN"]


def test_acting() -> None:
    """Every operation that acts is there by POST, and does what it does over the socket."""
    site = FakeSite()
    with serving(settings(operator_token=OPERATOR), site) as served:
        started = {"done": "started", "id": "backup", "run": 41}
        assert post(served, "start", id="backup") == (200, started)
        assert post(served, "stop", id="web")[0] == 200
        assert post(served, "trigger", id="backup")[1]["run"] == 42
        assert post(served, "enable", id="poll")[0] == 200
        assert post(served, "disable", id="poll")[0] == 200
        assert post(served, "reload")[1]["added"] == ["timer new"]
        assert served.ask("POST", "/api/v1/shut_down", BEARER).status == 200
        assert post(served, "gate", on=False)[0] == 200
        assert get(served, "timers")[1]["status"] == "disabled"
        assert post(served, "trigger", id="backup")[0] == 409
    assert [did for did in site.backend.did if did[0] != "noted"] == [
        ("start", "backup"),
        ("stop", "web"),
        ("trigger", "backup"),
        ("switch", "poll", True),
        ("switch", "poll", False),
        ("reload",),
        ("shut down",),
    ]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("history?id=bakup", 404, "not_found"),
        ("run?id=99", 404, "not_found"),
        ("run", 400, "bad_request"),
        ("misses?timer=bakup", 404, "not_found"),
        ("why?id=bakup", 404, "not_found"),
        ("why?id=backup&at=tomorrow", 400, "bad_request"),
        ("next?id=bakup", 404, "not_found"),
        ("next?count=0", 400, "bad_request"),
        ("logs?run=99", 404, "not_found"),
        ("logs?id=mail", 409, "failed"),
        ("logs", 400, "bad_request"),
        ("logs?run=x", 400, "bad_request"),
        ("logs?follow=yes", 400, "bad_request"),
        ("logs?id=%ff", 400, "bad_request"),
        ("history?limit=-1", 400, "bad_request"),
        ("history?limit=1&limit=2", 400, "bad_request"),
        ("history?nonsense=1", 400, "bad_request"),
        ("status?x=1", 400, "bad_request"),
        ("nothing", 404, "not_found"),
        ("start", 405, "method_not_allowed"),
    ],
)
def test_refusals(served: Served, path: str, status: int, code: str) -> None:
    """What cannot be answered is refused with a status, a code for machines and a sentence for people."""
    seen = get(served, path)
    assert (seen[0], seen[1]["error"]["code"]) == (status, code)
    assert set(seen[1]["error"]) == {"code", "message"}


def test_every_code_has_a_status() -> None:
    """There is a status for every code of an error."""
    assert set(STATUSES) == {*EXITS, "read_only"}


def test_a_store_that_cannot_be_read() -> None:
    """While the store cannot be read, the answer is 503 and says so."""
    site = FakeSite()

    async def fails(**_: Any) -> Any:
        raise StoreError(store="duly.db", reason="the disk is full")

    site.backend.history.runs = fails  # type: ignore[method-assign]
    with serving(settings(operator_token=OPERATOR), site) as served:
        status, seen = get(served, "history")
    assert (status, seen["error"]["code"]) == (503, "busy")
    assert "the disk is full" in seen["error"]["message"]


# --- its document ---


def test_the_document(served: Served) -> None:
    """The OpenAPI document is there, and has a path for every operation."""
    status, document = get(served, "openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    for name, operation in OPERATIONS.items():
        assert list(document["paths"][f"/api/v1/{name}"]) == ["get" if operation.is_read else "post"]
    assert set(document["paths"]) - {f"/api/v1/{name}" for name in OPERATIONS} == {
        "/api/v1/events",
        "/api/v1/logs/stream",
    }
    timer = document["components"]["schemas"]["TimerJson"]["properties"]
    assert timer["member"]["description"], "the source says it below the field"
    limit = document["paths"]["/api/v1/outputs"]["get"]["parameters"][3]
    assert (limit["name"], limit["description"]) == ("since", "Only of runs that had not ended before then.")


def test_the_page_of_the_document(served: Served) -> None:
    """The page for people has every operation, and a place for each type that it names."""
    reply = served.ask("GET", "/api/v1/docs", BEARER)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    page = reply.body.decode()
    for name, operation in OPERATIONS.items():
        assert f"{'GET' if operation.is_read else 'POST'} /api/v1/{name}</code>" in page
        assert operation.summary in html.unescape(page)
    linked, there = re.findall(r'href="#(type-\w+)"', page), re.findall(r'id="(type-\w+)"', page)
    assert set(linked) <= set(there)
    assert len(there) == len(set(there)) > 15
    assert served.ask("GET", "/api/v1/docs").status == 401


def test_the_document_is_valid(served: Served) -> None:
    """The document follows OpenAPI 3.1, and each of its schemas is a schema."""
    from tests.worlds.openapi import check_document  # noqa: PLC0415 - it takes long to import

    _, document = get(served, "openapi.json")
    check_document(document)
    ids = [seen["operationId"] for path in document["paths"].values() for seen in path.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", OPERATIONS)
def test_whatever_is_sent(served: Served, name: str) -> None:
    """Whatever fits the document, and whatever does not, is answered as the document says."""
    from tests.worlds.openapi import check_answers  # noqa: PLC0415 - it takes long to import

    _, document = get(served, "openapi.json")
    method = "GET" if OPERATIONS[name].is_read else "POST"
    check_answers(document, f"http://127.0.0.1:{served.port}", f"/api/v1/{name}", method, BEARER)


class Numbers:
    """Metrics that know who asks for their text."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def content_type(self, accept: str, /) -> str:
        """Plain."""
        return f"text/plain; accepted={accept}"

    def taken(self, now: float, accept: str = "", /) -> Callable[[], bytes]:
        """Note who makes the text."""
        self.asked.append(threading.current_thread().name)

        def made() -> bytes:
            self.asked.append(threading.current_thread().name)
            return b"duly_running 1\n"

        return made


def test_metrics_do_not_hold_up_the_loop() -> None:
    """The text of the numbers, which is long with many timers, is made beside the loop that fires them."""
    site = FakeSite()
    site.metrics = numbers = Numbers()
    with serving(settings(), site) as served:
        assert served.ask("GET", "/metrics").body == b"duly_running 1\n"
    asked, made = numbers.asked
    assert asked != made
