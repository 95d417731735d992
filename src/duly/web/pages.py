"""The pages: which addresses there are, and what each gathers before its template makes a page of it.

Every page asks the `PageSource` of the site, and so is the same for a daemon and for a store. A page never
changes anything. What changes something is a POST to /act, which performs the operation of that name, and is
audited there. While the timers are off there are no pages of timers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from duly.config.schema import database_of
from duly.core.causes import Reason
from duly.daemon import health, views
from duly.daemon.protocol import BUSY, DISABLED, NOT_FOUND, OperationError
from duly.errors import StoreError
from duly.formatting import counted
from duly.instant import DAY_US, MINUTE_US, datetime_at, instant_of
from duly.store.history import FAILURES, RunRow, RunSearch, Span
from duly.web import formatting, models, timeline
from duly.web.acting import act
from duly.web.daemon_source import DaemonSource, service_facts
from duly.web.formatting import Mark, Moment
from duly.web.overview import overview_of, plan_of, tone_of
from duly.web.rendering import Gathered, NavigationLink, Renderer, message_page, static_file, zone_asked
from duly.web.runs import (
    PAGE,
    RESULTS,
    Lineage,
    RunsQuery,
    compared,
    lineage_of,
    machine_of,
    output_piece,
    plot_of,
    run_facts,
    runs_query,
    year_of,
)
from duly.web.security import LOGIN, error_body, json_response, local_path, visitor
from duly.web.site import READ_ONLY, Site
from duly.web.source import Alarm, Lane, PageSource, Picture
from duly.web.task_source import TaskSource

_RUNS_SHOWN = 15
_PLOTTED = 300
_PLANNED = 200
_OUTPUT_PREVIEW = 20_000
"""Characters of an output that are in the page; the script asks for the rest."""
_YEAR_US = 365 * DAY_US
_MOST_KEPT = 16
_FRESH_S = 1.0
"""For so long a time line is the same for all who look at it."""
_LAST_ID = 2**62
_FIRST_YEAR, _LAST_YEAR = 1900, 9000
_WORST_FIRST = ("bad", "calm", "good")
_STATUSES = {NOT_FOUND: 404, DISABLED: 404, READ_ONLY: 403, BUSY: 503}
_DONE = {
    "start": "Started {id}.",
    "stop": "Stopped {id}.",
    "trigger": "Triggered {id}.",
    "enable": "Enabled {id}.",
    "disable": "Disabled {id}.",
    "run": "Asked for a run of {id}.",
    "cancel": "Cancelled the run of {id}.",
    "pause": "Paused {id}.",
    "resume": "Resumed {id}.",
    "remove": "Removed {id}.",
}

PageGathering = Callable[[Request, Picture], Awaitable[Gathered]]


async def _static(request: Request) -> Response:
    found = static_file(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return found


class Pages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._backend = site.backend
        self._source: PageSource = (
            DaemonSource(site.backend) if site.tasks is None else TaskSource(site.tasks)
        )
        self._nouns = ("services", "timers") if site.tasks is None else ("tasks",)
        self._renderer = Renderer(site, self._links, time.monotonic)
        self._picture: tuple[object, float, Picture] | None = None
        """The last that was looked at: of which moment, and when."""
        self._timelines: dict[tuple[bytes, str], _KeptAnswer] = {}

    def routes(self) -> list[BaseRoute]:
        found: list[BaseRoute] = [
            self._route("/", self.overview),
            self._route("/runs", self.runs),
            self._route("/runs/{id:int}", self.run),
            Route("/runs/{id:int}/output", self.output),
            self._route("/plan", self.plan),
            self._route("/verification", self.verification),
            self._route("/machines", self.machines),
            Route("/api/v1/timeline", self.timeline, methods=["GET"]),
            Route(LOGIN, self.log_in, methods=["GET"]),
            Route("/static/{name:path}", _static),
            Route("/favicon.ico", lambda _request: Response(status_code=204)),
            Route("/act/rerun", self.ask_rerun, methods=["GET"]),
            Route("/act/rerun", self.rerun, methods=["POST"]),
            Route("/act/{name}", self.ask, methods=["GET"]),
            Route("/act/{name}", self.act, methods=["POST"]),
            Route("/act/{name}/{id:path}", self.ask, methods=["GET"]),
            Route("/act/{name}/{id:path}", self.act, methods=["POST"]),
        ]
        if self._site.tasks is not None:
            found += [
                self._route("/tasks", partial(self.listing, "tasks")),
                self._route("/tasks/{id:path}", partial(self.entry, "tasks")),
            ]
        else:
            found += [
                self._route("/services", partial(self.listing, "services")),
                self._route("/services/{id:path}", partial(self.entry, "services")),
                self._route("/timers", partial(self.listing, "timers")),
                self._route("/timers/{id:path}", partial(self.entry, "timers")),
                self._route("/misses", self.misses),
                self._route("/invalid", self.invalid),
            ]
        return found

    def _route(self, path: str, gathering: PageGathering) -> Route:
        """A page that is shared by all who ask for it at about the same time."""

        async def gather(request: Request) -> Gathered:
            picture = await self._look(zone_asked(request))
            # Of thousands of entries in a thread: the loop has timers to fire.
            alarms = await asyncio.to_thread(picture.alarms)
            request.state.alarms = alarms
            template, values, status = await gathering(request, picture)
            bad = sum(alarm.tone == "bad" for alarm in alarms)
            return template, {"t": picture.moment, "ill": bad, "tone": tone_of(alarms), **values}, status

        async def answer(request: Request) -> Response:
            return await self._renderer.page(request, partial(gather, request))

        return Route(path, answer)

    def _links(self, path: str, ill: int) -> list[NavigationLink]:
        config = self._backend.config
        has_timers = self._backend.daemon_status().is_timer_switch_on
        nouns = [noun for noun in self._nouns if has_timers or noun != "timers"]
        rows = [("/", "Overview"), *((f"/{noun}", noun.capitalize()) for noun in nouns), ("/runs", "Runs")]
        if self._site.tasks is None:
            rows += [("/misses", "Misses")] if has_timers else []
            rows += [("/invalid", "Invalid")]
        rows += [("/machines", "Machines")] if self._is_shared else []
        rows += [("/verification", "Verification")]
        violations = sum(one.count for one in self._site.observed.verification() or ())
        counts = {
            "/": (ill, "bad", "things are not right"),
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

    @property
    def _is_shared(self) -> bool:
        tasks = self._site.tasks
        return database_of(self._backend.config) is not None if tasks is None else tasks.is_shared

    def _can_act(self, request: Request) -> bool:
        return self._renderer.may_act(visitor(request))

    async def _look(self, zone: tzinfo | None) -> Picture:
        picture = await self._source.look(zone)
        self._picture = ((zone, self._site.live.last), time.monotonic(), picture)
        return picture

    async def _recent(self, zone: tzinfo | None) -> Picture:
        """How everything was a moment ago, if nothing has happened since: a time line is zoomed in steps."""
        kept = self._picture
        if kept is None or kept[0] != (zone, self._site.live.last) or time.monotonic() > kept[1] + _FRESH_S:
            return await self._look(zone)
        return kept[2]

    def _forget(self) -> None:
        """Something was just changed: look at everything again."""
        self._picture = None
        self._renderer.forget()

    async def not_found(self, request: Request) -> Response:
        message = "There is no page at this address."
        return await self._renderer.once(request, message_page("Not found", message, "/", "Overview", 404))

    # --- what is looked at first ---

    async def overview(self, request: Request, picture: Picture) -> Gathered:
        alarms: Sequence[Alarm] = request.state.alarms
        page = await overview_of(self._source, picture, alarms)
        status = self._backend.daemon_status()
        closed = views.disabled(is_parent_on=self._backend.config.settings.enabled).message
        is_off = self._site.tasks is None and not status.is_timer_switch_on
        values = {
            "page": page,
            "tone": page.tone,
            "stale": picture.stale,
            "started_us": status.started_us,
            "status_words": _STATUS_WORDS.get(status.state, "as its store has it"),
            "switch_message": closed if is_off else "",
        }
        return "overview.html", values, 200

    async def timeline(self, request: Request) -> Response:
        """The lanes and the span that somebody looks at; shared by all who look at the same."""
        key = (request.scope["query_string"], str(zone_asked(request)))
        kept = self._timelines.get(key)
        if kept is None or not kept.is_fresh(time.monotonic()):
            kept = _KeptAnswer(asyncio.create_task(self._timeline(request)), time.monotonic())
            self._timelines[key] = kept
            while len(self._timelines) > _MOST_KEPT:
                del self._timelines[next(iter(self._timelines))]
        # Shielded: who disconnects must not cancel the answer for the others who wait for it.
        return json_response(await asyncio.shield(kept.task))

    async def _timeline(self, request: Request) -> bytes:
        picture, query = await self._recent(zone_asked(request)), request.query_params
        span = timeline.span_of(query, picture.moment.now_us)
        shown = await asyncio.to_thread(timeline.lanes_of, picture, query)
        found = await self._source.buckets(shown[1], span)
        answer = await asyncio.to_thread(timeline.timeline_of, picture, span, shown, found)
        return msgspec.json.encode(answer)

    async def plan(self, request: Request, picture: Picture) -> Gathered:
        """What is due in a span to come, and what will run beside it."""
        span = timeline.span_of(request.query_params, picture.moment.now_us)
        from_us = max(span.from_us, picture.moment.now_us)
        planned = await asyncio.to_thread(plan_of, picture, from_us, span.to_us, _PLANNED + 1)
        values = {
            "planned": planned[:_PLANNED],
            "is_cut": len(planned) > _PLANNED,
            "from_us": from_us,
            "to_us": span.to_us,
        }
        return "plan.html", values, 200

    async def verification(self, _request: Request, _picture: Picture) -> Gathered:
        observed, verdicts = self._site.observed, None
        if (found := observed.verification()) is not None:
            unknown = formatting.RESULTS["unknown"]
            verdicts = [(one, formatting.VERDICTS.get(one.verdict, unknown)) for one in found]
        marks = sorted((mark for _, mark in verdicts or []), key=lambda mark: _WORST_FIRST.index(mark.tone))
        worst = marks[0] if marks else formatting.VERDICTS["holds"]
        values = {"verdicts": verdicts, "overall": worst, "unwatched": observed.unwatched}
        return "verification.html", values, 200

    async def machines(self, _request: Request, _picture: Picture) -> Gathered:
        """Who shares the timers or tasks, as the database has it now."""
        try:
            nodes, fault = await self._backend.nodes(), None
        except (OperationError, StoreError) as error:
            nodes, fault = None, error.message
        noun = "timers" if self._site.tasks is None else "tasks"
        values = {"nodes": nodes, "fault": fault, "noun": noun, "marks": formatting.NODES}
        return "machines.html", values, 200

    async def log_in(self, request: Request) -> Response:
        values = {
            "csrf": visitor(request).csrf,
            "going": local_path(request.query_params.get("next", "/")),
            "has_failed": "failed" in request.query_params,
        }
        return await self._renderer.once(request, ("login.html", values, 200))

    # --- entries: services, timers, tasks ---

    async def listing(self, noun: str, request: Request, picture: Picture) -> Gathered:
        if "id" in request.query_params:
            return await self.entry(noun, request, picture)
        listing = next((one for one in picture.listings() if one.name == noun), None)
        if listing is None:
            return self._timers_off()
        asked = models.table_query(request.query_params, listing)
        table = await asyncio.to_thread(lambda: models.table_of(listing, picture.entries(noun), asked))
        values = {
            "noun": noun,
            "table": table,
            "kinds": listing.kinds,
            "stale": picture.stale,
            "has_timers": len(picture.listings()) > 1,
            "damaged": {} if self._site.tasks is None else self._site.tasks.snapshot.damaged,
            "can_act": self._can_act(request),
        }
        return f"{noun}.html", values, 200

    async def entry(self, noun: str, request: Request, picture: Picture) -> Gathered:
        name, moment, query = _name_in(request), picture.moment, request.query_params
        if all(listing.name != noun for listing in picture.listings()):
            return self._timers_off()
        entries = await asyncio.to_thread(picture.entries, noun)
        entry = models.entry_called(name, entries)
        if entry is None:
            return self._damaged(name) or _unknown(noun.removesuffix("s"), name)
        wanted = RunSearch(timer=name) if noun == "timers" else RunSearch(service=name)
        at = _moment_in(query.get("at", ""))
        details = await self._source.details(picture, entry, at)
        found = await self._source.runs(wanted._replace(limit=_PLOTTED))
        year_us = moment.now_us // MINUTE_US * MINUTE_US - _YEAR_US
        lane = Lane(details.target or name, noun, entry.mark, timers=[name])
        hours = await self._source.buckets([lane], Span(year_us, moment.now_us + MINUTE_US, 60 * MINUTE_US))
        href = formatting.with_query("/runs", {noun.removesuffix("s").replace("task", "service"): name})
        last = found.rows[0] if found.rows else None
        failed = next((row for row in found.rows if row.ended_us is not None), None)
        failed = failed if failed is not None and failed.result in FAILURES and failed is not last else None
        values = {
            "noun": noun,
            "entry": entry,
            "details": details,
            "fault": found.fault,
            "stale": picture.stale,
            "asked_at": _face_of(at, moment.zone_of(details.zone)),
            "bad_at": query.get("at", "")[:40] if at is None else "",
            "runs": [run_facts(row, moment.now_us) for row in found.rows[:_RUNS_SHOWN]],
            "runs_href": href,
            "plot": await asyncio.to_thread(plot_of, found.rows, moment),
            "year": await asyncio.to_thread(year_of, hours.runs, year_us, moment, href),
            "outputs": [
                (run_facts(row, moment.now_us), self._output(row, most=_OUTPUT_PREVIEW))
                for each in (last, failed)
                if each is not None and (row := await self._with_output(each)) is not None
            ],
            "can_act": self._can_act(request),
        }
        return "entry.html", values, 200

    async def _with_output(self, row: RunRow) -> RunRow:
        """The run with its output; without it if the database has gone meanwhile."""
        try:
            return await self._source.run(row.id, machine_of(row)) or row
        except OperationError:
            return row

    def _damaged(self, name: str) -> Gathered | None:
        store = self._site.tasks
        if store is None or (reason := store.snapshot.damaged.get(name)) is None:
            return None
        message = f"The row of {name} cannot be used: {reason}"
        return message_page("Damaged", message, "/tasks", "All tasks", 200)

    def _timers_off(self) -> Gathered:
        message = views.disabled(is_parent_on=self._backend.config.settings.enabled).message
        return message_page("Timers are off", message, "/", "Overview", 404)

    # --- runs ---

    async def runs(self, request: Request, picture: Picture) -> Gathered:
        asked = runs_query(request.query_params, picture.moment.zone)
        now_us = picture.moment.now_us
        machine = {"": None, "here": ""}.get(asked.machine, asked.machine)
        found = await self._source.runs(asked.search(now_us, picture.tagged), machine=machine)
        values = {
            "asked": asked,
            "fault": found.fault,
            "runs": [run_facts(row, now_us) for row in found.rows[:PAGE]],
            "has_more": len(found.rows) > PAGE,
            "results": RESULTS,
            "reasons": list(Reason),
            "tags": sorted(picture.tagged),
            "noun": self._nouns[0],
            "has_machines": database_of(self._backend.config) is not None or bool(asked.machine),
            "is_any_asked": bool(set(asked.fields) - {"sort", "dir", "page"}),
            "can_rerun": asked.result == "failed" and self._can_act(request),
        }
        return "runs.html", values, 200

    async def run(self, request: Request, picture: Picture) -> Gathered:
        run_id, machine = request.path_params["id"], request.query_params.get("machine")
        try:
            row = await self._row(run_id, machine)
        except OperationError as error:
            heading = f"Run {str(run_id)[:30]} cannot be shown"
            status = _STATUSES.get(error.code, 503)
            return message_page(heading, error.message, "/runs", "All runs", status)
        if row is None:
            return _unknown("run", str(run_id)[:30])
        around = Lineage() if self._site.tasks is not None else await lineage_of(self._backend, row)
        service = next((one for one in self._backend.config.services if one.id == row.service), None)
        better = await self._source.runs(
            RunSearch(service=row.service, results=("success",), until_us=row.started_us, limit=1)
        )
        before = next(iter(better.rows), None)
        difference = None
        if before is not None and "compare" in request.query_params:
            before = await self._with_output(before)
            texts = (self._source.output(before).text, self._source.output(row).text)
            difference = await asyncio.to_thread(compared, *texts)
        can_start = service is not None and service.enabled
        if self._site.tasks is not None:
            can_start = self._site.tasks.snapshot.task(row.service) is not None
        is_live = row.ended_us is None
        values = {
            "run": run_facts(row, picture.moment.now_us),
            "output": self._output(row, most=_OUTPUT_PREVIEW),
            "noun": self._nouns[0],
            "has_timers": len(picture.listings()) > 1,
            "actions": [self._run_action(row, is_live=is_live)] if can_start else [],
            "facts": [] if service is None else list(service_facts(service)),
            "around": around,
            "before": None if before is None else run_facts(before, picture.moment.now_us),
            "difference": difference,
            "can_act": self._can_act(request),
        }
        return "run.html", values, 200

    async def output(self, request: Request) -> Response:
        """What came of a run's output since somebody last asked; or all of it, to keep."""
        query = request.query_params
        try:
            row = await self._row(request.path_params["id"], query.get("machine"))
        except OperationError as error:
            return json_response(error_body(error.code, error.message), _STATUSES.get(error.code, 503))
        if row is None:
            raise HTTPException(404)
        output = self._source.output(row)
        if "download" in query:
            headers = {"content-disposition": f'attachment; filename="run-{row.id}.txt"'}
            return PlainTextResponse(output.text.encode(errors="replace"), headers=headers)
        since, lost = (formatting.whole_number(query.get(key, "0")) for key in ("place", "lost"))
        status = self._backend.daemon_status()
        moment = Moment(status.now_us, zone_asked(request) or status.zone)
        piece = output_piece(row, output, moment, since=since or 0, lost_before=lost or 0)
        return json_response(msgspec.json.encode(piece))

    async def _row(self, run_id: int, machine: str | None = None) -> RunRow | None:
        return await self._source.run(run_id, machine) if run_id < _LAST_ID else None

    def _output(self, row: RunRow, most: int) -> dict[str, Any]:
        output = self._source.output(row)
        is_running = row.ended_us is None
        text = formatting.settled_output(output.text) if is_running else output.text
        address = formatting.with_query(
            f"/runs/{row.id}/output", {} if machine_of(row) is None else {"machine": machine_of(row)}
        )
        return {
            "text": formatting.printed_output(text[-most:]),
            "is_cut": len(text) > most,
            "lost_bytes": output.lost_bytes,
            "address": address if row.id > 0 else "",
            "is_running": is_running,
        }

    # --- what is wrong ---

    async def misses(self, request: Request, picture: Picture) -> Gathered:
        if len(picture.listings()) < 2:
            return self._timers_off()
        is_day = request.query_params.get("since") == "24h"
        groups = await self._source.misses(picture.moment.now_us - DAY_US if is_day else 0)
        values = {
            "groups": groups,
            "is_day": is_day,
            "is_shared": database_of(self._backend.config) is not None,
            "miss_words": views.MISSES,
            "missed": formatting.miss_mark,
        }
        return "misses.html", values, 200

    async def invalid(self, _request: Request, _picture: Picture) -> Gathered:
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
        wanted = self._wanted_action(request)
        if not self._can_act(request):
            message = "Viewers may look, and change nothing."
            gathered = message_page("Not allowed", message, _home_of(wanted), "Back", 403)
        elif models.NOUNS[wanted.name] == "timers" and not self._backend.daemon_status().is_timer_switch_on:
            gathered = self._timers_off()
        else:
            values = {"action": wanted, "csrf": visitor(request).csrf, "back": _home_of(wanted)}
            gathered = ("ask.html", values, 200)
        return await self._renderer.once(request, gathered)

    async def act(self, request: Request) -> Response:
        wanted = self._wanted_action(request)
        who = visitor(request)
        is_script = "application/json" in request.headers.get("accept", "")
        try:
            run = await act(self._site, wanted.name, wanted.id, who.who)
        except OperationError as refusal:
            status = _STATUSES.get(refusal.code, 409)
            if is_script:
                return json_response(error_body(refusal.code, refusal.message), status)
            heading = f"{wanted.label} did not work"
            gathered = message_page(heading, refusal.message, _home_of(wanted), "Back", status)
            return await self._renderer.once(request, gathered)
        finally:
            self._forget()
        message = _DONE[wanted.name].format(id=formatting.visible(wanted.id))
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

    def _wanted_action(self, request: Request) -> models.Action:
        name = request.path_params["name"]
        about = _name_in(request)
        if models.NOUNS.get(name) not in self._nouns or not about:
            raise HTTPException(404)
        return models.action(name, about)

    def _run_action(self, row: RunRow, *, is_live: bool) -> models.Action:
        first, again = ("stop", "start") if self._site.tasks is None else ("cancel", "run")
        if is_live:
            return models.action(first, row.service)
        return models.action(again, row.service)._replace(label="Run again")

    async def ask_rerun(self, request: Request) -> Response:
        """Whether it is meant that all failed jobs of a list run again."""
        if not self._can_act(request):
            message = "Viewers may look, and change nothing."
            return await self._renderer.once(
                request, message_page("Not allowed", message, "/runs", "Back", 403)
            )
        asked, names = await self._failing_now(request)
        values = {
            "names": names,
            "back": asked.href(),
            "address": f"/act/rerun?{request.scope['query_string'].decode('latin-1')}",
            "csrf": visitor(request).csrf,
        }
        return await self._renderer.once(request, ("rerun.html", values, 200))

    async def rerun(self, request: Request) -> Response:
        asked, names = await self._failing_now(request)
        who, refused = visitor(request).who, []
        for name in names:
            try:
                await act(self._site, "start" if self._site.tasks is None else "run", name, who)
            except OperationError as refusal:
                if refusal.code == READ_ONLY:
                    raise HTTPException(403) from refusal
                refused.append(f"{name}: {refusal.message}")
        self._forget()
        if not refused:
            return RedirectResponse("/runs", 303)
        message = f"{counted(len(refused), 'job')} did not start. {'; '.join(refused)}"
        return await self._renderer.once(
            request, message_page("Not all started", message, asked.href(), "Back", 409)
        )

    async def _failing_now(self, request: Request) -> tuple[RunsQuery, list[str]]:
        """The jobs in a list of runs whose latest run failed."""
        picture = await self._look(zone_asked(request))
        asked = runs_query(request.query_params, picture.moment.zone)._replace(result="failed", page=1)
        found = await self._source.runs(asked.search(picture.moment.now_us, picture.tagged))
        entries = await asyncio.to_thread(picture.entries, self._nouns[0])
        failing = {
            entry.id
            for entry in entries
            if entry.kind in {health.FAILING, health.NEVER_SUCCEEDED, "failed"}
            and (entry.is_job if isinstance(entry, models.ServiceEntry) else True)
        }
        return asked, list(dict.fromkeys(row.service for row in found.rows if row.service in failing))


class _KeptAnswer(NamedTuple):
    """An answer that is made, or being made."""

    task: asyncio.Task[bytes]
    made_s: float

    def is_fresh(self, now_s: float) -> bool:
        if not self.task.done():
            return True
        return not self.task.cancelled() and not self.task.exception() and now_s < self.made_s + _FRESH_S


def _moment_in(text: str) -> datetime | None:
    """The minute that is asked for: by the clocks of a schedule, unless it has an offset."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if _FIRST_YEAR <= at.year < _LAST_YEAR else None  # all zones can tell it


def _face_of(at: datetime | None, zone: tzinfo) -> str:
    """A minute as a field of a form has it."""
    if at is None:
        return ""
    face = at if at.tzinfo is None else datetime_at(instant_of(at), zone)
    return f"{face:%Y-%m-%dT%H:%M}"


_STATUS_WORDS = {
    "starting": "starting up",
    "stopping": "stopping",
    "down": "not running",
    "running": "running",
}


def _unknown(kind: str, name: str) -> Gathered:
    return message_page("Not found", f"There is no {kind} {name[:200]}.", f"/{kind}s", f"All {kind}s", 404)


def _name_in(request: Request) -> str:
    """Of what an address is: in its path, or where that cannot be, in its query (`formatting.address`)."""
    name: str = request.path_params.get("id", request.query_params.get("id", ""))
    return name


def _home_of(wanted: models.Action) -> str:
    return formatting.address(models.NOUNS[wanted.name], wanted.id)
