"""What a member makes of the rows that it finds: a run is still under way, or has ended, or was cut off.

Pure answers over a row, what this process knows better than the row, and who is alive. A process knows better
when it saw a run end and could not write it, or when the database forgot: a standby that was promoted without
the latest commits shows a task as it was before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from duly.core.reconciliation import Reconciliation, reconciled
from duly.core.record import COLUMNS
from duly.core.registration import Registration
from duly.core.schedule import Schedule
from duly.core.task import (
    Task,
    cut_off,
    failed,
    is_ahead_of_clock,
    moved_back,
    released,
    resumed,
    succeeded,
)
from duly.instant import Instant
from duly.marks import mark
from duly.store.board import AwayEnd, Change, Row, Stored

_ID, _NAME, _SINCE = (COLUMNS.index(column) for column in ("id", "name", "running_since_us"))

_MOST_REPORTED = 10_000
"""So many ends are remembered: a standby lacks the last moments, not hours."""


@dataclass(slots=True)
class Knowledge:
    """What one process knows of tasks that a board may not know."""

    running: dict[str, Instant] = field(default_factory=dict)
    """Its runs in flight: when each began."""
    ends: dict[tuple[str, Instant], AwayEnd] = field(default_factory=dict)
    """Ends of its runs that are not reported yet, by the name of the task and when the run began."""
    reported: dict[str, AwayEnd] = field(default_factory=dict)
    """The latest end that was reported of each task, of the last many: a board may forget the latest."""
    remembered: dict[str, Task] = field(default_factory=dict)
    """Tasks as they were when it last held them."""
    put_back: dict[str, Instant] = field(default_factory=dict)
    """Starts of those that may be on their rows and were not carried out."""

    def note_reported(self, name: str, end: AwayEnd) -> None:
        """Remember an end that was reported, and forget the oldest if there are too many."""
        self.reported.pop(name, None)
        self.reported[name] = end
        if len(self.reported) > _MOST_REPORTED:
            del self.reported[next(iter(self.reported))]


class Found(NamedTuple):
    """A task as it is now, and the member that runs it."""

    task: Task
    runner: int | None = None


class Departed(NamedTuple):
    """A run that goes on though a list has removed its task."""

    task_id: int
    since_us: Instant
    runner: int


def found(stored: Stored, task: Task, member: int, known: Knowledge) -> Found:
    """What *member* makes of the row *stored*, which holds *task*."""
    mine = known.remembered.get(task.name)
    is_anothers = _is_anothers(stored, member)
    put_back_us = None if is_anothers else known.put_back.get(task.name)
    task = _taken_back(_better(task, mine, is_anothers=is_anothers), mine, put_back_us)
    since_us, ours_us = task.running_since_us, known.running.get(task.name)
    if ours_us is not None and ours_us > (since_us or 0):
        mark("run missing on a row")
        return Found(resumed(task, ours_us), member)
    if since_us is None:
        return Found(task)
    if (end := _end_of(stored, task.name, since_us, known)) is not None:
        mark("end taken from a row")
        return Found(ended(task, since_us, end.ended_us, is_failed=end.is_failed))
    if (runner := _runner_of(stored, task.name, since_us, member, known)) is not None:
        if runner != member:
            mark("run found away")
        return Found(task, runner)
    mark("run found cut off")
    return Found(cut_off(task))


def departed(stored: Stored, member: int, known: Knowledge) -> Departed | None:
    """The run that a removed row is of, as far as *member* can tell; None if it is over."""
    name, since_us = stored.record[_NAME], stored.record[_SINCE]
    ours_us = known.running.get(name)
    if ours_us is not None and (name, ours_us) not in known.ends:
        return Departed(stored.record[_ID], ours_us, member)
    if _end_of(stored, name, since_us, known) is not None:
        return None
    runner = _runner_of(stored, name, since_us, member, known)
    return None if runner is None else Departed(stored.record[_ID], since_us, runner)


def ended(task: Task, since_us: Instant, ended_us: Instant, *, is_failed: bool) -> Task:
    """The task after the run that began at *since_us*, unless it was registered anew since."""
    if ended_us < since_us:
        return cut_off(task)
    if since_us < task.registered_us:
        return released(task)
    return failed(task, ended_us) if is_failed else succeeded(task, ended_us)


def up_to(task: Task, now_us: Instant) -> Task:
    """The task under the clock of a process that has just come to hold it."""
    return moved_back(task, now_us) if is_ahead_of_clock(task, now_us) else task


def change_by(
    registrations: Sequence[Registration],
    stored: Mapping[str, Stored],
    tasks: Mapping[str, Task],
    unreadable: Sequence[int],
    *,
    member: int,
    known: Knowledge,
    now_us: Instant,
    minute_us: Instant,
    schedule_of: Callable[[str], Schedule],
    scheduler_id: str,
) -> tuple[Reconciliation, Change]:
    """What a new list makes of the *tasks* in the rows *stored*, and what of it is to be written.

    A task that comes back while its run from before its removal goes on is registered anew, under the id that
    its runner reports the end to.
    """
    finds = {name: found(stored[name], task, member, known) for name, task in tasks.items()}
    left = {
        name: run
        for name, row in stored.items()
        if row.is_removed and (run := departed(row, member, known)) is not None
    }
    live = {name: since_us for name, since_us in known.running.items() if name not in stored}
    live |= {name: run.since_us for name, run in left.items()}
    live |= {
        name: find.task.running_since_us
        for name, find in finds.items()
        if find.runner is not None and find.task.running_since_us is not None
    }
    outcome = reconciled(
        registrations,
        tasks,
        live=live,
        now_us=now_us,
        minute_us=minute_us,
        schedule_of=schedule_of,
        scheduler_id=scheduler_id,
        is_restart=True,
        known_better=lambda task: finds[task.name].task,
        departed={name: run.task_id for name, run in left.items()},
        last_id=max((row.record[_ID] for row in stored.values()), default=0),
    )
    runners: dict[str, int | None] = dict.fromkeys(known.running, member)
    runners |= {name: find.runner for name, find in finds.items()}
    runners |= {name: run.runner for name, run in left.items()}
    if any(task.running_since_us is not None for task in outcome.added):
        mark("departed run found")
    put = [*outcome.added, *outcome.rewritten]
    rows = [Row(task, runners[task.name] if task.running_since_us is not None else None) for task in put]
    return outcome, Change(rows, [*(task.id for task in outcome.orphaned), *unreadable])


def claim_by(
    stored: Sequence[Stored],
    tasks: Mapping[str, Task],
    mine: Iterable[Task],
    *,
    member: int,
    known: Knowledge,
) -> Change:
    """What *member* has to put right on a board that may have forgotten its latest rows.

    The rows of tasks that it does not hold: they are to show its runs, which *mine* are the tasks of, and
    the latest start that it knows of. A run whose task the board does not have leaves a removed row.
    """
    rows = {row.record[_NAME]: row for row in stored}
    put = []
    for name, task in tasks.items():
        since_us = known.running.get(name)
        is_missing = since_us is not None and since_us > (task.running_since_us or 0)
        is_over = since_us is None and rows[name].run_by == member
        is_anothers = _is_anothers(rows[name], member)
        if (
            is_missing
            or is_over
            or _better(task, known.remembered.get(name), is_anothers=is_anothers) is not task
        ):
            mark("row put right")
            put.append(Row(*found(rows[name], task, member, known)))
    next_id = max((row.record[_ID] for row in stored), default=0) + 1
    left = []
    for at, task in enumerate((task for task in mine if task.name not in tasks), next_id):
        since_us, row = known.running[task.name], rows.get(task.name)
        if row is not None and (row.run_by, row.record[_SINCE]) == (member, since_us):
            continue
        anew = resumed(msgspec.structs.replace(task, id=at if row is None else row.record[_ID]), since_us)
        left.append(Row(anew, member))
    return Change([*put, *left], [row.task.id for row in left])


def _better(task: Task, mine: Task | None, *, is_anothers: bool) -> Task:
    """The task as the row has it, or as this process remembers it if the row is behind that."""
    if mine is None or (mine.id, mine.registered_us) != (task.id, task.registered_us):
        return task
    if _is_behind(task, mine):
        mark("row behind memory")
        return mine
    if task.running_since_us is None or is_anothers:
        return task
    is_end_unwritten = mine.running_since_us is None and mine.last_attempt_us == task.running_since_us
    return mine if is_end_unwritten else task


def _is_behind(task: Task, mine: Task | None) -> bool:
    """Whether the row that holds *task* lacks a start that this process remembers."""
    return (
        mine is not None
        and (mine.id, mine.registered_us) == (task.id, task.registered_us)
        and mine.answered_us > task.answered_us
    )


def _taken_back(task: Task, mine: Task | None, put_back_us: Instant | None) -> Task:
    """The task as it was before the start at *put_back_us*, if it is that one which the row shows."""
    if mine is None or (mine.id, mine.registered_us) != (task.id, task.registered_us):
        return task
    if put_back_us is None or put_back_us != task.running_since_us:
        return task
    mark("start taken back")
    return mine


def _end_of(stored: Stored, name: str, since_us: Instant, known: Knowledge) -> AwayEnd | None:
    if stored.ended_us is not None and stored.record[_SINCE] == since_us:
        return AwayEnd(stored.record[_ID], since_us, stored.ended_us, stored.is_failed)
    return known.ends.get((name, since_us))


def _runner_of(stored: Stored, name: str, since_us: Instant, member: int, known: Knowledge) -> int | None:
    """Who runs a run that has no known end; None if it was cut off."""
    if known.running.get(name) == since_us:
        return member
    is_of_row = stored.record[_SINCE] == since_us
    return stored.run_by if is_of_row and _is_anothers(stored, member) else None


def _is_anothers(stored: Stored, member: int) -> bool:
    """Whether the row shows a run of another member, which is alive."""
    return stored.run_by != member and stored.is_runner_alive
