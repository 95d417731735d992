"""The guard: everything that comes and goes passes it (ASGI). It applies `security` and adds the headers.

It reads the whole body of a POST before anybody acts on it, so a form is checked before its handler sees it.
Responses are passed on as they come, so streams stay streams. What goes wrong inside is told to the log, and
outside only that it did. Refusals are logged, some a minute: whoever asks nonsense must not fill the disk.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duly.events import described, one_line
from duly.web import security
from duly.web.answers import refused
from duly.web.security import CSRF_FIELD, CSRF_HEADER, LOGIN, Asked, Refusal, Role, Visitor
from duly.web.sessions import Session, Sessions, cookie_in
from duly.web.settings import WebSettings

_logger = logging.getLogger("duly.web")

_LOGGED_A_MINUTE = 60
_MOST_ADDRESSES = 1_024
_AGAIN = b'<!doctype html><title>duly</title><meta http-equiv="refresh" content="0"><p>One moment.'


class VanishedError(Exception):
    """Whoever asked has gone, or took too long to ask."""


class Counts:
    """How often something happened within a minute, by a key; a bounded number of keys."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._counts: dict[str, tuple[int, int]] = {}

    def more(self, key: str) -> int:
        """Count one more, and say how many there are now."""
        minute = int(self._now_s() // 60)
        number = self.count(key) + 1
        self._counts.pop(key, None)
        while len(self._counts) >= _MOST_ADDRESSES:
            del self._counts[next(iter(self._counts))]
        self._counts[key] = (minute, number)
        return number

    def count(self, key: str) -> int:
        """How many there were in this minute."""
        minute, number = self._counts.get(key, (0, 0))
        return number if minute == int(self._now_s() // 60) else 0


class Door:
    """Who comes in: cookies, tokens, and how often somebody tried a wrong one."""

    def __init__(self, settings: WebSettings, sessions: Sessions, cookie: str, failures: Counts) -> None:
        self.settings = settings
        self.sessions = sessions
        self._cookie = cookie
        self._failures = failures

    def session_of(self, asked: Asked) -> Session | None:
        """The session of a request."""
        value = cookie_in(asked.headers.get("cookie", ""), self._cookie)
        return None if value is None else self.sessions.session_in(value)

    def set_cookie(self, session: Session) -> str:
        """The header that makes a browser remember a session."""
        return f"{self._cookie}={self.sessions.value(session)}; Path=/; HttpOnly; SameSite=Strict"

    def forget_cookie(self) -> str:
        """The header that makes a browser forget it."""
        return f"{self._cookie}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"

    def role_of_token(self, token: str, peer: str) -> Role | Refusal:
        """Whose token it is, or why nobody is let in."""
        if self._failures.count(peer) >= self.settings.limits.failures:
            return Refusal(429, "too_many", "too many wrong tokens; wait a minute")
        role = security.role_of_token(token, self.settings)
        if role is not None:
            return role
        self._failures.more(peer)
        return Refusal(401, "login_needed", "this token is not one of ours")


class Guard:
    """Lets requests through to *app*, or does not."""

    def __init__(self, app: ASGIApp, door: Door, now_s: Callable[[], float]) -> None:
        self._app = app
        self._door = door
        self._settings = door.settings
        self._logged = Counts(now_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return
        url_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        asked = security.asked_of(scope["method"], scope["path"], url_bytes, scope["headers"])
        outgoing = _Outgoing(send)
        try:
            await self._serve(asked, scope, receive, outgoing)
        except asyncio.CancelledError:
            return  # the server closes, and with it this task; its connection is gone already
        except VanishedError:
            late = Refusal(408, "too_slow", "the request took too long")
            await refused(asked, late, {"connection": "close"})(scope, receive, outgoing)
        except Exception as error:
            # Without the traceback: what it quotes may be secret.
            said = f"a page failed: {asked.method} {asked.path}: {described(error)}"
            _logger.error("%s", one_line(said))  # noqa: TRY400
            if outgoing.is_begun:
                raise ConnectionAbortedError from None  # the server closes the connection: it is not whole
            failed = Refusal(500, "failed", "this did not work; the log says why")
            await refused(asked, failed)(scope, receive, outgoing)
        finally:
            self._log(asked, scope, outgoing.status)

    async def _serve(self, asked: Asked, scope: Scope, receive: Receive, outgoing: "_Outgoing") -> None:
        refusal = security.refusal_of(asked, self._settings)
        if refusal is not None:
            await _refuse(asked, refusal, scope, receive, outgoing)
            return
        peer = peer_of(scope)
        session = self._door.session_of(asked)
        if session is None and security.is_lost_link(asked):
            await Response(_AGAIN, media_type="text/html")(scope, receive, outgoing)
            return
        role = self._role(asked, session, peer)
        refusal = role if isinstance(role, Refusal) else security.access_refusal(asked, role)
        if refusal is None and asked.method == "POST":
            body = await self._body(receive)
            refusal = body if isinstance(body, Refusal) else self._csrf_refusal(asked, session, role, body)
            if not isinstance(body, Refusal):
                receive = _replayed(body, receive)
        if refusal is not None or isinstance(role, Refusal):
            assert refusal is not None
            await _refuse(asked, refusal, scope, receive, outgoing)
            return
        if asked.is_page:
            session = self._kept(session, role, outgoing)
        csrf = "" if session is None else self._door.sessions.csrf(session)
        who = f"web {role or 'nobody'} {peer}"
        state: dict[str, Any] = scope.setdefault("state", {})
        state["visitor"] = Visitor(role, csrf, who, security.has_tokens(self._settings))
        state["session"] = session
        state["asked"] = asked
        scope["app"] = self._app  # else starlette's router answers by itself what it does not find
        await self._app(scope, receive, outgoing)

    def _role(self, asked: Asked, session: Session | None, peer: str) -> Role | Refusal | None:
        if asked.path.startswith("/healthz/") and security.host_refusal(asked, self._settings) is not None:
            return None  # a probe may come by any name, and is told no more than it has to know
        if not security.has_tokens(self._settings):
            return "operator"
        token = security.bearer(asked)
        if token is not None:
            return self._door.role_of_token(token, peer)
        return None if session is None else session.role

    def _kept(self, session: Session | None, role: Role | None, outgoing: "_Outgoing") -> Session:
        sessions = self._door.sessions
        if session is None:
            session = sessions.begun(role)
        elif sessions.is_aging(session):
            session = sessions.renewed(session)
        else:
            return session
        outgoing.cookie = self._door.set_cookie(session)
        return session

    def _csrf_refusal(
        self, asked: Asked, session: Session | None, role: Role | Refusal | None, body: bytes
    ) -> Refusal | None:
        is_by_token = security.has_tokens(self._settings) and security.bearer(asked) is not None
        if is_by_token and role in {"operator", "viewer"}:
            return None
        if session is None:
            return Refusal(403, "session_over", "there is no session, or it is over; load the page anew")
        if not self._door.sessions.is_csrf(session, csrf_in(asked, body)):
            return Refusal(403, "session_token", "the session token is missing or wrong; load the page anew")
        return None

    async def _body(self, receive: Receive) -> bytes | Refusal:
        most = self._settings.limits.body_bytes
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.limits.request_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise VanishedError
                    body += message.get("body", b"")
                    if len(body) > most:
                        return Refusal(413, "too_large", f"a body may have {most} bytes")
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise VanishedError from None

    def _log(self, asked: Asked, scope: Scope, status: int) -> None:
        if status < 400:
            return
        number = self._logged.more("")
        if number <= _LOGGED_A_MINUTE:
            # Without the query: it may hold what is nobody's business.
            said = one_line(f"{status} {asked.method} {asked.path}")
            _logger.info("refused: %s from %s", said, peer_of(scope))
        elif number == _LOGGED_A_MINUTE + 1:
            _logger.warning("%d requests were refused in a minute; no more is said", _LOGGED_A_MINUTE)


def csrf_in(asked: Asked, body: bytes) -> str:
    """The session token that came with a POST; empty for none."""
    header = asked.headers.get(CSRF_HEADER)
    if header is not None:
        return header
    if not security.is_form(asked):
        return ""
    return form_in(body).get(CSRF_FIELD, "")


def form_in(body: bytes) -> dict[str, str]:
    """The fields of a form; of one that comes more than once, nothing."""
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="replace")
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items() if len(values) == 1}


def peer_of(scope: Scope) -> str:
    """Where a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else "the unix socket"


async def _refuse(asked: Asked, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    if refusal.status == 401 and not asked.is_api and asked.method != "POST":
        query = scope["query_string"].decode("latin-1")
        wanted = asked.path + (f"?{query}" if query else "")
        await RedirectResponse(f"{LOGIN}?next={quote(wanted, safe='')}", 303)(scope, receive, send)
        return
    headers = {}
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.status == 405:
        headers["allow"] = "GET, HEAD, POST"
    if refusal.status == 429:
        headers["retry-after"] = "60"
    if refusal.status in {400, 413}:
        headers["connection"] = "close"  # what follows may be no request of its own
    await refused(asked, refusal, headers)(scope, receive, send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    is_told = False

    async def again() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class _Outgoing:
    """The way out: every response gets the headers, and a cookie if there is one to set."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.cookie: str | None = None
        self.status = 0

    @property
    def is_begun(self) -> bool:
        """Whether the head of the response is out."""
        return self.status != 0

    async def __call__(self, message: Message) -> None:
        """Send on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            for name, value in security.HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
            if self.cookie is not None:
                headers.append("set-cookie", self.cookie)
            message = {**message, "headers": headers.raw}
        await self._send(message)
