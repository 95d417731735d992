"""Who a run is: the name that engines outside of this process may know it by.

A run that a crash cut off is started again, by this program or by another member of a cluster. What it had
set going elsewhere may still be going. So that the new run finds it, both have one identity: it is made of
the scheduler's identifier, the task's name and the instant at which the first of them began, all of which the
store keeps. A retry, or the next due, is another.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid5

from duly.core.task import Task, origin_of
from duly.engine.runs import current_run
from duly.instant import Instant

_NAMESPACE = UUID("8d6b4a0e-3c0b-5a55-9a0d-64756c790001")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RunIdentity(NamedTuple):
    """One run, and all runs that carry on what it began."""

    id: UUID
    """The same for a run and for those that carry it on after a crash; of no other run, ever."""
    name: str
    """The name of the task."""
    scheduler_id: str
    """The identifier of the scheduler, or of the cluster."""
    started_us: Instant
    """When this very run began."""
    called_us: Instant
    """When its callback was called."""
    origin_us: Instant
    """When the first of them began; `started_us` unless this is a continuation."""
    is_continuation: bool
    """Whether a crash, or the loss of a lease, cut off a run that this one carries on."""

    @property
    def started(self) -> datetime:
        """When this very run began, in UTC."""
        return _EPOCH + timedelta(microseconds=self.started_us)

    @property
    def origin(self) -> datetime:
        """When the first of them began, in UTC."""
        return _EPOCH + timedelta(microseconds=self.origin_us)


def current() -> RunIdentity | None:
    """The run whose callback is executing here; None outside of one."""
    run = current_run.get()
    if run is None or not isinstance(run.before, Task):
        return None
    before = run.before
    origin_us = origin_of(before, run.started_us)
    # In ASCII: a name may hold what UTF-8 cannot, such as half of a surrogate pair.
    words = ascii((before.scheduler_id, before.name, origin_us))
    return RunIdentity(
        uuid5(_NAMESPACE, words),
        before.name,
        before.scheduler_id,
        run.started_us,
        run.called_us,
        origin_us,
        before.interrupted,
    )


def is_overdue() -> bool:
    """Whether the run that is executing here is being cancelled because of its `run_timeout`."""
    run = current_run.get()
    return run is not None and run.is_timed_out and not run.is_dropped
