"""The security of the dashboard, row by row: whom a real server believes, and what it lets change."""

import gzip
from datetime import UTC
from pathlib import Path

import pytest

from duly.clock import HostClock
from duly.daemon.operations import OPERATIONS
from duly.web.app import create_app
from duly.web.task_store import TaskStore
from tests.worlds.web_serving import (
    BACKUP,
    FORM,
    START,
    VIEWER,
    FakeSite,
    Served,
    bearer,
    cookie_of,
    get_routes,
    serving,
    settings,
)

# --- the host: against DNS rebinding ---


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:{port}", 200),
        ("localhost", 200),
        ("LOCALHOST.", 200),
        ("[::1]:{port}", 200),
        ("127.0.0.2", 200),
        ("evil.example", 403),
        ("evil.example:{port}", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("10.0.0.1", 403),
        ("evil.example@localhost", 403),
        ("localhost/evil", 403),
        ("localhost:port", 403),
        ("[::1", 403),
        ("", 400),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/status", "/", "/static/style.css", "/login"])
def test_hosts(open_site: Served, host: str, status: int, path: str) -> None:
    """Only names of this machine are answered; the page of an attacker, rebound to us, gets nothing."""
    given = host.format(port=open_site.port)
    reply = open_site.ask("GET", path, {"host": given})
    assert reply.status in ({status} if status != 200 else {200, 303, 404}), reply


def test_host_twice(open_site: Served) -> None:
    """A request for two hosts is for none."""
    sent = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert b" 400 " in open_site.raw(sent).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "name", ["origin", "sec-fetch-site", "authorization", "content-type", "x-csrf-token"]
)
def test_headers_twice(open_site: Served, name: str) -> None:
    """A request that says who it is in two ways is refused: one might be checked, and the other used."""
    head = {"host": "localhost", "connection": "close", "content-length": "16", **open_site.session()}
    lines = [f"{key}: {value}" for key, value in head.items() if key != name] + [f"{name}: a", f"{name}: b"]
    sent = "POST /api/v1/start HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    answer = open_site.raw(sent.encode() + BACKUP)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert f"the header {name} came more than once".encode() in answer


def test_allowed_hosts() -> None:
    """A name that the configuration allows is answered, and no other."""
    with serving(settings(allowed_hosts=("duly.example",))) as served:
        assert served.ask("GET", "/api/v1/status", {"host": "duly.example"}).status == 200
        assert served.ask("GET", "/api/v1/status", {"host": "x.duly.example"}).status == 403


def test_probes_by_any_name(guarded: Served) -> None:
    """Probes may come by any name and without a token, and are then told no reason."""
    guarded.site.reason = "the store cannot be written: disk full"
    try:
        seen = guarded.ask("GET", "/healthz/ready", {"host": "10.1.2.3:8787"})
        assert (seen.status, seen.body) == (503, b"not ready\n")
        assert guarded.ask("GET", "/healthz/live", {"host": "10.1.2.3"}).status == 200
        seen = guarded.ask("GET", "/healthz/ready", bearer(VIEWER))
        assert (seen.status, seen.body) == (503, b"the store cannot be written: disk full\n")
    finally:
        guarded.site.reason = None


# --- changes: only by POST, from our own pages, with a session token ---


ROWS: list[tuple[str, str, dict[str, str | None], bytes | None, int]] = [
    (
        "a page of ours",
        "POST",
        {"origin": "http://127.0.0.1:{port}", "sec-fetch-site": "same-origin"},
        BACKUP,
        200,
    ),
    ("a program with a session", "POST", {}, BACKUP, 200),
    ("no session token", "POST", {"x-csrf-token": None}, BACKUP, 403),
    ("an empty session token", "POST", {"x-csrf-token": ""}, BACKUP, 403),
    ("a forged session token", "POST", {"x-csrf-token": "0" * 64}, BACKUP, 403),
    ("a session token that is no text", "POST", {"x-csrf-token": "\xff\xfe"}, BACKUP, 403),
    ("no cookie", "POST", {"cookie": None}, BACKUP, 403),
    (
        "a token where there are none",
        "POST",
        {"x-csrf-token": None, "authorization": "Bearer x"},
        BACKUP,
        403,
    ),
    ("a forged cookie", "POST", {"cookie": "{name}=operator.99999999999.x.0"}, BACKUP, 403),
    ("a cookie that is nonsense", "POST", {"cookie": "{name}=\xff..."}, BACKUP, 403),
    ("another site", "POST", {"sec-fetch-site": "cross-site"}, BACKUP, 403),
    ("another port of this host", "POST", {"sec-fetch-site": "same-site"}, BACKUP, 403),
    ("a bookmark", "POST", {"sec-fetch-site": "none"}, BACKUP, 403),
    ("another origin", "POST", {"origin": "http://evil.example"}, BACKUP, 403),
    ("another port", "POST", {"origin": "http://127.0.0.1:1"}, BACKUP, 403),
    ("another name of this host", "POST", {"origin": "http://localhost:{port}"}, BACKUP, 403),
    ("a sandboxed page", "POST", {"origin": "null"}, BACKUP, 403),
    ("a file", "POST", {"origin": "file://"}, BACKUP, 403),
    ("an origin with a path", "POST", {"origin": "http://127.0.0.1:{port}/x"}, BACKUP, 403),
    ("an origin that is nonsense", "POST", {"origin": "http://[::1"}, BACKUP, 403),
    ("a rebound host", "POST", {"host": "evil.example:{port}"}, BACKUP, 403),
    ("plain text", "POST", {"content-type": "text/plain"}, BACKUP, 415),
    ("multipart", "POST", {"content-type": "multipart/form-data; boundary=x"}, BACKUP, 415),
    ("a form for the API", "POST", {"content-type": FORM["content-type"]}, b"id=backup", 400),
    ("no JSON", "POST", {}, b"{", 400),
    ("a list", "POST", {}, b"[]", 400),
    ("half a character", "POST", {}, b'{"id": "\\ud800"}', 400),
    ("deep JSON", "POST", {}, b'{"id":' + b"[" * 30_000, 400),
    ("the wrong type", "POST", {}, b'{"id": 7}', 400),
    ("something unknown", "POST", {}, b'{"id": "backup", "x": 1}', 400),
    ("too much", "POST", {}, b'{"id": "' + b"x" * 70_000 + b'"}', 413),
    ("GET", "GET", {}, None, 405),
    ("PUT", "PUT", {}, BACKUP, 405),
    ("DELETE", "DELETE", {}, None, 405),
    ("PATCH", "PATCH", {}, BACKUP, 405),
    ("OPTIONS", "OPTIONS", {}, None, 405),
    ("TRACE", "TRACE", {}, None, 405),
    ("a method of one's own", "START", {}, None, 405),
]


@pytest.mark.parametrize(
    ("method", "headers", "body", "status"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_changes(
    open_site: Served, method: str, headers: dict[str, str | None], body: bytes | None, status: int
) -> None:
    """A service is started by a POST of our own pages with their session token, and by nothing else."""
    session = open_site.session()
    name = session["cookie"].partition("=")[0]
    given: dict[str, str | None] = {**session, **headers}
    filled = {
        key: value.replace("{port}", str(open_site.port)).replace("{name}", name)
        for key, value in given.items()
        if value is not None
    }
    reply = open_site.ask(method, "/api/v1/start", filled, body)
    assert reply.status == status, reply
    assert bool(open_site.site.backend.did) == (status == 200)


@pytest.mark.parametrize(
    ("path", "accepted", "is_compressed"),
    [
        ("/", "gzip, deflate, br", True),
        ("/", "br;q=1.0, gzip;q=0.8, *;q=0.1", True),
        ("/api/v1/openapi.json", "gzip", True),
        ("/", "gzip;q=0", False),
        ("/", "identity", False),
        ("/api/v1/session", "gzip", False),
    ],
)
def test_compression(path: str, accepted: str, *, is_compressed: bool) -> None:
    """What is large is compressed for clients that take gzip, and is the same as what others get."""
    with serving() as served:
        plain = served.ask("GET", path)
        reply = served.ask("GET", path, {"accept-encoding": accepted})
        assert (reply.headers["content-encoding"] == "gzip") == is_compressed
        if is_compressed:
            assert int(str(reply.headers["content-length"])) == len(reply.body) < len(plain.body) / 2
            assert reply.headers["vary"] == "accept-encoding"
            shown = gzip.decompress(reply.body)
            assert (shown[:15], shown[-100:]) == (plain.body[:15], plain.body[-100:])
        assert served.ask("GET", "/runs/4", {"accept-encoding": "gzip"}).status == 200


def test_expired_session() -> None:
    """The session token of a page that was open for too long is refused, and says what to do."""
    now_s = [1_000.0]
    site = FakeSite()
    with serving(site=site, app=create_app(site, settings(), wall_s=lambda: now_s[0])) as served:
        session = served.session()
        now_s[0] += 12 * 3600 - 2
        assert served.ask(*START, session, BACKUP).status == 200
        now_s[0] += 3
        reply = served.ask(*START, session, BACKUP)
        assert (reply.status, reply.code) == (403, "session_over")
        assert "load the page again" in reply.body.decode()


def test_a_page_in_use_keeps_its_session() -> None:
    """Loading any page renews the session, and the forms of pages that are still open go on working."""
    now_s = [1_000.0]
    site = FakeSite()
    with serving(site=site, app=create_app(site, settings(), wall_s=lambda: now_s[0])) as served:
        session = served.session()
        now_s[0] += 7 * 3600
        renewed = cookie_of(served.ask("GET", "/api/v1/session", {"cookie": session["cookie"]}))
        now_s[0] += 7 * 3600
        assert served.ask(*START, session, BACKUP).status == 403
        assert served.ask(*START, {**session, "cookie": renewed}, BACKUP).status == 200


def test_sessions_end_with_the_process() -> None:
    """The session of one process is worth nothing to the next."""
    with serving() as first:
        session = first.session()
    with serving() as second:
        assert second.ask(*START, session, BACKUP).status == 403


def test_session_of_another(open_site: Served) -> None:
    """The session token of one browser does not go with the cookie of another."""
    mine, other = open_site.session(), open_site.session()
    assert open_site.ask(*START, {**mine, "cookie": other["cookie"]}, BACKUP).status == 403


def test_cookie_flags(open_site: Served) -> None:
    """No script reads the cookie, and no other site's request carries it."""
    cookie = str(open_site.ask("GET", "/").headers["set-cookie"])
    assert "; HttpOnly" in cookie
    assert "; SameSite=Strict" in cookie
    assert "Domain" not in cookie


@pytest.mark.parametrize("path", ["/static/style.css", "/api/v1/status", "/healthz/live", "/metrics"])
def test_no_cookie_without_a_form(open_site: Served, path: str) -> None:
    """What is no page sets no cookie, which would end the session of pages that are open."""
    assert open_site.ask("GET", path).headers["set-cookie"] is None


def test_link_from_another_site(open_site: Served) -> None:
    """A link from another site leads to a page that asks again as ours, so that the cookie comes along."""
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    reply = open_site.ask("GET", "/", link)
    assert reply.status == 200
    assert b'http-equiv="refresh"' in reply.body
    assert reply.headers["set-cookie"] is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
    ],
)
def test_reading_from_another_site(open_site: Served, headers: dict[str, str], status: int) -> None:
    """Other sites may link to us; they may not fetch, embed or frame anything."""
    assert open_site.ask("GET", "/api/v1/status", headers).status == status


# --- GET changes nothing ---


def test_get_changes_nothing() -> None:
    """Every route is asked with GET and HEAD, by somebody who may do everything: nothing is done."""
    site = FakeSite()
    paths = [*get_routes(site), *(f"/api/v1/{name}?id=backup" for name in OPERATIONS)]
    assert len(paths) > 20
    with serving(site=site) as served:
        session = {key: value for key, value in served.session().items() if key != "content-type"}
        for path in paths:
            assert served.ask("HEAD", path, session).status < 500
            if not path.endswith(("/events", "/stream")):
                assert served.ask("GET", path, session).status < 500, path
    assert site.backend.did == []


def test_read_only_site(tmp_path: Path) -> None:
    """A site that is only looked at refuses every action, of operators too."""
    site = FakeSite()
    site.tasks = TaskStore(tmp_path / "state.db", site.live, zone=UTC, clock=HostClock())
    with serving(site=site) as served:
        reply = served.ask(*START, served.session(), BACKUP)
        assert (reply.status, reply.code) == (403, "read_only")
        assert served.ask("GET", "/api/v1/status").status == 200
    assert site.backend.did == []


def test_actions_are_audited(open_site: Served) -> None:
    """Who did something, and from where, is noted."""
    open_site.ask(*START, open_site.session(), BACKUP)
    assert ("noted", "start", "backup", "web") in open_site.site.backend.did
