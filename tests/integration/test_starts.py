"""What makes a task run (spec/scheduler.md 3): dues, startup, what is missed, what stands while running."""

import asyncio
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from duly import in_thread
from tests.worlds.scheduler import HOUR, MINUTE, World, at
from tests.worlds.stores import StoreFactory


async def test_due_minute_starts_a_run(same_store: StoreFactory) -> None:
    """A task starts at the first instant of each minute that its expression names."""
    world = World(same_store)
    await world.begin(world.task("a", "5,10 * * * *"))
    await world.until("13:05")
    assert world.calls_of("a") == ["12:05:00", "12:10:00", "13:05:00"]
    await world.scheduler.stop()


async def test_not_before_its_time(same_store: StoreFactory) -> None:
    """A microsecond before its minute a task has not started."""
    world = World(same_store)
    await world.begin(world.task("a", "5 * * * *"))
    await world.clock.advance_to(at("12:05") - timedelta(microseconds=1))
    assert world.calls == []
    await world.clock.advance(timedelta(microseconds=1))
    assert world.calls == [("a", "12:05:00")]
    await world.scheduler.stop()


async def test_new_task_matching_the_current_minute_starts_at_once(same_store: StoreFactory) -> None:
    """Of new tasks exactly those that match the running minute start at once, and only once for it."""
    world = World(same_store, "12:00:30")
    await world.begin(world.task("now", "0 12 * * *"), world.task("later", "1 12 * * *"))
    assert world.calls == [("now", "12:00:30")]
    await world.until("12:10")
    assert world.calls == [("now", "12:00:30"), ("later", "12:01:00")]
    await world.scheduler.stop()


async def test_task_added_to_an_old_store_follows_the_first_startup_rule(same_store: StoreFactory) -> None:
    """First startup is decided per task: a new one in an old store runs only if the minute matches."""
    world = World(same_store)
    old = world.task("old", "0 3 * * *")
    await world.begin(old)
    await world.scheduler.stop()
    await world.begin(old, world.task("matching", "0 12 * * *"), world.task("not", "30 12 * * *"))
    assert world.calls == [("matching", "12:00:30")]
    await world.scheduler.stop()


async def test_second_showing_of_a_minute_is_no_match_at_startup(same_store: StoreFactory) -> None:
    """A new task does not start in a civil minute that the clock shows for the second time."""
    berlin = ZoneInfo("Europe/Berlin")
    # 2026-10-25: 02:30 CEST (00:30 UTC), then 02:30 CET (01:30 UTC)
    world = World(same_store, at("2026-10-25 02:30:10", berlin).replace(fold=1), berlin)
    await world.begin(world.task("a", "30 2 * * *"))
    assert world.calls == []
    await world.scheduler.stop()


async def test_first_showing_of_a_minute_is_a_match_at_startup(same_store: StoreFactory) -> None:
    """A new task does start in a civil minute that the clock shows for the first of two times."""
    berlin = ZoneInfo("Europe/Berlin")
    world = World(same_store, "2026-10-25 02:30:10", berlin)
    await world.begin(world.task("a", "30 2 * * *"))
    assert world.calls == [("a", "02:30:10")]
    await world.scheduler.stop()


async def test_missed_dues_give_one_run(same_store: StoreFactory) -> None:
    """However many dues pass while no scheduler is up, the next one starts the task once."""
    world = World(same_store)
    task = world.task("a", "0,10,20,30,40,50 * * * *")
    await world.begin(task)
    await world.scheduler.stop()
    world.calls.clear()
    await world.until("13:05")
    assert world.calls == []
    await world.begin(task)
    assert world.calls == [("a", "13:05:00")]
    await world.until("13:10")
    assert world.calls_of("a") == ["13:05:00", "13:10:00"]
    await world.scheduler.stop()


async def test_nothing_missed_means_no_run(same_store: StoreFactory) -> None:
    """A restart in which no due was missed starts nothing, even in the very minute of the last run."""
    world = World(same_store)
    task = world.task("a", "0 * * * *")
    await world.begin(task)
    assert world.calls == [("a", "12:00:30")]
    await world.scheduler.stop()
    await world.begin(task)
    await world.clock.advance(MINUTE)
    assert len(world.calls) == 1
    await world.scheduler.stop()


async def test_ten_years_down_is_one_run(same_store: StoreFactory) -> None:
    """A host that slept for ten years runs a minutely task once when it comes back."""
    world = World(same_store)
    task = world.task("a", "* * * * *")
    await world.begin(task)
    await world.scheduler.stop()
    await world.clock.advance(timedelta(days=3653))
    world.calls.clear()
    await world.begin(task)
    assert len(world.calls) == 1
    await world.scheduler.stop()


async def test_due_while_running_starts_right_after(same_store: StoreFactory) -> None:
    """Dues that begin during a run give one start, right after it ends, and no run overlaps another."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", "* * * * *", lasts=timedelta(minutes=2, seconds=30)))
    await world.until("12:06")
    # 12:00:00-12:02:30 covers 12:01 and 12:02; 12:02:30-12:05:00 covers 12:03, 12:04 and the due at its end
    assert world.calls_of("a") == ["12:00:00", "12:02:30", "12:05:00"]
    await world.stop()


async def test_tasks_due_together_run_in_parallel(same_store: StoreFactory) -> None:
    """Tasks of one minute start together; one that hangs or fails delays no other."""
    world = World(same_store)
    hang = world.task("hang", "1 * * * *", lasts=timedelta(days=365))
    fail = world.task("fail", "1 * * * *", outcomes=[ValueError("no")])
    many = [world.task(f"t{n}", "1,2 * * * *") for n in range(50)]
    await world.begin(hang, fail, *many)
    await world.until("12:02")
    assert sorted(set(world.calls)) == sorted(
        {
            ("hang", "12:01:00"),
            ("fail", "12:01:00"),
            *((f"t{n}", f"12:0{m}:00") for n in range(50) for m in (1, 2)),
        }
    )
    assert len(world.calls) == 102
    await world.crash()


@pytest.mark.parametrize("how", ["await", "task", "gather"])
async def test_initialize_returns_before_the_first_callback(same_store: StoreFactory, how: str) -> None:
    """When `initialize` returns, the first time and later, no callback of its list has been called yet."""
    world = World(same_store)

    async def initialize(name: str) -> list[tuple[str, str]]:
        await world.scheduler.initialize([world.task(name)])
        return list(world.calls)

    for name in ("first", "second"):
        world.calls.clear()
        if how == "await":
            calls = await initialize(name)
        elif how == "task":
            calls = await asyncio.create_task(initialize(name))
        else:
            (calls,) = await asyncio.gather(initialize(name))
        assert calls == []
        await world.rest()
        assert world.calls == [(name, "12:00:30")]
    await world.scheduler.stop()


async def test_first_showing_only_through_a_fall_back(same_store: StoreFactory) -> None:
    """Through the night the clocks go back, each civil minute is run once, when it is first shown."""
    berlin = ZoneInfo("Europe/Berlin")
    world = World(same_store, "2026-10-25 01:59:30", berlin)
    await world.begin(world.task("a", "0,30 * * * *"), world.task("minutely", "* * * * *"))
    await world.clock.advance(3 * HOUR + MINUTE)  # to 04:00:30 CET
    # 02:00 CEST, 02:30 CEST, (02:00 and 02:30 CET are second showings), 03:00 CET, 03:30 CET, 04:00 CET
    assert world.calls_of("a") == ["02:00:00", "02:30:00", "03:00:00", "03:30:00", "04:00:00"]
    assert len(world.calls_of("minutely")) == 1 + 60 + 60 + 1  # 01:59, 02:00-02:59 once, 03:00-03:59, 04:00
    await world.scheduler.stop()


async def test_skipped_minutes_never_run(same_store: StoreFactory) -> None:
    """A minute that the clocks skip in spring does not occur that day, nor is it made up for."""
    berlin = ZoneInfo("Europe/Berlin")
    world = World(same_store, "2026-03-29 01:00:30", berlin)
    await world.begin(world.task("a", "30 2 * * *"))
    await world.clock.advance(timedelta(hours=24))
    assert world.calls == []
    await world.clock.advance(timedelta(hours=1))
    assert world.calls == [("a", "02:30:00")]
    await world.scheduler.stop()


async def test_blocking_function_in_a_thread(same_store: StoreFactory) -> None:
    """A blocking function wrapped in `in_thread` runs and is waited for."""
    world = World(same_store)
    seen: list[int] = []
    await world.begin(("a", "* * * * *", in_thread(lambda: seen.append(1)), MINUTE))
    await world.clock.advance(MINUTE)
    assert seen == [1, 1]
    assert len(world.told("TaskRunCompleted")) == 2
    await world.scheduler.stop()


async def test_polling_only_with_tasks(same_store: StoreFactory) -> None:
    """Polling runs only while at least one task is registered."""
    world = World(same_store)
    await world.begin()
    assert world.told("PollingStarted") == []
    await world.scheduler.initialize([world.task("a")])
    await world.scheduler.initialize([])
    await world.scheduler.stop()
    polling = [name for name, _ in world.told("PollingStarted", "PollingStopRequested", "PollingStopped")]
    assert polling == ["PollingStarted", "PollingStopRequested", "PollingStopped"]


async def test_only_wakes_for_a_reason(same_store: StoreFactory) -> None:
    """A scheduler whose next due is a year away is not woken before it, virtual minutes or not."""
    world = World(same_store)
    await world.begin(world.task("a", "0 0 1 1 *"))
    world.events.clear()
    await world.clock.advance(timedelta(days=300))
    assert world.events == []
    await world.scheduler.stop()


async def test_limit_on_concurrent_runs(same_store: StoreFactory) -> None:
    """With a limit no more runs than that are in flight, and all get their turn."""
    world = World(same_store, "12:00:00")
    running, most = 0, 0

    async def callback() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await world.clock.sleep_until(world.clock.now() + timedelta(seconds=1))
        running -= 1
        world.calls.append(("x", ""))

    await world.begin(*[(f"t{n}", "* * * * *", callback, MINUTE) for n in range(10)], max_concurrent_runs=3)
    await world.clock.advance(timedelta(seconds=30))
    assert (most, len(world.calls)) == (3, 10)
    await world.scheduler.stop()


async def test_tasks_that_never_yield_do_not_block_each_other(same_store: StoreFactory) -> None:
    """Callbacks that end without ever waiting all run in the minute they are due."""
    world = World(same_store)
    await world.begin(*[world.task(f"t{n}", "1 * * * *") for n in range(200)])
    await world.until("12:01")
    assert len(world.calls) == 200
    assert {when for _, when in world.calls} == {"12:01:00"}
    await asyncio.wait_for(world.scheduler.stop(), 60)
