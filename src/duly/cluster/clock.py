"""The clock of a cluster: the database's time, carried between heartbeats by the host's steady clock.

Nodes must agree what time it is, and hosts do not: one of them may be an hour off. So a node reads the
time of the database with each heartbeat and counts on from there with a clock that nobody can set. An answer
says that the database's time lay somewhere between request and answer. A clock that already shows a
time between these two stays as it is, so a slow answer never makes it worse.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from duly.clock import NOTICEABLE_US, Steady, Step, Watcher, steady_us
from duly.instant import MINUTE_US, SECOND_US, Instant, datetime_at, instant_of


def wall() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 (only until the database has been asked)


class DatabaseClock:
    """The time of the database. Before the first heartbeat it is the host's."""

    def __init__(self, steady: Steady = steady_us, *, wall: Callable[[], datetime] = wall) -> None:
        self._steady = steady
        self._ahead_us = instant_of(wall()) - steady()
        """How far the database's time is ahead of the steady clock."""
        self._is_set = False
        self._asked_us = 0
        self._slowed: tuple[int, Instant] | None = None
        """When it was last set, by the steady clock, and what it showed then, if it goes slowly since."""
        self._watchers: list[Watcher] = []

    @property
    def steady(self) -> Steady:
        return self._steady

    def now(self) -> datetime:
        return datetime_at(self.now_us(), UTC)

    def now_us(self) -> Instant:
        """The time of the database.

        It goes back only by steps, which watchers see. It does not stand still either, because two runs
        must not begin at the same time: when it was a little ahead it goes at half the speed for a while.
        """
        steady_us = self._steady()
        now_us = steady_us + self._ahead_us
        if self._slowed is None:
            return now_us
        since_us, shown_us = self._slowed
        return max(now_us, shown_us + (steady_us - since_us) // 2)

    async def sleep_until(self, moment: datetime) -> None:
        """Return once the database's time is *moment* or later."""
        until_us = instant_of(moment)
        while (left_us := until_us - self.now_us()) > 0:  # noqa: ASYNC110 (a clock has nobody to wait for)
            await asyncio.sleep(min(left_us, MINUTE_US) / SECOND_US)  # noqa: TID251 (this is a clock)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Report to *watcher* when the database's time was set."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def set_by(self, database_us: Instant, *, asked_us: int, heard_us: int) -> None:
        """Set the clock by a database that said *database_us* between these readings of the steady clock."""
        if asked_us < self._asked_us:
            return  # a newer answer was faster, and the database may have been set in between
        self._asked_us = asked_us
        at_least_us, at_most_us = database_us - heard_us, database_us - asked_us
        before_us, shown_us = self._ahead_us, self.now_us()
        self._ahead_us = min(max(before_us, at_least_us), at_most_us)
        was_set, self._is_set = self._is_set, True
        self._slowed = None
        if not was_set:
            # Never ahead of the database: a run that it dates right after the list was brought would seem to
            # have begun before its task was registered, and its restart would get another run id.
            self._ahead_us = at_least_us
        if abs(self._ahead_us - before_us) > NOTICEABLE_US:
            step = Step(heard_us + before_us, heard_us + self._ahead_us)
            for watcher in tuple(self._watchers):
                watcher(step)
        elif was_set:
            self._slowed = self._steady(), shown_us
