"""The timer switch itself, over a real store that can be made to wait."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

from duly.clock import Steady, steady_us
from duly.cluster.table import A, Fence, LeaveCluster, TableRequest
from duly.daemon.protocol import OperationError
from duly.daemon.sharing import Sharing
from duly.daemon.timer_switch import TimerSwitch
from duly.events import Announcer
from duly.instant import instant_of
from duly.processes.children import Children
from duly.processes.procfs import Identity
from duly.processes.watchdog import Watchdog
from duly.store.history import WantedRuns
from duly.store.sqlite import SQLiteStore
from tests.worlds.model_table import ModelDatabase
from tests.worlds.shared_timers import Cable
from tests.worlds.supervisor import World, oneshot, world_of
from tests.worlds.timers import MINUTELY, daily, timer

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
async def switch_over_store(path: Path) -> AsyncIterator[tuple[World, HeldStore, TimerSwitch]]:
    """A supervisor with one job, a store, and a closed switch."""
    world, store = world_of(lasts={"job": 5}), HeldStore(path / "state.db")
    await store.open("id")
    await world.start(oneshot("job"), boot=set())
    announcer = Announcer([world.events.append], world.clock.now)
    yield (
        world,
        store,
        TimerSwitch(store, world.supervisor, world.history, clock=world.clock, announcer=announcer),
    )
    await world.stop()
    await store.close()


async def opening(world: World, timer_switch: TimerSwitch) -> asyncio.Task[None]:
    """The switch on its way to being open, with a timer for every minute."""
    started_us = instant_of(world.clock.now())
    definitions = [timer(on_calendar=MINUTELY)]
    task = asyncio.ensure_future(timer_switch.open(definitions, UTC, started_us, is_start_up=True))
    await world.rest()
    return task


@pytest.mark.parametrize("is_known", [False, True])
async def test_closed_while_it_opens_it_stays_closed(tmp_path: Path, is_known: bool) -> None:
    """A switch that is closed before it is open never opens, and nothing of timers is told or happens."""
    async with switch_over_store(tmp_path) as (world, store, timer_switch):
        if is_known:
            await (await opening(world, timer_switch))
            await timer_switch.close()
            world.events.clear()
        store.is_free.clear()
        task = await opening(world, timer_switch)
        assert not task.done()
        closing = asyncio.ensure_future(timer_switch.close())
        await world.rest()
        store.is_free.set()
        await asyncio.gather(task, closing)
        assert not timer_switch.is_open
        await world.after(300)
        assert world.started() == []
        assert [event.name for event in world.events if event.name.startswith(("Timer", "Poll"))] == []
        with pytest.raises(OperationError):
            await timer_switch.trigger("t")


async def test_opened_and_closed_twenty_times_with_a_run_in_flight(tmp_path: Path) -> None:
    """However often the switch moves during a run, that is one run, and the next slot is one more."""
    async with switch_over_store(tmp_path) as (world, _, timer_switch):
        await (await opening(world, timer_switch))
        world.processes.script("job")
        await world.after(60)
        assert world.living() == ["job"]
        for _ in range(20):
            await timer_switch.close()
            await (await opening(world, timer_switch))
        assert world.started() == ["job"]
        world.process("job").end(0)
        await world.after(60)
        assert world.started() == ["job", "job"]
        rows = await world.runs("job")
        assert [(row.timer, row.reason) for row in rows] == [("t", "schedule")] * 2
        world.process("job").end(0)
        await timer_switch.close()


async def test_readings_of_timers_that_stay_as_they_are_are_kept(tmp_path: Path) -> None:
    """A look makes again only what has changed; what depends on the moment is always of the moment."""
    async with switch_over_store(tmp_path) as (world, _, timer_switch):
        started_us = instant_of(world.clock.now())
        definitions = [
            timer("often", on_calendar=MINUTELY),
            timer("rarely", on_calendar=daily(3)),
            timer("after", on_unit_active_sec=600),
        ]
        await timer_switch.open(definitions, UTC, started_us, is_start_up=True)
        world.processes.script("job")
        before, again = timer_switch.snapshots() or {}, timer_switch.snapshots() or {}
        assert all(before[name] is again[name] for name in ("often", "rarely"))
        await world.after(60)
        running = timer_switch.snapshots() or {}
        assert running["rarely"] is before["rarely"]
        assert (before["often"].running_run, running["often"].running_run) == (None, 1)
        assert running["often"].next_us == (before["often"].next_us or 0) + 60_000_000
        assert running["after"].next_us is None
        world.process("job").end(0)
        await world.rest()
        assert (timer_switch.snapshots() or {})["after"].next_us == instant_of(
            world.clock.now()
        ) + 600_000_000
        await timer_switch.close()
        assert timer_switch.snapshots() is None


# --- where machines share timers ---


class HeldWatchdog(Watchdog):
    """A watchdog without a process, for fake processes; it starts when it is free."""

    def __init__(self, steady: Steady, is_free: asyncio.Event) -> None:
        super().__init__(Children(), steady=steady)
        self.is_free = is_free
        self.closed = 0

    def watch(self, token: str, process: Identity | None = None) -> bool:
        """Let every run begin before the deadline."""
        super().watch(token, process)
        return self.allows(token)

    async def start(self) -> None:
        """Start, when free."""
        await self.is_free.wait()

    async def close(self) -> None:
        """Count."""
        self.closed += 1


class HeldCable(Cable):
    """A way to the database, on which one says goodbye when it is free."""

    is_free: asyncio.Event | None = None

    async def do(self, request: TableRequest[A], /) -> A:
        """Carry out *request*, when free."""
        if isinstance(request, LeaveCluster) and self.is_free is not None:
            await self.is_free.wait()
        return await super().do(request)


class HeldSharing(Sharing):
    """What is shared, by a model of the database."""

    def __init__(self, world: World) -> None:
        self.database = ModelDatabase()
        self.cable = HeldCable(self.database, lambda: instant_of(world.clock.now()), steady_us)
        super().__init__(lambda _waits: self.cable, name="a")
        self.is_free = asyncio.Event()
        self.watchdogs: list[HeldWatchdog] = []

    def new_watchdog(self) -> Watchdog:
        """A watchdog that is held up until all are free."""
        self.watchdogs.append(HeldWatchdog(self.clock.steady, self.is_free))
        return self.watchdogs[-1]

    @property
    def nodes(self) -> list[int]:
        """The living nodes."""
        return [node.id for space in self.database.spaces.values() for node in space.living()]

    @property
    def closed(self) -> list[int]:
        """How often each watchdog was closed."""
        return [watchdog.closed for watchdog in self.watchdogs]


async def until(is_so: Callable[[], object]) -> None:
    """Wait for what happens a moment later in real time."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)  # noqa: TID251 (the heartbeats are in real time)


async def test_closed_while_the_watchdog_starts(tmp_path: Path) -> None:
    """A switch that is closed before its watchdog has started joins nobody."""
    async with switch_over_store(tmp_path) as (world, _, timer_switch):
        sharing = HeldSharing(world)
        timer_switch._sharing = sharing
        task = await opening(world, timer_switch)
        closing = asyncio.ensure_future(timer_switch.close())
        await world.rest()
        sharing.is_free.set()
        await asyncio.gather(task, closing)
        assert (timer_switch.is_open, sharing.nodes, sharing.closed) == (False, [], [1])


async def test_watchdog_while_the_switch_is_closing(tmp_path: Path) -> None:
    """The watchdog stays, and a shutdown waits, until the machine has left."""
    async with switch_over_store(tmp_path) as (world, _, timer_switch):
        sharing = HeldSharing(world)
        sharing.is_free.set()
        sharing.cable.is_free = asyncio.Event()
        timer_switch._sharing = sharing
        await (await opening(world, timer_switch))
        assert timer_switch.is_open
        closing = asyncio.ensure_future(timer_switch.close())
        await world.rest()
        shutting = asyncio.ensure_future(timer_switch.shut_down())
        await world.rest()
        assert (closing.done(), shutting.done(), sharing.closed) == (False, False, [0])
        sharing.cable.is_free.set()
        await asyncio.gather(closing, shutting)
        assert (sharing.nodes, sharing.closed) == ([], [1])


async def test_lease_of_one_of_two_nodes(tmp_path: Path) -> None:
    """A run that lingers behind a closed switch is cut off alone: the opened switch has its own lease."""
    async with switch_over_store(tmp_path) as (world, _, timer_switch):
        sharing = HeldSharing(world)
        sharing.is_free.set()
        timer_switch._sharing = sharing
        jobs = ["job0", "job1"]
        await world.supervisor.reload([oneshot(job) for job in jobs], set())
        definitions = [timer(job, job, on_calendar=daily(3)) for job in jobs]
        for job in jobs:
            world.processes.script(job)
            started_us = instant_of(world.clock.now())
            await timer_switch.open(definitions, UTC, started_us, is_start_up=False)
            await timer_switch.trigger(job)
            await world.rest()
            if job == jobs[0]:
                await timer_switch.close()
        assert world.living() == jobs
        closed = min(sharing.nodes)
        node = sharing.database.spaces["default"].nodes[closed]
        taken = sharing.cable.carry_out(Fence(by="b", node=closed, beat=node.beat))
        assert [each.name for each in taken or ()] == jobs[:1]
        await until(lambda: world.living() == jobs[1:])
        await world.rest()
        assert [row.result for row in await world.runs(jobs[0])] == ["interrupted"]
        world.process(jobs[1]).end(0)
        await world.rest()
        assert [row.result for row in await world.runs(jobs[1])] == ["success"]
        await asyncio.gather(*timer_switch._lingering.values())
        assert (timer_switch.is_open, sharing.closed) == (True, [1, 0])
        sharing.watchdogs[1].fault = "no process is left"
        assert [
            fault for fault in timer_switch.faults() if "no process is left; no timer fires" in fault
        ] != []
        await timer_switch.close()
        assert (sharing.nodes, sharing.closed) == ([], [1, 1])


async def test_runs_behind_a_closed_switch(tmp_path: Path) -> None:
    """While the switch is closed nobody here knows what others ran; a daemon alone has no others."""
    async with switch_over_store(tmp_path) as (world, _, timer_switch):
        assert await timer_switch.past_runs(WantedRuns()) == []
        timer_switch._sharing = HeldSharing(world)
        with pytest.raises(OperationError, match="timers are not at work on this machine"):
            await timer_switch.past_runs(WantedRuns())
