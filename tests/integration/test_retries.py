"""Retries (spec/scheduler.md 3.5): when they come, what pre-empts them, what voids them."""

from datetime import timedelta

import pytest

from duly.instant import datetime_at
from tests.worlds.scheduler import HOUR, MINUTE, World
from tests.worlds.stores import StoreFactory

BROKEN = ValueError("broken")


async def test_retry_comes_when_its_delay_has_passed(same_store: StoreFactory) -> None:
    """A failed run is retried its delay after the failure, not before, and a success ends it."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", outcomes=[BROKEN, BROKEN], lasts=timedelta(seconds=10)))
    await world.stop_after("12:30")
    assert world.calls_of("a") == ["12:00:00", "12:05:10", "12:10:20"]


async def test_retry_events_count_up_and_start_again(same_store: StoreFactory) -> None:
    """A retry is told as TaskRetryStarted, numbered from 1 after each cron run, then TaskRunStarted."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 * * * *", outcomes=[BROKEN, BROKEN, None, BROKEN]))
    await world.stop_after("13:06")
    seen = world.told("TaskRetryStarted", "TaskRunStarted")
    assert [(name, fields.get("retryCount"), fields.get("isRetry")) for name, fields in seen] == [
        ("TaskRunStarted", None, None),
        ("TaskRetryStarted", 1, None),
        ("TaskRunStarted", None, True),
        ("TaskRetryStarted", 2, None),
        ("TaskRunStarted", None, True),
        ("TaskRunStarted", None, None),
        ("TaskRetryStarted", 1, None),
        ("TaskRunStarted", None, True),
    ]


async def test_due_preempts_a_pending_retry(same_store: StoreFactory) -> None:
    """A due during the retry delay starts at once, and the old deadline is void."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0,10 * * * *", outcomes=[BROKEN], delay=timedelta(minutes=15)))
    await world.stop_after("12:40")
    assert world.calls_of("a") == ["12:00:00", "12:10:00"]
    assert [fields["taskName"] for _, fields in world.told("TaskRetryPreempted")] == ["a"]


async def test_failure_of_a_preempting_run_sets_a_new_deadline(same_store: StoreFactory) -> None:
    """If the pre-empting run fails too, the new deadline counts from its own end."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0,10 * * * *", outcomes=[BROKEN, BROKEN], delay=timedelta(minutes=15)))
    await world.stop_after("12:40")
    assert world.calls_of("a") == ["12:00:00", "12:10:00", "12:25:00"]


async def test_due_and_retry_at_one_instant_are_one_start(same_store: StoreFactory) -> None:
    """Cron and retry falling together give one start, named after the due."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0,5 * * * *", outcomes=[BROKEN], delay=timedelta(minutes=5)))
    await world.stop_after("12:20")
    assert world.calls_of("a") == ["12:00:00", "12:05:00"]
    assert [fields["cause"] for _, fields in world.told("TaskRunStarted")] == ["startup", "cron"]
    assert world.told("TaskRetryStarted", "TaskRetryPreempted") == []


async def test_retry_survives_stop_and_crash(same_store: StoreFactory) -> None:
    """A pending retry is kept over a stop and over a crash, and comes at its old deadline."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", outcomes=[BROKEN, BROKEN])
    await world.begin(task)
    await world.scheduler.stop()
    await world.begin(task)
    await world.until("12:04:59")
    assert world.calls_of("a") == ["12:00:00"]
    await world.until("12:05")
    assert world.calls_of("a") == ["12:00:00", "12:05:00"]
    await world.crash()
    await world.until("12:07")
    await world.begin(task)
    await world.stop_after("12:30")
    assert world.calls_of("a") == ["12:00:00", "12:05:00", "12:10:00"]


async def test_retry_that_fell_due_while_down_comes_at_start(same_store: StoreFactory) -> None:
    """A retry whose deadline passed while nothing was up starts when a scheduler comes up, once."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", outcomes=[BROKEN])
    await world.begin(task)
    await world.scheduler.stop()
    await world.until("15:00")
    await world.begin(task)
    await world.stop_after("16:00")
    assert world.calls_of("a") == ["12:00:00", "15:00:00"]


@pytest.mark.parametrize("failures", [1, 3, 12])
async def test_zero_delay_is_legal(same_store: StoreFactory, failures: int) -> None:
    """With no delay at all a task is retried soon, until it succeeds."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", outcomes=[BROKEN] * failures, delay=timedelta(0)))
    await world.stop_after("12:01")
    assert len(world.calls) == failures + 1
    assert world.calls[1] == ("a", "12:00:00")


async def test_zero_delay_does_not_starve_others(same_store: StoreFactory) -> None:
    """A task that always fails with no delay lets time pass and others run."""
    world = World(same_store, "12:00:00")
    always = world.task("always", "0 12 * * *", outcomes=[BROKEN] * 100_000, delay=timedelta(0))
    await world.begin(always, world.task("other", "* * * * *"))
    await world.stop_after("12:03")
    assert world.calls_of("other") == ["12:00:00", "12:01:00", "12:02:00", "12:03:00"]
    assert 100 < len(world.calls_of("always")) < 400


async def test_endless_delay_is_legal(same_store: StoreFactory) -> None:
    """The longest delay there is means no retry, and is stored and compared like any other."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", outcomes=[BROKEN], delay=timedelta.max)
    await world.begin(task)
    await world.clock.advance(HOUR)
    await world.scheduler.stop()
    await world.begin(task)
    await world.scheduler.stop()
    assert world.calls_of("a") == ["12:00:00"]
    assert [name for name, _ in world.told("TaskPreserved", "TaskOverridden")] == ["TaskPreserved"]


async def test_failed_event_says_when_the_retry_is(same_store: StoreFactory) -> None:
    """TaskRunFailed carries the error and the time of the next retry."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", outcomes=[BROKEN], lasts=timedelta(seconds=2)))
    await world.clock.advance(MINUTE)
    ((_, fields),) = world.told("TaskRunFailed")
    assert fields == {
        "taskName": "a",
        "duration": 2000,
        "success": False,
        "error": "ValueError: broken",
        "nextRetryAt": "2026-01-01T12:05:02+00:00",
    }
    await world.scheduler.stop()


async def test_run_timeout_counts_as_failure(same_store: StoreFactory) -> None:
    """A run over `run_timeout` is cancelled, fails, and is retried."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=HOUR), run_timeout=timedelta(seconds=30))
    await world.until("12:04")
    ((_, fields),) = world.told("TaskRunFailed")
    assert (fields["duration"], fields["nextRetryAt"]) == (30_000, "2026-01-01T12:05:30+00:00")
    assert "run_timeout" in fields["error"]
    await world.until("12:05:30")
    assert world.calls_of("a") == ["12:00:00", "12:05:30"]
    await world.crash()


async def test_timed_out_run_that_returns_all_the_same_has_failed(same_store: StoreFactory) -> None:
    """A callback that swallows its cancellation does not turn a timed-out run into a success."""
    world = World(same_store, "12:00:00")

    async def stubborn() -> None:
        try:
            await world.clock.sleep_until(datetime_at(2**52, world.zone))
        except BaseException:
            return

    await world.begin(("a", "0 12 * * *", stubborn, HOUR), run_timeout=timedelta(seconds=30))
    await world.until("12:01")
    assert len(world.told("TaskRunFailed")) == 1
    assert world.told("TaskRunCompleted") == []
    await world.scheduler.stop()
