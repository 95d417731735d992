"""The clock of a database: carried by a steady clock, never back untold, never standing still."""

from datetime import UTC, datetime, timedelta

from duly.clock import Step
from duly.cluster.clock import DatabaseClock
from duly.instant import SECOND_US

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * SECOND_US


class Steady:
    """A steady clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_us = 5_000

    def __call__(self) -> int:
        """What it shows."""
        return self.now_us


def clock_at_noon() -> tuple[DatabaseClock, Steady, list[Step]]:
    steady, steps = Steady(), list[Step]()
    clock = DatabaseClock(steady, wall=lambda: NOON - timedelta(hours=5))
    clock.set_by(NOON_US, asked_us=steady.now_us, heard_us=steady.now_us)
    clock.watch(steps.append)
    return clock, steady, steps


def test_host_clock_does_not_matter_once_the_database_was_asked() -> None:
    """The first answer sets the clock, whatever the host's shows."""
    clock, steady, steps = clock_at_noon()
    steady.now_us += 7
    assert clock.now_us() == NOON_US + 7
    assert not steps


def test_clock_is_never_ahead_of_the_database() -> None:
    """A first answer that took long may be as old as that: what a database dates later is later here, too."""
    steady = Steady()
    clock = DatabaseClock(steady, wall=lambda: NOON)
    asked_us = steady.now_us
    steady.now_us += SECOND_US
    clock.set_by(NOON_US, asked_us=asked_us, heard_us=steady.now_us)
    assert clock.now_us() == NOON_US


def test_small_correction_back_slows_the_clock_down() -> None:
    """A clock that was a little ahead never goes back nor stands still, and is right in twice the time."""
    clock, steady, steps = clock_at_noon()
    steady.now_us += 1_000
    clock.set_by(NOON_US, asked_us=steady.now_us, heard_us=steady.now_us)
    shown = []
    for _ in range(6):
        shown.append(clock.now_us() - NOON_US)
        steady.now_us += 500
    assert shown == [1_000, 1_250, 1_500, 1_750, 2_000, 2_500]
    assert not steps


def test_large_correction_is_a_step() -> None:
    """A database whose time was set back is followed at once, and everybody is told."""
    clock, steady, steps = clock_at_noon()
    clock.set_by(NOON_US - 60 * SECOND_US, asked_us=steady.now_us, heard_us=steady.now_us)
    assert clock.now_us() == NOON_US - 60 * SECOND_US
    assert steps == [Step(NOON_US, NOON_US - 60 * SECOND_US)]


def test_slow_answer_does_not_make_the_clock_worse() -> None:
    """An answer that agrees with the clock changes nothing."""
    clock, steady, _ = clock_at_noon()
    asked_us = steady.now_us
    steady.now_us += 3 * SECOND_US
    clock.set_by(NOON_US + SECOND_US, asked_us=asked_us, heard_us=steady.now_us)
    assert clock.now_us() == NOON_US + 3 * SECOND_US


def test_older_answer_that_comes_later_changes_nothing() -> None:
    """An answer from before the database's time was set does not undo what a newer one has shown."""
    clock, steady, steps = clock_at_noon()
    asked_us = steady.now_us
    steady.now_us += SECOND_US
    clock.set_by(NOON_US + 60 * SECOND_US, asked_us=steady.now_us, heard_us=steady.now_us)
    steady.now_us += SECOND_US
    clock.set_by(NOON_US, asked_us=asked_us, heard_us=steady.now_us)
    assert clock.now_us() == NOON_US + 61 * SECOND_US
    assert len(steps) == 1
