"""When timers fire: calendars, start-up, intervals, together and apart (spec/timers.md 3)."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from zoneinfo import ZoneInfo

from duly.config.schema import Calendar
from duly.engine.rules import Look
from duly.instant import Instant
from duly.timers.timer import TimerState
from tests.worlds.timers import (
    DAY,
    EXIT,
    HOUR,
    HOURLY,
    MINUTE,
    MINUTELY,
    SECOND,
    TimerWorld,
    daily,
    timer,
)


async def test_a_calendar_fires_at_each_slot() -> None:
    """A timer fires at each of its slots, strictly after it was declared."""
    world = TimerWorld("12:00:00")
    await world.begin(timer(on_calendar=HOURLY))
    await world.until("14:30:00")
    assert world.runs() == [("01 13:00:00", "schedule"), ("01 14:00:00", "schedule")]
    assert world.next_run() == "01 15:00:00"


async def test_the_earliest_of_several_calendars_wins() -> None:
    """A list of calendars fires at the slots of all of them, once where they meet."""
    world = TimerWorld("12:00:30")
    calendars = [Calendar(minute=(0, 30)), Calendar(minute=(0, 15))]
    await world.begin(timer(on_calendar=calendars))
    await world.until("13:20:00")
    assert [when for when, _ in world.runs()] == [
        "01 12:15:00",
        "01 12:30:00",
        "01 13:00:00",
        "01 13:15:00",
    ]


async def test_day_and_weekday_must_both_match() -> None:
    """Unlike cron, a calendar with day and weekday fires only on days that are both."""
    world = TimerWorld("00:30:00")
    thirteenth = Calendar(minute=(0,), hour=(9,), day_of_month=(13,), day_of_week=(5,))
    await world.begin(timer(on_calendar=thirteenth))
    await world.after(120 * DAY)
    # In 2026 the 13th is a Friday in February, March and November.
    assert world.runs() == [("13 09:00:00", "schedule"), ("13 09:00:00", "schedule")]


async def test_a_date_that_never_comes_never_fires() -> None:
    """A calendar for 30 February sleeps for ever, and the other calendar of the timer does not."""
    world = TimerWorld("12:00:30")
    never = Calendar(minute=(0,), hour=(0,), day_of_month=(30,), month=(2,))
    await world.begin(timer("never", on_calendar=never), timer(on_calendar=[never, HOURLY]))
    await world.until("13:30:00")
    assert world.next_run("never") == "-"
    assert world.runs() == [("01 13:00:00", "schedule")]


async def test_spring_forward_skips_and_fall_back_fires_once() -> None:
    """A slot in the gap does not occur, and one in the repeated hour occurs when first shown.

    Berlin, 2026-03-29: 01:59 CET is followed by 03:00 CEST. 2026-10-25: 02:59 CEST by 02:00 CET.
    """
    berlin = ZoneInfo("Europe/Berlin")
    world = TimerWorld("2026-03-28 12:00:00", zone=berlin)
    half_past_two = Calendar(minute=(30,), hour=(2,))
    await world.begin(timer(on_calendar=half_past_two))
    await world.until("2026-03-30 12:00:00")
    assert world.runs() == [("30 00:30:00", "schedule")]
    await world.until("2026-10-24 12:00:00")
    world.runs()
    await world.until("2026-10-25 12:00:00")
    assert world.runs() == [("25 00:30:00", "schedule")]


async def test_a_timer_has_a_zone_of_its_own() -> None:
    """A timer with a timezone means the civil time there, whatever the zone of the others."""
    world = TimerWorld("12:00:30")
    await world.begin(timer(on_calendar=daily(9), timezone="America/New_York"))
    await world.until("23:00:00")
    assert world.runs() == [("01 14:00:00", "schedule")]


async def test_startup_fires_once_per_start() -> None:
    """A start-up trigger fires that long after start-up, once, and again after the next start."""
    world = TimerWorld("12:00:00")
    definition = timer(on_startup_sec=90)
    await world.begin(definition)
    assert world.next_run() == "01 12:01:30"
    await world.until("13:00:00")
    assert world.runs() == [("01 12:01:30", "startup")]
    assert world.state().startup_triggered
    assert world.next_run() == "-"
    await world.stop()
    await world.begin(definition)
    await world.until("14:00:00")
    assert world.runs() == [("01 13:01:30", "startup")]


async def test_an_interval_counts_from_the_end() -> None:
    """An interval begins when the target's run has ended, not when it began."""
    world = TimerWorld("12:00:00")
    world.targets.lasts["job"] = 5 * MINUTE
    await world.begin(timer(on_startup_sec=60, on_unit_active_sec=600))
    await world.until("12:40:00")
    assert world.runs() == [
        ("01 12:01:00", "startup"),
        ("01 12:16:00", "interval"),
        ("01 12:31:00", "interval"),
    ]


async def test_an_interval_alone_waits_for_a_first_run() -> None:
    """An interval timer whose target never ran is not due; a run by hand sets it going."""
    world = TimerWorld("12:00:00")
    await world.begin(timer(on_unit_active_sec=600))
    await world.until("13:00:00")
    assert world.runs() == []
    await world.targets.by_hand("job")
    await world.until("13:15:00")
    assert world.runs() == [("01 13:00:00", "manual"), ("01 13:10:00", "interval")]


async def test_an_interval_survives_a_restart() -> None:
    """After a restart the interval still counts from the last end; one that has passed fires at once."""
    world = TimerWorld("12:00:00")
    definition = timer(on_startup_sec=1, on_unit_active_sec=3600)
    await world.begin(definition)
    await world.until("12:10:00")
    await world.stop()
    world.runs()
    await world.begin(timer(on_unit_active_sec=3600))
    await world.until("13:05:00")
    assert world.runs() == [("01 13:00:01", "interval")]
    await world.stop()
    await world.after(2 * HOUR)
    await world.begin(timer(on_unit_active_sec=3600))
    assert world.runs() == [("01 15:05:00", "interval")]


async def test_a_failing_interval_job_waits_its_interval() -> None:
    """Fault: an always-failing interval job restarted without pause. It waits its interval after each end."""
    world = TimerWorld("12:00:00")
    world.targets.always["job"] = EXIT
    await world.begin(timer(on_startup_sec=1, on_unit_active_sec=60))
    await world.until("12:05:00")
    assert [when for when, _ in world.runs()] == [
        "01 12:00:01",
        "01 12:01:01",
        "01 12:02:01",
        "01 12:03:01",
        "01 12:04:01",
    ]


async def test_a_running_interval_job_is_no_overlap() -> None:
    """Fault: overlap recorded once a second while an interval job runs. Nothing is recorded at all."""
    world = TimerWorld("12:00:00")
    world.targets.lasts["job"] = 10 * MINUTE
    await world.begin(timer(on_startup_sec=1, on_unit_active_sec=1))
    await world.targets.by_hand("other")
    await world.until("12:10:00")
    assert world.misses == []
    assert len(world.runs()) == 1
    looks = len(world.told("PollStarted"))
    assert looks <= 3, "it wakes for a reason, not every second"


async def test_an_interval_waits_for_a_run_by_hand() -> None:
    """An interval that passes while somebody else runs the target is not due until that has ended."""
    world = TimerWorld("12:00:00")
    await world.begin(timer(on_startup_sec=1, on_unit_active_sec=60))
    await world.until("12:00:30")
    world.targets.lasts["job"] = 5 * MINUTE
    await world.targets.by_hand("job")
    await world.until("12:07:00")
    assert world.runs() == [
        ("01 12:00:01", "startup"),
        ("01 12:00:30", "manual"),
        ("01 12:06:30", "interval"),
    ]
    assert world.misses == []


async def test_one_firing_answers_all_triggers() -> None:
    """A slot, the start-up trigger and an interval that come together give one run, named by the slot."""
    world = TimerWorld("12:59:00")
    world.targets.last_ends["job"] = world.started_up_us - 59 * 60 * 1_000_000
    await world.begin(timer(on_calendar=HOURLY, on_startup_sec=60, on_unit_active_sec=3600))
    await world.until("13:30:00")
    assert world.runs() == [("01 13:00:00", "schedule")]
    assert world.state().startup_triggered


async def test_timers_due_together_fire_in_order_of_declaration() -> None:
    """Timers of one slot start in the order in which they are declared, however they came to it."""
    world = TimerWorld("12:59:50")
    jobs = ["d", "a", "c", "b"]
    world.targets.states |= dict.fromkeys(jobs, "idle")
    extra = {"d": {"on_startup_sec": 5}, "c": {"on_startup_sec": 3}}
    await world.begin(*(timer(f"t{job}", job, on_calendar=HOURLY, **extra.get(job, {})) for job in jobs))
    await world.until("12:59:58")
    world.targets.began.clear()
    await world.until("13:00:00")
    assert [item.service for item in world.targets.began] == jobs
    await world.timers.reload([timer(f"t{job}", job, on_calendar=HOURLY) for job in sorted(jobs)])
    world.targets.began.clear()
    await world.until("14:00:00")
    assert [item.service for item in world.targets.began] == sorted(jobs)


async def test_one_hanging_target_stops_nobody() -> None:
    """A target that hangs, one that fails and one that is missing leave the others alone."""
    world = TimerWorld("12:00:30")
    world.targets.states |= {"hangs": "idle", "fails": "idle"}
    world.targets.lasts["hangs"] = 30 * DAY
    world.targets.always["fails"] = EXIT
    everyone = [timer(name, name, on_calendar=MINUTELY) for name in ("hangs", "fails", "missing", "job")]
    await world.begin(*everyone)
    await world.until("12:05:00")
    assert len(world.runs()) == 5
    assert len(world.runs("fails")) == 5
    assert len(world.runs("hangs")) == 1


async def test_a_run_knows_what_it_answers() -> None:
    """A run is started with its id, its timer, and the slot that it answers; the event says the same."""
    world = TimerWorld("12:59:30")
    await world.begin(timer(on_calendar=HOURLY))
    await world.until("13:00:00")
    (began,) = world.targets.began
    assert (began.timer, world.shown(began.scheduled_us)) == ("t", "01 13:00:00")
    assert world.told("TimerFired") == [
        {
            "timer": "t",
            "target": "job",
            "reason": "schedule",
            "scheduledTime": "2026-01-01T13:00:00+00:00",
            "runId": began.run_id,
        }
    ]
    (ended,) = world.told("TimerRunEnded")
    assert (ended["runId"], ended["result"]) == (began.run_id, "success")


async def test_ten_thousand_timers_are_not_all_looked_at() -> None:
    """A wake-up looks at what is due, not at everything: one busy timer among many costs one look."""
    world = TimerWorld("12:00:30")
    many = [timer(f"t{n}", on_calendar=daily(3)) for n in range(10_000)]
    await world.begin(*many, timer("busy", "other", on_calendar=MINUTELY))
    looked = 0
    rules = world.timers._rules
    inner = rules.looked_at

    def counting(timers: Sequence[TimerState], now_us: Instant) -> Look[TimerState]:
        nonlocal looked
        looked += len(timers)
        return inner(timers, now_us)

    rules.looked_at = counting  # type: ignore[method-assign]
    await world.until("12:10:30")
    assert looked == 10
    assert len(world.runs("other")) == 10


async def test_an_end_wakes_only_timers_of_that_target() -> None:
    """A run's end concerns the timers with an interval on its target, and no others."""
    world = TimerWorld("12:00:00")
    await world.begin(
        timer("a", on_unit_active_sec=60),
        timer("b", "other", on_unit_active_sec=60),
        timer(on_calendar=HOURLY),
    )
    await world.targets.by_hand("job")
    await world.rest()
    assert world.state("a").anchor_us is not None
    assert world.state("b").anchor_us is None
    assert world.state("t").anchor_us is None


async def test_short_intervals_leave_room_for_others() -> None:
    """A job with an interval of a millisecond does not starve the loop."""
    world = TimerWorld("12:00:00")
    await world.begin(
        timer(on_startup_sec=0.001, on_unit_active_sec=0.001), timer("h", "other", on_startup_sec=1)
    )
    await asyncio.wait_for(world.after(SECOND + timedelta(milliseconds=1)), 60)
    assert len(world.runs("other")) == 1
    assert 400 <= len(world.runs()) <= 1001


async def test_an_interval_that_is_put_off_leaves_nothing_behind() -> None:
    """A timer whose target runs every minute for days is on the agenda once; nobody wakes in vain."""
    world = TimerWorld("12:00:30")
    world.targets.lasts["job"] = 7 * SECOND
    await world.begin(timer("a", on_calendar=MINUTELY), timer("b", on_unit_active_sec=3600))
    await world.after(2 * HOUR)
    world.events.clear()
    await world.after(DAY)
    assert len(world.told("PollStarted")) == 24 * 60
    assert len(world.timers._book.agenda._instants) < 100
