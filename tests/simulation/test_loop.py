"""The simulated loop and clock: virtual time, one handle at a time, and death between any two."""

import asyncio
from datetime import UTC, datetime, timedelta

from duly.clock import Step
from duly.instant import SECOND_US, instant_of
from tests.simulation.clock import SimClock
from tests.simulation.loop import SimLoop
from tests.simulation.steady import CrashPoints, Point, Steady

START = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """A host with one process on it."""

    def __init__(self) -> None:
        self.steady, self.points = Steady(), CrashPoints()
        self.clock = SimClock(self.steady, instant_of(START))
        self.fatal = 0
        self.loop = SimLoop(self.steady, self.points, self._note)

    def _note(self) -> None:
        self.fatal += 1


def test_time_jumps_to_the_next_timer() -> None:
    """A year of sleeping takes no time, and ends exactly when it should."""
    world, woken = World(), []

    async def sleeper() -> None:
        await asyncio.sleep(365 * 86_400)  # noqa: TID251 (in virtual time)
        woken.append(world.clock.now())

    world.loop.create_task(sleeper())
    assert world.loop.run_until(366 * 86_400 * SECOND_US)
    assert woken == [START + timedelta(days=365)]
    assert world.clock.now() == START + timedelta(days=366)
    world.loop.bury()


def test_death_comes_between_two_handles() -> None:
    """A process that dies at its n-th await has done what came before it, and does nothing after it."""
    for after in range(8):
        world = World()
        done: list[int] = []

        async def worker(done: list[int] = done) -> None:
            for number in range(8):
                done.append(number)
                await asyncio.sleep(0)  # noqa: TID251 (in virtual time)

        world.loop.create_task(worker())
        world.points.arm(Point.AWAIT, after)
        assert not world.loop.run_until(SECOND_US)
        assert done == list(range(after))
        assert world.fatal == 1
        world.loop.bury()


def test_the_dead_do_not_speak() -> None:
    """Burying a process cancels what it had in flight, without time passing and without complaints."""
    world, cleaned = World(), []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1)  # noqa: TID251 (in virtual time)
            except asyncio.CancelledError:
                cleaned.append(world.clock.now())

    world.loop.create_task(stubborn())
    world.loop.create_task(asyncio.sleep(5))  # noqa: TID251 (in virtual time)
    world.loop.run_until(SECOND_US // 2)
    world.loop.die()
    world.loop.bury()
    assert cleaned
    assert set(cleaned) == {START + timedelta(seconds=0.5)}


def test_clock_steps_wake_sleepers_and_are_told() -> None:
    """A sleeper wakes when the clock shows the time, whether it passed or was set; watchers hear of it."""
    world, woken = World(), []
    seen: list[Step] = []

    async def sleeper() -> None:
        await world.clock.sleep_until(START + timedelta(hours=1))
        woken.append(world.steady.now_us)

    world.loop.create_task(sleeper())
    unwatch = world.clock.watch(seen.append)
    world.loop.run_until(60 * SECOND_US)
    world.clock.step(-30 * 60 * SECOND_US)
    world.loop.run_until(3_600 * SECOND_US)
    assert not woken
    world.clock.step(30 * 60 * SECOND_US)
    world.loop.run_until(3_601 * SECOND_US)
    assert woken == [3_600 * SECOND_US]
    start_us = instant_of(START)
    assert seen[0] == Step(start_us + 60 * SECOND_US, start_us - 29 * 60 * SECOND_US)
    unwatch()
    world.clock.step(SECOND_US)
    assert len(seen) == 2
    world.loop.bury()
