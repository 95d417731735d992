"""The JSON API under /api/v1: every operation of the daemon's table, GET for what reads, POST for what acts.

Nothing here is written by hand for one operation: routes, parameters and the OpenAPI document all come from
`OPERATIONS`. The tasks of a store, which no daemon has, have two addresses of their own. Errors are
`{"error": {"code", "message"}}`. The API never shows the environment of a service, not
even as a digest. A stream ends as soon as its reader disconnects, not when the next event is sent: the run
that it follows may be silent for days. The server closes connections that stay open and are not read
(`server.HttpConnection`).
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from datetime import tzinfo
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from duly.background import first_done
from duly.daemon.json_types import JsonStruct, json_of
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
from duly.daemon.views import run_json
from duly.errors import NoSuchTaskError, SchedulerError, StoreError
from duly.instant import NEVER_US, SECOND_US, Instant, time_of
from duly.store.history import RunRow
from duly.web import api_docs, openapi
from duly.web.live import TooManyError
from duly.web.models import NOUNS, TaskEntry, task_entry
from duly.web.openapi import OtherRoute
from duly.web.security import content_type, error_body, json_response, visitor
from duly.web.site import READ_ONLY, Site
from duly.web.task_store import TaskSnapshot, TaskStore

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

_DUES_SHOWN = 10
_INTEGER = re.compile(r"-?[0-9]{1,40}")
_encode = msgspec.json.Encoder(enc_hook=str).encode


def routes(site: Site) -> list[BaseRoute]:
    of_tasks = [] if site.tasks is None else _task_routes(site, site.tasks)

    # Made when somebody asks: it reads the source of a hundred types.
    @cache
    def document() -> bytes:
        return openapi.document(OPERATIONS, TASK_ROUTES if of_tasks else ())

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


async def perform(site: Site, name: str, params: Mapping[str, Any], who: str) -> Any:
    """Do an operation: what a page's button and the API's POST have in common. Raises OperationError."""
    operation = OPERATIONS[name]
    return await _perform(site, operation, params_for(operation, params), who)


async def act(site: Site, name: str, target: str, who: str) -> int | None:
    """Do something to a service, a timer or a task; the run that it began, if that is known.

    Raises OperationError.
    """
    if site.tasks is None:
        run: int | None = (await perform(site, name, {"id": target}, who)).run
        return run
    if site.act is None:
        raise OperationError(READ_ONLY, "this site can only be looked at")
    try:
        await site.act(name, target, who)
    except NoSuchTaskError as error:
        raise OperationError(NOT_FOUND, error.message) from error
    except StoreError as error:
        raise OperationError(BUSY, error.message) from error
    except (SchedulerError, RuntimeError) as error:
        message = error.message if isinstance(error, SchedulerError) else str(error)
        raise OperationError(FAILED, message) from error
    return None


async def _perform(site: Site, operation: Operation, params: Params, who: str) -> Any:
    if site.tasks is not None and not operation.is_read:
        raise OperationError(READ_ONLY, "this site can only be looked at")
    try:
        return _public_result(await operation.function(site.backend, params, who))
    except StoreError as error:
        raise OperationError(BUSY, error.message) from error
    except SchedulerError as error:
        raise OperationError(FAILED, error.message) from error


def _operation_handler(site: Site, name: str, operation: Operation) -> Any:
    async def answer(request: Request) -> Response:
        try:
            is_read = operation.is_read
            params = query_params(operation, request) if is_read else await _body_params(operation, request)
            return json_response(_encode(await _perform(site, operation, params, visitor(request).who)))
        except OperationError as error:
            return refusal(error)

    answer.__name__ = name
    return answer


def refusal(error: OperationError) -> Response:
    """The response to an operation that was refused: its code and its sentence, no other facts."""
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
    if body and content_type(request.state.incoming) != "application/json":
        raise OperationError(BAD_REQUEST, "send the parameters as application/json")
    if request.scope["query_string"]:
        raise OperationError(BAD_REQUEST, "send the parameters in the body")
    try:
        given = msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OperationError(BAD_REQUEST, f"the body cannot be read: {error}") from error
    return params_for(operation, given)


def _public_result(result: Any) -> Any:
    """The result as anybody may see it: of an environment the names."""
    if not isinstance(result, Definitions):
        return result
    services = [
        {key: sorted(value) if key == "env" else value for key, value in declared.items()}
        for declared in result.services
    ]
    return msgspec.structs.replace(result, services=services)


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


# --- the tasks of a store ---


class TaskJson(JsonStruct):
    """One task."""

    name: str
    cron: str
    schedule: str
    """The same in words."""
    state: str
    """running, failing, overdue, new or fine."""
    running: bool
    running_since: str | None
    next_run_at: str | None
    """When it is due, or tried again; in the past if it should have started."""
    last_attempt_at: str | None
    last_success_at: str | None
    last_failure_at: str | None
    retry_at: str | None
    retry_count: int
    retry_delay_s: float
    interrupted: bool
    registered_at: str | None
    answered_until: str | None
    scheduler: str


class DamagedJson(JsonStruct):
    """A task whose row cannot be used, and why."""

    name: str
    reason: str


class TasksJson(JsonStruct):
    """All tasks of a store."""

    at: str | None
    timezone: str
    tasks: list[TaskJson]
    damaged: list[DamagedJson]
    faults: list[str]
    """Why this may be old or not all."""


class TaskRunJson(JsonStruct):
    """One run of a task; without a history or a trace, the one that its row remembers."""

    started_at: str | None
    ended_at: str | None
    duration_s: float | None
    running: bool
    result: str | None
    scheduled_at: str | None
    run_id: str | None
    cause: str
    attempt: int | None
    node: str | None
    error: str
    traceback: str


class AnswerJson(JsonStruct):
    """What became of one due."""

    kind: str
    sentence: str


class TaskDetailsJson(JsonStruct):
    """One task: what comes, what ran, and what became of its latest dues, newest first."""

    at: str | None
    timezone: str
    task: TaskJson
    next: list[str | None]
    runs: list[TaskRunJson]
    has_trace: bool
    answers: list[AnswerJson]
    faults: list[str]


class TaskDoneJson(JsonStruct):
    """What was done to a task."""

    task: str
    done: str


TASK_ROUTES = (
    OtherRoute("tasks", "/api/v1/tasks", "All tasks of the store.", TasksJson),
    OtherRoute(
        "task", "/api/v1/tasks/{name}", "One task, and why it ran or did not.", TaskDetailsJson, ("name",)
    ),
    *(
        OtherRoute(word, f"/api/v1/tasks/{{name}}/{word}", summary, TaskDoneJson, ("name",), is_read=False)
        for word, summary in (
            ("run", "Run a task now, beside its schedule. The request survives a crash."),
            ("cancel", "Cancel the run of a task: it has failed, and is not tried again."),
            ("pause", "Let a task rest until it is resumed."),
            ("resume", "Let a paused task go on."),
            ("remove", "Remove an entry. Its runs stay in the history."),
        )
    ),
)


def _task_routes(site: Site, store: TaskStore) -> list[BaseRoute]:
    turn = asyncio.Lock()
    """Answers may have to be looked for in a long trace: by one at a time."""

    async def tasks(_request: Request) -> Response:
        await store.look()
        snapshot, now_us = store.snapshot, store.now_us
        return json_response(
            await asyncio.to_thread(lambda: _encode(tasks_json(snapshot, now_us, store.zone)))
        )

    async def task(request: Request) -> Response:
        await store.look()
        snapshot, now_us, name = store.snapshot, store.now_us, request.path_params["name"]
        found = snapshot.task(name)
        if found is None:
            reason = snapshot.damaged.get(name)
            message = (
                f"there is no task {name[:200]}" if reason is None else f"its row cannot be used: {reason}"
            )
            return json_response(error_body(NOT_FOUND, message), 404)
        async with turn:
            answers = await asyncio.to_thread(store.answers, found, now_us, None)
            runs = await asyncio.to_thread(store.runs_of, snapshot, name)
        details = task_details_json(snapshot, task_entry(found, now_us), now_us, store.zone, runs)
        details.answers = [AnswerJson(kind=kind, sentence=sentence) for kind, sentence in answers]
        return json_response(_encode(details))

    async def acted(request: Request) -> Response:
        name, word = request.path_params["name"], request.url.path.rpartition("/")[2]
        try:
            await act(site, word, name, visitor(request).who)
        except OperationError as error:
            return refusal(error)
        return json_response(_encode(TaskDoneJson(task=name, done=word)))

    return [
        Route("/api/v1/tasks", _without_query(tasks), methods=["GET"]),
        *(
            Route(f"/api/v1/tasks/{{name:path}}/{word}", acted, methods=["POST"])
            for word, noun in NOUNS.items()
            if noun == "tasks"
        ),
        Route("/api/v1/tasks/{name:path}", _without_query(task), methods=["GET"]),
    ]


def _without_query(answer: Callable[[Request], Coroutine[Any, Any, Response]]) -> Any:
    async def answered(request: Request) -> Response:
        if request.scope["query_string"]:
            return json_response(error_body(BAD_REQUEST, "there is nothing to ask for in a query here"), 400)
        return await answer(request)

    return answered


def tasks_json(snapshot: TaskSnapshot, now_us: Instant, zone: tzinfo) -> TasksJson:
    return TasksJson(
        at=time_of(now_us, zone),
        timezone=str(zone),
        tasks=[task_json(task_entry(task, now_us), zone) for task in snapshot.tasks],
        damaged=[DamagedJson(name=name, reason=reason) for name, reason in snapshot.damaged.items()],
        faults=list(snapshot.faults),
    )


def task_details_json(
    snapshot: TaskSnapshot, entry: TaskEntry, now_us: Instant, zone: tzinfo, runs: Sequence[RunRow]
) -> TaskDetailsJson:
    """One task, without answers."""
    return TaskDetailsJson(
        at=time_of(now_us, zone),
        timezone=str(zone),
        task=task_json(entry, zone),
        next=[time_of(at_us, zone) for at_us in entry.dues_after(now_us, NEVER_US, _DUES_SHOWN)],
        runs=[_task_run_json(row, zone) for row in runs],
        has_trace=snapshot.has_trace,
        answers=[],
        faults=list(snapshot.faults),
    )


def task_json(entry: TaskEntry, zone: tzinfo) -> TaskJson:
    task = entry.task
    return json_of(
        TaskJson,
        task,
        zone,
        cron=task.schedule.text,
        schedule=entry.cron_words,
        state=entry.kind,
        running=task.running_since_us is not None,
        running_since=time_of(task.running_since_us, zone),
        next_run_at=time_of(entry.next_us, zone),
        retry_at=time_of(task.retry_at_us, zone),
        retry_delay_s=task.retry_delay_us / SECOND_US,
        answered_until=time_of(task.answered_us, zone),
        scheduler=task.scheduler_id,
    )


def _task_run_json(row: RunRow, zone: tzinfo) -> TaskRunJson:
    facts = {"run_id": row.run_id, "cause": row.reason, "attempt": row.attempt, "node": row.node}
    return json_of(TaskRunJson, run_json(row, zone), zone, **facts, error=row.message, traceback=row.output)
