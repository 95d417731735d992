"""The things that pages list: services, timers and tasks, each as an entry. Pure.

Entries of all kinds have the same fields, so one table, one list of what comes next and one overview
serve a daemon and a store. A table of thousands is filtered and sorted as cheap keys; only the rows of the
page that is shown are made.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from typing import Any, NamedTuple, TypeVar

from duly.config.schema import Config, Service, Timer
from duly.core.task import Task, due_after
from duly.core.timing import in_words
from duly.daemon import health, views
from duly.daemon.health import EntryState
from duly.instant import MINUTE_US, NEVER_US, Instant
from duly.web import formatting
from duly.web.formatting import Mark, visible

PAGE = 100
"""Rows of a table that are shown at once."""
_NOW_US = 1_000_000
_SAME_US = 5_000_000
"""So far apart a run's start may be on a shared timer and in the history of this machine."""


class Action(NamedTuple):
    name: str
    id: str
    label: str
    question: str
    is_grave: bool = False

    @property
    def href(self) -> str:
        """The page that asks, for browsers without script."""
        return formatting.address(f"act/{self.name}", self.id)


ACTIONS: Mapping[str, tuple[str, str, bool]] = {
    "start": ("Start", "Start {id} now?", False),
    "stop": ("Stop", "Stop {id}? Its process is told to end, and killed if it does not.", True),
    "trigger": ("Trigger", "Fire {id} now? Its target runs at once, beside its schedule.", False),
    "enable": ("Enable", "Enable {id}? It fires by its schedule again.", False),
    "disable": ("Disable", "Disable {id}? It does not fire until it is enabled again.", True),
    "run": ("Run now", "Run {id} now? That is beside its schedule.", False),
    "cancel": ("Cancel", "Cancel the run of {id}? It has failed then, and is not tried again.", True),
    "pause": (
        "Pause",
        "Pause {id}? It rests until it is resumed; what is due meanwhile then runs once.",
        True,
    ),
    "resume": ("Resume", "Resume {id}? It runs by its schedule again.", False),
    "remove": ("Remove", "Remove the entry {id}? Its runs stay in the history.", True),
}
"""By name: what is on the button, what is asked, and whether it takes something away."""

NOUNS: Mapping[str, str] = {
    **dict.fromkeys(("start", "stop"), "services"),
    **dict.fromkeys(("trigger", "enable", "disable"), "timers"),
    **dict.fromkeys(("run", "cancel", "pause", "resume", "remove"), "tasks"),
}
"""What each is done to."""

UNDONE_BY: Mapping[str, str] = {
    "enable": "disable",
    "disable": "enable",
    "stop": "start",
    "pause": "resume",
    "resume": "pause",
}


def action(name: str, id: str) -> Action:  # noqa: A002 (the word for it)
    label, question, is_grave = ACTIONS[name]
    return Action(name, id, label, question.format(id=visible(id)), is_grave)


# --- entries ---
#
# Each has an id, a kind (what it counts as), a mark (how that is shown), its health (what is wrong with it),
# actions, a text that a filter looks through, and when it ran last (last_us) and runs next (next_us), for
# whichever reason.


class ServiceEntry(NamedTuple):
    service: Service
    snapshot: views.ServiceSnapshot
    next_us: Instant | None
    fired: views.TimerSnapshot | None = None
    """A shared timer of it that has run later than the service has on this machine."""
    health: EntryState | None = None

    @property
    def id(self) -> str:
        return self.service.id

    @property
    def is_job(self) -> bool:
        """Whether it is run to its end, and not kept running."""
        return self.service.type == "oneshot"

    @property
    def kind(self) -> str:
        if self.health is not None:
            return self.health.state
        return self.snapshot.state if self.service.enabled else "disabled"

    @property
    def mark(self) -> Mark:
        return formatting.state_mark(self.kind)

    @property
    def text(self) -> str:
        return f"{self.id}\n{self.service.description}\n{self.snapshot.reason}"

    @property
    def last_us(self) -> Instant | None:
        """When it last ran, on whatever machine."""
        if self.fired is not None:
            return self.fired.last_run_us
        return None if self.snapshot.last_run is None else self.snapshot.last_run.started_us

    @property
    def actions(self) -> list[Action]:
        if not self.service.enabled:
            return []
        is_up = self.snapshot.state in {"running", "starting", "waiting"}
        return [action("stop" if is_up else "start", self.id)]


class TimerEntry(NamedTuple):
    timer: Timer
    snapshot: views.TimerSnapshot
    health: EntryState | None = None
    """Its own, or that of the job that it fires."""

    @property
    def id(self) -> str:
        return self.timer.id

    @property
    def is_enabled(self) -> bool:
        override = self.snapshot.enabled_override
        return self.timer.enabled if override is None else override

    @property
    def kind(self) -> str:
        if self.snapshot.fault is not None:
            return health.FAILING
        if self.health is not None and self.health.is_alarm:
            return self.health.state
        if self.snapshot.running_run is not None:
            return "running"
        return "fine" if self.is_enabled else health.DISABLED

    def is_answering(self, at_us: Instant, now_us: Instant) -> bool:
        """Whether what is due *at_us* runs by now: a machine that does not run it sees it as due still."""
        return self.snapshot.running_run is not None and at_us <= now_us + _NOW_US

    @property
    def mark(self) -> Mark:
        snapshot, is_running = self.snapshot, self.snapshot.running_run is not None
        if snapshot.fault is not None:
            return Mark("bad", "bad", "unreadable")
        if self.kind not in {"running", "fine"}:
            return formatting.state_mark(self.kind)
        return formatting.result_mark(
            snapshot.last_result, is_running=is_running, exit_code=snapshot.last_exit
        )

    @property
    def text(self) -> str:
        return f"{self.id}\n{self.timer.target}\n{self.timer.description}"

    @property
    def last_us(self) -> Instant | None:
        return self.snapshot.last_run_us

    @property
    def retry_at_us(self) -> Instant | None:
        return self.snapshot.retry_at_us

    @property
    def next_us(self) -> Instant | None:
        return _sooner(self.snapshot.next_us, self.snapshot.retry_at_us)

    @property
    def actions(self) -> list[Action]:
        if self.snapshot.fault is not None:
            return []
        return [action("trigger", self.id), action("disable" if self.is_enabled else "enable", self.id)]


class TaskEntry(NamedTuple):
    """A task of an embedded scheduler, and what it counts as: a key of `formatting.TASKS`."""

    task: Task
    kind: str
    health: EntryState | None = None
    tags: Sequence[str] = ()

    @property
    def actions(self) -> list[Action]:
        first = "cancel" if self.kind == "running" else "run"
        rest = action("resume" if self.task.paused else "pause", self.id)
        is_entry = self.task.entry is not None
        return [action(first, self.id), rest, *([action("remove", self.id)] if is_entry else [])]

    @property
    def id(self) -> str:
        return self.task.name

    @property
    def mark(self) -> Mark:
        return formatting.TASKS[self.kind]

    @property
    def text(self) -> str:
        return "\n".join((self.task.name, *self.tags))

    @property
    def last_us(self) -> Instant | None:
        return self.task.last_attempt_us

    @property
    def retry_at_us(self) -> Instant | None:
        return self.task.retry_at_us

    @property
    def next_us(self) -> Instant | None:
        """When it is due or tried again; in the past if it should have started. None while it rests."""
        return None if self.kind in RESTING else _sooner(self.task.due_us, self.task.retry_at_us)

    @property
    def cron_words(self) -> str:
        return in_words(self.task.schedule.text)

    def dues_after(self, now_us: Instant, until_us: Instant, most: int) -> list[Instant]:
        if self.kind in RESTING:
            return []
        return instants_after(partial(due_after, self.task), now_us, until_us, most)


def instants_after(
    following: Callable[[Instant], Instant], at_us: Instant, until_us: Instant, most: int
) -> list[Instant]:
    """The first instants of a schedule, whose *following* one is known of each."""
    found: list[Instant] = []
    while len(found) < most and (at_us := following(at_us)) < NEVER_US and at_us <= until_us:
        found.append(at_us)
    return found


RESTING = frozenset({"paused", "disabled", "waiting for its kind"})
"""Tasks of these kinds do not run by their schedule."""

AnyEntry = ServiceEntry | TimerEntry | TaskEntry
E = TypeVar("E", bound=AnyEntry)


def _sooner(one_us: Instant | None, other_us: Instant | None) -> Instant | None:
    at_us = min(NEVER_US if one_us is None else one_us, NEVER_US if other_us is None else other_us)
    return at_us if at_us < NEVER_US else None


_UNREAD = views.TimerSnapshot()


States = Mapping[tuple[str, str], EntryState]
"""What is wrong with entries, by kind and id."""


def service_entries(
    config: Config,
    snapshots: Iterable[views.ServiceSnapshot],
    fired_by: Sequence[TimerEntry],
    states: States,
) -> list[ServiceEntry]:
    known = {snapshot.id: snapshot for snapshot in snapshots}
    firsts, shared = _firsts(fired_by), _latest_shared(fired_by)
    entries = []
    for service in config.services:
        snapshot = known.get(service.id) or views.ServiceSnapshot(id=service.id, state="stopped")
        entry = ServiceEntry(
            service, snapshot, firsts.get(service.id), health=states.get(("service", service.id))
        )
        fired = shared.get(service.id)
        if fired is not None and (fired.last_run_us or 0) > (entry.last_us or 0) + _SAME_US:
            entry = entry._replace(fired=fired)
        entries.append(entry)
    return entries


def _firsts(timers: Iterable[TimerEntry]) -> dict[str, Instant]:
    """When each target is fired next."""
    firsts: dict[str, Instant] = {}
    for entry in timers:
        if (at_us := entry.next_us) is not None:
            firsts[entry.timer.target] = min(firsts.get(entry.timer.target, NEVER_US), at_us)
    return firsts


def _latest_shared(timers: Iterable[TimerEntry]) -> dict[str, views.TimerSnapshot]:
    """Of each target the timer that ran last, if timers are shared."""
    latest: dict[str, views.TimerSnapshot] = {}
    for entry in timers:
        before_us = latest.get(entry.timer.target, _UNREAD).last_run_us or 0
        if entry.snapshot.member is not None and (entry.last_us or 0) > before_us:
            latest[entry.timer.target] = entry.snapshot
    return latest


def timer_entries(
    config: Config, snapshots: Mapping[str, views.TimerSnapshot], states: States
) -> list[TimerEntry]:
    return [
        TimerEntry(
            timer,
            snapshots.get(timer.id, _UNREAD),
            states.get(("timer", timer.id)) or states.get(("service", timer.target)),
        )
        for timer in config.timers
    ]


def entry_called(name: str, entries: Iterable[E]) -> E | None:
    return next((entry for entry in entries if entry.id == name), None)


def task_entry(task: Task, now_us: Instant) -> TaskEntry:
    if task.running_since_us is not None:
        return TaskEntry(task, "running")
    if task.options.is_of_unknown_kind:
        return TaskEntry(task, "waiting for its kind")
    if task.paused or not task.options.enabled:
        return TaskEntry(task, "paused" if task.paused else "disabled")
    if task.due_us < now_us - MINUTE_US:
        return TaskEntry(task, "overdue")
    if task.retry_at_us is not None or (task.last_failure_us or 0) > (task.last_success_us or 0):
        return TaskEntry(task, "failing")
    return TaskEntry(task, "new" if task.last_attempt_us is None else "fine")


# --- tables ---


class TableQuery(NamedTuple):
    text: str = ""
    only: str = ""
    sort: str = ""
    is_down: bool = False
    page: int = 1


class ShownTable(NamedTuple):
    """The rows that are shown, and where they lie in the whole."""

    rows: Sequence[Any]
    asked: TableQuery
    found: int
    total: int
    first: int
    pages: int
    counts: Mapping[str, int]
    """How many there are of each kind that can be picked."""


_ALARMS = (health.HUNG, health.CRASH_LOOP, health.NEVER_SUCCEEDED, health.FAILING, health.MISSING_RUNS)
_KINDS = (*_ALARMS, "failed", "overdue", "skipped", "waiting", "starting", "running")
"""The worst first."""
_RANKS = {kind: rank for rank, kind in enumerate(_KINDS)}


def rank(kind: str) -> int:
    """How bad it is to be of a *kind*: 0 is the worst."""
    return _RANKS.get(kind, len(_KINDS))


_SORTS: Mapping[str, Callable[[Any], Any]] = {
    "name": lambda entry: entry.id.casefold(),
    "state": lambda entry: (rank(entry.kind), entry.kind),
    "last": lambda entry: entry.last_us,
    "next": lambda entry: entry.next_us,
}


class Listing(NamedTuple):
    """A kind of entry: what its table can be filtered and sorted by."""

    name: str
    """In addresses, and in the name of its template."""
    kinds: tuple[str, ...]
    sorts: Mapping[str, Callable[[Any], Any]]
    """What to sort by, or None: such entries are last, in either direction."""


SERVICES = Listing(
    "services",
    (*_ALARMS, "failed", "skipped", "waiting", "starting", "running", "stopped", "done", "disabled"),
    {
        **_SORTS,
        "type": lambda entry: (entry.service.type, entry.service.stage),
        "since": lambda entry: entry.snapshot.since_us,
    },
)
TIMERS = Listing(
    "timers",
    (*_ALARMS, "running", "fine", "disabled"),
    {
        **_SORTS,
        "target": lambda entry: entry.timer.target.casefold(),
        "missed": lambda entry: entry.snapshot.last_missed_us,
    },
)
TASKS = Listing(
    "tasks",
    ("failing", "overdue", "running", "fine", "new", *sorted(RESTING)),
    {**_SORTS, "failure": lambda entry: entry.task.last_failure_us},
)


def table_query(query: Mapping[str, str], listing: Listing) -> TableQuery:
    """What the query of an address asks; what makes no sense in it is left out."""
    page = query.get("page", "1")
    sort, only = query.get("sort", ""), query.get("only", "")
    return TableQuery(
        query.get("q", "")[:200],
        only if only in listing.kinds else "",
        sort if sort in listing.sorts else "",
        query.get("dir") == "down",
        int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 7 else 1,
    )


def table_of(listing: Listing, entries: Sequence[AnyEntry], asked: TableQuery) -> ShownTable:
    kinds = [entry.kind for entry in entries]
    found = list(entries)
    if asked.only:
        found = [entry for entry, kind in zip(entries, kinds, strict=True) if kind == asked.only]
    for word in asked.text.casefold().split():
        found = [entry for entry in found if word in entry.text.casefold()]
    if asked.sort:
        found = _sorted_entries(found, listing.sorts[asked.sort], is_down=asked.is_down)
    pages = max(-(-len(found) // PAGE), 1)
    page = max(min(asked.page, pages), 1)
    first = (page - 1) * PAGE
    shown = found[first : first + PAGE]
    return ShownTable(
        shown, asked._replace(page=page), len(found), len(entries), first, pages, Counter(kinds)
    )


def _sorted_entries(
    entries: list[AnyEntry], key: Callable[[AnyEntry], Any], *, is_down: bool
) -> list[AnyEntry]:
    keyed = [(key(entry), entry) for entry in entries]
    there = sorted((pair for pair in keyed if pair[0] is not None), key=lambda pair: pair[0], reverse=is_down)
    return [entry for _, entry in there] + [entry for value, entry in keyed if value is None]


def usual_lengths(lengths_us: Sequence[int]) -> tuple[int | None, int | None]:
    """The 50th and the 95th percentile of how long runs took; None of no runs."""
    ordered = sorted(lengths_us)
    if not ordered:
        return None, None
    return ordered[(len(ordered) - 1) // 2], ordered[math.ceil(0.95 * len(ordered)) - 1]


# --- what comes next ---


class Next(NamedTuple):
    id: str
    at_us: Instant
    is_retry: bool


def next_runs(entries: Iterable[TimerEntry | TaskEntry], now_us: Instant, most: int) -> list[Next]:
    ahead = (
        (at_us, order, entry) for order, entry in enumerate(entries) if (at_us := _ahead_us(entry, now_us))
    )
    return [Next(entry.id, at_us, at_us == entry.retry_at_us) for at_us, _, entry in nsmallest(most, ahead)]


def _ahead_us(entry: TimerEntry | TaskEntry, now_us: Instant) -> Instant | None:
    at_us = entry.next_us
    if isinstance(entry, TaskEntry) and at_us is not None and at_us < now_us:
        # That it should have started is shown as overdue, not as what comes next.
        return _sooner(due_after(entry.task, now_us), None)
    if isinstance(entry, TimerEntry) and at_us is not None and entry.is_answering(at_us, now_us):
        return None
    return at_us
