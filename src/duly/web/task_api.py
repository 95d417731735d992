"""The part of the JSON API that shows the tasks of a store, and acts on those of an App."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import tzinfo
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duly.daemon.json_types import JsonStruct, json_of
from duly.daemon.protocol import BAD_REQUEST, NOT_FOUND, OperationError
from duly.daemon.views import run_json
from duly.instant import NEVER_US, SECOND_US, Instant, time_of
from duly.store.history import RunRow
from duly.web.acting import act, refusal
from duly.web.models import NOUNS, TaskEntry, task_entry
from duly.web.openapi import OtherRoute
from duly.web.security import error_body, json_response, visitor
from duly.web.site import Site
from duly.web.task_store import TaskSnapshot, TaskStore

_DUES_SHOWN = 10
_encode = msgspec.json.Encoder(enc_hook=str).encode


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


def task_routes(site: Site, store: TaskStore) -> list[BaseRoute]:
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
