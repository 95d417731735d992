"""Clocks: what a scheduler asks for the time, and how it learns that the time was changed under it.

A clock says what time it is and sleeps until an instant. A clock that is `Watchable` also reports when
the wall clock jumped (somebody set it, or the host slept); the scheduler then counts from there. A user's
clock without that is watched from outside, once a minute. Only this module reads the host's time.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

from duly.background import Background
from duly.instant import MINUTE_US, SECOND_US, Instant, datetime_at, instant_of

_MINUTE = timedelta(minutes=1)

NOTICEABLE_US = SECOND_US
"""Jumps smaller than this are the clock being disciplined, not stepped."""


class Step(NamedTuple):
    """The wall clock read *before_us*, and then, without that time passing, *after_us*."""

    before_us: Instant
    after_us: Instant


Watcher = Callable[[Step], None]


class Clock(Protocol):
    """What a scheduler needs of a clock."""

    def now(self) -> datetime:
        """The present time, as an aware datetime."""

    async def sleep_until(self, moment: datetime, /) -> None:
        """Return once the clock reads *moment* or later."""


@runtime_checkable
class Watchable(Clock, Protocol):
    """A clock that reports its own steps."""

    def watch(self, watcher: Watcher, /) -> Callable[[], None]:
        """Call *watcher* with every step from now on; the answer ends that."""


class HostClock:
    def __init__(self) -> None:
        self._watchers: list[Watcher] = []
        self._seen_us = self._seen_ns = 0
        """The wall clock and the monotonic clock at the last look, as long as somebody watches."""

    def now(self) -> datetime:
        """The present time, in UTC. Watchers are called with a step before anybody reads the new time."""
        return datetime_at(self.now_us(), UTC)

    def now_us(self) -> Instant:
        """As `now`; without a datetime, because it is asked several times for each run."""
        now_us = self.read_us()
        if self._watchers:
            self._look(now_us)
        return now_us

    def read_us(self) -> Instant:
        """What the host's clock shows, without a look at the watches."""
        return time.time_ns() // 1_000  # noqa: TID251 (this is the clock)

    async def sleep_until(self, moment: datetime) -> None:
        """Return once the host's clock reads *moment* or later."""
        # Minute by minute, because the loop sleeps on the monotonic clock: it would not notice that the wall
        # clock was set, and over days the two drift apart. Watches look at the same instants, so that the
        # host is woken once.
        until_us = instant_of(moment)
        while (left_us := until_us - (now_us := self.now_us())) > 0:
            slice_s = min(left_us / SECOND_US, until_minute_s(now_us))
            await asyncio.sleep(slice_s)  # noqa: TID251 (this is the clock)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Report steps to *watcher*, within a minute."""
        self._look(self.read_us())  # a step that came before is no news for this one
        self._watchers.append(watcher)
        loop = asyncio.get_running_loop()
        handle: asyncio.TimerHandle

        def again() -> asyncio.TimerHandle:
            # At the beginning of a minute: that is when everything else wakes, too.
            return loop.call_later(until_minute_s(self._seen_us), look)

        def look() -> None:
            nonlocal handle
            self.now_us()
            handle = again()

        handle = again()

        def end() -> None:
            handle.cancel()
            self._watchers.remove(watcher)

        return end

    def _look(self, now_us: Instant) -> None:
        """Compare both clocks since the last look, which may be from anybody who asked for the time."""
        before_us, before_ns = self._seen_us, self._seen_ns
        self._seen_us, self._seen_ns = now_us, time.monotonic_ns()
        # As if the step had come right after the last look. Dues since then count as passed in the new
        # time, so that none is lost between the step and its being noticed.
        after_us = now_us - (self._seen_ns - before_ns) // 1_000
        if abs(after_us - before_us) > NOTICEABLE_US:
            for watcher in tuple(self._watchers):
                watcher(Step(before_us, after_us))


class WatchedClock:
    """A user's clock that only tells the time and sleeps, looked at once a minute to notice steps.

    Without a second clock to compare with, a jump forward looks like a long sleep. It needs no report:
    what was missed is due then. A clock that reads earlier than before was set back.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        """What the user's clock says."""
        return self._clock.now()

    async def sleep_until(self, moment: datetime) -> None:
        """Sleep as the user's clock does, in slices, so that a clock set forward is noticed."""
        while (now := self.now()) < moment:
            await self._clock.sleep_until(min(moment, now + _MINUTE))

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Report steps back to *watcher*."""
        watch = _PlainWatch(self._clock, watcher)

        def end() -> None:
            watch.looking.end()

        return end


class _PlainWatch:
    """Looks at a user's clock once a minute. What it showed last is kept when the task is restarted."""

    def __init__(self, clock: Clock, watcher: Watcher) -> None:
        self._clock = clock
        self._watcher = watcher
        self._wall_us = instant_of(clock.now())
        self.looking = Background(self._look_on, name="duly clock")
        self.looking.start()

    async def _look_on(self) -> None:
        while True:
            before_us, self._wall_us = self._wall_us, instant_of(self._clock.now())
            if self._wall_us < before_us - NOTICEABLE_US:
                self._watcher(Step(before_us, self._wall_us))
            minute = datetime_at(self._wall_us - self._wall_us % MINUTE_US + MINUTE_US, UTC)
            await sleep_until_or(self._clock, minute, 60)


async def sleep_until_or(clock: Clock, moment: datetime, most_s: float) -> None:
    """Sleep until *moment*, or at most *most_s* of loop time, in case the clock is set back meanwhile.

    Raises what the clock raises if it cannot sleep.
    """
    sleeping = asyncio.ensure_future(clock.sleep_until(moment))
    try:
        done, _ = await asyncio.wait([sleeping], timeout=most_s)
    finally:
        sleeping.cancel()
    if done:
        sleeping.result()


async def pause(clock: Clock, seconds: float) -> None:
    """Sleep for *seconds*, also if the clock is set back meanwhile."""
    await sleep_until_or(clock, clock.now() + timedelta(seconds=seconds), seconds)


def watchable(clock: Clock | None) -> Watchable:
    """The clock to schedule by: the host's, or the user's with somebody watching it."""
    if clock is None:
        return HostClock()
    if not callable(getattr(clock, "now", None)) or not callable(getattr(clock, "sleep_until", None)):
        raise TypeError(f"{type(clock).__name__} is not a clock: it has no now() or sleep_until()")
    return clock if isinstance(clock, Watchable) else WatchedClock(clock)


def until_minute_s(now_us: Instant) -> float:
    """How long it is until the next minute begins, which is when everybody looks at the clock."""
    return (MINUTE_US - now_us % MINUTE_US) / SECOND_US


# --- the steady clock: for lengths of time that nobody may set ---

Steady = Callable[[], int]
"""Microseconds of a clock that never jumps and also counts while the host sleeps."""

_steady_ns = time.monotonic_ns
if hasattr(time, "CLOCK_BOOTTIME"):  # CLOCK_MONOTONIC stands still while a host is suspended
    _steady_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


def steady_us() -> int:
    """The host's steady clock."""
    return _steady_ns() // 1_000
