"""A clock that a test moves by hand.

Advancing visits every instant that somebody sleeps for, in order, and at each one lets everything it set in
motion come to rest before time goes on: callbacks called, ends recorded, writes done, however many threads
took part. Nothing depends on how fast the machine is, and years pass in seconds.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import Any

from duly.clock import Step, Watcher
from duly.instant import Instant, datetime_at, duration_us, instant_of
from duly.threads import outstanding

_THREAD_PATIENCE_S = 2.0


class VirtualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError("a clock needs an aware start, such as datetime(2026, 1, 1, tzinfo=UTC)")
        self._zone = start.tzinfo
        self._now_us = instant_of(start)
        self._order = count()
        self._sleepers: list[tuple[Instant, int, asyncio.Future[None]]] = []
        self._watchers: list[Watcher] = []
        self._is_advancing = False
        self._given_up: set[asyncio.Future[Any]] = set()

    def now(self) -> datetime:
        """The present time, in the zone of the start."""
        return datetime_at(self._now_us, self._zone)

    async def sleep_until(self, moment: datetime) -> None:
        """Sleep in virtual time until the clock reads *moment* or later."""
        until_us = instant_of(moment)
        if until_us <= self._now_us:
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The number keeps the order: of two who sleep until one instant, the first to ask wakes first.
        heappush(self._sleepers, (until_us, next(self._order), woken))
        await woken

    async def advance(self, duration: timedelta) -> None:
        """Let *duration* pass."""
        left_us = duration_us(duration)
        if left_us < 0:
            raise ValueError("time does not pass backwards; to set the clock back, use step()")
        with self._advancing():
            await self._come_to_rest()
            while (next_us := self._next_sleeper_us()) is not None and next_us - self._now_us <= left_us:
                left_us -= max(next_us - self._now_us, 0)
                await self._move_to(max(next_us, self._now_us))
            await self._move_to(self._now_us + left_us)

    async def advance_to(self, moment: datetime) -> None:
        """Let time pass until the clock reads *moment*."""
        await self.advance(timedelta(microseconds=instant_of(moment) - self._now_us))

    def step(self, by: timedelta) -> None:
        """Set the clock forward or back by *by*. No time passes; watchers are called."""
        before_us = self._now_us
        self._now_us += duration_us(by)
        for watcher in list(self._watchers):
            watcher(Step(before_us, self._now_us))

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call *watcher* with every step from now on; the answer ends that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    @contextmanager
    def _advancing(self) -> Iterator[None]:
        if self._is_advancing:
            raise RuntimeError(
                "the clock is being advanced already; a callback may sleep on it, not advance it"
            )
        self._is_advancing = True
        try:
            yield
        finally:
            self._is_advancing = False

    def _next_sleeper_us(self) -> Instant | None:
        while self._sleepers and self._sleepers[0][2].done():  # the sleeper was cancelled
            heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    async def _move_to(self, instant_us: Instant) -> None:
        self._now_us = instant_us
        while (next_us := self._next_sleeper_us()) is not None and next_us <= instant_us:
            heappop(self._sleepers)[2].set_result(None)
        await self._come_to_rest()

    async def _come_to_rest(self) -> None:
        """Return when no task can go on without time passing, and no thread is at work for one."""
        loop = asyncio.get_running_loop()
        runnable = getattr(loop, "_ready", None)
        if runnable is None:
            raise RuntimeError(
                "a VirtualClock needs asyncio's own event loop: it must see when all tasks wait"
            )
        threads = outstanding(loop)
        while True:
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
            if runnable:
                continue
            working = threads.keys() - self._given_up
            if not working:
                self._given_up &= threads.keys()
                return
            _, still_working = await asyncio.wait(working, timeout=_THREAD_PATIENCE_S)
            # A callback that blocks its thread for good must not block the clock with it. A store is waited
            # for: on a busy machine its answer may take longer, and time must not pass without it.
            self._given_up |= {work for work in still_working if threads.get(work)}
