"""The monitor of shared timers, event by event: what it knows of a timer ends where its stint does."""

from datetime import timedelta
from typing import Any

import pytest

from duly.config.schema import Timer
from duly.verify.declared import Declared, Stint
from duly.verify.held import HeldMonitor
from duly.verify.properties import Verdict
from tests.unit.test_timer_monitor import HOURLY, Desk, today

MINUTE_US = 60_000_000


class HeldDesk(Desk):
    """A monitor of shared timers, all in one shard, which this machine holds to begin with."""

    def __init__(self, **options: Any) -> None:
        self.stint: Stint | None = Stint(1)
        self.is_under_way = False
        super().__init__(**options)

    def new_monitor(self) -> HeldMonitor:
        """The monitor."""
        return HeldMonitor(
            self.declared,
            lambda: {} if self.stint is None else {0: self.stint},
            [self.told.append],
            steady_us=lambda: self.steady_us,
            slack_us=20_000_000,
        )

    def declared(self) -> list[Declared]:
        """What is at work here."""
        if (stint := self.stint) is None:
            return []
        return [each._replace(stint=stint, is_under_way=self.is_under_way) for each in super().declared()]

    def move(self, number: int | None) -> None:
        """Let go of the shard, or take it."""
        self.stint = None if number is None else Stint(number)

    def rest(self, turns: int, *, is_able: bool) -> None:
        """Keep timers from firing, or let them."""
        assert self.stint is not None
        self.stint = self.stint._replace(turns=turns, is_able=is_able)


# --- V1 ---


def test_silence() -> None:
    """V1: a slot of a timer that is held and able is to be answered; the board gets some time more."""
    desk = HeldDesk()
    desk.until("13:01:00")
    desk.until("13:01:15")
    assert desk.violated() == []
    desk.until("13:01:30")
    assert desk.violated() == ["V1"]


def test_silence_elsewhere() -> None:
    """V1: nothing is asked of a timer that another machine holds."""
    desk = HeldDesk()
    desk.until("12:59:00")
    desk.move(None)
    desk.until("16:30:00")
    assert desk.violated() == []
    assert desk.monitor.verdict("V1") is Verdict.INCONCLUSIVE


def test_silence_before_it_came() -> None:
    """V1: a slot from before the shard was taken is the business of those who held it."""
    desk = HeldDesk()
    desk.move(None)
    desk.until("13:00:10")
    desk.move(2)
    desk.until("13:50:00")
    assert desk.violated() == []
    desk.until("14:02:00")
    assert desk.violated() == ["V1"]


def test_slot_that_came_just_before_a_move() -> None:
    """V1: a slot that was noticed here is not asked for when the shard has been away since."""
    desk = HeldDesk()
    desk.until("13:00:30")
    desk.move(2)
    desk.until("13:50:00")
    assert desk.violated() == []


def test_resting() -> None:
    """V1: while timers must not fire nothing is asked; then what came meanwhile is, from that moment on."""
    desk = HeldDesk()
    desk.until("12:59:00")
    desk.rest(1, is_able=False)
    desk.until("13:40:00")
    assert desk.violated() == []
    desk.rest(2, is_able=True)
    desk.until("13:41:00")
    assert desk.violated() == []
    desk.until("13:43:00")
    assert desk.violated() == ["V1"]


def test_resting_unseen() -> None:
    """V1: that timers were kept from firing counts, though they can again before anybody looks."""
    desk = HeldDesk()
    desk.until("13:00:30")
    desk.rest(2, is_able=True)
    desk.until("13:01:50")
    assert desk.violated() == []
    desk.until("13:02:30")
    assert desk.violated() == ["V1"]


def test_somebody_looks_again() -> None:
    """Stints change without a word, so a look is ahead while timers are at work, whatever they are."""
    desk = HeldDesk(on_calendar=())
    assert desk.monitor.silence_us(desk.now) == MINUTE_US
    desk.move(None)
    desk.monitor.look(desk.now)
    assert desk.monitor.silence_us(desk.now) == MINUTE_US
    desk.tell("TimersDisabled")
    assert desk.monitor.silence_us(desk.now) is None


# --- V2, V3 ---


def test_twice_in_one_stint() -> None:
    """V3: a slot is answered once by whoever holds it."""
    desk = HeldDesk()
    desk.until("13:00:00")
    desk.fire()
    desk.end()
    desk.rest(2, is_able=True)
    desk.fire(due=today("13:00:00"), run=2)
    assert desk.violated() == ["V3"]


def test_again_in_another_stint() -> None:
    """V3: what a former stint answered is not known any more, for its rows may have been lost."""
    desk = HeldDesk()
    desk.until("13:00:00")
    desk.fire()
    desk.end()
    desk.move(2)
    desk.fire(due=today("13:00:00"), run=2)
    assert desk.violated() == []


def test_start_up_of_another_machine() -> None:
    """V2: a start-up trigger counts from the first machine, and may come right after we started."""
    desk = HeldDesk(on_startup_sec=3600)
    desk.fire("startup")
    assert desk.violated() == []
    desk.end()
    desk.fire("startup", run=2)
    assert desk.violated() == ["V2"]


def test_interval_from_another_machine() -> None:
    """V2: an interval counts from the last run wherever it was; of those seen in this stint it is timed."""
    desk = HeldDesk(on_unit_active_sec=600)
    desk.fire("trigger")
    desk.end()
    desk.move(2)
    desk.until("12:01:00")
    desk.fire("interval", run=2)
    desk.end(run=2)
    assert desk.violated() == []
    desk.until("12:02:00")
    desk.fire("interval", run=3)
    assert desk.violated() == ["V2"]


def test_no_slot() -> None:
    """V2: what is no slot of a calendar is none on any machine."""
    desk = HeldDesk()
    desk.until("13:07:00")
    desk.fire()
    assert "V2" in desk.violated()


# --- V4, V5 ---


def test_overlap() -> None:
    """V4: two runs of a target on this machine are told, whoever holds its timers."""
    desk = HeldDesk()
    desk.until("13:00:00")
    desk.fire()
    desk.move(None)
    desk.tell("ServiceRunStarted", service="job", runId=2, reason="manual", timer=None, pid=1)
    assert desk.violated() == ["V4"]


def test_retry_of_a_run_seen() -> None:
    """V5: a retry of what began in this stint is checked, also when timers rested meanwhile."""
    desk = HeldDesk(retry_intervals_sec=(60,))
    desk.until("13:00:00")
    desk.fire()
    desk.end("exit")
    desk.rest(1, is_able=False)
    desk.rest(2, is_able=True)
    desk.until("13:01:00")
    desk.fire("retry", run=2)
    assert desk.violated() == []
    assert desk.monitor.verdict("V5") is Verdict.HOLDS
    desk.end("exit", run=2)
    desk.fire("retry", run=3)
    assert desk.violated() == ["V5"]


def test_retry_from_another_stint() -> None:
    """V5: retries are not taken along, so there is none at the beginning of a stint."""
    desk = HeldDesk(retry_intervals_sec=(60,))
    desk.until("13:00:00")
    desk.fire()
    desk.end("exit")
    desk.move(2)
    desk.until("13:01:00")
    desk.fire("retry", run=2)
    assert desk.violated() == ["V5"]


def test_retry_of_what_was_under_way() -> None:
    """V5: timers fire before all of them are at work; a retry of that is held against nobody, once."""
    desk = HeldDesk(retry_intervals_sec=(60,))
    desk.is_under_way = True
    desk.move(2)
    desk.until("12:02:00")
    desk.fire("retry")
    desk.end()
    assert desk.violated() == []
    assert desk.monitor.verdict("V5") is Verdict.INCONCLUSIVE
    desk.until("13:00:00")
    desk.fire(run=2)
    desk.end(run=2)
    desk.fire("retry", run=3)
    assert desk.violated() == ["V5"]


# --- what is at work ---


def test_another_target() -> None:
    """A timer that gets another target is watched there, though the old shard tells that it has gone."""
    desk = HeldDesk()
    desk.definitions = [Timer("t", "other", on_calendar=HOURLY)]
    desk.tell("TimerOverridden", timer="t", target="other", before="", after="")
    desk.tell("TimerRemoved", timer="t", target="job")
    desk.until("13:02:00")
    assert desk.violated() == ["V1"]


def test_removed() -> None:
    """A timer that is removed is asked for nothing."""
    desk = HeldDesk()
    desk.tell("TimerRemoved", timer="t", target="job")
    desk.until("13:05:00")
    assert desk.violated() == []


@pytest.mark.parametrize("number", [1, 2])
def test_gate(number: int) -> None:
    """Closed and opened, the monitor begins anew, whether or not the shard is in other hands by then."""
    desk = HeldDesk()
    desk.until("13:00:00")
    desk.fire()
    desk.tell("TimersDisabled")
    desk.move(number)
    desk.now += timedelta(seconds=5)
    desk.tell("TimersEnabled", timers=1)
    desk.fire(due=today("13:00:00"), run=2)
    assert desk.violated() == ["V4"], "of runs on this machine it knows all"
    desk.until("14:02:00")
    assert desk.violated() == ["V4", "V1"]
