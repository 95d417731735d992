"""What there is to show of a service: one record, made from its definition, its state and its runs."""

from typing import Literal

import msgspec

from duly.config.schema import Service
from duly.instant import Instant
from duly.store.history import RunRow
from duly.supervisor.services import Phase, ServiceState

Shown = Literal["starting", "running", "stopped", "failed", "done", "waiting", "skipped", "invalid"]

_SHOWN: dict[Phase, Shown] = {
    Phase.WAITING: "waiting",
    Phase.STARTING: "starting",
    Phase.RUNNING: "running",
    Phase.BACKING_OFF: "waiting",
    Phase.STOPPED: "stopped",
    Phase.FAILED: "failed",
    Phase.DONE: "done",
    Phase.SKIPPED: "skipped",
}


Sources = tuple[Service, ServiceState, RunRow | None, RunRow | None, tuple[str, ...]]
"""What a view is made of: what `view_of` is given."""


class ServiceView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A service as it is shown."""

    id: str
    type: str
    enabled: bool
    stage: int
    state: Shown
    since_us: Instant
    reason: str
    """Why it is in that state, in words; empty if there is nothing to say."""
    pid: int | None
    run_id: int | None
    """The run in flight."""
    restarts: int
    restart_at_us: Instant | None
    """When it comes back, if it waits for that."""
    last_run: RunRow | None
    """The run in flight, or else the newest that has ended."""


def view_of(
    service: Service,
    state: ServiceState,
    live: RunRow | None,
    last: RunRow | None,
    held_up_by: tuple[str, ...],
) -> ServiceView:
    """A service as it is shown now: *live* is its run in flight, *last* the newest that has ended."""
    is_held_up = state.phase is Phase.WAITING and bool(held_up_by)
    return ServiceView(
        id=service.id,
        type=service.type,
        enabled=service.enabled,
        stage=service.stage,
        state=_SHOWN[state.phase],
        since_us=state.since_us,
        reason=f"waiting for {_listed(held_up_by)}" if is_held_up else state.reason,
        pid=None if live is None else live.pid,
        run_id=state.run_id,
        restarts=state.restarts,
        restart_at_us=state.restart_at_us,
        last_run=live or last,
    )


def _listed(names: tuple[str, ...]) -> str:
    """Names for a sentence, the first few: hundreds may hold up hundreds."""
    more = len(names) - _MOST_NAMED
    return f"{', '.join(names[:_MOST_NAMED])} and {more} more" if more > 0 else ", ".join(names)


_MOST_NAMED = 5
