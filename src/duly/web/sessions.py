"""Sessions: who a browser is, in a cookie that is signed and not stored, and the token of its forms.

The key is made when the process starts, so nothing outlives it. The token of a session (`csrf`) is derived
from the cookie with that key: who has the cookie alone cannot make it, and a foreign page has neither.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from duly.web.security import Role

LIFE_S = 12 * 3600.0
_MOST_ENDED = 4_096
_ROLES: Mapping[str, Role | None] = {"operator": "operator", "viewer": "viewer", "nobody": None}


class Session(NamedTuple):
    """What a cookie says."""

    role: Role | None
    nonce: str
    expires_s: int


class Sessions:
    """Makes and reads cookies. *now_s* is a clock that nobody sets."""

    def __init__(self, key: bytes, now_s: Callable[[], float], *, life_s: float = LIFE_S) -> None:
        self._key = key
        self._now_s = now_s
        self._life_s = life_s
        self._ended: dict[str, int] = {}

    def begun(self, role: Role | None) -> Session:
        """A new session."""
        return Session(role, secrets.token_urlsafe(16), self._expiry())

    def renewed(self, session: Session) -> Session:
        """The session with its whole life before it; its token stays, so that open pages go on working."""
        return session._replace(expires_s=self._expiry())

    def is_aging(self, session: Session) -> bool:
        """Whether half of its life is over."""
        return session.expires_s - self._now_s() < self._life_s / 2

    def end(self, session: Session) -> None:
        """Heed it no more."""
        now_s = self._now_s()
        self._ended = {nonce: until for nonce, until in self._ended.items() if until > now_s}
        while len(self._ended) >= _MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[session.nonce] = session.expires_s + int(self._life_s)

    def value(self, session: Session) -> str:
        """The session as a cookie."""
        body = f"{session.role or 'nobody'}.{session.expires_s}.{session.nonce}"
        return f"{body}.{self._mac('session', body)}"

    def session_in(self, value: str) -> Session | None:
        """The session of a cookie; None if it is not ours, or over."""
        body, _, mac = value.rpartition(".")
        if not hmac.compare_digest(mac.encode("utf-8", "replace"), self._mac("session", body).encode()):
            return None
        role, expires, nonce = body.split(".", 2)
        session = Session(_ROLES[role], nonce, int(expires))
        is_over = session.expires_s <= self._now_s() or session.nonce in self._ended
        return None if is_over else session

    def csrf(self, session: Session) -> str:
        """What every form of a session holds."""
        return self._mac("csrf", f"{session.role or 'nobody'}.{session.nonce}")

    def is_csrf(self, session: Session, given: str) -> bool:
        """Whether a form is of this session."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.csrf(session).encode())

    def _expiry(self) -> int:
        return int(self._now_s() + self._life_s)

    def _mac(self, use: str, text: str) -> str:
        message = f"{use}:{text}".encode("utf-8", "replace")
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()


def cookie_in(header: str, name: str) -> str | None:
    """The cookie of that name in a Cookie header; the first, if there are several."""
    for part in header.split(";"):
        key, equals, value = part.strip().partition("=")
        if equals and key == name:
            return value
    return None
