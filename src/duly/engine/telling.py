"""What an `initialize` changed, told as events."""

from datetime import tzinfo
from typing import Any

from duly.core.reconciliation import Reconciliation
from duly.core.task import Task
from duly.events import Announcer
from duly.instant import datetime_at, milliseconds


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
            lastExecutionTime=None if last_us is None else datetime_at(last_us, zone).isoformat(),
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
