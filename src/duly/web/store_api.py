"""The tasks of an embedded scheduler by the API: all of them, and one with what became of its latest dues.

A daemon has no tasks, so these two addresses are there only where a store is shown. What they tell is what
the pages show, from the same snapshot.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import tzinfo
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duly.core.task import Task
from duly.cron.words import in_words
from duly.daemon.protocol import BAD_REQUEST, NOT_FOUND
from duly.daemon.shapes import Shape
from duly.daemon.views import time_of
from duly.instant import NEVER_US, SECOND_US, Instant
from duly.store.history import RunRow, length_us
from duly.web.answers import error_body, json_response
from duly.web.openapi import Reading
from duly.web.store_site import Snapshot, StoreSite, dues_after, kind_of, next_of

_DUES_TOLD = 10
_encode = msgspec.json.Encoder().encode

Answer = Callable[[Request], Coroutine[Any, Any, Response]]


class TaskShape(Shape):
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


class DamagedShape(Shape):
    """A task whose row cannot be used, and why."""

    name: str
    reason: str


class TasksShape(Shape):
    """All tasks of a store."""

    at: str | None
    timezone: str
    tasks: list[TaskShape]
    damaged: list[DamagedShape]
    faults: list[str]
    """Why this may be old or not all."""


class TaskRunShape(Shape):
    """One run of a task; without a trace, the one that the store remembers."""

    started_at: str | None
    ended_at: str | None
    duration_s: float | None
    running: bool
    result: str | None


class AnswerShape(Shape):
    """What became of one due."""

    kind: str
    sentence: str


class TaskTold(Shape):
    """One task: what comes, what ran, and what became of its latest dues, newest first."""

    at: str | None
    timezone: str
    task: TaskShape
    next: list[str | None]
    runs: list[TaskRunShape]
    has_trace: bool
    answers: list[AnswerShape]
    faults: list[str]


READINGS = (
    Reading("tasks", "/api/v1/tasks", "All tasks of the store.", TasksShape),
    Reading("task", "/api/v1/tasks/{name}", "One task, and why it ran or did not.", TaskTold, ("name",)),
)


def routes(site: StoreSite) -> list[BaseRoute]:
    """The addresses of tasks."""
    turn = asyncio.Lock()
    """Answers may have to be looked for in a long trace: by one at a time."""

    async def tasks(_request: Request) -> Response:
        await site.look()
        snapshot, now_us = site.snapshot, site.backend.standing().now_us
        return json_response(
            await asyncio.to_thread(lambda: _encode(tasks_told(snapshot, now_us, site.zone)))
        )

    async def task(request: Request) -> Response:
        await site.look()
        snapshot, now_us, name = site.snapshot, site.backend.standing().now_us, request.path_params["name"]
        found = next((task for task in snapshot.tasks if task.name == name), None)
        if found is None:
            return json_response(error_body(NOT_FOUND, _missing(snapshot, name)), 404)
        async with turn:
            answers = await asyncio.to_thread(site.answers, found, now_us)
        told = task_told(snapshot, found, now_us, site.zone)
        told.answers = [AnswerShape(kind=kind, sentence=sentence) for kind, sentence in answers]
        return json_response(_encode(told))

    return [
        Route("/api/v1/tasks", _without_query(tasks), methods=["GET"]),
        Route("/api/v1/tasks/{name:path}", _without_query(task), methods=["GET"]),
    ]


def _without_query(answer: Answer) -> Answer:
    async def answered(request: Request) -> Response:
        if request.scope["query_string"]:
            return json_response(error_body(BAD_REQUEST, "there is nothing to ask for in a query here"), 400)
        return await answer(request)

    return answered


def _missing(snapshot: Snapshot, name: str) -> str:
    reason = next((reason for damaged, reason in snapshot.damaged if damaged == name), None)
    return f"there is no task {name[:200]}" if reason is None else f"its row cannot be used: {reason}"


# --- what is told ---


def tasks_told(snapshot: Snapshot, now_us: Instant, zone: tzinfo) -> TasksShape:
    """All tasks."""
    return TasksShape(
        at=time_of(now_us, zone),
        timezone=str(zone),
        tasks=[task_shape(task, now_us, zone) for task in snapshot.tasks],
        damaged=[DamagedShape(name=name, reason=reason) for name, reason in snapshot.damaged],
        faults=list(snapshot.faults),
    )


def task_told(snapshot: Snapshot, task: Task, now_us: Instant, zone: tzinfo) -> TaskTold:
    """One task, without answers."""
    return TaskTold(
        at=time_of(now_us, zone),
        timezone=str(zone),
        task=task_shape(task, now_us, zone),
        next=[time_of(at_us, zone) for at_us in dues_after(task, now_us, NEVER_US, _DUES_TOLD)],
        runs=[_run(row, zone) for row in snapshot.runs.get(task.name, ())],
        has_trace=snapshot.has_trace,
        answers=[],
        faults=list(snapshot.faults),
    )


def task_shape(task: Task, now_us: Instant, zone: tzinfo) -> TaskShape:
    """One task."""
    return TaskShape(
        name=task.name,
        cron=task.schedule.text,
        schedule=in_words(task.schedule.expression),
        state=kind_of(task, now_us),
        running=task.running_since_us is not None,
        running_since=time_of(task.running_since_us, zone),
        next_run_at=time_of(next_of(task), zone),
        last_attempt_at=time_of(task.last_attempt_us, zone),
        last_success_at=time_of(task.last_success_us, zone),
        last_failure_at=time_of(task.last_failure_us, zone),
        retry_at=time_of(task.retry_at_us, zone),
        retry_count=task.retry_count,
        retry_delay_s=task.retry_delay_us / SECOND_US,
        interrupted=task.interrupted,
        registered_at=time_of(task.registered_us, zone),
        answered_until=time_of(task.answered_us, zone),
        scheduler=task.scheduler_id,
    )


def _run(row: RunRow, zone: tzinfo) -> TaskRunShape:
    lasted_us = length_us(row)
    return TaskRunShape(
        started_at=time_of(row.started_us, zone),
        ended_at=time_of(row.ended_us, zone),
        duration_s=None if lasted_us is None else lasted_us / SECOND_US,
        running=row.ended_us is None,
        result=row.result,
    )
