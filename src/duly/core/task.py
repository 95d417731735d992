"""A task and how it changes: registered, started, called, ended, moved to a new time.

Each change is a function from a task to a new task. The causes of SCHEDULER.md 3 are not flags that
somebody must remember to set and clear; three of the four follow from times:

  cron, startup   `due_us`, the first due after `answered_us`, has come (or `due_stands`: it had come before
                  the clock was set back)
  retry           `retry_at_us` has come
  interrupted     `interrupted`: the process died while the task was running

`answered_us` is the heart of it: every due up to there has been answered by a start (or came before the
task was registered). It only moves forward, so no minute is answered twice; and since it is one number, a
downtime of ten years costs what a downtime of a minute costs.
"""

import msgspec

from duly.core.schedule import Schedule
from duly.instant import EARLIEST_US, LATEST_US, NEVER_US, SECOND_US, Instant

STEP_TOLERATED_US = 5 * 60 * SECOND_US
"""A clock set back by up to this much brings no minute a second time (SCHEDULER.md 3)."""

_PACE_FIRST_US = 1_000
_PACE_LIMIT_US = SECOND_US


class Task(msgspec.Struct, frozen=True, gc=False):
    """Everything known of one task. A store keeps all of it but `schedule` and `due_us`."""

    id: int
    name: str
    schedule: Schedule
    retry_delay_us: int
    registered_us: Instant
    answered_us: Instant
    due_us: Instant
    """The first due that no start has answered; in the past when one is owed."""
    last_attempt_us: Instant | None = None
    last_success_us: Instant | None = None
    last_failure_us: Instant | None = None
    retry_at_us: Instant | None = None
    retry_count: int = 0
    interrupted: bool = False
    due_stands: bool = False
    """A due stands whose minute lies ahead again, because the clock was set back over it."""
    running_since_us: Instant | None = None
    origin_us: Instant | None = None
    """When the first run began of which the latest one is the continuation: itself, unless a crash cut off
    the run before it. What runs elsewhere on behalf of the task is found again by it."""
    scheduler_id: str = ""
    """The identifier of the scheduler that wrote the task."""


_replace = msgspec.structs.replace


def registered(
    *,
    id: int,  # noqa: A002 (the word for it)
    name: str,
    schedule: Schedule,
    retry_delay_us: int,
    now_us: Instant,
    minute_us: Instant,
    scheduler_id: str = "",
    running_since_us: Instant | None = None,
    interrupted: bool = False,
    origin_us: Instant | None = None,
) -> Task:
    """A task as it is when first registered, or overridden, in the civil minute that began at *minute_us*.

    The running minute still counts: if it matches, the task is due at once (the startup cause).
    """
    answered_us = minute_us - 1
    return Task(
        id=id,
        name=name,
        schedule=schedule,
        retry_delay_us=retry_delay_us,
        registered_us=now_us,
        answered_us=answered_us,
        due_us=schedule.due_after(answered_us),
        interrupted=interrupted,
        running_since_us=running_since_us,
        origin_us=origin_us,
        scheduler_id=scheduler_id,
    )


def started(task: Task, now_us: Instant, *, is_retry: bool) -> Task:
    """The task with a run begun: one start answers every cause that stands."""
    # max: after the clock was set back a little, what was answered stays answered.
    answered_us = max(task.answered_us, now_us)
    return Task(
        task.id,
        task.name,
        task.schedule,
        task.retry_delay_us,
        task.registered_us,
        answered_us,
        task.schedule.due_after(answered_us),
        now_us,
        task.last_success_us,
        task.last_failure_us,
        None,
        task.retry_count + 1 if is_retry else 0,
        False,
        False,
        now_us,
        origin_of(task, now_us),
        task.scheduler_id,
    )


def origin_of(task: Task, now_us: Instant) -> Instant:
    """The origin of the run that begins at *now_us*, of which *task* does not know yet."""
    return task.origin_us if task.interrupted and task.origin_us is not None else now_us


def called(task: Task, now_us: Instant) -> Task:
    """The task at the moment its callback is called, a little after its start was written.

    A minute that began in between is answered by this very call; to start again for it would be one run
    too many (MODEL.md S1d).
    """
    if now_us < task.due_us and not task.due_stands:
        return task
    answered_us = max(task.answered_us, now_us)
    return _replace(
        task, answered_us=answered_us, due_us=task.schedule.due_after(answered_us), due_stands=False
    )


def succeeded(task: Task, now_us: Instant) -> Task:
    """The task after a run that ended well: no retry is pending."""
    return _replace(task, running_since_us=None, last_success_us=now_us, retry_at_us=None, retry_count=0)


def failed(task: Task, now_us: Instant) -> Task:
    """The task after a run that failed: a retry falls due when the delay has passed."""
    retry_at_us = min(now_us + task.retry_delay_us, LATEST_US)
    return _replace(task, running_since_us=None, last_failure_us=now_us, retry_at_us=retry_at_us)


def released(task: Task) -> Task:
    """The task after the end of a run begun under an older registration, which says nothing of this one."""
    return _replace(task, running_since_us=None)


def cut_off(task: Task) -> Task:
    """The task as a new process finds it: if it was running, it was interrupted."""
    if task.running_since_us is None:
        return task
    return _replace(task, running_since_us=None, interrupted=True)


def resumed(task: Task, since_us: Instant) -> Task:
    """The task with a run that began at *since_us* and goes on, of which it does not know.

    If that run began under this registration it has answered what was due then.
    """
    if since_us < task.registered_us:
        return _replace(task, running_since_us=since_us)
    answered_us = max(task.answered_us, since_us)
    return _replace(
        task,
        answered_us=answered_us,
        due_us=task.schedule.due_after(answered_us),
        last_attempt_us=since_us,
        retry_at_us=None,
        interrupted=False,
        due_stands=False,
        running_since_us=since_us,
        origin_us=origin_of(task, since_us),
    )


def set_back(task: Task, before_us: Instant, after_us: Instant) -> Task:
    """The task after the clock was set back from *before_us* to *after_us* (SCHEDULER.md 3).

    What stood before stands still, though its minute may lie ahead again. After a small step the minutes up
    to *before_us* have been had and come no second time; after a large one dues count afresh.
    """
    if task.retry_at_us is not None and task.retry_at_us <= before_us:
        task = _retry_standing(task, after_us)
    due_stands = task.due_stands or task.due_us <= before_us
    if before_us - after_us > STEP_TOLERATED_US:
        return _replace(moved_back(task, after_us), due_stands=due_stands)
    if not due_stands:
        return task
    answered_us = max(task.answered_us, before_us)
    return _replace(
        task, answered_us=answered_us, due_us=task.schedule.due_after(answered_us), due_stands=True
    )


def _retry_standing(task: Task, now_us: Instant) -> Task:
    """The task with a retry that had fallen due, and is due still under a clock that was set back."""
    assert task.retry_at_us is not None
    last_failure_us = now_us if task.last_failure_us is None else min(task.last_failure_us, now_us)
    return _replace(task, retry_at_us=min(task.retry_at_us, now_us), last_failure_us=last_failure_us)


def moved_back(task: Task, to_us: Instant) -> Task:
    """The task as it is under a clock that was far ahead and now reads *to_us*: dues count afresh from there.

    Nothing waits for a future that was a mistake; a retry is due no later than its delay from now.
    """
    answered_us = min(task.answered_us, to_us - 1)
    retry_at_us = task.retry_at_us
    last_failure_us = task.last_failure_us
    if retry_at_us is not None:
        retry_at_us = min(retry_at_us, to_us + task.retry_delay_us)
        last_failure_us = min(last_failure_us, to_us) if last_failure_us is not None else None
    return _replace(
        task,
        registered_us=min(task.registered_us, to_us - 1),
        answered_us=answered_us,
        due_us=task.schedule.due_after(answered_us),
        last_failure_us=last_failure_us,
        retry_at_us=retry_at_us,
    )


def is_ahead_of_clock(task: Task, now_us: Instant) -> bool:
    """Whether the task was last written under a clock that was far ahead of *now_us*."""
    return task.answered_us > now_us + STEP_TOLERATED_US


def retry_ready_us(task: Task) -> Instant:
    """When a pending retry may start; NEVER_US when none is pending.

    A task that fails at once with no delay would otherwise be retried without end within one instant. The
    first retry comes with its delay alone, later ones at least 1 ms, 2 ms, 4 ms ... 1 s after the failure.
    """
    if task.retry_at_us is None:
        return NEVER_US
    if task.retry_count == 0 or task.last_failure_us is None:
        return task.retry_at_us
    pace_us = min(_PACE_FIRST_US << min(task.retry_count, 20), _PACE_LIMIT_US)
    return max(task.retry_at_us, task.last_failure_us + pace_us)


def wakes_us(task: Task) -> Instant:
    """The instant at which the task next needs a look, if nothing else happens to it."""
    if task.interrupted or task.due_stands:
        return EARLIEST_US
    if task.retry_at_us is None:
        return task.due_us
    return min(task.due_us, retry_ready_us(task))
