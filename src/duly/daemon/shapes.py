"""The JSON shapes of what the daemon shows: a contract. Keys are added, never renamed or removed.

Times are ISO 8601 with an offset, or null for none.
"""

import msgspec

from duly.daemon.protocol import Source


class Shape(msgspec.Struct, kw_only=True):
    """Something that becomes JSON, its keys in the order in which they are declared."""


class RunShape(Shape):
    """One run of a service."""

    id: int
    service: str
    timer: str | None
    reason: str
    scheduled_at: str | None
    started_at: str
    ended_at: str | None
    duration_s: float | None
    running: bool
    result: str | None
    exit_code: int | None
    signal: int | None
    message: str
    pid: int | None


class MissShape(Shape):
    """One due of a timer that no run answered."""

    timer: str
    at: str
    reason: str


class InvalidShape(Shape):
    """An entry of the configuration that cannot be used, and why."""

    kind: str
    id: str | None
    index: int
    reason: str
    line: int | None


class TimerShape(Shape):
    """One timer."""

    id: str
    target: str
    enabled: bool
    schedule: str
    description: str
    running: bool
    last_run_at: str | None
    next_run_at: str | None
    last_result: str | None
    last_exit: int | None
    last_missed_at: str | None
    last_miss_reason: str | None
    last_success_at: str | None
    last_failure_at: str | None
    retry_attempt: int
    retry_next_at: str | None
    startup_triggered: bool
    registered_at: str | None
    answered_until: str | None
    member: str | None
    """Which machine holds it, if timers are shared."""
    fault: str | None = None
    """Why it does not run, and what to do, if its stored state cannot be read; then nothing else is known."""


class TimersShape(Shape):
    """All timers."""

    status: str
    source: Source
    at: str
    timers: list[TimerShape]
    invalid: list[InvalidShape]


class DisabledShape(Shape):
    """What there is to see of timers while their gate is closed: that it is closed."""

    status: str
    message: str


class ServiceShape(Shape):
    """One service."""

    id: str
    type: str
    enabled: bool
    stage: int
    state: str
    reason: str
    since: str | None
    pid: int | None
    restarts: int
    description: str
    last_run: RunShape | None


class ServicesShape(Shape):
    """All services."""

    source: Source
    at: str
    services: list[ServiceShape]
    invalid: list[InvalidShape]


class HistoryShape(Shape):
    """Runs, newest first; and the misses among them, newest first."""

    source: Source
    at: str
    runs: list[RunShape]
    misses: list[MissShape]
    more: bool
    """Whether older runs were left out."""


class LogShape(Shape):
    """The output of one run, as far as it is kept."""

    source: Source
    run: RunShape
    output: str
    lost_bytes: int


class FiringShape(Shape):
    """What comes next."""

    timer: str
    at: str


class HealthShape(Shape):
    """Whether all is well, and if not, why; and what is worth a look though nothing is broken."""

    ok: bool
    reasons: list[str]
    warnings: list[str] = []


class StatusShape(Shape):
    """The daemon at a glance."""

    source: Source
    at: str
    version: str
    state: str
    pid: int | None
    started_at: str | None
    uptime_s: float | None
    timers: str
    timers_message: str
    counts: dict[str, int]
    health: HealthShape
    next_firing: FiringShape | None
    config: str
    store: str
    socket: str
    dashboard: str = ""
    """Where it is, or why it is not there; empty if there is none."""
