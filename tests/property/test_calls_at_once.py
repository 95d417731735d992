"""Lifecycle calls from everywhere at once, with a store that takes its time and sometimes fails.

Calls are made from outside and from inside callbacks, together, and some are given up. Whatever the order,
nothing hangs, nothing overlaps, no minute runs twice, and no run seems interrupted where nothing crashed.
"""

import asyncio
import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from duly import Event, Scheduler, SchedulerError, StoreError
from duly.core.task import Task
from duly.store import Contents, MemoryStore
from duly.testing import FaultyStore, VirtualClock
from tests.worlds.stores import HookedCluster, Place, StoreFactory

SECOND = timedelta(seconds=1)
FAULT = StoreError(store="x", reason="is broken")
CANCELS = pytest.mark.parametrize("with_cancels", [False, True], ids=["", "cancels"])
FAULTS = pytest.mark.parametrize("with_faults", [False, True], ids=["", "faults"])
SEEDS = int(os.environ.get("DULY_CALLS_SEEDS", "6"))
"""How many lives of each kind are lived on a database; there each takes a tenth of a second or more."""


async def dawdled(chance: random.Random) -> None:
    """Let others go first, now and then."""
    for _ in range(chance.choice((0, 0, 1, 2, 5, 9))):
        await asyncio.sleep(0)  # noqa: TID251 (lets others go first)


class Dawdling(MemoryStore):
    """A memory that lets others go first, now and then, before and after each thing it does."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._dawdle = partial(dawdled, chance)

    async def open(self, new_id: str) -> Contents:
        """Open, in its own time."""
        await self._dawdle()
        contents = await super().open(new_id)
        await self._dawdle()
        return contents

    async def save(self, tasks: Sequence[Task]) -> None:
        """Save, in its own time."""
        await self._dawdle()
        await super().save(tasks)
        await self._dawdle()

    async def replace(self, *, put: Sequence[Task], removed: Sequence[int]) -> None:
        """Replace, in its own time."""
        await self._dawdle()
        await super().replace(put=put, removed=removed)
        await self._dawdle()

    async def close(self) -> None:
        """Close, in its own time."""
        await self._dawdle()
        await super().close()


class DawdlingCluster(HookedCluster):
    """A cluster store that does so around each claim."""

    def __init__(self, place: HookedCluster, chance: random.Random) -> None:
        super().__init__(place.url, place.schema)
        self._dawdle = partial(dawdled, chance)
        self.before_save = self.after_save = self._dawdle

    async def open(self, new_id: str) -> str:
        """Open, in its own time."""
        await self._dawdle()
        scheduler_id = await super().open(new_id)
        await self._dawdle()
        return scheduler_id


class Crowd:
    """A scheduler that everybody calls at once."""

    def __init__(self, seed: int, place: Place | None = None) -> None:
        self.chance = random.Random(seed)
        self.clock = VirtualClock(datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC))
        self.store: FaultyStore | HookedCluster = FaultyStore(Dawdling(self.chance))
        if isinstance(place, HookedCluster):
            self.store = DawdlingCluster(place, self.chance)
            self.store.go_by(self.clock)
        self.events: list[Event] = []
        self.scheduler = Scheduler(
            self.store,
            clock=self.clock,
            timezone=UTC,
            listeners=[self.events.append],
            max_concurrent_runs=self.chance.choice((None, None, 2)),
        )
        self.running: set[str] = set()
        self.overlaps: list[str] = []
        self.starts: dict[str, list[str]] = {}
        self.calls: list[asyncio.Task[None]] = []
        self.is_calm = False

    def tasks(self) -> list[tuple[Any, ...]]:
        """Three tasks that always stay, and one that often changes."""
        passing = f"d{self.chance.randint(0, 3)}"
        names = {"a": "* * * * *", "b": "* * * * *", "c": "* * * * *", passing: "0 0 1 1 *"}
        return [(name, cron, self.callback(name), timedelta(hours=1)) for name, cron in names.items()]

    def callback(self, name: str) -> Any:
        """A callback that may sleep, initialize, stop, or all of it."""

        async def callback() -> None:
            if name in self.running:
                self.overlaps.append(name)
            self.running.add(name)
            self.starts.setdefault(name, []).append(f"{self.clock.now():%H:%M}")
            try:
                await self.act()
            except SchedulerError:
                return
            finally:
                self.running.discard(name)

        return callback

    async def act(self) -> None:
        """Do something from inside."""
        deed = (
            "nothing" if self.is_calm else self.chance.choice(("nothing", "nothing", "sleep", "stop", "list"))
        )
        if deed == "sleep":
            await self.clock.sleep_until(self.clock.now() + self.chance.choice((20, 70)) * SECOND)
        elif deed == "list":
            await self.scheduler.initialize(self.tasks())
        elif deed == "stop":
            await self.scheduler.stop()

    async def live(self, *, with_faults: bool, with_cancels: bool) -> None:
        """Let everybody at it, then calm down and see whether it still works."""
        await self.scheduler.initialize(self.tasks())
        for _ in range(self.chance.randint(3, 12)):
            deed = self.chance.choice(("list", "list", "stop", "wait", "wait", "fault", "heal", "cancel"))
            if deed == "list":
                self.calls.append(asyncio.create_task(self.scheduler.initialize(self.tasks())))
            elif deed == "stop":
                self.calls.append(asyncio.create_task(self.scheduler.stop()))
            elif deed == "wait":
                await self.clock.advance(self.chance.choice((0, 1, 30, 60, 100)) * SECOND)
            elif deed == "fault" and with_faults:
                self.store.fail(FAULT)
            elif deed == "cancel" and with_cancels and self.calls:
                self.chance.choice(self.calls).cancel()
            else:
                self.store.heal()
        self.store.heal()
        self.is_calm = True
        self.calls.append(asyncio.create_task(self.scheduler.initialize(self.tasks())))
        await self.clock.advance(20 * 60 * SECOND)
        assert all(call.done() for call in self.calls), "a call hangs"
        await asyncio.gather(*self.calls, return_exceptions=True)

    def judge(self) -> None:
        """Nothing overlapped, nothing ran twice, everything still runs, nothing seems to have crashed."""
        assert self.overlaps == []
        for name in "abc":
            assert len(self.starts[name]) == len(set(self.starts[name])), f"{name} ran twice in a minute"
            assert self.starts[name][-1] == f"{self.clock.now():%H:%M}", f"{name} runs no more"
        causes = {event.fields["cause"] for event in self.events if event.name == "TaskRunStarted"}
        assert "interrupted" not in causes


def told(seed: int, place: Place | None, *, with_faults: bool, with_cancels: bool) -> None:
    """Live one life, and judge it."""

    async def story() -> None:
        crowd = Crowd(seed, place)
        await crowd.live(with_faults=with_faults, with_cancels=with_cancels)
        crowd.judge()
        stopping = asyncio.create_task(crowd.scheduler.stop())
        await crowd.clock.advance(5 * 60 * SECOND)
        assert stopping.done(), "the last stop hangs"

    try:
        asyncio.run(story())
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@CANCELS
@FAULTS
@pytest.mark.parametrize("tens", range(6))
def test_everybody_at_once(tens: int, with_faults: bool, with_cancels: bool) -> None:
    """However calls interleave, none hangs, and the tasks run as if there had been none."""
    for seed in range(tens * 10, tens * 10 + 10):
        told(seed, None, with_faults=with_faults, with_cancels=with_cancels)


@pytest.mark.heavy
@CANCELS
@FAULTS
@pytest.mark.parametrize("seed", range(SEEDS))
def test_everybody_at_once_on_postgres(
    same_schema: StoreFactory, seed: int, with_faults: bool, with_cancels: bool
) -> None:
    """Nor does any on a database, where the scheduler is a member of a cluster."""
    told(seed, same_schema(), with_faults=with_faults, with_cancels=with_cancels)
