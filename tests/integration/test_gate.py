"""The gate itself, over a real store that can be made to wait."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

from duly.cluster.clock import BoardClock
from duly.daemon.gate import Gate
from duly.daemon.hand import Hand
from duly.daemon.protocol import OperationError
from duly.daemon.sharing import SHARDS, Sharing
from duly.events import Announcer
from duly.instant import instant_of
from duly.store.board import TimerBoard, shard_of
from duly.store.sqlite import SQLiteStore
from duly.supervisor.children import Brood
from duly.supervisor.leash import Leash, LeashError
from duly.testing.memory_board import MemoryBoard
from duly.testing.memory_table import Table
from tests.supervision import World, oneshot, world_of
from tests.timer_world import MINUTELY, daily, timer

T = TypeVar("T")


class HeldStore(SQLiteStore):
    """A store whose reads and writes wait while it is held."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_free = asyncio.Event()
        self.is_free.set()

    async def read(self, query: Callable[[apsw.Connection], T]) -> T:
        """Read, when free."""
        await self.is_free.wait()
        return await super().read(query)

    async def write(self, change: Callable[[apsw.Connection], object]) -> None:
        """Write, when free."""
        await self.is_free.wait()
        await super().write(change)


@asynccontextmanager
async def gated(path: Path) -> AsyncIterator[tuple[World, HeldStore, Gate]]:
    """A supervisor with one job, a store, and a closed gate."""
    world, store = world_of(lasts={"job": 5}), HeldStore(path / "state.db")
    scheduler_id = (await store.open("id")).scheduler_id
    await world.start(oneshot("job"), boot=set())
    announcer = Announcer([world.events.append], world.clock.now)
    yield (
        world,
        store,
        Gate(store, scheduler_id, world.supervisor, world.history, clock=world.clock, announcer=announcer),
    )
    await world.stop()
    await store.close()


async def opening(world: World, gate: Gate) -> asyncio.Task[None]:
    """The gate on its way to being open, with a timer for every minute."""
    started_us = instant_of(world.clock.now())
    definitions = [timer(on_calendar=MINUTELY)]
    task = asyncio.ensure_future(gate.open(definitions, UTC, started_us, is_start_up=True))
    await world.rest()
    return task


@pytest.mark.parametrize("is_known", [False, True])
async def test_closed_while_it_opens_it_stays_closed(tmp_path: Path, is_known: bool) -> None:
    """A gate that is closed before it is open never opens, and nothing of timers is told or happens."""
    async with gated(tmp_path) as (world, store, gate):
        if is_known:
            await (await opening(world, gate))
            await gate.close()
            world.events.clear()
        store.is_free.clear()
        task = await opening(world, gate)
        assert not task.done()
        closing = asyncio.ensure_future(gate.close())
        await world.rest()
        store.is_free.set()
        await asyncio.gather(task, closing)
        assert not gate.is_open
        await world.after(300)
        assert world.started() == []
        assert [event.name for event in world.events if event.name.startswith(("Timer", "Poll"))] == []
        with pytest.raises(OperationError):
            await gate.trigger("t")


async def test_opened_and_closed_twenty_times_with_a_run_in_flight(tmp_path: Path) -> None:
    """However often the gate moves during a run, that is one run, and the next slot after it is one more."""
    async with gated(tmp_path) as (world, _, gate):
        await (await opening(world, gate))
        world.processes.script("job")
        await world.after(60)
        assert world.living() == ["job"]
        for _ in range(20):
            await gate.close()
            await (await opening(world, gate))
        assert world.started() == ["job"]
        world.process("job").end(0)
        await world.after(60)
        assert world.started() == ["job", "job"]
        rows = await world.runs("job")
        assert [(row.timer, row.reason) for row in rows] == [("t", "schedule")] * 2
        world.process("job").end(0)
        await gate.close()


async def test_readings_of_timers_that_stay_as_they_are_are_kept(tmp_path: Path) -> None:
    """A look makes anew only what has changed; what depends on the moment is always of the moment."""
    async with gated(tmp_path) as (world, _, gate):
        started_us = instant_of(world.clock.now())
        definitions = [
            timer("often", on_calendar=MINUTELY),
            timer("rarely", on_calendar=daily(3)),
            timer("after", on_unit_active_sec=600),
        ]
        await gate.open(definitions, UTC, started_us, is_start_up=True)
        world.processes.script("job")
        before, again = gate.readings() or {}, gate.readings() or {}
        assert all(before[name] is again[name] for name in ("often", "rarely"))
        await world.after(60)
        running = gate.readings() or {}
        assert running["rarely"] is before["rarely"]
        assert (before["often"].running_run, running["often"].running_run) == (None, 1)
        assert running["often"].next_us == (before["often"].next_us or 0) + 60_000_000
        assert running["after"].next_us is None
        world.process("job").end(0)
        await world.rest()
        assert (gate.readings() or {})["after"].next_us == instant_of(world.clock.now()) + 600_000_000
        await gate.close()
        assert gate.readings() is None


# --- where machines share timers ---


class LooseLeash(Leash):
    """A leash without a guardian, for processes that are not there."""

    def expect(self, marker: str) -> bool:
        """Let every run begin that the lease allows."""
        super().expect(marker)
        return self.allows(marker)


class HeldHand(Hand):
    """A hand that takes as long to put its leash on as anybody wants."""

    def __init__(self, clock: BoardClock, is_free: asyncio.Event) -> None:
        super().__init__(Brood(), clock)
        self.leash = LooseLeash(Brood(), steady=clock.steady)
        self.is_free = is_free
        self.ended = 0

    async def begin(self) -> None:
        """Put it on, when free."""
        await self.is_free.wait()

    async def end(self) -> None:
        """Take it off."""
        self.ended += 1


class HeldSharing(Sharing):
    """What is shared, by a board in memory."""

    def __init__(self, board: Callable[[], TimerBoard]) -> None:
        super().__init__(board, name="a")
        self.is_free = asyncio.Event()
        self.hands: list[HeldHand] = []

    def new_hand(self) -> Hand:
        """A hand that is held up until all are free."""
        self.hands.append(HeldHand(self.clock, self.is_free))
        return self.hands[-1]

    @property
    def ended(self) -> list[int]:
        """How often each leash was taken off."""
        return [hand.ended for hand in self.hands]


class HeldBoard(MemoryBoard):
    """A board to which one says goodbye when it is free."""

    is_free: asyncio.Event

    async def leave(self, member: int, /) -> None:
        """Leave, when free."""
        await self.is_free.wait()
        await super().leave(member)


async def test_closed_while_the_leash_is_put_on(tmp_path: Path) -> None:
    """A gate that is closed before its leash is on joins nobody."""
    table = Table()
    async with gated(tmp_path) as (world, _, gate):
        sharing = HeldSharing(partial(MemoryBoard, lambda: instant_of(world.clock.now()), table=table))
        gate._sharing = sharing
        task = await opening(world, gate)
        closing = asyncio.ensure_future(gate.close())
        await world.rest()
        sharing.is_free.set()
        await asyncio.gather(task, closing)
        assert (gate.is_open, table.members, sharing.ended) == (False, {}, [1])


async def test_leash_while_the_gate_is_closing(tmp_path: Path) -> None:
    """The leash stays on, and who shuts down waits, until the machine has said goodbye."""
    table, is_free = Table(), asyncio.Event()
    async with gated(tmp_path) as (world, _, gate):

        def board() -> HeldBoard:
            made = HeldBoard(lambda: instant_of(world.clock.now()), table=table)
            made.is_free = is_free
            return made

        sharing = HeldSharing(board)
        sharing.is_free.set()
        gate._sharing = sharing
        await (await opening(world, gate))
        assert gate.is_open
        closing = asyncio.ensure_future(gate.close())
        await world.rest()
        shutting = asyncio.ensure_future(gate.shut_down())
        await world.rest()
        assert (closing.done(), shutting.done(), sharing.ended) == (False, False, [0])
        is_free.set()
        await asyncio.gather(closing, shutting)
        assert (table.members, sharing.ended) == ({}, [1])


async def test_lease_of_one_of_two_members(tmp_path: Path) -> None:
    """A run that lingers after the gate was closed is cut off alone: the opened gate has its own lease."""
    async with gated(tmp_path) as (world, _, gate):
        table = Table()
        sharing = HeldSharing(partial(MemoryBoard, lambda: instant_of(world.clock.now()), table=table))
        sharing.is_free.set()
        gate._sharing = sharing
        jobs = [next(f"job{n}" for n in range(99) if shard_of(f"job{n}", SHARDS) == at) for at in (0, 1)]
        await world.supervisor.reload([oneshot(job) for job in jobs], set())
        definitions = [timer(job, job, on_calendar=daily(3)) for job in jobs]
        for job in jobs:
            world.processes.script(job)
            started_us = instant_of(world.clock.now())
            await gate.open(definitions, UTC, started_us, is_start_up=False)
            await gate.trigger(job)
            await world.rest()
            if job == jobs[0]:
                await gate.close()
        assert world.living() == jobs
        (lingering,) = gate._lingering
        lingering.halt()
        await lingering.cut()
        await world.rest()
        assert world.living() == jobs[1:]
        assert [row.result for row in await world.runs(jobs[0])] == ["interrupted"]
        world.process(jobs[1]).end(0)
        await world.rest()
        assert [row.result for row in await world.runs(jobs[1])] == ["success"]
        await asyncio.gather(*gate._lingering.values())
        assert (gate.is_open, sharing.ended) == (True, [1, 0])
        sharing.hands[1].fault = LeashError("no process is left")
        assert [fault for fault in gate.faults() if "no process is left; no timer fires" in fault] != []
        await gate.close()
        assert (table.members, sharing.ended) == ({}, [1, 1])
