"""What a service is up to, and what becomes of it when its process starts, ends or cannot be made.

A state is a value; every change is a function from one state to the next and knows neither clock nor process.
A simple service that ends comes back after a pause, which doubles each time (1 s to 60 s). It is short again
once the service has stayed up for a minute. So a broken service does not spin, and one that has worked is
soon back.

A reload does not touch unchanged services. A changed oneshot is not run again; its new definition holds from
its next run on. A changed simple service is restarted only if the change concerns its process: nobody wants a
database to go down because its description was corrected. One that was stopped by hand stays down.
"""

from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

import msgspec

from duly.config.schema import Service
from duly.instant import SECOND_US, Instant, back_off
from duly.processes.options import OPTION_KEYS
from duly.store.history import Result, RunRow
from duly.store.past import Past
from duly.supervisor.results import RunResult

FIRST_PAUSE_S = 1
LONGEST_PAUSE_S = 60
STEADY_US = 60 * SECOND_US
"""A service that stayed up for this long is not one that keeps falling over."""


class Phase(StrEnum):
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
        return self.phase in ACTIVE


def idle(now_us: Instant, reason: str = "") -> ServiceState:
    return ServiceState(phase=Phase.STOPPED, since_us=now_us, reason=reason)


def in_phase(
    state: ServiceState,
    phase: Phase,
    now_us: Instant,
    *,
    reason: str = "",
    run_id: int | None = None,
    up_since_us: Instant | None = None,
) -> ServiceState:
    """The service in another phase from *now_us* on, with no run unless *run_id*, and no restart pending."""
    return msgspec.structs.replace(
        state,
        phase=phase,
        since_us=now_us,
        reason=reason,
        run_id=run_id,
        up_since_us=up_since_us,
        restart_at_us=None,
    )


def starting(state: ServiceState, run_id: int, now_us: Instant, *, is_restart: bool) -> ServiceState:
    """A process for it is being made."""
    after = in_phase(state, Phase.STARTING, now_us, run_id=run_id)
    if is_restart:
        return msgspec.structs.replace(after, restarts=state.restarts + 1)
    return msgspec.structs.replace(after, restarts=0, pause_s=FIRST_PAUSE_S)


def running(state: ServiceState, now_us: Instant) -> ServiceState:
    """Its process was made."""
    return in_phase(state, Phase.RUNNING, now_us, run_id=state.run_id, up_since_us=now_us)


def after_end(
    state: ServiceState, service: Service, end: RunResult, now_us: Instant, *, is_wanted: bool
) -> ServiceState:
    """The service after its run; *is_wanted*: it should be up, nobody asked for the end."""
    state, said = msgspec.structs.replace(state, last_result=end.result), in_english(end)
    is_success = end.result is Result.SUCCESS
    if service.type == "oneshot" and is_success:
        return in_phase(state, Phase.DONE, now_us)
    if not is_wanted:
        return in_phase(state, Phase.STOPPED, now_us, reason=said)
    if service.type == "simple" and is_restarted(service, end.result):
        return _backing_off(state, now_us, said)
    return in_phase(state, Phase.DONE if is_success else Phase.FAILED, now_us, reason=said)


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
    after = in_phase(state, Phase.BACKING_OFF, now_us, reason=f"ended ({said}); restarts after {pause_s} s")
    return msgspec.structs.replace(
        after, pause_s=back_off(pause_s, LONGEST_PAUSE_S), restart_at_us=now_us + pause_s * SECOND_US
    )


def in_english(end: RunResult) -> str:
    """How a run ended, for people."""
    if end.result is Result.SPAWN_ERROR:
        return f"could not be started: {end.message}"
    return end.message or end.result.value


# --- a reload ---


class ReloadAction(NamedTuple):
    """What happens to a service."""

    is_stopped: bool
    is_started: bool


_UNTOUCHED = ReloadAction(is_stopped=False, is_started=False)


def reload_action(
    before: Service | None, after: Service | None, *, is_boot: bool, is_up: bool, is_held_down: bool
) -> ReloadAction:
    """What becomes of a service; *is_boot*: start-up would start it, *is_up*: it runs or is coming back."""
    if after is None:
        return ReloadAction(is_stopped=True, is_started=False)
    if before is None:
        return ReloadAction(is_stopped=False, is_started=is_boot and after.enabled)
    if before == after or (before.type == after.type == "oneshot"):
        return _UNTOUCHED
    if after.type == "oneshot" or not after.enabled:
        return ReloadAction(is_stopped=True, is_started=False)
    if is_up and _makes_same_process(before, after):
        return _UNTOUCHED
    return ReloadAction(is_stopped=True, is_started=(is_up or is_boot) and not is_held_down)


def _makes_same_process(before: Service, after: Service) -> bool:
    keys = attrgetter("type", "command", "env", "cwd", *OPTION_KEYS)
    return bool(keys(before) == keys(after))


# --- what there is to show ---


class RunsKnown(NamedTuple):
    """The run of a service in flight, the newest that has ended, and what those before were like."""

    live: RunRow | None = None
    last: RunRow | None = None
    past: Past = Past()


Sources = tuple[Service, ServiceState, RunsKnown, tuple[str, ...]]
"""What a view is made of: what `view_of` is given."""


class ServiceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    state: str
    """A `Phase`, but for BACKING_OFF, which is shown as waiting; or what a store makes of it."""
    since_us: Instant | None = None
    reason: str = ""
    """Why it is in that state, in words; empty if there is nothing to say."""
    pid: int | None = None
    run_id: int | None = None
    """The run in flight."""
    restarts: int = 0
    restart_at_us: Instant | None = None
    """When it comes back, if it waits for that."""
    last_run: RunRow | None = None
    """The run in flight, or else the newest that has ended."""
    quick_ends: int = 0
    """How often in a row it ended soon after it had come up, if it is one that comes back."""
    past: Past = Past()


def view_of(
    service: Service,
    state: ServiceState,
    runs: RunsKnown,
    held_up_by: tuple[str, ...],
) -> ServiceView:
    """A service as it is shown now."""
    is_held_up = state.phase is Phase.WAITING and bool(held_up_by)
    shown = Phase.WAITING if state.phase is Phase.BACKING_OFF else state.phase
    return ServiceView(
        id=service.id,
        state=shown.value,
        since_us=state.since_us,
        reason=f"waiting for {_listed(held_up_by)}" if is_held_up else state.reason,
        pid=None if runs.live is None else runs.live.pid,
        run_id=state.run_id,
        restarts=state.restarts,
        restart_at_us=state.restart_at_us,
        last_run=runs.live or runs.last,
        quick_ends=(state.pause_s // FIRST_PAUSE_S).bit_length() - 1,
        past=runs.past,
    )


def _listed(names: tuple[str, ...]) -> str:
    """Names for a sentence, the first few: hundreds may hold up hundreds."""
    more = len(names) - _MOST_NAMED
    return f"{', '.join(names[:_MOST_NAMED])} and {more} more" if more > 0 else ", ".join(names)


_MOST_NAMED = 5
