"""Services as one sees them who has a leash: what it starts is on that, and only that can it cut off.

A daemon may be two members of a board at once: one whose gate was closed and whose runs go on, and one that
was opened since. Each has its own lease, and therefore its own leash: what the one loses is not the other's.
"""

from collections.abc import Awaitable

from duly.instant import Instant
from duly.supervisor.ended import Ended, Reason
from duly.supervisor.execution import Tether
from duly.supervisor.supervisor import Supervisor, TargetState


class Leashed:
    """The services of *supervisor*, for whoever has *leash*."""

    def __init__(self, supervisor: Supervisor, leash: Tether) -> None:
        self._supervisor = supervisor
        self._leash = leash

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
        """Run a oneshot to its end, on the leash. Raises ServiceError."""
        return self._supervisor.run(
            service_id,
            reason=reason,
            timer=timer,
            scheduled_us=scheduled_us,
            run_id=run_id,
            leash=self._leash,
        )

    def cut_off(self) -> None:
        """End at once what is on the leash."""
        self._supervisor.cut_off(self._leash)

    # --- as everybody sees them ---

    @property
    def is_stopping(self) -> bool:
        """Whether the supervisor is shutting down."""
        return self._supervisor.is_stopping

    def target_state(self, service_id: str, /) -> TargetState:
        """Whether a service could be run now."""
        return self._supervisor.target_state(service_id)

    def new_run_id(self) -> int:
        """A number for a run that will be asked for with it."""
        return self._supervisor.new_run_id()

    def last_end_us(self, service_id: str, /) -> Instant | None:
        """When its last run ended, however that was started."""
        return self._supervisor.last_end_us(service_id)

    def outcome(self, run_id: int, timer: str, /) -> str | None:
        """What became of a run."""
        return self._supervisor.outcome(run_id, timer)
