"""How long a member trusts its lease."""

from datetime import UTC

from duly.clock import Step
from duly.cluster.clock import BoardClock
from duly.cluster.lease import Lease
from duly.instant import SECOND_US, datetime_at


def test_trust_counts_from_before_the_question() -> None:
    """A slow answer shortens the trust, never lengthens it."""
    lease = Lease(6 * SECOND_US)
    assert not lease.is_trusted(0)
    lease.renew(10 * SECOND_US)
    assert lease.is_trusted(15 * SECOND_US - 1)
    assert not lease.is_trusted(15 * SECOND_US)


def test_an_answer_out_of_order_takes_nothing_away() -> None:
    """An older renewal that is heard of late changes nothing."""
    lease = Lease(6 * SECOND_US)
    lease.renew(10 * SECOND_US)
    lease.renew(8 * SECOND_US)
    assert lease.is_trusted(15 * SECOND_US - 1)


def test_an_ended_lease_is_not_trusted() -> None:
    """What was let go is not held, whatever was granted."""
    lease = Lease(6 * SECOND_US)
    lease.renew(0)
    lease.end()
    assert not lease.is_trusted(1)


class Hand:
    """A steady clock moved by hand."""

    def __init__(self) -> None:
        self.us = 1_000_000_000

    def __call__(self) -> int:
        """What it shows."""
        return self.us


def test_the_board_sets_the_clock() -> None:
    """The first answer sets the clock to the middle of what it can mean."""
    hand, steps = Hand(), list[Step]()
    clock = BoardClock(hand, wall=lambda: datetime_at(5_000_000, UTC))
    clock.watch(steps.append)
    clock.heed(5_000_000, asked_us=hand.us - 200, heard_us=hand.us)
    assert clock.now_us() == 5_000_100
    hand.us += 1_000
    assert clock.now_us() == 5_001_100
    assert steps == []


def test_a_host_that_is_wrong_is_a_step() -> None:
    """Whoever watches before the first answer has dated things by the host: it hears how wrong that was."""
    hand, steps = Hand(), list[Step]()
    clock = BoardClock(hand, wall=lambda: datetime_at(65_000_000, UTC))
    clock.watch(steps.append)
    clock.heed(5_000_000, asked_us=hand.us, heard_us=hand.us)
    assert clock.now_us() == 5_000_000
    assert steps == [Step(65_000_000, 5_000_000)]


def test_a_slow_answer_changes_nothing() -> None:
    """As long as the reckoning fits between asking and hearing it stands."""
    hand = Hand()
    clock = BoardClock(hand)
    clock.heed(5_000_000, asked_us=hand.us, heard_us=hand.us)
    hand.us += 900_000
    clock.heed(5_010_000, asked_us=hand.us - 900_000, heard_us=hand.us)
    assert clock.now_us() == 5_900_000


def test_drift_is_followed_without_a_step() -> None:
    """A clock that runs a little fast is held to what the answers allow."""
    hand, steps = Hand(), list[Step]()
    clock = BoardClock(hand, wall=lambda: datetime_at(5_000_000, UTC))
    clock.watch(steps.append)
    clock.heed(5_000_000, asked_us=hand.us, heard_us=hand.us)
    hand.us += 10_000_000
    clock.heed(14_990_000, asked_us=hand.us - 1_000, heard_us=hand.us)
    assert clock.now_us() == 15_000_000  # it does not go back, but slows down until it is right
    hand.us += 8_000
    assert clock.now_us() == 15_004_000
    hand.us += 12_000
    assert clock.now_us() == 15_011_000
    assert steps == []


def test_a_database_that_was_set_is_a_step() -> None:
    """When the board's time jumps, whoever watches hears of it."""
    hand, steps = Hand(), list[Step]()
    clock = BoardClock(hand, wall=lambda: datetime_at(5_000_000, UTC))
    end = clock.watch(steps.append)
    clock.heed(5_000_000, asked_us=hand.us, heard_us=hand.us)
    clock.heed(65_000_000, asked_us=hand.us, heard_us=hand.us)
    assert steps == [Step(5_000_000, 65_000_000)]
    end()
    clock.heed(5_000_000, asked_us=hand.us, heard_us=hand.us)
    assert len(steps) == 1
