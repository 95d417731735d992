"""The wall clock of a simulated host: steady time plus an offset that can be changed.

It belongs to the host and outlives processes; what a dead process was waiting for is forgotten with it. Steps
are reported at once, as by `VirtualClock`.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count

from duly.clock import Step, Watcher
from duly.instant import SECOND_US, Instant, datetime_at, instant_of
from tests.simulation.steady import Steady


class SimClock:
    """A wall clock."""

    def __init__(self, steady: Steady, start_us: Instant) -> None:
        self._steady = steady
        self._offset_us = start_us - steady.now_us
        self._sleepers: dict[int, asyncio.Future[None]] = {}
        self._order = count()
        self._shown_us, self._shown = start_us, datetime_at(start_us, UTC)
        self._watchers: list[Watcher] = []

    @property
    def now_us(self) -> Instant:
        """What the clock shows."""
        return self._steady.now_us + self._offset_us

    def now(self) -> datetime:
        """What the clock shows, in UTC."""
        now_us = self._steady.now_us + self._offset_us
        if now_us != self._shown_us:  # much happens within one instant of virtual time
            self._shown_us, self._shown = now_us, datetime_at(now_us, UTC)
        return self._shown

    async def sleep_until(self, moment: datetime) -> None:
        """Sleep until the clock shows *moment* or later, whichever way it gets there."""
        until_us = instant_of(moment)
        if until_us <= self.now_us:
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
            return
        while (left_us := until_us - self.now_us) > 0:
            await self._sleep(left_us)

    async def _sleep(self, duration_us: int) -> None:
        loop = asyncio.get_running_loop()
        number, woken = next(self._order), loop.create_future()
        timer = loop.call_at((self._steady.now_us + duration_us) / SECOND_US, _wake, woken)
        self._sleepers[number] = woken
        try:
            await woken
        finally:
            timer.cancel()
            self._sleepers.pop(number, None)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call *watcher* with every step from now on; the answer ends that."""
        self._watchers.append(watcher)
        return lambda: self._unwatch(watcher)

    def _unwatch(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def step(self, by_us: int) -> None:
        """Set the clock forward or back, or let the host have slept."""
        before_us = self.now_us
        self._offset_us += by_us
        for woken in self._sleepers.values():
            _wake(woken)
        for watcher in list(self._watchers):
            watcher(Step(before_us, self.now_us))

    def forget(self) -> None:
        """Forget all who slept or watched: their process is dead."""
        self._sleepers.clear()
        self._watchers.clear()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
