"""The decisions, as pure functions: tasks, causes, reconciliation, records, agenda."""

from datetime import UTC
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.core.agenda import Agenda
from duly.core.causes import (
    MEANINGS,
    REASON_MEANINGS,
    Cause,
    Reason,
    cause_standing,
    preempts_retry,
    scheduled_us,
    starts_owed,
)
from duly.core.reconciliation import reconciled
from duly.core.record import COLUMNS, record_of, task_from
from duly.core.registration import Registration
from duly.core.task import (
    Task,
    called,
    cut_off,
    failed,
    is_ahead_of_clock,
    moved_back,
    origin_of,
    registered,
    retry_ready_us,
    set_back,
    started,
    succeeded,
    wakes_us,
)
from duly.core.timetable import CronTimetable, Timetable, minute_begun
from duly.cron import CronExpression
from duly.errors import (
    TaskInvalidStructureError,
    TaskInvalidTypeError,
    TaskInvalidValueError,
    TaskMissingFieldError,
    TaskTryDeserializeError,
)
from duly.instant import LATEST_US, MINUTE_US, NEVER_US, SECOND_US

NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00 UTC
DELAY_US = 5 * MINUTE_US


def schedule(cron: str) -> Timetable:
    return CronTimetable(CronExpression.parse(cron), UTC)


def new_task(cron: str = "* * * * *", now_us: int = NOON_US + 30 * SECOND_US) -> Task:
    return registered(
        id=1,
        name="a",
        schedule=schedule(cron),
        retry_delay_us=DELAY_US,
        now_us=now_us,
        minute_us=minute_begun(now_us, UTC),
        scheduler_id="abc",
    )


def test_every_cause_has_a_meaning() -> None:
    """People are told what each cause of a task and each reason of a service means."""
    assert (set(MEANINGS), set(REASON_MEANINGS)) == (set(Cause), set(Reason))


def test_new_task_is_due_in_its_own_minute() -> None:
    """A new task whose minute matches stands for startup, another for nothing."""
    assert cause_standing(new_task("0 12 * * *"), NOON_US + 30 * SECOND_US) is Cause.STARTUP
    assert cause_standing(new_task("1 12 * * *"), NOON_US + 30 * SECOND_US) is None


def test_due_stands_from_its_first_instant() -> None:
    """A due stands from the first microsecond of its minute, and for as long as nothing answers it."""
    task = new_task("1 12 * * *")
    assert cause_standing(task, NOON_US + MINUTE_US - 1) is None
    assert cause_standing(task, NOON_US + MINUTE_US) is Cause.CRON
    assert cause_standing(task, NOON_US + 10**15) is Cause.CRON


def test_start_answers_everything() -> None:
    """After a start no cause stands: not the due, not the retry, not the interruption."""
    broken = failed(started(new_task(), NOON_US, is_retry=False), NOON_US)
    task = msgspec.structs.replace(
        cut_off(msgspec.structs.replace(broken, running_since_us=1)), retry_count=3
    )
    now_us = NOON_US + 60 * MINUTE_US
    (start,) = starts_owed([task], now_us)
    assert start.cause is Cause.INTERRUPTED
    assert cause_standing(start.after, now_us) is None
    assert (start.after.retry_at_us, start.after.retry_count, start.after.interrupted) == (None, 0, False)


def test_origin_outlasts_interruptions() -> None:
    """A run that goes on where a crash cut one off has its origin; every other run is its own origin."""
    first = started(new_task(), NOON_US, is_retry=False)
    second = started(cut_off(first), NOON_US + 5, is_retry=False)
    third = started(cut_off(second), NOON_US + 9, is_retry=False)
    assert [task.origin_us for task in (first, second, third)] == [NOON_US] * 3
    assert (third.running_since_us, origin_of(cut_off(third), NOON_US + 11)) == (NOON_US + 9, NOON_US)
    ended = failed(third, NOON_US + 10)
    assert started(ended, NOON_US + 20, is_retry=True).origin_us == NOON_US + 20
    assert started(succeeded(third, NOON_US + 10), NOON_US + 30, is_retry=False).origin_us == NOON_US + 30
    unknown = msgspec.structs.replace(cut_off(first), origin_us=None)
    assert started(unknown, NOON_US + 40, is_retry=False).origin_us == NOON_US + 40


def test_origin_outlasts_an_override() -> None:
    """A task that is registered again while a run of it is unfinished keeps the origin of that run."""
    running = started(new_task("0 3 * * *"), NOON_US - 5, is_retry=False)
    changed = registration("a", "0 4 * * *")
    for live in ({}, {"a": NOON_US - 5}):
        (task,) = reconcile([changed], {"a": running}, live).tasks
        assert (task.schedule.text, task.origin_us) == ("0 4 * * *", NOON_US - 5)
    (back,) = reconcile([changed], {}, {"a": NOON_US - 5}).tasks
    assert (back.running_since_us, back.origin_us) == (NOON_US - 5, NOON_US - 5)


def test_running_task_is_owed_nothing() -> None:
    """A task that runs is owed no start, however many dues have come."""
    task = started(new_task(), NOON_US, is_retry=False)
    assert starts_owed([task], NOON_US + 60 * MINUTE_US) == []


def test_retry_stands_at_its_deadline() -> None:
    """A retry stands from its deadline on; a success voids it."""
    task = failed(started(new_task("0 3 * * *"), NOON_US, is_retry=False), NOON_US + 7)
    assert cause_standing(task, NOON_US + 7 + DELAY_US - 1) is None
    assert cause_standing(task, NOON_US + 7 + DELAY_US) is Cause.RETRY
    assert cause_standing(succeeded(task, NOON_US), NOON_US + 10 * DELAY_US) is None


def test_due_beats_retry() -> None:
    """When both stand the due names the run; a deadline still ahead is pre-empted."""
    task = failed(started(new_task("1,10 * * * *"), NOON_US, is_retry=False), NOON_US)
    (early,) = starts_owed([task], NOON_US + MINUTE_US)
    assert (early.cause, preempts_retry(early)) == (Cause.CRON, True)
    (late,) = starts_owed([task], NOON_US + 10 * MINUTE_US)
    assert (late.cause, preempts_retry(late)) == (Cause.CRON, False)


def test_scheduled_time_is_the_latest_due() -> None:
    """A start that answers many dues says the latest of them; a retry says its deadline."""
    task = new_task("0 * * * *")
    (start,) = starts_owed([started_and_ended(task)], NOON_US + 200 * MINUTE_US)
    assert scheduled_us(start) == NOON_US + 180 * MINUTE_US
    broken = failed(started(new_task("0 3 * * *"), NOON_US, is_retry=False), NOON_US)
    (retry,) = starts_owed([broken], NOON_US + 6 * MINUTE_US)
    assert scheduled_us(retry) == NOON_US + 5 * MINUTE_US


def started_and_ended(task: Task) -> Task:
    return succeeded(started(task, NOON_US + 30 * SECOND_US, is_retry=False), NOON_US + 40 * SECOND_US)


def test_minute_that_begins_before_the_call_is_answered_by_it() -> None:
    """A due between the writing of a start and its call is answered by that call."""
    task = started(new_task(), NOON_US + 59 * SECOND_US, is_retry=False)
    assert called(task, NOON_US + 59 * SECOND_US + 5) is task
    late = called(task, NOON_US + 60 * SECOND_US)
    assert late.due_us == NOON_US + 2 * MINUTE_US


def test_answered_never_moves_back() -> None:
    """A start after a small step back leaves what was answered answered."""
    task = started_and_ended(new_task())
    again = started(task, NOON_US - MINUTE_US, is_retry=True)
    assert again.answered_us == task.answered_us
    assert again.due_us == task.due_us


def test_moved_back_counts_afresh() -> None:
    """After a large step back the first due at or after the new time is owed, and a retry is not later."""
    task = failed(started(new_task("0 * * * *"), NOON_US, is_retry=False), NOON_US)
    to_us = NOON_US - 6 * 60 * MINUTE_US
    moved = moved_back(task, to_us)
    assert moved.due_us == to_us
    assert moved.retry_at_us == to_us + DELAY_US
    assert moved_back(task, to_us + 1).due_us == to_us + 60 * MINUTE_US


def test_due_that_stood_stands_after_a_step_back() -> None:
    """A due that stood when the clock was set back stands still; the minutes seen again bring none."""
    task = started_and_ended(new_task())
    before_us, after_us = NOON_US + 2 * MINUTE_US, NOON_US
    (start,) = starts_owed([set_back(task, before_us, after_us)], after_us)
    assert start.cause is Cause.CRON
    assert scheduled_us(start) == before_us
    assert start.after.due_us == NOON_US + 3 * MINUTE_US
    assert not start.after.due_stands
    idle = started_and_ended(new_task("30 * * * *"))
    assert set_back(idle, before_us, after_us) is idle
    assert set_back(task, before_us, before_us - 6 * MINUTE_US).due_stands
    twice = set_back(set_back(task, before_us, after_us), after_us, after_us - 6 * MINUTE_US)
    assert cause_standing(twice, after_us - 6 * MINUTE_US) is Cause.CRON


def test_task_written_under_a_clock_ahead() -> None:
    """More than five minutes ahead is another time; five minutes exactly is not."""
    task = started_and_ended(new_task())
    assert not is_ahead_of_clock(task, task.answered_us - 5 * MINUTE_US)
    assert is_ahead_of_clock(task, task.answered_us - 5 * MINUTE_US - 1)
    moved = moved_back(new_task(), NOON_US - 60 * MINUTE_US)
    assert cause_standing(moved, NOON_US - 60 * MINUTE_US) is Cause.CRON


def test_success_ends_the_count_of_retries() -> None:
    """After a success the next failure's first retry is number one again."""
    broken = failed(started(new_task(), NOON_US, is_retry=True), NOON_US)
    task = succeeded(started(broken, NOON_US, is_retry=True), NOON_US + 5)
    assert (task.retry_count, task.retry_at_us, task.last_success_us) == (0, None, NOON_US + 5)


def test_retries_without_delay_are_paced() -> None:
    """The first retry needs no pause; later ones wait a little longer each time, at most a second."""
    task = msgspec.structs.replace(new_task("0 3 * * *"), retry_delay_us=0)
    pauses: list[int] = []
    for _ in range(15):
        task = failed(started(task, NOON_US, is_retry=bool(pauses)), NOON_US)
        pauses.append(retry_ready_us(task) - NOON_US)
    assert pauses[:4] == [0, 2_000, 4_000, 8_000]
    assert pauses == sorted(pauses)
    assert pauses[-1] == SECOND_US


def test_wakes_at_the_earlier_of_due_and_retry() -> None:
    """A task needs a look at its due or its retry, whichever is first."""
    task = new_task("0 13 * * *")
    assert wakes_us(task) == task.due_us
    assert wakes_us(failed(started(task, NOON_US, is_retry=False), NOON_US)) == NOON_US + DELAY_US


def test_schedule_remembers_without_changing_answers() -> None:
    """A schedule asked in any order answers as a fresh one does."""
    remembering = schedule("0,30 3 * * 1-5")
    for minutes in (0, 5000, 1, 100, 4999, 100_000, 7, 0):
        instant_us = NOON_US + minutes * MINUTE_US
        assert remembering.due_after(instant_us) == schedule("0,30 3 * * 1-5").due_after(instant_us)


def test_end_of_time() -> None:
    """A schedule with no more dues before the year 10000 is simply never due again."""
    assert schedule("0 0 1 1 *").due_after(LATEST_US) == NEVER_US


_moments = st.none() | st.integers(-3, 3).map(lambda minutes: NOON_US + minutes * MINUTE_US + 1)


_flags = st.fixed_dictionaries({"interrupted": st.booleans(), "due_stands": st.booleans()})


@given(_moments, _moments, st.integers(0, 30), _flags, st.integers(-4, 4))
def test_whoever_is_woken_is_owed_a_start(
    retry_at_us: int | None, last_failure_us: int | None, retry_count: int, flags: Any, minutes: int
) -> None:
    """A task needs a look exactly when it is owed a start, so that no look is followed by another at once."""
    task = msgspec.structs.replace(
        new_task("2 12 * * *"),
        retry_at_us=retry_at_us,
        last_failure_us=last_failure_us,
        retry_count=retry_count,
        **flags,
    )
    now_us = NOON_US + minutes * MINUTE_US
    assert (wakes_us(task) <= now_us) == bool(starts_owed([task], now_us))
    for start in starts_owed([task], now_us):
        assert wakes_us(start.after) > now_us


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50))), st.lists(st.integers(0, 60)))
def test_agenda_gives_back_what_is_due(added: list[tuple[str, int]], times: list[int]) -> None:
    """Every name comes back once, when the instant given for it last has come, earliest first."""
    agenda = Agenda()
    left: dict[str, int] = {}
    for name, instant_us in added:
        agenda.add(name, instant_us)
        if left.get(name) != instant_us:
            left.pop(name, None)
            left[name] = instant_us
    for now_us in times:
        assert agenda.next_us() == min(left.values(), default=None)
        due = sorted((name for name, us in left.items() if us <= now_us), key=lambda name: left[name])
        assert agenda.take(now_us) == due
        for name in due:
            del left[name]


def test_agenda_forgets_what_no_longer_holds() -> None:
    """A name that is moved again and again is on the agenda once, and leaves next to nothing behind."""
    agenda = Agenda()
    agenda.add("stays", 5)
    for instant_us in range(10, 100_000):
        agenda.add("moves", instant_us)
    assert len(agenda._instants) < 100
    assert agenda.take(99_998) == ["stays"]
    assert agenda.next_us() == 99_999


def registration(name: str, cron: str = "0 3 * * *", delay_us: int = DELAY_US) -> Registration:
    async def callback() -> None: ...

    return Registration(name, CronExpression.parse(cron), callback, delay_us)


def reconcile(items: list[Registration], known: dict[str, Task], live: dict[str, int] | None = None) -> Any:
    return reconciled(
        items,
        known,
        live=live or {},
        now_us=NOON_US,
        minute_us=NOON_US,
        schedule_of=lambda cron: CronTimetable(CronExpression.parse(cron), UTC),
        scheduler_id="abc",
        is_restart=True,
    )


def test_ids_are_never_shared() -> None:
    """New tasks get ids above all known ones."""
    known = {task.name: task for task in reconcile([registration("a"), registration("b")], {}).tasks}
    outcome = reconcile([registration("b"), registration("c"), registration("d")], known)
    assert [(task.name, task.id) for task in outcome.tasks] == [("b", 2), ("c", 3), ("d", 4)]
    assert [task.name for task in outcome.orphaned] == ["a"]


def test_only_what_changed_is_written() -> None:
    """Preserved tasks are not written again unless something about them changed."""
    known = {task.name: task for task in reconcile([registration("a"), registration("b")], {}).tasks}
    outcome = reconcile([registration("a"), registration("b", "0 4 * * *")], known)
    assert [task.name for task in outcome.rewritten] == ["b"]
    known["a"] = started(known["a"], NOON_US, is_retry=False)
    assert [task.name for task in reconcile([registration("a")], known).rewritten] == ["a"]
    assert reconcile([registration("a")], known, {"a": NOON_US}).rewritten == []


def test_record_and_back() -> None:
    """A record read back is the task it was made of, field by field."""
    task = failed(started(new_task(), NOON_US, is_retry=True), NOON_US + 5)
    again = task_from(record_of(task), lambda cron: CronTimetable(CronExpression.parse(cron), UTC))
    assert record_of(again) == record_of(task)
    assert again.due_us == task.due_us


def damaged(column: str, value: object) -> list[object]:
    record = list(record_of(new_task()))
    record[COLUMNS.index(column)] = value
    return record


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (5, TaskInvalidStructureError),
        ("text", TaskInvalidStructureError),
        (None, TaskInvalidStructureError),
        ([], TaskMissingFieldError),
        (list(record_of(new_task()))[:-1], TaskMissingFieldError),
        (damaged("name", None), TaskMissingFieldError),
        (damaged("name", 5), TaskInvalidTypeError),
        (damaged("cron", b"x"), TaskInvalidTypeError),
        (damaged("answered_us", "soon"), TaskInvalidTypeError),
        (damaged("answered_us", None), TaskMissingFieldError),
        (damaged("retry_at_us", 1.5), TaskInvalidTypeError),
        (damaged("interrupted", True), TaskInvalidTypeError),
        (damaged("retry_delay_us", -1), TaskInvalidValueError),
        (damaged("retry_count", -1), TaskInvalidValueError),
        (damaged("cron", "*/5 * * * *"), TaskInvalidValueError),
        (damaged("answered_us", 10**30), TaskInvalidValueError),
        (damaged("answered_us", -(10**30)), TaskInvalidValueError),
    ],
)
def test_damaged_records(record: object, kind: type[TaskTryDeserializeError]) -> None:
    """Each way a record can be damaged has its own error."""
    with pytest.raises(kind):
        task_from(record, lambda cron: CronTimetable(CronExpression.parse(cron), UTC))
