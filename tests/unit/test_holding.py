"""What the monitor is told of the shared timers that a machine holds, and by which time."""

from datetime import UTC, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from duly.cluster.clock import BoardClock
from duly.config.schema import Timer
from duly.daemon.holding import Stopwatch, declared_of, stints_of
from duly.verify.declared import Stint


class State(NamedTuple):
    """A timer at work."""

    definition: Timer
    answered_us: int = 7
    last_missed_us: int | None = None
    running_run: int | None = None
    retry_at_us: int | None = None


class Held(NamedTuple):
    """Timers of shards."""

    by_shard: dict[int, list[State]]
    able: set[int]

    def stints(self) -> dict[int, Stint]:
        """How they are at work."""
        return {shard: Stint(shard + 1, 0, shard in self.able) for shard in self.by_shard}

    def held(self) -> list[tuple[int, State]]:
        """The timers."""
        return [(shard, state) for shard, states in self.by_shard.items() for state in states]


def test_nothing_is_held() -> None:
    """While the gate is closed there is nothing to watch."""
    assert (stints_of(None), declared_of(None, UTC)) == ({}, [])


def test_what_is_held() -> None:
    """Each timer comes with its zone, its facts, how its shard is at work, and whether it was under way."""
    states = [
        State(Timer("a", "job"), last_missed_us=3),
        State(Timer("b", "job", timezone="Asia/Tokyo"), running_run=1),
        State(Timer("c", "job"), retry_at_us=9),
    ]
    a, b, c = declared_of(Held({4: states}, {4}), UTC)
    assert (a.timer.id, a.zone, a.answered_us, a.missed_us, a.stint) == ("a", UTC, 7, 3, Stint(5, 0, True))
    assert b.zone == ZoneInfo("Asia/Tokyo")
    assert [each.is_under_way for each in (a, b, c)] == [False, True, True]


def test_held_twice() -> None:
    """A timer on its way to the shard of another target is the one that can fire, in whatever order."""
    old, new = State(Timer("a", "old")), State(Timer("a", "new"))
    for by_shard in ({0: [old], 1: [new]}, {1: [new], 0: [old]}):
        [declared] = declared_of(Held(by_shard, {1}), UTC)
        assert (declared.timer.target, declared.stint) == ("new", Stint(2, 0, True))


def test_lengths_of_time() -> None:
    """A step of the board's clock is no length of time; that it runs a little faster than ours is one."""
    steady = 1_000_000_000
    clock = BoardClock(lambda: steady, wall=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    stopwatch = Stopwatch(clock)
    start_us, began_us = clock.now_us(), stopwatch.steady_us()
    clock.heed(start_us + 3_600_000_000, asked_us=steady, heard_us=steady)
    assert clock.now_us() == start_us + 3_600_000_000
    assert stopwatch.steady_us() == began_us
    steady += 10_000_000
    clock.heed(start_us + 3_610_500_000, asked_us=steady, heard_us=steady)
    assert stopwatch.steady_us() == began_us + 10_500_000
    stopwatch.forget()
    clock.heed(start_us, asked_us=steady, heard_us=steady)
    assert stopwatch.steady_us() < began_us
