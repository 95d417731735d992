"""The pages: which addresses there are, and what each gathers before its template makes a page of it.

A daemon has pages of services, timers and runs, a store has pages of tasks, and both have an overview and
what the monitor says. A page asks the site for what it shows, as the API does; it never changes anything.
What changes something is a POST to /act, which performs the operation of that name, and is audited there.
While the timers are off there are no pages of timers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from duly.config.schema import database_of
from duly.daemon import views
from duly.daemon.protocol import BUSY, DISABLED, NOT_FOUND, OperationError
from duly.daemon.remote import Place, RunList, refreshed, run_called, runs_of
from duly.instant import NEVER_US
from duly.store.history import MissRow, RemoteRun, RunRow
from duly.web import formatting, models, timeline
from duly.web.api import perform
from duly.web.formatting import Mark, Moment
from duly.web.overview import DaemonOverview, DayCounts, OverviewPage, history_of, store_overview
from duly.web.rendering import Gathered, NavigationLink, Renderer, message_page, static_file
from duly.web.runs import STRIP, lineage_of, output_piece, run_facts, strip_of
from duly.web.security import LOGIN, error_body, json_response, local_path, visitor
from duly.web.site import READ_ONLY, Site
from duly.web.task_store import TaskSnapshot, TaskStore

_RUNS_SHOWN = 25
_RUNS_PAGE = 100
_MISSES_SHOWN = 500
_SLOTS_SHOWN = 10
_ANSWERS_SHOWN = 8
_OUTPUT_PREVIEW = 20_000
"""Characters of the last output that the page of a service shows."""
_LAST_ID = 2**62
_WORST_FIRST = ("bad", "calm", "good")
_STATUSES = {NOT_FOUND: 404, DISABLED: 404, READ_ONLY: 403, BUSY: 503}
_DONE = {
    "start": "Started {id}.",
    "stop": "Stopped {id}.",
    "trigger": "Triggered {id}.",
    "enable": "Enabled {id}.",
    "disable": "Disabled {id}.",
}


def routes(site: Site) -> list[BaseRoute]:
    pages = Pages(site)
    return [
        pages.route("/", pages.overview),
        *(pages.daemon_routes() if site.tasks is None else pages.task_routes(site.tasks)),
        pages.route("/verification", pages.verification),
        Route(LOGIN, pages.log_in, methods=["GET"]),
        Route("/static/{name:path}", _static),
        Route("/favicon.ico", lambda _request: Response(status_code=204)),
    ]


async def _static(request: Request) -> Response:
    found = static_file(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return found


class Pages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._backend = site.backend
        self._renderer = Renderer(site, self._links, time.monotonic)
        self._day_counts = DayCounts()

    def route(self, path: str, gather: Callable[[Request], Awaitable[Gathered]]) -> Route:
        """A page that is shared by all who ask for it at about the same time."""

        async def answer(request: Request) -> Response:
            return await self._renderer.page(request, partial(gather, request))

        return Route(path, answer)

    def daemon_routes(self) -> list[BaseRoute]:
        return [
            self.route("/services", self.services),
            self.route("/services/{id:path}", self.service),
            self.route("/timers", self.timers),
            self.route("/timers/{id:path}", self.timer),
            self.route("/runs", self.runs),
            self.route("/runs/{id:int}", self.run),
            Route("/runs/{id:int}/output", self.output),
            self.route("/misses", self.misses),
            self.route("/invalid", self.invalid),
            Route("/act/{name}", self.ask, methods=["GET"]),
            Route("/act/{name}", self.act, methods=["POST"]),
            Route("/act/{name}/{id:path}", self.ask, methods=["GET"]),
            Route("/act/{name}/{id:path}", self.act, methods=["POST"]),
        ]

    def task_routes(self, store: TaskStore) -> list[BaseRoute]:
        return [
            self.route("/tasks", partial(self.tasks, store)),
            self.route("/tasks/{id:path}", partial(self.task, store)),
        ]

    def _links(self, path: str) -> list[NavigationLink]:
        config = self._backend.config
        has_timers = self._backend.daemon_status().is_timer_switch_on
        if self._site.tasks is not None:
            rows = [("/", "Overview"), ("/tasks", "Tasks")]
        else:
            rows = [("/", "Overview"), ("/services", "Services")]
            rows += [("/timers", "Timers")] if has_timers else []
            rows += [("/runs", "Runs")]
            rows += [("/misses", "Misses")] if has_timers else []
            rows += [("/invalid", "Invalid")]
        rows += [("/verification", "Verification")]
        violations = sum(one.count for one in self._site.observed.verification() or ())
        counts = {
            "/invalid": (len(config.invalid), "bad", "entries"),
            "/verification": (violations, "bad", "violations"),
        }
        return [
            NavigationLink(
                href,
                label,
                path == href or (href != "/" and path.startswith(f"{href}/")),
                *counts.get(href, ()),
            )
            for href, label in rows
        ]

    def _can_act(self, request: Request) -> bool:
        return self._renderer.may_act(visitor(request))

    def _moment(self) -> Moment:
        daemon_status = self._backend.daemon_status()
        return Moment(daemon_status.now_us, daemon_status.zone)

    # --- what every site has ---

    async def overview(self, request: Request) -> Gathered:
        hours = timeline.hours_of(request.query_params.get("hours", ""))
        store = self._site.tasks
        if store is None:
            page = await self._daemon_overview(hours)
        else:
            await store.look()
            page = await asyncio.to_thread(store_overview, store.snapshot, self._moment(), hours)
        return "overview.html", page._asdict(), 200

    async def _daemon_overview(self, hours: int) -> OverviewPage:
        backend, moment = self._backend, self._moment()
        window, day = timeline.window_at(moment, hours), timeline.window_at(moment)
        found = await history_of(backend, window, day, self._day_counts)
        # Without an await from here on: all of it is of one moment.
        daemon_status, snapshots = backend.daemon_status(), backend.timers()
        faults = (*daemon_status.faults, *found.faults)
        picture = DaemonOverview(
            daemon_status=msgspec.structs.replace(daemon_status, faults=faults),
            config=backend.config,
            services=list(backend.services()),
            timers=snapshots,
            window=window,
            history=found if snapshots is not None else found._replace(misses=[]),
        )
        return await asyncio.to_thread(picture.page)

    async def verification(self, _request: Request) -> Gathered:
        observed, verdicts = self._site.observed, None
        if (found := observed.verification()) is not None:
            unknown = formatting.RESULTS["unknown"]
            verdicts = [(one, formatting.VERDICTS.get(one.verdict, unknown)) for one in found]
        marks = sorted((mark for _, mark in verdicts or []), key=lambda mark: _WORST_FIRST.index(mark.tone))
        worst = marks[0] if marks else formatting.VERDICTS["holds"]
        values = {"verdicts": verdicts, "overall": worst, "unwatched": observed.unwatched}
        return "verification.html", values, 200

    async def log_in(self, request: Request) -> Response:
        values = {
            "csrf": visitor(request).csrf,
            "going": local_path(request.query_params.get("next", "/")),
            "has_failed": "failed" in request.query_params,
        }
        return await self._renderer.once(request, ("login.html", values, 200))

    # --- lists: services, timers, tasks ---

    async def _table(
        self,
        request: Request,
        listing: models.Listing,
        entries: Callable[[], Sequence[models.AnyEntry]],
        **more: Any,
    ) -> Gathered:
        asked = models.table_query(request.query_params, listing)
        # Of thousands of entries in a thread: the loop has timers to fire.
        table = await asyncio.to_thread(lambda: models.table_of(listing, entries(), asked))
        values = {"noun": listing.name, "table": table, "kinds": listing.kinds, **more}
        return f"{listing.name}.html", {**values, "can_act": self._can_act(request)}, 200

    async def services(self, request: Request) -> Gathered:
        if "id" in request.query_params:
            return await self.service(request)
        stale = await refreshed(self._backend)
        config, timers = self._backend.config, self._backend.timers()
        snapshots = list(self._backend.services())
        return await self._table(
            request,
            models.SERVICES,
            lambda: models.service_entries(config, snapshots, timers),
            has_timers=timers is not None,
            stale=stale,
        )

    async def timers(self, request: Request) -> Gathered:
        if "id" in request.query_params:
            return await self.timer(request)
        stale = await refreshed(self._backend)
        config, snapshots = self._backend.config, self._backend.timers()
        if snapshots is None:
            return self._timers_off()
        return await self._table(
            request, models.TIMERS, lambda: models.timer_entries(config, snapshots), stale=stale
        )

    async def tasks(self, store: TaskStore, request: Request) -> Gathered:
        if "id" in request.query_params:
            return await self.task(store, request)
        await store.look()
        snapshot, now_us = store.snapshot, store.now_us
        return await self._table(
            request,
            models.TASKS,
            lambda: [models.task_entry(task, now_us) for task in snapshot.tasks],
            damaged=snapshot.damaged,
        )

    # --- one of them ---

    async def service(self, request: Request) -> Gathered:
        name = _name_in(request)
        stale, found = await asyncio.gather(
            refreshed(self._backend), runs_of(self._backend, service=name, limit=STRIP)
        )
        last = await self._last(found)
        config, timers = self._backend.config, self._backend.timers()
        entry = models.entry_called(name, models.service_entries(config, self._backend.services(), timers))
        if entry is None:
            return _unknown("service", name)
        fired_by = [one for one in models.timer_entries(config, timers or {}) if one.timer.target == name]
        values = {
            "entry": entry,
            "stale": stale,
            "fired_by": fired_by if timers is not None else [],
            "can_act": self._can_act(request),
            **self._history(found, last),
        }
        return "service.html", values, 200

    async def timer(self, request: Request) -> Gathered:
        name = _name_in(request)
        if not self._backend.daemon_status().is_timer_switch_on:
            return self._timers_off()
        stale, found = await asyncio.gather(
            refreshed(self._backend), runs_of(self._backend, timer=name, limit=STRIP)
        )
        misses = await self._backend.history.misses(timer=name, limit=STRIP)
        last = await self._last(found)
        snapshots, moment = self._backend.timers(), self._moment()
        entry = models.entry_called(name, models.timer_entries(self._backend.config, snapshots or {}))
        if entry is None or snapshots is None:
            return _unknown("timer", name)
        values = {
            "entry": entry,
            "stale": stale,
            "can_act": self._can_act(request),
            **self._slots(entry, found, misses, moment),
            **self._history(found, last),
        }
        return "timer.html", values, 200

    def _slots(
        self, entry: models.TimerEntry, runs: RunList, misses: Sequence[MissRow], moment: Moment
    ) -> dict[str, Any]:
        from duly.web.upcoming import slots_ahead, slots_answered  # noqa: PLC0415 - the timers are on

        ahead = slots_ahead(entry.timer, entry.snapshot, moment, NEVER_US, _SLOTS_SHOWN)
        if entry.snapshot.next_us is not None:
            ahead = sorted({*ahead, entry.snapshot.next_us} - {NEVER_US, entry.snapshot.retry_at_us})
        answers = slots_answered(entry, runs.rows, misses, moment, _ANSWERS_SHOWN)
        return {"ahead": ahead[:_SLOTS_SHOWN], "answers": answers}

    async def _last(self, found: RunList) -> RunRow | None:
        """The latest run with its output; without it if the database has gone meanwhile."""
        if not found.rows:
            return None
        row = found.rows[0]
        with suppress(OperationError):
            return await self._row(row.id, _machine_of(row))
        return row

    def _history(self, found: RunList, last: RunRow | None) -> dict[str, Any]:
        moment = self._moment()
        return {
            "fault": found.fault,
            "strip_model": strip_of(found.rows, moment),
            "runs": [run_facts(row, moment.now_us) for row in found.rows[:_RUNS_SHOWN]],
            "last": None if last is None else run_facts(last, moment.now_us),
            "output": None if last is None else self._output(last, most=_OUTPUT_PREVIEW),
        }

    def _timers_off(self) -> Gathered:
        message = views.disabled(is_parent_on=self._backend.config.settings.enabled).message
        return message_page("Timers are off", message, "/", "Overview", 404)

    async def task(self, store: TaskStore, request: Request) -> Gathered:
        name = _name_in(request)
        await store.look()
        snapshot, moment = store.snapshot, Moment(store.now_us, store.zone)
        task = snapshot.task(name)
        if task is not None:
            entry = models.task_entry(task, moment.now_us)
            return await asyncio.to_thread(_task_page, store, snapshot, entry, moment)
        if (reason := snapshot.damaged.get(name)) is None:
            return _unknown("task", name)
        message = f"The row of {name} cannot be used: {reason}"
        return message_page("Damaged", message, "/tasks", "All tasks", 200)

    # --- runs ---

    async def runs(self, request: Request) -> Gathered:
        given = request.query_params
        chosen = {key: given[key] for key in ("service", "timer") if key in given}
        place = Place(*(formatting.whole_number(given.get(key, "")) for key in Place._fields))
        service, timer = chosen.get("service"), chosen.get("timer")
        found = await runs_of(self._backend, service=service, timer=timer, place=place, limit=_RUNS_PAGE)
        now_us = self._backend.daemon_status().now_us
        numbers = [] if found.older is None else found.older._asdict().items()
        goes_on = {key: number for key, number in numbers if number is not None}
        values = {
            "of": service or timer,
            "fault": found.fault,
            "runs": [run_facts(row, now_us) for row in found.rows],
            "newer": f"/runs?{urlencode(chosen)}" if place != Place() else None,
            "older": f"/runs?{urlencode({**chosen, **goes_on})}" if goes_on else None,
        }
        return "runs.html", values, 200

    async def run(self, request: Request) -> Gathered:
        run_id, machine = request.path_params["id"], request.query_params.get("machine")
        try:
            row = await self._row(run_id, machine)
        except OperationError as error:
            heading = f"Run {str(run_id)[:30]} cannot be shown"
            status = _STATUSES.get(error.code, 503)
            return message_page(heading, error.message, "/runs", "All runs", status)
        if row is None:
            return _unknown("run", str(run_id)[:30])
        around = await lineage_of(self._backend, row)
        is_there = any(service.id == row.service for service in self._backend.config.services)
        daemon_status = self._backend.daemon_status()
        values = {
            "run": run_facts(row, daemon_status.now_us),
            "output": self._output(row),
            "has_timers": daemon_status.is_timer_switch_on,
            "stop": models.action("stop", row.service) if is_there else None,
            "around": around,
            "can_act": self._can_act(request),
        }
        return "run.html", values, 200

    async def output(self, request: Request) -> Response:
        """What came of a run's output since somebody last asked."""
        row = await self._row(request.path_params["id"])
        if row is None:
            raise HTTPException(404)
        since, lost = (
            formatting.whole_number(request.query_params.get(key, "0")) for key in ("place", "lost")
        )
        text, lost_bytes = self._text(row)
        is_running = row.ended_us is None
        piece = output_piece(text, lost_bytes, since=since or 0, lost_before=lost or 0, is_running=is_running)
        return json_response(msgspec.json.encode(piece))

    async def _row(self, run_id: int, machine: str | None = None) -> RunRow | None:
        return await run_called(self._backend, run_id, machine) if run_id < _LAST_ID else None

    def _text(self, row: RunRow) -> tuple[str, int]:
        """The output of a run so far, and how many bytes before it are lost."""
        live = None if _machine_of(row) else self._backend.output(row.id)
        return (row.output, row.output_lost) if live is None else (live.text(), live.lost_bytes)

    def _output(self, row: RunRow, most: int | None = None) -> dict[str, Any]:
        text, lost_bytes = self._text(row)
        is_running = row.ended_us is None
        shown = formatting.settled_output(text) if is_running else text
        return {
            "text": formatting.printed_output(shown if most is None or is_running else shown[-most:]),
            "is_cut": most is not None and not is_running and len(shown) > most,
            "lost_bytes": lost_bytes,
            "place": len(shown),
            "tail": f"/runs/{row.id}/output" if is_running else None,
        }

    # --- what is wrong ---

    async def misses(self, _request: Request) -> Gathered:
        if not self._backend.daemon_status().is_timer_switch_on:
            return self._timers_off()
        rows = await self._backend.history.misses(limit=_MISSES_SHOWN + 1)
        values = {
            "misses": rows[:_MISSES_SHOWN],
            "is_cut": len(rows) > _MISSES_SHOWN,
            "is_shared": database_of(self._backend.config) is not None,
            "miss_words": views.MISSES,
            "missed": lambda row: Mark("bad", "miss", formatting.visible(row.reason)),
        }
        return "misses.html", values, 200

    async def invalid(self, _request: Request) -> Gathered:
        config = self._backend.config
        values = {
            "invalid": config.invalid,
            "warnings": config.warnings,
            "config_path": str(config.path),
            "bad": formatting.STATES["invalid"],
            "warn": Mark("warn", "cut", "warning"),
        }
        return "invalid.html", values, 200

    # --- acting ---

    async def ask(self, request: Request) -> Response:
        """Whether it is meant: for browsers without script."""
        wanted = _wanted_action(request)
        if not self._can_act(request):
            message = "Viewers may look, and change nothing."
            gathered = message_page("Not allowed", message, _home_of(wanted), "Back", 403)
        elif _is_of_timers(wanted) and not self._backend.daemon_status().is_timer_switch_on:
            gathered = self._timers_off()
        else:
            values = {"action": wanted, "csrf": visitor(request).csrf, "back": _home_of(wanted)}
            gathered = ("ask.html", values, 200)
        return await self._renderer.once(request, gathered)

    async def act(self, request: Request) -> Response:
        wanted = _wanted_action(request)
        who = visitor(request)
        is_script = "application/json" in request.headers.get("accept", "")
        try:
            done = await perform(self._site, wanted.name, {"id": wanted.id}, who.who)
        except OperationError as refusal:
            status = _STATUSES.get(refusal.code, 409)
            if is_script:
                return json_response(error_body(refusal.code, refusal.message), status)
            heading = f"{wanted.label} did not work"
            gathered = message_page(heading, refusal.message, _home_of(wanted), "Back", status)
            return await self._renderer.once(request, gathered)
        finally:
            self._renderer.forget()
        message = _DONE[wanted.name].format(id=formatting.visible(wanted.id))
        run = done.run
        undo = models.UNDONE_BY.get(wanted.name)
        if is_script:
            answer: dict[str, Any] = {
                "message": message,
                "run": run,
                "undo": undo and {"name": undo, "id": wanted.id},
            }
            answer["undo_href"] = models.action(undo, wanted.id).href if undo else None
            return json_response(msgspec.json.encode(answer))
        return RedirectResponse(f"/runs/{run}" if run is not None else _home_of(wanted), 303)


def _task_page(store: TaskStore, snapshot: TaskSnapshot, entry: models.TaskEntry, moment: Moment) -> Gathered:
    """One task. In a thread: what became of its latest dues may have to be looked for in a long trace."""
    runs = store.runs_of(snapshot, entry.id)
    has_runs = snapshot.has_trace or snapshot.has_history
    answers = [
        (formatting.SLOTS.get(kind, Mark("calm", "none", kind)), sentence)
        for kind, sentence in store.answers(entry.task, moment.now_us)
    ]
    values = {
        "entry": entry,
        "ahead": entry.dues_after(moment.now_us, NEVER_US, _SLOTS_SHOWN),
        "answers": answers,
        "has_runs": has_runs,
        "strip_model": strip_of(runs, moment) if has_runs else None,
        "runs": [run_facts(row, moment.now_us) for row in runs[:_RUNS_SHOWN]],
    }
    return "task.html", values, 200


def _unknown(kind: str, name: str) -> Gathered:
    return message_page("Not found", f"There is no {kind} {name[:200]}.", f"/{kind}s", f"All {kind}s", 404)


def _wanted_action(request: Request) -> models.Action:
    name = request.path_params["name"]
    about = _name_in(request)
    if name not in models.ACTIONS or not about:
        raise HTTPException(404)
    return models.action(name, about)


def _name_in(request: Request) -> str:
    """Of what an address is: in its path, or where that cannot be, in its query (`formatting.address`)."""
    name: str = request.path_params.get("id", request.query_params.get("id", ""))
    return name


def _home_of(wanted: models.Action) -> str:
    return formatting.address("timers" if _is_of_timers(wanted) else "services", wanted.id)


def _is_of_timers(wanted: models.Action) -> bool:
    return wanted.name not in {"start", "stop"}


def _machine_of(row: RunRow) -> str | None:
    """The machine of a run, if it is another."""
    return row.machine if isinstance(row, RemoteRun) else None
