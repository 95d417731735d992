"""The pages: which addresses there are, and what each gathers before its template makes a page of it.

A page asks the site's backend for what it shows, as the API does; it never changes anything. What changes
something is a POST to /act, which performs the operation of that name, and is audited there. While the gate
is closed there are no pages of timers.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from duly.daemon import views
from duly.daemon.backend import Backend
from duly.daemon.protocol import BUSY, DISABLED, NOT_FOUND, OperationError
from duly.instant import NEVER_US
from duly.store.history import MissRow, RunRow
from duly.web import models, store_pages, timeline, words
from duly.web.answers import error_body, json_response
from duly.web.api import perform
from duly.web.lineage import lineage_of
from duly.web.overview import Counted, Picture, seen
from duly.web.plain_pages import common_routes, told, unknown, verification_of
from duly.web.rendering import Gathered, Link, Renderer
from duly.web.security import visitor
from duly.web.site import READ_ONLY, Site
from duly.web.store_site import StoreSite

_RUNS_SHOWN = 25
_RUNS_PAGE = 100
_MISSES_SHOWN = 500
_SLOTS_SHOWN = 10
_ANSWERS_SHOWN = 8
_OUTPUT_PREVIEW = 20_000
"""Characters of the last output that the page of a service shows."""
_LAST_ID = 2**62
_SERVICE_KINDS = ("failed", "skipped", "waiting", "starting", "running", "stopped", "done", "disabled")
_TIMER_KINDS = ("failing", "running", "fine", "disabled")
_STATUSES = {NOT_FOUND: 404, DISABLED: 404, READ_ONLY: 403, BUSY: 503}
_DONE = {
    "start": "Started {id}.",
    "stop": "Stopped {id}.",
    "trigger": "Triggered {id}.",
    "enable": "Enabled {id}.",
    "disable": "Disabled {id}.",
}


def routes(site: Site) -> list[BaseRoute]:
    """All pages of a site."""
    if isinstance(site, StoreSite):
        return store_pages.routes(site)
    pages = Pages(site)
    return [
        Route("/", pages.overview),
        Route("/services", pages.services),
        Route("/services/{id:path}", pages.service),
        Route("/timers", pages.timers),
        Route("/timers/{id:path}", pages.timer),
        Route("/runs", pages.runs),
        Route("/runs/{id:int}", pages.run),
        Route("/runs/{id:int}/output", pages.output),
        Route("/misses", pages.misses),
        Route("/invalid", pages.invalid),
        Route("/verification", pages.verification),
        Route("/act/{name}", pages.ask, methods=["GET"]),
        Route("/act/{name}", pages.act, methods=["POST"]),
        Route("/act/{name}/{id:path}", pages.ask, methods=["GET"]),
        Route("/act/{name}/{id:path}", pages.act, methods=["POST"]),
        *common_routes(pages.renderer),
    ]


def error(_request: Request, status: int, message: str) -> Response:
    """What an error looks like to people who came by an address that no page of ours has."""
    return PlainTextResponse(f"{message}\n", status)


class Pages:
    """The pages of one site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.renderer = Renderer(site, self._links, time.monotonic)
        self._shelf: tuple[Any, Any] | None = None
        self._counted = Counted()

    @property
    def _backend(self) -> Backend:
        return self._site.backend

    def _links(self, path: str) -> list[Link]:
        config = self._backend.config
        has_timers = self._backend.standing().is_gate_open
        rows = [("/", "Overview"), ("/services", "Services")]
        rows += [("/timers", "Timers")] if has_timers else []
        rows += [("/runs", "Runs")]
        rows += [("/misses", "Misses")] if has_timers else []
        rows += [("/invalid", "Invalid"), ("/verification", "Verification")]
        counts = {"/invalid": (len(config.invalid), "bad", "entries")}
        if (verdicts := self._site.verification()) is not None:
            counts["/verification"] = (sum(one.count for one in verdicts), "bad", "violations")
        return [
            Link(
                href,
                label,
                path == href or (href != "/" and path.startswith(f"{href}/")),
                *counts.get(href, ()),
            )
            for href, label in rows
        ]

    def _can_act(self, request: Request) -> bool:
        return self.renderer.may_act(visitor(request))

    # --- the whole ---

    async def overview(self, request: Request) -> Response:
        """Whether all is well, what ran, and what comes."""
        hours = timeline.hours_of(request.query_params.get("hours", ""))

        async def gather() -> Gathered:
            backend = self._backend
            now_us = backend.standing().now_us
            window, day = timeline.window_at(now_us, hours), timeline.window_at(now_us)
            found = await seen(backend, window, day, self._counted)
            # Without an await from here on: all of it is of one moment.
            standing, readings = backend.standing(), backend.timers()
            standing = msgspec.structs.replace(standing, faults=(*standing.faults, *found.faults))
            picture = Picture(
                standing=standing,
                config=backend.config,
                services=list(backend.services()),
                timers=readings,
                window=window,
                runs=found.runs,
                latest=found.latest,
                misses=found.misses if readings is not None else [],
                counts=found.counts,
                left_out=found.left_out,
                shelf=None if readings is None else self._calendars(standing),
            )
            return "overview.html", await asyncio.to_thread(picture.values), 200

        return await self.renderer.page(request, gather)

    def _calendars(self, standing: views.Standing) -> Any:
        """The schedules of the timers; made once, as long as the configuration stays."""
        config = self._backend.config
        if self._shelf is None or self._shelf[0] is not config:
            from duly.web.upcoming import Shelf  # noqa: PLC0415 - the gate is open

            self._shelf = (config, Shelf(standing.zone))
        return self._shelf[1]

    # --- services and timers ---

    async def services(self, request: Request) -> Response:
        """All services."""
        if (one := request.query_params.get("id")) is not None:
            return await self._service(request, one)
        asked = models.asked_of(request.query_params, models.SERVICE_SORTS, _SERVICE_KINDS)

        async def gather() -> Gathered:
            config, readings, timers = (
                self._backend.config,
                list(self._backend.services()),
                self._backend.timers(),
            )

            def made() -> models.Table:
                return models.services_table(models.service_entries(config, readings, timers), asked)

            table = await asyncio.to_thread(made)
            values = {
                "table": table,
                "kinds": _SERVICE_KINDS,
                "can_act": self._can_act(request),
                "has_timers": timers is not None,
                "run_mark": timeline.mark_of,
            }
            return "services.html", values, 200

        return await self.renderer.page(request, gather)

    async def timers(self, request: Request) -> Response:
        """All timers."""
        if (one := request.query_params.get("id")) is not None:
            return await self._timer(request, one)
        asked = models.asked_of(request.query_params, models.TIMER_SORTS, _TIMER_KINDS)

        async def gather() -> Gathered:
            config, readings = self._backend.config, self._backend.timers()
            if readings is None:
                return self._gate_closed()

            def made() -> models.Table:
                return models.timers_table(models.timer_entries(config, readings), asked)

            table = await asyncio.to_thread(made)
            return (
                "timers.html",
                {"table": table, "kinds": _TIMER_KINDS, "can_act": self._can_act(request)},
                200,
            )

        return await self.renderer.page(request, gather)

    async def service(self, request: Request) -> Response:
        """One service."""
        return await self._service(request, request.path_params["id"])

    async def _service(self, request: Request, name: str) -> Response:
        async def gather() -> Gathered:
            runs = await self._backend.history.runs(service=name, limit=timeline.STRIP, with_output=False)
            last = await self._row(runs[0].id) if runs else None
            config, readings, timers = self._backend.config, self._backend.services(), self._backend.timers()
            entry = models.service_entry(config, name, readings, timers)
            if entry is None:
                return unknown("service", name, "/services")
            values = {
                "entry": entry,
                "definition": models.service_facts(entry.service),
                "fired_by": [] if timers is None else models.timers_of(config, timers, name),
                "can_act": self._can_act(request),
                **self._history(runs, last),
            }
            return "service.html", values, 200

        return await self.renderer.page(request, gather)

    async def timer(self, request: Request) -> Response:
        """One timer."""
        return await self._timer(request, request.path_params["id"])

    async def _timer(self, request: Request, name: str) -> Response:
        async def gather() -> Gathered:
            if not self._backend.standing().is_gate_open:
                return self._gate_closed()
            runs = await self._backend.history.runs(timer=name, limit=timeline.STRIP, with_output=False)
            misses = await self._backend.history.misses(timer=name, limit=timeline.STRIP)
            last = await self._row(runs[0].id) if runs else None
            config, readings, standing = (
                self._backend.config,
                self._backend.timers(),
                self._backend.standing(),
            )
            entry = models.timer_entry(config, name, readings or {})
            if entry is None or readings is None:
                return unknown("timer", name, "/timers")
            values = {
                "entry": entry,
                "definition": models.timer_facts(entry.timer, str(standing.zone)),
                "can_act": self._can_act(request),
                **self._calendar_of(entry, runs, misses, standing),
                **self._history(runs, last),
            }
            return "timer.html", values, 200

        return await self.renderer.page(request, gather)

    def _calendar_of(
        self,
        entry: models.TimerEntry,
        runs: Sequence[RunRow],
        misses: Sequence[MissRow],
        standing: views.Standing,
    ) -> dict[str, Any]:
        from duly.web.upcoming import answers, slots_ahead  # noqa: PLC0415 - the gate is open

        shelf, now_us = self._calendars(standing), standing.now_us
        ahead = slots_ahead(entry.timer, shelf, now_us, _LAST_ID, _SLOTS_SHOWN)
        if entry.reading.next_us is not None:
            ahead = sorted({*ahead, entry.reading.next_us} - {NEVER_US, entry.reading.retry_at_us})
        found = answers(
            entry.timer,
            entry.reading,
            runs,
            misses,
            shelf=shelf,
            default=standing.zone,
            now_us=now_us,
            count=_ANSWERS_SHOWN,
        )
        return {"ahead": ahead[:_SLOTS_SHOWN], "answers": found}

    def _history(self, runs: Sequence[RunRow], last: RunRow | None) -> dict[str, Any]:
        standing = self._backend.standing()
        return {
            "strip_model": timeline.strip_of(runs, standing.now_us, standing.zone),
            "runs": [models.run_facts(row, standing.now_us) for row in runs[:_RUNS_SHOWN]],
            "last": None if last is None else models.run_facts(last, standing.now_us),
            "output": None if last is None else self._output(last, most=_OUTPUT_PREVIEW),
        }

    def _gate_closed(self) -> Gathered:
        message = views.disabled(is_parent_on=self._backend.config.settings.enabled).message
        return told("Timers are off", message, "/", "Overview", 404)

    # --- runs ---

    async def runs(self, request: Request) -> Response:
        """What ran, newest first."""
        given = request.query_params
        chosen = {key: given[key] for key in ("service", "timer") if key in given}
        before = _run_id(given.get("before", ""))

        async def gather() -> Gathered:
            rows = await self._backend.history.runs(
                **chosen, before=before, limit=_RUNS_PAGE + 1, with_output=False
            )
            now_us = self._backend.standing().now_us
            shown = rows[:_RUNS_PAGE]
            values = {
                "of": chosen.get("service") or chosen.get("timer"),
                "runs": [models.run_facts(row, now_us) for row in shown],
                "newer": f"/runs?{urlencode(chosen)}" if before is not None else None,
                "older": f"/runs?{urlencode({**chosen, 'before': shown[-1].id})}"
                if len(rows) > _RUNS_PAGE
                else None,
            }
            return "runs.html", values, 200

        return await self.renderer.page(request, gather)

    async def run(self, request: Request) -> Response:
        """One run."""
        run_id = request.path_params["id"]

        async def gather() -> Gathered:
            row = await self._row(run_id)
            if row is None:
                return unknown("run", str(run_id)[:30], "/runs")
            around = await lineage_of(self._backend.history, row)
            is_there = any(service.id == row.service for service in self._backend.config.services)
            values = {
                "run": models.run_facts(row, self._backend.standing().now_us),
                "output": self._output(row),
                "has_timers": self._backend.standing().is_gate_open,
                "stop": models.action("stop", row.service) if is_there else None,
                "around": around,
                "can_act": self._can_act(request),
            }
            return "run.html", values, 200

        return await self.renderer.page(request, gather)

    async def output(self, request: Request) -> Response:
        """What came of a run's output since somebody last asked."""
        row = await self._row(request.path_params["id"])
        if row is None:
            raise HTTPException(404)
        since, lost = (_run_id(request.query_params.get(key, "0")) for key in ("place", "lost"))
        live = self._backend.output(row.id)
        text, lost_bytes = (row.output, row.output_lost) if live is None else (live.text(), live.lost_bytes)
        is_running = row.ended_us is None
        piece = models.output_piece(
            text, lost_bytes, since=since or 0, lost_before=lost or 0, is_running=is_running
        )
        return json_response(msgspec.json.encode(piece))

    async def _row(self, run_id: int) -> RunRow | None:
        return await self._backend.history.run(run_id) if run_id < _LAST_ID else None

    def _output(self, row: RunRow, most: int | None = None) -> dict[str, Any]:
        live = self._backend.output(row.id)
        text, lost_bytes = (row.output, row.output_lost) if live is None else (live.text(), live.lost_bytes)
        is_running = row.ended_us is None
        shown = words.settled(text) if is_running else text
        return {
            "text": words.printed(shown if most is None or is_running else shown[-most:]),
            "is_cut": most is not None and not is_running and len(shown) > most,
            "lost_bytes": lost_bytes,
            "place": len(shown),
            "tail": f"/runs/{row.id}/output" if is_running else None,
        }

    # --- what is wrong ---

    async def misses(self, request: Request) -> Response:
        """What did not run."""

        async def gather() -> Gathered:
            if not self._backend.standing().is_gate_open:
                return self._gate_closed()
            rows = await self._backend.history.misses(limit=_MISSES_SHOWN + 1)
            values = {
                "misses": rows[:_MISSES_SHOWN],
                "is_cut": len(rows) > _MISSES_SHOWN,
                "miss_words": words.MISSES,
                "missed": lambda row: words.Mark("bad", "miss", words.visible(row.reason)),
            }
            return "misses.html", values, 200

        return await self.renderer.page(request, gather)

    async def invalid(self, request: Request) -> Response:
        """Entries of the configuration that cannot be used."""

        async def gather() -> Gathered:
            config = self._backend.config
            values = {
                "invalid": config.invalid,
                "warnings": config.warnings,
                "config_path": str(config.path),
                "bad": words.STATES["invalid"],
                "warn": words.Mark("warn", "cut", "warning"),
            }
            return "invalid.html", values, 200

        return await self.renderer.page(request, gather)

    async def verification(self, request: Request) -> Response:
        """What the monitor says."""
        return await self.renderer.page(request, lambda: verification_of(self._site))

    # --- acting ---

    async def ask(self, request: Request) -> Response:
        """Whether it is meant: for browsers without script."""
        wanted = _wanted(request)
        if not self._can_act(request):
            heading, message = "Not allowed", "Viewers may look, and change nothing."
            return await self.renderer.once(request, *told(heading, message, _home_of(wanted), "Back", 403))
        if _is_of_timers(wanted) and not self._backend.standing().is_gate_open:
            return await self.renderer.once(request, *self._gate_closed())
        values = {"action": wanted, "csrf": visitor(request).csrf, "back": _home_of(wanted)}
        return await self.renderer.once(request, "ask.html", values)

    async def act(self, request: Request) -> Response:
        """Do it."""
        wanted = _wanted(request)
        who = visitor(request)
        is_script = "application/json" in request.headers.get("accept", "")
        try:
            done = await perform(self._site, wanted.name, {"id": wanted.id}, who.who)
        except OperationError as refusal:
            status = _STATUSES.get(refusal.code, 409)
            if is_script:
                return json_response(error_body(refusal.code, refusal.message), status)
            heading = f"{wanted.label} did not work"
            return await self.renderer.once(
                request, *told(heading, refusal.message, _home_of(wanted), "Back", status)
            )
        finally:
            self.renderer.forget()
        message = _DONE[wanted.name].format(id=words.visible(wanted.id))
        run = done.run
        if done.member is not None:  # it has the number there, and its page is there
            message, run = f"{message[:-1]} on {words.visible(done.member)}: run {run} there.", None
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


def _wanted(request: Request) -> models.Action:
    name = request.path_params["name"]
    about = request.path_params.get("id", request.query_params.get("id"))
    if name not in models.ACTIONS or not about:
        raise HTTPException(404)
    return models.action(name, about)


def _home_of(wanted: models.Action) -> str:
    return words.address("timers" if _is_of_timers(wanted) else "services", wanted.id)


def _is_of_timers(wanted: models.Action) -> bool:
    return wanted.name not in {"start", "stop"}


def _run_id(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) < 19
    return int(text) if is_number else None
