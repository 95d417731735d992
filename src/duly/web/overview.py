"""The overview: one picture of everything, at one moment. Pure but for `seen`, so that a thread can make it.

What the history says is asked for before. One that cannot be read leaves the picture without runs, and is a
reason of bad health: then above all somebody wants to see how everything is. The overview of a daemon and
that of a store are made of the same parts (`OverviewPage`).
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from duly.config.schema import Config, database_of
from duly.daemon import views
from duly.daemon.backend import ReadBackend
from duly.daemon.health import health
from duly.daemon.json_types import HealthJson
from duly.daemon.remote import refreshed, runs_between, runs_of
from duly.errors import StoreError
from duly.instant import Instant
from duly.store.history import MissRow, RemoteRun, RunRow
from duly.web import models, timeline
from duly.web.formatting import Moment
from duly.web.runs import RunFacts, run_facts
from duly.web.task_store import TaskSnapshot

NEXT_SHOWN = 10
"""Firings to come, and runs that were, in the lists."""
_MOST_REASONS = 8
"""Reasons of bad health that are listed one by one."""
_MOST_DRAWN = 1_500
"""Runs that the time line looks at; if there are more, it says so."""
_MOST_MISSES = 5_000


class Tile(NamedTuple):
    label: str
    value: str
    href: str
    tone: str = "calm"
    note: str = ""


class OverviewPage(NamedTuple):
    health: HealthJson
    headline: str
    status_words: str
    tiles: Sequence[Tile]
    timeline: timeline.TimelineView
    next: Sequence[models.Next] | None
    latest: Sequence[RunFacts]
    kinds: tuple[str, str]
    """The pages of what comes next, and of what ran."""
    more_href: str
    """Where more reasons of bad health are found."""
    most_reasons: int = _MOST_REASONS
    has_runs: bool = False
    """Whether each run has a page."""
    started_us: Instant | None = None
    switch_message: str = ""
    """Why there are no timers."""
    fault: str | None = None
    """Why runs of other machines are missing, if so."""
    stale: str | None = None
    """Why timers may be shown as they were, if so."""
    drawn_since_us: Instant | None = None
    """Since when all runs are drawn; None if all are."""


# --- what the history of a daemon says ---


class OverviewHistory(NamedTuple):
    runs: Sequence[RunRow] = ()
    latest: Sequence[RunRow] = ()
    misses: Sequence[MissRow] = ()
    counts: Mapping[str | None, int] = {}
    left_out: bool = False
    """Whether there are older runs than those."""
    is_counted: bool = True
    """Whether all runs of the day are in the counts."""
    fault: str | None = None
    """Why runs of other machines are missing, if so."""
    stale: str | None = None
    """Why timers may be shown as they were, if so."""
    faults: tuple[str, ...] = ()


class DayCounts:
    """How the runs of a day ended. A hundred thousand of them are counted once a minute, not for each page.

    What began before this minute stays as it was, but for runs under way: when one of those ends, all are
    counted anew.
    """

    def __init__(self) -> None:
        self._kept: tuple[timeline.Window, frozenset[int], Counter[str | None]] | None = None

    async def of(self, backend: ReadBackend, day: timeline.Window) -> Mapping[str | None, int]:
        """How many runs of *day* ended how; None for those that have not. Raises StoreError."""
        history, under_way = backend.history, _under_way(backend.services(), day.now_us)
        newest = Counter(await history.counts(day.now_us))
        if self._kept is not None and self._kept[:2] == (day, under_way):
            return self._kept[2] + newest
        whole = Counter(await history.counts(day.from_us))
        # What began between the two counts is in one of them only: then nothing is kept.
        if newest == Counter(await history.counts(day.now_us)):
            self._kept = (day, under_way, whole - newest)
        return whole


def _under_way(services: Iterable[views.ServiceSnapshot], before_us: Instant) -> frozenset[int]:
    newest = (snapshot.last_run for snapshot in services if snapshot.last_run is not None)
    return frozenset(row.id for row in newest if row.ended_us is None and row.started_us < before_us)


async def history_of(
    backend: ReadBackend, window: timeline.Window, day: timeline.Window, day_counts: DayCounts
) -> OverviewHistory:
    """What the history says of a window; of misses and counts what it says of the *day* before."""
    history, is_open = backend.history, backend.daemon_status().is_timer_switch_on
    try:
        # At the same time: a database that does not answer is waited for once.
        stale, latest, (found, is_whole) = await asyncio.gather(
            refreshed(backend),
            runs_of(backend, limit=NEXT_SHOWN),
            runs_between(backend, day.from_us, day.to_us, _MOST_DRAWN),
        )
        misses = await history.misses(limit=_MOST_MISSES) if is_open else []
        counts = await day_counts.of(backend, day)
    except StoreError as error:
        return OverviewHistory(faults=(f"the history cannot be read: {error.message}",))
    others = Counter(row.result for row in found.rows if isinstance(row, RemoteRun))
    runs = [row for row in found.rows if row.ended_us is None or row.started_us >= window.from_us]
    return OverviewHistory(
        runs[:_MOST_DRAWN],
        latest.rows,
        [row for row in misses if row.at_us >= day.from_us],
        Counter(counts) + others,
        left_out=len(runs) >= _MOST_DRAWN,
        is_counted=is_whole and found.fault is None,
        fault=found.fault,
        stale=stale,
    )


# --- a daemon ---


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOverview:
    daemon_status: views.DaemonStatus
    config: Config
    services: Sequence[views.ServiceSnapshot]
    timers: Mapping[str, views.TimerSnapshot] | None
    window: timeline.Window
    history: OverviewHistory

    def page(self) -> OverviewPage:
        daemon_status, timers, history = self.daemon_status, self.timers, self.history
        judged = health(daemon_status, self.config, self.services, timers)
        closed = views.disabled(is_parent_on=self.config.settings.enabled)
        entries = models.timer_entries(self.config, timers or {})
        return OverviewPage(
            judged,
            _headline(daemon_status.state, judged),
            _STATUS_WORDS.get(daemon_status.state, "running"),
            tiles(
                views.counts(self.config, self.services, timers),
                history,
                has_timers=timers is not None,
                is_shared=database_of(self.config) is not None,
            ),
            self.lanes(),
            None if timers is None else models.next_runs(entries, daemon_status.now_us, NEXT_SHOWN),
            [run_facts(row, daemon_status.now_us) for row in history.latest],
            ("timers", "services"),
            "/services?only=failed",
            has_runs=True,
            started_us=daemon_status.started_us,
            switch_message=closed.message if timers is None else "",
            fault=history.fault,
            stale=history.stale,
            drawn_since_us=self._drawn_since_us(),
        )

    def _drawn_since_us(self) -> Instant | None:
        ended = (row.started_us for row in self.history.runs if row.ended_us is not None)
        return min(ended, default=None) if self.history.left_out else None

    def lanes(self) -> timeline.TimelineView:
        """What ran and what comes of each service, in the order of declaration."""
        window, timers = self.window, self.timers or {}
        matters = {service.id: timeline.Matter(service.id) for service in self.config.services}
        fired_by = {
            timer.id: matters[timer.target] for timer in self.config.timers if timer.target in matters
        }
        for row in self.history.runs:
            if row.service in matters:
                matters[row.service].runs.append(row)
        for miss in self.history.misses:
            if miss.timer in fired_by and window.holds(miss.at_us):
                fired_by[miss.timer].misses.append(miss)
        for name, matter in fired_by.items():
            snapshot = timers.get(name)
            if snapshot is not None:
                matter.expect(snapshot.next_us, snapshot.retry_at_us, window)
        own, rest = timeline.pick_lanes(matters.values())
        if self.timers is not None:
            self._fill({matter.id: matter for matter in own}, self.timers)
        return timeline.timeline_of(own, rest, window)

    def _fill(self, lanes: Mapping[str, timeline.Matter], timers: Mapping[str, views.TimerSnapshot]) -> None:
        """Give lanes all their slots, not only the next."""
        from duly.web.upcoming import slots_ahead  # noqa: PLC0415 - the timers are on

        moment = Moment(self.daemon_status.now_us, self.daemon_status.zone)
        until_us = self.window.to_us
        for timer in self.config.timers:
            snapshot = timers.get(timer.id)
            if timer.target in lanes and snapshot is not None and snapshot.next_us is not None:
                most = timeline.MOST_SLOTS + 1
                slots = slots_ahead(timer, snapshot, moment, until_us, most)
                lanes[timer.target].add_slots(slots)


_STATUS_WORDS = {"starting": "starting up", "stopping": "stopping", "down": "not running"}


def _headline(state: str, health: HealthJson) -> str:
    reasons, warned = health.reasons, len(health.warnings)
    if not reasons and state != "running":
        return f"The daemon is {state}"
    if not reasons and warned:
        return f"All runs, but {'one timer' if warned == 1 else f'{warned:,} timers'} missed what was due"
    if not reasons:
        return "All is well"
    return "One thing is not right" if len(reasons) == 1 else f"{len(reasons):,} things are not right"


def tiles(
    status: Mapping[str, int], history: OverviewHistory, *, has_timers: bool, is_shared: bool = False
) -> list[Tile]:
    """The counts of the overview. If timers are *is_shared*, misses are of this machine alone."""
    results, misses = history.counts, len(history.misses)
    failed = sum(count for result, count in results.items() if result not in {None, "success"})
    shown = [
        Tile(
            "services running",
            f"{status['services_running']:,}",
            "/services?only=running",
            note=f"of {status['services']:,}",
        ),
        _alarm("services failed", status["services_failed"], "/services?only=failed"),
        Tile(
            "runs in 24 h",
            f"{sum(results.values()):,}{'' if history.is_counted else '+'}",
            "/runs",
            note=_how_they_went(failed, results.get(None, 0), sum(results.values()), history.is_counted),
            tone="warn" if failed else "calm",
        ),
    ]
    if has_timers:
        note = f"{status['timers_running']:,} running"
        shown.append(Tile("timers", f"{status['timers']:,}", "/timers", note=note))
        where = "on this machine" if is_shared else ""
        shown.append(_alarm("missed in 24 h", misses, "/misses", where))
    if status["invalid"]:
        shown.append(_alarm("invalid entries", status["invalid"], "/invalid"))
    return shown


def _alarm(label: str, count: int, href: str, note: str = "") -> Tile:
    return Tile(label, f"{count:,}", href, "bad" if count else "calm", note)


def _how_they_went(failed: int, running: int, total: int, is_counted: bool) -> str:
    if failed:
        return f"{failed:,} not successful"
    if running or not is_counted:
        return f"{running:,} still running" if running else ""
    return "all successful" if total else ""


# --- a store ---


def store_overview(snapshot: TaskSnapshot, moment: Moment, hours: int) -> OverviewPage:
    now_us = moment.now_us
    entries = [models.task_entry(task, now_us) for task in snapshot.tasks]
    reasons = snapshot.reasons(now_us)
    health = HealthJson(ok=not reasons, reasons=reasons)
    since_us = timeline.window_at(moment).from_us
    recent = [row for row in snapshot.latest if row.started_us >= since_us]
    return OverviewPage(
        health,
        _headline("running", health),
        "as its store has it" + (", with a trace" if snapshot.has_trace else ""),
        _task_tiles(entries, recent if snapshot.has_trace or snapshot.has_history else None),
        _task_lanes(entries, timeline.window_at(moment, hours), recent),
        models.next_runs(entries, now_us, NEXT_SHOWN),
        [run_facts(row, now_us) for row in snapshot.latest[:NEXT_SHOWN]],
        ("tasks", "tasks"),
        "/tasks",
    )


def _task_tiles(entries: Sequence[models.TaskEntry], recent: Sequence[RunRow] | None) -> list[Tile]:
    counts = Counter(entry.kind for entry in entries)
    shown = [Tile("tasks", f"{len(entries):,}", "/tasks", note=f"{counts['running']:,} running")]
    shown += [_alarm(kind, counts[kind], f"/tasks?only={kind}") for kind in ("failing", "overdue")]
    if recent is not None:
        failed = sum(row.result not in {None, "success"} for row in recent)
        note = f"{failed:,} not successful" if failed else ""
        shown.append(Tile("runs in 24 h", f"{len(recent):,}", "/tasks", "warn" if failed else "calm", note))
    return shown


def _task_lanes(
    entries: Sequence[models.TaskEntry], window: timeline.Window, recent: Sequence[RunRow]
) -> timeline.TimelineView:
    matters = {entry.id: timeline.Matter(entry.id, kind="tasks") for entry in entries}
    for row in recent:
        if row.service in matters and (row.ended_us is None or row.ended_us >= window.from_us):
            matters[row.service].runs.append(row)
    for entry in entries:
        # What is overdue is expected now.
        matters[entry.id].expect(max(entry.task.due_us, window.now_us), entry.retry_at_us, window)
    own, rest = timeline.pick_lanes(matters.values())
    of = {entry.id: entry for entry in entries}
    for matter in own:
        most = timeline.MOST_SLOTS + 1
        matter.add_slots(of[matter.id].dues_after(window.now_us, window.to_us, most))
    return timeline.timeline_of(own, rest, window)
