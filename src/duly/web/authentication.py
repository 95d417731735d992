"""Who comes in: sessions in cookies, tokens, and the POSTs that log in and out. The form is one of `pages`.

A session is a cookie that is signed and not stored. Where there is a file for what was logged out of, the
key is made of the tokens: sessions outlive the process, and end when a token is changed. Elsewhere the key is
made when the process starts, and nothing outlives it. The token of a session (`csrf`) is derived from the
cookie with that key: who has the cookie alone cannot make it, and a foreign page has neither.

Fields of the form at /login: token, csrf, next. A wrong token leads back to /login?failed=1.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from duly.events import described
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

_logger = logging.getLogger("duly.web")

UNIX_PEER = "the unix socket"
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


class EndedSessions:
    """The sessions that were logged out of; in a file, if there is one, or a restart would revive them."""

    def __init__(self, path: Path | None, wall_s: Callable[[], float]) -> None:
        self._path = path
        self._wall_s = wall_s
        self._until: dict[str, int] = {}
        """By nonce until when to remember."""
        with suppress(FileNotFoundError):
            if path is not None:
                self._until = msgspec.json.decode(path.read_bytes(), type=dict[str, int])

    def __contains__(self, nonce: str) -> bool:
        return nonce in self._until

    def add(self, nonce: str, until_s: int) -> None:
        """Remember that a session is over. Raises OSError."""
        now_s = self._wall_s()
        self._until = {known: until for known, until in self._until.items() if until > now_s}
        # The oldest is forgotten, and its cookie good again: better than to grow without bound.
        while len(self._until) >= _MOST_ENDED:
            del self._until[next(iter(self._until))]
        self._until[nonce] = until_s
        if self._path is not None:
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_bytes(msgspec.json.encode(self._until))
            new.replace(self._path)


class Authenticator:
    """Who comes in: makes and reads cookies, and counts wrong tokens.

    *now_s* is a clock that nobody sets; cookies go by *wall_s*, which goes on over a restart.
    """

    def __init__(
        self,
        settings: WebSettings,
        cookie: str,
        now_s: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        self.settings = settings
        self._cookie = cookie
        self._wall_s = wall_s
        self._failures = Counts(now_s)
        path = settings.sessions_path if security.has_tokens(settings) else None
        try:
            self._ended = EndedSessions(path, wall_s)
        except (OSError, msgspec.DecodeError) as error:
            # Nobody knows any more who has logged out: then everybody has to log in again.
            _logger.warning("all sessions end: %s cannot be read: %s", path, described(error))
            path, self._ended = None, EndedSessions(None, wall_s)
        # An embedded site is served by all workers of its server, and each has to know the sessions.
        is_lasting = path is not None or (settings.is_embedded and security.has_tokens(settings))
        self._key = _lasting_key(settings) if is_lasting else secrets.token_bytes(32)

    # --- sessions ---

    def new_session(self, role: Role | None) -> Session:
        return Session(role, secrets.token_urlsafe(16), self._expiry())

    def renewed_session(self, session: Session | None, role: Role | None) -> Session:
        """The session to go on with: a new one if there is none, and one with its whole life if half is over.

        Its token stays, so that open pages go on working.
        """
        if session is None:
            return self.new_session(role)
        is_aging = session.expires_s - self._wall_s() < _LIFE_S / 2
        return session._replace(expires_s=self._expiry()) if is_aging else session

    def end(self, session: Session) -> None:
        """Log out: its cookie is worth nothing from now on. Raises OSError if that cannot be kept."""
        # Longer than this cookie says: a renewed one of the same session lives on.
        self._ended.add(session.nonce, session.expires_s + int(_LIFE_S))

    def session_of(self, incoming: IncomingRequest) -> Session | None:
        """The session of a request; None if its cookie is not ours, or over."""
        body, _, mac = (_cookie_in(incoming.headers.get("cookie", ""), self._cookie) or "").rpartition(".")
        # Nothing of a cookie is read before its code is right.
        if not _is_equal(mac, self._mac("session", body)):
            return None
        role, expires, nonce = body.split(".", 2)
        session = Session(_ROLES[role], nonce, int(expires))
        is_over = session.expires_s <= self._wall_s() or session.nonce in self._ended
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
        return int(self._wall_s() + _LIFE_S)

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


def _lasting_key(settings: WebSettings) -> bytes:
    """The key of cookies that outlive the process: who can make it has the tokens, and needs no cookie."""
    # Each token in a hash of its own: two pairs must not come to the same text.
    tokens = (settings.operator_token or "", settings.viewer_token or "")
    parts = [hashlib.sha256(token.encode()).digest() for token in tokens]
    return hashlib.sha256(b"duly sessions" + b"".join(parts)).digest()


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


def peer_of(scope: Scope, settings: WebSettings) -> str:
    """Who asks: the address at the other end, or if that is a proxy of ours, what the proxy says of it."""
    client = scope.get("client")
    peer = str(client[0]) if client else UNIX_PEER
    if not is_trusted_proxy(peer, settings):
        return peer  # whatever it says of others may be made up
    forwarded = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
    # From the right: each proxy appends what it sees, and what is left of a stranger is the stranger's.
    for hop in reversed(forwarded.decode("latin-1").split(",")):
        address = hop.strip()
        try:
            ip_address(address)
        except ValueError:
            return peer
        peer = address
        if not is_trusted_proxy(peer, settings):
            return peer
    return peer


def is_trusted_proxy(peer: str, settings: WebSettings) -> bool:
    if peer == UNIX_PEER:
        return settings.address.path is not None and bool(settings.trusted_proxies)
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    return any(address in network for network in settings.trusted_proxies)


def login_routes(authenticator: Authenticator) -> list[BaseRoute]:

    async def log_in(request: Request) -> Response:
        form = form_in(await request.body())
        going = local_path(form.get("next", "/"))
        role = authenticator.role_of_token(form.get("token", ""), request.state.peer)
        if isinstance(role, HttpRefusal):
            if role.status == 429:
                return refusal_response(request.state.incoming, role)
            return RedirectResponse(f"{LOGIN}?failed=1&next={quote(going, safe='')}", 303)
        await _end(request)
        # A session of its own: one that somebody planted in the browser before is worth nothing afterwards.
        return RedirectResponse(
            going, 303, {"set-cookie": authenticator.set_cookie(authenticator.new_session(role))}
        )

    async def log_out(request: Request) -> Response:
        await _end(request)
        return RedirectResponse(LOGIN, 303, {"set-cookie": authenticator.forget_cookie()})

    async def session(request: Request) -> Response:
        who = visitor(request)
        return json_response(b'{"role":"%s","csrf":"%s"}' % ((who.role or "").encode(), who.csrf.encode()))

    async def _end(request: Request) -> None:
        before: Session | None = request.state.session
        if before is not None:
            # In a thread: it may write a file.
            await asyncio.to_thread(authenticator.end, before)

    return [
        Route(LOGIN, log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
        Route("/api/v1/session", session, methods=["GET"]),
    ]
