"""What the demo knows: a frozen value, folded over events.

`began` makes it from the demo tasks and the memory of the store, `after` moves it on by one event. It never
reads a clock or the store; everything it says about tasks it has been told by events (spec/scheduler.md 7).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Any

from examples.demo.memory import DemoMemory
from examples.demo.notes import DemoNote, note_of
from examples.demo.tasks import DemoTask

from duly.cron import CronExpression
from duly.events import Event
from duly.instant import datetime_at

NOTES_KEPT = 50


class DemoEnding(StrEnum):
    """How a run ended."""

    OK = "ok"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class DemoPhase(StrEnum):
    """Where the demo is in its life."""

    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class LastRun:
    """How the last run ended, and when, if that is known."""

    ending: DemoEnding
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DemoTaskView:
    """What is known of one task."""

    name: str
    expression: CronExpression
    schedule: str
    about: str
    running_since: datetime | None = None
    cause: str = ""
    """Why it runs, or last ran."""
    retry_count: int = 0
    """Which retry the run is; 0 for a run that is none."""
    retry_at: datetime | None = None
    is_interrupted: bool = False
    has_due_standing: bool = False
    """A due came while it was running."""
    last: LastRun | None = None
    ok: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class DemoView:
    """Everything the demo shows, but the time."""

    store: str
    zone: tzinfo
    process_id: int
    story: tuple[str, ...]
    tasks: Mapping[str, DemoTaskView]
    notes: tuple[DemoNote, ...] = ()
    phase: DemoPhase = DemoPhase.RUNNING

    @property
    def running(self) -> list[DemoTaskView]:
        """The tasks with a run in flight."""
        return [task for task in self.tasks.values() if task.running_since is not None]


def began(
    demo_tasks: Iterable[DemoTask],
    memories: Iterable[DemoMemory],
    *,
    store: str,
    zone: tzinfo,
    process_id: int,
    story: tuple[str, ...],
) -> DemoView:
    """The view before the first event."""
    memory_of = {memory.name: memory for memory in memories}
    tasks = {part.name: _remembered(part, memory_of.get(part.name)) for part in demo_tasks}
    return DemoView(store, zone, process_id, story, tasks)


def _remembered(part: DemoTask, memory: DemoMemory | None) -> DemoTaskView:
    task = DemoTaskView(part.name, CronExpression.parse(part.cron), part.schedule, part.about)
    if memory is None:
        return task
    return replace(
        task,
        retry_at=None if memory.retry_at_us is None else datetime_at(memory.retry_at_us, UTC),
        is_interrupted=memory.is_cut_off,
        last=_last_outcome(memory),
    )


def _last_outcome(memory: DemoMemory) -> LastRun | None:
    if memory.is_cut_off:
        return LastRun(DemoEnding.INTERRUPTED)
    ends = [(memory.last_success_us, DemoEnding.OK), (memory.last_failure_us, DemoEnding.FAILED)]
    known = [(us, ending) for us, ending in ends if us is not None]
    if not known:
        return None
    at_us, ending = max(known)
    return LastRun(ending, datetime_at(at_us, UTC))


def after(view: DemoView, event: Event) -> DemoView:
    """The view after *event*; the very same when the event changes nothing that is shown."""
    before = _task_of(view, event)
    note = note_of(event, retry_count=0 if before is None else before.retry_count)
    if note is not None:
        view = replace(view, notes=(*view.notes, note)[-NOTES_KEPT:])
    if event.name in _PHASES:
        return replace(view, phase=_PHASES[event.name])
    if before is None:
        return view
    # In UTC: two times of one zone would subtract by their faces, wrong by an hour on two days a year.
    task = _task_after(before, event.name, event.time.astimezone(UTC), event.fields)
    return view if task is before else replace(view, tasks={**view.tasks, task.name: task})


_PHASES = {"SchedulerStopRequested": DemoPhase.STOPPING, "SchedulerStopped": DemoPhase.STOPPED}


def _task_of(view: DemoView, event: Event) -> DemoTaskView | None:
    return view.tasks.get(event.fields.get("taskName", ""))


def _task_after(task: DemoTaskView, name: str, time: datetime, fields: Mapping[str, Any]) -> DemoTaskView:
    match name:
        case "TaskOverridden":  # spec/scheduler.md 5.2: an override forgets all but an interruption
            return replace(task, retry_at=None, last=task.last if task.is_interrupted else None)
        case "TaskRetryStarted":
            return replace(task, retry_count=fields["retryCount"])
        case "TaskSkipped" if task.running_since is not None:
            return replace(task, has_due_standing=True)
        case "TaskRunStarted":
            return replace(
                task,
                running_since=datetime.fromisoformat(fields["actualTime"]),
                cause=fields.get("cause", ""),
                retry_count=task.retry_count if fields.get("isRetry") else 0,
                retry_at=None,
                is_interrupted=False,
                has_due_standing=False,
            )
        case "TaskRunCompleted":
            return replace(task, running_since=None, last=LastRun(DemoEnding.OK, time), ok=task.ok + 1)
        case "TaskRunFailed":
            retry_at = fields.get("nextRetryAt")
            return replace(
                task,
                running_since=None,
                retry_at=None if retry_at is None else datetime.fromisoformat(retry_at),
                last=LastRun(DemoEnding.FAILED, time),
                failed=task.failed + 1,
            )
    return task
