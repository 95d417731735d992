"""A wall clock that jumps (spec/scheduler.md 2.4)."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from duly import Scheduler, StoreError
from duly.clock import HostClock
from duly.testing import VirtualClock
from tests.worlds.scheduler import HOUR, MINUTE, World
from tests.worlds.stores import StoreFactory, hooked

BROKEN = ValueError("broken")


async def test_forward_jump_runs_each_missed_task_once(same_store: StoreFactory) -> None:
    """After a jump forward over many dues each missed task runs once, within a minute."""
    world = World(same_store)
    await world.begin(
        world.task("minutely"), world.task("hourly", "0 * * * *"), world.task("no", "0 3 * * *")
    )
    world.calls.clear()
    world.clock.step(timedelta(hours=5))
    await world.clock.advance(timedelta(seconds=29))
    assert sorted(world.calls) == [("hourly", "17:00:30"), ("minutely", "17:00:30")]
    ((_, fields),) = world.told("ClockStepped")
    assert fields == {"before": "2026-01-01T12:00:30+00:00", "after": "2026-01-01T17:00:30+00:00"}
    await world.scheduler.stop()


async def test_host_that_slept_for_a_year(same_store: StoreFactory) -> None:
    """A year asleep gives one run of each task."""
    world = World(same_store)
    await world.begin(world.task("minutely"))
    world.calls.clear()
    world.clock.step(timedelta(days=365))
    await world.clock.advance(timedelta(seconds=29))
    assert len(world.calls) == 1
    await world.scheduler.stop()


async def test_small_step_back_runs_no_minute_twice(same_store: StoreFactory) -> None:
    """After a step back of up to five minutes the minutes seen again start nothing."""
    world = World(same_store, "12:10:00")
    await world.begin(world.task("a"))
    world.clock.step(-timedelta(minutes=5))
    await world.until("12:12")
    assert world.calls_of("a") == ["12:10:00", "12:11:00", "12:12:00"]
    assert len(world.told("ClockStepped")) == 1
    await world.scheduler.stop()


async def test_several_small_steps_back(same_store: StoreFactory) -> None:
    """Each small step back is judged by itself: no minute comes twice."""
    world = World(same_store, "12:10:00")
    await world.begin(world.task("a"))
    for _ in range(3):
        world.clock.step(-timedelta(minutes=4))
        await world.clock.advance(timedelta(seconds=30))
    await world.until("12:12")
    assert world.calls_of("a") == ["12:10:00", "12:11:00", "12:12:00"]
    await world.scheduler.stop()


async def test_large_step_back_counts_afresh(same_store: StoreFactory) -> None:
    """After a larger step back dues count from the new time: nobody waits for a mistaken future."""
    world = World(same_store, "12:00:30")
    await world.begin(world.task("a", "0,30 * * * *"))
    world.calls.clear()
    world.clock.step(-timedelta(hours=6))
    await world.until("07:00")
    assert world.calls_of("a") == ["06:30:00", "07:00:00"]
    await world.scheduler.stop()


async def test_large_step_back_survives_a_restart(same_store: StoreFactory) -> None:
    """What was counted again stays so in the store."""
    world = World(same_store, "12:00:30")
    task = world.task("a", "0,30 * * * *")
    await world.begin(task)
    world.clock.step(-timedelta(hours=6))
    await world.rest()
    await world.crash()
    world.calls.clear()
    await world.begin(task)
    await world.until("07:00")
    assert world.calls_of("a") == ["06:30:00", "07:00:00"]
    await world.scheduler.stop()


async def test_clock_set_back_while_down(same_store: StoreFactory) -> None:
    """A store written under a clock that was far ahead does not make tasks wait for that time."""
    world = World(same_store, "12:00:30")
    task = world.task("a", "0,30 * * * *")
    await world.begin(task)
    await world.scheduler.stop()
    world.calls.clear()
    world.clock.step(-timedelta(days=400))
    await world.begin(task)
    await world.clock.advance(HOUR)
    assert len(world.calls) == 2
    await world.scheduler.stop()


async def test_retry_after_a_large_step_back(same_store: StoreFactory) -> None:
    """A retry pending when the clock is set back comes after no more than its delay."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", outcomes=[BROKEN]))
    world.clock.step(-timedelta(hours=6))
    await world.clock.advance(timedelta(minutes=5))
    assert world.calls_of("a") == ["12:00:00", "06:05:00"]
    await world.scheduler.stop()


async def test_duration_is_never_negative(same_store: StoreFactory) -> None:
    """A run during which the clock is set back lasted no less than nothing."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=timedelta(seconds=5)))
    world.clock.step(-timedelta(minutes=2))
    await world.clock.advance(timedelta(minutes=3))
    assert [fields["duration"] for _, fields in world.told("TaskRunCompleted")] == [5000]
    await world.scheduler.stop()


async def test_step_does_not_use_up_a_run_timeout(same_store: StoreFactory) -> None:
    """A time limit is a length of time: a jump of the wall clock does not use it up."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=2 * HOUR), run_timeout=timedelta(minutes=10))
    world.clock.step(HOUR)
    await world.clock.advance(timedelta(minutes=9))
    assert world.told("TaskRunFailed") == []
    await world.clock.advance(MINUTE)
    assert len(world.told("TaskRunFailed")) == 1
    await world.scheduler.stop()


class PlainClock:
    """A user's clock: it tells the time and sleeps, no more."""

    def __init__(self, inner: VirtualClock) -> None:
        self.inner = inner

    def now(self) -> datetime:
        """The time."""
        return self.inner.now()

    async def sleep_until(self, moment: datetime) -> None:
        """Sleep, in real lengths: what was asked for when the sleep began."""
        await self.inner.sleep_until(moment)


async def test_users_clock_with_two_methods_is_enough(same_store: StoreFactory) -> None:
    """A clock that only tells the time and sleeps drives a scheduler, and steps forward are made up for."""
    inner = VirtualClock(datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC))
    calls: list[str] = []

    async def callback() -> None:
        calls.append(f"{inner.now():%H:%M:%S}")

    scheduler = Scheduler(same_store(), clock=PlainClock(inner), timezone=UTC)
    await scheduler.initialize([("a", "* * * * *", callback, MINUTE)])
    await inner.advance(MINUTE)
    inner.step(HOUR)
    await inner.advance(MINUTE)
    assert calls == ["12:00:30", "12:01:00", "13:01:30", "13:02:00"]
    await scheduler.stop()


async def test_host_clock_tells_time_in_utc() -> None:
    """The host's clock is aware, and sleeping until a past moment returns at once."""
    clock = HostClock()
    assert clock.now().tzinfo is UTC
    await clock.sleep_until(clock.now() - HOUR)


async def test_identical_list_after_small_steps_changes_nothing(same_store: StoreFactory) -> None:
    """Registering the same list again after several small steps back does not bring minutes a second time."""
    world = World(same_store, "12:10:00")
    task = world.task("a")
    await world.begin(task)
    for _ in range(2):
        world.clock.step(-timedelta(minutes=5))
        await world.rest()
    await world.scheduler.initialize([task])
    await world.until("12:11")
    assert world.calls_of("a") == ["12:10:00", "12:11:00"]
    await world.scheduler.stop()


async def test_due_that_stood_is_answered_after_a_small_step_back(same_store: StoreFactory) -> None:
    """A due that came during a run is answered right after it, though the clock was set back meanwhile."""
    world = World(same_store, "12:10:00")
    may_end = asyncio.Event()

    async def callback() -> None:
        world.calls.append(("a", f"{world.clock.now():%H:%M:%S}"))
        await may_end.wait()

    await world.begin(("a", "10,11,12 * * * *", callback, MINUTE))
    await world.until("12:11:05")
    world.clock.step(-timedelta(seconds=65))
    may_end.set()
    await world.until("12:13")
    assert world.calls_of("a") == ["12:10:00", "12:10:00", "12:12:00"]
    assert world.told("TaskRunStarted")[1][1]["scheduledTime"] == "2026-01-01T12:11:00+00:00"
    await world.scheduler.stop()


@pytest.mark.sqlite_only("in a cluster a due that nobody claimed comes again at its minute")
async def test_due_that_stood_survives_a_step_back_and_a_crash(same_store: StoreFactory) -> None:
    """What stood when the clock was set back is remembered over a crash."""
    faulty = hooked(same_store())
    world = World(lambda: faulty, "12:10:30")
    task = world.task("a", "11 * * * *")
    await world.begin(task)
    faulty.fail(StoreError(store="x", reason="is broken"))
    await world.until("12:11:30")
    world.clock.step(-timedelta(seconds=60))
    await world.rest()
    faulty.heal()
    world.scheduler._poller.is_closed = True  # so that nothing starts before the crash
    await world.clock.advance(timedelta(seconds=17))
    await world.crash()
    assert world.calls == []
    await world.begin(task)
    await world.until("12:30")
    assert world.calls_of("a") == ["12:10:47"]
    await world.scheduler.stop()


async def test_retry_that_had_come_stands_after_a_step_back(same_store: StoreFactory) -> None:
    """A retry that was due while the store could not write starts once it can, wherever the clock is."""
    faulty = hooked(same_store())
    world = World(lambda: faulty, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", outcomes=[BROKEN], delay=timedelta(seconds=30)))
    await world.until("12:00:10")
    faulty.fail(StoreError(store="x", reason="is broken"))
    await world.until("12:00:40")
    world.clock.step(-timedelta(minutes=3))
    faulty.heal()
    await world.clock.advance(timedelta(seconds=20))
    assert len(world.calls) == 2
    await world.scheduler.stop()


async def test_clock_set_back_while_a_start_is_written(same_store: StoreFactory) -> None:
    """A call that comes after a large step back answers what is due by then, once."""
    place, go_on = hooked(same_store()), asyncio.Event()
    world = World(lambda: place, "12:01:00")
    await world.begin(world.task("a", "0,5 * * * *"))
    place.before_save = go_on.wait
    await world.until("12:05")
    world.clock.step(-timedelta(seconds=302))
    await world.clock.advance(timedelta(seconds=4))
    go_on.set()
    await world.rest()
    assert world.calls == [("a", "12:00:02")]
    await world.until("12:04:59")
    assert len(world.calls) == 1
    await world.until("12:05")
    assert len(world.calls) == 2
    await world.scheduler.stop()
