"""Tasks for the engine: the rules of `core`, the ids of runs, and the events of lists, starts and ends."""

from collections.abc import Collection, Sequence
from datetime import tzinfo
from typing import Any
from uuid import UUID, uuid5

from duly.background import in_slices
from duly.clock import Step
from duly.core.causes import Cause, Start, preempts_retry, scheduled_us, starts_owed, without_old_dues
from duly.core.entries import entry_text
from duly.core.reconciliation import Reconciliation
from duly.core.task import Task, called, failed, origin_of, redefined, released, set_back, succeeded, wakes_us
from duly.engine.rules import Begin, Look
from duly.engine.runs import ActiveRun
from duly.events import Announcer, described
from duly.instant import Instant, iso, milliseconds

_RUN_IDS = UUID("8d6b4a0e-3c0b-5a55-9a0d-64756c790001")


class TaskRules:
    """The rules of tasks; `engine.rules` says what each answer means."""

    def looked_at(self, tasks: Sequence[Task], now_us: Instant) -> Look[Task]:
        if all(task.options.catch_up_us is None for task in tasks):
            return Look(starts_owed(tasks, now_us))
        looked_at = [without_old_dues(task, now_us) for task in tasks]
        starts = starts_owed(looked_at, now_us)
        started = {start.before.name for start in starts}
        changed = [
            (before, after)
            for before, after in zip(tasks, looked_at, strict=True)
            if after is not before and after.name not in started
        ]
        return Look(starts, changed)

    # The functions themselves: these two are asked several times for each run.
    wakes_us = staticmethod(wakes_us)
    called = staticmethod(called)

    def ended(self, task: Task, run: ActiveRun[Task], error: BaseException | None) -> Task:
        if run.is_superseded:
            return released(task)
        if error is None:
            return succeeded(task, run.ended_us)
        return failed(task, run.ended_us, is_given_up=run.is_cancelled)

    def released(self, task: Task) -> Task:
        return released(task)

    redefined = staticmethod(redefined)

    def timeout_us(self, task: Task) -> int | None:
        return task.options.timeout_us

    def limit_of(self, task: Task) -> str | None:
        return task.options.limit

    def minds(self, step: Step) -> bool:
        """Only steps back: after one forward, what was passed over is due like everything else."""
        return step.after_us < step.before_us

    def stepped(self, task: Task, step: Step) -> Task:
        return set_back(task, step.before_us, step.after_us)

    def emit_starts(self, announcer: Announcer, starts: Sequence[Begin[Task]], zone: tzinfo) -> None:
        if announcer.wants("TaskRunStarted"):
            for start in starts:
                assert isinstance(start, Start)
                emit_start(announcer, start, zone)

    def emit_changed(self, announcer: Announcer, before: Task, after: Task, zone: tzinfo) -> None:
        """Emit that dues were too old to be made up for."""
        announcer.announce(
            "TaskMissed",
            taskName=after.name,
            scheduledTime=iso(before.due_us, zone),
            reason="too old to be made up for (catch_up)",
        )

    def emit_end(
        self,
        announcer: Announcer,
        task: Task | None,
        run: ActiveRun[Task],
        error: BaseException | None,
        zone: tzinfo,
    ) -> None:
        if not announcer.wants("TaskRunCompleted" if error is None else "TaskRunFailed"):
            return
        name, duration = run.name, milliseconds(max(run.ended_us - run.called_us, 0))
        if error is None:
            announcer.announce("TaskRunCompleted", taskName=name, duration=duration, success=True)
            return
        retry_at_us = None if task is None else task.retry_at_us
        more: dict[str, Any] = {} if retry_at_us is None else {"nextRetryAt": iso(retry_at_us, zone)}
        if run.is_cancelled:
            more["cancelled"] = True
        announcer.announce(
            "TaskRunFailed",
            error,
            taskName=name,
            duration=duration,
            success=False,
            error=described(error),
            **more,
        )

    def emit_skipped(self, announcer: Announcer, name: str, reason: str) -> None:
        announcer.announce("TaskSkipped", taskName=name, reason=reason)


async def emit_outcome(
    announcer: Announcer, outcome: Reconciliation, scheduled: Collection[Task], zone: tzinfo
) -> None:
    """Emit what became of every task, and that initialization is complete."""
    announce = announcer.announce
    if announcer.wants("TaskAdded"):
        async for tasks in in_slices(outcome.added):
            for task in tasks:
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
    for task in outcome.entries_delayed:
        emit_entry(announcer, task, is_new=False)
    if announcer.wants("TaskScheduled"):
        await _emit_every_task(announcer, outcome, scheduled)
    announce(
        "SchedulerInitializationCompleted",
        totalRegistrations=len(outcome.tasks),
        scheduledCount=len(scheduled),
        skippedCount=len(outcome.tasks) - len(scheduled),
    )


async def _emit_every_task(
    announcer: Announcer, outcome: Reconciliation, scheduled: Collection[Task]
) -> None:
    # None: all of them are. Of a cluster each look at a task makes it.
    names = None if scheduled is outcome.tasks else {task.name for task in scheduled}
    async for tasks in in_slices(outcome.preserved):
        for task in tasks:
            announcer.announce("TaskPreserved", taskName=task.name)
    async for tasks in in_slices(outcome.tasks):
        for task in tasks:
            if names is None or task.name in names:
                announcer.announce("TaskScheduled", taskName=task.name, **configuration(task))
            else:
                announcer.announce("TaskSkipped", taskName=task.name, reason="already scheduled")


def emit_entry(announcer: Announcer, task: Task, *, is_new: bool) -> None:
    """Emit that an entry was added or changed."""
    assert task.entry is not None
    kind = entry_text(task.entry).kind
    if is_new:
        announcer.announce("EntryAdded", taskName=task.name, kind=kind, **configuration(task))
    else:
        announcer.announce("EntryChanged", taskName=task.name, kind=kind, **configuration(task))


def configuration(task: Task) -> dict[str, Any]:
    """What a user registered, as events write it."""
    return {"cronExpression": task.schedule.text, "retryDelayMs": milliseconds(task.retry_delay_us)}


def emit_start(announcer: Announcer, start: Start, zone: tzinfo, **more: Any) -> None:
    """Emit a run that begins, and the retry that it is or takes the place of."""
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
        **more,
    )


def run_id_of(before: Task, started_us: Instant) -> UUID:
    """The id of the run that began at *started_us*; *before* is the task without it.

    The same for every restart of the run, and of no other run.
    """
    return run_id_from(before.scheduler_id, before.name, origin_of(before, started_us))


def run_id_from(scheduler_id: str, name: str, origin_us: Instant) -> UUID:
    """The id of the runs of a task that have one origin."""
    # In ASCII: a name may hold what UTF-8 cannot, such as half of a surrogate pair.
    return uuid5(_RUN_IDS, ascii((scheduler_id, name, origin_us)))
