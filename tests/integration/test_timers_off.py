"""The timer switch: once it closes, nothing of timers happens (spec/timers.md 7)."""

import asyncio
from typing import Any

import pytest

from duly.timers.record import MemoryTimerRepository
from duly.timers.requests import TimerError, TimerRefusal
from tests.worlds.timers import DAY, EXIT, HOUR, HOURLY, MINUTE, MINUTELY, SECOND, TimerWorld, daily, timer


async def test_a_closed_switch_fires_nothing() -> None:
    """After the switch was closed no slot, start-up trigger, interval or retry starts anything or is told."""
    world = TimerWorld("12:00:00")
    world.targets.ends["job"] = [EXIT]
    await world.begin(
        timer("a", on_startup_sec=1, retry_intervals_sec=(60,)),
        timer("b", "other", on_calendar=MINUTELY, on_unit_active_sec=10),
        timer("c", "other", on_startup_sec=600),
    )
    await world.until("12:01:30")
    world.targets.began.clear()
    world.timer_events()
    records = dict(world.repository.records)
    await world.shut()
    await world.after(DAY)
    assert world.targets.began == []
    assert world.timer_events() == []
    assert world.repository.records == records


async def test_wake_ups_are_cancelled_at_once() -> None:
    """Closing the switch cancels what sleeps, in the same turn of the loop."""
    world = TimerWorld("12:00:30")
    await world.begin(timer(on_calendar=MINUTELY))
    stopping = world.timers.stop()
    world.clock._now_us += 3600 * 1_000_000
    await stopping
    await world.after(HOUR)
    assert world.runs() == []
    assert world.clock._next_sleeper_us() is None


async def test_a_late_completion_does_not_leak_through_a_closed_switch() -> None:
    """Fault: late completion leaking through a closed switch. The run goes on; its end touches no timer."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"] = 10 * MINUTE
    world.targets.always["job"] = EXIT
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(30,)))
    await world.until("13:05:00")
    await world.shut()
    world.timer_events()
    records = dict(world.repository.records)
    assert "job" in world.targets.live, "a run in flight goes on as a run of its service"
    await world.until("14:30:00")
    assert "job" not in world.targets.live
    assert world.timer_events() == []
    assert world.repository.records == records
    assert len(world.runs()) == 1


async def test_an_end_in_the_same_moment_as_the_switch_does_not_leak() -> None:
    """An end that comes between the closing of the switch and the next turn of the loop is not recorded."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"] = HOUR
    await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(30,)))
    await world.until("13:05:00")
    world.timer_events()
    world.targets.hooks = []
    stopping = world.timers.stop()
    world.targets.end("job", EXIT)
    await stopping
    await world.after(HOUR)
    assert world.timer_events() == []
    (record,) = world.repository.records.values()
    assert record[14] is not None, "the row says what it said when the switch closed"


async def test_reopened_while_the_run_goes_on() -> None:
    """Off and on during a run: the run is no timer's any more, and its end is only an anchor."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"] = 30 * MINUTE
    world.targets.always["job"] = EXIT
    definition = timer(on_calendar=HOURLY, on_unit_active_sec=600, retry_intervals_sec=(30,))
    await world.begin(definition)
    await world.until("13:05:00")
    await world.shut()
    await world.open(definition)
    assert world.state().running_run is None
    assert not world.state().interrupted
    world.timer_events()
    await world.until("13:39:00")
    assert world.timer_events() == []
    assert (world.state().last_result, world.state().retry_at_us) == (None, None)
    await world.until("13:41:00")
    assert world.runs()[1:] == [("01 13:40:00", "interval")]


async def test_reopened_after_the_run_has_ended() -> None:
    """A run that ended while the switch was closed is not made up, however it ended."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"] = 10 * MINUTE
    world.targets.always["job"] = EXIT
    definition = timer(on_calendar=daily(13))
    await world.begin(definition)
    await world.until("13:05:00")
    await world.shut()
    await world.until("13:30:00")
    await world.open(definition)
    await world.until("20:00:00")
    assert world.runs() == [("01 13:00:00", "schedule")]
    assert world.misses == []


async def test_reopened_when_the_run_is_unknown() -> None:
    """A run that nobody knows of was interrupted, and is caught up with."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"] = 10 * MINUTE
    definition = timer(on_calendar=daily(13))
    await world.begin(definition)
    await world.until("13:05:00")
    await world.shut()
    await world.until("13:30:00")
    world.targets.outcomes.clear()
    await world.open(definition)
    assert world.runs()[1:] == [("01 13:30:00", "catch-up")]


async def test_startup_triggers_do_not_come_again() -> None:
    """A start-up trigger that fired, or passed while the switch was closed, stays silent on reopening."""
    world = TimerWorld("12:00:00")
    definitions = (
        timer("a", on_startup_sec=10),
        timer("b", on_startup_sec=600),
        timer("c", on_startup_sec=7200),
    )
    await world.begin(*definitions)
    await world.until("12:01:00")
    await world.shut()
    await world.until("13:00:00")
    await world.open(*definitions)
    await world.until("15:00:00")
    assert world.runs() == [("01 12:00:10", "startup"), ("01 14:00:00", "startup")]


async def test_slots_while_the_switch_was_closed() -> None:
    """Reopening is a start of the scheduler: the latest slot within the window is caught up with."""
    world = TimerWorld("12:30:00")
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    await world.shut()
    await world.until("15:30:00")
    await world.open(definition)
    assert world.runs() == [("01 15:30:00", "catch-up")]


class SlowRepository(MemoryTimerRepository):
    """A repository whose saves wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def replace(self, *, put: Any, removed: Any) -> None:
        """Write, once that is allowed."""
        await self.may_write.wait()
        await super().replace(put=put, removed=removed)

    async def save(self, timers: Any) -> None:
        """Save, once that is allowed."""
        await self.may_write.wait()
        await super().save(timers)


async def test_a_switch_closed_while_a_start_is_written() -> None:
    """A start that is being written when the switch closes is not carried out, and is owed still."""
    repository = SlowRepository()
    world = TimerWorld("12:59:00", repository=repository)
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    repository.may_write.clear()
    await world.until("13:00:00")
    stopping = asyncio.ensure_future(world.timers.stop())
    await world.rest()
    repository.may_write.set()
    await stopping
    assert world.runs() == []
    await world.until("13:00:30")
    await world.open(definition)
    assert world.runs() == [("01 13:00:30", "schedule")]


async def test_a_trigger_that_waits_is_refused_when_the_switch_closes() -> None:
    """Anyone who waits for a trigger when the switch closes is told, and does not wait for ever."""
    world = TimerWorld("12:30:00")
    timers = await world.begin(timer(on_calendar=HOURLY))
    timers._poller.hold()
    asking = asyncio.ensure_future(timers.trigger("t"))
    await world.after(SECOND)
    await world.shut()
    with pytest.raises(TimerError) as refused:
        await asking
    assert refused.value.kind is TimerRefusal.OFF
    with pytest.raises(TimerError):
        await timers.trigger("t")


async def test_a_closed_switch_with_a_run_being_called() -> None:
    """A run that was written and not yet called when the switch closes is called off, and is owed still."""
    world = TimerWorld("12:59:00")
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    begin = world.timers._poller.runs.begin
    stopping: list[Any] = []

    def closing(run: Any) -> None:
        begin(run)
        stopping.append(asyncio.ensure_future(world.timers.stop()))

    world.timers._poller.runs.begin = closing  # type: ignore[method-assign]
    await world.until("13:00:10")
    await stopping[0]
    assert world.runs() == []
    await world.open(definition)
    assert world.runs() == [("01 13:00:10", "schedule")]


async def test_a_slot_between_the_writing_and_the_call_is_answered() -> None:
    """A slot that comes while a start is being written is answered by that run: no overlap, no second run."""
    repository = SlowRepository()
    world = TimerWorld("12:59:00", repository=repository)
    await world.begin(timer(on_calendar=HOURLY, on_startup_sec=59))
    repository.may_write.clear()
    world.targets.lasts["job"] = MINUTE
    await world.until("13:00:01")
    repository.may_write.set()
    await world.until("13:30:00")
    assert world.runs() == [("01 13:00:01", "startup")]
    assert world.misses == []


async def test_a_run_that_ends_while_the_switch_opens_is_heard_of() -> None:
    """A run that ends while the timers are being written is the anchor of an interval all the same."""
    repository = SlowRepository()
    world = TimerWorld("12:00:00", repository=repository)
    world.targets.lasts["job"] = 10 * SECOND
    await world.targets.by_hand("job")
    repository.may_write.clear()
    opening = asyncio.ensure_future(world.open(timer(on_unit_active_sec=60)))
    await world.targets.clock.advance(SECOND)
    world.targets.hooks = []
    world.targets.end("job", EXIT)
    repository.may_write.set()
    await asyncio.wait([opening])
    await world.until("12:02:00")
    assert [when for when, _ in world.runs()] == ["01 12:00:00", "01 12:01:01"]


async def test_a_closed_switch_changes_nothing_for_late_requests() -> None:
    """A request in the moment in which the switch closes is refused, and no loop begins again."""
    world = TimerWorld("12:59:30")
    await world.begin(timer(on_calendar=HOURLY))
    async with world.timers._backend.writing:
        asked = [
            asyncio.ensure_future(call)
            for call in (world.timers.disable("t"), world.timers.trigger("t"), world.timers.stop())
        ]
        await world.rest()
        world.events.clear()
    *late, stopped = await asyncio.gather(*asked, return_exceptions=True)
    assert stopped is None
    assert [error.kind for error in late if isinstance(error, TimerError)] == [TimerRefusal.OFF] * 2
    assert "PollingStarted" not in [event.name for event in world.events]
    with pytest.raises(TimerError, match="switched off"):
        await world.timers.enable("t")
