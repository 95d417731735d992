"""The guard: everything that comes and goes passes it (ASGI). It applies `security` and adds the headers.

It reads the whole body of a POST before anybody acts on it, so a form is checked before its handler sees it.
Responses are passed on as they come, so streams stay streams; what comes in one piece is compressed for
clients that take gzip. Our session token may be compressed beside what others chose, because no foreign page
can have a browser ask for it with our cookie (SameSite=Strict). The reason of a failure goes to the log; the
response says only that there was one. At most 60 refusals a minute are logged, so that nobody can fill the
disk with bad requests.
"""

import asyncio
import gzip
import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duly.events import described
from duly.formatting import one_line
from duly.web import security
from duly.web.authentication import Authenticator, Counts, Session, form_in, peer_of
from duly.web.security import (
    CSRF_FIELD,
    CSRF_HEADER,
    LOGIN,
    HttpRefusal,
    IncomingRequest,
    Role,
    Visitor,
    refusal_response,
)

_logger = logging.getLogger("duly.web")

_LOGGED_A_MINUTE = 60
_COMPRESSED = frozenset(
    (
        *("text/html", "text/css", "text/javascript", "text/plain", "image/svg+xml", "application/json"),
        "application/openmetrics-text",
    )
)
_LEAST_BYTES = 1_000
_LEVEL = 5
_ADDRESS = re.compile(
    rb'(\s(?:href|action|src|data-(?:root|events|address|output|href|good|warn|bad))=")(?=/(?!/))'
)
_AGAIN = b'<!doctype html><title>duly</title><meta http-equiv="refresh" content="0"><p>One moment.'


class VanishedError(Exception):
    """The client disconnected, or took too long to send its request."""


class Guard:
    def __init__(self, app: ASGIApp, authenticator: Authenticator, now_s: Callable[[], float]) -> None:
        self._app = app
        self._authenticator = authenticator
        self._settings = authenticator.settings
        self._logged = Counts(now_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return
        root, scope = unmounted(scope)
        url_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        incoming = security.incoming_request(scope["method"], scope["path"], url_bytes, scope["headers"])
        outgoing = _Outgoing(send, incoming, root)
        try:
            await self._serve(incoming, scope, receive, outgoing)
        except asyncio.CancelledError:
            return  # the server closes, and with it this task; its connection is gone already
        except VanishedError:
            late = HttpRefusal(408, "too_slow", "the request took too long")
            await refusal_response(incoming, late)(scope, receive, outgoing)
        except Exception as error:
            # Without the traceback: what it quotes may be secret.
            said = f"a page failed: {incoming.method} {incoming.path}: {described(error)}"
            _logger.error("%s", one_line(said))  # noqa: TRY400
            if outgoing.is_begun:
                raise ConnectionAbortedError from None  # the server closes the connection: it is not whole
            failed = HttpRefusal(500, "failed", "this did not work; the log says why")
            await refusal_response(incoming, failed)(scope, receive, outgoing)
        finally:
            self._log(incoming, scope, outgoing.status)

    async def _serve(
        self, incoming: IncomingRequest, scope: Scope, receive: Receive, outgoing: "_Outgoing"
    ) -> None:
        # The order matters. First what is refused to everybody, then who asks and may they, and only then
        # the body is read: a stranger cannot make us keep one. The session token comes last, because a form
        # has it in its body.
        refusal = security.refusal_of(incoming, self._settings)
        if refusal is not None:
            await _refuse(incoming, refusal, scope, receive, outgoing)
            return
        peer = peer_of(scope, self._settings)
        version = scope.get("http_version", "")
        refusal = security.peer_refusal(incoming, peer, version, self._settings)
        if refusal is not None:
            await _refuse(incoming, refusal, scope, receive, outgoing)
            return
        session = self._authenticator.session_of(incoming)
        if session is None and security.is_lost_link(incoming):
            await Response(_AGAIN, media_type="text/html")(scope, receive, outgoing)
            return
        role = self._role(incoming, session, peer)
        refusal = role if isinstance(role, HttpRefusal) else security.access_refusal(incoming, role)
        if refusal is None and incoming.method == "POST":
            body = await self._body(receive)
            refusal = (
                body if isinstance(body, HttpRefusal) else self._csrf_refusal(incoming, session, role, body)
            )
            if not isinstance(body, HttpRefusal):
                receive = _replay(body, receive)
        if refusal is not None or isinstance(role, HttpRefusal):
            assert refusal is not None
            await _refuse(incoming, refusal, scope, receive, outgoing)
            return
        if incoming.is_page:
            kept = self._authenticator.renewed_session(session, role)
            outgoing.cookie = None if kept is session else self._authenticator.set_cookie(kept)
            session = kept
        csrf = "" if session is None else self._authenticator.csrf(session)
        who = f"web {role or 'nobody'} {peer}"
        state: dict[str, Any] = scope.setdefault("state", {})
        state["visitor"] = Visitor(role, csrf, who, security.has_tokens(self._settings))
        state["session"] = session
        state["peer"] = peer
        state["incoming"] = incoming
        scope["app"] = self._app  # else starlette's router answers by itself what it does not find
        await self._app(scope, receive, outgoing)

    def _role(
        self, incoming: IncomingRequest, session: Session | None, peer: str
    ) -> Role | HttpRefusal | None:
        if (
            incoming.path.startswith("/healthz/")
            and security.host_refusal(incoming, self._settings) is not None
        ):
            return None  # a probe may come under any host name, as nobody: it gets one word
        if not security.has_tokens(self._settings):
            return "operator"
        token = security.bearer(incoming)
        if token is not None:
            return self._authenticator.role_of_token(token, peer)
        return None if session is None else session.role

    def _csrf_refusal(
        self, incoming: IncomingRequest, session: Session | None, role: Role | HttpRefusal | None, body: bytes
    ) -> HttpRefusal | None:
        is_by_token = security.has_tokens(self._settings) and security.bearer(incoming) is not None
        if is_by_token and role in {"operator", "viewer"}:
            return None
        if session is None:
            return HttpRefusal(403, "session_over", "there is no session, or it is over; load the page again")
        given = incoming.headers.get(CSRF_HEADER)
        if given is None:
            given = form_in(body).get(CSRF_FIELD, "") if security.is_form(incoming) else ""
        if not self._authenticator.is_csrf(session, given):
            return HttpRefusal(
                403, "session_token", "the session token is missing or wrong; load the page again"
            )
        return None

    async def _body(self, receive: Receive) -> bytes | HttpRefusal:
        most = self._settings.limits.body_bytes
        body = bytearray()
        try:
            # One limit for the whole body: a client may send a byte a second.
            async with asyncio.timeout(self._settings.limits.request_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise VanishedError
                    body += message.get("body", b"")
                    if len(body) > most:
                        return HttpRefusal(413, "too_large", f"a body may have {most} bytes")
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise VanishedError from None

    def _log(self, incoming: IncomingRequest, scope: Scope, status: int) -> None:
        if status < 400:
            return
        number = self._logged.more("")
        if number <= _LOGGED_A_MINUTE:
            # Without the query: it may hold what is nobody's business.
            said = one_line(f"{status} {incoming.method} {incoming.path}")
            _logger.info("refused: %s from %s", said, peer_of(scope, self._settings))
        elif number == _LOGGED_A_MINUTE + 1:
            _logger.warning("%d requests were refused in a minute; no more is said", _LOGGED_A_MINUTE)


async def _refuse(
    incoming: IncomingRequest, refusal: HttpRefusal, scope: Scope, receive: Receive, send: Send
) -> None:
    if refusal.status == 401 and not incoming.is_api and incoming.method != "POST":
        query = scope["query_string"].decode("latin-1")
        wanted = incoming.path + (f"?{query}" if query else "")
        await RedirectResponse(f"{LOGIN}?next={quote(wanted, safe='')}", 303)(scope, receive, send)
        return
    await refusal_response(incoming, refusal)(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return whole.pop() if whole else await receive()

    return again


def unmounted(scope: Scope) -> tuple[str, Scope]:
    """Under which path the site is mounted, and the request as it were without."""
    root = scope.get("root_path", "").rstrip("/")
    if not root:
        return "", scope
    return root, {**scope, "path": scope["path"].removeprefix(root) or "/", "root_path": ""}


def mounted(page: bytes, root: str) -> bytes:
    """A page with its addresses below *root*. Only a template writes such an attribute: text is escaped."""
    return _ADDRESS.sub(rb"\1" + quote(root).encode(), page)


class _Outgoing:
    """The way out: every response gets the headers, and a cookie if there is one to set."""

    def __init__(self, send: Send, incoming: IncomingRequest, root: str) -> None:
        self._send = send
        self._root = root
        self._takes_gzip = takes_gzip(incoming.headers.get("accept-encoding", ""))
        self._held: Message | None = None
        """The head of a response that may be compressed: its length is known when its body is there."""
        self._is_rooted = False
        self.cookie: str | None = None
        self.status = 0

    @property
    def is_begun(self) -> bool:
        return self.status != 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            for name, value in security.HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
            if self.cookie is not None:
                headers.append("set-cookie", self.cookie)
            if self._root and headers.get("location", "").startswith("/"):
                headers["location"] = quote(self._root) + headers["location"]
            message = {**message, "headers": headers.raw}
            kind = headers.get("content-type", "").partition(";")[0]
            self._is_rooted = bool(self._root) and kind == "text/html"
            if self._is_rooted or (self._takes_gzip and kind in _COMPRESSED):
                self._held = message
                return
        elif self._held is not None:
            head, self._held = self._held, None
            body = message.get("body", b"")
            if self._is_rooted:
                body = mounted(body, self._root)
                headers = MutableHeaders(raw=list(head["headers"]))
                headers["content-length"] = str(len(body))
                head, message = {**head, "headers": headers.raw}, {**message, "body": body}
            if self._takes_gzip and not message.get("more_body", False) and len(body) >= _LEAST_BYTES:
                headers = MutableHeaders(raw=list(head["headers"]))
                if "content-encoding" not in headers:
                    # In a thread: the page of a large plan takes tens of milliseconds.
                    body = await asyncio.to_thread(gzip.compress, body, _LEVEL, mtime=0)
                    headers["content-encoding"], headers["content-length"] = "gzip", str(len(body))
                    headers.add_vary_header("accept-encoding")
                    head, message = {**head, "headers": headers.raw}, {**message, "body": body}
            await self._send(head)
        await self._send(message)


def takes_gzip(accepted: str) -> bool:
    """Whether a client takes gzip, by its header Accept-Encoding."""
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        if name.strip() in {"gzip", "*"}:
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False
