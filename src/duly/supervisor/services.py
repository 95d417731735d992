"""What a service is up to, and what becomes of it when its process starts, ends or cannot be made.

A state is a value; every change is a function from one state to the next and knows neither clock nor process.
A simple service that ends comes back after a pause, which doubles each time (1 s to 60 s) and is short again
once the service has stayed up for a minute, so that a broken one neither spins nor stays away for long.
"""

from enum import StrEnum

import msgspec

from duly.config.schema import Service
from duly.instant import SECOND_US, Instant
from duly.supervisor.ended import Ended, Result

FIRST_PAUSE_S = 1
LONGEST_PAUSE_S = 60
STEADY_US = 60 * SECOND_US
"""A service that stayed up for this long is not one that keeps falling over."""


class Phase(StrEnum):
    """What a service is up to."""

    WAITING = "waiting"
    """Its turn in start-up has not come."""
    STARTING = "starting"
    """Its process is being made."""
    RUNNING = "running"
    BACKING_OFF = "backing off"
    """It ended, and comes back when its pause is over."""
    STOPPED = "stopped"
    """Not started, or stopped on purpose."""
    FAILED = "failed"
    DONE = "done"
    """It ended as it should."""
    SKIPPED = "skipped"
    """Something it requires is not there."""


ACTIVE = frozenset({Phase.STARTING, Phase.RUNNING})


class ServiceState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a service is up to, since when, and why."""

    phase: Phase
    since_us: Instant
    reason: str = ""
    run_id: int | None = None
    """The run in flight."""
    up_since_us: Instant | None = None
    """When its process was made, moved along with the wall clock: for lengths of time, not for people."""
    restarts: int = 0
    """How often it came back since somebody last started it."""
    pause_s: int = FIRST_PAUSE_S
    """How long the next pause before a restart will be."""
    restart_at_us: Instant | None = None
    last_result: Result | None = None
    """How its last run ended, of those that this supervisor started."""

    @property
    def is_active(self) -> bool:
        """Whether a run of it is in flight."""
        return self.phase in ACTIVE


def idle(now_us: Instant, reason: str = "") -> ServiceState:
    """A service that nobody has started."""
    return ServiceState(phase=Phase.STOPPED, since_us=now_us, reason=reason)


def waiting(state: ServiceState, now_us: Instant) -> ServiceState:
    """It will be started when its turn comes."""
    return _now(state, Phase.WAITING, now_us)


def starting(state: ServiceState, run_id: int, now_us: Instant, *, is_restart: bool) -> ServiceState:
    """A process for it is being made."""
    after = _now(state, Phase.STARTING, now_us, run_id=run_id)
    if is_restart:
        return msgspec.structs.replace(after, restarts=state.restarts + 1)
    return msgspec.structs.replace(after, restarts=0, pause_s=FIRST_PAUSE_S)


def running(state: ServiceState, now_us: Instant) -> ServiceState:
    """Its process was made."""
    return _now(state, Phase.RUNNING, now_us, run_id=state.run_id, up_since_us=now_us)


def stopping(state: ServiceState, reason: str) -> ServiceState:
    """It was asked to end, and has not yet."""
    return msgspec.structs.replace(state, reason=reason)


def stopped(state: ServiceState, now_us: Instant, reason: str) -> ServiceState:
    """It stays down until somebody starts it."""
    return _now(state, Phase.STOPPED, now_us, reason=reason)


def skipped(state: ServiceState, now_us: Instant, reason: str) -> ServiceState:
    """It cannot be started, because of what it requires."""
    return _now(state, Phase.SKIPPED, now_us, reason=reason)


def failed(state: ServiceState, now_us: Instant, reason: str) -> ServiceState:
    """Something went wrong with it that is no end of a run."""
    return _now(state, Phase.FAILED, now_us, reason=reason)


def ended(
    state: ServiceState, service: Service, end: Ended, now_us: Instant, *, is_wanted: bool
) -> ServiceState:
    """Its run ended; *is_wanted* says that nobody asked for that."""
    state, said = msgspec.structs.replace(state, last_result=end.result), in_words(end)
    is_success = end.result is Result.SUCCESS
    if service.type == "oneshot" and is_success:
        return _now(state, Phase.DONE, now_us)
    if not is_wanted:
        return _now(state, Phase.STOPPED, now_us, reason=said)
    if service.type == "simple" and is_restarted(service, end.result):
        return _backing_off(state, now_us, said)
    return _now(state, Phase.DONE if is_success else Phase.FAILED, now_us, reason=said)


def is_restarted(service: Service, result: Result) -> bool:
    """Whether a simple service comes back after such an end."""
    return service.restart == "always" or (service.restart == "on-failure" and result is not Result.SUCCESS)


def shifted(state: ServiceState, by_us: int) -> ServiceState:
    """The wall clock was set: lengths of time stay what they are."""
    up_us, restart_us = state.up_since_us, state.restart_at_us
    return msgspec.structs.replace(
        state,
        up_since_us=None if up_us is None else up_us + by_us,
        restart_at_us=None if restart_us is None else restart_us + by_us,
    )


def _backing_off(state: ServiceState, now_us: Instant, said: str) -> ServiceState:
    is_steady = state.up_since_us is not None and now_us - state.up_since_us >= STEADY_US
    pause_s = FIRST_PAUSE_S if is_steady else state.pause_s
    after = _now(state, Phase.BACKING_OFF, now_us, reason=f"ended ({said}); restarts after {pause_s} s")
    return msgspec.structs.replace(
        after, pause_s=min(2 * pause_s, LONGEST_PAUSE_S), restart_at_us=now_us + pause_s * SECOND_US
    )


def _now(
    state: ServiceState,
    phase: Phase,
    now_us: Instant,
    *,
    reason: str = "",
    run_id: int | None = None,
    up_since_us: Instant | None = None,
) -> ServiceState:
    return msgspec.structs.replace(
        state,
        phase=phase,
        since_us=now_us,
        reason=reason,
        run_id=run_id,
        up_since_us=up_since_us,
        restart_at_us=None,
    )


def in_words(end: Ended) -> str:
    """How a run ended, for people."""
    if end.result is Result.SPAWN_ERROR:
        return f"could not be started: {end.message}"
    return end.message or end.result.value
