"""Fixed rates, single moments and delays after the end: what a timer may say besides calendars."""

from datetime import timedelta

from duly.schedules import offset_s
from duly.timers.record import text_of
from tests.worlds.timers import EXIT, HOUR, MINUTE, TimerWorld, timer


async def test_a_fixed_rate_counts_from_the_declaration() -> None:
    """A rate is due at multiples of its period from the declaration, however long its runs take."""
    world = TimerWorld("12:00:30")
    world.targets.lasts["job"] = 2 * MINUTE
    await world.begin(timer(every=300))
    await world.until("12:16:00")
    assert [when for when, _ in world.runs()] == ["01 12:05:30", "01 12:10:30", "01 12:15:30"]


async def test_a_fixed_rate_survives_restarts() -> None:
    """After a restart the times are multiples from the first declaration; one that was missed is made up."""
    world = TimerWorld("12:00:30")
    await world.begin(timer(every=300))
    await world.until("12:06:00")
    await world.shut()
    await world.until("12:17:00")
    await world.begin(timer(every=300))
    await world.until("12:21:00")
    assert world.runs() == [
        ("01 12:05:30", "schedule"),
        ("01 12:17:00", "catch-up"),
        ("01 12:20:30", "schedule"),
    ]


async def test_a_changed_rate_counts_anew() -> None:
    """A change of the timer begins a new rate."""
    world = TimerWorld("12:00:00")
    timers = await world.begin(timer(every=300))
    await world.until("12:07:00")
    await timers.reload([timer(every=600)])
    await world.until("12:30:00")
    assert [when for when, _ in world.runs()] == ["01 12:05:00", "01 12:17:00", "01 12:27:00"]


async def test_after_end_begins_by_itself() -> None:
    """A delay after the end counts from the declaration first, then from the end of each run, also failed."""
    world = TimerWorld("12:00:00")
    world.targets.lasts["job"] = 2 * MINUTE
    world.targets.always["job"] = EXIT
    await world.begin(timer(on_unit_active_sec=300, after_end=True))
    await world.until("12:20:00")
    assert world.runs() == [
        ("01 12:05:00", "interval"),
        ("01 12:12:00", "interval"),
        ("01 12:19:00", "interval"),
    ]


async def test_a_single_moment() -> None:
    """A moment is due once; one that passed while the daemon was down is made up for, once."""
    world = TimerWorld("12:00:00")
    once = timer(at="2026-01-01 13:00:00")
    await world.begin(once)
    await world.shut()
    await world.until("13:30:00")
    await world.begin(once)
    await world.after(48 * HOUR)
    assert world.runs() == [("01 13:30:00", "catch-up")]
    assert world.next_run() == "-"


async def test_a_random_delay_moves_all_slots() -> None:
    """Every slot is later by the offset of the id, and two ids have two offsets."""
    world = TimerWorld("12:00:00")
    delays = {name: timedelta(seconds=offset_s(name, 600_000_000)) for name in ("t", "u")}
    assert delays["t"] != delays["u"]
    await world.begin(*(timer(name, every=3600, random_delay_sec=600) for name in delays))
    await world.until("14:30:00")
    for name, delay in delays.items():
        fired = [event["scheduledTime"] for event in world.told("TimerFired") if event["timer"] == name]
        assert {each[14:19] for each in fired} == {f"{delay.seconds // 60:02}:{delay.seconds % 60:02}"}


async def test_timers_of_older_stores_are_unchanged() -> None:
    """The text of a timer that uses nothing new is what it always was: an update changes no timer."""
    assert text_of(timer(on_unit_active_sec=5), TimerWorld().zone) == (
        '{"catch_up_window_sec":86400,"enabled":true,"on_calendar":[],"on_startup_sec":null,'
        '"on_unit_active_sec":5,"persistent":true,"retry_intervals_sec":[],"target":"job","timezone":"UTC"}'
    )
