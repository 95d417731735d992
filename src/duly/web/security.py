"""Who may do what over HTTP: pure decisions about one request. `guard` applies them to everything.

Nothing that changes something happens without all of these: POST, a page of our own as its origin, a host
that is ours (against DNS rebinding), the role of an operator, and a session token that only our own pages
know. A bearer token stands for the last, because no foreign page can send one. A page asks for
`visitor(request)`.
"""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from starlette.responses import Response

from duly.web.settings import WebSettings

Role = Literal["operator", "viewer"]

API = "/api/"
LOGIN = "/login"
CSRF_FIELD = "csrf"
"""The name of the hidden field of every form."""
CSRF_HEADER = "x-csrf-token"
"""The name of the header that scripts send instead."""

# A script or style in a page is never run: all come from files of the package.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self';"
    " connect-src 'self'; manifest-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: with that, browsers send "Origin: null" with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""On every response, whatever it is."""

_PUBLIC = frozenset({"/healthz/live", "/healthz/ready", "/favicon.ico", LOGIN})
_PROBES = "/healthz/"
_STATIC = "/static/"
_ONCE = frozenset(
    {"host", "origin", "sec-fetch-site", "authorization", "content-type", "content-length", CSRF_HEADER}
)
_FORWARDED = frozenset(
    {"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"}
)
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"


class Visitor(NamedTuple):
    """Who asks: what `request.state.visitor` holds."""

    role: Role | None
    """None: somebody who has yet to log in."""
    csrf: str
    """For the hidden field `csrf` of every form, and the header `X-CSRF-Token` of every POST of a script."""
    who: str
    """For the record of what operators did."""
    has_tokens: bool
    """Whether there are tokens at all, and so a reason to offer to log in or out."""

    @property
    def may_act(self) -> bool:
        return self.role == "operator"


def visitor(request: Any) -> Visitor:
    who: Visitor = request.state.visitor
    return who


class HttpRefusal(NamedTuple):
    """Why a request is not served: a status, a code for machines, a sentence for people."""

    status: int
    code: str
    message: str


_CROSS_SITE = HttpRefusal(403, "cross_site", "another site asked for this; open it here instead")


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request, as far as it matters here. Names of headers are in lower case."""

    method: str
    path: str
    url_bytes: int
    head_bytes: int
    headers: Mapping[str, str]
    repeated: frozenset[str] = frozenset()
    """Headers that came more than once."""

    @property
    def is_api(self) -> bool:
        """Whether a program asks."""
        return self.path.startswith(API) or self.path == "/metrics"

    @property
    def is_page(self) -> bool:
        """Whether it is a page: something that has forms, and so needs a session."""
        is_other = self.path.startswith((API, _STATIC, _PROBES)) or self.path in {"/metrics", "/favicon.ico"}
        return (not is_other and self.method in {"GET", "HEAD"}) or self.path == "/api/v1/session"


def incoming_request(
    method: str, path: str, url_bytes: int, headers: Iterable[tuple[bytes, bytes]]
) -> IncomingRequest:
    found: dict[str, str] = {}
    repeated = set()
    head_bytes = 0
    for raw, value in headers:
        head_bytes += len(raw) + len(value)
        name = raw.decode("latin-1").lower()
        if name in found:
            repeated.add(name)
        found[name] = value.decode("latin-1")
    return IncomingRequest(method, path, url_bytes, head_bytes, found, frozenset(repeated))


def refusal_of(incoming: IncomingRequest, settings: WebSettings) -> HttpRefusal | None:
    """Why a request is not served to anybody; None if it depends on who asks."""
    return (
        _shape_refusal(incoming, settings)
        or (None if incoming.path.startswith(_PROBES) else host_refusal(incoming, settings))
        or _fetch_refusal(incoming)
        or (_post_refusal(incoming) if incoming.method == "POST" else None)
    )


def _shape_refusal(incoming: IncomingRequest, settings: WebSettings) -> HttpRefusal | None:
    limits = settings.limits
    if incoming.url_bytes > limits.url_bytes:
        return HttpRefusal(414, "bad_request", f"an address may have {limits.url_bytes} bytes")
    if incoming.head_bytes > limits.header_bytes:
        return HttpRefusal(431, "too_large", f"headers may have {limits.header_bytes} bytes")
    if incoming.method not in {"GET", "HEAD", "POST"}:
        return HttpRefusal(405, "method_not_allowed", "only GET, HEAD and POST are served here")
    if twice := _ONCE & incoming.repeated:
        return HttpRefusal(400, "bad_request", f"the header {min(twice)} came more than once")
    if "transfer-encoding" in incoming.headers and "content-length" in incoming.headers:
        # A proxy in front of us may have taken the other of the two, and see another request in what is left.
        return HttpRefusal(400, "bad_request", "the length of the body is given in two ways")
    length = incoming.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        return HttpRefusal(400, "bad_request", "the header content-length is not a number")
    # First how long the number is: `int` takes long for many digits, and refuses more than 4,300.
    if len(length) > 18 or int(length) > limits.body_bytes:
        return HttpRefusal(413, "too_large", f"a body may have {limits.body_bytes} bytes")
    return None


def host_refusal(incoming: IncomingRequest, settings: WebSettings) -> HttpRefusal | None:
    """Why a request for a host that is not ours is refused: its page may be one of an attacker's."""
    # Behind a token or another login, that page gets no further than a stranger does.
    if settings.is_embedded and (settings.is_open or has_tokens(settings)):
        return None
    given = incoming.headers.get("host")
    if not given:
        return HttpRefusal(400, "bad_request", "the header host is missing")
    name = host_name(given)
    if name is not None and is_our_name(name, settings):
        return None
    return HttpRefusal(
        403,
        "host_refused",
        "this host name is not one of ours; if it is meant to be, add it to allowed_hosts under [dashboard]",
    )


def peer_refusal(
    incoming: IncomingRequest, peer: str, http_version: str, settings: WebSettings
) -> HttpRefusal | None:
    """Why somebody on another machine is not let in: another program listens, and there is no login."""
    if not settings.is_embedded or settings.is_open or has_tokens(settings):
        return None
    # A proxy on this machine asks for strangers. Most proxies say so; some only speak an old HTTP.
    is_forwarded = bool(_FORWARDED & incoming.headers.keys()) or http_version == "1.0"
    if _is_loopback(peer) and not is_forwarded:
        return None
    remedy = "give App.dashboard a token; or is_open=True, if the program around it lets nobody in unasked"
    return HttpRefusal(403, "peer_refused", f"without a token this is for this machine alone; {remedy}")


def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer).is_loopback
    except ValueError:
        return False


def host_name(given: str) -> str | None:
    """The name in a Host header, without its port; None if it is none."""
    try:
        parts = urlsplit(f"//{given}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return None
    is_plain = parts.netloc == given and "@" not in given and parts.path == "" and given.isprintable()
    return name.removesuffix(".") if name and is_plain else None


def is_our_name(name: str, settings: WebSettings) -> bool:
    """Whether we answer to a name. A literal address cannot be rebound, so those of our network are ours."""
    if name == "localhost" or name in settings.allowed_hosts or f"[{name}]" in settings.allowed_hosts:
        return True
    try:
        literal = ip_address(name)
    except ValueError:
        return not settings.is_local and name == settings.address.host.lower()
    return literal.is_loopback or not settings.is_local


def _fetch_refusal(incoming: IncomingRequest) -> HttpRefusal | None:
    """Other sites may link to us, and nothing else: no images, scripts, streams or requests of theirs."""
    site = incoming.headers.get("sec-fetch-site", "none")
    is_link = incoming.method in {"GET", "HEAD"} and incoming.headers.get("sec-fetch-mode") == "navigate"
    if site in {"same-origin", "none"} or (is_link and incoming.headers.get("sec-fetch-dest") == "document"):
        return None
    return _CROSS_SITE


def _post_refusal(incoming: IncomingRequest) -> HttpRefusal | None:
    origin = incoming.headers.get("origin")
    is_ours = origin is None or is_same_origin(origin, incoming.headers.get("host", ""))
    if incoming.headers.get("sec-fetch-site", "same-origin") != "same-origin" or not is_ours:
        return _CROSS_SITE
    kind = content_type(incoming)
    if kind not in {_FORM, _JSON, ""}:
        return HttpRefusal(415, "bad_request", f"send {_JSON} or a form")
    return None


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the host that was asked; a proxy in front may speak https for us."""
    try:
        parts, ours = urlsplit(origin), urlsplit(f"//{host}")
        default = {"http": 80, "https": 443}.get(parts.scheme, 0)
        named, wanted = (parts.hostname, parts.port or default), (ours.hostname, ours.port or default)
    except ValueError:
        return False
    is_plain = not (parts.path or parts.query or parts.fragment or parts.username or parts.password)
    return is_plain and default != 0 and parts.hostname is not None and named == wanted


def content_type(incoming: IncomingRequest) -> str:
    return incoming.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_form(incoming: IncomingRequest) -> bool:
    return content_type(incoming) == _FORM


def is_lost_link(incoming: IncomingRequest) -> bool:
    """Whether another site's link led here: the browser keeps our cookie back until it is asked again."""
    return incoming.is_page and not incoming.is_api and incoming.headers.get("sec-fetch-site") == "cross-site"


# --- tokens ---


def bearer(incoming: IncomingRequest) -> str | None:
    """The token in an Authorization header; empty if there is such a header, and no token in it."""
    given = incoming.headers.get("authorization")
    if given is None:
        return None
    kind, _, token = given.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def has_tokens(settings: WebSettings) -> bool:
    return settings.operator_token is not None or settings.viewer_token is not None


def role_of_token(token: str, settings: WebSettings) -> Role | None:
    """Whose token it is. Takes the same time for every wrong one, and says nothing of how wrong it is."""
    given = token.encode("utf-8", "replace")
    # Both are compared in any case.
    is_operator = _is_equal(given, settings.operator_token)
    is_viewer = _is_equal(given, settings.viewer_token)
    return "operator" if is_operator else "viewer" if is_viewer else None


def _is_equal(given: bytes, token: str | None) -> bool:
    # Compared also where there is no token: the time that it takes says nothing of that.
    return hmac.compare_digest(given, (token or "").encode()) and token is not None


def access_refusal(incoming: IncomingRequest, role: Role | None) -> HttpRefusal | None:
    is_public = incoming.path in _PUBLIC or incoming.path.startswith(_STATIC)
    if incoming.path == LOGIN or (incoming.method != "POST" and is_public):
        return None
    if role is None:
        return HttpRefusal(401, "login_needed", "log in, or send a token: Authorization: Bearer ...")
    if incoming.method == "POST" and role != "operator" and incoming.path != "/logout":
        return HttpRefusal(403, "forbidden", "viewers may look, and change nothing")
    return None


def local_path(given: str) -> str:
    """Where to go on after a login: a path of ours, whatever was asked for."""
    is_ours = given.startswith("/") and not given.startswith(("//", "/\\")) and given.isprintable()
    return given if is_ours and "\\" not in given and len(given) < 2_000 else "/"


# --- refusals as responses: JSON for programs, one plain line for people. No internals. ---


def error_body(code: str, message: str) -> bytes:
    return msgspec.json.encode({"error": {"code": code, "message": message}})


def json_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


_CLOSE = {"connection": "close"}
_REFUSAL_HEADERS: Mapping[int, Mapping[str, str]] = {
    400: _CLOSE,  # what follows may be no request of its own
    401: {"www-authenticate": "Bearer"},
    405: {"allow": "GET, HEAD, POST"},
    408: _CLOSE,
    413: _CLOSE,
    429: {"retry-after": "60"},
}


def refusal_response(
    incoming: IncomingRequest, refusal: HttpRefusal, more_headers: Mapping[str, str] | None = None
) -> Response:
    headers = {**_REFUSAL_HEADERS.get(refusal.status, {}), **(more_headers or {})}
    if incoming.is_api or "application/json" in incoming.headers.get("accept", ""):
        return json_response(error_body(refusal.code, refusal.message), refusal.status, headers)
    return Response(f"{refusal.message}\n", refusal.status, headers, media_type="text/plain")
