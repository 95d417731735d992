"""Integrations: work that runs elsewhere than in the scheduler's own process.

A callback that sets work going elsewhere and waits for it needs to find that work again after a crash of this
program. A run that a crash cut off is started again, by this program or by another node of a cluster. What it
had set going may still be going. So both runs have one identity (`current`). It is made of the scheduler's
identifier, the task's name and the instant of the first one's cause, all of which the store keeps. A retry,
or the next due, is another.

`duly.integrations.celery` is built on it: `celery` decides, `celery_connection` sends and looks in threads,
and `celery_slips` keeps in Celery's result backend what was sent, so that nothing is sent twice.

    run ── identity ── slip put ── sent ── looked for ── result
             │                      └── broker lost in that moment: counts as sent
             └── started again after a crash: the slip is found, nothing is sent, the result is waited for

The invariant: a task goes out only after its slip is put, and only by the run that put it. So it is sent at
most once for each identity, as long as the backend keeps its memory; where it has lost that, the slip of the
era says so, and what may have been sent counts as sent.

Order: connect, then the slip, then the task. A slip for what could not go out would have later runs wait for
nothing. Locks: none; one thread sends and one looks, and the broker's connection belongs to the first.

What fails: a broker that is down is tried again until the time-out of the run. A backend that cannot be read
is asked again and again, and logged once. A run over its time revokes its task. A run that a crash cuts off
leaves it going. `celery_beat`, `django`, `fastapi` and `flask` only start an App where their framework
starts.
"""

from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from duly.core.task import Task, origin_of
from duly.engine.runs import current_run
from duly.engine.tasks import run_id_of
from duly.instant import Instant, datetime_at

__all__ = ["RunIdentity", "current"]


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
    token: int | None = None
    """In a cluster a number that is greater for every later start of the task, also on other machines. What
    accepts writes of a run can refuse those of an older token. None on a store of its own."""

    @property
    def started(self) -> datetime:
        """When this very run began, in UTC."""
        return datetime_at(self.started_us, UTC)

    @property
    def origin(self) -> datetime:
        """When the first of them began, in UTC."""
        return datetime_at(self.origin_us, UTC)


def current() -> RunIdentity | None:
    """The run whose callback is executing here; None outside of one."""
    run = current_run.get()
    if run is None or not isinstance(run.before, Task):
        return None
    before = run.before
    origin_us = origin_of(before, run.started_us)
    return RunIdentity(
        run_id_of(before, run.started_us),
        before.name,
        before.scheduler_id,
        run.started_us,
        run.called_us,
        origin_us,
        before.interrupted,
        run.token,
    )


def is_overdue() -> bool:
    """Whether the run that is executing here is being cancelled because of its `run_timeout`."""
    run = current_run.get()
    return run is not None and run.is_timed_out and not run.is_dropped
