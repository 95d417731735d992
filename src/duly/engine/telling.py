"""What happened, told as events: what an `initialize` changed, and the starts and ends of runs."""

from datetime import tzinfo
from typing import Any

from duly.core.causes import Cause, Start, preempts_retry, scheduled_us
from duly.core.reconciliation import Reconciliation
from duly.core.task import Task
from duly.events import Announcer, described
from duly.instant import Instant, datetime_at, milliseconds


def tell_outcome(announcer: Announcer, outcome: Reconciliation, scheduled: list[Task], zone: tzinfo) -> None:
    """Tell what became of every task, and that initialization is complete."""
    announce = announcer.announce
    if announcer.wants("TaskAdded"):
        for task in outcome.added:
            announce("TaskAdded", taskName=task.name, **configuration(task))
        for override in outcome.overridden:
            announce(
                "TaskOverridden",
                taskName=override.after.name,
                changeType=override.change_type,
                oldState=configuration(override.before),
                newState=configuration(override.after),
            )
    for task in outcome.orphaned:
        last_us = task.last_attempt_us
        announce(
            "TaskOrphaned",
            taskName=task.name,
            lastExecutionTime=None if last_us is None else iso(last_us, zone),
            schedulerIdentifier=task.scheduler_id,
        )
    if announcer.wants("TaskScheduled"):
        _tell_every_task(announcer, outcome, scheduled)
    announce(
        "SchedulerInitializationCompleted",
        totalRegistrations=len(outcome.tasks),
        scheduledCount=len(scheduled),
        skippedCount=len(outcome.tasks) - len(scheduled),
    )


def _tell_every_task(announcer: Announcer, outcome: Reconciliation, scheduled: list[Task]) -> None:
    names = {task.name for task in scheduled}
    for task in outcome.preserved:
        announcer.announce("TaskPreserved", taskName=task.name)
    for task in outcome.tasks:
        if task.name in names:
            announcer.announce("TaskScheduled", taskName=task.name, **configuration(task))
        else:
            announcer.announce("TaskSkipped", taskName=task.name, reason="already scheduled")


def configuration(task: Task) -> dict[str, Any]:
    """What a user registered, as events write it."""
    return {"cronExpression": task.schedule.text, "retryDelayMs": milliseconds(task.retry_delay_us)}


def tell_start(announcer: Announcer, start: Start, zone: tzinfo) -> None:
    """Tell of a run that begins, and of the retry it is or takes the place of."""
    announce, name, now_us = announcer.announce, start.after.name, start.after.running_since_us
    assert now_us is not None
    is_retry = start.cause is Cause.RETRY
    if preempts_retry(start):
        reason = f"started by {start.cause.value} before its deadline"
        announce("TaskRetryPreempted", taskName=name, reason=reason)
    if is_retry:
        announce("TaskRetryStarted", taskName=name, retryCount=start.after.retry_count)
    announce(
        "TaskRunStarted",
        taskName=name,
        scheduledTime=iso(scheduled_us(start), zone),
        actualTime=iso(now_us, zone),
        **({"isRetry": True} if is_retry else {}),
        cause=start.cause.value,
    )


def tell_end(
    announcer: Announcer,
    name: str,
    *,
    duration_us: int,
    error: BaseException | None,
    retry_at_us: Instant | None,
    zone: tzinfo,
) -> None:
    """Tell of a run that ended, and of the retry that will follow."""
    duration = milliseconds(duration_us)
    if error is None:
        announcer.announce("TaskRunCompleted", taskName=name, duration=duration, success=True)
        return
    retry = {} if retry_at_us is None else {"nextRetryAt": iso(retry_at_us, zone)}
    told = described(error)
    announcer.announce("TaskRunFailed", taskName=name, duration=duration, success=False, error=told, **retry)


def iso(instant_us: Instant, zone: tzinfo) -> str:
    """An instant as events write it."""
    return datetime_at(instant_us, zone).isoformat()
