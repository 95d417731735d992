"""The security of the dashboard: roles, tokens, and where it listens."""

import asyncio
import hmac
import json
import os
import socket
import stat
from contextlib import AbstractContextManager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from duly.config.schema import Config, Dashboard
from duly.daemon.operations import OPERATIONS
from duly.web import security
from duly.web.app import create_app
from duly.web.server import WebServer
from duly.web.settings import WebLimits, WebRefusedError, WebSettings, settings_from
from tests.worlds.daemons import CONFIG
from tests.worlds.web_serving import (
    BACKUP,
    FORM,
    GUARDED,
    JSON,
    OPERATOR,
    START,
    VIEWER,
    FakeSite,
    Reply,
    Served,
    bearer,
    cookie_of,
    csrf_of,
    serving,
    settings,
)

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
    """Anyone who brings a token to the login page gets a session of that role, and may leave it again."""
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
    with serving(replace(GUARDED, limits=WebLimits(failures=3))) as served:
        wrong, right = bearer("wrong-token-of-some-length"), bearer(OPERATOR)
        statuses = [served.ask("GET", "/api/v1/status", wrong).status for _ in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        assert served.ask("GET", "/api/v1/status", right).status == 429


FORWARDED = "x-forwarded-for"


def serving_at_noon(given: WebSettings) -> AbstractContextManager[Served]:
    """A dashboard whose clock stands still: wrong tokens are counted by the minute."""
    site = FakeSite()
    return serving(given, site, create_app(site, given, now_s=lambda: 43_200.0))


@pytest.mark.parametrize(
    ("proxies", "forwarded", "statuses"),
    [
        ((), "198.51.100.7", (429, 429)),
        (("127.0.0.0/8",), "198.51.100.7", (429, 200)),
        (("127.0.0.0/8", "10.0.0.0/8"), "203.0.113.9, 198.51.100.7, 10.0.0.3", (429, 200)),
        (("127.0.0.0/8",), "nobody", (429, 200)),
    ],
    ids=["no proxy", "a proxy", "two proxies", "a proxy that talks nonsense"],
)
def test_guessing_behind_a_proxy(proxies: tuple[str, ...], forwarded: str, statuses: tuple[int, int]) -> None:
    """Wrong tokens lock out the address that the proxy names, and nobody else; others are not believed."""
    networks = tuple(map(ip_network, proxies))
    given = replace(GUARDED, trusted_proxies=networks, limits=WebLimits(failures=3))
    with serving_at_noon(given) as served:
        guesser, other = {FORWARDED: forwarded}, {FORWARDED: "198.51.100.8"}
        for _ in range(3):
            served.ask("GET", "/api/v1/status", {**bearer("wrong-token-of-some-length"), **guesser})
        asked = [
            served.ask("GET", "/api/v1/status", {**bearer(OPERATOR), **each}) for each in (guesser, other)
        ]
        assert tuple(reply.status for reply in asked) == statuses


def test_a_guesser_cannot_choose_an_address() -> None:
    """What a client writes into the header itself stands left of what the proxy has seen."""
    given = replace(GUARDED, trusted_proxies=(ip_network("127.0.0.1"),), limits=WebLimits(failures=3))
    with serving_at_noon(given) as served:
        statuses = [
            served.ask(
                "GET",
                "/api/v1/status",
                {**bearer("wrong-token-of-some-length"), FORWARDED: f"192.0.2.{number}, 198.51.100.7"},
            ).status
            for number in range(5)
        ]
        assert statuses == [401, 401, 401, 429, 429]


# --- sessions over a restart ---


def test_sessions_survive_a_restart(tmp_path: Path) -> None:
    """Who is logged in stays so over a restart; who has logged out stays that, too."""
    given = replace(GUARDED, sessions_path=tmp_path / "state.db.sessions")
    with serving(given) as served:
        stays, leaves = cookie_of(log_in(served, OPERATOR)), cookie_of(log_in(served, OPERATOR))
        csrf = json.loads(served.ask("GET", "/api/v1/session", {"cookie": leaves}).body)["csrf"]
        assert served.ask("POST", "/logout", {"cookie": leaves, "x-csrf-token": csrf}).status == 303
    with serving(given) as served:
        statuses = [served.ask("GET", "/api/v1/status", {"cookie": each}).status for each in (stays, leaves)]
        assert statuses == [200, 401]


@pytest.mark.parametrize("changed", ["operator_token", "viewer_token"])
def test_a_new_token_ends_sessions(tmp_path: Path, changed: str) -> None:
    """Whoever changes a token wants nobody to come in by the one before."""
    given = replace(GUARDED, sessions_path=tmp_path / "state.db.sessions")
    with serving(given) as served:
        cookie = {"cookie": cookie_of(log_in(served, OPERATOR))}
    more: dict[str, Any] = {changed: "another-token-of-some-length"}
    with serving(replace(given, **more)) as served:
        assert served.ask("GET", "/api/v1/status", cookie).status == 401


def test_a_damaged_file_ends_sessions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If nobody knows who has logged out, all sessions end, and the log says why."""
    given = replace(GUARDED, sessions_path=tmp_path / "state.db.sessions")
    with serving(given) as served:
        cookie = {"cookie": cookie_of(log_in(served, OPERATOR))}
    (tmp_path / "state.db.sessions").write_text("{")
    with serving(given) as served:
        assert served.ask("GET", "/api/v1/status", cookie).status == 401
    assert "all sessions end" in caplog.text


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
