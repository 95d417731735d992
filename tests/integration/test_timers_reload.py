"""Reload: unchanged timers keep everything, changed ones what they did, removed ones nothing."""

import asyncio

import pytest

from duly.errors import StoreError
from duly.timers.requests import TimerError
from tests.worlds.timers import (
    DAY,
    EXIT,
    HOUR,
    HOURLY,
    MINUTE,
    MINUTELY,
    SECOND,
    SUCCESS,
    FailingRepository,
    HeldRepository,
    TimerWorld,
    daily,
    names,
    timer,
)


async def test_a_reload_that_changes_nothing_changes_nothing() -> None:
    """Fault: a reload that changes nothing. States, deadlines, runs and rows are as they were."""
    world = TimerWorld("12:00:00")
    world.targets.ends["job"] = [EXIT]
    world.targets.lasts["other"] = HOUR
    definitions = [
        timer("a", on_startup_sec=10, on_calendar=daily(3), retry_intervals_sec=(600,)),
        timer("b", "other", on_startup_sec=20, on_unit_active_sec=600),
        timer("c", on_startup_sec=3600, on_calendar=HOURLY),
    ]
    timers = await world.begin(*definitions)
    await world.until("12:01:00")
    before, records = timers.all(), dict(world.repository.records)
    world.timer_events()
    outcome = await timers.reload(list(definitions))
    assert timers.all() == before
    assert world.repository.records == records
    assert world.timer_events() == []
    assert (outcome.put, outcome.removed) == ([], [])
    await world.until("12:10:10")
    assert world.runs() == [("01 12:00:10", "startup"), ("01 12:10:10", "retry")]
    assert world.state("b").running_run is not None


async def test_a_reload_that_does_change_something_does() -> None:
    """Fault: a reload that changes nothing. A new calendar holds from the reload on."""
    world = TimerWorld("12:10:00")
    timers = await world.begin(timer(on_calendar=HOURLY))
    outcome = await timers.reload([timer(on_calendar=MINUTELY)])
    assert [after.name for _, after in outcome.changed] == ["t"]
    await world.until("12:11:30")
    assert world.runs() == [("01 12:11:00", "schedule")]
    assert world.timer_events()[:2] == ["TimerAdded", "TimerOverridden"]


async def test_a_changed_timer_keeps_what_it_did() -> None:
    """A changed timer keeps its last run and result; its retry is dropped, its start-up is not new."""
    world = TimerWorld("12:00:00")
    world.targets.ends["job"] = [EXIT]
    timers = await world.begin(timer(on_startup_sec=10, retry_intervals_sec=(600,)))
    await world.until("12:01:00")
    world.runs()
    await timers.reload([timer(on_startup_sec=3600, retry_intervals_sec=(60,))])
    state = world.state()
    assert (world.shown(state.last_run_us), state.last_exit, state.retry_at_us) == ("01 12:00:10", 3, None)
    await world.until("14:00:00")
    assert world.runs() == []


async def test_a_changed_timer_owes_nothing_from_before() -> None:
    """A calendar that is changed to a slot earlier today owes nothing for it, also over a restart."""
    world = TimerWorld("12:00:00")
    timers = await world.begin(timer(on_calendar=daily(20)))
    await timers.reload([timer(on_calendar=daily(9))])
    await world.rest()
    await world.stop()
    await world.begin(timer(on_calendar=daily(10)))
    await world.until("23:00:00")
    assert world.runs() == []
    assert world.misses == []


async def test_a_run_of_a_changed_timer_ends_with_its_result_and_no_retry() -> None:
    """A run in flight over a change ends as the timer's run, and arms no retry."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"], world.targets.always["job"] = 10 * MINUTE, EXIT
    timers = await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(60,)))
    await world.until("13:05:00")
    await timers.reload([timer(on_calendar=HOURLY, retry_intervals_sec=(90,))])
    assert world.state().running_run is not None
    await world.until("13:30:00")
    assert (world.state().last_exit, world.state().retry_at_us) == (3, None)
    assert len(world.runs()) == 1


async def test_an_added_timer() -> None:
    """An added timer fires from its next slot on; its start-up trigger, if that has passed, does not."""
    world = TimerWorld("12:00:00")
    timers = await world.begin()
    await world.until("12:30:00")
    outcome = await timers.reload(
        [timer(on_calendar=HOURLY, on_startup_sec=60), timer("s", "other", on_startup_sec=3600)]
    )
    assert names(outcome.added) == ["t", "s"]
    await world.until("13:10:00")
    assert world.runs() == [("01 13:00:00", "schedule")]
    assert world.runs("other") == [("01 13:00:00", "startup")]


async def test_a_removed_timer_is_gone_and_comes_back_new() -> None:
    """A removed timer loses its row and fires no more; one that comes back has no past."""
    world = TimerWorld("12:59:00")
    definition = timer(on_calendar=HOURLY)
    timers = await world.begin(definition, timer("k", "other", on_calendar=HOURLY))
    await world.until("13:30:00")
    await timers.disable("t")
    await timers.reload([timer("k", "other", on_calendar=HOURLY)])
    assert [record[1] for record in world.repository.records.values()] == ["k"]
    with pytest.raises(TimerError):
        await timers.trigger("t")
    await world.until("15:30:00")
    assert len(world.runs()) == 1
    await timers.reload([timer("k", "other", on_calendar=HOURLY), definition])
    state = world.state()
    assert (state.last_run_us, state.enabled_override) == (None, None)
    await world.until("16:00:00")
    assert world.runs() == [("01 16:00:00", "schedule")]


async def test_a_run_of_a_removed_timer_ends_as_a_service_run() -> None:
    """A run in flight of a removed timer goes on; its end is told of no timer, and writes no row."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"], world.targets.always["job"] = 10 * MINUTE, EXIT
    timers = await world.begin(timer(on_calendar=HOURLY, retry_intervals_sec=(60,)))
    await world.until("13:05:00")
    await timers.reload([])
    world.timer_events()
    await world.until("13:30:00")
    assert world.repository.records == {}
    assert world.timer_events() == []
    assert len(world.runs()) == 1


async def test_a_timer_that_comes_back_during_its_run() -> None:
    """A timer removed and declared again during its run takes the end of that for nobody's."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"], world.targets.always["job"] = 90 * MINUTE, EXIT
    definition = timer(on_calendar=HOURLY, retry_intervals_sec=(60,))
    timers = await world.begin(definition)
    await world.until("13:05:00")
    await timers.reload([])
    await timers.reload([definition])
    await world.until("14:45:00")
    assert world.misses == [("t", "01 14:00:00", "overlap")]
    assert (world.state().retry_at_us, world.state().last_result) == (None, None)
    assert world.told("TimerRunEnded") == []
    await world.until("15:00:00")
    assert [why for _, why in world.runs()] == ["schedule", "schedule"]


async def test_a_reload_that_cannot_be_written_changes_nothing() -> None:
    """A reload that the store refuses raises, and the timers go on as they were."""
    repository = FailingRepository()
    world = TimerWorld("12:10:00", repository=repository)
    timers = await world.begin(timer(on_calendar=HOURLY))
    repository.is_broken = True
    with pytest.raises(StoreError):
        await timers.reload([timer(on_calendar=MINUTELY)])
    repository.is_broken = False
    await world.until("13:00:30")
    assert world.runs() == [("01 13:00:00", "schedule")]


async def test_a_reload_in_the_middle_of_everything() -> None:
    """Reloads at every second around a slot never lose it and never fire it twice."""
    definition = timer(on_calendar=HOURLY)
    for second in range(4):
        world = TimerWorld("12:59:57")
        timers = await world.begin(definition)
        await world.after(second * SECOND)
        await asyncio.gather(*(timers.reload([definition]) for _ in range(3)))
        await world.until("13:30:00")
        assert world.runs() == [("01 13:00:00", "schedule")]


async def test_a_change_of_words_is_no_change() -> None:
    """Another description, or another place in the list, leaves a timer as it is, and is taken over."""
    world = TimerWorld("12:59:00")
    timers = await world.begin(timer("a", on_calendar=HOURLY), timer("b", on_calendar=HOURLY))
    outcome = await timers.reload(
        [timer("b", on_calendar=HOURLY, description="x"), timer("a", on_calendar=HOURLY)]
    )
    assert (outcome.put, names(timers.all())) == ([], ["b", "a"])
    assert world.state("b").definition.description == "x"
    await world.until("13:00:00")
    assert [item.timer for item in world.targets.began] == ["b"]


async def test_a_trigger_of_a_timer_that_is_removed() -> None:
    """Anyone who waits for a trigger of a timer that a reload removes is told so."""
    world = TimerWorld("12:30:00")
    timers = await world.begin(timer(on_calendar=HOURLY))
    timers._poller.hold()
    asking = asyncio.ensure_future(timers.trigger("t"))
    await world.after(SECOND)
    await timers.reload([])
    with pytest.raises(TimerError):
        await asking


async def test_a_timer_that_comes_back_for_another_target() -> None:
    """A timer that comes back for another target while its old run goes on waits for that, and then fires."""
    world = TimerWorld("12:59:00")
    world.targets.lasts["job"] = 90 * MINUTE
    timers = await world.begin(timer(on_calendar=HOURLY))
    await world.until("13:05:00")
    await timers.reload([])
    await timers.reload([timer(target="other", on_calendar=HOURLY)])
    await world.until("15:30:00")
    assert world.runs("other") == [("01 15:00:00", "schedule")]
    assert world.misses == [("t", "01 14:00:00", "overlap")]
    assert world.told("StoreFault") == []


async def test_an_end_while_a_list_is_written_moves_the_interval() -> None:
    """A run by hand that ends during the writing of a reload is what intervals count from afterwards."""
    repository = HeldRepository()
    world = TimerWorld("12:00:30", repository=repository)
    kept = timer(on_unit_active_sec=600)
    await world.begin(kept)
    world.targets.lasts["job"] = DAY
    await world.targets.by_hand("job")
    await world.rest()
    repository.is_free.clear()
    reloading = asyncio.ensure_future(world.timers.reload([kept, timer("new", on_unit_active_sec=900)]))
    await world.after(MINUTE)
    world.targets.end("job", SUCCESS)
    await world.rest()
    repository.is_free.set()
    await reloading
    assert (world.next_run(), world.next_run("new")) == ("01 12:11:30", "01 12:16:30")


async def test_a_changed_timer_learns_of_an_end_while_the_change_is_written() -> None:
    """The result of a run that ends during the writing of a change is not lost."""
    repository = HeldRepository()
    world = TimerWorld("12:59:30", repository=repository)
    world.targets.lasts["job"] = DAY
    await world.begin(timer(on_calendar=HOURLY))
    await world.until("13:00:10")
    repository.is_free.clear()
    changed = timer(on_calendar=daily(3))
    reloading = asyncio.ensure_future(world.timers.reload([changed]))
    await world.rest()
    world.targets.end("job", EXIT)
    await world.rest()
    repository.is_free.set()
    await reloading
    assert (world.state().last_result, world.state().last_exit) == ("exit", 3)
    await world.crash()
    await world.begin(changed)
    assert (world.state().last_result, world.state().interrupted) == ("exit", False)


async def test_a_run_of_the_old_target_says_nothing_of_the_new_one() -> None:
    """A run in flight when the target is changed ends as the old target's; no interval counts from it."""
    world = TimerWorld("12:59:30")
    world.targets.lasts["job"] = 10 * MINUTE
    await world.begin(timer(on_calendar=HOURLY, on_unit_active_sec=600))
    await world.until("13:00:10")
    await world.timers.reload([timer(target="other", on_calendar=HOURLY, on_unit_active_sec=600)])
    await world.until("13:30:00")
    (seen,) = world.told("TimerRunEnded")
    assert (seen["target"], seen["result"]) == ("job", "success")
    assert world.state().last_result == "success"
    assert world.next_run() == "01 14:00:00"


async def test_a_timer_that_is_invalid_for_a_while_keeps_its_state() -> None:
    """A definition that is broken at a start and mended by a reload finds what was known of its timer."""
    world = TimerWorld("12:59:30")
    off, sound = timer("off", on_calendar=HOURLY), timer("sound", on_calendar=HOURLY)
    cut = timer("cut", "other", on_calendar=HOURLY)
    await world.begin(off, cut, sound)
    world.targets.lasts["other"] = DAY
    await world.timers.disable("off")
    await world.until("13:00:10")
    before = dict(world.repository.records)
    await world.crash()
    await world.begin(sound, invalid={"off", "cut"})
    assert names(world.timers.all()) == ["sound"]
    assert world.repository.records == before
    await world.timers.reload([sound, off], invalid={"cut"})
    assert not world.state("off").is_enabled
    assert world.told("TimerRemoved") == []
    world.runs("other")
    await world.timers.reload([sound, off, cut])
    await world.rest()
    assert world.runs("other") == [("01 13:00:10", "catch-up")]
    assert sorted(world.repository.records) == sorted(before)


@pytest.mark.parametrize(("after_sec", "comes"), [(10, []), (90, [("01 12:02:00", "startup")])])
async def test_start_up_of_a_timer_that_is_mended(after_sec: int, comes: list[tuple[str, str]]) -> None:
    """A start-up trigger that passed while its timer was invalid does not come; one that lies ahead does."""
    world = TimerWorld("12:00:30")
    mended = timer("mended", on_startup_sec=after_sec)
    await world.begin(mended)
    await world.crash()
    world.runs()
    await world.begin(timer("sound", "other", on_startup_sec=after_sec), invalid={"mended"})
    await world.until("12:01:30")
    await world.timers.reload([mended])
    await world.until("12:10:00")
    assert world.runs() == comes


async def test_an_invalid_timer_that_is_taken_out_is_forgotten() -> None:
    """What was kept for a timer with a broken definition goes when that is removed, and comes back as new."""
    world = TimerWorld("12:59:30")
    lost = timer("lost", on_calendar=HOURLY)
    await world.begin(lost, timer())
    await world.timers.disable("lost")
    await world.crash()
    await world.begin(timer(), invalid={"lost"})
    await world.timers.reload([timer()])
    assert [record[1] for record in world.repository.records.values()] == ["t"]
    await world.timers.reload([timer(), lost])
    assert world.state("lost").is_enabled
