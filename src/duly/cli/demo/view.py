"""What the demo knows: a frozen value, folded over events.

`began` makes it from the cast and the memory of the store, `after` moves it on by one event. It never reads a
clock or the store; everything it says about tasks it has been told by events (SCHEDULER.md 7).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Any

from duly.cli.demo.cast import Part
from duly.cli.demo.memory import Memory
from duly.cli.demo.notes import Note, note_of
from duly.cron import CronExpression
from duly.events import Event
from duly.instant import datetime_at

NOTES_KEPT = 50


class Ending(StrEnum):
    """How a run ended."""

    OK = "ok"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Phase(StrEnum):
    """Where the demo is in its life."""

    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the last run ended, and when, if that is known."""

    ending: Ending
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TaskView:
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
    last: Outcome | None = None
    ok: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class DemoView:
    """Everything the demo shows, but the time."""

    store: str
    zone: tzinfo
    process_id: int
    story: tuple[str, ...]
    tasks: Mapping[str, TaskView]
    notes: tuple[Note, ...] = ()
    phase: Phase = Phase.RUNNING

    @property
    def running(self) -> list[TaskView]:
        """The tasks with a run in flight."""
        return [task for task in self.tasks.values() if task.running_since is not None]


def began(
    cast: Iterable[Part],
    memories: Iterable[Memory],
    *,
    store: str,
    zone: tzinfo,
    process_id: int,
    story: tuple[str, ...],
) -> DemoView:
    """The view before the first event."""
    memory_of = {memory.name: memory for memory in memories}
    tasks = {part.name: _remembered(part, memory_of.get(part.name)) for part in cast}
    return DemoView(store, zone, process_id, story, tasks)


def _remembered(part: Part, memory: Memory | None) -> TaskView:
    task = TaskView(part.name, CronExpression.parse(part.cron), part.schedule, part.about)
    if memory is None:
        return task
    return replace(
        task,
        retry_at=None if memory.retry_at_us is None else datetime_at(memory.retry_at_us, UTC),
        is_interrupted=memory.is_cut_off,
        last=_last_outcome(memory),
    )


def _last_outcome(memory: Memory) -> Outcome | None:
    if memory.is_cut_off:
        return Outcome(Ending.INTERRUPTED)
    ends = [(memory.last_success_us, Ending.OK), (memory.last_failure_us, Ending.FAILED)]
    known = [(us, ending) for us, ending in ends if us is not None]
    if not known:
        return None
    at_us, ending = max(known)
    return Outcome(ending, datetime_at(at_us, UTC))


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


_PHASES = {"SchedulerStopRequested": Phase.STOPPING, "SchedulerStopped": Phase.STOPPED}


def _task_of(view: DemoView, event: Event) -> TaskView | None:
    return view.tasks.get(event.fields.get("taskName", ""))


def _task_after(task: TaskView, name: str, time: datetime, fields: Mapping[str, Any]) -> TaskView:
    match name:
        case "TaskOverridden":  # SCHEDULER.md 5: an override forgets all but an interruption
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
            return replace(task, running_since=None, last=Outcome(Ending.OK, time), ok=task.ok + 1)
        case "TaskRunFailed":
            retry_at = fields.get("nextRetryAt")
            return replace(
                task,
                running_since=None,
                retry_at=None if retry_at is None else datetime.fromisoformat(retry_at),
                last=Outcome(Ending.FAILED, time),
                failed=task.failed + 1,
            )
    return task
