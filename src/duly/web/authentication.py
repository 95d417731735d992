"""Who comes in: sessions in cookies, tokens, and the POSTs that log in and out. The form is one of `pages`.

A session is a cookie that is signed and not stored. The key is made when the process starts, so nothing
outlives it. The token of a session (`csrf`) is derived from the cookie with that key: who has the cookie
alone cannot make it, and a foreign page has neither.

Fields of the form at /login: token, csrf, next. A wrong token leads back to /login?failed=1.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from duly.web import security
from duly.web.security import (
    LOGIN,
    HttpRefusal,
    IncomingRequest,
    Role,
    json_response,
    local_path,
    refusal_response,
    visitor,
)
from duly.web.settings import WebSettings

_LIFE_S = 12 * 3600.0
_MOST_ENDED = 4_096
_MOST_ADDRESSES = 1_024
_ROLES: Mapping[str, Role | None] = {"operator": "operator", "viewer": "viewer", "nobody": None}


class Counts:
    """How often something happened within a minute, by a key; a bounded number of keys."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._counts: dict[str, tuple[int, int]] = {}

    def more(self, key: str) -> int:
        """Count one more, and say how many there are now."""
        minute = int(self._now_s() // 60)
        number = self.count(key) + 1
        # Put last again, so that the first is the one that was counted longest ago.
        self._counts.pop(key, None)
        while len(self._counts) >= _MOST_ADDRESSES:
            del self._counts[next(iter(self._counts))]
        self._counts[key] = (minute, number)
        return number

    def count(self, key: str) -> int:
        """How many there were in this minute."""
        minute, number = self._counts.get(key, (0, 0))
        return number if minute == int(self._now_s() // 60) else 0


class Session(NamedTuple):
    role: Role | None
    nonce: str
    expires_s: int


class Authenticator:
    """Who comes in: makes and reads cookies, and counts wrong tokens. *now_s* is a clock that nobody sets."""

    def __init__(self, settings: WebSettings, cookie: str, now_s: Callable[[], float]) -> None:
        self.settings = settings
        self._cookie = cookie
        self._key = secrets.token_bytes(32)
        self._now_s = now_s
        self._failures = Counts(now_s)
        self._ended: dict[str, int] = {}
        """By nonce the sessions that were logged out of, and until when to remember that."""

    # --- sessions ---

    def new_session(self, role: Role | None) -> Session:
        return Session(role, secrets.token_urlsafe(16), self._expiry())

    def renewed_session(self, session: Session | None, role: Role | None) -> Session:
        """The session to go on with: a new one if there is none, and one with its whole life if half is over.

        Its token stays, so that open pages go on working.
        """
        if session is None:
            return self.new_session(role)
        is_aging = session.expires_s - self._now_s() < _LIFE_S / 2
        return session._replace(expires_s=self._expiry()) if is_aging else session

    def end(self, session: Session) -> None:
        """Log out: its cookie is worth nothing from now on."""
        now_s = self._now_s()
        self._ended = {nonce: until for nonce, until in self._ended.items() if until > now_s}
        # The oldest is forgotten, and its cookie good again: better than to grow without bound.
        while len(self._ended) >= _MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        # Longer than this cookie says: a renewed one of the same session lives on.
        self._ended[session.nonce] = session.expires_s + int(_LIFE_S)

    def session_of(self, incoming: IncomingRequest) -> Session | None:
        """The session of a request; None if its cookie is not ours, or over."""
        body, _, mac = (_cookie_in(incoming.headers.get("cookie", ""), self._cookie) or "").rpartition(".")
        # Nothing of a cookie is read before its code is right.
        if not _is_equal(mac, self._mac("session", body)):
            return None
        role, expires, nonce = body.split(".", 2)
        session = Session(_ROLES[role], nonce, int(expires))
        is_over = session.expires_s <= self._now_s() or session.nonce in self._ended
        return None if is_over else session

    def set_cookie(self, session: Session) -> str:
        body = f"{session.role or 'nobody'}.{session.expires_s}.{session.nonce}"
        value = f"{body}.{self._mac('session', body)}"
        return f"{self._cookie}={value}; Path=/; HttpOnly; SameSite=Strict"

    def forget_cookie(self) -> str:
        return f"{self._cookie}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"

    def csrf(self, session: Session) -> str:
        return self._mac("csrf", f"{session.role or 'nobody'}.{session.nonce}")

    def is_csrf(self, session: Session, given: str) -> bool:
        return _is_equal(given, self.csrf(session))

    def _expiry(self) -> int:
        return int(self._now_s() + _LIFE_S)

    def _mac(self, use: str, text: str) -> str:
        message = f"{use}:{text}".encode("utf-8", "replace")
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()

    # --- tokens ---

    def role_of_token(self, token: str, peer: str) -> Role | HttpRefusal:
        """Whose token it is, or why nobody is let in."""
        # Before the token is looked at: one who guesses must not learn which is right.
        if self._failures.count(peer) >= self.settings.limits.failures:
            return HttpRefusal(429, "too_many", "too many wrong tokens; wait a minute")
        role = security.role_of_token(token, self.settings)
        if role is not None:
            return role
        self._failures.more(peer)
        return HttpRefusal(401, "login_needed", "this token is not one of ours")


def _is_equal(given: str, mac: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), mac.encode())


def _cookie_in(header: str, name: str) -> str | None:
    """The cookie of that name in a Cookie header; the first, if there are several."""
    parts = (part.strip().partition("=") for part in header.split(";"))
    return next((value for key, equals, value in parts if equals and key == name), None)


def form_in(body: bytes) -> dict[str, str]:
    """The fields of a form; of one that comes more than once, nothing."""
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="replace")
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items() if len(values) == 1}


def peer_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "the unix socket"


def login_routes(authenticator: Authenticator) -> list[BaseRoute]:

    async def log_in(request: Request) -> Response:
        form = form_in(await request.body())
        going = local_path(form.get("next", "/"))
        role = authenticator.role_of_token(form.get("token", ""), peer_of(request.scope))
        if isinstance(role, HttpRefusal):
            if role.status == 429:
                return refusal_response(request.state.incoming, role)
            return RedirectResponse(f"{LOGIN}?failed=1&next={quote(going, safe='')}", 303)
        _end(request)
        # A session of its own: one that somebody planted in the browser before is worth nothing afterwards.
        return RedirectResponse(
            going, 303, {"set-cookie": authenticator.set_cookie(authenticator.new_session(role))}
        )

    async def log_out(request: Request) -> Response:
        _end(request)
        return RedirectResponse(LOGIN, 303, {"set-cookie": authenticator.forget_cookie()})

    async def session(request: Request) -> Response:
        who = visitor(request)
        return json_response(b'{"role":"%s","csrf":"%s"}' % ((who.role or "").encode(), who.csrf.encode()))

    def _end(request: Request) -> None:
        before: Session | None = request.state.session
        if before is not None:
            authenticator.end(before)

    return [
        Route(LOGIN, log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
        Route("/api/v1/session", session, methods=["GET"]),
    ]
