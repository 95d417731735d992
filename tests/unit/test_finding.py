"""What a new list makes of rows, and of removed rows: a task that comes back finds its run, if it goes on."""

from collections.abc import Sequence
from datetime import UTC
from typing import Any

import msgspec
import pytest

from duly.cluster.finding import Departed, Found, Knowledge, change_by, departed, found
from duly.core.reconciliation import Reconciliation
from duly.core.record import record_of, task_from
from duly.core.registration import Registration
from duly.core.schedule import Schedules, minute_begun
from duly.core.task import Task, cut_off, released, started, succeeded
from duly.cron import CronExpression
from duly.instant import MINUTE_US
from duly.store.board import AwayEnd, Change, Row, Stored
from duly.testing.conformance import NOW_US, sample_task

ME, OTHER = 1, 2
LATER_US = NOW_US + MINUTE_US
TASK = sample_task(5, "a")
BEGUN = started(TASK, NOW_US, is_retry=False)
SCHEDULES = Schedules(UTC)


def row(task: Task = BEGUN, run_by: int | None = OTHER, *, is_alive: bool = True, **more: Any) -> Stored:
    """A row of *task*."""
    return Stored(record_of(task), run_by, is_alive)._replace(**more)


def removed(task: Task = BEGUN, run_by: int = OTHER, *, is_alive: bool = True, **more: Any) -> Stored:
    """A removed row of *task*."""
    return row(task, run_by, is_alive=is_alive, is_removed=True, **more)


def registration(name: str) -> Registration:
    """A task of a list."""

    async def callback() -> None: ...

    return Registration(name, CronExpression.parse("0 3 * * *"), callback, 0)


def changed(
    names: str, stored: Sequence[Stored], known: Knowledge | None = None, unreadable: Sequence[int] = ()
) -> tuple[Reconciliation, Change]:
    """What a list of the tasks *names* makes of *stored*, decided by ME."""
    tasks = [task_from(each.record, SCHEDULES.of) for each in stored if not each.is_removed]
    return change_by(
        [registration(name) for name in names],
        {each.record[1]: each for each in stored},
        {task.name: task for task in tasks if task.id not in unreadable},
        unreadable,
        member=ME,
        known=known or Knowledge(),
        now_us=LATER_US,
        minute_us=minute_begun(LATER_US, UTC),
        schedule_of=SCHEDULES.of,
        scheduler_id="id",
    )


def put_for(name: str, change: Change) -> Row:
    """What is put for a task."""
    (put,) = [each for each in change.put if each.task.name == name]
    return put


def test_task_comes_back_to_its_run() -> None:
    """A task that comes back while its run goes on is registered anew under its id, and is running."""
    outcome, change = changed("a", [removed()])
    put = put_for("a", change)
    assert (put.task.id, put.run_by, put.task.running_since_us) == (5, OTHER, NOW_US)
    assert (put.task.registered_us, put.task.last_attempt_us, put.task.interrupted) == (LATER_US, None, False)
    assert [task.name for task in outcome.added] == ["a"]
    assert list(change.removed) == []


def test_end_of_an_old_run_only_releases() -> None:
    """When the run from before the removal ends, the task that came back is free, and knows nothing of it."""
    _, change = changed("a", [removed()])
    task = put_for("a", change).task
    ended = row(task, ended_us=LATER_US + 1, is_failed=True)
    assert found(ended, task, ME, Knowledge()) == Found(released(task))
    cut = row(task, ended_us=NOW_US - 1)
    assert found(cut, task, ME, Knowledge()) == Found(cut_off(task))


@pytest.mark.parametrize(
    ("stored", "known"),
    [
        (removed(is_alive=False), Knowledge()),
        (removed(ended_us=NOW_US + 1), Knowledge()),
        (removed(), Knowledge(ends={("a", NOW_US): AwayEnd(5, NOW_US, NOW_US + 1, is_failed=False)})),
        (removed(run_by=ME), Knowledge()),
        (
            removed(run_by=ME),
            Knowledge(running={"a": NOW_US}, ends={("a", NOW_US): AwayEnd.cut(5, NOW_US)}),
        ),
    ],
    ids=["runner dead", "reported", "we know the end", "ours, unknown", "ours, cut off"],
)
def test_run_that_is_over_is_nothing(stored: Stored, known: Knowledge) -> None:
    """A removed row whose run is over is as nothing: the task is new, and not running."""
    assert departed(stored, ME, known) is None
    _, change = changed("a", [stored], known)
    put = put_for("a", change)
    assert (put.run_by, put.task.running_since_us, put.task.interrupted) == (None, None, False)
    assert put.task.id == 6


def test_own_run_goes_on() -> None:
    """A removed row of a run of ours that goes on here is such a run, whoever the row says."""
    known = Knowledge(running={"a": NOW_US})
    for stored in (removed(run_by=ME), removed(run_by=ME, is_alive=False)):
        assert departed(stored, ME, known) == Departed(5, NOW_US, ME)
        assert put_for("a", changed("a", [stored], known)[1]).run_by == ME


def test_removed_row_stays_out_of_it() -> None:
    """A list without the task leaves its removed row alone, and does not use its id."""
    kept = sample_task(2, "b")
    outcome, change = changed("bc", [row(kept, None), removed()])
    assert put_for("c", change).task.id == 6
    assert [task.name for task in outcome.tasks] == ["b", "c"]
    assert outcome.orphaned == []
    assert list(change.removed) == []


def test_ids_of_those_who_come_back_are_theirs() -> None:
    """New tasks get ids above all rows, removed or unreadable; only who comes back has its old one."""
    twin = msgspec.structs.replace(BEGUN, id=8, name="z")
    broken = row(sample_task(9, "x"), None)
    _, change = changed("bacz", [removed(), removed(twin), broken], unreadable=[9])
    assert {each.task.name: each.task.id for each in change.put} == {"b": 10, "a": 5, "c": 11, "z": 8}
    assert list(change.removed) == [9]


def test_run_that_goes_on_is_removed_as_any() -> None:
    """A list that removes a running task says so; that its row is kept for a while is up to the board."""
    _, change = changed("", [row()])
    assert (list(change.put), list(change.removed)) == ([], [5])


def test_ended_row_is_not_taken_for_a_run() -> None:
    """A row that is not running is found as it is."""
    done = succeeded(BEGUN, NOW_US + 1)
    assert found(row(done, None), done, ME, Knowledge()) == Found(done)


def test_reported_ends_are_forgotten_in_the_end() -> None:
    """Of the ends that were reported so many are remembered, each task once: those reported last."""
    known, most, more = Knowledge(), 10_000, 500
    ends = [AwayEnd(number, NOW_US, LATER_US, False) for number in range(most + more)]
    for end in ends[:most]:
        known.note_reported(str(end.task_id), end)
    for end in ends[:more]:
        known.note_reported(str(end.task_id), end._replace(is_failed=True))
    assert len(known.reported) == most
    for end in ends[most:]:
        known.note_reported(str(end.task_id), end)
    assert len(known.reported) == most
    kept = [*ends[2 * more : most], *(end._replace(is_failed=True) for end in ends[:more]), *ends[most:]]
    assert list(known.reported.values()) == kept
