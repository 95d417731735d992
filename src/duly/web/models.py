"""What pages show, as plain records made from the daemon's readings. Pure.

A table of thousands is filtered and sorted as cheap keys; only the rows of the page that is shown are made.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Any, NamedTuple

import msgspec

from duly.config.schema import Config, Service, Timer
from duly.daemon import views
from duly.daemon.words import schedule_words, span
from duly.instant import NEVER_US, Instant
from duly.store.history import MissRow, RunRow, length_us
from duly.web import words
from duly.web.words import Mark, visible

PAGE = 100
"""Rows of a table that are shown at once."""
MOST_REASONS = 8
"""Reasons of bad health that are told one by one."""


class Action(NamedTuple):
    """Something an operator can do with one thing, and what is asked before it is done."""

    name: str
    id: str
    label: str
    question: str
    is_grave: bool = False

    @property
    def href(self) -> str:
        """The page that asks, for browsers without script."""
        return words.address(f"act/{self.name}", self.id)


ACTIONS: Mapping[str, tuple[str, str, bool]] = {
    "start": ("Start", "Start {id} now?", False),
    "stop": ("Stop", "Stop {id}? Its process is told to end, and killed if it does not.", True),
    "trigger": ("Trigger", "Fire {id} now? Its target runs at once, beside its schedule.", False),
    "enable": ("Enable", "Enable {id}? It fires by its schedule again.", False),
    "disable": ("Disable", "Disable {id}? It does not fire until it is enabled again.", True),
}
"""By name: what is on the button, what is asked, and whether it takes something away."""

UNDONE_BY: Mapping[str, str] = {"enable": "disable", "disable": "enable", "stop": "start"}


def action(name: str, id: str) -> Action:  # noqa: A002 (the word for it)
    """An action on one thing."""
    label, question, is_grave = ACTIONS[name]
    return Action(name, id, label, question.format(id=visible(id)), is_grave)


# --- tables ---


class Asked(NamedTuple):
    """What somebody wants to see of a table."""

    text: str = ""
    only: str = ""
    sort: str = ""
    is_down: bool = False
    page: int = 1


class Table(NamedTuple):
    """The rows that are shown, and where they lie in the whole."""

    rows: Sequence[Any]
    asked: Asked
    found: int
    total: int
    first: int
    pages: int
    counts: Mapping[str, int]
    """How many there are of each kind that can be picked."""


def asked_of(query: Mapping[str, str], sorts: Iterable[str], kinds: Iterable[str]) -> Asked:
    """What the query of an address asks; what makes no sense in it is left out."""
    page = query.get("page", "1")
    sort, only = query.get("sort", ""), query.get("only", "")
    return Asked(
        query.get("q", "")[:200],
        only if only in set(kinds) else "",
        sort if sort in set(sorts) else "",
        query.get("dir") == "down",
        int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 7 else 1,
    )


class ServiceEntry(NamedTuple):
    """A service and how it is."""

    service: Service
    reading: views.ServiceReading
    next_us: Instant | None

    @property
    def kind(self) -> str:
        """What it counts as."""
        return "disabled" if not self.service.enabled else self.reading.state


class TimerEntry(NamedTuple):
    """A timer and how it is."""

    timer: Timer
    reading: views.TimerReading

    @property
    def is_enabled(self) -> bool:
        """Whether it is switched on."""
        override = self.reading.enabled_override
        return self.timer.enabled if override is None else override

    @property
    def kind(self) -> str:
        """What it counts as."""
        if self.reading.running_run is not None:
            return "running"
        if self.reading.fault is not None:
            return "failing"
        if not self.is_enabled:
            return "disabled"
        return "failing" if self.reading.last_result not in {None, "success"} else "fine"


_UNREAD = views.TimerReading()


def service_entries(
    config: Config, readings: Iterable[views.ServiceReading], timers: Mapping[str, views.TimerReading] | None
) -> list[ServiceEntry]:
    """All services, as declared."""
    known = {reading.id: reading for reading in readings}
    firsts = firsts_of(config, timers or {})
    return [
        ServiceEntry(
            service,
            known.get(service.id) or views.StoredService(id=service.id, state="stopped"),
            firsts.get(service.id),
        )
        for service in config.services
    ]


def timer_entries(config: Config, readings: Mapping[str, views.TimerReading]) -> list[TimerEntry]:
    """All timers, as declared."""
    return [TimerEntry(timer, readings.get(timer.id, _UNREAD)) for timer in config.timers]


def service_entry(
    config: Config,
    name: str,
    readings: Iterable[views.ServiceReading],
    timers: Mapping[str, views.TimerReading] | None,
) -> ServiceEntry | None:
    """One service; None if there is none of that name."""
    service = next((service for service in config.services if service.id == name), None)
    if service is None:
        return None
    found = next((reading for reading in readings if reading.id == name), None)
    firsts = (soonest(entry.reading) for entry in timers_of(config, timers or {}, name))
    next_us = min((at_us for at_us in firsts if at_us is not None), default=None)
    return ServiceEntry(service, found or views.StoredService(id=name, state="stopped"), next_us)


def timer_entry(config: Config, name: str, readings: Mapping[str, views.TimerReading]) -> TimerEntry | None:
    """One timer; None if there is none of that name."""
    timer = next((timer for timer in config.timers if timer.id == name), None)
    return None if timer is None else TimerEntry(timer, readings.get(name, _UNREAD))


def timers_of(config: Config, readings: Mapping[str, views.TimerReading], target: str) -> list[TimerEntry]:
    """The timers that fire *target*, as declared."""
    return [entry for entry in timer_entries(config, readings) if entry.timer.target == target]


def firsts_of(config: Config, readings: Mapping[str, views.TimerReading]) -> dict[str, Instant]:
    """When each target is fired next."""
    firsts: dict[str, Instant] = {}
    for timer in config.timers:
        reading = readings.get(timer.id)
        if reading is not None and (at_us := soonest(reading)) is not None:
            firsts[timer.target] = min(firsts.get(timer.target, NEVER_US), at_us)
    return firsts


def soonest(reading: views.TimerReading) -> Instant | None:
    """When a timer fires next, for whichever reason."""
    next_us, retry_us = reading.next_us, reading.retry_at_us
    at_us = NEVER_US if next_us is None else next_us
    if retry_us is not None and retry_us < at_us:
        at_us = retry_us
    return at_us if at_us < NEVER_US else None


_LAST = (1, 0)
"""The key of what has no value: at the end, in either direction."""


def time_key(at_us: Instant | None) -> tuple[int, int]:
    """What a time is sorted by."""
    return _LAST if at_us is None else (0, at_us)


_RANKS = {"failed": 0, "failing": 0, "skipped": 1, "waiting": 2, "starting": 3, "running": 4}

SERVICE_SORTS: Mapping[str, Callable[[ServiceEntry], Any]] = {
    "name": lambda entry: (0, entry.service.id.casefold()),
    "state": lambda entry: (0, (_RANKS.get(entry.kind, 5), entry.kind)),
    "type": lambda entry: (0, (entry.service.type, entry.service.stage)),
    "since": lambda entry: time_key(entry.reading.since_us),
    "last": lambda entry: time_key(
        None if entry.reading.last_run is None else entry.reading.last_run.started_us
    ),
    "next": lambda entry: time_key(entry.next_us),
}
TIMER_SORTS: Mapping[str, Callable[[TimerEntry], Any]] = {
    "name": lambda entry: (0, entry.timer.id.casefold()),
    "target": lambda entry: (0, entry.timer.target.casefold()),
    "state": lambda entry: (0, (_RANKS.get(entry.kind, 5), entry.kind)),
    "last": lambda entry: time_key(entry.reading.last_run_us),
    "next": lambda entry: time_key(soonest(entry.reading)),
    "missed": lambda entry: time_key(entry.reading.last_missed_us),
}


def services_table(entries: Sequence[ServiceEntry], asked: Asked) -> Table:
    """The services that were asked for."""
    return table_of(
        entries,
        asked,
        SERVICE_SORTS,
        lambda entry: f"{entry.service.id}\n{entry.service.description}\n{entry.reading.reason}",
    )


def timers_table(entries: Sequence[TimerEntry], asked: Asked) -> Table:
    """The timers that were asked for."""
    return table_of(
        entries,
        asked,
        TIMER_SORTS,
        lambda entry: f"{entry.timer.id}\n{entry.timer.target}\n{entry.timer.description}",
    )


def table_of(
    entries: Sequence[Any],
    asked: Asked,
    sorts: Mapping[str, Callable[[Any], Any]],
    text_of: Callable[[Any], str],
) -> Table:
    """The entries that were asked for; each has a `kind`."""
    kinds = [entry.kind for entry in entries]
    found = list(entries)
    if asked.only:
        found = [entry for entry, kind in zip(entries, kinds, strict=True) if kind == asked.only]
    for word in asked.text.casefold().split():
        found = [entry for entry in found if word in text_of(entry).casefold()]
    if asked.sort:
        found = _sorted(found, sorts[asked.sort], is_down=asked.is_down)
    pages = max(-(-len(found) // PAGE), 1)
    page = max(min(asked.page, pages), 1)
    first = (page - 1) * PAGE
    shown = found[first : first + PAGE]
    return Table(shown, asked._replace(page=page), len(found), len(entries), first, pages, Counter(kinds))


def _sorted(entries: list[Any], key: Callable[[Any], Any], *, is_down: bool) -> list[Any]:
    keyed = [(key(entry), entry) for entry in entries]
    there = sorted((pair for pair in keyed if pair[0] != _LAST), key=lambda pair: pair[0], reverse=is_down)
    return [entry for _, entry in there] + [entry for value, entry in keyed if value == _LAST]


# --- one of them ---


def service_mark(entry: ServiceEntry) -> Mark:
    """How the state of a service is shown."""
    if not entry.service.enabled:
        return Mark("calm", "off", "disabled")
    return words.state_mark(entry.reading.state)


def timer_mark(entry: TimerEntry) -> Mark:
    """How a timer is shown: what it does, or how its last run ended."""
    reading = entry.reading
    if reading.fault is not None:
        return Mark("bad", "bad", "unreadable")
    if not entry.is_enabled and reading.running_run is None:
        return Mark("calm", "off", "disabled")
    is_running = reading.running_run is not None
    return words.result_mark(reading.last_result, is_running=is_running, exit_code=reading.last_exit)


def service_actions(entry: ServiceEntry) -> list[Action]:
    """What can be done with a service as it is."""
    if not entry.service.enabled:
        return []
    if entry.reading.state in {"running", "starting", "waiting"}:
        return [action("stop", entry.service.id)]
    return [action("start", entry.service.id)]


def timer_actions(entry: TimerEntry) -> list[Action]:
    """What can be done with a timer as it is."""
    if entry.reading.fault is not None:
        return []
    name = entry.timer.id
    return [action("trigger", name), action("disable" if entry.is_enabled else "enable", name)]


class Fact(NamedTuple):
    """A line of a definition: a key, and its value in words."""

    key: str
    value: str
    is_code: bool = False


def service_facts(service: Service) -> list[Fact]:
    """A service as it was declared; of its environment the names alone, for the values may be secret."""
    facts = [
        Fact("command", " ".join(_quoted(part) for part in service.command), is_code=True),
        Fact("type", service.type),
        Fact("stage", str(service.stage)),
    ]
    if service.type == "simple":
        facts.append(Fact("restart", str(service.restart)))
    facts += [
        Fact(key, ", ".join(names))
        for key, names in (("after", service.after), ("requires", service.requires))
        if names
    ]
    facts += [Fact("cwd", service.cwd, is_code=True)] if service.cwd else []
    facts += [Fact("timeout", span(service.timeout_sec))] if service.timeout_sec is not None else []
    if service.env:
        facts.append(Fact("environment", f"{', '.join(sorted(service.env))} (values are not shown)"))
    return [fact._replace(value=visible(fact.value)) for fact in facts]


def _quoted(part: str) -> str:
    return part if part and not set(part) & set(" \t\n\"'\\$`|&;<>()*?") else repr(part)


def timer_facts(timer: Timer, zone: str) -> list[Fact]:
    """A timer as it was declared."""
    retries = ", ".join(span(delay_s) for delay_s in timer.retry_intervals_sec)
    facts = [
        Fact("schedule", schedule_words(timer)),
        Fact("time zone", timer.timezone or zone),
        Fact(
            "persistent",
            "yes: slots that pass while the daemon is down are caught up" if timer.persistent else "no",
        ),
        Fact("retries after", retries or "never"),
    ]
    if timer.persistent:
        facts.append(Fact("catch-up window", span(timer.catch_up_window_sec)))
    return [fact._replace(value=visible(fact.value)) for fact in facts]


# --- the whole ---


class Tile(NamedTuple):
    """A number worth a glance."""

    label: str
    value: str
    href: str
    tone: str = "calm"
    note: str = ""


def tiles(
    status: Mapping[str, int], misses: int, results: Mapping[str | None, int], *, has_timers: bool
) -> list[Tile]:
    """The counts of the overview. *results*: how many runs of the last 24 hours ended how."""
    failed = sum(count for result, count in results.items() if result not in {None, "success"})
    shown = [
        Tile(
            "services running",
            f"{status['services_running']:,}",
            "/services?only=running",
            note=f"of {status['services']:,}",
        ),
        Tile(
            "services failed",
            f"{status['services_failed']:,}",
            "/services?only=failed",
            "bad" if status["services_failed"] else "calm",
        ),
        Tile(
            "runs in 24 h",
            f"{sum(results.values()):,}",
            "/runs",
            note=_how_they_went(failed, results.get(None, 0), sum(results.values())),
            tone="warn" if failed else "calm",
        ),
    ]
    if has_timers:
        note = f"{status['timers_running']:,} running"
        shown.append(Tile("timers", f"{status['timers']:,}", "/timers", note=note))
        shown.append(Tile("missed in 24 h", f"{misses:,}", "/misses", "bad" if misses else "calm"))
    if status["invalid"]:
        shown.append(Tile("invalid entries", f"{status['invalid']:,}", "/invalid", "bad"))
    return shown


def _how_they_went(failed: int, running: int, total: int) -> str:
    if failed:
        return f"{failed:,} not successful"
    return f"{running:,} still running" if running else "all successful" if total else ""


class Next(NamedTuple):
    """A firing to come."""

    timer: str
    target: str
    at_us: Instant
    is_retry: bool


def next_firings(config: Config, readings: Mapping[str, views.TimerReading], most: int) -> list[Next]:
    """The firings that come first."""
    ahead = (
        (at_us, order)
        for order, timer in enumerate(config.timers)
        if (at_us := soonest(readings.get(timer.id, _UNREAD))) is not None
    )
    return [
        Next(timer.id, timer.target, at_us, at_us == readings[timer.id].retry_at_us)
        for at_us, order in nsmallest(most, ahead)
        for timer in (config.timers[order],)
    ]


class RunFacts(NamedTuple):
    """A run, in words."""

    row: RunRow
    mark: Mark
    cause: str
    late_us: int | None
    lasted_us: int | None


def run_facts(row: RunRow, now_us: Instant) -> RunFacts:
    """What there is to say of a run."""
    return RunFacts(
        row,
        words.result_mark(row.result, is_running=row.ended_us is None, exit_code=row.exit_code),
        words.REASONS.get(row.reason, row.reason),
        None if row.scheduled_us is None else max(row.started_us - row.scheduled_us, 0),
        length_us(row, now_us),
    )


class OutputPiece(msgspec.Struct, kw_only=True):
    """What came of an output since somebody last asked."""

    text: str
    lost_bytes: int
    place: int
    """Where to go on from."""
    is_whole: bool
    """Whether it replaces what was shown before."""
    is_running: bool


def output_piece(
    text: str, lost_bytes: int, *, since: int, lost_before: int, is_running: bool
) -> OutputPiece:
    """The part of an output from character *since* on; all of it if its beginning was dropped meanwhile."""
    settled = words.settled(text) if is_running else text
    is_whole = lost_bytes != lost_before or since > len(settled)
    return OutputPiece(
        text=words.printed(settled if is_whole else settled[since:]),
        lost_bytes=lost_bytes,
        place=len(settled),
        is_whole=is_whole,
        is_running=is_running,
    )


def misses_since(rows: Iterable[MissRow], from_us: Instant) -> list[MissRow]:
    """Those not older than *from_us*."""
    return [row for row in rows if row.at_us >= from_us]
