"""A node whose lists failed while runs are in flight: they go on, and another node leaves them alone."""

import asyncio
from datetime import UTC

import pytest

from duly import Scheduler, ScheduleTaskError, StoreError
from tests.worlds.scheduler import HOUR, MINUTE, Registration, World
from tests.worlds.stores import HookedCluster, StoreFactory

BROKEN = StoreError(store="x", reason="is broken")


class Story:
    """A world whose scheduler fails to bring lists, with a run of two minutes in flight, and another one."""

    def __init__(self, same_schema: StoreFactory) -> None:
        places = [same_schema(), same_schema()]
        self.world = World(lambda: places[0], "12:00:00")
        for place in places:
            assert isinstance(place, HookedCluster)
            place.go_by(self.world.clock)
        assert isinstance(places[0], HookedCluster)
        self.place = places[0]
        self.other = Scheduler(places[1], clock=self.world.clock, timezone=UTC)
        self.diary: list[str] = []

    def task(self, who: str) -> Registration:
        """The one task there is, as *who* runs it."""

        async def callback() -> None:
            self.diary.append(f"{who} begins")
            await self.world.clock.sleep_until(self.world.clock.now() + 2 * MINUTE)
            self.diary.append(f"{who} is done")

        return "a", "0 12 * * *", callback, HOUR


async def test_others_leave_its_run_alone(same_schema: StoreFactory) -> None:
    """After two lists that failed a scheduler is not initialized; its run goes on, and nobody repeats it."""
    story = Story(same_schema)
    await story.world.begin(story.task("first"))
    story.place.fail(BROKEN)
    for name in ("b", "c"):
        with pytest.raises(ScheduleTaskError):
            await story.world.scheduler.initialize([story.world.task(name, "0 1 * * *")])
    story.place.heal()
    await story.other.initialize([story.task("other")])
    await story.world.until("12:05")
    assert story.diary == ["first begins", "first is done"]
    await story.world.scheduler.initialize([story.task("first")])
    await story.world.until("12:30")
    assert story.diary == ["first begins", "first is done"]
    await asyncio.gather(story.world.scheduler.stop(), story.other.stop())


async def test_list_a_moment_after_that_of_another(same_schema: StoreFactory) -> None:
    """Two nodes that bring the same new list one after the other interrupt nothing."""
    story = Story(same_schema)
    world = story.world
    ending = asyncio.Event()

    async def callback() -> None:
        story.diary.append("short begins")
        await ending.wait()
        story.diary.append("short is done")

    short = ("short", "0 12 * * *", callback, HOUR)
    await world.begin(story.task("first"), short)
    await story.other.initialize([story.task("other"), short, world.task("new", "0 1 * * *")])
    ending.set()
    await asyncio.sleep(0)  # noqa: TID251 (yields: it ends, and that is not written yet)
    await world.scheduler.initialize([story.task("first"), short, world.task("new", "0 1 * * *")])
    await world.until("12:05")
    assert story.diary == ["first begins", "short begins", "short is done", "first is done"]
    await asyncio.gather(world.scheduler.stop(), story.other.stop())
