"""The security of the dashboard, row by row: what is asked of a real server, and what it answers."""

import asyncio
import hmac
import json
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from duly.config.schema import Config, Dashboard, Service
from duly.daemon import views
from duly.daemon.operations import OPERATIONS
from duly.events import Event
from duly.store.history import RunRow
from duly.web import security
from duly.web.app import create_app
from duly.web.live import Live
from duly.web.server import WebServer
from duly.web.settings import Limits, WebRefusedError, WebSettings, settings_from
from tests.daemons import CONFIG, us
from tests.web_serving import (
    GUARDED,
    JSON,
    OPERATOR,
    QUICK,
    VIEWER,
    FakeSite,
    Reply,
    Served,
    cookie_of,
    csrf_of,
    serving,
    settings,
)

START = ("POST", "/api/v1/start")
BACKUP = b'{"id": "backup"}'
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def open_site() -> Iterator[Served]:
    """A server of a loopback address, without tokens."""
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """A server with a token for operators and one for viewers."""
    with serving(replace(GUARDED, limits=Limits(failures=1_000))) as served:
        yield served


@pytest.fixture(autouse=True)
def forgetful(request: pytest.FixtureRequest) -> None:
    """Begin each test with nothing done."""
    for name in {"open_site", "guarded"} & set(request.fixturenames):
        request.getfixturevalue(name).site.backend.did.clear()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


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
        told = guarded.ask("GET", "/healthz/ready", {"host": "10.1.2.3:8787"})
        assert (told.status, told.body) == (503, b"not ready\n")
        assert guarded.ask("GET", "/healthz/live", {"host": "10.1.2.3"}).status == 200
        told = guarded.ask("GET", "/healthz/ready", bearer(VIEWER))
        assert (told.status, told.body) == (503, b"the store cannot be written: disk full\n")
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


def test_expired_session() -> None:
    """The session token of a page that was open for too long is refused, and says what to do."""
    now_s = [1_000.0]
    site = FakeSite()
    with serving(site=site, app=create_app(site, settings(), now_s=lambda: now_s[0])) as served:
        session = served.session()
        now_s[0] += 12 * 3600 - 2
        assert served.ask(*START, session, BACKUP).status == 200
        now_s[0] += 3
        reply = served.ask(*START, session, BACKUP)
        assert (reply.status, reply.code) == (403, "session_over")
        assert "load the page anew" in reply.body.decode()


def test_a_page_in_use_keeps_its_session() -> None:
    """Loading any page renews the session, and the forms of pages that are still open go on working."""
    now_s = [1_000.0]
    site = FakeSite()
    with serving(site=site, app=create_app(site, settings(), now_s=lambda: now_s[0])) as served:
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


# --- roles and tokens ---


ROLES = [
    ("GET", "/api/v1/status", {}, 401),
    ("GET", "/api/v1/events", {}, 401),
    ("GET", "/metrics", {}, 401),
    ("GET", "/", {}, 303),
    ("GET", "/services/backup?x=1", {}, 303),
    ("GET", "/api/v1/status", bearer("wrong-token-of-some-length"), 401),
    ("GET", "/api/v1/status", bearer(OPERATOR[:-1]), 401),
    ("GET", "/api/v1/status", bearer(OPERATOR + "x"), 401),
    ("GET", "/api/v1/status", bearer(""), 401),
    ("GET", "/api/v1/status", {"authorization": f"Basic {OPERATOR}"}, 401),
    ("GET", "/api/v1/status", {"authorization": OPERATOR}, 401),
    ("GET", "/api/v1/status", bearer(VIEWER), 200),
    ("GET", "/api/v1/status", bearer(OPERATOR), 200),
    ("GET", "/", bearer("wrong-token-of-some-length"), 303),
    ("POST", "/api/v1/start", {}, 401),
    ("POST", "/api/v1/start", bearer("wrong-token-of-some-length"), 401),
    ("POST", "/api/v1/start", bearer(VIEWER), 403),
    ("POST", "/api/v1/start", bearer(OPERATOR), 200),
    ("POST", "/api/v1/start", {**bearer(OPERATOR), "origin": "http://evil.example"}, 403),
    ("POST", "/api/v1/start", {**bearer(OPERATOR), "sec-fetch-site": "cross-site"}, 403),
    ("POST", "/api/v1/start", {**bearer(OPERATOR), "host": "evil.example"}, 403),
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), ROLES)
def test_roles(guarded: Served, method: str, path: str, headers: dict[str, str], status: int) -> None:
    """Without a token one sees nothing, with that of a viewer everything, and operators change things."""
    body = BACKUP if method == "POST" else None
    reply = guarded.ask(method, path, {**JSON, **headers}, body)
    assert reply.status == status, reply
    assert bool(guarded.site.backend.did) == (method == "POST" and status == 200)
    if status == 303:
        assert str(reply.headers["location"]).startswith("/login?next=%2F")


@pytest.mark.parametrize("name", [name for name, each in OPERATIONS.items() if not each.is_read])
def test_viewers_change_nothing(guarded: Served, name: str) -> None:
    """No operation that changes something is done for a viewer."""
    assert guarded.ask("POST", f"/api/v1/{name}", {**JSON, **bearer(VIEWER)}, BACKUP).status == 403
    assert guarded.site.backend.did == []


def test_only_a_viewer_token() -> None:
    """With a token for viewers alone there are no operators, rather than everybody being one."""
    with serving(settings(viewer_token=VIEWER)) as served:
        assert served.ask("GET", "/api/v1/status").status == 401
        assert served.ask("GET", "/api/v1/status", bearer(VIEWER)).status == 200
        assert served.ask(*START, {**JSON, **bearer("")}, BACKUP).status == 401


def log_in(served: Served, token: str, **more: str) -> Reply:
    page = served.ask("GET", "/login")
    fields = {"token": token, "csrf": csrf_of(page), "next": "/services", **more}
    body = "&".join(f"{key}={value}" for key, value in fields.items()).encode()
    return served.ask("POST", "/login", {**FORM, "cookie": cookie_of(page)}, body)


def test_login(guarded: Served) -> None:
    """Whoever brings a token to the login page gets a session of that role, and may leave it again."""
    reply = log_in(guarded, OPERATOR)
    assert (reply.status, reply.headers["location"]) == (303, "/services")
    cookie = {"cookie": cookie_of(reply)}
    csrf = json.loads(guarded.ask("GET", "/api/v1/session", cookie).body)["csrf"]
    session = {**cookie, **JSON, "x-csrf-token": csrf}
    assert guarded.ask(*START, session, BACKUP).status == 200
    assert guarded.ask("POST", "/logout", session).status == 303
    assert guarded.ask(*START, session, BACKUP).status == 401


def test_login_of_a_viewer(guarded: Served) -> None:
    """The session of a viewer looks, and changes nothing."""
    cookie = {"cookie": cookie_of(log_in(guarded, VIEWER))}
    assert guarded.ask("GET", "/", cookie).status == 200
    csrf = json.loads(guarded.ask("GET", "/api/v1/session", cookie).body)["csrf"]
    assert guarded.ask(*START, {**cookie, **JSON, "x-csrf-token": csrf}, BACKUP).status == 403


def test_login_needs_a_form_of_ours(guarded: Served) -> None:
    """Nobody is logged in by a form of another site, or under a session that was planted."""
    assert guarded.ask("POST", "/login", FORM, f"token={OPERATOR}".encode()).status == 403
    page = guarded.ask("GET", "/login")
    forged = f"token={OPERATOR}&csrf={'0' * 64}".encode()
    assert guarded.ask("POST", "/login", {**FORM, "cookie": cookie_of(page)}, forged).status == 403
    reply = log_in(guarded, OPERATOR)
    assert cookie_of(reply) != cookie_of(page)


def test_wrong_token_at_login(guarded: Served) -> None:
    """A wrong token leads back to the form, without a session."""
    reply = log_in(guarded, "wrong-token-of-some-length")
    assert reply.headers["location"] == "/login?failed=1&next=%2Fservices"
    assert reply.headers["set-cookie"] is None


@pytest.mark.parametrize(
    "going", ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\x", "x", "/%0d%0aX:1"]
)
def test_login_leads_nowhere_else(guarded: Served, going: str) -> None:
    """After a login one stays here, whatever a link to the login page says."""
    location = str(log_in(guarded, OPERATOR, next=going).headers["location"])
    assert location == "/"


def test_guessing_is_slow() -> None:
    """After some wrong tokens an address has to wait, with the right one as well."""
    with serving(replace(GUARDED, limits=Limits(failures=3))) as served:
        wrong, right = bearer("wrong-token-of-some-length"), bearer(OPERATOR)
        statuses = [served.ask("GET", "/api/v1/status", wrong).status for _ in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        assert served.ask("GET", "/api/v1/status", right).status == 429


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is compared whole with each of ours, by the function that takes the same time for all."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def noted(given: Any, token: Any) -> bool:
        compared.append(token)
        return compare(given, token)

    monkeypatch.setattr("duly.web.security.hmac.compare_digest", noted)
    for token in ("", "a", OPERATOR, VIEWER, OPERATOR[:-1] + "x", "é" * 40):
        compared.clear()
        expected = {OPERATOR: "operator", VIEWER: "viewer"}.get(token)
        assert security.role_of_token(token, GUARDED) == expected
        assert compared == [OPERATOR.encode(), VIEWER.encode()]


def test_no_token_is_no_token() -> None:
    """Where there is no token of a role, an empty one is not it."""
    assert security.role_of_token("", settings()) is None


# --- where it listens, and with what ---


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:8787", "duly.example:80"])
def test_other_addresses_need_a_token(listen: str) -> None:
    """It refuses to start where others can reach it without a token; that of viewers is not enough."""
    for given in (WebSettings(listen=listen), WebSettings(listen=listen, viewer_token=VIEWER)):
        with pytest.raises(WebRefusedError, match="there is no token"):
            WebServer(FakeSite(), given)


def test_other_address_with_a_token() -> None:
    """With a token it listens there, answers by any literal address, and by no foreign name."""
    with serving(replace(GUARDED, listen="0.0.0.0:0")) as served:
        statuses = [
            served.ask("GET", "/api/v1/status", {"host": host, **bearer(VIEWER)}).status
            for host in ("192.0.2.7:8787", "localhost", "evil.example")
        ]
        assert statuses == [200, 200, 403]
        assert served.ask("GET", "/api/v1/status").status == 401


def config_with(**dashboard: Any) -> Config:
    return replace(CONFIG, dashboard=Dashboard(**dashboard))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o620, 0o601])
def test_token_file_that_others_may_read(tmp_path: Path, mode: int) -> None:
    """A token file with wide permissions is refused, with the remedy."""
    path = tmp_path / "token"
    path.write_text(OPERATOR)
    path.chmod(mode)
    with pytest.raises(WebRefusedError, match="chmod 600"):
        settings_from(config_with(token_file=str(path)), {})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", "holds no token"),
        (b" \n", "holds no token"),
        (b"short\n", "could be guessed"),
        (b"two words of some length\n", "not plain ASCII in one line"),
        (b"x" * 2_000, "too long"),
        (b"\xff" * 20, "not plain ASCII"),
    ],
)
def test_unusable_token_file(tmp_path: Path, written: bytes, said: str) -> None:
    """A token that could be guessed or sent only in part is refused, and not repeated."""
    path = tmp_path / "token"
    path.write_bytes(written)
    path.chmod(0o600)
    with pytest.raises(WebRefusedError, match=said) as caught:
        settings_from(config_with(token_file=str(path)), {})
    assert "words" not in caught.value.message


def test_token_file_that_is_none(tmp_path: Path) -> None:
    """A token file that is missing, or not a file, is refused at once."""
    with pytest.raises(WebRefusedError, match="cannot be read"):
        settings_from(config_with(token_file=str(tmp_path / "missing")), {})
    with pytest.raises(WebRefusedError, match="is not a file"):
        settings_from(config_with(token_file=str(tmp_path)), {})
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(WebRefusedError, match="is not a file"):
        settings_from(config_with(token_file=str(tmp_path / "pipe")), {})


def test_tokens_from_file_and_environment(tmp_path: Path) -> None:
    """Tokens come from their files or from the environment, where they do not stay for services to see."""
    path = tmp_path / "token"
    path.write_text(f"{OPERATOR}\n")
    path.chmod(0o600)
    environ = {
        "DULY_VIEWER_TOKEN": VIEWER,
        "DULY_OPERATOR_TOKEN": "another-token-of-some-length",
        "PATH": "/bin",
    }
    found = settings_from(config_with(token_file=str(path)), environ)
    assert (found.operator_token, found.viewer_token) == (OPERATOR, VIEWER)
    assert environ == {"PATH": "/bin"}
    assert OPERATOR not in repr(found)


def test_one_token_for_both() -> None:
    """The same token for both roles is a mistake that would make every viewer an operator."""
    environ = {"DULY_VIEWER_TOKEN": OPERATOR, "DULY_OPERATOR_TOKEN": OPERATOR}
    with pytest.raises(WebRefusedError, match="same token"):
        settings_from(config_with(), environ)


def test_unix_socket(tmp_path: Path) -> None:
    """A unix socket can be opened by its owner alone, replaces a dead one, and is gone in the end."""
    path = tmp_path / "web.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def main() -> None:
        server = WebServer(FakeSite(), WebSettings(listen=f"unix:{path}"))
        await server.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        with pytest.raises(WebRefusedError, match="another program listens"):
            await WebServer(FakeSite(), WebSettings(listen=f"unix:{path}")).start()
        assert path.exists()
        await server.close()

    asyncio.run(main())
    assert not path.exists()


def test_taken_place(tmp_path: Path) -> None:
    """A port that is taken, and a path where something else lies, are refused in a sentence."""
    (tmp_path / "file").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(WebRefusedError, match="another program listens at"):
            asyncio.run(WebServer(FakeSite(), WebSettings(listen=listen)).start())
    with pytest.raises(WebRefusedError, match="is not a socket"):
        asyncio.run(WebServer(FakeSite(), WebSettings(listen=f"unix:{tmp_path}/file")).start())
    assert (tmp_path / "file").read_text() == "mine"


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

    site.backend.standing = fails  # type: ignore[assignment, method-assign]
    with serving(site=site) as served, caplog.at_level(logging.ERROR, "duly.web"):
        reply = served.ask("GET", "/api/v1/status")
    assert (reply.status, reply.code) == (500, "failed")
    assert b"secret" not in reply.body
    assert b"Traceback" not in reply.body
    assert reply.headers["content-security-policy"] == security.CSP
    (record,) = [each for each in caplog.records if each.name == "duly.web" and each.levelno == logging.ERROR]
    assert "\n" not in record.getMessage()
    assert record.exc_info is None


# --- GET changes nothing ---


def get_routes(site: FakeSite) -> list[str]:
    """A path for every route that answers GET."""
    app: Any = create_app(site, settings())
    paths = []
    for route in app._app.app.routes:
        if "GET" in (getattr(route, "methods", None) or {"GET"}):
            path = route.path
            for name, value in (("run_id", "4"), ("run", "4"), ("kind", "services"), ("action", "start")):
                path = path.replace(f"{{{name}}}", value).replace(f"{{{name}:int}}", value)
            while "{" in path:
                before, _, rest = path.partition("{")
                path = before + "backup" + rest.partition("}")[2]
            paths.append(path)
    return paths


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


def test_read_only_site() -> None:
    """A site that is only looked at refuses every action, of operators too."""
    site = FakeSite()
    site.is_read_only = True
    with serving(site=site) as served:
        reply = served.ask(*START, served.session(), BACKUP)
        assert (reply.status, reply.code) == (403, "read_only")
        assert served.ask("GET", "/api/v1/status").status == 200
    assert site.backend.did == []


def test_actions_are_audited(open_site: Served) -> None:
    """Who did something, and from where, is noted."""
    open_site.ask(*START, open_site.session(), BACKUP)
    assert ("noted", "start", "backup", "web") in open_site.site.backend.did


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
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
            connection.sendall(sent + BACKUP)
            served.ask("GET", "/api/v1/status")
            asyncio.run_coroutine_threadsafe(served.server.close(), served.loop).result(10)
            with suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        assert served.on_loop(lambda: len(served.server._state.tasks)) == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_slow_clients_are_let_go() -> None:
    """Whoever sends a head or a body drop by drop is cut off, and others are served meanwhile."""
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
        waiting = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(50)]
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
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as slow:
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
    with serving(settings(limits=Limits(connections=5))) as served:
        held = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(5)]
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
    """Whoever holds all connections and says nothing, or not all of it, makes room for somebody who asks."""
    with serving(settings(operator_token=OPERATOR, limits=Limits(connections=5))) as served:
        held = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(5)]
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
    told = open_site.raw(
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\n" + smuggled
    )
    assert told.startswith(b"HTTP/1.1 400 ")
    assert told.count(b"HTTP/1.1 ") == 1


# --- secrets ---


def test_secrets_stay_inside(caplog: pytest.LogCaptureFixture) -> None:
    """Values of the environment of services are in no page, answer, event or log; nor are tokens."""
    secret = "s3cr3t-of-the-environment"
    services = (*CONFIG.services, Service("vault", ("true",), type="oneshot", env={"PASSWORD": secret}))
    site = FakeSite(replace(CONFIG, services=services))
    digest = views._digest("PASSWORD", secret)
    told = b""
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
                told += reply.body + str(reply.headers).encode()
        told += served.ask(*START, {**JSON, **bearer(OPERATOR)}, b'{"id": "vault"}').body
        told += served.ask("GET", "/api/v1/status", bearer(OPERATOR + "x")).body
        served.ask("GET", f"/login?token={OPERATOR}")
    log = "\n".join(record.getMessage() for record in caplog.records)
    assert b"PASSWORD" in told
    for hidden in (secret, digest, OPERATOR, VIEWER):
        assert hidden.encode() not in told
        assert hidden not in log


def test_events_tell_what_is_listed_and_no_more() -> None:
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
    _, told = live.since("boot-0")
    assert told is not None
    (only,) = told
    assert b"secret" not in only.body
    assert b"\n" not in only.body
    assert json.loads(only.body)["runId"] == 7
    assert len(only.body) < 400


def test_output_is_not_in_lists() -> None:
    """Lists of runs hold no output, so a page of a thousand runs stays small."""
    site = FakeSite()
    big = RunRow(id=9, service="web", reason="manual", started_us=us("11:00"), output="x" * 100_000)
    with serving(site=site) as served:
        asyncio.run_coroutine_threadsafe(site.backend.history.put([big], []), served.loop).result(10)
        assert len(served.ask("GET", "/api/v1/history?limit=1000").body) < 5_000
