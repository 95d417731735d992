"""The clock of a board: carried by a steady clock, never back untold, never standing still."""

from datetime import UTC, datetime, timedelta

from duly.clock import Step
from duly.cluster.clock import BoardClock
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


def clock_at_noon() -> tuple[BoardClock, Steady, list[Step]]:
    steady, steps = Steady(), list[Step]()
    clock = BoardClock(steady, wall=lambda: NOON - timedelta(hours=5))
    clock.heed(NOON_US, asked_us=steady.now_us, heard_us=steady.now_us)
    clock.watch(steps.append)
    return clock, steady, steps


def test_host_clock_does_not_matter_once_the_board_was_asked() -> None:
    """The first answer sets the clock, whatever the host's shows."""
    clock, steady, steps = clock_at_noon()
    steady.now_us += 7
    assert clock.now_us() == NOON_US + 7
    assert not steps


def test_small_correction_back_slows_the_clock_down() -> None:
    """A clock that was a little ahead never goes back nor stands still, and is right in twice the time."""
    clock, steady, steps = clock_at_noon()
    steady.now_us += 1_000
    clock.heed(NOON_US, asked_us=steady.now_us, heard_us=steady.now_us)
    shown = []
    for _ in range(6):
        shown.append(clock.now_us() - NOON_US)
        steady.now_us += 500
    assert shown == [1_000, 1_250, 1_500, 1_750, 2_000, 2_500]
    assert not steps


def test_large_correction_is_a_step() -> None:
    """A board whose time was set back is followed at once, and everybody is told."""
    clock, steady, steps = clock_at_noon()
    clock.heed(NOON_US - 60 * SECOND_US, asked_us=steady.now_us, heard_us=steady.now_us)
    assert clock.now_us() == NOON_US - 60 * SECOND_US
    assert steps == [Step(NOON_US, NOON_US - 60 * SECOND_US)]


def test_slow_answer_does_not_make_the_clock_worse() -> None:
    """An answer within whose time the present reckoning lies changes nothing."""
    clock, steady, _ = clock_at_noon()
    asked_us = steady.now_us
    steady.now_us += 3 * SECOND_US
    clock.heed(NOON_US + SECOND_US, asked_us=asked_us, heard_us=steady.now_us)
    assert clock.now_us() == NOON_US + 3 * SECOND_US
