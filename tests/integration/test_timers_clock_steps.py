"""Clock steps and suspend: slots are civil time, other triggers are lengths of time (spec/timers.md 3.5)."""

import asyncio
from datetime import timedelta

import pytest

from duly.instant import SECOND_US, Instant, datetime_at, instant_of
from tests.worlds.timers import (
    DAY,
    EXIT,
    HOUR,
    HOURLY,
    MINUTE,
    MINUTELY,
    SECOND,
    SUCCESS,
    HeldRepository,
    TimerWorld,
    daily,
    timer,
)


async def test_slots_jumped_over_are_caught_up_with_once() -> None:
    """A forward jump, or a suspended host, over several slots gives one catch-up."""
    world = TimerWorld("12:30:00")
    await world.begin(timer(on_calendar=HOURLY), timer("n", "other", on_calendar=HOURLY, persistent=False))
    world.clock.step(5 * HOUR)
    await world.rest()
    assert world.runs() == [("01 17:30:00", "catch-up")]
    assert world.runs("other") == []
    assert world.misses == [("n", "01 17:00:00", "shutdown")]
    await world.until("18:30:00")
    assert world.runs() == [("01 18:00:00", "schedule")]


async def test_a_jump_beyond_the_window_is_missed() -> None:
    """A jump of days makes a daily slot beyond a short window a miss."""
    world = TimerWorld("12:30:00")
    await world.begin(timer(on_calendar=daily(13), catch_up_window_sec=3600))
    world.clock.step(2 * DAY + 4 * HOUR)
    await world.rest()
    assert world.runs() == []
    assert world.misses == [("t", "03 13:00:00", "shutdown")]


async def test_a_small_step_back_repeats_no_slot() -> None:
    """A slot that comes a second time because the clock was set back by up to five minutes is not fired."""
    world = TimerWorld("12:58:30")
    await world.begin(timer(on_calendar=MINUTELY))
    await world.until("13:00:30")
    world.runs()
    world.clock.step(-5 * MINUTE)
    await world.until("13:02:30")
    assert world.runs() == [("01 13:01:00", "schedule"), ("01 13:02:00", "schedule")]


async def test_a_large_step_back_counts_afresh() -> None:
    """After a larger step back slots count from the new time: nobody waits for a mistaken future."""
    world = TimerWorld("12:30:00")
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    await world.until("13:30:00")
    world.clock.step(-6 * HOUR)
    await world.until("08:30:00")
    assert world.runs() == [
        ("01 13:00:00", "schedule"),
        ("01 08:00:00", "schedule"),
    ]


async def test_a_clock_set_back_while_down() -> None:
    """A row written under a clock far ahead does not make its timer wait for that time."""
    world = TimerWorld("12:30:00")
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    await world.stop()
    world.clock.step(-400 * DAY)
    await world.begin(definition)
    await world.after(HOUR)
    assert [why for _, why in world.runs()] == ["schedule"]


async def test_lengths_of_time_are_not_stretched_by_steps() -> None:
    """Start-up, interval and retry deadlines move with the clock, forward and back."""
    for step in (3 * HOUR, -3 * HOUR, -2 * MINUTE, 2 * MINUTE):
        world = TimerWorld("12:00:00")
        world.targets.states |= {"a": "idle", "b": "idle", "c": "idle"}
        world.targets.ends["b"] = [EXIT]
        await world.begin(
            timer("a", "a", on_startup_sec=600),
            timer("b", "b", on_startup_sec=1, retry_intervals_sec=(599,)),
            timer("c", "c", on_unit_active_sec=600),
        )
        await world.targets.by_hand("c")
        await world.after(2 * SECOND)
        for service in "bc":
            world.runs(service)
        world.clock.step(step)
        await world.after(597 * SECOND)
        assert world.targets.began == []
        await world.after(SECOND)
        assert sorted((item.service, item.reason) for item in world.targets.began) == [
            ("a", "startup"),
            ("b", "retry"),
            ("c", "interval"),
        ]


async def test_an_anchor_from_another_session_is_a_wall_time() -> None:
    """An interval that counts from before this start is not moved by a step: the time did pass."""
    world = TimerWorld("12:00:00")
    world.targets.last_ends["job"] = world.started_up_us
    await world.begin(timer(on_unit_active_sec=3600))
    world.clock.step(2 * HOUR)
    await world.rest()
    assert world.runs() == [("01 14:00:00", "interval")]


async def test_an_anchor_from_a_mistaken_future_is_not_waited_for() -> None:
    """An end recorded under a clock that was far ahead delays the interval by no more than itself."""
    world = TimerWorld("12:00:00")
    world.targets.last_ends["job"] = world.started_up_us + 400 * 86_400_000_000
    await world.begin(timer(on_unit_active_sec=600))
    await world.until("12:10:00")
    assert world.runs() == [("01 12:10:00", "interval")]


async def test_an_old_anchor_ahead_of_a_clock_set_back() -> None:
    """A step back far behind the last end of another session counts the interval from the new time."""
    world = TimerWorld("12:00:00")
    world.targets.last_ends["job"] = world.started_up_us
    await world.begin(timer(on_unit_active_sec=600))
    world.clock.step(-10 * HOUR)
    await world.until("02:10:00")
    assert world.runs() == [("01 02:10:00", "interval")]


async def test_a_step_while_the_switch_is_open_counts_for_later_declarations() -> None:
    """A start-up trigger added by a reload counts real time from start-up, whatever the clock did since."""
    world = TimerWorld("12:00:00")
    timers = await world.begin(timer("x", "other", on_calendar=daily(3)))
    world.clock.step(3 * HOUR)
    await world.after(MINUTE)
    await timers.reload([timer("x", "other", on_calendar=daily(3)), timer(on_startup_sec=600)])
    assert world.next_run() == "01 15:10:00"


async def test_a_slot_during_suspend_with_the_target_running() -> None:
    """A run that goes on through a suspend makes the slot slept over an overlap."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"] = 10 * HOUR
    await world.begin(timer(on_calendar=HOURLY))
    await world.until("13:30:00")
    world.clock.step(timedelta(hours=3))
    await world.rest()
    assert world.misses == [("t", "01 16:00:00", "overlap")]


async def test_a_run_by_hand_after_a_step_back_brings_no_slot_again() -> None:
    """A firing under a clock that was set back a little does not make earlier slots unanswered."""
    world = TimerWorld("12:59:30")
    timers = await world.begin(timer(on_calendar=HOURLY))
    await world.until("13:00:30")
    world.clock.step(-2 * MINUTE)
    await timers.trigger("t")
    await world.until("13:30:00")
    assert [why for _, why in world.runs()] == ["schedule", "trigger"]
    assert world.misses == []


@pytest.mark.parametrize("by", [3 * HOUR, -3 * HOUR])
async def test_a_run_that_ends_in_the_moment_of_a_step(by: timedelta) -> None:
    """What counts from an end that the new clock has seen is not moved a second time by that step."""
    repository = HeldRepository()
    world = TimerWorld("12:59:30", repository=repository)
    world.targets.lasts["job"] = world.targets.lasts["other"] = DAY
    await world.begin(
        timer("own", on_calendar=daily(13), retry_intervals_sec=(600,)),
        timer("foreign", "other", on_unit_active_sec=600),
    )
    await world.targets.by_hand("other")
    await world.until("13:00:10")
    repository.is_free.clear()
    disabling = asyncio.ensure_future(world.timers.disable("foreign"))  # a write that takes its time
    await world.rest()
    world.clock.step(by)
    world.targets.end("job", EXIT)
    world.targets.end("other", SUCCESS)
    await world.rest()
    repository.is_free.set()
    await disabling
    await world.timers.enable("foreign")
    now_us = instant_of(world.clock.now())
    deadlines = world.state("own").retry_at_us, world.next_run_us("foreign")
    assert deadlines == (now_us + 600 * SECOND_US,) * 2
    assert world.told("TimerRetryScheduled")[0]["retryAt"] == at_of(world, now_us + 600 * SECOND_US)


def at_of(world: TimerWorld, instant_us: Instant) -> str:
    """An instant as events tell it."""
    return datetime_at(instant_us, world.zone).isoformat()
