"""Probes: is it alive, is it ready and if not, why; and the numbers for Prometheus.

Anybody may probe, by any name, and is then told no more than a word; reasons are for those who may look.
"""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duly.daemon.protocol import NOT_FOUND
from duly.web.answers import error_body, json_response
from duly.web.security import visitor
from duly.web.site import Site


def routes(site: Site) -> list[BaseRoute]:
    """The probes and the metrics."""

    async def live(_request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def ready(request: Request) -> Response:
        reason = site.unready()
        if reason is None:
            return Response("ready\n", media_type="text/plain")
        told = reason if visitor(request).role is not None else "not ready"
        return Response(f"{told}\n", 503, media_type="text/plain")

    async def metrics(request: Request) -> Response:
        if site.metrics is None:
            message = "the numbers are not kept; install duly[metrics] and start the daemon anew"
            return json_response(error_body(NOT_FOUND, message), 404)
        accept = request.headers.get("accept", "")
        now_s = time.time()  # noqa: TID251 (numbers are told as of now)
        # Thousands of names are a tenth of a second, in which the loop has timers to fire.
        body = await asyncio.to_thread(site.metrics.taken(now_s, accept))
        return Response(body, headers={"content-type": site.metrics.content_type(accept)})

    return [
        Route("/healthz/live", live, methods=["GET"]),
        Route("/healthz/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
