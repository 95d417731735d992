"""`App.cancel` on every store, in virtual time."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly import App, NoSuchTaskError, RunCancelledError, every
from duly.events import Event
from duly.testing import VirtualClock
from tests.worlds.stores import StoreFactory

START = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


class Canceller:
    """An app with a task that lasts an hour, and what it tells."""

    def __init__(self, same_store: StoreFactory, body: Callable[[], Any] | None = None) -> None:
        self.clock = VirtualClock(START)
        self.events: list[Event] = []
        self.cleaned = 0
        self.app = App(same_store(), clock=self.clock, timezone="UTC", listeners=[self.events.append])
        self.app.declare(body or self.last, every("60s"), name="job", retry="10s")

    async def last(self) -> None:
        """Last an hour, and clean up for five seconds."""
        try:
            await self.clock.sleep_until(self.clock.now() + timedelta(hours=1))
        finally:
            await self.clock.sleep_until(self.clock.now() + timedelta(seconds=5))
            self.cleaned += 1

    def told(self, name: str) -> list[dict[str, Any]]:
        """The facts of the events of one name."""
        return [event.fields for event in self.events if event.name == name]


async def test_a_cancelled_run_is_not_tried_again(same_store: StoreFactory) -> None:
    """The run of a task is cancelled: it cleans up, has failed, arms no retry, and the next due starts it."""
    world = Canceller(same_store)
    async with world.app as app:
        assert await app.cancel("job") is False
        await world.clock.advance(timedelta(seconds=61))
        assert await app.cancel("job") is True
        await world.clock.advance(timedelta(seconds=1))
        assert await app.cancel("job") is True, "it cleans up still, and is left to that"
        await world.clock.advance(timedelta(seconds=5))
        assert world.cleaned == 1
        (failed,) = world.told("TaskRunFailed")
        assert (failed["cancelled"], "nextRetryAt" in failed) == (True, False)
        (status,) = await app.tasks()
        assert (status.state, status.next_due) == ("waiting", START + timedelta(seconds=120))
        (run,) = await app.history()
        assert (run.result, run.error) == ("cancelled", "RunCancelledError")
        assert "sleep_until" in run.traceback
        await world.clock.advance(timedelta(seconds=60))
        assert len(world.told("TaskRunStarted")) == 2
        await app.cancel("job")
        await world.clock.advance(timedelta(seconds=5))
        with pytest.raises(NoSuchTaskError):
            await app.cancel("jobs")


async def test_who_waits_for_the_run_hears_of_it(same_store: StoreFactory) -> None:
    """The handle of a cancelled run raises RunCancelledError."""
    world = Canceller(same_store)
    async with world.app as app:
        handle = await app.run_now("job")
        await world.clock.advance(timedelta(seconds=1))
        await app.cancel("job")
        await world.clock.advance(timedelta(seconds=5))
        with pytest.raises(RunCancelledError, match="'job' was cancelled"):
            await handle


async def test_a_thread_is_waited_for() -> None:
    """A function in a thread goes on until it returns; only then has the run ended."""
    begun, may_end = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        may_end.wait(60)

    app = App(":memory:")
    app.declare(block, every("365d"), name="job", retry="365d")
    async with app:
        handle = await app.run_now("job")
        await asyncio.to_thread(begun.wait, 60)
        assert await app.cancel("job")
        assert (await app.tasks())[0].state == "running"
        may_end.set()
        with pytest.raises(RunCancelledError):
            await handle
        assert (await app.tasks())[0].state == "waiting"
