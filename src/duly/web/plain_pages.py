"""The pages that every site has: logging in, static files, what the monitor says, and mere words."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duly.web import words
from duly.web.rendering import Gathered, Renderer, static_file
from duly.web.security import LOGIN, local_path, visitor
from duly.web.site import Site


def common_routes(renderer: Renderer) -> list[BaseRoute]:
    """What every site has: its static files, and a page to log in."""

    async def log_in(request: Request) -> Response:
        values = {
            "csrf": visitor(request).csrf,
            "going": local_path(request.query_params.get("next", "/")),
            "has_failed": "failed" in request.query_params,
        }
        return await renderer.once(request, "login.html", values)

    async def static(request: Request) -> Response:
        found = static_file(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return found

    async def favicon(_request: Request) -> Response:
        return Response(status_code=204)

    return [
        Route(LOGIN, log_in, methods=["GET"]),
        Route("/static/{name:path}", static),
        Route("/favicon.ico", favicon),
    ]


async def verification_of(site: Site) -> Gathered:
    """What a site's monitor says, as a page."""
    found = site.verification()
    verdicts = (
        None
        if found is None
        else [(one, words.VERDICTS.get(one.verdict, words.RESULTS["unknown"])) for one in found]
    )
    kinds = [mark for _, mark in verdicts or []]
    worst = next(
        (mark for tone in ("bad", "calm") for mark in kinds if mark.tone == tone), words.VERDICTS["holds"]
    )
    return "verification.html", {"verdicts": verdicts, "overall": worst, "unwatched": site.unwatched}, 200


def unknown(kind: str, name: str, back: str) -> Gathered:
    """There is no such thing."""
    return told("Not found", f"There is no {kind} {name[:200]}.", back, f"All {kind}s", 404)


def told(heading: str, message: str, back: str, label: str, status: int) -> Gathered:
    """A page that only says something."""
    return (
        "told.html",
        {"heading": heading, "message": message, "undo": None, "back": back, "back_label": label},
        status,
    )
