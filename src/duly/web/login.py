"""Logging in with a token, and out again: the POSTs. The page with the form is one of `pages`.

Fields of the form at /login: token, csrf, next. A wrong token leads back to /login?failed=1.
"""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from duly.web.answers import json_response, refused
from duly.web.guard import Door, form_in, peer_of
from duly.web.security import LOGIN, Refusal, local_path, visitor
from duly.web.sessions import Session


def routes(door: Door) -> list[BaseRoute]:
    """The ways in and out."""

    async def log_in(request: Request) -> Response:
        form = form_in(await request.body())
        going = local_path(form.get("next", "/"))
        role = door.role_of_token(form.get("token", ""), peer_of(request.scope))
        if isinstance(role, Refusal):
            if role.status == 429:
                return refused(request.state.asked, role, {"retry-after": "60"})
            return RedirectResponse(f"{LOGIN}?failed=1&next={quote(going, safe='')}", 303)
        _end(request)
        # A session of its own: one that somebody planted in the browser before is worth nothing afterwards.
        return RedirectResponse(going, 303, {"set-cookie": door.set_cookie(door.sessions.begun(role))})

    async def log_out(request: Request) -> Response:
        _end(request)
        return RedirectResponse(LOGIN, 303, {"set-cookie": door.forget_cookie()})

    async def session(request: Request) -> Response:
        who = visitor(request)
        return json_response(b'{"role":"%s","csrf":"%s"}' % ((who.role or "").encode(), who.csrf.encode()))

    def _end(request: Request) -> None:
        before: Session | None = request.state.session
        if before is not None:
            door.sessions.end(before)

    return [
        Route(LOGIN, log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
        Route("/api/v1/session", session, methods=["GET"]),
    ]
