"""The JSON API under /api/v1: every operation of the daemon's table, GET for what reads, POST for what acts.

Nothing here is written by hand for one operation: routes, parameters and the OpenAPI document all come from
`OPERATIONS`; the tasks of a store, which no daemon has, are in `store_api`. Errors are
`{"error": {"code", "message"}}`. What operations know of the environment of services is not told here, not
even as a digest.
"""

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duly.daemon.operations import OPERATIONS, Definitions, LogPiece, Operation, Params, params_for
from duly.daemon.protocol import (
    BAD_REQUEST,
    BUSY,
    DISABLED,
    FAILED,
    INVALID_CONFIGURATION,
    NOT_FOUND,
    UNREACHABLE,
    OperationError,
)
from duly.errors import SchedulerError, StoreError
from duly.web import openapi, store_api
from duly.web.answers import error_body, json_response
from duly.web.live import TooManyError
from duly.web.security import content_type, visitor
from duly.web.site import READ_ONLY, Site
from duly.web.store_site import StoreSite
from duly.web.streaming import Stream

PREFIX = "/api/v1"

STATUSES: Mapping[str, int] = {
    BAD_REQUEST: 400,
    READ_ONLY: 403,
    NOT_FOUND: 404,
    FAILED: 409,
    DISABLED: 409,
    INVALID_CONFIGURATION: 409,
    BUSY: 503,
    UNREACHABLE: 503,
}
"""The status for each code of an error."""

_INTEGER = re.compile(r"-?[0-9]{1,40}")
_encode = msgspec.json.Encoder(enc_hook=str).encode


def routes(site: Site) -> list[BaseRoute]:
    """The whole API."""
    of_tasks = store_api.routes(site) if isinstance(site, StoreSite) else []
    document = openapi.document(OPERATIONS, store_api.READINGS if of_tasks else ())

    async def described(_request: Request) -> Response:
        return json_response(document)

    made: list[BaseRoute] = [
        Route(f"{PREFIX}/openapi.json", described, methods=["GET"]),
        Route(f"{PREFIX}/events", _events(site), methods=["GET"]),
        *of_tasks,
    ]
    for name, operation in OPERATIONS.items():
        method = "GET" if operation.is_read else "POST"
        made.append(Route(f"{PREFIX}/{name}", _answering(site, name, operation), methods=[method]))
        if operation.stream is not None:
            made.append(Route(f"{PREFIX}/{name}/stream", _streaming(site, operation), methods=["GET"]))
    return made


async def perform(site: Site, name: str, params: Mapping[str, Any], who: str) -> Any:
    """Do an operation: what a page's button and the API's POST have in common. Raises OperationError."""
    operation = OPERATIONS[name]
    return await _performed(site, operation, params_for(operation, params), who)


async def _performed(site: Site, operation: Operation, params: Params, who: str) -> Any:
    if site.is_read_only and not operation.is_read:
        raise OperationError(READ_ONLY, "this site can only be looked at")
    try:
        return _public(await operation.function(site.backend, params, who))
    except StoreError as error:
        raise OperationError(BUSY, error.message) from error
    except SchedulerError as error:
        raise OperationError(FAILED, error.message) from error


def _answering(site: Site, name: str, operation: Operation) -> Any:
    async def answer(request: Request) -> Response:
        try:
            is_read = operation.is_read
            params = query_params(operation, request) if is_read else await _body_params(operation, request)
            return json_response(_encode(await _performed(site, operation, params, visitor(request).who)))
        except OperationError as error:
            return refusal(error)

    answer.__name__ = name
    return answer


def refusal(error: OperationError) -> Response:
    """The response to an operation that was refused. Of the facts only what the sentence says is told."""
    return json_response(error_body(error.code, error.message), STATUSES.get(error.code, 409))


# --- parameters ---


def query_params(operation: Operation, request: Request) -> Params:
    """The parameters in a query. Raises OperationError."""
    given: dict[str, Any] = {}
    try:
        query = request.scope["query_string"].decode("latin-1")
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError as error:
        raise OperationError(BAD_REQUEST, "the query cannot be read") from error
    kinds = {field.encode_name: _kind(field.type) for field in msgspec.structs.fields(operation.params)}
    for name, text in pairs:
        if name in given:
            raise OperationError(BAD_REQUEST, f"the parameter {name[:100]} came more than once")
        given[name] = _value(name, text, kinds.get(name))
    return params_for(operation, given)


def _kind(declared: Any) -> type | None:
    """What a parameter is written as: a whole number, yes or no, or text."""
    schema = msgspec.json.schema(declared)
    kinds = {schema.get("type"), *(each.get("type") for each in schema.get("anyOf", ()))}
    return int if "integer" in kinds else bool if "boolean" in kinds else str


def _value(name: str, text: str, kind: type | None) -> object:
    if kind is int:
        if not _INTEGER.fullmatch(text):
            raise OperationError(BAD_REQUEST, f"the parameter {name} must be a whole number")
        return int(text)
    if kind is bool:
        if text not in {"true", "false"}:
            raise OperationError(BAD_REQUEST, f"the parameter {name} must be true or false")
        return text == "true"
    return text


async def _body_params(operation: Operation, request: Request) -> Params:
    body = await request.body()
    if body and content_type(request.state.asked) != "application/json":
        raise OperationError(BAD_REQUEST, "send the parameters as application/json")
    if request.scope["query_string"]:
        raise OperationError(BAD_REQUEST, "send the parameters in the body")
    try:
        given = msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OperationError(BAD_REQUEST, f"the body cannot be read: {error}") from error
    return params_for(operation, given)


def _public(result: Any) -> Any:
    if isinstance(result, Definitions):
        return msgspec.structs.replace(
            result, services=[public_definition(declared) for declared in result.services]
        )
    return result


def public_definition(declared: Mapping[str, Any]) -> dict[str, Any]:
    """A definition as anybody may see it: of its environment the names."""
    return {key: sorted(value) if key == "env" else value for key, value in declared.items()}


# --- streams ---


def _events(site: Site) -> Any:
    async def events(request: Request) -> Response:
        last_id = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        is_brief = request.query_params.get("brief") == "true"
        try:
            leave = site.live.enter()
        except TooManyError:
            return _full()
        return Stream(site.live.stream(last_id, is_brief=is_brief), leave)

    return events


def _streaming(site: Site, operation: Operation) -> Any:
    assert operation.stream is not None
    stream = operation.stream

    async def follow(request: Request) -> Response:
        try:
            params = msgspec.structs.replace(query_params(operation, request), follow=True)
            pieces = stream(site.backend, params, visitor(request).who)
            first = await anext(pieces)
        except OperationError as error:
            return refusal(error)
        except SchedulerError as error:
            return refusal(OperationError(BUSY, error.message))
        try:
            leave = site.live.enter()
        except TooManyError:
            await pieces.aclose()
            return _full()
        return Stream(_told(first, pieces), leave)

    return follow


async def _told(first: Any, pieces: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    """The log so far (event `log`), what comes (`piece`), and at last the run as it ended (`end`)."""
    try:
        yield _message("log", first)
        last = first
        async for piece in pieces:
            if isinstance(piece, LogPiece):
                yield _message("piece", piece)
            else:
                last = msgspec.structs.replace(piece, output="")
        yield _message("end", msgspec.structs.replace(last, output=""))
    except SchedulerError as error:
        yield _message("end", {"error": error.message})
    finally:
        await pieces.aclose()


def _message(event: str, body: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event.encode(), _encode(body))


def _full() -> Response:
    busy = error_body(BUSY, "there are as many open streams as there may be; close a page")
    return json_response(busy, 503, {"retry-after": "30"})
