"""One process of the simulated program on one host of a cluster: a loop, a scheduler, a link to the board.

Its steady clock is its host's, which may drift; its wall clock is read once, and may be anything. When it is
paused its loop is not run and answers wait for it; when it dies its loop is never run again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, timedelta
from typing import Any

from duly.cluster.clock import BoardClock
from duly.cluster.member import Member
from duly.errors import SchedulerError
from duly.events import Event
from duly.instant import SECOND_US, datetime_at
from duly.scheduler import Scheduler, SchedulerState
from duly.testing.simulation.cluster.link import Link
from duly.testing.simulation.cluster.plan import ClusterPlan
from duly.testing.simulation.cluster.sea import Sea
from duly.testing.simulation.cluster.traces import Traces
from duly.testing.simulation.cluster.witness import Run, Witness
from duly.testing.simulation.cluster.world import Drift, World
from duly.testing.simulation.loop import SimLoop
from duly.testing.simulation.plan import How
from duly.testing.simulation.steady import CrashPoints, Steady
from duly.threads import OVERDUE

_AGAIN_US = 5 * SECOND_US
_TOLD = frozenset(
    {"ShardsTaken", "ShardsLost", "ShardsGiven", "EditionPublished", "EditionSuperseded", "BoardFault"}
    | {"BoardRecovered", "StoreFault", "StoreRecovered", "SchedulerInitializationFailed"}
)


class PlannedError(Exception):
    """The plan has this run fail."""


class Program:
    """One process."""

    def __init__(
        self,
        plan: ClusterPlan,
        world: World,
        sea: Sea,
        witness: Witness,
        traces: Traces,
        *,
        host: int,
        number: int,
        items: int,
        offset_us: int = 0,
    ) -> None:
        self._plan = plan
        self._world = world
        self._witness = witness
        self.host = host
        self.name = f"h{host}.{number}"
        self.items = items
        self._drift = Drift(plan.hosts[host].drift_ppm, base_us=1_000 * SECOND_US * (host + 1))
        self.steady = Steady(self.local_us(world.now_us))
        self.points = CrashPoints()
        self.loop = SimLoop(self.steady, self.points, self.fall)
        self.is_dead = self.is_paused = self.is_stopping = False
        self._inbox: list[Callable[[], None]] = []
        self.on_death: Callable[[], None] = lambda: None
        self.link = Link(world, sea, witness, self)
        self.clock = BoardClock(
            lambda: self.steady.now_us, wall=lambda: datetime_at(sea.now_us() + offset_us, UTC)
        )
        timeout_us = plan.run_timeout_us
        self.scheduler = Scheduler(
            self.link,
            clock=self.clock,
            timezone=UTC,
            listeners=[self._on_event],
            run_timeout=None if timeout_us is None else timedelta(microseconds=timeout_us),
        )
        member = self.scheduler._custody  # noqa: SLF001 (chance comes from the seed)
        assert isinstance(member, Member)
        member.tenancy.draw = lambda: sea.rng.getrandbits(62)
        self.member = member
        self.traces = traces
        is_first = not sea.table.editions
        self._recorder = traces.recorder(self.name, member.membership.failover_us, is_first=is_first)
        self._recorded = self._recorder.wrap(self.scheduler)
        world.programs.append(self)

    def local_us(self, world_us: int) -> int:
        """What the steady clock of the host shows then."""
        return self._drift.local_us(world_us)

    def world_us(self, local_us: int) -> int:
        """When the steady clock of the host shows that."""
        return self._drift.world_us(local_us)

    @property
    def is_trusting(self) -> bool:
        """Whether it may trust its lease."""
        return not self.is_dead and self.steady.now_us < self.link.trusted_until_us

    @property
    def is_up(self) -> bool:
        """Whether it schedules."""
        return not self.is_dead and not self.is_stopping and self.scheduler.state is SchedulerState.RUNNING

    # --- what it does ---

    def initialize(self, items: int) -> None:
        """Call `initialize`, and again a little later if that fails."""
        self.items = items
        self.loop.create_task(self._initialize(items))

    async def _initialize(self, items: int) -> None:
        while self.items == items and not self.is_stopping:
            try:
                await self._recorded.initialize(self._registrations(items))
            except SchedulerError:
                await asyncio.sleep(_AGAIN_US / SECOND_US)  # noqa: TID251 (virtual time passes)
            else:
                self._witness.note_health()
                return

    def stop(self) -> None:
        """Call `stop`, and be gone when it has returned."""
        self.is_stopping = True
        self._witness.note_health()
        self.loop.create_task(self._stop())

    async def _stop(self) -> None:
        with suppress(SchedulerError):
            await self._recorded.stop()
        self._witness.note(self, "has stopped")
        self.close()
        self.fall()

    def _registrations(self, items: int) -> list[tuple[Any, ...]]:
        return [
            (item.name, item.cron, self._callback(item.name), timedelta(microseconds=item.delay_us))
            for item in self._plan.lists[items]
        ]

    def _callback(self, name: str) -> Callable[[], Any]:
        async def callback() -> None:
            run = self._witness.note_called(self, name)
            try:
                await self._behave(name)
            except asyncio.CancelledError as error:
                self._witness.note_cut(run) if error.args != (OVERDUE,) else self._end(run, ok=False)
                raise
            except BaseException:
                self._end(run, ok=False)
                raise
            self._end(run, ok=True)

        return callback

    def _end(self, run: Run, *, ok: bool) -> None:
        self._witness.note_ended(run, ok=ok)

    async def _behave(self, name: str) -> None:
        behaviour = self._witness.behaviour(name)
        if behaviour.lasts_us and not self._witness.is_healed:
            await asyncio.sleep(behaviour.lasts_us / SECOND_US)  # noqa: TID251 (virtual time passes)
        if self._witness.is_healed:
            return
        match behaviour.how:
            case How.RAISE:
                raise PlannedError
            case How.EXIT:
                raise SystemExit(3)
            case How.HANG:
                await asyncio.get_running_loop().create_future()
            case _:
                return

    def _on_event(self, event: Event) -> None:
        if event.name in _TOLD and not self.is_dead:
            facts = " ".join(f"{key}={value}" for key, value in event.fields.items())
            self._witness.note(self, f"{event.name} {facts}")

    # --- what befalls it ---

    def hear(self, settle: Callable[[], None]) -> None:
        """Take an answer off the wire, or when it is paused, later."""
        if self.is_paused:
            self._inbox.append(settle)
        else:
            settle()

    def pause(self) -> None:
        """Get no time any more."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on, with whatever has come in meanwhile."""
        self.is_paused = False
        inbox, self._inbox = self._inbox, []
        for settle in inbox:
            settle()

    def close(self) -> None:
        """End the recording."""
        self._recorder.close()

    def fall(self) -> None:
        """Die, here and now."""
        if self.is_dead:
            return
        self.is_dead = True
        self._recorder.abandon()
        self._world.programs.remove(self)
        self.loop.die()
        self._witness.note_death(self)
        self.on_death()

    def bury(self) -> None:
        """Take apart what is left of it."""
        self.loop.bury()
