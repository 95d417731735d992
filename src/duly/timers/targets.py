"""Targets: what timers need of the supervisor, and all that they know of it."""

from collections.abc import Awaitable
from typing import Protocol

from duly.instant import Instant
from duly.supervisor.ended import Ended, Reason
from duly.timers.dues import TargetState


class Targets(Protocol):
    """The services that timers start."""

    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor is shutting down: nothing starts any more."""
        ...

    def target_state(self, service_id: str, /) -> TargetState:
        """Whether a service can be started now."""
        ...

    def new_run_id(self) -> int:
        """A number that no run has had."""
        ...

    def run(
        self,
        service_id: str,
        /,
        *,
        reason: Reason,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,
    ) -> Awaitable[Ended]:
        """Run a service to its end, which comes whether or not it is waited for. Raises ServiceError."""
        ...

    def last_end_us(self, service_id: str, /) -> Instant | None:
        """When the last run of a service ended, however it was started."""
        ...

    def outcome(self, run_id: int, timer: str, /) -> str | None:
        """What became of a run of a timer: "running", its result, or None when nobody knows of it."""
        ...
