"""What a member makes of rows that have been forgotten: its runs go on, and the board is told of them."""

from collections.abc import Sequence
from datetime import UTC

import msgspec
import pytest

from duly.cluster.finding import Departed, Found, Knowledge, claim_by, departed, found
from duly.core.record import task_from
from duly.core.schedule import Schedules
from duly.core.task import Task, cut_off, resumed, started, succeeded
from duly.instant import MINUTE_US
from duly.store.board import AwayEnd, Change, Row, Stored
from duly.testing.conformance import NOW_US, sample_task
from tests.unit.test_finding import ME, OTHER, changed, put_for, removed, row

LATER_US = NOW_US + MINUTE_US
IDLE = sample_task(5, "a")
BEGUN = started(IDLE, NOW_US, is_retry=False)
ENDED = succeeded(BEGUN, NOW_US + 1)
AGAIN = started(ENDED, LATER_US, is_retry=False)
RUNS = {"a": LATER_US}


def claimed(stored: Sequence[Stored], known: Knowledge, mine: Sequence[Task] = ()) -> Change:
    """What ME has to put right."""
    schedules = Schedules(UTC)
    tasks = [task_from(each.record, schedules.of) for each in stored if not each.is_removed]
    return claim_by(stored, {task.name: task for task in tasks}, mine, member=ME, known=known)


@pytest.mark.parametrize(
    "stored",
    [row(IDLE, None), row(cut_off(BEGUN), None), row(BEGUN, OTHER), row(BEGUN, OTHER, is_alive=False)],
    ids=["idle", "interrupted", "another's before", "a dead one's before"],
)
def test_run_that_a_row_does_not_show(stored: Stored) -> None:
    """A run of ours goes on whatever an older row says, and has answered what was due."""
    task = task_from(stored.record, Schedules(UTC).of)
    find = found(stored, task, ME, Knowledge(running=RUNS))
    assert find.runner == ME
    assert (find.task.running_since_us, find.task.answered_us) == (LATER_US, LATER_US)
    assert (find.task.interrupted, find.task.retry_at_us) == (False, None)
    assert find.task.due_us > LATER_US


def test_run_from_before_a_registration() -> None:
    """A run that began before its task was registered anew has answered nothing of it."""
    anew = msgspec.structs.replace(IDLE, registered_us=LATER_US + 1)
    find = found(row(anew, None), anew, ME, Knowledge(running=RUNS))
    assert find == Found(msgspec.structs.replace(anew, running_since_us=LATER_US), ME)


def test_newer_run_of_another() -> None:
    """A row that shows a later run than ours is believed."""
    assert found(row(AGAIN, OTHER), AGAIN, ME, Knowledge(running={"a": NOW_US})) == Found(AGAIN, OTHER)


def test_start_of_another_at_the_same_instant() -> None:
    """A start of ours that was put back is not mistaken for one of another member at that very instant."""
    known = Knowledge(remembered={"a": IDLE}, put_back={"a": NOW_US})
    assert found(row(BEGUN, OTHER), BEGUN, ME, known) == Found(BEGUN, OTHER)
    assert found(row(BEGUN, ME), BEGUN, ME, known) == Found(IDLE)


def test_end_of_another_run_is_not_taken() -> None:
    """An end that stands on a row behind our memory is not that of the run which we remember."""
    stored = row(BEGUN, OTHER, ended_us=NOW_US + 1)
    known = Knowledge(remembered={"a": AGAIN}, running=RUNS)
    assert found(stored, BEGUN, ME, known) == Found(AGAIN, ME)


def test_removed_row_of_an_older_run() -> None:
    """A removed row that shows an older run is the row of the run which goes on here."""
    assert departed(removed(), ME, Knowledge(running=RUNS)) == Departed(5, LATER_US, ME)


def test_list_that_is_brought_again() -> None:
    """Whoever brings its list again counts its own run, whether the board has the task or not."""
    known = Knowledge(running=RUNS)
    for stored in ([row(IDLE, None)], []):
        put = put_for("a", changed("a", stored, known)[1])
        assert (put.run_by, put.task.running_since_us) == (ME, LATER_US)


def test_claim_of_a_run() -> None:
    """A run that its row does not show is put on it; one that is shown is not."""
    known = Knowledge(running=RUNS, remembered={"a": AGAIN})
    assert claimed([row(IDLE, None)], known) == Change([Row(AGAIN, ME)], [])
    assert claimed([row(AGAIN, ME)], known) == Change([], [])


@pytest.mark.parametrize(
    ("memory", "ends", "put"),
    [
        (succeeded(AGAIN, LATER_US + 1), {}, succeeded(AGAIN, LATER_US + 1)),
        (AGAIN, {}, cut_off(AGAIN)),
        (
            AGAIN,
            {("a", LATER_US): AwayEnd(5, LATER_US, LATER_US + 1, is_failed=False)},
            succeeded(AGAIN, LATER_US + 1),
        ),
    ],
    ids=["ended", "cut off", "reported"],
)
def test_claim_of_a_start_that_is_over(memory: Task, ends: dict[tuple[str, int], AwayEnd], put: Task) -> None:
    """A start that only we remember is told, with what became of it: its due is not answered twice."""
    known = Knowledge(remembered={"a": memory}, ends=ends)
    assert claimed([row(IDLE, None)], known) == Change([Row(put, None)], [])


def test_rows_that_know_as_much_are_left_alone() -> None:
    """Nothing is put where a row is not behind, or where another member runs the task."""
    known = Knowledge(
        remembered={"a": ENDED}, ends={("a", NOW_US): AwayEnd(5, NOW_US, NOW_US + 1, is_failed=False)}
    )
    for stored in (row(BEGUN, OTHER), row(AGAIN, OTHER), row(ENDED, None)):
        assert claimed([stored], known) == Change([], [])
    assert claimed([row(BEGUN, ME)], known) == Change([Row(ENDED, None)], [])


def test_claim_of_a_run_whose_task_is_not_there() -> None:
    """It leaves a removed row, under an id that nobody has."""
    change = claimed([row(sample_task(7, "b"), None)], Knowledge(running=RUNS), [ENDED])
    task = msgspec.structs.replace(resumed(ENDED, LATER_US), id=8)
    assert change == Change([Row(task, ME)], [8])


def test_claim_of_a_run_whose_removed_row_is_older() -> None:
    """It takes the place of an older run on a removed row, and is left alone where it is shown."""
    known = Knowledge(running=RUNS)
    assert claimed([removed()], known, [ENDED]) == Change([Row(resumed(ENDED, LATER_US), ME)], [5])
    assert claimed([removed(AGAIN, ME)], known, [ENDED]) == Change([], [])


def test_claim_of_a_run_that_is_over() -> None:
    """A row that shows a run of ours which is over is put right, though its task was registered anew."""
    anew = msgspec.structs.replace(BEGUN, registered_us=LATER_US)
    ends = {("a", NOW_US): AwayEnd(5, NOW_US, NOW_US + 1, is_failed=False)}
    for known, is_cut in ((Knowledge(remembered={"a": ENDED}), True), (Knowledge(ends=ends), False)):
        ((task, run_by),) = claimed([row(anew, ME)], known).put
        assert (task.running_since_us, task.interrupted, run_by) == (None, is_cut, None)
