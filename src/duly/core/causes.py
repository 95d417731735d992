"""What makes a task run: the causes that stand, and the starts that are owed for them (SCHEDULER.md 3).

A task is owed a start when a cause stands and it is not running. One start answers all causes together.
Which cause gives the run its name is only a matter of telling: interrupted before due before retry.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from duly.core.task import Task, retry_ready_us, started
from duly.instant import Instant


class Cause(StrEnum):
    """Why a run was started."""

    CRON = "cron"
    STARTUP = "startup"
    RETRY = "retry"
    INTERRUPTED = "interrupted"


class Start(msgspec.Struct, frozen=True, gc=False):
    """One start that is owed: the task before it, the task after it, and why."""

    before: Task
    after: Task
    cause: Cause


def cause_standing(task: Task, now_us: Instant) -> Cause | None:
    """The cause that stands at *now_us*, or None."""
    if task.interrupted:
        return Cause.INTERRUPTED
    if task.due_us <= now_us:
        return Cause.STARTUP if task.due_us <= task.registered_us else Cause.CRON
    if task.due_stands:
        return Cause.CRON
    if retry_ready_us(task) <= now_us:
        return Cause.RETRY
    return None


def starts_owed(tasks: Iterable[Task], now_us: Instant) -> list[Start]:
    """The starts owed at *now_us* among *tasks*. A running task is owed none: its due waits for the end."""
    owed = []
    for task in tasks:
        if task.running_since_us is None and (cause := cause_standing(task, now_us)) is not None:
            after = started(task, now_us, is_retry=cause is Cause.RETRY)
            owed.append(Start(task, after, cause))
    return owed


def scheduled_us(start: Start) -> Instant:
    """The instant a start answers: its latest due, its retry deadline, or its own time."""
    task, now_us = start.before, start.after.running_since_us
    assert now_us is not None
    match start.cause:
        case Cause.CRON | Cause.STARTUP:
            if task.due_us > now_us:  # it stands since before the clock was set back
                return task.schedule.due_at_or_before(task.answered_us)
            following_us = task.schedule.due_after(task.due_us)
            return task.due_us if following_us > now_us else task.schedule.due_at_or_before(now_us)
        case Cause.RETRY:
            assert task.retry_at_us is not None
            return task.retry_at_us
        case Cause.INTERRUPTED:
            return now_us


def preempts_retry(start: Start) -> bool:
    """Whether the start came for another cause while a retry deadline was still ahead."""
    retry_at_us, now_us = start.before.retry_at_us, start.after.running_since_us
    assert now_us is not None
    return start.cause is not Cause.RETRY and retry_at_us is not None and retry_at_us > now_us
