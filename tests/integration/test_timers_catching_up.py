"""Catch-up: what was missed while the supervisor was down, asleep or cut off (spec/timers.md 5.3)."""

import asyncio
from datetime import timedelta

from duly.errors import StoreError
from tests.worlds.timers import (
    DAY,
    HOUR,
    HOURLY,
    MINUTE,
    MINUTELY,
    SECOND,
    FailingRepository,
    TimerWorld,
    daily,
    timer,
)

DAILY = timer(on_calendar=daily(3))


async def test_a_new_timer_owes_nothing() -> None:
    """A timer registered for the first time owes nothing from before, not even of this minute."""
    world = TimerWorld("03:00:00")
    await world.begin(DAILY)
    await world.until("23:00:00")
    assert world.runs() == []
    assert world.misses == []
    assert world.next_run() == "02 03:00:00"


async def test_a_missed_slot_is_caught_up_with_once() -> None:
    """A slot missed while down gives one run at the next start, and the schedule goes on from there."""
    world = TimerWorld("00:30:00")
    await world.begin(DAILY)
    await world.stop()
    await world.until("09:00:00")
    await world.begin(DAILY)
    await world.after(DAY)
    assert world.runs() == [("01 09:00:00", "catch-up"), ("02 03:00:00", "schedule")]
    assert world.misses == []


async def test_three_days_off_are_caught_up_with_by_the_latest_slot() -> None:
    """Fault: a daily job not caught up after three days off because only the oldest slot was looked at."""
    world = TimerWorld("00:30:00")
    await world.begin(DAILY)
    await world.stop()
    await world.until("2026-01-04 09:00:00")
    await world.begin(DAILY)
    assert world.runs() == [("04 09:00:00", "catch-up")]
    (fired,) = world.told("TimerFired")
    assert fired["scheduledTime"] == "2026-01-04T03:00:00+00:00"


async def test_catch_up_and_schedule_are_one_run() -> None:
    """Fault: catch-up and schedule both firing. A start right after a slot gives one run, for both."""
    world = TimerWorld("00:30:00")
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    await world.crash()
    await world.until("09:00:00")
    await world.begin(definition)
    await world.until("09:50:00")
    assert world.runs() == [("01 09:00:00", "schedule")]
    await world.stop()
    await world.until("11:59:59")
    await world.begin(definition)
    await world.until("12:30:00")
    assert world.runs() == [("01 11:59:59", "catch-up"), ("01 12:00:00", "schedule")]


async def test_a_slot_is_late_after_a_minute() -> None:
    """Up to a minute late is on time; beyond that it is a catch-up."""
    for late, reason in ((60, "schedule"), (61, "catch-up")):
        world = TimerWorld("02:30:00")
        await world.begin(DAILY)
        await world.stop()
        await world.until("03:00:00")
        await world.after(late * SECOND)
        await world.begin(DAILY)
        assert [why for _, why in world.runs()] == [reason]


async def test_outside_the_window_it_is_missed() -> None:
    """A slot longer ago than the window is recorded as missed by the shutdown, and not run."""
    for window, ran in ((6 * 3600, 1), (6 * 3600 - 1, 0), (0, 0)):
        world = TimerWorld("02:30:00")
        definition = timer(on_calendar=daily(3), catch_up_window_sec=window)
        await world.begin(definition)
        await world.stop()
        await world.until("09:00:00")
        await world.begin(definition)
        assert len(world.runs()) == ran
        assert world.misses == ([] if ran else [("t", "01 03:00:00", "shutdown")])


async def test_a_timer_that_is_not_persistent_does_not_catch_up() -> None:
    """A timer that is not persistent misses what came while down, once, and goes on."""
    world = TimerWorld("02:30:00")
    definition = timer(on_calendar=daily(3), persistent=False)
    await world.begin(definition)
    await world.stop()
    await world.until("2026-01-04 09:00:00")
    await world.begin(definition)
    await world.after(DAY)
    assert world.runs() == [("05 03:00:00", "schedule")]
    assert world.misses == [("t", "04 03:00:00", "shutdown")]


async def test_a_disabled_timer_does_not_catch_up() -> None:
    """A timer that is disabled has nothing made up for, also not when it is enabled later."""
    world = TimerWorld("02:30:00")
    timers = await world.begin(DAILY)
    await timers.disable("t")
    await world.stop()
    await world.until("09:00:00")
    timers = await world.begin(DAILY)
    await timers.enable("t")
    await world.until("23:00:00")
    assert world.runs() == []
    assert world.misses == [("t", "01 03:00:00", "disabled")]


async def test_catch_up_needs_a_target_that_is_free() -> None:
    """A catch-up that finds its target active is an overlap, and not tried again."""
    world = TimerWorld("02:30:00")
    await world.begin(DAILY)
    await world.stop()
    await world.until("09:00:00")
    world.targets.lasts["job"] = HOUR
    await world.targets.by_hand("job")
    await world.begin(DAILY)
    await world.until("23:00:00")
    assert [why for _, why in world.runs()] == ["manual"]
    assert world.misses == [("t", "01 03:00:00", "overlap")]


async def test_a_run_cut_off_by_a_crash_is_caught_up_with() -> None:
    """A run that a crash cut off counts as missed: one run at the next start."""
    world = TimerWorld("02:59:00")
    world.targets.lasts["job"] = HOUR
    await world.begin(DAILY)
    await world.until("03:10:00")
    await world.crash()
    await world.until("03:20:00")
    await world.begin(DAILY)
    assert world.runs() == [("01 03:00:00", "schedule"), ("01 03:20:00", "catch-up")]
    await world.until("23:00:00")
    assert world.runs() == []
    assert world.state().last_result == "success"


async def test_a_run_cut_off_by_our_shutdown_is_caught_up_with() -> None:
    """A run that our own shutdown cut off is caught up with in the same way."""
    world = TimerWorld("02:59:00")
    world.targets.lasts["job"] = HOUR
    await world.begin(DAILY)
    await world.until("03:10:00")
    await world.stop()
    assert world.told("TimerRunEnded")[-1]["result"] == "interrupted"
    await world.begin(DAILY)
    assert world.runs() == [("01 03:00:00", "schedule"), ("01 03:10:00", "catch-up")]


async def test_a_run_cut_off_and_a_missed_slot_are_one_run() -> None:
    """A run cut off, and slots missed besides, give one catch-up."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"] = 10 * MINUTE
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    await world.until("13:05:00")
    await world.crash()
    await world.until("15:30:00")
    await world.begin(definition)
    await world.until("15:59:00")
    assert world.runs() == [("01 13:00:00", "schedule"), ("01 15:30:00", "catch-up")]
    assert world.misses == []


async def test_a_run_cut_off_too_long_ago_is_missed() -> None:
    """A run whose start is outside the window is not made up: it is a miss, recorded once."""
    world = TimerWorld("02:59:00")
    world.targets.lasts["job"] = HOUR
    definition = timer(on_calendar=daily(3), catch_up_window_sec=60)
    await world.begin(definition)
    await world.until("03:10:00")
    await world.crash()
    for _ in range(2):
        await world.begin(definition)
        await world.crash()
    assert len(world.runs()) == 1
    assert world.misses == [("t", "01 03:00:00", "shutdown")]


async def test_the_process_may_die_between_the_end_and_its_record() -> None:
    """A run whose end the history knows is not made up, though the timer's row still says it runs."""
    world = TimerWorld("02:59:00")
    world.targets.lasts["job"] = HOUR
    await world.begin(DAILY)
    await world.until("03:10:00")
    records = dict(world.repository.records)
    await world.until("04:10:00")
    await world.crash()
    world.repository.records = records
    await world.begin(DAILY)
    assert world.runs() == [("01 03:00:00", "schedule")]
    assert world.state().running_run is None
    assert (world.state().last_exit, world.state().last_result) == (None, None)


async def test_crashes_in_a_row_give_one_run_each() -> None:
    """A supervisor that dies during each catch-up starts one run per start, never two."""
    world = TimerWorld("02:59:00")
    world.targets.lasts["job"] = HOUR
    await world.begin(DAILY)
    await world.until("03:01:00")
    for _ in range(3):
        await world.crash()
        await world.begin(DAILY)
        await world.after(MINUTE)
    assert [why for _, why in world.runs()] == ["schedule", "catch-up", "catch-up", "catch-up"]


async def test_a_slot_while_stopping_is_missed_and_made_up_by_the_next_start() -> None:
    """A slot that comes while the supervisor stops is missed by the shutdown; the next start catches up."""
    world = TimerWorld("02:59:50")
    world.targets.lasts["other"] = HOUR
    definitions = (
        DAILY,
        timer("o", "other", on_startup_sec=1),
        timer("n", on_calendar=daily(3), persistent=False),
    )
    await world.begin(*definitions)
    await world.until("02:59:55")
    world.targets.is_stopping = True
    closing = asyncio.ensure_future(world.timers.close())
    await world.until("03:00:20")
    assert not closing.done()
    assert world.misses == [("t", "01 03:00:00", "shutdown"), ("n", "01 03:00:00", "shutdown")]
    await world.stop()
    await closing
    await world.until("03:30:00")
    world.runs("other")
    await world.begin(*definitions)
    assert world.runs() == [("01 03:30:00", "catch-up")]
    assert world.runs("other")[0] == ("01 03:30:00", "catch-up")
    assert len(world.misses) == 2, "no miss is told twice"


async def test_nothing_starts_while_stopping() -> None:
    """Intervals, retries and start-up triggers that come while the supervisor stops start nothing."""
    world = TimerWorld("12:00:00")
    world.targets.lasts["other"] = HOUR
    await world.begin(
        timer("o", "other", on_startup_sec=1),
        timer("s", on_startup_sec=60),
        timer("i", on_unit_active_sec=30),
    )
    await world.targets.by_hand("job")
    await world.until("12:00:10")
    closing = asyncio.ensure_future(world.timers.close())
    await world.until("12:10:00")
    assert [why for _, why in world.runs()] == ["manual"]
    assert world.misses == [("s", "01 12:01:00", "shutdown")]
    await world.stop()
    await closing


async def test_a_store_that_could_not_write_for_hours() -> None:
    """A slot that comes while the store cannot write is caught up with when it can, once."""
    repository = FailingRepository()
    world = TimerWorld("12:30:00", repository=repository)
    await world.begin(timer(on_calendar=HOURLY))
    repository.is_broken = True
    await world.until("15:30:00")
    assert world.runs() == []
    repository.is_broken = False
    await world.until("16:30:00")
    assert [why for _, why in world.runs()] == ["catch-up", "schedule"]
    assert len(world.told("StoreFault")) == 1


async def test_switching_is_undone_when_it_cannot_be_written() -> None:
    """A switch that the store cannot keep raises, and the timer is as it was."""
    repository = FailingRepository()
    world = TimerWorld("12:30:00", repository=repository)
    timers = await world.begin(timer(on_calendar=HOURLY))
    repository.is_broken = True
    for act in (timers.disable, timers.trigger):
        try:
            await act("t")
        except StoreError:
            continue
        raise AssertionError("nothing can be written")
    repository.is_broken = False
    await world.until("13:00:00")
    assert world.runs() == [("01 13:00:00", "schedule")]


async def test_a_minutely_timer_after_a_long_outage() -> None:
    """A timer with a slot each minute fires once after an outage of months, for the minute it is."""
    world = TimerWorld("12:00:30")
    definition = timer(on_calendar=MINUTELY, persistent=False)
    await world.begin(definition)
    await world.crash()
    await world.after(timedelta(days=100))
    await world.begin(definition)
    assert len(world.runs()) == 1
    assert world.misses == []


async def test_what_is_owed_and_cannot_be_written_is_next() -> None:
    """While the store fails, a run that is owed from before is shown as coming now, not as long ago."""
    repository = FailingRepository()
    world = TimerWorld("12:59:30", repository=repository)
    world.targets.lasts["job"] = HOUR
    await world.begin(timer(on_calendar=HOURLY))
    await world.until("13:00:10")
    await world.crash()
    opening = asyncio.ensure_future(world.open(timer(on_calendar=HOURLY)))
    world.events.clear()
    while not repository.is_broken:
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
        repository.is_broken = world.told("PollingStarted") != []
    await opening
    assert world.state().interrupted
    assert world.next_run() == "01 13:00:10"
