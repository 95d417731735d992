"""The application: pages, API, live events, probes and metrics of one site, behind the guard.

Anybody may probe, under any host name, and gets one word. Only those who may look get the reason.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from duly.daemon.protocol import NOT_FOUND
from duly.web import api
from duly.web.authentication import Authenticator, login_routes
from duly.web.guard import Guard
from duly.web.pages import Pages
from duly.web.security import (
    HttpRefusal,
    IncomingRequest,
    error_body,
    json_response,
    refusal_response,
    visitor,
)
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
    wall_s: Callable[[], float] = time.time,  # noqa: TID251 (sessions outlive the process)
) -> ASGIApp:
    """The application of *site*. *now_s* is a clock that nobody sets, *wall_s* one that a restart keeps."""
    # Browsers give a cookie to every port of a host: two daemons must not take each other's.
    digest = hashlib.blake2s(f"{site.name}\n{settings.listen}".encode(), digest_size=4).hexdigest()
    authenticator = Authenticator(settings, f"duly_{digest}", now_s, wall_s)
    pages = Pages(site)
    routes = [*api.routes(site), *_probes(site), *login_routes(authenticator), *pages.routes()]
    handlers: dict[Any, Any] = {HTTPException: partial(_error_response, pages)}
    # Not a whole Starlette: it would answer what fails inside before the guard can.
    return Guard(ExceptionMiddleware(Router(routes, redirect_slashes=False), handlers), authenticator, now_s)


async def _error_response(pages: Pages, request: Request, error: HTTPException) -> Response:
    incoming: IncomingRequest = request.state.incoming
    code, words = _WORDS.get(error.status_code, ("failed", "this did not work"))
    if incoming.is_api:
        return refusal_response(incoming, HttpRefusal(error.status_code, code, words), error.headers)
    if error.status_code == 404 and incoming.is_page:
        return await pages.not_found(request)
    return PlainTextResponse(f"{words}\n", error.status_code)


def _probes(site: Site) -> list[BaseRoute]:
    async def live(_request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def ready(request: Request) -> Response:
        reason = site.unready()
        if reason is None:
            return Response("ready\n", media_type="text/plain")
        shown = reason if visitor(request).role is not None else "not ready"
        return Response(f"{shown}\n", 503, media_type="text/plain")

    async def metrics(request: Request) -> Response:
        exposition = site.observed.metrics
        if exposition is None:
            message = "the numbers are not kept; install duly[metrics] and restart the daemon"
            return json_response(error_body(NOT_FOUND, message), 404)
        accept = request.headers.get("accept", "")
        now_s = time.time()  # noqa: TID251 (the numbers are those of now)
        # Thousands of names are a tenth of a second, in which the loop has timers to fire.
        body = await asyncio.to_thread(exposition.taken(now_s, accept))
        return Response(body, headers={"content-type": exposition.content_type(accept)})

    return [
        Route("/healthz/live", live, methods=["GET"]),
        Route("/healthz/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
