"""One process of the simulated program on one host: a loop, a scheduler, a heartbeat thread, connections.

When it is paused neither its loop nor its heartbeats run, and answers wait for it. When its loop is blocked
its heartbeats go on. When it dies nothing of it runs again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, timedelta
from typing import Any, NoReturn

from duly.cluster.clock import DatabaseClock
from duly.cluster.node import Node
from duly.cluster.store import ClusterStore
from duly.cluster.table import A, TableRequest
from duly.errors import SchedulerError, StoreError
from duly.events import Event
from duly.instant import SECOND_US, datetime_at
from duly.scheduler import Scheduler, SchedulerState
from tests.simulation.cluster.heartbeats import SimHeartbeats
from tests.simulation.cluster.oracle import BodyCall, Oracle
from tests.simulation.cluster.plan import BodyEnding, ClusterPlan
from tests.simulation.cluster.traces import Traces
from tests.simulation.cluster.world import ClusterWorld, Drift, Network
from tests.simulation.loop import SimLoop
from tests.simulation.steady import CrashPoints, Steady

_AGAIN_US = 5 * SECOND_US
_STEPS = 12
"""A body acts so often in the time of a lease."""
_TOLD = frozenset(
    {
        "NodeJoined",
        "NodeFenced",
        "NodeReturned",
        "TrustLost",
        "ServerChanged",
        "ListReconciled",
        "LoopBlocked",
    }
    | {"TaskInterruptedAgain", "StoreFault", "StoreRecovered", "SchedulerInitializationFailed"}
    | {"PollFault", "PollerRestarted"}
)


class PlannedBodyError(Exception):
    """The plan has this run fail."""


class SimLink:
    """A connection for the event loop."""

    def __init__(self, program: "Program", patience_us: int) -> None:
        self._program = program
        self._patience_us = patience_us

    async def do(self, request: TableRequest[A], /) -> A:
        """Have *request* carried out. Raises StoreError."""
        heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._program.send(request, self._patience_us, lambda outcome: _settle(heard, outcome))
        answer: A = await asyncio.shield(heard)
        return answer

    def leave(self) -> None:
        """Disconnect."""


def _settle(heard: asyncio.Future[Any], outcome: Any) -> None:
    if isinstance(outcome, StoreError):
        heard.set_exception(outcome)
        heard.exception()  # if nobody waits any more, nobody is told
    else:
        heard.set_result(outcome)


class SimStore:
    """The model of the table, as one program reaches it."""

    name = "model"
    namespace = "default"
    replace = True

    def __init__(self, program: "Program", lease_us: int) -> None:
        self._program = program
        self.lease_us = lease_us

    def steady(self) -> int:
        """The clock that leases are counted on."""
        return self._program.steady.now_us

    def draw(self) -> int:
        """A new id of a node."""
        return self._program.drawn_id()

    async def open(self, new_id: str, /) -> str:
        """There are tables."""
        return new_id and "cluster"

    def connect(self) -> SimLink:
        """A connection for the loop."""
        return SimLink(self._program, self.lease_us // 2)

    def heartbeats(self, node: Node, /) -> SimHeartbeats:
        """What sends the requests of *node*."""
        self._program.node = node
        return SimHeartbeats(self._program, node)


class Program:
    def __init__(
        self,
        plan: ClusterPlan,
        world: ClusterWorld,
        network: Network,
        oracle: Oracle,
        traces: Traces,
        *,
        host: int,
        number: int,
        items: int,
    ) -> None:
        self._plan = plan
        self._world = world
        self._network = network
        self._oracle = oracle
        self.host = host
        self.name = f"h{host}.{number}"
        self.items = items
        """The list that it has, or is about to have."""
        self.is_initialized = False
        self.drift = Drift(plan.hosts[host].drift_ppm, base_us=1_000 * SECOND_US * (host + 1))
        self.steady = Steady(self.drift.local_us(world.now_us))
        self.points = CrashPoints()
        self.loop = SimLoop(self.steady, self.points, self.fall)
        self.is_dead = self.is_paused = self.is_stopping = False
        self.blocked_until_us = 0
        """When the latest body that blocked the loop gave way, by the world."""
        self._inbox: list[Callable[[], None]] = []
        self.on_death: Callable[[], None] = lambda: None
        self.node: Node | None = None
        store: ClusterStore = SimStore(self, plan.lease_us)
        clock = DatabaseClock(store.steady, wall=lambda: datetime_at(network.now_us(), UTC))
        self.scheduler = Scheduler(store, clock=clock, timezone=UTC, listeners=[self._on_event])
        self._recorder = traces.recorder(self.name)
        self._recorded = self._recorder.wrap(self.scheduler)
        world.programs.append(self)

    @property
    def is_running(self) -> bool:
        """Whether its loop gets time."""
        return not self.is_dead and not self.is_paused and not self.loop.is_blocked

    @property
    def is_able(self) -> bool:
        """Whether it can be expected to start what is due."""
        return (
            self.is_running
            and self.is_initialized
            and not self.is_stopping
            and self.scheduler.state is SchedulerState.RUNNING
            and self._network.lines[self.host].is_fair
        )

    # --- what it does ---

    def initialize(self, items: int) -> None:
        """Call `initialize`, and again a little later if that fails."""
        self.items, self.is_initialized = items, False
        self._oracle.note_health()
        self.loop.create_task(self._initialize(items))

    async def _initialize(self, items: int) -> None:
        while self.items == items and not self.is_stopping:
            try:
                await self._recorded.initialize(self._registrations(items))
            except SchedulerError as error:
                self._oracle.note(self.name, f"initialize failed: {error}")
                await asyncio.sleep(_AGAIN_US / SECOND_US)  # noqa: TID251 (virtual time passes)
            else:
                self.is_initialized = self.items == items
                self._oracle.note_health()
                return

    def stop(self) -> None:
        """Call `stop`, and be gone when it has returned."""
        self.is_stopping = True
        self._oracle.note_health()
        self.loop.create_task(self._stop())

    async def _stop(self) -> None:
        with suppress(SchedulerError):
            await self._recorded.stop()
        self._oracle.note(self.name, "has stopped")
        self.close()
        self.fall()

    def _registrations(self, items: int) -> list[tuple[Any, ...]]:
        return [
            (item.name, item.cron, self._callback(item.name), timedelta(microseconds=item.delay_us))
            for item in self._plan.lists[items]
        ]

    def _callback(self, name: str) -> Callable[[], Any]:
        async def callback() -> None:
            run = self._oracle.on_call(self, name)
            try:
                await self._behave(run)
            except asyncio.CancelledError:
                self._oracle.on_cut(run)
                raise
            except BaseException:
                self._oracle.on_return(run, is_ok=False)
                raise
            self._oracle.on_return(run, is_ok=True)

        return callback

    async def _behave(self, run: BodyCall) -> None:
        behaviour = self._oracle.behaviour(run.name)
        if behaviour.how is BodyEnding.BLOCK:
            if self._network.rng.randrange(2):
                await self._wait(1_000)  # meanwhile the node claims something else
                self._oracle.on_act(run)
            self.block(behaviour.lasts_us)
            await asyncio.sleep(0)  # noqa: TID251 (goes on when the loop does)
            return
        step_us = self._plan.lease_us // _STEPS
        for begun_us in range(0, behaviour.lasts_us, step_us):
            await self._wait(min(step_us, behaviour.lasts_us - begun_us))
            self._oracle.on_act(run)
        if behaviour.how is BodyEnding.RAISE:
            raise PlannedBodyError
        if behaviour.how is BodyEnding.EXIT:
            _exit()

    async def _wait(self, for_us: int) -> None:
        """Wait for something from outside, such as a socket. A loop sees to those before its timers."""
        come = self.loop.create_future()
        self.at(self.steady.now_us + for_us, lambda: None if come.done() else come.set_result(None))
        await come

    def _on_event(self, event: Event) -> None:
        if event.name in _TOLD and not self.is_dead:
            facts = " ".join(f"{key}={value}" for key, value in event.fields.items() if key != "name")
            self._oracle.note(self.name, f"{event.name} {facts}")

    # --- what happens to it ---

    def steady_us(self) -> int:
        """Its steady clock."""
        return self.steady.now_us

    def at(self, local_us: int, act: Callable[[], None]) -> None:
        """Have *act* done when its steady clock shows *local_us*, or when it gets time again."""
        self._world.at(self.drift.world_us(local_us), lambda: self.hear(act))

    def send(self, request: TableRequest[Any], patience_us: int, on_outcome: Callable[[Any], None]) -> None:
        """Send *request* to the database."""
        self._network.send(self, request, patience_us, on_outcome)

    def drawn_id(self) -> int:
        """An id that no node has had."""
        return self._network.rng.getrandbits(62)

    def hear(self, act: Callable[[], None]) -> None:
        """Do *act*, which comes from outside of the loop; when the process is paused, later."""
        if self.is_paused:
            self._inbox.append(act)
        elif not self.is_dead:
            act()

    def pause(self) -> None:
        """Get no time any more."""
        self.is_paused = True
        self._oracle.note_health()

    def resume(self) -> None:
        """Go on: with what came from outside first, or with the timers of the loop that have passed."""
        if not self.is_paused or self.is_dead:
            return
        self.is_paused = False
        self._oracle.note(self.name, "goes on")
        if self.is_running and self._network.rng.randrange(2):
            self.loop.run_until(self.steady.now_us)
        inbox, self._inbox = self._inbox, []
        self._network.rng.shuffle(inbox)  # nobody knows which thread goes on first
        for act in inbox:
            self.hear(act)
        self._oracle.note_health()

    def block(self, for_us: int) -> None:
        """Have the loop do nothing else for so long."""
        self.loop.is_blocked, self.blocked_until_us = True, self._world.now_us + for_us
        self._oracle.note_health()
        self._world.after(for_us, self._unblock)

    def _unblock(self) -> None:
        self.loop.is_blocked = False
        self._oracle.note_health()

    def close(self) -> None:
        self._recorder.close()

    def fall(self) -> None:
        """Die, here and now."""
        if self.is_dead:
            return
        self.is_dead = True
        self._recorder.abandon()
        self._world.programs.remove(self)
        self.loop.die()
        self._oracle.on_death(self)
        self.on_death()

    def bury(self) -> None:
        self.loop.bury()


def _exit() -> NoReturn:
    raise SystemExit(3)
