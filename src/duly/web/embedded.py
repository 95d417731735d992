"""The dashboard of an App inside another ASGI program: `api.mount("/jobs", app.dashboard())`.

It is the site of `duly dashboard`, and acts as well: run, cancel, pause, resume, remove. Each goes through
the control of the App, so a process that stands by passes it on. A SQLite store is read as a file, from
outside. With any other store the App is asked, and its newest 1,000 runs are all there is to see.

The program around it listens and ends connections. So streams of events are short here, because a server
that stops waits for them; and without a token only this machine is let in (`security.peer_refusal`).
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from duly.clock import HostClock
from duly.cluster.table import Nodes
from duly.core.task import Task
from duly.daemon import views
from duly.errors import StoreError
from duly.instant import SECOND_US, Instant
from duly.store.history import RunRow, WantedTaskRuns
from duly.web.app import create_app
from duly.web.live import Live
from duly.web.settings import WebSettings, checked_settings, usable_token
from duly.web.site import Site
from duly.web.task_memory import TaskMemory
from duly.web.task_store import TaskSnapshot, TaskStore, snapshot_of, zone_of_task

_STREAM_S = 5.0
"""So long a server that stops waits for an open page."""
_ASKED_EVERY_US = 2 * SECOND_US
_ANSWERS = 8
_NEWEST = WantedTaskRuns(limit=1_000, with_output=False)

Control = Callable[[str], Awaitable[object]]


class ReadableTasks(Protocol):
    """Keeps the tasks of the App: its backend (`engine.task_backend`)."""

    def known(self) -> Sequence[Task]: ...

    async def tasks(self) -> Sequence[Task]: ...

    async def past_runs(self, wanted: WantedTaskRuns, /) -> Sequence[RunRow]: ...


class EmbeddedApp(NamedTuple):
    """What the dashboard knows of an App."""

    name: str
    """Of its store."""
    path: Path | None
    """Of its store, if that is a SQLite file."""
    nodes: Callable[[], Awaitable[Nodes]] | None
    """Of the cluster, if it is one."""
    zone: tzinfo
    is_at_work: Callable[[], bool]
    backend: ReadableTasks
    tags_of: Callable[[Task], Sequence[str]]
    controls: Mapping[str, Control]
    announce: Callable[..., None]


class AppTasks(TaskStore):
    """The tasks of an App of this process."""

    def __init__(self, app: EmbeddedApp) -> None:
        self._app = app
        self._asked_us: Instant = 0
        self.is_shared = app.nodes is not None
        self._told: TaskSnapshot | None = None
        live = Live(secrets.token_hex(4), stream_s=_STREAM_S)
        path = app.path or Path(app.name)
        super().__init__(path, live, zone=app.zone, clock=HostClock(), answers=self._answers)

    @property
    def absence(self) -> str:
        return "" if self._app.is_at_work() else "this program has not started its tasks, or has stopped them"

    def daemon_status(self) -> views.DaemonStatus:
        state = "down" if self.absence else "running"
        return msgspec.structs.replace(super().daemon_status(), state=state, store=self._app.name)

    async def nodes(self) -> Nodes | None:
        return None if self.absence or self._app.nodes is None else await self._app.nodes()

    async def act(self, name: str, task: str, who: str) -> None:
        await self._app.controls[name](task)
        self._app.announce("OperatorAction", action=name, id=task, who=who)
        self._stamp, self._asked_us = None, 0  # seen at once

    async def look(self) -> None:
        if self._app.path is not None:
            await super().look()
            if self.snapshot is not self._told:
                # A file does not say what the program says of its tasks: whether one is disabled, its tags.
                self.snapshot = self._told = self._with_options(self.snapshot)
            return
        async with self._turn:
            if self.absence or abs(self.now_us - self._asked_us) < _ASKED_EVERY_US:
                return
            try:
                tasks, runs = await self._app.backend.tasks(), await self._app.backend.past_runs(_NEWEST)
                found = await asyncio.to_thread(snapshot_of, tasks, runs)
                found = replace(found, is_cut=len(runs) == _NEWEST.limit)
            except StoreError as error:
                found = replace(self.snapshot, faults=(error.message,))
            before, self.snapshot, self._asked_us = self.snapshot, self._with_options(found), self.now_us
            if before == self.snapshot:
                return
        self._publish_change()

    async def run(self, number: int) -> RunRow | None:
        row = await super().run(number)
        if row is None or self._app.path is not None:
            return row
        wanted = WantedTaskRuns(row.service, since_us=row.started_us, until_us=row.started_us + 1)
        found = await self._app.backend.past_runs(wanted)
        return next((one for one in found if one.id == number), row)

    def _with_options(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        known = {task.name: task for task in self._app.backend.known()}  # none if another process has them
        tasks = [
            msgspec.structs.replace(task, options=known[task.name].options) if task.name in known else task
            for task in snapshot.tasks
        ]
        tags = {task.name: self._app.tags_of(task) for task in tasks}
        return replace(snapshot, tasks=tasks, tags={name: some for name, some in tags.items() if some})

    def _answers(self, task: Task, now_us: Instant, at: datetime | None) -> list[tuple[str, str]]:
        memory = TaskMemory(task, zone_of_task(task, self.zone), now_us)
        found = [memory.why(at)] if at is not None else reversed(memory.why_latest(_ANSWERS))
        return [(str(answer.kind), answer.sentence) for answer in found]


def dashboard_of(app: EmbeddedApp, *, token: str | None, viewer_token: str | None, is_open: bool) -> ASGIApp:
    """The site of *app*, to be mounted. Raises WebRefusedError if a token is too short."""
    settings = checked_settings(
        WebSettings(
            operator_token=None
            if token is None
            else usable_token(token.encode(), "App.dashboard(token=...)"),
            viewer_token=(
                None
                if viewer_token is None
                else usable_token(viewer_token.encode(), "App.dashboard(viewer_token=...)")
            ),
            is_embedded=True,
            is_open=is_open,
        )
    )
    tasks = AppTasks(app)
    site = Site(Path(app.name).name, tasks, tasks.live, tasks, tasks.unready, tasks, act=tasks.act)
    served = create_app(site, settings)
    watching: set[asyncio.Task[None]] = set()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not watching:
            # For as long as somebody looks: there is nobody to end it.
            task = asyncio.create_task(tasks.watch_while_wanted())
            watching.add(task)
            task.add_done_callback(watching.discard)
        await served(scope, receive, send)

    return serve
