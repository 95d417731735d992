"""The clock of a cluster: the board's time, carried between beats by the host's steady clock.

Members must agree what time it is, and hosts do not: one of them may be an hour off. So a member reads the
time off the board with each beat and counts on from there with a clock that nobody can set. An answer says
that the board's time lay somewhere between asking and hearing; as long as the present reckoning fits into
that, it stands, and so a slow answer never makes it worse.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from duly.clock import NOTICEABLE_US, Step, Watcher
from duly.instant import MINUTE_US, SECOND_US, Instant, datetime_at, instant_of

Steady = Callable[[], int]
"""Microseconds of a clock that never jumps and also counts while the host sleeps."""


def steady_us() -> int:
    """The host's steady clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # CLOCK_MONOTONIC stands still while a host is suspended
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000
    return time.monotonic_ns() // 1_000


def wall() -> datetime:
    """The host's wall clock."""
    return datetime.now(UTC)  # noqa: TID251 (only until the board has been asked)


class BoardClock:
    """The time of a board. Before the first beat it is the host's."""

    def __init__(self, steady: Steady = steady_us, *, wall: Callable[[], datetime] = wall) -> None:
        self._steady = steady
        self._ahead_us = instant_of(wall()) - steady()
        """How far the board's time is ahead of the steady clock."""
        self._is_set = False
        self._slowed: tuple[int, Instant] | None = None
        """When it was last set, by the steady clock, and what it showed then, if it goes slowly since."""
        self._watchers: list[Watcher] = []

    @property
    def steady(self) -> Steady:
        """The clock that carries it."""
        return self._steady

    def now(self) -> datetime:
        """The time of the board, in UTC."""
        return datetime_at(self.now_us(), UTC)

    def now_us(self) -> Instant:
        """The time of the board.

        It does not go back by what nobody is told of, and does not stand still either (two runs must not
        begin at the same time): when it was a little ahead it goes at half the speed for a while.
        """
        steady_us = self._steady()
        now_us = steady_us + self._ahead_us
        if self._slowed is None:
            return now_us
        since_us, shown_us = self._slowed
        return max(now_us, shown_us + (steady_us - since_us) // 2)

    async def sleep_until(self, moment: datetime) -> None:
        """Return once the board's time is *moment* or later."""
        until_us = instant_of(moment)
        while (left_us := until_us - self.now_us()) > 0:  # noqa: ASYNC110 (a clock has nobody to wait for)
            await asyncio.sleep(min(left_us, MINUTE_US) / SECOND_US)  # noqa: TID251 (this is a clock)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Report to *watcher* when the board's time was set."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def heed(self, board_us: Instant, *, asked_us: int, heard_us: int) -> None:
        """Set the clock by a board that said *board_us* between these two readings of the steady clock."""
        at_least_us, at_most_us = board_us - heard_us, board_us - asked_us
        before_us, shown_us = self._ahead_us, self.now_us()
        self._ahead_us = min(max(before_us, at_least_us), at_most_us)
        was_set, self._is_set = self._is_set, True
        self._slowed = None
        if not was_set:
            self._ahead_us = (at_least_us + at_most_us) // 2
        if abs(self._ahead_us - before_us) > NOTICEABLE_US:
            step = Step(heard_us + before_us, heard_us + self._ahead_us)
            for watcher in tuple(self._watchers):
                watcher(step)
        elif was_set:
            self._slowed = self._steady(), shown_us
