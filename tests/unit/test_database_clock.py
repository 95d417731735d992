"""The clock of a database: carried by a steady clock, never back untold, never standing still."""

from datetime import UTC, datetime, timedelta

from duly.clock import Step
from duly.cluster.clock import DatabaseClock
from duly.instant import SECOND_US

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * SECOND_US


class Clock:
    """The clock under test, on a steady clock that is moved by hand; the first answer took some time."""

    def __init__(self, first_us: int = 0) -> None:
        self.steady_us = 5_000
        self.steps: list[Step] = []
        self.clock = DatabaseClock(lambda: self.steady_us, wall=lambda: NOON - timedelta(hours=5))
        self.answer(0, took_us=first_us)
        self.clock.watch(self.steps.append)

    def answer(self, after_noon_us: int, *, took_us: int = 0) -> None:
        """Hear from the database that it is so long after noon."""
        asked_us = self.steady_us
        self.steady_us += took_us
        self.clock.set_by(NOON_US + after_noon_us, asked_us=asked_us, heard_us=self.steady_us)

    @property
    def now_us(self) -> int:
        return self.clock.now_us() - NOON_US


def test_host_clock_does_not_matter_once_the_database_was_asked() -> None:
    """The first answer sets the clock, whatever the host's shows."""
    one = Clock()
    one.steady_us += 7
    assert (one.now_us, one.steps) == (7, [])


def test_clock_is_never_ahead_of_the_database() -> None:
    """A first answer that took long may be as old as that: what a database dates later is later here, too."""
    assert Clock(first_us=SECOND_US).now_us == 0


def test_small_correction_back_slows_the_clock_down() -> None:
    """A clock that was a little ahead never goes back nor stands still, and is right in twice the time."""
    one, shown = Clock(), []
    one.steady_us += 1_000
    one.answer(0)
    for _ in range(6):
        shown.append(one.now_us)
        one.steady_us += 500
    assert (shown, one.steps) == ([1_000, 1_250, 1_500, 1_750, 2_000, 2_500], [])


def test_large_correction_is_a_step() -> None:
    """A database whose time was set back is followed at once, and everybody is told."""
    one = Clock()
    one.answer(-60 * SECOND_US)
    assert one.now_us == -60 * SECOND_US
    assert one.steps == [Step(NOON_US, NOON_US - 60 * SECOND_US)]


def test_slow_answer_does_not_make_the_clock_worse() -> None:
    """An answer that agrees with the clock changes nothing."""
    one = Clock()
    one.answer(SECOND_US, took_us=3 * SECOND_US)
    assert one.now_us == 3 * SECOND_US


def test_older_answer_that_comes_later_changes_nothing() -> None:
    """An answer from before the database's time was set does not undo what a newer one has shown."""
    one = Clock()
    asked_us = one.steady_us
    one.steady_us += SECOND_US
    one.answer(60 * SECOND_US)
    one.steady_us += SECOND_US
    one.clock.set_by(NOON_US, asked_us=asked_us, heard_us=one.steady_us)
    assert (one.now_us, len(one.steps)) == (61 * SECOND_US, 1)
