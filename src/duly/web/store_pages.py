"""The pages of an embedded scheduler's store: its tasks, one of them, and what its trace proves."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from duly.core.task import Task
from duly.cron.words import in_words
from duly.daemon.shapes import HealthShape
from duly.instant import NEVER_US, Instant
from duly.store.history import RunRow
from duly.web import models, timeline, words
from duly.web.models import Fact, Next, Tile
from duly.web.overview import NEXT_SHOWN
from duly.web.plain_pages import common_routes, told, unknown, verification_of
from duly.web.rendering import Gathered, Link, Renderer
from duly.web.store_site import Snapshot, StoreSite, dues_after, kind_of, next_of, reasons_of
from duly.web.words import Mark

_KINDS = ("failing", "overdue", "running", "fine", "new")
_DUES_SHOWN = 10
_MARKS: Mapping[str, Mark] = {
    "running": words.RUNNING,
    "overdue": Mark("warn", "wait", "overdue"),
    "failing": Mark("bad", "bad", "failing"),
    "fine": Mark("good", "ok", "success"),
    "new": words.NO_RESULT,
}


class TaskEntry(NamedTuple):
    """A task, and what it counts as."""

    task: Task
    kind: str

    @property
    def mark(self) -> Mark:
        """How it is shown."""
        return _MARKS[self.kind]

    @property
    def next_us(self) -> Instant | None:
        """When it is due or tried again."""
        return next_of(self.task)


_SORTS: Mapping[str, Callable[[TaskEntry], Any]] = {
    "name": lambda entry: (0, entry.task.name.casefold()),
    "state": lambda entry: (0, (_KINDS.index(entry.kind),)),
    "last": lambda entry: models.time_key(entry.task.last_attempt_us),
    "next": lambda entry: models.time_key(entry.next_us),
    "failure": lambda entry: models.time_key(entry.task.last_failure_us),
}


def routes(site: StoreSite) -> list[BaseRoute]:
    """All pages of a store."""
    pages = StorePages(site)
    return [
        Route("/", pages.overview),
        Route("/tasks", pages.tasks),
        Route("/tasks/{id:path}", pages.task),
        Route("/verification", pages.verification),
        *common_routes(pages.renderer),
    ]


class StorePages:
    """The pages of one store."""

    def __init__(self, site: StoreSite) -> None:
        self._site = site
        self.renderer = Renderer(site, self._links, time.monotonic)

    def _links(self, path: str) -> list[Link]:
        verdicts = self._site.verification()
        violations = sum(one.count for one in verdicts or ())
        return [
            Link("/", "Overview", path == "/"),
            Link("/tasks", "Tasks", path.startswith("/tasks")),
            Link("/verification", "Verification", path == "/verification", violations, "bad", "violations"),
        ]

    def _now_us(self) -> Instant:
        return self._site.backend.standing().now_us

    async def overview(self, request: Request) -> Response:
        """Whether all is well, what ran, and what comes."""
        hours = timeline.hours_of(request.query_params.get("hours", ""))

        async def gather() -> Gathered:
            await self._site.look()
            return await asyncio.to_thread(self._overview, self._site.snapshot, self._now_us(), hours)

        return await self.renderer.page(request, gather)

    def _overview(self, snapshot: Snapshot, now_us: Instant, hours: int) -> Gathered:
        entries = [TaskEntry(task, kind_of(task, now_us)) for task in snapshot.tasks]
        health = _health(reasons_of(snapshot, now_us))
        window = timeline.window_at(now_us, hours)
        since_us = timeline.window_at(now_us).from_us
        recent = [row for row in snapshot.latest if row.started_us >= since_us]
        values = {
            "health": health,
            "headline": "All is well" if health.ok else _not_right(len(health.reasons)),
            "standing_words": "as its store has it" + (", with a trace" if snapshot.has_trace else ""),
            "most_reasons": models.MOST_REASONS,
            "started_us": None,
            "gate_message": "",
            "tiles": _tiles(entries, recent if snapshot.has_trace else None),
            "timeline": self._timeline(entries, window, recent),
            "next": _next(entries, now_us),
            "latest": [models.run_facts(row, now_us) for row in snapshot.latest[:NEXT_SHOWN]],
            "kinds": ("tasks", "tasks"),
            "has_runs": False,
            "drawn_since_us": None,
            "more_href": "/tasks",
        }
        return "overview.html", values, 200

    def _timeline(
        self,
        entries: Sequence[TaskEntry],
        window: timeline.Window,
        recent: Sequence[RunRow],
    ) -> timeline.Timeline:
        matters = {entry.task.name: timeline.Matter(entry.task.name, kind="tasks") for entry in entries}
        for row in recent:
            matter = matters.get(row.service)
            if matter is not None and (row.ended_us is None or row.ended_us >= window.from_us):
                matter.runs.append(row)
        tasks = {entry.task.name: entry.task for entry in entries}
        for name, task in tasks.items():
            due_us, retry_us = max(task.due_us, window.now_us), task.retry_at_us
            matters[name].slots = [due_us] if window.holds(due_us) else []
            matters[name].retries = [retry_us] if retry_us is not None and window.holds(retry_us) else []
        own, rest = timeline.chosen(matters.values())
        for matter in own:
            found = dues_after(tasks[matter.id], window.now_us, window.to_us, timeline.MOST_SLOTS + 1)
            matter.slots = sorted({*matter.slots, *found})
        return timeline.drawn(own, rest, window, self._site.zone)

    async def tasks(self, request: Request) -> Response:
        """All tasks."""
        if (one := request.query_params.get("id")) is not None:
            return await self._task(request, one)
        asked = models.asked_of(request.query_params, _SORTS, _KINDS)

        async def gather() -> Gathered:
            await self._site.look()
            snapshot, now_us = self._site.snapshot, self._now_us()

            def made() -> models.Table:
                entries = [TaskEntry(task, kind_of(task, now_us)) for task in snapshot.tasks]
                return models.table_of(entries, asked, _SORTS, lambda entry: entry.task.name)

            table = await asyncio.to_thread(made)
            values = {"table": table, "kinds": _KINDS, "cron_words": cron_words, "damaged": snapshot.damaged}
            return "tasks.html", values, 200

        return await self.renderer.page(request, gather)

    async def task(self, request: Request) -> Response:
        """One task."""
        return await self._task(request, request.path_params["id"])

    async def _task(self, request: Request, name: str) -> Response:
        async def gather() -> Gathered:
            await self._site.look()
            snapshot, now_us = self._site.snapshot, self._now_us()
            task = next((task for task in snapshot.tasks if task.name == name), None)
            if task is None:
                return self._missing(snapshot, name)
            return await asyncio.to_thread(self._one, snapshot, task, now_us)

        return await self.renderer.page(request, gather)

    def _missing(self, snapshot: Snapshot, name: str) -> Gathered:
        reason = next((reason for damaged, reason in snapshot.damaged if damaged == name), None)
        if reason is None:
            return unknown("task", name, "/tasks")
        return told("Damaged", f"The row of {name} cannot be used: {reason}", "/tasks", "All tasks", 200)

    def _one(self, snapshot: Snapshot, task: Task, now_us: Instant) -> Gathered:
        runs = snapshot.runs.get(task.name, [])
        answers = [
            (words.SLOTS.get(kind, Mark("calm", "none", kind)), sentence)
            for kind, sentence in self._site.answers(task, now_us)
        ]
        values = {
            "task": task,
            "entry": TaskEntry(task, kind_of(task, now_us)),
            "cron_words": cron_words,
            "definition": _facts(task, str(self._site.zone)),
            "ahead": dues_after(task, now_us, NEVER_US, _DUES_SHOWN),
            "answers": answers,
            "has_trace": snapshot.has_trace,
            "strip_model": timeline.strip_of(runs, now_us, self._site.zone) if snapshot.has_trace else None,
            "runs": [models.run_facts(row, now_us) for row in runs],
        }
        return "task.html", values, 200

    async def verification(self, request: Request) -> Response:
        """What the trace proves."""
        return await self.renderer.page(request, lambda: verification_of(self._site))


def cron_words(task: Task) -> str:
    """When a task is due."""
    return in_words(task.schedule.expression)


def _facts(task: Task, zone: str) -> list[Fact]:
    facts = [
        Fact("cron", task.schedule.text, is_code=True),
        Fact("in words", cron_words(task)),
        Fact("time zone", zone),
        Fact("retry after", words.length(task.retry_delay_us) if task.retry_delay_us else "at once"),
        Fact("retries so far", str(task.retry_count)),
        Fact("scheduler", task.scheduler_id, is_code=True),
    ]
    return [fact._replace(value=words.visible(fact.value)) for fact in facts if fact.value]


def _health(reasons: Sequence[str]) -> HealthShape:
    return HealthShape(ok=not reasons, reasons=list(reasons))


def _not_right(count: int) -> str:
    return "One thing is not right" if count == 1 else f"{count:,} things are not right"


def _tiles(entries: Sequence[TaskEntry], recent: Sequence[RunRow] | None) -> list[Tile]:
    counts = {kind: sum(entry.kind == kind for entry in entries) for kind in _KINDS}
    tiles = [Tile("tasks", f"{len(entries):,}", "/tasks", note=f"{counts['running']:,} running")]
    for kind, tone in (("failing", "bad"), ("overdue", "bad")):
        tiles.append(Tile(kind, f"{counts[kind]:,}", f"/tasks?only={kind}", tone if counts[kind] else "calm"))
    if recent is not None:
        failed = sum(row.result not in {None, "success"} for row in recent)
        note = f"{failed:,} not successful" if failed else ""
        tiles.append(Tile("runs in 24 h", f"{len(recent):,}", "/tasks", "warn" if failed else "calm", note))
    return tiles


def _next(entries: Sequence[TaskEntry], now_us: Instant) -> list[Next]:
    ahead = []
    for entry in entries:
        at_us = entry.next_us
        if at_us is not None and at_us < now_us:
            at_us = entry.task.schedule.due_after(now_us)  # what stands since then is told as overdue
        if at_us is not None and at_us < NEVER_US:
            ahead.append(Next(entry.task.name, entry.task.name, at_us, at_us == entry.task.retry_at_us))
    return sorted(ahead, key=lambda one: one.at_us)[:NEXT_SHOWN]
