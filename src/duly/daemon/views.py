"""What the daemon shows of itself: the JSON shapes of the command line and, later, of the web. Pure.

Each shape is made from definitions, states and rows, so the same functions serve a live daemon and the store
of one that is down; `source` says which. Times are ISO 8601 with an offset. The shapes are a contract: keys
are added, never renamed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any, Protocol

import msgspec

from duly.config.schema import Config, Service, Timer
from duly.daemon.protocol import ABSENT, Source, sayable
from duly.daemon.shapes import (
    DisabledShape,
    FiringShape,
    HealthShape,
    HistoryShape,
    InvalidShape,
    LogShape,
    MissShape,
    RunShape,
    ServiceShape,
    ServicesShape,
    StatusShape,
    TimerShape,
    TimersShape,
)
from duly.daemon.words import schedule_words
from duly.instant import NEVER_US, SECOND_US, Instant, datetime_at
from duly.store.history import MissRow, RunRow, length_us

DISABLED_MESSAGE = (
    "the timer subsystem is off: it is experimental, and has to be switched on. Write timers = true under"
    " [supervisor] (or SUPERVISOR = {'timers': True}), start with `duly run --timers`, or switch a running"
    " daemon with `duly timers --on`"
)
PARENT_DISABLED_MESSAGE = (
    "the supervisor is off (enabled = false under [supervisor]), and the timer subsystem with it; write"
    " enabled = true and reload"
)

_ILL_MISSES: Mapping[str, str] = {
    "shutdown": "the daemon was down, stopping or asleep",
    "target-not-found": "its target was not there",
}

_TIMERS_AT_ONCE = 250
"""Shown without a pause: a few milliseconds."""


# --- what it is made of ---


class TimerReading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    startup_triggered: bool = False
    running_run: int | None = None
    running_since_us: Instant | None = None
    member: str | None = None
    """Which machine holds it, if timers are shared."""
    fault: str | None = None
    """Why it does not run, and what to do, if its stored state cannot be read; then nothing else is known."""


class ServiceReading(Protocol):
    """What the supervisor says of a service; `supervisor.ServiceView` is one."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def since_us(self) -> Instant | None: ...  # noqa: D102
    @property
    def pid(self) -> int | None: ...  # noqa: D102
    @property
    def restarts(self) -> int: ...  # noqa: D102
    @property
    def restart_at_us(self) -> Instant | None: ...  # noqa: D102
    @property
    def last_run(self) -> RunRow | None: ...  # noqa: D102
    @property
    def reason(self) -> str: ...  # noqa: D102


class StoredService(msgspec.Struct, frozen=True, kw_only=True):
    """What a store says of a service whose daemon is down."""

    id: str
    state: str
    since_us: Instant | None = None
    pid: int | None = None
    restarts: int = 0
    restart_at_us: Instant | None = None
    last_run: RunRow | None = None
    reason: str = ""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon knows of itself at one moment; of one that is down, what can be said of it."""

    source: Source
    now_us: Instant
    zone: tzinfo
    version: str
    state: str
    """starting, running, stopping, or one of `ABSENT`."""
    is_gate_open: bool
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


def disabled(*, is_parent_on: bool = True) -> DisabledShape:
    """What is said while the gate is closed."""
    return DisabledShape(
        status="disabled", message=DISABLED_MESSAGE if is_parent_on else PARENT_DISABLED_MESSAGE
    )


def time_of(at_us: Instant | None, zone: tzinfo) -> str | None:
    """An instant as ISO 8601 with an offset; None for none and for never."""
    if at_us is None or at_us >= NEVER_US:
        return None
    return datetime_at(at_us, zone).isoformat()


def _time(at_us: Instant, zone: tzinfo) -> str:
    return datetime_at(at_us, zone).isoformat()


def run_shape(row: RunRow, zone: tzinfo) -> RunShape:
    """One run."""
    lasted_us = length_us(row)
    return RunShape(
        id=row.id,
        service=row.service,
        timer=row.timer,
        reason=row.reason,
        scheduled_at=time_of(row.scheduled_us, zone),
        started_at=_time(row.started_us, zone),
        ended_at=time_of(row.ended_us, zone),
        duration_s=None if lasted_us is None else lasted_us / SECOND_US,
        running=row.ended_us is None,
        result=row.result,
        exit_code=row.exit_code,
        signal=row.signal,
        message=row.message,
        pid=row.pid,
    )


def miss_shape(row: MissRow, zone: tzinfo) -> MissShape:
    """One miss."""
    return MissShape(timer=row.timer, at=_time(row.at_us, zone), reason=row.reason)


def invalid_shapes(config: Config, *kinds: str) -> list[InvalidShape]:
    """The entries that cannot be used, of these kinds or of all."""
    return [
        InvalidShape(kind=bad.kind, id=bad.id, index=bad.index, reason=bad.reason, line=bad.line)
        for bad in config.invalid
        if not kinds or bad.kind in kinds
    ]


def timer_shape(timer: Timer, reading: TimerReading, zone: tzinfo) -> TimerShape:
    """One timer."""
    override = reading.enabled_override
    return TimerShape(
        id=timer.id,
        target=timer.target,
        enabled=timer.enabled if override is None else override,
        schedule=schedule_words(timer),
        description=timer.description,
        running=reading.running_run is not None,
        last_run_at=time_of(reading.last_run_us, zone),
        next_run_at=time_of(reading.next_us, zone),
        last_result=reading.last_result,
        last_exit=reading.last_exit,
        last_missed_at=time_of(reading.last_missed_us, zone),
        last_miss_reason=reading.last_miss_reason,
        last_success_at=time_of(reading.last_success_us, zone),
        last_failure_at=time_of(reading.last_failure_us, zone),
        retry_attempt=reading.retry_attempt,
        retry_next_at=time_of(reading.retry_at_us, zone),
        startup_triggered=reading.startup_triggered,
        registered_at=time_of(reading.registered_us, zone),
        answered_until=time_of(reading.answered_us, zone),
        member=reading.member,
        fault=reading.fault,
    )


def timers_shape(standing: Standing, config: Config, readings: Mapping[str, TimerReading]) -> TimersShape:
    """All timers, in the order in which they were declared, and those that are invalid."""
    *_, whole = timers_shapes(standing, config, readings)
    return whole


def timers_shapes(
    standing: Standing, config: Config, readings: Mapping[str, TimerReading]
) -> Iterator[TimersShape]:
    """The same shape again and again, with some more timers each time; the last is whole.

    A loop that must not stand still for ten thousand timers does something else in between.
    """
    shape = TimersShape(
        status="enabled",
        source=standing.source,
        at=_time(standing.now_us, standing.zone),
        timers=[],
        invalid=invalid_shapes(config, "timer"),
    )
    yield shape
    for first in range(0, len(config.timers), _TIMERS_AT_ONCE):
        shape.timers.extend(
            timer_shape(timer, readings.get(timer.id, TimerReading()), standing.zone)
            for timer in config.timers[first : first + _TIMERS_AT_ONCE]
        )
        yield shape


def service_shape(service: Service, reading: ServiceReading, zone: tzinfo) -> ServiceShape:
    """One service."""
    return ServiceShape(
        id=service.id,
        type=service.type,
        enabled=service.enabled,
        stage=service.stage,
        state=reading.state,
        reason=reading.reason,
        since=time_of(reading.since_us, zone),
        pid=reading.pid,
        restarts=reading.restarts,
        description=service.description,
        last_run=None if reading.last_run is None else run_shape(reading.last_run, zone),
    )


def services_shape(standing: Standing, config: Config, readings: Iterable[ServiceReading]) -> ServicesShape:
    """All services, in the order in which they were declared, and those that are invalid."""
    known = {reading.id: reading for reading in readings}
    return ServicesShape(
        source=standing.source,
        at=_time(standing.now_us, standing.zone),
        services=[
            service_shape(
                service,
                known.get(service.id) or StoredService(id=service.id, state="stopped"),
                standing.zone,
            )
            for service in config.services
        ],
        invalid=invalid_shapes(config, "service"),
    )


def history_shape(
    standing: Standing, runs: Sequence[RunRow], misses: Sequence[MissRow], *, more: bool
) -> HistoryShape:
    """Runs and misses, as they come: newest first."""
    return HistoryShape(
        source=standing.source,
        at=_time(standing.now_us, standing.zone),
        runs=[run_shape(row, standing.zone) for row in runs],
        misses=[miss_shape(row, standing.zone) for row in misses],
        more=more,
    )


def log_shape(standing: Standing, row: RunRow, lines: int | None) -> LogShape:
    """The output of a run that a row holds: all that is kept, or the last *lines* of it."""
    return LogShape(
        source=standing.source,
        run=run_shape(row, standing.zone),
        output=last_lines(row.output, lines),
        lost_bytes=row.output_lost,
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


def status_shape(
    standing: Standing,
    config: Config,
    services: Iterable[ServiceReading],
    timers: Mapping[str, TimerReading] | None,
) -> StatusShape:
    """The daemon at a glance. *timers* is None while the gate is closed."""
    readings = list(services)
    closed = disabled(is_parent_on=config.settings.enabled)
    up_us = None if standing.started_us is None else standing.now_us - standing.started_us
    return StatusShape(
        source=standing.source,
        at=_time(standing.now_us, standing.zone),
        version=standing.version,
        state=standing.state,
        pid=standing.pid,
        started_at=time_of(standing.started_us, standing.zone),
        uptime_s=None if up_us is None else max(up_us, 0) / SECOND_US,
        timers="disabled" if timers is None else "enabled",
        timers_message=closed.message if timers is None else "",
        counts=counts(config, readings, timers),
        health=health(standing, config, readings, timers),
        next_firing=None if timers is None else next_firing(timers, standing.zone),
        config=standing.config,
        store=standing.store,
        socket=standing.socket,
        dashboard=standing.dashboard,
    )


def counts(
    config: Config, services: Sequence[ServiceReading], timers: Mapping[str, TimerReading] | None
) -> dict[str, int]:
    """How many there are, and how many of them run, failed, or cannot be used."""
    found: dict[str, int] = {
        "services": len(config.services),
        "services_running": sum(reading.state == "running" for reading in services),
        "services_failed": sum(reading.state == "failed" for reading in services),
        "invalid": len(config.invalid),
    }
    if timers is not None:
        found["timers"] = len(config.timers)
        found["timers_running"] = sum(reading.running_run is not None for reading in timers.values())
    return found


def health(
    standing: Standing,
    config: Config,
    services: Sequence[ServiceReading],
    timers: Mapping[str, TimerReading] | None,
) -> HealthShape:
    """Whether all is well; each reason is a sentence that names what is not."""
    reasons = list(standing.faults)
    if standing.state in ABSENT:
        reasons.append(ABSENT[standing.state])
    reasons += [
        f"{bad.kind} {bad.id or f'number {bad.index + 1}'} is invalid: {bad.reason}" for bad in config.invalid
    ]
    reasons += [
        f"service {reading.id} {_failed_words(reading)}"
        for reading in services
        if reading.state in {"failed", "skipped"}
    ]
    reasons += [f"service {reading.id} {reading.reason}" for reading in services if _fell_over(reading)]
    for name, reading in (timers or {}).items():
        if reading.fault is not None:
            reasons.append(reading.fault)
        if reading.last_result not in {None, "success"} and reading.running_run is None:
            reasons.append(f"the last run of timer {name} ended with {_result_words(reading)}")
    return HealthShape(ok=not reasons, reasons=reasons, warnings=_missed(standing, config, timers or {}))


def _missed(standing: Standing, config: Config, timers: Mapping[str, TimerReading]) -> list[str]:
    warnings = []
    for timer in config.timers:
        reading = timers.get(timer.id)
        if reading is None or reading.last_missed_us is None or not is_ill_missed(timer, reading):
            continue
        why = _ILL_MISSES[reading.last_miss_reason or ""]
        at = datetime_at(reading.last_missed_us, standing.zone)
        warnings.append(f"timer {timer.id} missed {at:%Y-%m-%d %H:%M}, because {why}, and has not run since")
    return warnings


def is_ill_missed(timer: Timer, reading: TimerReading) -> bool:
    """Whether the latest miss of a timer is worth a warning: nobody meant it, and it has not run since.

    A target that was still at work, or a timer or target that somebody disabled, misses as it was told to;
    so does, while the daemon is down, a timer that need not be caught up with.
    """
    if reading.last_missed_us is None or reading.last_miss_reason not in _ILL_MISSES:
        return False
    is_enabled = timer.enabled if reading.enabled_override is None else reading.enabled_override
    is_owed = timer.persistent or reading.last_miss_reason != "shutdown"
    has_run_since = reading.last_run_us is not None and reading.last_run_us > reading.last_missed_us
    return is_enabled and is_owed and not has_run_since


def _fell_over(reading: ServiceReading) -> bool:
    """Whether a service failed and waits to come back; one that ended well and comes back is fine."""
    last = reading.last_run
    return reading.restart_at_us is not None and last is not None and last.result != "success"


def _failed_words(reading: ServiceReading) -> str:
    word = "failed" if reading.state == "failed" else "was not started"
    return f"{word}: {reading.reason}" if reading.reason else word


def _result_words(reading: TimerReading) -> str:
    if reading.last_result == "exit" and reading.last_exit is not None:
        return f"exit code {reading.last_exit}"
    return str(reading.last_result)


def next_firing(timers: Mapping[str, TimerReading], zone: tzinfo) -> FiringShape | None:
    """The timer that fires next."""
    ahead = [
        (reading.next_us, order, name)
        for order, (name, reading) in enumerate(timers.items())
        if reading.next_us is not None and reading.next_us < NEVER_US
    ]
    if not ahead:
        return None
    at_us, _, name = min(ahead)
    return FiringShape(timer=name, at=_time(at_us, zone))


def definition(entry: Service | Timer) -> dict[str, Any]:
    """An entry as declared, with digests in place of the values of its environment, which may be secret."""
    declared: dict[str, Any] = msgspec.to_builtins(entry)
    if "env" in declared:
        declared["env"] = {name: _digest(name, value) for name, value in declared["env"].items()}
    return declared


def definition_text(service: Service) -> str:
    """A service as a store keeps it: of its environment only the names, since the values may be secret."""
    declared = {**definition(service), "env": sorted(service.env)}
    return msgspec.json.encode(declared).decode()


def _digest(name: str, value: str) -> str:
    return hashlib.blake2s(f"{name}={value}".encode(errors="surrogateescape"), digest_size=8).hexdigest()


def builtins(shape: Any) -> Any:
    """A shape as dicts, lists and plain values: what `--json` prints and the socket carries."""
    return msgspec.to_builtins(shape)
