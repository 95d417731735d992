"""The application: pages, API, live events, probes and metrics of one site, behind the guard.

`pages.routes(site)` brings the pages; `pages.error(request, status, message)`, if there is one, what an error
looks like to people.
"""

import hashlib
import importlib
import secrets
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp

from duly.web import api, health, login
from duly.web.answers import refused
from duly.web.guard import Counts, Door, Guard
from duly.web.security import Asked, Refusal
from duly.web.sessions import Sessions
from duly.web.settings import WebSettings
from duly.web.site import Site

_WORDS = {
    400: ("bad_request", "this cannot be understood"),
    404: ("not_found", "there is nothing here by that name"),
    405: ("method_not_allowed", "this is not done that way"),
}


def create_app(
    site: Site,
    settings: WebSettings,
    *,
    now_s: Callable[[], float] = time.monotonic,
    key: bytes | None = None,
) -> ASGIApp:
    """The application of *site*. *now_s* is a clock that nobody sets; *key* signs the sessions."""
    pages = _pages()
    sessions = Sessions(key or secrets.token_bytes(32), now_s)
    door = Door(settings, sessions, _cookie_name(site, settings), Counts(now_s))
    routes: list[BaseRoute] = [*api.routes(site), *health.routes(site), *login.routes(door)]
    if pages is not None:
        routes += pages.routes(site)
    handlers: dict[Any, Any] = {HTTPException: _told(pages)}
    # Not a whole Starlette: it would answer what fails inside before the guard can.
    return Guard(ExceptionMiddleware(Router(routes, redirect_slashes=False), handlers), door, now_s)


def _pages() -> ModuleType | None:
    try:
        return importlib.import_module("duly.web.pages")
    except ModuleNotFoundError as error:
        if error.name != "duly.web.pages":
            raise
        return None


def _cookie_name(site: Site, settings: WebSettings) -> str:
    # Browsers give a cookie to every port of a host: two daemons must not take each other's.
    return "duly_" + hashlib.blake2s(f"{site.name}\n{settings.listen}".encode(), digest_size=4).hexdigest()


def _told(pages: ModuleType | None) -> Callable[[Request, HTTPException], Response]:
    def told(request: Request, error: HTTPException) -> Response:
        asked: Asked = request.state.asked
        code, words = _WORDS.get(error.status_code, ("failed", "this did not work"))
        if pages is not None and hasattr(pages, "error") and not asked.is_api:
            page: Response = pages.error(request, error.status_code, words)
            return page
        return refused(asked, Refusal(error.status_code, code, words), error.headers)

    return told
