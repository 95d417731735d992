"""What a daemon shows: its services, its timers and their runs, also those of machines that share its timers.

A job is a oneshot and the timers that fire it. It has one lane, and one line if it fails (`daemon.health`).
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from functools import cached_property
from operator import itemgetter
from types import MappingProxyType

import msgspec

from duly.config.schema import Service, Timer, database_of
from duly.daemon import health, views
from duly.daemon.backend import ReadBackend
from duly.daemon.protocol import ABSENT
from duly.daemon.remote import RunList, buckets_of, refreshed, results_of, run_called, search
from duly.formatting import exact_length
from duly.instant import NEVER_US, Instant, zone_key
from duly.store.history import FAILURES, MissGroup, RemoteRun, RunRow, RunSearch, Span, line_times
from duly.web import formatting, models
from duly.web.formatting import Moment
from duly.web.source import (
    Alarm,
    Buckets,
    ComingDue,
    Details,
    Fact,
    Lane,
    Output,
    Picture,
    Tile,
)

_WELL = frozenset({"running", "stopped", "done", "disabled"})
_DUES_SHOWN = 10
_ANSWERS_SHOWN = 8
_RECORDED = 200
"""Runs and misses of a timer that are looked through for what became of its latest slots."""
_ALL_RECORDED = 10_000


class DaemonPicture:
    """Everything that a daemon says at one moment. Pure: it is made in the loop, and read in a thread."""

    def __init__(self, backend: ReadBackend, zone: tzinfo | None, stale: str | None) -> None:
        status = backend.daemon_status()
        self.zone = status.zone
        """Of schedules that give none."""
        self.moment = Moment(status.now_us, zone or status.zone, is_chosen=zone is not None)
        self.status = msgspec.structs.replace(status, zone=self.moment.zone)
        self.stale = stale
        self.config = backend.config
        self.timers = backend.timers()
        self._services = list(backend.services())

    tagged: Mapping[str, Sequence[str]] = MappingProxyType({})

    @property
    def has_timers(self) -> bool:
        return self.timers is not None

    def listings(self) -> Sequence[models.Listing]:
        return (models.SERVICES, models.TIMERS) if self.has_timers else (models.SERVICES,)

    def entries(self, noun: str) -> Sequence[models.AnyEntry]:
        return self._timers if noun == "timers" else self._entries

    @cached_property
    def _states(self) -> list[health.EntryState]:
        return health.entry_states(self.status, self.config, self._services, self.timers)

    @cached_property
    def _timers(self) -> list[models.TimerEntry]:
        return models.timer_entries(self.config, self.timers or {}, self._worst)

    @cached_property
    def _entries(self) -> list[models.ServiceEntry]:
        return models.service_entries(self.config, self._services, self._timers, self._worst)

    @cached_property
    def _worst(self) -> models.States:
        worst: dict[tuple[str, str], health.EntryState] = {}
        for state in self._states:
            worst.setdefault((state.kind, state.id), state)
        return worst

    @cached_property
    def _fired_by(self) -> Mapping[str, Sequence[models.TimerEntry]]:
        fired_by: dict[str, list[models.TimerEntry]] = {}
        for entry in self._timers:
            fired_by.setdefault(entry.timer.target, []).append(entry)
        return fired_by

    def fired_by(self, service: str) -> Sequence[models.TimerEntry]:
        return self._fired_by.get(service, ())

    def alarms(self) -> list[Alarm]:
        targets = {timer.id: timer.target for timer in self.config.timers}
        found = [Alarm(fault) for fault in self.status.faults]
        found += [Alarm(ABSENT[self.status.state])] if self.status.state in ABSENT else []
        for state in self._states:
            if state.is_alarm:
                href = formatting.address(f"{state.kind}s", state.id)
                is_missing = state.state == health.MISSING_RUNS
                service = None if is_missing else targets.get(state.id, state.id)
                found.append(Alarm(state.message, href, service, is_live=state.state == health.HUNG))
        found += [
            Alarm(snapshot.fault, formatting.address("timers", name))
            for name, snapshot in (self.timers or {}).items()
            if snapshot.fault is not None
        ]
        found += [Alarm(health.invalid_text(bad), "/invalid") for bad in self.config.invalid]
        found += [
            Alarm(missed.message, formatting.address("timers", missed.id), tone="warn")
            for missed in health.ill_missed(self.status, self.config, self.timers or {})
        ]
        if not self.has_timers and (text := views.timers_off_text(self.config)):
            found.append(Alarm(text, tone="warn"))
        return found

    # --- the time line ---

    def lanes(self) -> list[Lane]:
        """The worst first; what simply runs comes last."""
        lanes = [self._lane(entry, entry.kind) for entry in self._entries]
        return [lane for _, lane in sorted(lanes, key=itemgetter(0))]

    def _lane(self, entry: models.ServiceEntry, kind: str) -> tuple[tuple[bool, int], Lane]:
        timers = tuple(one.id for one in self._fired_by.get(entry.id, ()))
        is_quiet = not timers and kind in _WELL
        lengths_us = entry.snapshot.past.lengths_us
        mark = formatting.state_mark(kind)
        lane = Lane(entry.id, "services", mark, is_quiet=is_quiet, lengths_us=lengths_us, timers=timers)
        return (is_quiet, models.rank(kind)), lane

    def dues(self, lane: str, span: Span, most: int) -> list[Instant]:
        found = {
            at_us
            for entry in self.fired_by(lane)
            if entry.is_enabled and entry.snapshot.fault is None
            for at_us in self.slots_ahead(entry, span.to_us, most, from_us=span.from_us)
        }
        return sorted(found)[:most]

    def slots_ahead(
        self, entry: models.TimerEntry, until_us: Instant, most: int, *, from_us: Instant = 0
    ) -> list[Instant]:
        from duly.web.upcoming import slots_ahead  # noqa: PLC0415 - the timers are on

        moment = self.moment._replace(now_us=max(self.moment.now_us, from_us))
        ahead = slots_ahead(entry.timer, entry.snapshot, moment._replace(zone=self.zone), until_us, most)
        now_us = self.moment.now_us
        known = {
            at_us
            for at_us in (entry.snapshot.next_us, entry.snapshot.retry_at_us)
            if at_us and from_us <= at_us <= until_us and not entry.is_answering(at_us, now_us)
        }
        return sorted({*ahead, *known})

    # --- counts ---

    def tiles(self, results: Mapping[str | None, int], missed: int | None) -> list[Tile]:
        services = [entry for entry in self._entries if not entry.is_job and entry.service.enabled]
        up = sum(entry.snapshot.state == "running" for entry in services)
        ill = [entry for entry in self._entries if entry.health is not None and entry.health.is_alarm]
        jobs = sum(entry.is_job for entry in self._entries)
        shown = [
            Tile("services up", f"{up:,}", "/services?only=running", note=f"of {len(services):,}"),
            Tile(
                "failing or hung",
                f"{len(ill):,}",
                "/services?sort=state",
                "bad" if ill else "calm",
                f"of {len(self._entries):,} jobs and services",
            ),
            *run_tiles(results),
        ]
        if self.has_timers:
            running = sum(entry.snapshot.running_run is not None for entry in self._timers)
            shown.append(Tile("timers", f"{len(self._timers):,}", "/timers", note=f"{running:,} running"))
        else:
            shown.append(Tile("jobs", f"{jobs:,}", "/services"))
        if missed is not None:
            where = "on this machine" if database_of(self.config) is not None else ""
            tone = "warn" if missed else "calm"
            shown.append(Tile("missed in 24 h", f"{missed:,}", "/misses?since=24h", tone, where))
        if self.config.invalid:
            shown.append(Tile("invalid entries", f"{len(self.config.invalid):,}", "/invalid", "bad"))
        return shown


def run_tiles(results: Mapping[str | None, int]) -> Iterator[Tile]:
    """The runs of a day, and those that failed."""
    total, running = sum(results.values()), results.get(None, 0)
    failed = sum(count for result, count in results.items() if result in FAILURES)
    note = f"{running:,} still running" if running else ""
    yield Tile("runs in 24 h", f"{total:,}", "/runs?since=24h", note=note)
    tone = "bad" if failed else "calm"
    yield Tile("failed in 24 h", f"{failed:,}", "/runs?result=failed&since=24h", tone)


class DaemonSource:
    def __init__(self, backend: ReadBackend) -> None:
        self._backend = backend

    async def look(self, zone: tzinfo | None) -> DaemonPicture:
        return DaemonPicture(self._backend, zone, await refreshed(self._backend))

    async def runs(self, wanted: RunSearch, *, machine: str | None = None) -> RunList:
        return await search(self._backend, wanted, machine)

    async def run(self, number: int, machine: str | None) -> RunRow | None:
        return await run_called(self._backend, number, machine)

    async def results(self, since_us: Instant) -> Mapping[str | None, int]:
        return await results_of(self._backend, since_us)

    async def buckets(self, lanes: Sequence[Lane], span: Span) -> Buckets:
        timers = [timer for lane in lanes for timer in lane.timers]
        (runs, fault), misses = await asyncio.gather(
            buckets_of(self._backend, [lane.id for lane in lanes], span),
            self._backend.history.ask(lambda reader: reader.miss_buckets(timers, span)),
        )
        return Buckets(runs, misses, fault)

    async def misses(self, since_us: Instant) -> Sequence[MissGroup]:
        return await self._backend.history.miss_groups(since_us)

    def output(self, row: RunRow) -> Output:
        live = None if isinstance(row, RemoteRun) else self._backend.output(row.id)
        if live is None:
            return Output(row.output, row.output_lost, line_times(row))
        return Output(live.text(), live.lost_bytes, live.times())

    # --- one entry ---

    async def details(self, picture: Picture, entry: models.AnyEntry, at: datetime | None) -> Details:
        assert isinstance(picture, DaemonPicture)
        if isinstance(entry, models.TimerEntry):
            return await self._timer_details(picture, entry, at)
        assert isinstance(entry, models.ServiceEntry)
        return _service_details(picture, entry)

    async def _timer_details(
        self, picture: DaemonPicture, entry: models.TimerEntry, at: datetime | None
    ) -> Details:
        from duly.web.upcoming import ShownPast, zone_of_timer  # noqa: PLC0415 - the timers are on

        moment, timer = picture.moment, entry.timer
        # The minute that is asked for may lie far back, and what came next answers it as well.
        most = _RECORDED if at is None else _ALL_RECORDED
        found = await self.runs(RunSearch(timer=timer.id, limit=most))
        misses = await self._backend.history.misses(timer=timer.id, limit=most)
        record = ShownPast(entry, found.rows, misses, moment, picture.zone)
        answers, asked = await asyncio.to_thread(record.answers, _ANSWERS_SHOWN, at)
        dues, no_dues = await asyncio.to_thread(_dues, picture, entry)
        snapshot = entry.snapshot
        schedule = views.schedule_text(timer)
        zone = zone_of_timer(timer, picture.zone)
        is_here = any(row.ended_us is None for row in found.rows)
        elsewhere = ""
        if snapshot.member and not is_here:
            elsewhere = f"It runs on {snapshot.member} now. That run is shown here once it has ended."
        is_other = zone_key(zone) != zone_key(moment.zone)
        return Details(
            f"{schedule} ({zone})" if is_other else schedule,
            zone,
            timer.description,
            dues,
            no_dues,
            answers,
            asked,
            list(_timer_facts(timer, picture)),
            (
                ("last success", snapshot.last_success_us),
                ("last failure", snapshot.last_failure_us),
                ("registered", snapshot.registered_us),
            ),
            timer.target,
            note=elsewhere,
        )


def _dues(picture: DaemonPicture, entry: models.TimerEntry) -> tuple[list[ComingDue], str]:
    from duly.web.upcoming import clock_notes, zone_of_timer  # noqa: PLC0415 - the timers are on

    snapshot = entry.snapshot
    if snapshot.fault is not None:
        return [], "It does not fire: its stored state cannot be read."
    if not entry.is_enabled:
        return [], "It is disabled, and does not fire."
    ahead = picture.slots_ahead(entry, NEVER_US, _DUES_SHOWN)
    notes = clock_notes(ahead, picture.moment.now_us, zone_of_timer(entry.timer, picture.zone))
    if snapshot.retry_at_us is not None:
        notes[snapshot.retry_at_us] = f"retry {snapshot.retry_attempt}"
    shown = [ComingDue(at_us, notes.get(at_us, "")) for at_us in ahead[:_DUES_SHOWN] if at_us < NEVER_US]
    return shown, "Nothing is due to fire."


def _timer_facts(timer: Timer, picture: DaemonPicture) -> Iterator[Fact]:
    yield Fact("schedule", views.schedule_text(timer))
    yield Fact("time zone", timer.timezone or str(picture.zone))
    caught_up = "yes: slots that pass while the daemon is down are caught up"
    yield Fact("persistent", caught_up if timer.persistent else "no")
    if timer.persistent:
        yield Fact("catch-up window", exact_length(timer.catch_up_window_sec))
    yield Fact("retries after", ", ".join(map(exact_length, timer.retry_intervals_sec)) or "never")
    if timer.overlap != "skip":
        yield Fact("overlap", timer.overlap)
    if timer.lock:
        yield Fact("lock", timer.lock)
    if (timer_member := (picture.timers or {}).get(timer.id)) is not None and timer_member.member:
        yield Fact("runs on", timer_member.member)


def _service_details(picture: DaemonPicture, entry: models.ServiceEntry) -> Details:
    service, snapshot, moment = entry.service, entry.snapshot, picture.moment
    lead = "a job: it runs to its end" if entry.is_job else "a service: it is kept running"
    parts = [lead if service.enabled else f"{lead}; disabled"]
    if snapshot.since_us is not None:
        parts.append(f"{snapshot.state} since {moment.clock(snapshot.since_us)}")
    parts += [f"process {snapshot.pid}"] if snapshot.pid else []
    parts += [snapshot.reason] if snapshot.reason and entry.health is None else []
    return Details(
        ", ".join(parts),
        moment.zone,
        service.description,
        facts=list(service_facts(service)),
        fired_by=picture.fired_by(entry.id),
    )


def service_facts(service: Service) -> Iterator[Fact]:
    """The definition of a service. Of its environment only the names: the values may be secret."""
    yield Fact("command", " ".join(map(formatting.quoted, service.command)), is_code=True)
    yield Fact("type", service.type)
    yield Fact("stage", str(service.stage))
    if service.type == "simple":
        yield Fact("restart", service.restart)
    if service.timeout_sec is not None:
        yield Fact("timeout", exact_length(service.timeout_sec))
    if service.memory_max is not None:
        yield Fact("memory", f"at most {service.memory_max:,} bytes")
    for name in ("user", "group", "umask", "nice", "nofile", "lock", "cwd", "env_file"):
        if (value := getattr(service, name)) is not None:
            yield Fact(name, str(value), is_code=name in {"cwd", "env_file"})
    for name in ("after", "requires"):
        if names := getattr(service, name):
            yield Fact(name, ", ".join(names))
    if service.env:
        yield Fact("environment", f"{', '.join(sorted(service.env))} (values are not shown)")
