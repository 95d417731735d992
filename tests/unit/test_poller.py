"""The poller over a backend that keeps no items in memory and answers late, as a database does."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from duly.clock import Step
from duly.core.causes import Start, starts_owed
from duly.core.registration import Callback
from duly.core.task import Task, registered
from duly.core.timetable import Timetables
from duly.engine.limits import RunLimits
from duly.engine.poller import WAVE, Poller
from duly.engine.rules import Begin
from duly.engine.runs import ActiveRun
from duly.engine.tasks import TaskRules
from duly.events import Announcer, Event
from duly.instant import Instant, instant_of
from duly.testing import VirtualClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_US = instant_of(NOON)


def start_of(name: str) -> Start:
    """A start of a task that is due at noon."""
    schedule, before_us = Timetables(UTC).of("* * * * *"), NOW_US - 1
    task = registered(
        id=1, name=name, schedule=schedule, retry_delay_us=1, now_us=before_us, minute_us=before_us
    )
    return next(iter(starts_owed([task], NOW_US)))


class _RemoteBackend:
    """Answers each claim when the test says so, and notes what the poller says to it."""

    zone = UTC
    count = 1
    is_faulty = False

    def __init__(self) -> None:
        self.writing = asyncio.Lock()
        self.claims: list[tuple[int, asyncio.Future[list[Start]]]] = []
        self.notes: list[str] = []
        self.finish = asyncio.Event()

    def may_call(self) -> bool:
        return True

    def has_more(self) -> bool:
        return False

    def next_us(self) -> Instant | None:
        return None

    async def claim(self, _now_us: Instant, at_most: int, on_look: Callable[[int], None]) -> Sequence[Start]:
        answer: asyncio.Future[list[Start]] = asyncio.get_running_loop().create_future()
        self.claims.append((at_most, answer))
        starts = await answer
        if starts:
            on_look(len(starts))
        return starts

    def give_back(self, starts: Sequence[Begin[Task]]) -> None:
        self.notes += [f"{start.before.name} given back" for start in starts]

    def callback_of(self, start: Begin[Task]) -> Callback:
        async def callback() -> None:
            self.notes.append(f"{start.before.name} called")
            await self.finish.wait()

        return callback

    def on_begun(self, start: Begin[Task], run: ActiveRun[Task]) -> None:
        assert run.started_us == start.after.running_since_us
        self.notes.append(f"{run.name} begun")

    def look_again(self) -> None:
        self.notes.append("look again")

    def on_call(self, run: ActiveRun[Task]) -> bool:
        assert run.called_us
        return True

    def on_call_off(self, run: ActiveRun[Task]) -> None:
        self.notes.append(f"{run.name} called off")

    def on_end(self, run: ActiveRun[Task], error: BaseException | None) -> Task | None:
        assert error is None
        self.notes.append(f"{run.name} ended")
        return None

    def on_step(self, step: Step) -> None:
        raise NotImplementedError


class World:
    """A poller over such a backend, which has begun to poll."""

    def __init__(self, *, rules: TaskRules | None = None, max_concurrent_runs: int | None = None) -> None:
        self.backend = _RemoteBackend()
        self.clock = VirtualClock(NOON)
        self.events: list[Event] = []
        self.poller: Poller[Task] = Poller(
            self.backend,
            self.clock,
            Announcer([self.events.append], self.clock.now),
            rules or TaskRules(),
            RunLimits(max_concurrent_runs),
        )
        self.poller.begin()

    async def rest(self) -> None:
        """Let everything happen that can."""
        await self.clock.advance(timedelta(0))

    async def answer(self, *names: str) -> None:
        """Answer the claim under way with starts of these tasks."""
        await self.rest()
        self.backend.claims[-1][1].set_result([start_of(name) for name in names])
        await self.rest()


async def test_runs_end_while_a_claim_is_under_way() -> None:
    """A claim that takes long does not keep the end of a run from being noted."""
    world = World()
    await world.answer("a")
    world.poller.wake()
    await world.rest()
    assert not world.backend.claims[-1][1].done()
    world.backend.finish.set()
    await world.rest()
    assert world.backend.notes == ["a begun", "a called", "a ended"]
    await world.poller.drop()


async def test_stop_during_a_claim() -> None:
    """Starts that are claimed while a stop comes are given back, and nothing is called."""
    world = World()
    await world.rest()
    world.poller.is_closed = True
    await world.answer("a", "b")
    assert world.backend.notes == ["a given back", "b given back"]
    await world.poller.drop()


async def test_stop_before_the_call() -> None:
    """A run that has begun when a stop comes and is not yet called is called off."""
    world = World()
    on_begun = world.backend.on_begun

    def closing(start: Begin[Task], run: ActiveRun[Task]) -> None:
        on_begun(start, run)
        world.poller.is_closed = True

    world.backend.on_begun = closing  # type: ignore[method-assign]
    await world.answer("a")
    assert world.backend.notes == ["a begun", "a called off"]
    await world.poller.drop()


async def test_end_waits_for_the_claim() -> None:
    """Polling ends when the claim under way has been answered, and not in the middle of it."""
    world = World()
    await world.rest()
    ending = asyncio.ensure_future(world.poller.end())
    await world.rest()
    assert not ending.done()
    await world.answer()
    assert ending.done()


async def test_no_room() -> None:
    """When as many runs are under way as there may be, a claim asks for no start."""
    world = World(max_concurrent_runs=2)
    await world.answer("a", "b")
    world.poller.wake()
    await world.rest()
    assert [at_most for at_most, _ in world.backend.claims] == [2, 0]
    await world.poller.drop()


async def test_waves() -> None:
    """In a burst the next wave is claimed before the callbacks of this one are called."""
    world = World()
    world.backend.has_more = lambda: len(world.backend.claims) < 3  # type: ignore[method-assign]
    await world.rest()
    claims = world.backend.claims
    claim, orders = world.backend.claim, list[str]()

    async def noting(now_us: Instant, at_most: int, on_look: Callable[[int], None]) -> Sequence[Start]:
        orders.append(f"claim after {len(world.backend.notes)} notes")
        return await claim(now_us, at_most, on_look)

    world.backend.claim = noting  # type: ignore[method-assign,assignment]
    await world.answer("a")
    assert orders == ["claim after 1 notes"], "before the call of a"
    await world.answer("b")
    assert orders[1:] == ["claim after 3 notes"], "before the call of b"
    await world.answer("c")
    assert len(claims) == 3
    assert world.backend.notes == [f"{name} {what}" for name in "abc" for what in ("begun", "called")]
    assert {at_most for at_most, _ in claims} == {WAVE}
    await world.poller.drop()


async def test_fault_before_the_runs_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the poller fails before claimed starts have begun it gives them back, and all is looked at again."""

    class Broken(TaskRules):
        def emit_starts(self, *_: object) -> None:
            raise ArithmeticError("bug")

    monkeypatch.setattr("duly.engine.poller.RETRY_PAUSE_S", 0)
    world = World(rules=Broken())
    looked = asyncio.Event()
    world.backend.look_again = looked.set  # type: ignore[method-assign]
    await world.answer("a", "b")
    assert world.backend.notes == ["a given back", "b given back"]
    assert [event.fields["error"] for event in world.events if event.name == "PollFailed"] == [
        "ArithmeticError: bug"
    ]
    await looked.wait()
    await world.poller.drop()
