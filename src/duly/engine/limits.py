"""Time limits: a run that lasts longer than it may is cancelled.

A limit is a length of time. When the wall clock is stepped the deadlines move with it. The limits look after
themselves as long as there is one, whether or not anything else is being polled.
"""

from collections.abc import Callable
from datetime import UTC
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from duly.background import Background
from duly.clock import Clock
from duly.instant import LATEST_US, Instant, datetime_at, instant_of

K = TypeVar("K")

_SPARE = 64


class Limits(Generic[K]):
    """The deadlines of what is under way: runs, processes, pauses."""

    def __init__(self, clock: Clock, cancel: Callable[[K], None]) -> None:
        self._clock = clock
        self._cancel = cancel
        self._order = count()
        self._deadlines: list[tuple[Instant, int, K]] = []
        self._live: set[K] = set()
        self._watch = Background(self._watch_over, name="duly limits")

    def begin(self, run: K, deadline_us: Instant) -> None:
        """Cancel *run* if it still runs at *deadline_us*."""
        self._live.add(run)
        heappush(self._deadlines, (deadline_us, next(self._order), run))
        if self._deadlines[0][2] is run:
            self._watch_anew()

    def end(self, run: K) -> None:
        """Note that *run* has ended, whether or not it had a limit."""
        self._live.discard(run)
        if not self._live:
            self.drop()
        elif len(self._deadlines) > 2 * len(self._live) + _SPARE:
            self._deadlines = [deadline for deadline in self._deadlines if deadline[2] in self._live]
            heapify(self._deadlines)

    def shift(self, by_us: int) -> None:
        """Account for a step of the wall clock."""
        self._deadlines = [(deadline_us + by_us, order, run) for deadline_us, order, run in self._deadlines]
        if self._deadlines:
            self._watch_anew()

    def drop(self) -> None:
        """Forget all limits."""
        self._live.clear()
        self._deadlines.clear()
        self._watch.end()

    def _watch_anew(self) -> None:
        self._watch.end()
        self._watch.start()

    async def _watch_over(self) -> None:
        while self._deadlines:
            deadline_us, _, run = self._deadlines[0]
            if run in self._live and instant_of(self._clock.now()) < deadline_us:
                await self._clock.sleep_until(datetime_at(min(deadline_us, LATEST_US), UTC))
                continue
            heappop(self._deadlines)
            if run in self._live:
                self._cancel(run)
