"""The monitor of timers, event by event: what each property forbids, and what only looks like it."""

from datetime import UTC, datetime, timedelta
from heapq import heappop
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly import Event
from duly.config.schema import Calendar, Timer
from duly.events import LEVELS
from duly.verify.declared import Declared
from duly.verify.dues import NEVER_US, instant_us
from duly.verify.properties import Verdict
from duly.verify.slots import Slots
from duly.verify.timers import TimerMonitor

NOON = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
HOURLY = (Calendar(minute=(0,)),)


def today(clock: str) -> datetime:
    """A time of that day."""
    return datetime.fromisoformat(f"2026-01-01 {clock}").replace(tzinfo=UTC)


class Desk:
    """A monitor, and events told to it at times set by hand."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("on_calendar", HOURLY)
        self.definitions = [Timer("t", "job", **options)]
        self.told: list[Event] = []
        self.asked = 0
        self.answered: datetime | None = None
        self.missed: datetime | None = None
        self.now = NOON
        self.steady_us = 0
        self.monitor = self.new_monitor()
        self.tell("SupervisorStarted", services=1, duration=0)
        self.tell("TimersEnabled", timers=1)

    def new_monitor(self) -> TimerMonitor:
        """The monitor."""
        return TimerMonitor(self.declared, [self.told.append], steady_us=lambda: self.steady_us)

    def declared(self) -> list[Declared]:
        """What is at work."""
        self.asked += 1
        answered_us, missed_us = (
            None if at is None else instant_us(at) for at in (self.answered, self.missed)
        )
        return [Declared(timer, UTC, answered_us, missed_us) for timer in self.definitions]

    def tell(self, name: str, **fields: Any) -> None:
        """Tell something that happens now."""
        self.monitor(Event(name, LEVELS[name], self.now, fields))

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
        self.tell("ClockStepped", before=before.isoformat(), after=self.now.isoformat())

    def fire(self, reason: str = "schedule", due: datetime | None = None, run: int = 1) -> None:
        """Fire, and begin the run."""
        at = (self.now if due is None else due).isoformat()
        self.tell("TimerFired", timer="t", target="job", reason=reason, scheduledTime=at, runId=run)
        self.tell("ServiceRunStarted", service="job", runId=run, reason=reason, timer="t", pid=1)

    def end(self, result: str = "success", run: int = 1) -> None:
        """End the run."""
        fields = {"service": "job", "runId": run, "reason": "schedule", "timer": "t", "duration": 1}
        self.tell("ServiceRunEnded", **fields, result=result)
        self.tell("TimerRunEnded", timer="t", target="job", runId=run, result=result, duration=1)

    def miss(self, reason: str = "overlap") -> None:
        """Miss what is due now."""
        self.tell("TimerMissed", timer="t", target="job", reason=reason, slot=self.now.isoformat())

    def violated(self) -> list[str]:
        """The properties that were objected to, one for each time."""
        return [event.fields["property"] for event in self.told]


def test_a_good_day() -> None:
    """Slots that are fired for and missed leave nothing to say; what was not tested stays open."""
    desk = Desk()
    desk.until("13:00:00")
    desk.fire()
    desk.until("14:00:00")
    desk.miss()
    desk.end()
    desk.until("14:30:00")
    assert desk.violated() == []
    verdicts = {finding.property: finding.verdict for finding in desk.monitor.findings()}
    assert verdicts == dict.fromkeys(("V1", "V2", "V3", "V4"), Verdict.HOLDS) | {"V5": Verdict.INCONCLUSIVE}


def test_silence() -> None:
    """V1: a slot that nothing answers is told once, more than a minute after it came."""
    desk = Desk()
    desk.until("13:01:00")
    assert desk.violated() == []
    desk.until("13:02:00")
    desk.until("13:50:00")
    assert desk.violated() == ["V1"]
    assert desk.told[0].fields["taskName"] == "t"
    assert "2026-01-01T13:00:00" in desk.told[0].fields["reason"]
    assert desk.monitor.verdict("V1") is Verdict.VIOLATED


def test_looking_when_silence_ends_is_enough() -> None:
    """V1: looking only when the monitor says so finds a slot that nothing answers within two minutes."""
    desk = Desk()
    for _ in range(3):
        silence_us = desk.monitor.silence_us(desk.now)
        assert silence_us is not None
        desk.now += timedelta(microseconds=silence_us)
        desk.steady_us += silence_us
        desk.monitor.look(desk.now)
        if desk.violated():
            break
    assert desk.violated() == ["V1"]
    assert today("13:01:00") < desk.now < today("13:02:01")


def test_an_answered_slot_is_not_looked_for() -> None:
    """Once a slot is answered no look is needed until the next one could have gone without an answer."""
    desk = Desk()
    desk.until("13:00:00")
    desk.fire()
    desk.until("13:10:00")
    assert desk.monitor.silence_us(desk.now) == 51 * 60 * 1_000_000


@pytest.mark.parametrize("name", ["TimersDisabled", "SupervisorStopping", "StoreFault"])
def test_silence_without_end(name: str) -> None:
    """No look is needed while nothing is asked of timers, or none has a calendar."""
    desk = Desk()
    assert desk.monitor.silence_us(desk.now) == 3_630 * 1_000_000
    desk.tell(name, error="full")
    assert desk.monitor.silence_us(desk.now) is None
    interval = Desk(on_calendar=(), on_unit_active_sec=60)
    assert interval.monitor.silence_us(interval.now) is None


def test_the_next_slot_does_not_answer_the_last() -> None:
    """V1: being right an hour later does not undo it."""
    desk = Desk()
    desk.until("14:00:00")
    desk.fire()
    assert desk.violated() == ["V1"]


@pytest.mark.parametrize("name", ["TimersDisabled", "SupervisorStopping", "StoreFault"])
def test_silence_with_a_reason(name: str) -> None:
    """V1 asks for nothing while timers are off, the supervisor stops, or nothing can be written."""
    desk = Desk()
    desk.until("12:59:00")
    desk.tell(name, error="full")
    desk.until("15:00:00")
    assert desk.violated() == []


def test_asked_again_after_a_fault() -> None:
    """V1 asks again, a minute from then, when the store has recovered."""
    desk = Desk()
    desk.tell("StoreFault", error="full")
    desk.until("13:30:00")
    desk.tell("StoreRecovered", error="full")
    desk.until("13:31:00")
    assert desk.violated() == []
    desk.until("13:32:00")
    assert desk.violated() == ["V1"]


def test_a_clock_that_jumps() -> None:
    """A slot that a step or a suspend jumped over is late by the steady clock, not by the wall's."""
    desk = Desk()
    desk.now += timedelta(hours=5)
    desk.monitor.look(desk.now)
    desk.fire("catch-up", due=datetime(2026, 1, 1, 17, tzinfo=UTC))
    assert desk.violated() == []


def test_a_removed_timer() -> None:
    """Nothing is asked of a timer that is gone."""
    desk = Desk()
    desk.tell("TimerRemoved", timer="t", target="job")
    desk.until("14:30:00")
    assert desk.violated() == []


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
    desk = Desk(**options)
    desk.until("12:30:00")
    desk.fire(reason, due=today(due))
    assert "V2" in desk.violated()


def test_start_up_comes_once() -> None:
    """V2: the start-up trigger fires once for each start."""
    desk = Desk(on_startup_sec=60)
    desk.until("12:02:00")
    desk.fire("startup")
    desk.end()
    assert desk.violated() == []
    desk.fire("startup", run=2)
    assert desk.violated() == ["V2"]


def test_an_interval_too_early() -> None:
    """V2: an interval counts from the end of the target's last run, whoever started it."""
    desk = Desk(on_unit_active_sec=600)
    desk.tell("ServiceRunStarted", service="job", runId=8, reason="manual", pid=1)
    desk.tell("ServiceRunEnded", service="job", runId=8, reason="manual", result="success", duration=0)
    desk.until("12:10:30")
    desk.fire("interval")
    desk.end()
    assert desk.violated() == []
    desk.until("12:20:00")
    desk.fire("interval", run=2)
    assert desk.violated() == ["V2"]


def test_a_slot_answered_twice() -> None:
    """V3: neither a second firing nor a miss after a run may answer the same slot."""
    desk = Desk()
    desk.until("13:00:00")
    desk.fire()
    desk.end()
    desk.fire(run=2)
    desk.miss()
    assert desk.violated() == ["V3", "V3"]


def test_fired_and_then_missed() -> None:
    """A firing that could not be started after all is a miss, and that is one answer."""
    desk = Desk()
    desk.until("13:00:00")
    at = desk.now.isoformat()
    desk.tell("TimerFired", timer="t", target="job", reason="schedule", scheduledTime=at, runId=1)
    desk.miss()
    assert desk.violated() == []


@pytest.mark.parametrize(("back", "expected"), [(timedelta(hours=1), []), (timedelta(minutes=4), ["V3"])])
def test_a_clock_set_back(back: timedelta, expected: list[str]) -> None:
    """After a large step back slots count afresh; after a small one they do not come again."""
    desk = Desk(on_calendar=(Calendar(),))
    desk.until("13:00:00")
    desk.told.clear()
    desk.fire()
    desk.end()
    before, desk.now = desk.now, desk.now - back
    desk.tell("ClockStepped", before=before.isoformat(), after=desk.now.isoformat())
    desk.fire(run=2)
    assert desk.violated() == expected


def test_runs_at_once() -> None:
    """V4: a run of a target may not begin while another is under way."""
    desk = Desk()
    desk.until("13:00:00")
    desk.fire()
    desk.tell("ServiceRunStarted", service="job", runId=2, reason="manual", pid=2)
    assert desk.violated() == ["V4"]
    desk.tell("ServiceRunStarted", service="other", runId=3, reason="manual", pid=2)
    desk.tell("ServiceRunStarted", service="other", runId=4, reason="manual", pid=2)
    assert desk.violated() == ["V4"], "others are none of its business"


@pytest.mark.parametrize(
    ("result", "wait", "expected"),
    [("exit", "13:01:00", []), ("exit", "13:00:30", ["V5"]), ("signal", "13:01:00", ["V5"])],
)
def test_retries(result: str, wait: str, expected: list[str]) -> None:
    """V5: only an exit code is retried, and not before the delay."""
    desk = Desk(retry_intervals_sec=(60,))
    desk.until("13:00:00")
    desk.fire()
    desk.end(result)
    desk.until(wait)
    desk.fire("retry", run=2)
    assert desk.violated() == expected


def test_too_many_retries() -> None:
    """V5: when the delays are used up there is no more, until a fresh firing gives them back."""
    desk = Desk(retry_intervals_sec=(60,))
    desk.until("13:00:00")
    for run, reason, wait in (
        (1, "schedule", "13:02:00"),
        (2, "retry", "13:04:00"),
        (3, "retry", "14:00:00"),
    ):
        desk.fire(reason, run=run)
        desk.end("exit", run=run)
        assert desk.violated() == ([] if run < 3 else ["V5"])
        desk.until(wait)
    desk.fire(run=4)
    desk.end("exit", run=4)
    desk.until("14:02:00")
    desk.fire("retry", run=5)
    assert desk.violated() == ["V5"]


def test_a_slot_that_comes_again() -> None:
    """V1: a slot that a small step back puts ahead again has its minute from when it comes again."""
    desk = Desk()
    desk.until("13:00:10")
    desk.step("12:56:10")
    desk.until("13:00:30")
    assert desk.violated() == []
    desk.until("13:02:00")
    assert desk.violated() == ["V1"]


def put_to_work_at(clock: str, *, answered: str, missed: str | None = None) -> Desk:
    """A desk whose timers begin at one time; what they answered and missed before is as the store says."""
    desk = Desk()
    desk.now, desk.answered = today(clock), today(answered)
    desk.missed = None if missed is None else today(missed)
    desk.tell("TimersEnabled", timers=1)
    return desk


@pytest.mark.parametrize("answered", ["13:00:00", "13:00:40", "13:02:00"])
def test_a_slot_that_a_session_before_answered(answered: str) -> None:
    """V1: a minute that a small step back puts ahead again, with a restart after it, was answered before."""
    desk = put_to_work_at("12:57:00", answered=answered)
    desk.until("13:30:00")
    assert desk.violated() == []
    desk.until("14:02:00")
    assert desk.violated() == ["V1"], "the next slot is asked for as ever"


@pytest.mark.parametrize("answered", ["11:00:00", "12:59:59", "13:02:01", "15:00:00"])
def test_a_slot_that_no_session_has_answered(answered: str) -> None:
    """V1: what was answered before the slot, or under a clock that was far ahead, does not answer it."""
    desk = put_to_work_at("12:57:00", answered=answered)
    desk.until("13:02:00")
    assert desk.violated() == ["V1"]


def test_what_a_reload_changes_was_not_answered_before() -> None:
    """V1: a changed timer counts from its change, not from what its state says when it is asked for."""
    desk = Desk()
    desk.until("12:59:59")
    desk.tell("TimerOverridden", timer="t", target="job", before="", after="")
    desk.answered = NOON.replace(hour=13, minute=0, second=0)
    desk.until("13:02:00")
    assert desk.violated() == ["V1"]


@pytest.mark.parametrize(("answered", "expected"), [("13:00:00", []), ("12:00:00", ["V1"])])
def test_a_mended_timer_goes_on_from_what_was_answered(answered: str, expected: list[str]) -> None:
    """V1: a timer whose invalid definition is mended is watched again, from where its row says it was."""
    desk = Desk()
    mended, desk.definitions = desk.definitions, []
    desk.tell("TimersEnabled", timers=0)
    desk.until("12:59:00")
    desk.definitions, desk.answered = mended, today(answered)
    desk.tell("TimerRecalled", timer="t", target="job")
    assert desk.monitor.silence_us(desk.now) == 0, "its definition is yet to be asked for"
    desk.until("13:02:00")
    assert desk.violated() == expected


def test_a_miss_that_a_session_before_told() -> None:
    """V1: set back and forth again, the clock jumps over a slot whose miss is on record: not told twice."""
    desk = put_to_work_at("12:57:00", answered="11:30:00", missed="16:00:00")
    desk.step("16:30:00")
    desk.until("16:59:00")
    assert desk.violated() == []
    desk.until("17:02:00")
    assert desk.violated() == ["V1"], "the next slot is asked for as ever"


@pytest.mark.parametrize(
    "missed",
    ["15:00:00", "16:20:00", "17:00:00"],
    ids=["an older slot", "no slot", "a slot that is yet to come"],
)
def test_another_miss_does_not_answer(missed: str) -> None:
    """V1: a miss on record stands for the slots jumped over only if it is of the latest of them."""
    desk = put_to_work_at("12:57:00", answered="12:50:00", missed=missed)
    desk.step("16:30:00")
    desk.until("16:32:00")
    assert desk.violated() == ["V1"]


def test_a_miss_that_was_told_and_comes_in_its_time() -> None:
    """V1: a slot that comes again in its time, after a large step back, is asked for, whatever was told."""
    desk = put_to_work_at("15:58:00", answered="15:30:00", missed="16:00:00")
    desk.until("16:02:00")
    assert desk.violated() == ["V1"]


def test_a_miss_of_its_own_is_told() -> None:
    """V1: once a session has told a miss itself, the last one of the session before stands for nothing."""
    desk = put_to_work_at("12:57:00", answered="12:50:00", missed="16:00:00")
    desk.until("13:00:00")
    desk.miss()
    desk.step("16:30:00")
    desk.until("16:32:00")
    assert desk.violated() == ["V1"]


def test_a_reload_asks_once() -> None:
    """However many timers a reload adds, the monitor asks for the definitions once, and watches them all."""
    desk = Desk()
    desk.asked = 0
    desk.definitions += [Timer(f"t{number}", "job", on_calendar=HOURLY) for number in range(20)]
    for number in range(20):
        desk.tell("TimerAdded", timer=f"t{number}", target="job")
    desk.until("12:59:00")
    assert desk.asked == 1
    desk.until("13:02:00")
    assert desk.violated() == ["V1"] * 21


def test_a_burst_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many events come before a slot is answered, it is taken from those ahead once."""
    taken: list[object] = []

    def counted(ahead: list[Any]) -> object:
        taken.append(None)
        return heappop(ahead)

    desk = Desk()
    desk.definitions = [Timer(f"t{number}", "job", on_calendar=HOURLY) for number in range(50)]
    desk.tell("TimersEnabled", timers=50)
    monkeypatch.setattr("duly.verify.timers.heappop", counted)
    desk.until("13:00:00")
    for _ in range(50):
        desk.tell("DashboardStarted", url="")
    assert len(taken) == 50
    desk.until("13:02:00")
    assert desk.violated() == ["V1"] * 50


def test_memory_does_not_grow() -> None:
    """However long a timer runs, as much is kept of it."""
    desk = Desk(on_calendar=(Calendar(),))
    for run in range(3_000):
        desk.now = desk.now.replace(second=0) + timedelta(minutes=1)
        desk.steady_us += 60_000_000
        desk.fire(run=run)
        desk.end(run=run)
    assert desk.violated() == []
    assert len(desk.monitor._ahead) <= 2
    assert len(desk.monitor._timers) == len(desk.monitor._targets) == 1


# --- slots ---


def first_slot(zone: str = "UTC", after: str = "2026-01-01 00:00", **fields: Any) -> str:
    tz = ZoneInfo(zone)
    at_us = Slots((Calendar(**fields),), tz).after(
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
    slots = Slots((Calendar(minute=(10,)), Calendar(minute=(5,))), UTC)
    noon_us = instant_us(datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert slots.after(noon_us) == noon_us + 300_000_000
    assert slots.has(noon_us + 600_000_000)
    assert not slots.has(noon_us + 601_000_000)
