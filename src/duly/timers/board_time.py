"""The services of one machine, as timers see them that live in the time of a board.

A host's clock may be off; what services tell is in its time, and what timers reckon with is not. Of runs that
a row tells of nothing is known here: whoever wrote it numbered them by itself.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from duly.instant import Instant
from duly.supervisor.ended import Ended, Reason
from duly.timers.dues import TargetState
from duly.timers.targets import Targets


class CuttableTargets(Targets, Protocol):
    """Targets whose runs can be ended at once."""

    def cut_off(self) -> None:
        """End at once what timers have started."""
        ...


class BoardTime:
    """The targets of this machine, as timers see them that live in the time of a board."""

    def __init__(self, targets: Targets, ahead_us: Callable[[], int]) -> None:
        self._targets = targets
        self._ahead_us = ahead_us

    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor is shutting down."""
        return self._targets.is_stopping

    def target_state(self, service_id: str, /) -> TargetState:
        """Whether a service can be started now, on this machine."""
        return self._targets.target_state(service_id)

    def new_run_id(self) -> int:
        """A number for a run, unique on this machine."""
        return self._targets.new_run_id()

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
        """Run a service to its end."""
        return self._targets.run(
            service_id, reason=reason, timer=timer, scheduled_us=scheduled_us, run_id=run_id
        )

    def last_end_us(self, service_id: str, /) -> Instant | None:
        """When the last run of a service ended on this machine, in the time of the board."""
        ended_us = self._targets.last_end_us(service_id)
        return None if ended_us is None else ended_us + self._ahead_us()

    def outcome(self, _run_id: int, _timer: str, /) -> str | None:
        """Nobody knows: what a row tells of was run by an earlier holder, under a number of its own."""
        return None
