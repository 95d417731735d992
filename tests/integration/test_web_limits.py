"""The security of the dashboard: what every response has, what none has, and how much may be asked."""

import asyncio
import json
import logging
import socket
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from duly.config.schema import Service
from duly.daemon import views
from duly.events import Event
from duly.store.history import RunRow
from duly.web import security
from duly.web.live import Live
from duly.web.settings import WebLimits
from tests.worlds.daemons import CONFIG, us
from tests.worlds.web_serving import (
    BACKUP,
    GUARDED,
    JSON,
    OPERATOR,
    QUICK,
    START,
    VIEWER,
    FakeSite,
    Served,
    bearer,
    get_routes,
    serving,
    settings,
)

# --- what every response has, and none has ---


RESPONSES: list[tuple[str, str, dict[str, str], bytes | None]] = [
    ("GET", "/", {}, None),
    ("GET", "/api/v1/status", {}, None),
    ("GET", "/api/v1/openapi.json", {}, None),
    ("HEAD", "/api/v1/events", {}, None),
    ("GET", "/nothing/here", {}, None),
    ("GET", "/api/v1/nothing", {}, None),
    ("GET", "/runs/999999", {}, None),
    ("GET", "/static/style.css", {}, None),
    ("GET", "/static/nothing.css", {}, None),
    ("GET", "/healthz/live", {}, None),
    ("GET", "/metrics", {}, None),
    ("GET", "/api/v1/status", {"host": "evil.example"}, None),
    ("GET", "/api/v1/status", {"origin": "http://evil.example"}, None),
    (
        "OPTIONS",
        "/api/v1/start",
        {"origin": "http://evil.example", "access-control-request-method": "POST"},
        None,
    ),
    ("POST", "/api/v1/start", {}, BACKUP),
    ("POST", "/api/v1/start", JSON, b"x" * 100_000),
    ("GET", "/" + "x" * 5_000, {}, None),
    ("GET", "/api/v1/logs?run=x", {}, None),
]


@pytest.mark.parametrize(("method", "path", "headers", "body"), RESPONSES)
def test_headers_of_every_response(
    open_site: Served, method: str, path: str, headers: dict[str, str], body: bytes | None
) -> None:
    """Every response, refusals and errors too, forbids inline script and framing and has no CORS headers."""
    reply = open_site.ask(method, path, headers, body)
    policy = str(reply.headers["content-security-policy"])
    assert policy == security.CSP
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["referrer-policy"] == "same-origin"
    assert reply.headers["cache-control"] is not None
    assert [name for name in reply.headers if name.lower().startswith("access-control")] == []
    assert reply.headers["server"] is None


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    ],
)
def test_what_is_no_request(open_site: Served, sent: bytes) -> None:
    """Bytes that are no request are answered with 400 and the same headers, and are not repeated."""
    answer = open_site.raw(sent)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"content-security-policy: default-src 'none'" in answer.lower()
    assert b"nonsense" not in answer


def test_failure_inside(caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong inside is told to the log in one line; outside only that it did, with all headers."""
    site = FakeSite()
    secret = "the secret\nof the house"

    def fails() -> None:
        raise RuntimeError(secret)

    site.backend.daemon_status = fails  # type: ignore[assignment, method-assign]
    with serving(site=site) as served, caplog.at_level(logging.ERROR, "duly.web"):
        reply = served.ask("GET", "/api/v1/status")
    assert (reply.status, reply.code) == (500, "failed")
    assert b"secret" not in reply.body
    assert b"Traceback" not in reply.body
    assert reply.headers["content-security-policy"] == security.CSP
    (record,) = [each for each in caplog.records if each.name == "duly.web" and each.levelno == logging.ERROR]
    assert "\n" not in record.getMessage()
    assert record.exc_info is None


# --- limits ---


def test_oversized(open_site: Served) -> None:
    """Long addresses, heads and bodies are refused, however they come."""
    assert open_site.ask("GET", "/" + "x" * 4_100).status == 414
    assert open_site.ask("GET", "/api/v1/history?id=" + "x" * 4_100).status == 414
    assert open_site.raw(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000).startswith(b"HTTP/1.1 400 ")
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(3_000))
    many = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + many + b"\r\n"
    assert open_site.raw(many)[:13] in {b"HTTP/1.1 400 ", b"HTTP/1.1 431 "}
    session = open_site.session()
    head = f"cookie: {session['cookie']}\r\nx-csrf-token: {session['x-csrf-token']}\r\n".encode()
    head = b"POST /api/v1/start HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" + head
    declared = head + b"content-length: 1000000\r\n\r\n"
    assert open_site.raw(declared).startswith(b"HTTP/1.1 413 ")
    chunked = head + b"transfer-encoding: chunked\r\n\r\n" + (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 3
    assert open_site.raw(chunked).startswith(b"HTTP/1.1 413 ")
    assert open_site.raw(head + b"content-length: -5\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert open_site.site.backend.did == []


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e%2f%2e%2e%2fconfig/schema.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..%5capp.py",
        "/static/style.css%00.py",
        "/static/",
        "/static/.",
        "/../../etc/passwd",
    ],
)
def test_path_traversal(open_site: Served, path: str) -> None:
    """No path leads out of the directory of static files."""
    reply = open_site.ask("GET", path)
    assert 400 <= reply.status < 500, reply
    assert b"import" not in reply.body
    assert b"root:" not in reply.body


@pytest.mark.parametrize(
    "run",
    [
        "99999",
        "-1",
        "9" * 30,
        "1e3",
        "0x1",
        "1.0",
        "null",
        "1%00",
        "%F0%9F%98%80",
        "1;drop",
        "1'--",
        "",
        "1&run=2",
    ],
)
@pytest.mark.parametrize("form", ["/api/v1/logs?run={run}", "/runs/{run}", "/api/v1/logs/stream?run={run}"])
def test_forged_run_ids(open_site: Served, run: str, form: str) -> None:
    """A run that there is not is a 4xx, whatever its number looks like."""
    assert 400 <= open_site.ask("GET", form.format(run=run)).status < 500


def test_refusals_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Refusals are logged in one line without the query, and not without end."""
    with serving() as served, caplog.at_level(logging.INFO, "duly.web"):
        served.ask("GET", "/nope%0d%0aFORGED/\x7f?token=secret".replace("\x7f", "%1b"))
        for _ in range(100):
            served.ask("GET", "/nope")
    lines = [record.getMessage() for record in caplog.records if record.name == "duly.web"]
    assert lines[0] == r"refused: 404 GET /nope\r\nFORGED/\x1b from 127.0.0.1"
    assert not any("secret" in line for line in lines)
    assert len(lines) == 61


def test_nonsense_is_logged_sparingly(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that are no request, and requests for a web socket, do not fill the log."""
    head = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n"
    upgrade = head + b"Connection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    with serving() as served, caplog.at_level(logging.INFO):
        for _ in range(100):
            served.raw(b"nonsense\r\n\r\n")
        assert served.raw(upgrade).startswith(b"HTTP/1.1 200 ")
    lines = [record.getMessage() for record in caplog.records if record.name == "duly.web.http"]
    assert set(lines) == {"Invalid HTTP request received."}
    assert len(lines) <= 120  # in two minutes, if one has just begun
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_closing_cuts_off_what_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    """A request that is still being answered when the server closes is cut off after a moment, in silence."""
    site = FakeSite()
    site.backend.hold = asyncio.Event()
    with serving(site=site) as served:
        session = served.session()
        head = "".join(f"{key}: {value}\r\n" for key, value in session.items())
        sent = f"POST /api/v1/start HTTP/1.1\r\nhost: localhost\r\n{head}content-length: 16\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
            connection.sendall(sent + BACKUP)
            served.ask("GET", "/api/v1/status")
            asyncio.run_coroutine_threadsafe(served.server.close(), served.loop).result(60)
            with suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        assert served.on_loop(lambda: len(served.server._state.tasks)) == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_slow_clients_are_let_go() -> None:
    """Anyone who sends a head or a body drop by drop is cut off, and others are served meanwhile."""
    with serving(settings(limits=QUICK)) as served:
        assert served.raw(b"GET / HTTP/1.1\r\nHost: x\r\n") == b""
        assert served.raw(b"") == b""
        session = served.session()
        head = (
            "POST /api/v1/start HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"cookie: {session['cookie']}\r\nx-csrf-token: {session['x-csrf-token']}\r\n"
            "content-length: 100\r\n\r\n{"
        )
        assert served.raw(head.encode()).startswith(b"HTTP/1.1 408 ")
        assert served.site.backend.did == []
        waiting = [socket.create_connection(("127.0.0.1", served.port), timeout=60) for _ in range(50)]
        for each in waiting:
            each.sendall(b"GET / HT")
        assert served.ask("GET", "/api/v1/status").status == 200
        for each in waiting:
            assert each.recv(100) == b""
            each.close()
        assert served.on_loop(lambda: len(served.server._state.connections)) == 0


def test_drops_do_not_prolong_the_patience() -> None:
    """A client that sends a byte now and then has no more time than one that sends nothing."""
    with serving(settings(limits=QUICK)) as served:
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as slow:
            slow.settimeout(0.05)
            sent = 0
            while sent < 200:
                try:
                    slow.sendall(b"x")
                    sent += 1
                    if slow.recv(10) == b"":
                        break
                except TimeoutError:
                    continue
                except (ConnectionResetError, BrokenPipeError):
                    break
        assert sent < 50


def test_too_many_connections() -> None:
    """Beyond the limit connections are closed at once, and those that are answered go on."""
    with serving(settings(limits=WebLimits(connections=5))) as served:
        held = [socket.create_connection(("127.0.0.1", served.port), timeout=60) for _ in range(5)]
        for each in held:
            each.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert each.recv(15) == b"HTTP/1.1 200 OK"
        assert served.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
        for each in held:
            each.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: loc",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\na",
        b"GET /healthz/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_the_quiet_shut_nobody_out(said: bytes) -> None:
    """A client that holds all connections and says nothing, or not all, makes room for one that asks."""
    with serving(settings(operator_token=OPERATOR, limits=WebLimits(connections=5))) as served:
        held = [socket.create_connection(("127.0.0.1", served.port), timeout=60) for _ in range(5)]
        for each in held:
            each.sendall(said)
        for _ in range(3):
            probe = served.raw(b"GET /healthz/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert probe.startswith(b"HTTP/1.1 200 OK")
        for each in held:
            each.close()


def test_length_told_in_two_ways(open_site: Served) -> None:
    """A body whose length a proxy could read differently is refused, and nothing after it is a request."""
    smuggled = b"GET /healthz/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    seen = open_site.raw(
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\n" + smuggled
    )
    assert seen.startswith(b"HTTP/1.1 400 ")
    assert seen.count(b"HTTP/1.1 ") == 1


# --- secrets ---


def test_secrets_stay_inside(caplog: pytest.LogCaptureFixture) -> None:
    """Values of the environment of services are in no page, answer, event or log; nor are tokens."""
    secret = "s3cr3t-of-the-environment"
    services = (*CONFIG.services, Service("vault", ("true",), type="oneshot", env={"PASSWORD": secret}))
    site = FakeSite(replace(CONFIG, services=services))
    digest = views.definition(services[-1])["env"]["PASSWORD"]
    seen = b""
    with caplog.at_level(logging.DEBUG), serving(GUARDED, site) as served:
        paths = [
            *get_routes(site),
            "/services/vault",
            "/api/v1/definitions",
            "/api/v1/start",
            "/api/v1/logs?id=vault",
        ]
        for path in paths:
            if not path.endswith(("/events", "/stream")):
                reply = served.ask("GET", path, bearer(OPERATOR))
                seen += reply.body + str(reply.headers).encode()
        seen += served.ask(*START, {**JSON, **bearer(OPERATOR)}, b'{"id": "vault"}').body
        seen += served.ask("GET", "/api/v1/status", bearer(OPERATOR + "x")).body
        served.ask("GET", f"/login?token={OPERATOR}")
    log = "\n".join(record.getMessage() for record in caplog.records)
    assert b"PASSWORD" in seen
    for hidden in (secret, digest, OPERATOR, VIEWER):
        assert hidden.encode() not in seen
        assert hidden not in log


async def test_events_tell_what_is_listed_and_no_more() -> None:
    """Of an event its known fields are told, in one line, cut off; no output, no environment, no message."""
    live = Live("boot")
    fields = {
        "service": "a\nb" + "x" * 500,
        "output": "secret",
        "env": {"A": "secret"},
        "error": "secret",
        "runId": 7,
    }
    live.listener(Event("ServiceRunEnded", logging.INFO, datetime(2026, 1, 1, tzinfo=UTC), fields))
    live.listener(Event("PollStarted", logging.DEBUG, datetime(2026, 1, 1, tzinfo=UTC), fields))
    stream = live.stream("boot-0")
    assert b"event: hello" in await anext(stream)
    event_id, data = (await anext(stream)).removesuffix(b"\n\n").split(b"\n")
    await stream.aclose()
    body = data.removeprefix(b"data: ")
    assert event_id == b"id: boot-1"
    assert b"secret" not in body
    assert json.loads(body)["runId"] == 7
    assert len(body) < 400


def test_output_is_not_in_lists() -> None:
    """Lists of runs hold no output, so a page of a thousand runs stays small."""
    site = FakeSite()
    big = RunRow(id=9, service="web", reason="manual", started_us=us("11:00"), output="x" * 100_000)
    with serving(site=site) as served:
        asyncio.run_coroutine_threadsafe(site.backend.history.put([big], []), served.loop).result(60)
        assert len(served.ask("GET", "/api/v1/history?limit=1000").body) < 5_000
