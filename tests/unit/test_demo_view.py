import dataclasses
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from examples.demo.memory import DemoMemory
from examples.demo.tasks import EVERY_MINUTE, new_demo_tasks
from examples.demo.view import (
    NOTES_KEPT,
    DemoEnding,
    DemoPhase,
    DemoTaskView,
    DemoView,
    LastRun,
    after,
    began,
)

from duly.events import Event
from duly.instant import instant_of
from duly.testing import VirtualClock

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def event(name: str, second: float = 0, /, **fields: Any) -> Event:
    return Event(name, logging.INFO, at(second), fields)


def start(task: str, second: float, cause: str = "cron", **fields: Any) -> Event:
    times = {"scheduledTime": NOON.isoformat(), "actualTime": at(second).isoformat()}
    return event("TaskRunStarted", second, taskName=task, cause=cause, **times, **fields)


def failure(task: str, second: float, **fields: Any) -> Event:
    return event(
        "TaskRunFailed", second, taskName=task, duration=1000, success=False, error="OSError", **fields
    )


def success(task: str, second: float) -> Event:
    return event("TaskRunCompleted", second, taskName=task, duration=2000, success=True)


def view_after(*events: Event, memories: tuple[DemoMemory, ...] = ()) -> DemoView:
    demo_tasks = new_demo_tasks(VirtualClock(NOON))
    view = began(demo_tasks, memories, store="demo.db", zone=UTC, process_id=7, story=("once",))
    for happened in events:
        view = after(view, happened)
    return view


def told(*events: Event) -> str:
    return view_after(*events).notes[-1].text


def test_a_view_begins_with_all_tasks_waiting() -> None:
    """Before the first event every demo task is there and none of them runs."""
    view = view_after()
    assert list(view.tasks) == ["steady", "flaky", "slow", "report", "blocking", "important"]
    assert view.running == []
    assert view.phase is DemoPhase.RUNNING


@pytest.mark.parametrize(
    ("success_s", "failure_s", "outcome"),
    [
        (None, None, None),
        (-60, None, LastRun(DemoEnding.OK, at(-60))),
        (-60, -30, LastRun(DemoEnding.FAILED, at(-30))),
        (-30, -60, LastRun(DemoEnding.OK, at(-30))),
    ],
)
def test_the_store_tells_the_last_result(
    success_s: int | None, failure_s: int | None, outcome: LastRun | None
) -> None:
    """The later of success and failure that the store remembers is the last result."""
    memory = DemoMemory("steady", EVERY_MINUTE, 0, 0)._replace(
        last_success_us=None if success_s is None else instant_of(at(success_s)),
        last_failure_us=None if failure_s is None else instant_of(at(failure_s)),
    )
    assert view_after(memories=(memory,)).tasks["steady"].last == outcome


def test_an_interrupted_task_is_shown_until_it_restarts() -> None:
    """A task that was cut off is interrupted until its start, and its last result stays so until its end."""
    memory = DemoMemory("important", EVERY_MINUTE, 0, 0, is_cut_off=True)
    before = view_after(memories=(memory,)).tasks["important"]
    restarted = view_after(start("important", 1, "interrupted"), memories=(memory,)).tasks["important"]
    assert (before.is_interrupted, restarted.is_interrupted) == (True, False)
    assert before.last == restarted.last == LastRun(DemoEnding.INTERRUPTED)
    assert restarted.cause == "interrupted"


def test_a_run_that_ends_well_is_counted() -> None:
    """A success is counted and ends the run."""
    task = view_after(start("steady", 0), success("steady", 2)).tasks["steady"]
    assert (task.running_since, task.ok, task.failed) == (None, 1, 0)
    assert task.last == LastRun(DemoEnding.OK, at(2))


def test_a_failure_arms_a_retry_and_the_next_start_clears_it() -> None:
    """A failure shows when the retry is due; the retry shows its number; a run on cron shows none."""
    failed = [start("flaky", 0), failure("flaky", 1, nextRetryAt=at(6).isoformat())]
    retried = [*failed, event("TaskRetryStarted", 6, taskName="flaky", retryCount=1)]
    retried.append(start("flaky", 6, "retry", isRetry=True))
    assert view_after(*failed).tasks["flaky"].retry_at == at(6)
    task = view_after(*retried).tasks["flaky"]
    assert (task.retry_at, task.retry_count, task.failed) == (None, 1, 1)
    assert view_after(*retried, success("flaky", 7), start("flaky", 60)).tasks["flaky"].retry_count == 0


def test_a_due_stands_until_the_next_start() -> None:
    """A due that comes while the task runs stands until the task is started again."""
    skipped = event("TaskSkipped", 60, taskName="slow", reason="still running; starts when the run ends")
    events = [start("slow", 0), skipped, success("slow", 75)]
    assert view_after(*events).tasks["slow"].has_due_standing
    assert not view_after(*events, start("slow", 75)).tasks["slow"].has_due_standing
    assert not view_after(skipped).tasks["slow"].has_due_standing


def test_an_override_forgets_all_but_an_interruption() -> None:
    """A task registered with a new configuration begins again, unless it was cut off."""
    overridden = event("TaskOverridden", 0, taskName="steady")
    known = DemoMemory("steady", EVERY_MINUTE, 0, 0, last_failure_us=1, retry_at_us=2)
    task = view_after(overridden, memories=(known,)).tasks["steady"]
    assert (task.last, task.retry_at) == (None, None)
    cut_off = known._replace(is_cut_off=True)
    assert view_after(overridden, memories=(cut_off,)).tasks["steady"].last == LastRun(DemoEnding.INTERRUPTED)


def test_the_phase_follows_the_stop() -> None:
    """A stop that was requested shows as stopping, one that is done as stopped."""
    stopping = event("SchedulerStopRequested")
    assert view_after(stopping).phase is DemoPhase.STOPPING
    assert view_after(stopping, event("SchedulerStopped")).phase is DemoPhase.STOPPED


def test_what_is_not_shown_changes_nothing() -> None:
    """An event of no interest, and one of an unknown task, leave the tasks as they are."""
    view = view_after()
    assert after(view, event("PollStarted", pollTime="", scheduledTaskCount=6)) is view
    assert after(view, start("stranger", 0)).tasks is view.tasks


def test_notes_do_not_pile_up() -> None:
    """Only the latest notes are kept."""
    view = view_after(*(success("steady", second) for second in range(NOTES_KEPT + 3)))
    assert len(view.notes) == NOTES_KEPT
    assert view.notes[-1].time == at(NOTES_KEPT + 2)


def test_a_view_cannot_be_changed() -> None:
    """Views are values: folding makes new ones."""
    task: DemoTaskView = view_after().tasks["steady"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.ok = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("happened", "text"),
    [
        (start("slow", 0), "started: it is due"),
        (start("slow", 75), "started: it was due at 12:00, 1m 15s ago"),
        (start("slow", 30, "startup"), "started: it is new, and this is its minute"),
        (start("slow", 30, "interrupted"), "was interrupted → restarted"),
        (success("slow", 2), "ended well after 2.0s"),
        (failure("slow", 1), "failed after 1.0s: OSError"),
        (failure("slow", 1, nextRetryAt=at(6).isoformat()), "failed after 1.0s: OSError; retry in 5s"),
        (
            event("TaskSkipped", taskName="slow", reason="still running; starts when the run ends"),
            "is due while it still runs: the due stands until the run ends",
        ),
        (
            event("TaskRetryPreempted", taskName="slow", reason=""),
            "is due before its retry: one run answers both",
        ),
        (event("TaskAdded", taskName="slow", cronExpression="* * * * *"), "is new: * * * * *"),
        (event("TaskOverridden", taskName="slow"), "has a new configuration: it begins again"),
        (
            event("ClockStepped", before=at(0).isoformat(), after=at(90).isoformat()),
            "the clock was set from 12:00:00 to 12:01:30",
        ),
        (event("StoreFault", error="disk full"), "the store cannot be written: disk full"),
        (event("StoreRecovered", error=""), "the store can be written again, nothing was lost"),
        (event("PollFailed", error="bug"), "scheduling fails, and is tried again: bug"),
        (event("PollRecovered", error="bug"), "scheduling goes on"),
        (
            event("PollerRestarted", error="bug"),
            "the poller was ended from outside and is restarted: bug",
        ),
        (
            event("SchedulerStopRequested"),
            "stopping: no new runs; those in flight may end (Ctrl-C again cuts them off)",
        ),
        (event("SchedulerStopped"), "stopped: every result is recorded"),
    ],
)
def test_events_are_told_in_plain_words(happened: Event, text: str) -> None:
    """Each event that matters to a watcher becomes one sentence."""
    assert told(happened) == text


def test_a_retry_is_told_with_its_number() -> None:
    """The start of a retry says which retry it is."""
    counted = event("TaskRetryStarted", 6, taskName="flaky", retryCount=2)
    assert told(counted, start("flaky", 6, "retry", isRetry=True)) == "started: retry 2"


def test_a_skipped_registration_is_not_told() -> None:
    """A task that was skipped for another reason than its run is not worth a sentence."""
    assert view_after(event("TaskSkipped", taskName="slow", reason="already scheduled")).notes == ()


def test_a_note_is_one_line() -> None:
    """An error message with a line break does not break the screen."""
    happened = event("TaskRunFailed", taskName="slow", duration=1, error="two\nlines\x1b[31m")
    assert told(happened) == r"failed after 0.0s: two\nlines\x1b[31m"
