"""Clocks for measuring: real time at real speed, on a wall clock that reads what the benchmark needs.

Nobody wants to wait for the next minute. These clocks run as the host's does, only shifted, so what a
scheduler does at a boundary is what it does in production.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from duly.clock import HostClock, Watcher
from duly.instant import Instant, instant_of


class ShiftedClock(HostClock):
    """The host's clock, set to another time."""

    def __init__(self, reads: datetime) -> None:
        super().__init__()
        self._shift_us = instant_of(reads) - super().read_us()

    def read_us(self) -> Instant:
        """The shifted time."""
        return super().read_us() + self._shift_us


class StagedClock(HostClock):
    """A clock that stands still until everything is prepared, and then runs from where it is set to."""

    def __init__(self, stands_at: datetime) -> None:
        super().__init__()
        self._stands_at_us: Instant | None = instant_of(stands_at)
        self._shift_us = 0
        self._runs = asyncio.Event()

    def read_us(self) -> Instant:
        """The time on this clock."""
        # As short as that of HostClock: it is asked several times for each run.
        return self._stands_at_us or time.time_ns() // 1_000 + self._shift_us  # noqa: TID251 (a clock)

    def run_from(self, moment: datetime) -> float:
        """Let it run from *moment*. The answer is the `perf_counter` at which it reads just that."""
        self._shift_us = instant_of(moment) - super().read_us()
        began_s = time.perf_counter()
        self._stands_at_us = None
        self._runs.set()
        return began_s

    async def sleep_until(self, moment: datetime) -> None:
        """Sleep as the host's clock does, once the clock runs."""
        await self._runs.wait()
        await super().sleep_until(moment)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Nothing to watch: the jump at the beginning is ours."""
        del watcher
        return lambda: None


class StagedDatetime(datetime):
    """A stand-in for `datetime` in a peer's module, whose `now` is that of a staged clock."""

    clock = StagedClock(datetime(2026, 1, 1, tzinfo=UTC))

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        """The time on the staged clock."""
        del tz  # everything here is UTC
        return cls.clock.now()
