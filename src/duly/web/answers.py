"""Refusals and errors as responses: JSON for programs, one plain line for people. Nothing inside is told."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from duly.web.security import Asked, Refusal


def error_body(code: str, message: str) -> bytes:
    """An error, as the API tells it."""
    return msgspec.json.encode({"error": {"code": code, "message": message}})


def json_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of the API."""
    return Response(body, status, headers, media_type="application/json")


def refused(asked: Asked, refusal: Refusal, headers: Mapping[str, str] | None = None) -> Response:
    """The response to a request that is not served."""
    if asked.is_api or "application/json" in asked.headers.get("accept", ""):
        return json_response(error_body(refusal.code, refusal.message), refusal.status, headers)
    return Response(f"{refusal.message}\n", refusal.status, headers, media_type="text/plain")
