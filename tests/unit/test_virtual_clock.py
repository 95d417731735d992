"""The virtual clock: every sleeper in order, everything at rest before time goes on."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest

from duly.clock import Step
from duly.testing import VirtualClock
from duly.threads import in_thread

SECOND = timedelta(seconds=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


async def test_stands_still_until_advanced(virtual_clock: VirtualClock) -> None:
    """The clock of the fixture reads the beginning of 2026 until somebody advances it."""
    assert virtual_clock.now() == START
    await virtual_clock.advance(timedelta(days=1, microseconds=1))
    assert virtual_clock.now() == START + timedelta(days=1, microseconds=1)
    await virtual_clock.advance_to(datetime(2027, 1, 1, tzinfo=UTC))
    assert virtual_clock.now().year == 2027


def test_naive_start_is_refused() -> None:
    """A clock needs to know its zone."""
    with pytest.raises(ValueError, match="aware"):
        VirtualClock(datetime(2026, 1, 1))  # noqa: DTZ001 (the point of the test)


async def test_zone_of_the_start_is_kept() -> None:
    """The clock tells the time in the zone it was started in."""
    berlin = ZoneInfo("Europe/Berlin")
    clock = VirtualClock(datetime(2026, 3, 29, 1, 30, tzinfo=berlin))
    await clock.advance(timedelta(hours=1))
    assert clock.now().isoformat() == "2026-03-29T03:30:00+02:00"


async def test_sleepers_wake_in_order_at_their_instants(virtual_clock: VirtualClock) -> None:
    """A sleeper sees exactly the time it asked for, in order, also sleeps begun on the way."""
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, *seconds: float) -> None:
        for moment in seconds:
            await virtual_clock.sleep_until(START + moment * SECOND)
            seen.append((name, (virtual_clock.now() - START).total_seconds()))

    tasks = [asyncio.create_task(sleeper("a", 5, 6, 20)), asyncio.create_task(sleeper("b", 1, 5.5))]
    await virtual_clock.advance(10 * SECOND)
    early = list(seen)
    await virtual_clock.advance(10 * SECOND)
    assert early == [("b", 1), ("a", 5), ("b", 5.5), ("a", 6)]
    assert seen == [*early, ("a", 20)]
    await asyncio.gather(*tasks)


async def test_waits_for_threads(virtual_clock: VirtualClock) -> None:
    """Advancing returns after the threads it set in motion have done their work."""
    done: list[int] = []

    async def work() -> None:
        await virtual_clock.sleep_until(START + SECOND)
        for n in range(20):
            await in_thread(partial(done.append, n))()

    task = asyncio.create_task(work())
    await virtual_clock.advance(SECOND)
    assert len(done) == 20
    await task


async def test_step_moves_the_wall_and_tells(virtual_clock: VirtualClock) -> None:
    """A step changes the time without any passing, and watchers are told until they stop watching."""
    steps: list[Step] = []
    unwatch = virtual_clock.watch(steps.append)
    virtual_clock.step(timedelta(hours=-1))
    assert virtual_clock.now() == START - timedelta(hours=1)
    unwatch()
    virtual_clock.step(timedelta(hours=1))
    assert [step.after_us - step.before_us for step in steps] == [-3_600_000_000]


async def test_sleeper_passed_by_a_step_wakes(virtual_clock: VirtualClock) -> None:
    """A sleeper whose moment a step has passed wakes as soon as anything moves."""
    sleeping = asyncio.create_task(virtual_clock.sleep_until(START + SECOND))
    await virtual_clock.advance(timedelta(0))
    virtual_clock.step(timedelta(hours=1))
    await virtual_clock.advance(timedelta(0))
    assert sleeping.done()


async def test_cancelled_sleepers_are_forgotten(virtual_clock: VirtualClock) -> None:
    """A sleeper that was cancelled does not hold up time."""
    sleeping = asyncio.create_task(virtual_clock.sleep_until(START + SECOND))
    await virtual_clock.advance(timedelta(0))
    sleeping.cancel()
    await virtual_clock.advance(2 * SECOND)
    assert sleeping.cancelled()


async def test_misuse_is_refused(virtual_clock: VirtualClock) -> None:
    """Time cannot pass backwards, nor be advanced by somebody it is being advanced for."""
    with pytest.raises(ValueError, match="step"):
        await virtual_clock.advance(-SECOND)
    raised: list[BaseException] = []

    async def advances() -> None:
        try:
            await virtual_clock.advance(SECOND)
        except RuntimeError as error:
            raised.append(error)

    task = asyncio.create_task(advances())
    await virtual_clock.advance(SECOND)
    await task
    assert "being advanced already" in str(raised[0])
