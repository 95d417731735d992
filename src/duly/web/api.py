"""The JSON API under /api/v1: every operation of the daemon's table, GET for what reads, POST for what acts.

Nothing here is written by hand for one operation: routes, parameters and the OpenAPI document all come from
`OPERATIONS`. Tasks, which no daemon has, have addresses of their own (`task_api`). Errors are
`{"error": {"code", "message"}}`. The API never shows the environment of a service, not even as a digest. A
stream ends as soon as its reader disconnects, not when the next event is sent: the run that it follows may be
silent for days. The server closes connections that stay open and are not read (`server.HttpConnection`).
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from duly.background import first_done
from duly.daemon.operations import OPERATIONS, LogPiece, Operation, Params, params_for
from duly.daemon.protocol import (
    BAD_REQUEST,
    BUSY,
    OperationError,
)
from duly.errors import SchedulerError
from duly.web import api_docs, openapi, task_api
from duly.web.acting import perform, refusal
from duly.web.live import TooManyError
from duly.web.security import content_type, error_body, json_response, visitor
from duly.web.site import Site

PREFIX = "/api/v1"

_INTEGER = re.compile(r"-?[0-9]{1,40}")
_encode = msgspec.json.Encoder(enc_hook=str).encode


def routes(site: Site) -> list[BaseRoute]:
    of_tasks = [] if site.tasks is None else task_api.task_routes(site, site.tasks)

    # Made when somebody asks: it reads the source of a hundred types.
    @cache
    def document() -> bytes:
        return openapi.document(OPERATIONS, task_api.TASK_ROUTES if of_tasks else ())

    @cache
    def docs() -> bytes:
        return api_docs.page(msgspec.json.decode(document()))

    async def described(_request: Request) -> Response:
        return json_response(await asyncio.to_thread(document))

    async def documented(_request: Request) -> Response:
        return Response(await asyncio.to_thread(docs), media_type="text/html")

    made: list[BaseRoute] = [
        Route(f"{PREFIX}/openapi.json", described, methods=["GET"]),
        Route(f"{PREFIX}/docs", documented, methods=["GET"]),
        Route(f"{PREFIX}/events", _events_handler(site), methods=["GET"]),
        *of_tasks,
    ]
    for name, operation in OPERATIONS.items():
        method = "GET" if operation.is_read else "POST"
        made.append(Route(f"{PREFIX}/{name}", _operation_handler(site, name, operation), methods=[method]))
        if operation.stream is not None:
            made.append(Route(f"{PREFIX}/{name}/stream", _stream_handler(site, operation), methods=["GET"]))
    return made


def _operation_handler(site: Site, name: str, operation: Operation) -> Any:
    async def answer(request: Request) -> Response:
        try:
            is_read = operation.is_read
            params = query_params(operation, request) if is_read else await _body_params(operation, request)
            return json_response(_encode(await perform(site, operation, params, visitor(request).who)))
        except OperationError as error:
            return refusal(error)

    answer.__name__ = name
    return answer


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
    if body and content_type(request.state.incoming) != "application/json":
        raise OperationError(BAD_REQUEST, "send the parameters as application/json")
    if request.scope["query_string"]:
        raise OperationError(BAD_REQUEST, "send the parameters in the body")
    try:
        given = msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OperationError(BAD_REQUEST, f"the body cannot be read: {error}") from error
    return params_for(operation, given)


# --- streams ---


class Stream(Response):
    """Sends *pieces* as server-sent events; *leave* is called at the end, whatever the end is."""

    media_type = "text/event-stream"

    def __init__(self, pieces: AsyncGenerator[bytes, None], leave: Callable[[], None]) -> None:
        super().__init__(None, 200, {"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._pieces = pieces
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                await self._send_until_gone(receive, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._leave()
            await self._pieces.aclose()

    async def _send_until_gone(self, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        if sending in await first_done(sending, asyncio.create_task(_until_gone(receive))):
            sending.result()

    async def _send_all(self, send: Send) -> None:
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _events_handler(site: Site) -> Any:
    async def events(request: Request) -> Response:
        last_id = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
        is_brief = request.query_params.get("brief") == "true"
        try:
            leave = site.live.enter()
        except TooManyError:
            return _full()
        return Stream(site.live.stream(last_id, is_brief=is_brief), leave)

    return events


def _stream_handler(site: Site, operation: Operation) -> Any:
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
        return Stream(_log_messages(first, pieces), leave)

    return follow


async def _log_messages(first: Any, pieces: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
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
