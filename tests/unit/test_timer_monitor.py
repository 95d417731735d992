"""The monitor of timers, event by event: what each property forbids, and what only looks like it."""

from datetime import UTC, datetime, timedelta
from heapq import heappop
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly import Event
from duly.config.schema import Calendar, Timer
from duly.events import LEVELS
from duly.verify.dues import NEVER_US, Slots, instant_us
from duly.verify.properties import Verdict
from duly.verify.timers import TimerMonitor, ZonedTimer, zoned_timer

NOON = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
HOURLY = (Calendar(minute=(0,)),)


def today(clock: str) -> datetime:
    """A time of that day."""
    return datetime.fromisoformat(f"2026-01-01 {clock}").replace(tzinfo=UTC)


class World:
    """A monitor, and events told to it at times set by hand."""

    def __init__(self, *, is_shared: bool = False, **options: Any) -> None:
        self.is_shared = is_shared
        options.setdefault("on_calendar", HOURLY)
        self.definitions = [Timer("t", "job", **options)]
        self.told: list[Event] = []
        self.asked = 0
        self.answered: datetime | None = None
        self.missed: datetime | None = None
        self.now = NOON
        self.steady_us = 0
        self.monitor = self.new_monitor()
        self.emit("SupervisorStarted", services=1, duration=0)
        self.emit("TimersEnabled", timers=1)

    def new_monitor(self) -> TimerMonitor:
        return TimerMonitor(
            self.declared,
            [self.told.append],
            steady_us=lambda: self.steady_us,
            is_shared=self.is_shared,
        )

    def declared(self) -> list[ZonedTimer]:
        """What is at work."""
        self.asked += 1
        answered_us, missed_us = (
            None if at is None else instant_us(at) for at in (self.answered, self.missed)
        )
        return [
            zoned_timer(timer, UTC, answered_us=answered_us, missed_us=missed_us)
            for timer in self.definitions
        ]

    def emit(self, name: str, **fields: Any) -> None:
        """Tell something that happens now."""
        self.monitor.listener(Event(name, LEVELS[name], self.now, fields))

    def until(self, clock: str) -> None:
        """Let time pass, with a look each half minute."""
        end = today(clock)
        while self.now < end:
            span = min(timedelta(seconds=30), end - self.now)
            self.now += span
            self.steady_us += round(span.total_seconds() * 1_000_000)
            self.monitor.look(self.now)

    def step(self, clock: str) -> None:
        """Set the clock."""
        before, self.now = self.now, today(clock)
        self.emit("ClockStepped", before=before.isoformat(), after=self.now.isoformat())

    def fire(
        self,
        reason: str = "schedule",
        due: datetime | None = None,
        run: int = 1,
        token: int = 1,
        *,
        begins: bool = True,
    ) -> None:
        """Fire, and begin the run."""
        at = (self.now if due is None else due).isoformat()
        more = {"token": token} if self.is_shared else {}
        fired = {"timer": "t", "target": "job", "reason": reason, "scheduledTime": at, "runId": run}
        self.emit("TimerFired", **fired, **more)
        if not begins:
            return
        self.emit("ServiceRunStarted", service="job", runId=run, reason=reason, timer="t", pid=1)

    def end(self, result: str = "success", run: int = 1) -> None:
        fields = {"service": "job", "runId": run, "reason": "schedule", "timer": "t", "duration": 1}
        self.emit("ServiceRunEnded", **fields, result=result)
        self.emit("TimerRunEnded", timer="t", target="job", runId=run, result=result, duration=1)

    def miss(self, reason: str = "overlap") -> None:
        """Miss what is due now."""
        self.emit("TimerMissed", timer="t", target="job", reason=reason, slot=self.now.isoformat())

    def violated(self) -> list[str]:
        """The properties that were objected to, one for each time."""
        return [event.fields["property"] for event in self.told]


def test_a_good_day() -> None:
    """Slots that are fired for and missed leave nothing to say; what was not tested stays open."""
    world = World()
    world.until("13:00:00")
    world.fire()
    world.until("14:00:00")
    world.miss()
    world.end()
    world.until("14:30:00")
    assert world.violated() == []
    verdicts = {finding.property: finding.verdict for finding in world.monitor.findings()}
    assert verdicts == dict.fromkeys(("V1", "V2", "V3", "V4"), Verdict.HOLDS) | {"V5": Verdict.INCONCLUSIVE}


def test_silence() -> None:
    """V1: a slot that nothing answers is told once, more than a minute after it came."""
    world = World()
    world.until("13:01:00")
    assert world.violated() == []
    world.until("13:02:00")
    world.until("13:50:00")
    assert world.violated() == ["V1"]
    assert world.told[0].fields["taskName"] == "t"
    assert "2026-01-01T13:00:00" in world.told[0].fields["reason"]
    assert world.monitor.verdict("V1") is Verdict.VIOLATED


def test_looking_when_silence_ends_is_enough() -> None:
    """V1: looking only when the monitor says so finds a slot that nothing answers within two minutes."""
    world = World()
    for _ in range(3):
        silence_us = world.monitor.silence_us(world.now)
        assert silence_us is not None
        world.now += timedelta(microseconds=silence_us)
        world.steady_us += silence_us
        world.monitor.look(world.now)
        if world.violated():
            break
    assert world.violated() == ["V1"]
    assert today("13:01:00") < world.now < today("13:02:01")


def test_an_answered_slot_is_not_looked_for() -> None:
    """Once a slot is answered no look is needed until the next one could have gone without an answer."""
    world = World()
    world.until("13:00:00")
    world.fire()
    world.until("13:10:00")
    assert world.monitor.silence_us(world.now) == 51 * 60 * 1_000_000


@pytest.mark.parametrize("name", ["TimersDisabled", "SupervisorStopping", "StoreFault"])
def test_silence_without_end(name: str) -> None:
    """No look is needed while nothing is asked of timers, or none has a calendar."""
    world = World()
    assert world.monitor.silence_us(world.now) == 3_630 * 1_000_000
    world.emit(name, error="full")
    assert world.monitor.silence_us(world.now) is None
    interval = World(on_calendar=(), on_unit_active_sec=60)
    assert interval.monitor.silence_us(interval.now) is None


def test_the_next_slot_does_not_answer_the_last() -> None:
    """V1: being right an hour later does not undo it."""
    world = World()
    world.until("14:00:00")
    world.fire()
    assert world.violated() == ["V1"]


@pytest.mark.parametrize("name", ["TimersDisabled", "SupervisorStopping", "StoreFault"])
def test_silence_with_a_reason(name: str) -> None:
    """V1 asks for nothing while timers are off, the supervisor stops, or nothing can be written."""
    world = World()
    world.until("12:59:00")
    world.emit(name, error="full")
    world.until("15:00:00")
    assert world.violated() == []


def test_asked_again_after_a_fault() -> None:
    """V1 asks again, a minute from then, when the store has recovered."""
    world = World()
    world.emit("StoreFault", error="full")
    world.until("13:30:00")
    world.emit("StoreRecovered", error="full")
    world.until("13:31:00")
    assert world.violated() == []
    world.until("13:32:00")
    assert world.violated() == ["V1"]


def test_a_clock_that_jumps() -> None:
    """A slot that a step or a suspend jumped over is late by the steady clock, not by the wall's."""
    world = World()
    world.now += timedelta(hours=5)
    world.monitor.look(world.now)
    world.fire("catch-up", due=datetime(2026, 1, 1, 17, tzinfo=UTC))
    assert world.violated() == []


def test_a_removed_timer() -> None:
    """Nothing is asked of a timer that is gone."""
    world = World()
    world.emit("TimerRemoved", timer="t", target="job")
    world.until("14:30:00")
    assert world.violated() == []


@pytest.mark.parametrize(
    ("options", "reason", "due"),
    [
        ({}, "schedule", "12:20"),
        ({}, "schedule", "13:00"),
        ({}, "schedule", "11:00"),
        ({}, "startup", "12:30"),
        ({}, "interval", "12:30"),
        ({}, "whim", "12:30"),
        ({"on_startup_sec": 7200}, "startup", "12:30"),
        ({"persistent": False}, "catch-up", "12:00"),
        ({"catch_up_window_sec": 60}, "catch-up", "12:00"),
    ],
)
def test_firing_for_nothing(options: dict[str, Any], reason: str, due: str) -> None:
    """V2: a firing needs a slot that has just come, a trigger that it has, or a miss within its window."""
    world = World(**options)
    world.until("12:30:00")
    world.fire(reason, due=today(due))
    assert "V2" in world.violated()


def test_start_up_comes_once() -> None:
    """V2: the start-up trigger fires once for each start."""
    world = World(on_startup_sec=60)
    world.until("12:02:00")
    world.fire("startup")
    world.end()
    assert world.violated() == []
    world.fire("startup", run=2)
    assert world.violated() == ["V2"]


def test_an_interval_too_early() -> None:
    """V2: an interval counts from the end of the target's last run, no matter who started it."""
    world = World(on_unit_active_sec=600)
    world.emit("ServiceRunStarted", service="job", runId=8, reason="manual", pid=1)
    world.emit("ServiceRunEnded", service="job", runId=8, reason="manual", result="success", duration=0)
    world.until("12:10:30")
    world.fire("interval")
    world.end()
    assert world.violated() == []
    world.until("12:20:00")
    world.fire("interval", run=2)
    assert world.violated() == ["V2"]


def test_a_slot_answered_twice() -> None:
    """V3: neither a second firing nor a miss after a run may answer the same slot."""
    world = World()
    world.until("13:00:00")
    world.fire()
    world.end()
    world.fire(run=2)
    world.miss()
    assert world.violated() == ["V3", "V3"]


def test_fired_and_then_missed() -> None:
    """A firing that could not be started after all is a miss, and that is one answer."""
    world = World()
    world.until("13:00:00")
    at = world.now.isoformat()
    world.emit("TimerFired", timer="t", target="job", reason="schedule", scheduledTime=at, runId=1)
    world.miss()
    assert world.violated() == []


@pytest.mark.parametrize(("back", "expected"), [(timedelta(hours=1), []), (timedelta(minutes=4), ["V3"])])
def test_a_clock_set_back(back: timedelta, expected: list[str]) -> None:
    """After a large step back slots start over; after a small one they do not come again."""
    world = World(on_calendar=(Calendar(),))
    world.until("13:00:00")
    world.told.clear()
    world.fire()
    world.end()
    before, world.now = world.now, world.now - back
    world.emit("ClockStepped", before=before.isoformat(), after=world.now.isoformat())
    world.fire(run=2)
    assert world.violated() == expected


def test_runs_at_once() -> None:
    """V4: a run of a target may not begin while another is under way."""
    world = World()
    world.until("13:00:00")
    world.fire()
    world.emit("ServiceRunStarted", service="job", runId=2, reason="manual", pid=2)
    assert world.violated() == ["V4"]
    world.emit("ServiceRunStarted", service="other", runId=3, reason="manual", pid=2)
    world.emit("ServiceRunStarted", service="other", runId=4, reason="manual", pid=2)
    assert world.violated() == ["V4"], "others are none of its business"


@pytest.mark.parametrize(
    ("result", "wait", "expected"),
    [("exit", "13:01:00", []), ("exit", "13:00:30", ["V5"]), ("signal", "13:01:00", ["V5"])],
)
def test_retries(result: str, wait: str, expected: list[str]) -> None:
    """V5: only an exit code is retried, and not before the delay."""
    world = World(retry_intervals_sec=(60,))
    world.until("13:00:00")
    world.fire()
    world.end(result)
    world.until(wait)
    world.fire("retry", run=2)
    assert world.violated() == expected


def test_too_many_retries() -> None:
    """V5: when the delays are used up there is no more, until a fresh firing gives them back."""
    world = World(retry_intervals_sec=(60,))
    world.until("13:00:00")
    for run, reason, wait in (
        (1, "schedule", "13:02:00"),
        (2, "retry", "13:04:00"),
        (3, "retry", "14:00:00"),
    ):
        world.fire(reason, run=run)
        world.end("exit", run=run)
        assert world.violated() == ([] if run < 3 else ["V5"])
        world.until(wait)
    world.fire(run=4)
    world.end("exit", run=4)
    world.until("14:02:00")
    world.fire("retry", run=5)
    assert world.violated() == ["V5"]


def test_a_slot_that_comes_again() -> None:
    """V1: a slot that a small step back puts ahead again has its minute from when it comes again."""
    world = World()
    world.until("13:00:10")
    world.step("12:56:10")
    world.until("13:00:30")
    assert world.violated() == []
    world.until("13:02:00")
    assert world.violated() == ["V1"]


def put_to_work_at(clock: str, *, answered: str, missed: str | None = None) -> World:
    """A world whose timers begin at one time; what they answered and missed before is as the store says."""
    world = World()
    world.now, world.answered = today(clock), today(answered)
    world.missed = None if missed is None else today(missed)
    world.emit("TimersEnabled", timers=1)
    return world


@pytest.mark.parametrize("answered", ["13:00:00", "13:00:40", "13:02:00"])
def test_a_slot_that_a_session_before_answered(answered: str) -> None:
    """V1: a minute that a small step back puts ahead again, with a restart after it, was answered before."""
    world = put_to_work_at("12:57:00", answered=answered)
    world.until("13:30:00")
    assert world.violated() == []
    world.until("14:02:00")
    assert world.violated() == ["V1"], "the next slot is asked for as ever"


@pytest.mark.parametrize("answered", ["11:00:00", "12:59:59", "13:02:01", "15:00:00"])
def test_a_slot_that_no_session_has_answered(answered: str) -> None:
    """V1: what was answered before the slot, or under a clock that was far ahead, does not answer it."""
    world = put_to_work_at("12:57:00", answered=answered)
    world.until("13:02:00")
    assert world.violated() == ["V1"]


def test_what_a_reload_changes_was_not_answered_before() -> None:
    """V1: a changed timer counts from its change, not from what its state says when it is asked for."""
    world = World()
    world.until("12:59:59")
    world.emit("TimerOverridden", timer="t", target="job", before="", after="")
    world.answered = NOON.replace(hour=13, minute=0, second=0)
    world.until("13:02:00")
    assert world.violated() == ["V1"]


@pytest.mark.parametrize(("answered", "expected"), [("13:00:00", []), ("12:00:00", ["V1"])])
def test_a_mended_timer_goes_on_from_what_was_answered(answered: str, expected: list[str]) -> None:
    """V1: a timer whose invalid definition is mended is watched again, from where its row says it was."""
    world = World()
    mended, world.definitions = world.definitions, []
    world.emit("TimersEnabled", timers=0)
    world.until("12:59:00")
    world.definitions, world.answered = mended, today(answered)
    world.emit("TimerRecalled", timer="t", target="job")
    assert world.monitor.silence_us(world.now) == 0, "its definition is yet to be asked for"
    world.until("13:02:00")
    assert world.violated() == expected


def test_a_miss_that_a_session_before_told() -> None:
    """V1: set back and forth again, the clock jumps over a slot whose miss is on record: not told twice."""
    world = put_to_work_at("12:57:00", answered="11:30:00", missed="16:00:00")
    world.step("16:30:00")
    world.until("16:59:00")
    assert world.violated() == []
    world.until("17:02:00")
    assert world.violated() == ["V1"], "the next slot is asked for as ever"


@pytest.mark.parametrize(
    "missed",
    ["15:00:00", "16:20:00", "17:00:00"],
    ids=["an older slot", "no slot", "a slot that is yet to come"],
)
def test_another_miss_does_not_answer(missed: str) -> None:
    """V1: a miss on record stands for the slots jumped over only if it is of the latest of them."""
    world = put_to_work_at("12:57:00", answered="12:50:00", missed=missed)
    world.step("16:30:00")
    world.until("16:32:00")
    assert world.violated() == ["V1"]


def test_a_miss_that_was_told_and_comes_in_its_time() -> None:
    """V1: a slot that comes again in its time, after a large step back, is asked for, whatever was told."""
    world = put_to_work_at("15:58:00", answered="15:30:00", missed="16:00:00")
    world.until("16:02:00")
    assert world.violated() == ["V1"]


def test_a_miss_of_its_own_is_told() -> None:
    """V1: once a session has told a miss itself, the last one of the session before stands for nothing."""
    world = put_to_work_at("12:57:00", answered="12:50:00", missed="16:00:00")
    world.until("13:00:00")
    world.miss()
    world.step("16:30:00")
    world.until("16:32:00")
    assert world.violated() == ["V1"]


def test_a_reload_asks_once() -> None:
    """However many timers a reload adds, the monitor asks for the definitions once, and watches them all."""
    world = World()
    world.asked = 0
    world.definitions += [Timer(f"t{number}", "job", on_calendar=HOURLY) for number in range(20)]
    for number in range(20):
        world.emit("TimerAdded", timer=f"t{number}", target="job")
    world.until("12:59:00")
    assert world.asked == 1
    world.until("13:02:00")
    assert world.violated() == ["V1"] * 21


def test_a_burst_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many events come before a slot is answered, it is taken from those ahead once."""
    taken: list[object] = []

    def counted(ahead: list[Any]) -> object:
        taken.append(None)
        return heappop(ahead)

    world = World()
    world.definitions = [Timer(f"t{number}", "job", on_calendar=HOURLY) for number in range(50)]
    world.emit("TimersEnabled", timers=50)
    monkeypatch.setattr("duly.verify.timers.heappop", counted)
    world.until("13:00:00")
    for _ in range(50):
        world.emit("DashboardStarted", url="")
    assert len(taken) == 50
    world.until("13:02:00")
    assert world.violated() == ["V1"] * 50


def test_memory_does_not_grow() -> None:
    """However long a timer runs, as much is kept of it."""
    world = World(on_calendar=(Calendar(),))
    for run in range(3_000):
        world.now = world.now.replace(second=0) + timedelta(minutes=1)
        world.steady_us += 60_000_000
        world.fire(run=run)
        world.end(run=run)
    assert world.violated() == []
    assert len(world.monitor._ahead) <= 2
    assert len(world.monitor._timers) == len(world.monitor._targets) == 1


# --- slots ---


def first_slot(zone: str = "UTC", after: str = "2026-01-01 00:00", **fields: Any) -> str:
    tz = ZoneInfo(zone)
    at_us = Slots(*zoned_timer(Timer("t", "job", on_calendar=(Calendar(**fields),)), tz)).after(
        instant_us(datetime.fromisoformat(after).replace(tzinfo=tz))
    )
    if at_us == NEVER_US:
        return "never"
    return datetime.fromtimestamp(at_us / 1e6, UTC).astimezone(tz).strftime("%Y-%m-%d %H:%M")


def test_day_and_weekday_both_match() -> None:
    """Unlike in cron, Friday and the 13th is a Friday the 13th."""
    friday: dict[str, Any] = {"day_of_week": (5,), "day_of_month": (13,), "hour": (0,), "minute": (0,)}
    assert first_slot(**friday) == "2026-02-13 00:00"


def test_days_that_never_come() -> None:
    """The 30th of February has no slot."""
    assert first_slot(month=(2,), day_of_month=(30,)) == "never"


def test_minutes_that_the_clocks_skip() -> None:
    """A minute in the gap of spring does not come that day."""
    spring: dict[str, Any] = {
        "zone": "Europe/Berlin",
        "after": "2026-03-29 00:00",
        "hour": (2,),
        "minute": (30,),
    }
    assert first_slot(**spring) == "2026-03-30 02:30"


def test_several_calendars() -> None:
    """The earliest of all calendars counts, and both have slots."""
    both = (Calendar(minute=(10,)), Calendar(minute=(5,)))
    slots = Slots(*zoned_timer(Timer("t", "job", on_calendar=both), UTC))
    noon_us = instant_us(datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert slots.after(noon_us) == noon_us + 300_000_000
    assert slots.has(noon_us + 600_000_000)
    assert not slots.has(noon_us + 601_000_000)


# --- timers that machines share ---


def test_shared_silence() -> None:
    """What another machine may answer is not asked for: there is no V1 and nothing to look for."""
    world = World(is_shared=True)
    world.until("15:00:00")
    assert world.violated() == []
    assert world.monitor.silence_us(world.now) is None
    assert [one.property for one in world.monitor.findings()] == ["V2", "V3", "V4", "V5"]


def test_shared_firings_must_be_founded() -> None:
    """V2: a firing for what is no slot, for a trigger that is not declared, or ahead of time is told."""
    world = World(is_shared=True)
    world.fire()
    world.end()
    world.fire("startup", run=2)
    world.end(run=2)
    world.fire(due=today("13:00:00"), run=3)
    assert world.violated() == ["V2"] * 3


def test_shared_starts_and_cuts_of_others() -> None:
    """V2: a start-up of another machine, and a run that was cut off there, are reason enough to fire."""
    world = World(is_shared=True, on_startup_sec=600, on_unit_active_sec=3600)
    world.fire("startup", run=1)
    world.end()
    world.fire("startup", run=2)
    world.end(run=2)
    world.fire("catch-up", due=today("12:00:10"), run=3)
    assert world.violated() == []


def test_shared_slot_twice() -> None:
    """V3: a slot that has a run here is not answered again, unless the machine lost its trust meanwhile."""
    world = World(is_shared=True)
    world.until("13:00:00")
    slot = world.now
    world.fire(due=slot, begins=False)  # called off, and free for all
    world.fire(due=slot, run=2, token=2)
    world.end(run=2)
    assert world.violated() == []
    world.emit("TrustLost", runs=["t"])
    world.fire(due=slot, run=3, token=3)
    world.end(run=3)
    assert world.violated() == []
    world.fire(due=slot, run=4, token=4)
    assert world.violated() == ["V3"]


def test_shared_overlap() -> None:
    """V4: two runs of one target here overlap."""
    world = World(is_shared=True)
    world.until("13:00:00")
    world.fire()
    world.fire("trigger", run=2, token=2)
    assert world.violated() == ["V4"]


@pytest.mark.parametrize(("token", "violated"), [(2, ["V5"]), (3, [])])
def test_shared_retry(token: int, violated: list[str]) -> None:
    """V5: a retry right after a success is told if the token says that no other machine ran in between."""
    world = World(is_shared=True)
    world.until("13:00:00")
    world.fire()
    world.end()
    world.fire("retry", run=2, token=token)
    assert world.violated() == violated


@pytest.mark.parametrize(("is_cut", "violated"), [(False, ["V2"]), (True, [])])
def test_shared_interval(violated: list[str], *, is_cut: bool) -> None:
    """V2: an interval counts from the end of a run here, but for one that was cut off, from its beginning."""
    world = World(is_shared=True, on_unit_active_sec=600)
    world.fire("trigger")
    world.until("12:09:00")
    if is_cut:
        world.emit("TrustLost", runs=["t"])
    world.end("interrupted" if is_cut else "success")
    world.until("12:11:00")
    world.fire("interval", run=2, token=2)
    assert world.violated() == violated
