"""What the daemon shows of itself: the JSON of the command line, the socket and the web. Pure.

Everything is made from definitions, states and rows, so the same functions serve a live daemon and the store
of one that is down; `source` says which. The types are in `json_types`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import lru_cache
from typing import Any

import msgspec

from duly.config.schema import Calendar, Config, Service, Timer, expression_of, has_slots
from duly.cron.english import in_english
from duly.daemon.json_types import (
    DisabledJson,
    FiringJson,
    HistoryJson,
    InvalidJson,
    LineTimeJson,
    LogJson,
    MissJson,
    PlaceJson,
    RunJson,
    ServiceJson,
    ServicesJson,
    TimerJson,
    TimersJson,
    json_of,
)
from duly.daemon.protocol import Source, sayable
from duly.formatting import counted, exact_length
from duly.instant import NEVER_US, SECOND_US, Instant, iso, time_of
from duly.schedules import offset_s
from duly.store.history import MissRow, RunRow, length_us, line_times
from duly.supervisor.services import ServiceView

DISABLED_MESSAGE = (
    "the timer subsystem is off: it is experimental, and has to be switched on. Write timers = true under"
    " [supervisor] (or SUPERVISOR = {'timers': True}), start with `duly run --timers`, or switch a running"
    " daemon with `duly timers --on`"
)
PARENT_DISABLED_MESSAGE = (
    "the supervisor is off (enabled = false under [supervisor]), and the timer subsystem with it; write"
    " enabled = true and reload"
)


def timers_off_text(config: Config) -> str:
    """What to know if the timers of *config* are off; empty if it has none, or nothing is to run at all."""
    if not config.timers or not config.settings.enabled:
        return ""
    defined = "1 timer is" if len(config.timers) == 1 else f"{len(config.timers):,} timers are"
    remedy = "write timers = true under [supervisor], or start with `duly run --timers`"
    return f"{defined} defined and will never fire: timers are switched off; {remedy}"


MISSES: Mapping[str, str] = {
    "overlap": "its target was still active, or its lock held",
    "disabled": "the timer was disabled",
    "disabled-target": "its target was disabled",
    "target-not-found": "its target was not there",
    "shutdown": "the daemon was down, stopping or asleep",
}
"""What the reasons of misses mean."""
_ILL_MISSES = frozenset({"shutdown", "target-not-found"})

_TIMERS_AT_ONCE = 250
"""Shown without a pause: a few milliseconds."""


# --- what it is made of ---


class TimerSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a timer's state says; every field may be missing but what the store always has."""

    enabled_override: bool | None = None
    registered_us: Instant | None = None
    answered_us: Instant | None = None
    next_us: Instant | None = None
    last_run_us: Instant | None = None
    last_success_us: Instant | None = None
    last_failure_us: Instant | None = None
    last_exit: int | None = None
    last_result: str | None = None
    last_missed_us: Instant | None = None
    last_miss_reason: str | None = None
    retry_attempt: int = 0
    retry_at_us: Instant | None = None
    queued_us: Instant | None = None
    """What came due at that instant waits for its target to end."""
    startup_triggered: bool = False
    running_run: int | None = None
    running_since_us: Instant | None = None
    member: str | None = None
    """Which machine runs it, if timers are shared."""
    fault: str | None = None
    """Why it does not run, and what to do, if its stored state cannot be read; then nothing else is known."""
    slots: str = ""
    """Its newest slots, as `store.past` writes them."""


ServiceSnapshot = ServiceView
"""What the supervisor says of a service, or the store of a daemon that is down."""


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon knows of itself at one moment; of one that is down, what can be said of it."""

    source: Source
    now_us: Instant
    zone: tzinfo
    version: str
    state: str
    """starting, running, stopping, or one of `ABSENT`."""
    is_timer_switch_on: bool
    pid: int | None = None
    started_us: Instant | None = None
    faults: tuple[str, ...] = ()
    """What keeps it from working as it should: a store that cannot be written, a file that cannot be read."""
    config: str = ""
    store: str = ""
    socket: str = ""
    dashboard: str = ""
    """Where it is, or why it is not there."""

    def __post_init__(self) -> None:
        # A path may hold bytes that are no text; these are only ever shown.
        for name in ("config", "store", "socket"):
            msgspec.structs.force_setattr(self, name, sayable(getattr(self, name)))
        msgspec.structs.force_setattr(self, "faults", tuple(map(sayable, self.faults)))


# --- making it ---


def disabled(*, is_parent_on: bool = True) -> DisabledJson:
    """What is said while the timers are off."""
    return DisabledJson(
        status="disabled", message=DISABLED_MESSAGE if is_parent_on else PARENT_DISABLED_MESSAGE
    )


def run_json(row: RunRow, zone: tzinfo) -> RunJson:
    lasted_us = length_us(row)
    duration_s = None if lasted_us is None else lasted_us / SECOND_US
    return json_of(RunJson, row, zone, duration_s=duration_s, running=row.ended_us is None)


def miss_json(row: MissRow, zone: tzinfo) -> MissJson:
    return MissJson(timer=row.timer, at=iso(row.at_us, zone), reason=row.reason)


def invalid_json(config: Config, *kinds: str) -> list[InvalidJson]:
    """The entries that cannot be used, of these kinds or of all."""
    return [
        InvalidJson(
            kind=bad.kind, id=bad.id, index=bad.index, reason=bad.reason, line=bad.line, file=bad.file
        )
        for bad in config.invalid
        if not kinds or any(map(bad.is_of, kinds))
    ]


def timer_json(timer: Timer, snapshot: TimerSnapshot, zone: tzinfo) -> TimerJson:
    override = snapshot.enabled_override
    return json_of(
        TimerJson,
        snapshot,
        zone,
        id=timer.id,
        target=timer.target,
        enabled=timer.enabled if override is None else override,
        schedule=schedule_text(timer),
        description=timer.description,
        running=snapshot.running_run is not None,
        next_run_at=time_of(snapshot.next_us, zone),
        retry_next_at=time_of(snapshot.retry_at_us, zone),
        answered_until=time_of(snapshot.answered_us, zone),
    )


def timers_json_steps(
    daemon_status: DaemonStatus, config: Config, snapshots: Mapping[str, TimerSnapshot]
) -> Iterator[TimersJson]:
    """The same answer again and again, with some more timers each time; the last is whole.

    A loop that must not stand still for ten thousand timers does something else in between.
    """
    answer = TimersJson(
        status="enabled",
        source=daemon_status.source,
        at=iso(daemon_status.now_us, daemon_status.zone),
        timers=[],
        invalid=invalid_json(config, "timer"),
    )
    yield answer
    for first in range(0, len(config.timers), _TIMERS_AT_ONCE):
        answer.timers.extend(
            timer_json(timer, snapshots.get(timer.id, TimerSnapshot()), daemon_status.zone)
            for timer in config.timers[first : first + _TIMERS_AT_ONCE]
        )
        yield answer


def schedule_text(timer: Timer) -> str:
    """A timer's triggers in plain English: "At 03:30, every day; 5m after start-up".

    Made from its definition alone, so it may be shown while timers are off.
    """
    said = [calendar_text(calendar) for calendar in timer.on_calendar]
    if timer.at is not None:
        said.append(f"Once, at {timer.at}")
    if timer.every is not None:
        said.append(f"Every {exact_length(timer.every)}")
    if timer.on_startup_sec is not None:
        said.append(f"{exact_length(timer.on_startup_sec)} after start-up")
    if timer.on_unit_active_sec is not None:
        said.append(f"{exact_length(timer.on_unit_active_sec)} after each run of {timer.target}")
    if not has_slots(timer):
        return "; ".join(said)
    if later_s := offset_s(timer.id, round(timer.random_delay_sec * SECOND_US)):
        said.append(f"{exact_length(later_s)} later (random_delay)")
    if timer.exclude:
        said.append(f"not on {counted(len(timer.exclude), 'date')}")
    if timer.dst == "both":
        said.append("twice in an hour that comes twice")
    return "; ".join(said)


@lru_cache(maxsize=4096)
def calendar_text(calendar: Calendar) -> str:
    words = in_english(expression_of(calendar))
    return words.replace("the 28th to 31st", "the last day") if calendar.day_of_month == "last" else words


def service_json(service: Service, snapshot: ServiceSnapshot, zone: tzinfo) -> ServiceJson:
    last_run = None if snapshot.last_run is None else run_json(snapshot.last_run, zone)
    declared = {name: getattr(service, name) for name in ("id", "type", "enabled", "stage", "description")}
    since = time_of(snapshot.since_us, zone)
    return json_of(ServiceJson, snapshot, zone, **declared, since=since, last_run=last_run)


def services_json(
    daemon_status: DaemonStatus, config: Config, snapshots: Iterable[ServiceSnapshot]
) -> ServicesJson:
    known = {snapshot.id: snapshot for snapshot in snapshots}
    return ServicesJson(
        source=daemon_status.source,
        at=iso(daemon_status.now_us, daemon_status.zone),
        services=[
            service_json(
                service,
                known.get(service.id) or ServiceSnapshot(id=service.id, state="stopped"),
                daemon_status.zone,
            )
            for service in config.services
        ],
        invalid=invalid_json(config, "service"),
    )


def history_json(
    daemon_status: DaemonStatus,
    runs: Sequence[RunRow],
    misses: Sequence[MissRow],
    *,
    more: bool,
    older: PlaceJson | None = None,
    fault: str | None = None,
) -> HistoryJson:
    """Runs and misses, as they come: newest first."""
    return HistoryJson(
        source=daemon_status.source,
        at=iso(daemon_status.now_us, daemon_status.zone),
        runs=[run_json(row, daemon_status.zone) for row in runs],
        misses=[miss_json(row, daemon_status.zone) for row in misses],
        more=more,
        older=older,
        fault=fault,
    )


def log_json(
    daemon_status: DaemonStatus, row: RunRow, lines: int | None, *, fault: str | None = None
) -> LogJson:
    """The output of a run that a row holds: all that is kept, or the last *lines* of it."""
    shown = last_lines(row.output, lines)
    skipped = row.output.count("\n") - shown.count("\n")
    # Of those before it, the last one is the time of the first line.
    known = line_times(row) if shown else []
    times = {max(line - skipped, 0): row.started_us + at_s * SECOND_US for line, at_s in known}
    zone = daemon_status.zone
    return LogJson(
        source=daemon_status.source,
        run=run_json(row, zone),
        output=shown,
        lost_bytes=row.output_lost,
        fault=fault,
        times=[LineTimeJson(line=line, at=iso(at_us, zone)) for line, at_us in times.items()],
    )


def last_lines(text: str, count: int | None) -> str:
    """The last *count* lines of a text; None for all."""
    if count is None:
        return text
    if count == 0:
        return ""
    lines = text.split("\n")
    # A text that ends in a newline has nothing after it, and that is not a line.
    wanted = count + 1 if lines[-1] == "" else count
    return "\n".join(lines[-wanted:])


def counts(
    config: Config, services: Sequence[ServiceSnapshot], timers: Mapping[str, TimerSnapshot] | None
) -> dict[str, int]:
    """How many there are, and how many of them run, failed, or cannot be used."""
    found: dict[str, int] = {
        "services": len(config.services),
        "services_running": sum(snapshot.state == "running" for snapshot in services),
        "services_failed": sum(snapshot.state == "failed" for snapshot in services),
        "invalid": len(config.invalid),
    }
    if timers is not None:
        found["timers"] = len(config.timers)
        found["timers_running"] = sum(snapshot.running_run is not None for snapshot in timers.values())
    return found


def is_ill_missed(timer: Timer, snapshot: TimerSnapshot) -> bool:
    """Whether the latest miss of a timer is worth a warning: nobody meant it, and it has not run since.

    A target that was still at work, or a timer or target that somebody disabled, misses on purpose;
    so does, while the daemon is down, a timer that need not be caught up with.
    """
    if snapshot.last_missed_us is None or snapshot.last_miss_reason not in _ILL_MISSES:
        return False
    is_enabled = timer.enabled if snapshot.enabled_override is None else snapshot.enabled_override
    is_owed = timer.persistent or snapshot.last_miss_reason != "shutdown"
    has_run_since = snapshot.last_run_us is not None and snapshot.last_run_us > snapshot.last_missed_us
    return is_enabled and is_owed and not has_run_since


def next_firing(timers: Mapping[str, TimerSnapshot], zone: tzinfo) -> FiringJson | None:
    ahead = [
        (snapshot.next_us, order, name)
        for order, (name, snapshot) in enumerate(timers.items())
        if snapshot.next_us is not None and snapshot.next_us < NEVER_US
    ]
    if not ahead:
        return None
    at_us, _, name = min(ahead)
    return FiringJson(timer=name, at=iso(at_us, zone))


def definition(entry: Service | Timer) -> dict[str, Any]:
    """An entry as declared, with digests in place of the values of its environment, which may be secret."""
    declared: dict[str, Any] = msgspec.to_builtins(entry)
    if "env" in declared:
        for name, value in declared["env"].items():
            pair = f"{name}={value}".encode(errors="surrogateescape")
            declared["env"][name] = hashlib.blake2s(pair, digest_size=8).hexdigest()
    return declared


def definition_text(service: Service) -> str:
    """A service as a store keeps it: of its environment only the names, since the values may be secret."""
    declared = {**definition(service), "env": sorted(service.env)}
    return msgspec.json.encode(declared).decode()
