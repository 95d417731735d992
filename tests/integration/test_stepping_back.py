"""A member whose lists failed while runs are in flight: they go on while its lease is good, no longer."""

import asyncio
from datetime import UTC, timedelta

import pytest

from duly import Event, Scheduler, ScheduleTaskError, StoreError
from duly.cluster.member import Member
from tests.places import SLICES, HookedBoard, StoreFactory
from tests.world import HOUR, MINUTE, Registration, World

BROKEN = StoreError(store="x", reason="is broken")


class Story:
    """A world whose scheduler fails to bring lists, with a run of two minutes in flight."""

    def __init__(self, same_schema: StoreFactory) -> None:
        board = same_schema()
        assert isinstance(board, HookedBoard)
        self.board = board
        self.world = World(lambda: board, "12:00:00")
        self.events: list[Event] = []
        self.other = Scheduler(
            same_schema(), clock=self.world.clock, timezone=UTC, listeners=[self.events.append]
        )
        self.diary: list[str] = []

    def task(self, who: str) -> Registration:
        """The one task there is, as *who* runs it."""

        async def callback() -> None:
            self.diary.append(f"{who} begins")
            try:
                await self.world.clock.sleep_until(self.world.clock.now() + 2 * MINUTE)
                self.diary.append(f"{who} is done")
            except asyncio.CancelledError:
                self.diary.append(f"{who} is cut off")
                raise

        return "a", "0 12 * * *", callback, HOUR

    async def fail(self) -> None:
        """Begin, and fail to bring other lists: after the second nothing is held any more."""
        await self.world.begin(self.task("first"))
        self.board.fail(BROKEN)
        for name in ("b", "c"):
            with pytest.raises(ScheduleTaskError):
                await self.world.scheduler.initialize([self.world.task(name, "0 1 * * *")])
        self.board.heal()

    async def pass_lease(self) -> None:
        """Let a lease pass; who has a list renews its own, and who has none looks at it in time."""
        for _ in range(SLICES):
            self.board.time.advance(self.board.ttl_us // SLICES)
            for scheduler in (self.world.scheduler, self.other):
                member = scheduler._custody
                assert isinstance(member, Member)
                if scheduler.state == "Running":
                    member.tenancy.nudge()
                else:
                    member.tenancy._look_at_lease()
            await self.world.rest()

    def causes(self) -> list[str]:
        """Why the other one started what it started."""
        return [event.fields["cause"] for event in self.events if event.name == "TaskRunStarted"]


async def test_others_leave_its_run_alone(same_schema: StoreFactory) -> None:
    """Another member takes its shards at once, and does not start what goes on there."""
    story = Story(same_schema)
    await story.fail()
    await story.other.initialize([story.task("other")])
    await story.world.until("12:05")
    assert story.diary == ["first begins", "first is done"]
    await story.world.scheduler.initialize([story.task("first")])  # under the number that ran it
    await story.world.rest()
    await story.pass_lease()
    await story.world.until("12:30")
    assert story.diary == ["first begins", "first is done"]
    await asyncio.gather(story.world.scheduler.stop(), story.other.stop())


@pytest.mark.excused("L2")  # a board that takes minutes to refuse a list
async def test_its_run_ends_while_a_list_fails(
    same_schema: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a run is told by a list that was on its way meanwhile, also if that list fails."""
    story = Story(same_schema)
    await story.fail()
    await story.other.initialize([story.task("other")])

    async def publish(*_arguments: object) -> None:
        await story.world.clock.sleep_until(story.world.clock.now() + 5 * MINUTE)
        raise BROKEN

    monkeypatch.setattr(story.board, "publish", publish)
    starting = asyncio.create_task(story.world.scheduler.initialize([story.task("first")]))
    await story.world.until("12:10")
    with pytest.raises(ScheduleTaskError):
        await starting
    await story.pass_lease()
    await story.world.until("12:30")
    assert story.diary == ["first begins", "first is done"]
    await story.other.stop()


async def test_its_run_ends_with_its_lease(same_schema: StoreFactory) -> None:
    """When the lease cannot be trusted any more the run is cut off, and only then another starts it."""
    story = Story(same_schema)
    await story.fail()
    await story.other.initialize([story.task("other")])
    await story.world.rest()
    await story.pass_lease()
    assert story.diary == ["first begins", "first is cut off", "other begins"]
    assert story.causes() == ["interrupted"]
    await story.world.until("12:05")
    await story.other.stop()
    assert story.diary[3:] == ["other is done"]


async def test_list_after_its_lease(same_schema: StoreFactory) -> None:
    """A list that comes too late, before anybody has looked at the lease, finds the run cut off."""
    story = Story(same_schema)
    await story.fail()
    story.board.time.advance(story.board.ttl_us)
    await story.world.scheduler.initialize([story.task("again")])
    await story.world.clock.advance(timedelta(seconds=1))
    assert story.diary == ["first begins", "first is cut off", "again begins"]
    assert story.world.told("TaskRunStarted")[-1][1]["cause"] == "interrupted"
    await story.world.stop()


async def test_list_a_moment_after_that_of_another(same_schema: StoreFactory) -> None:
    """A list that is brought before it was heard that another's took the shards is brought all the same."""
    story = Story(same_schema)
    world = story.world
    ending = asyncio.Event()

    async def callback() -> None:
        story.diary.append("short begins")
        await ending.wait()
        story.diary.append("short is done")

    short = ("short", "0 12 * * *", callback, HOUR)
    await world.begin(story.task("first"), short)
    await world.rest()
    await story.other.initialize([story.task("other"), short, world.task("new", "0 1 * * *")])
    ending.set()
    await asyncio.sleep(0)  # noqa: TID251 (yields: it ends, and that is not written yet)
    await world.scheduler.initialize([story.task("first"), short, world.task("new", "0 1 * * *")])
    await world.until("12:05")
    assert story.diary == ["first begins", "short begins", "short is done", "first is done"]
    await story.other.stop()
    await world.scheduler.stop()
