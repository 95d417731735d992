"""What makes a task run: the causes that stand, and the starts that are owed for them (spec/scheduler.md 3).

A task is owed a start when a cause stands and it is not running. One start answers all causes together.
If several stand, one names the run, in this order: interrupted, due, requested, retry (spec/scheduler.md 3).
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from duly.core.task import Task, anchor_us, answered, due_after, retry_ready_us, started
from duly.instant import Instant


class Cause(StrEnum):
    """Why a run was started: the word in events, metrics and stores."""

    CRON = "cron"
    STARTUP = "startup"
    RETRY = "retry"
    INTERRUPTED = "interrupted"
    MANUAL = "manual"


MEANINGS: Mapping[Cause, str] = {
    Cause.CRON: "it is due",
    Cause.STARTUP: "it is new, and this is its minute",
    Cause.RETRY: "it failed, and its retry delay has passed",
    Cause.INTERRUPTED: "its run was cut off",
    Cause.MANUAL: "somebody asked for it",
}
"""What each cause means to a person."""

PUNCTUAL = frozenset({Cause.CRON, Cause.RETRY})
"""The causes that come at an instant known before, so that the lag of a start says something."""


class Reason(StrEnum):
    """Why a run of a service was started, by a timer or otherwise (spec/timers.md 3.1)."""

    BOOT = "boot"
    RESTART = "restart"
    MANUAL = "manual"
    SCHEDULE = "schedule"
    STARTUP = "startup"
    INTERVAL = "interval"
    RETRY = "retry"
    CATCH_UP = "catch-up"
    TRIGGER = "trigger"


REASON_MEANINGS: Mapping[str, str] = {
    Reason.BOOT: "started with the daemon",
    Reason.RESTART: "came back after it had ended",
    Reason.MANUAL: "started by hand",
    Reason.SCHEDULE: "its schedule said so",
    Reason.STARTUP: "a while after start-up",
    Reason.INTERVAL: "a while after the run before it",
    Reason.RETRY: "tried again after a failure",
    Reason.CATCH_UP: "caught up for a slot that passed while the daemon was down",
    Reason.TRIGGER: "triggered by hand",
}
"""What each reason means to a person."""

PUNCTUAL_REASONS = frozenset({Reason.SCHEDULE, Reason.STARTUP, Reason.INTERVAL, Reason.RETRY})
"""The reasons that come at an instant known before; what is caught up with or asked for has none."""

SLOT_REASONS = frozenset({Reason.SCHEDULE, Reason.CATCH_UP})
"""The reasons of a run that is for one slot of a calendar."""

SLOTS_ANSWERED_BY = SLOT_REASONS | {Reason.STARTUP, Reason.INTERVAL, Reason.TRIGGER}
"""The reasons of a run that answers every slot that is due by then; a retry does not."""


class Start(msgspec.Struct, frozen=True, gc=False):
    """One start that is owed: the task before it, the task after it, and why."""

    before: Task
    after: Task
    cause: Cause


def cause_standing(task: Task, now_us: Instant) -> Cause | None:
    """The cause that stands at *now_us*, or None."""
    if task.paused or task.options.is_of_unknown_kind:
        return None
    if task.interrupted:
        return Cause.INTERRUPTED
    if task.due_us <= now_us and task.options.enabled:
        return Cause.STARTUP if task.due_us <= task.registered_us else Cause.CRON
    if task.due_stands and task.options.enabled:
        return Cause.CRON
    if task.requested_us is not None:
        return Cause.MANUAL
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


def without_old_dues(task: Task, now_us: Instant) -> Task:
    """The task without dues that are too old to be made up for; itself if there are none.

    A due that waits for the end of a run ages meanwhile. A run that was cut off is started again however old
    its due is. The due that follows the end of a run is never too old: no other due comes until it has run.
    What becomes of the dues of a disabled task is decided when it is enabled again.
    """
    window_us = task.options.catch_up_us
    if (
        window_us is None
        or not task.options.enabled
        or task.schedule.is_from_end
        or task.paused
        or task.running_since_us is not None
        or task.interrupted
        or task.due_us > now_us
    ):
        return task
    if now_us - task.schedule.due_at_or_before(now_us, anchor_us(task)) <= window_us:
        return task
    return answered(task, now_us)


def scheduled_us(start: Start) -> Instant:
    """The instant a start answers: its latest due, its retry deadline, or its own time."""
    task, now_us = start.before, start.after.running_since_us
    assert now_us is not None
    match start.cause:
        case Cause.CRON | Cause.STARTUP:
            if task.due_us > now_us:  # it stands since before the clock was set back
                return task.schedule.due_at_or_before(task.answered_us, anchor_us(task))
            following_us = due_after(task, task.due_us)
            return (
                task.due_us
                if following_us > now_us
                else task.schedule.due_at_or_before(now_us, anchor_us(task))
            )
        case Cause.RETRY:
            assert task.retry_at_us is not None
            return task.retry_at_us
        case Cause.MANUAL:
            assert task.requested_us is not None
            return min(task.requested_us, now_us)
        case Cause.INTERRUPTED:
            return now_us


def preempts_retry(start: Start) -> bool:
    """Whether the start came for another cause while a retry deadline was still ahead."""
    retry_at_us, now_us = start.before.retry_at_us, start.after.running_since_us
    assert now_us is not None
    return start.cause is not Cause.RETRY and retry_at_us is not None and retry_at_us > now_us
