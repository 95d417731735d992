"""Random lives of a scheduler, judged by the model: crashes, stops, faults, clock steps, changing lists."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from duly import Scheduler, SchedulerError, StoreError
from duly.store import MemoryStore
from duly.testing import FaultyStore, VirtualClock, crash
from tests.property.model import Judge, ViolationError

START = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
FAULT = StoreError(store="state.db", reason="the disk is full")
CRONS = ["* * * * *", "0,7,30 * * * *", "5 * * * *", "1,2 12,13 * * *"]
DELAYS_S = [0.0, 45.0, 600.0]
LASTS_S = [0.0, 0.0, 10.0, 60.0, 200.0]


class Life:
    """A scheduler, its surroundings, and the judge who watches the boundary."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START)
        self.store = FaultyStore(MemoryStore())
        self.judge = Judge(START.timestamp())
        self.scheduler: Scheduler | None = None
        self.outcomes = count()
        self.objections: list[ViolationError] = []

    def registration(self, name: str, cron: str, delay_s: float, lasts_s: float) -> tuple[Any, ...]:
        """A registration whose callback tells the judge."""

        async def callback() -> None:
            generation = self.scheduler
            self.tell(lambda: self.judge.started(name))
            if lasts_s:
                await self.clock.sleep_until(self.clock.now() + timedelta(seconds=lasts_s))
            if generation is not self.scheduler:
                return  # the process that ran this is dead
            ok = next(self.outcomes) % 3 != 0
            self.tell(lambda: self.judge.ended(name, ok=ok))
            if not ok:
                raise ValueError("broken")

        return name, cron, callback, timedelta(seconds=delay_s)

    def tell(self, what: Callable[[], None]) -> None:
        """Tell the judge; an objection inside a callback is raised when everything rests."""
        try:
            self.judge.reaches(self.clock.now().timestamp())
            what()
        except ViolationError as error:
            self.objections.append(error)

    async def initialize(self, items: list[tuple[str, str, float, float]]) -> None:
        """Call `initialize`, on a new scheduler if the last one died."""
        if self.scheduler is None:
            self.scheduler = Scheduler(self.store, clock=self.clock, timezone=UTC, listeners=[lambda _: None])
        scheduler, registrations = self.scheduler, [self.registration(*item) for item in items]

        async def call() -> None:
            try:
                await scheduler.initialize(registrations)
            except SchedulerError:
                self.tell(self.judge.failed_to_initialize)
            else:
                known = {name: (cron, delay_s) for name, cron, delay_s, _ in items}
                self.tell(lambda: self.judge.initialized(known))

        await self.until_done(call())

    async def stop(self) -> None:
        """Call `stop`."""
        scheduler = self.scheduler
        if scheduler is None:
            return

        async def call() -> None:
            self.judge.stop_requested()
            with suppress(SchedulerError):
                await scheduler.stop()
            self.tell(self.judge.stopped)

        await self.until_done(call())

    async def crash(self) -> None:
        """Kill the scheduler."""
        if self.scheduler is None:
            return
        dead, self.scheduler = self.scheduler, None
        await crash(dead)
        self.judge.crashed()

    async def until_done(self, story: Coroutine[Any, Any, None]) -> None:
        """Let time pass until a call has returned."""
        call = asyncio.create_task(story)
        while not call.done():
            await self.clock.advance(timedelta(0))
            if not call.done():
                await self.advance(10)
        await call

    async def advance(self, seconds: int) -> None:
        """Let time pass, and have the judge look every now and then."""
        for _ in range(max(seconds // 30, 1)):
            await self.clock.advance(timedelta(seconds=min(seconds, 30)))
            self.tell(self.judge.rested)
            if self.objections:
                raise self.objections[0]

    async def step(self, seconds: int) -> None:
        """Set the clock; back only while somebody is there to notice and can write down what it means."""
        if seconds < 0 and (self.judge.is_faulty or not self.judge.is_active):
            return
        self.clock.step(timedelta(seconds=seconds))
        self.judge.stepped(self.clock.now().timestamp())
        await self.clock.advance(timedelta(0))

    async def fault(self, *, on: bool) -> None:
        """Break the store, or mend it."""
        self.judge.is_faulty = True
        if on:
            self.store.fail(FAULT)
            return
        self.store.heal()
        await self.clock.advance(timedelta(seconds=20))  # the longest pause between two attempts
        self.judge.is_faulty = False
        self.judge.written()
        self.judge.reaches(self.clock.now().timestamp())


items = st.tuples(st.sampled_from(CRONS), st.sampled_from(DELAYS_S), st.sampled_from(LASTS_S))
lists = st.dictionaries(st.sampled_from("abc"), items, max_size=3).map(
    lambda chosen: [(name, *item) for name, item in chosen.items()]
)
actions = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from([1, 30, 60, 90, 300, 900])),
    st.tuples(st.just("advance"), st.sampled_from([30, 60, 3600])),
    st.tuples(st.just("initialize"), lists),
    st.tuples(st.just("again"), st.none()),
    st.tuples(st.just("stop"), st.none()),
    st.tuples(st.just("crash"), st.none()),
    st.tuples(st.just("fault"), st.booleans()),
    st.tuples(st.just("step"), st.sampled_from([-7200, -600, -301, -300, -90, -2, 2, 59, 600, 86_400])),
)


async def lived(first: list[Any], story: list[tuple[str, Any]]) -> Life:
    life, current = Life(), first
    await life.initialize(current)
    for action, argument in story:
        if action == "initialize":
            current = argument
        match action:
            case "advance":
                await life.advance(argument)
            case "initialize" | "again":
                await life.initialize(current)
            case "step":
                await life.step(argument)
            case "fault":
                await life.fault(on=argument)
            case _:
                await getattr(life, action)()
    # Heal, and demand that every obligation is met.
    await life.fault(on=False)
    await life.initialize(current)
    await life.advance(600)
    if life.scheduler is not None:
        await life.crash()
    return life


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(first=lists, story=st.lists(actions, max_size=14))
def test_no_life_violates_the_model(first: list[Any], story: list[tuple[str, Any]]) -> None:
    """Whatever happens to a scheduler, each start has its cause, and each obligation is met in time."""
    note(f"reproduce: asyncio.run(lived({first!r}, {story!r}))")
    asyncio.run(lived(first, story))


def test_judge_has_teeth() -> None:
    """The judge objects to a start without cause, an overlap, a start while down, and a missed due."""
    for fault in ("S1a", "S1b", "S1c", "S1d", "L1"):
        judge = Judge(START.timestamp())
        if fault != "S1a":
            judge.initialized({"a": ("* * * * *", 60.0)} if fault != "S1b" else {})
        with pytest.raises(ViolationError, match=fault):
            if fault == "L1":
                judge.reaches(START.timestamp() + 61)
                judge.rested()
            judge.started("a")
            if fault == "S1d":
                judge.ended("a", ok=True)
            judge.started("a")
