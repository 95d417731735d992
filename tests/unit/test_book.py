"""The book: taking over a new list while runs end and writes are pending."""

from datetime import UTC

from duly.core.reconciliation import Reconciliation, reconciled
from duly.core.registration import Registration
from duly.core.task import Task, failed, started
from duly.core.timetable import Timetables
from duly.cron import CronExpression
from duly.engine.book import Book
from duly.engine.runs import ActiveRun
from duly.engine.tasks import TaskRules

NOON_US = 1_767_268_800_000_000
SCHEDULES = Timetables(UTC)


async def callback() -> None:
    """Do nothing."""


def outcome_of(book: Book[Task], **crons: str) -> Reconciliation:
    items = [Registration(name, CronExpression.parse(cron), callback, 60) for name, cron in crons.items()]
    return reconciled(
        items,
        book.tasks,
        live=book.live,
        now_us=NOON_US,
        minute_us=NOON_US,
        schedule_of=SCHEDULES.of,
        scheduler_id="abc",
        is_restart=False,
    )


def take_over(book: Book[Task], outcome: Reconciliation) -> None:
    book.take_over(list(outcome.tasks), outcome.fresh, {task.name: callback for task in outcome.tasks})


def book_with(**crons: str) -> Book[Task]:
    book = Book(UTC, TaskRules())
    take_over(book, outcome_of(book, **crons))
    return book


def running(book: Book[Task], name: str) -> ActiveRun[Task]:
    entry = book.entries[name]
    entry.task = started(entry.task, NOON_US, is_retry=False)
    entry.run = ActiveRun(name, callback, entry.task, NOON_US)
    return entry.run


def test_override_drops_what_was_not_yet_written() -> None:
    """An end that waited to be written does not overwrite the override that came after it."""
    book = book_with(a="0 3 * * *")
    running(book, "a")
    entry = book.entries["a"]
    entry.run = None
    book.change(entry, failed(entry.task, NOON_US + 1))
    take_over(book, outcome_of(book, a="0 4 * * *"))
    assert book.unsaved == {}
    assert book.entries["a"].task.last_failure_us is None


def test_run_that_ended_while_the_list_was_written_is_released() -> None:
    """A run of an overridden task that ended during the write leaves nothing that seems to run."""
    book = book_with(a="0 3 * * *")
    running(book, "a")
    outcome = outcome_of(book, a="0 4 * * *")
    book.entries["a"].run = None
    take_over(book, outcome)
    task = book.entries["a"].task
    assert (task.running_since_us, task.schedule.text) == (None, "0 4 * * *")
    assert book.unsaved == {task.id: task}


def test_end_that_came_while_the_list_was_written_is_kept() -> None:
    """The end of an unchanged task during the write is newer than what was written."""
    book = book_with(a="0 3 * * *", b="0 3 * * *")
    running(book, "a")
    outcome = outcome_of(book, a="0 3 * * *")
    entry = book.entries["a"]
    entry.run = None
    ended = failed(entry.task, NOON_US + 1)
    book.change(entry, ended)
    take_over(book, outcome)
    assert book.entries["a"].task is ended
    assert book.unsaved == {ended.id: ended}


def test_removed_task_leaves_its_run_behind() -> None:
    """The run of a removed task is remembered as orphaned, and superseded, until it ends."""
    book = book_with(a="0 3 * * *")
    run = running(book, "a")
    take_over(book, outcome_of(book))
    assert book.orphaned_runs == {"a": run}
    assert run.is_superseded
    take_over(book, outcome_of(book, a="0 3 * * *"))
    assert book.orphaned_runs == {}
    assert book.entries["a"].run is run


def test_schedules_are_shared_and_dropped() -> None:
    """Tasks with one cron text share a schedule; a schedule nobody uses is forgotten."""
    schedules = Timetables(UTC)
    assert schedules.of("0 3 * * *") is schedules.of("0 3 * * *")
    used, unused = schedules.of("0 3 * * *"), schedules.of("0 4 * * *")
    schedules.keep({"0 3 * * *"})
    assert schedules.of("0 3 * * *") is used
    assert schedules.of("0 4 * * *") is not unused


def test_limit_leaves_the_rest_ready() -> None:
    """Names beyond the limit stay ready, in order; names of removed tasks are skipped."""
    book = book_with(a="* * * * *", b="* * * * *", c="* * * * *")
    book.ready["gone"] = None
    assert book.names_to_look_at(NOON_US, 2) == ["a", "b"]
    assert book.names_to_look_at(NOON_US, 9) == ["c"]
    assert book.names_to_look_at(NOON_US, 9) == []
