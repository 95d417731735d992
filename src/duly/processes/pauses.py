"""Pauses: lengths of time on a clock that may be set meanwhile.

A grace of ten seconds is ten seconds, whatever the wall clock reads afterwards. The clock only knows how to
sleep until an instant, so each pause has a deadline that moves along when the clock is stepped.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC

from duly.clock import Step, Watchable
from duly.instant import LATEST_US, SECOND_US, Instant, datetime_at, instant_of


class _Pause:
    def __init__(self, deadline_us: Instant) -> None:
        self.deadline_us = deadline_us
        self.sleeper: asyncio.Task[None] | None = None


class Pauses:
    """Everybody who waits for a length of time."""

    def __init__(self, clock: Watchable, on_step: Callable[[int], None] = lambda _: None) -> None:
        self.clock = clock
        self._on_step = on_step
        self._live: set[_Pause] = set()
        self._unwatch: Callable[[], None] | None = None

    def now_us(self) -> Instant:
        return instant_of(self.clock.now())

    def begin(self) -> None:
        if self._unwatch is None:
            self._unwatch = self.clock.watch(self._on_clock_step)

    def end(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    async def wait(self, seconds: float) -> None:
        pause = _Pause(min(self.now_us() + round(seconds * SECOND_US), LATEST_US))
        self._live.add(pause)
        try:
            # Looked at again after every sleep: a step moves the deadline and wakes the sleeper.
            while self.now_us() < pause.deadline_us:
                await self._sleep(pause)
        finally:
            self._live.discard(pause)

    async def within(self, seconds: float | None, awaited: Awaitable[object]) -> bool:
        """Whether *awaited* is done before *seconds* have passed (None: however long it takes).

        It is not cancelled when time is up, only left alone.
        """
        future = asyncio.ensure_future(awaited)
        if seconds is None:
            await asyncio.wait([future])
            return True
        pause = asyncio.ensure_future(self.wait(seconds))
        try:
            await asyncio.wait([future, pause], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Also if the caller is cancelled: a pause that nobody waits for would wake for nothing.
            pause.cancel()
        if not future.done():
            pause.result()  # a clock that cannot sleep must not look like a long time
        return future.done()

    async def _sleep(self, pause: _Pause) -> None:
        moment = datetime_at(pause.deadline_us, UTC)
        pause.sleeper = sleeper = asyncio.ensure_future(self.clock.sleep_until(moment))
        try:
            # Not awaited itself: a step cancels the sleeper, and that is no cancellation of the one who
            # waits.
            await asyncio.wait([sleeper])
        finally:
            sleeper.cancel()
        if not sleeper.cancelled():
            sleeper.result()

    def _on_clock_step(self, step: Step) -> None:
        by_us = step.after_us - step.before_us
        for pause in self._live:
            pause.deadline_us = min(pause.deadline_us + by_us, LATEST_US)
            # It sleeps until the old deadline; `wait` starts another for the new one.
            if pause.sleeper is not None:
                pause.sleeper.cancel()
        self._on_step(by_us)
