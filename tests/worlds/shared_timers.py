"""Machines that share their timers on a model of the database, in virtual time.

All of them live on one simulated loop. Each has its own host clock, its own services (`FakeTargets`) and its
own cable to the database, which can be pulled.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count
from typing import Any, Self, TypeVar, cast

import msgspec

from duly.cluster.clock import DatabaseClock
from duly.cluster.node import Node
from duly.cluster.table import A, TableRequest
from duly.cluster_timers.timers import ClusterTimers
from duly.config.schema import Timer
from duly.core.causes import Reason
from duly.errors import StoreError
from duly.events import Announcer, Event
from duly.instant import SECOND_US, Instant, duration_us, instant_of
from duly.store.history import RunRow
from duly.supervisor.results import RunResult
from duly.testing import VirtualClock
from tests.simulation.clock import SimClock
from tests.simulation.cluster.heartbeats import SimHeartbeats
from tests.simulation.loop import SimLoop
from tests.simulation.steady import CrashPoints, Steady
from tests.worlds.model_table import ModelDatabase, ModelRow, ModelTable
from tests.worlds.scheduler import at
from tests.worlds.timers import INTERRUPTED, MINUTELY, FakeTargets, timer

T = TypeVar("T")

LEASE_US = 6 * SECOND_US
TRUSTED_US = LEASE_US - LEASE_US // 6
"""How long after a heartbeat a node trusts its lease."""
JOBS = [f"job{n}" for n in range(4)]
EACH = [timer(f"t{n}", job, on_calendar=MINUTELY) for n, job in enumerate(JOBS)]
"""A timer for each job."""
LONG = timedelta(hours=3)

_numbers = count(1)


class CuttableFakes(FakeTargets):
    """Services whose runs can be cut off."""

    def __init__(self, clock: SimClock, on_end: Callable[[RunRow], None]) -> None:
        super().__init__(cast("VirtualClock", clock))
        self.states = dict.fromkeys([*JOBS, "other"], "idle")
        self.cuts = 0
        self.output = "output of {}"
        self._on_end = on_end
        self._timers: dict[int, str | None] = {}

    async def run(
        self,
        service_id: str,
        *,
        reason: Reason,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,
    ) -> RunResult:
        """Run a service to its end, and note whose run it is."""
        run_id = self.new_run_id() if run_id is None else run_id
        self._timers[run_id] = timer
        return await super().run(
            service_id, reason=reason, timer=timer, scheduled_us=scheduled_us, run_id=run_id
        )

    def end(self, service_id: str, ended: RunResult) -> None:
        """End the run of a service now, and tell of it as a supervisor would."""
        number, _ = self.live[service_id]
        super().end(service_id, ended)
        now_us = instant_of(self.clock.now())
        self._on_end(
            RunRow(
                id=number,
                service=service_id,
                timer=self._timers[number],
                reason="",
                started_us=now_us,
                ended_us=now_us,
                output=self.output.format(number),
            )
        )

    def cut_off(self) -> None:
        """End everything that runs."""
        self.cuts += 1
        for service in list(self.live):
            self.end(service, INTERRUPTED)


class Cable:
    """A machine's way to the database (`cluster.store.ClusterStore` and `Link`)."""

    name = "model"
    namespace = "default"
    replace = False
    lease_us = LEASE_US

    def __init__(
        self, database: ModelDatabase, now_us: Callable[[], Instant], steady: Callable[[], int]
    ) -> None:
        self._table = ModelTable(database)
        self._now_us = now_us
        self.steady = steady
        self.is_cut = False
        self.loses: list[type[TableRequest[Any]]] = []
        """Requests of which the next one is carried out, and its answer lost."""
        self.is_cut_then = False
        """Whether that is the last that is heard of this machine."""

    def draw(self) -> int:
        return next(_numbers)

    async def open(self, new_id: str, /) -> str:
        """There are tables, if the database can be reached."""
        self._check()
        return new_id

    def connect(self) -> Self:
        """A connection for the loop: this."""
        return self

    def heartbeats(self, node: Node, /) -> SimHeartbeats:
        """What sends the requests of *node*."""
        return SimHeartbeats(self, node)

    def steady_us(self) -> int:
        """The clock that leases are counted on."""
        return self.steady()

    def at(self, local_us: int, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later((local_us - self.steady()) / SECOND_US, act)

    def send(self, request: TableRequest[Any], _patience_us: int, on_outcome: Callable[[Any], None]) -> None:
        """Carry out *request* at once."""
        try:
            outcome: Any = self.carry_out(request)
        except StoreError as error:
            outcome = error
        on_outcome(outcome)

    async def do(self, request: TableRequest[A], /) -> A:
        """Carry out *request*, a moment later."""
        await asyncio.sleep(0.001)  # noqa: TID251 (in virtual time)
        return self.carry_out(request)

    def carry_out(self, request: TableRequest[A]) -> A:
        """Carry out *request*. Raises StoreError."""
        self._check()
        self._table.database.now_us = self._now_us()
        answer: A = self._table.do(request)
        if type(request) in self.loses:
            self.loses.remove(type(request))
            self.is_cut = self.is_cut_then
            raise StoreError(store=self.name, reason="has not answered")
        return answer

    def _check(self) -> None:
        if self.is_cut:
            error = StoreError(store=self.name, reason="is out of reach")
            error.is_undone = True
            raise error

    def leave(self) -> None:
        """Disconnect."""


class Machine:
    def __init__(self, world: "SharedWorld", name: str, *, off: timedelta, zone: tzinfo) -> None:
        self.name = name
        self.world = world
        self.host = SimClock(world.steady, world.now_us() + duration_us(off))
        self.cable = Cable(world.database, world.now_us, lambda: world.steady.now_us)
        self.events: list[Event] = []
        self.misses: list[tuple[str, str]] = []
        self.trusts: list[int] = []
        clock = DatabaseClock(lambda: world.steady.now_us, wall=self.host.now)
        self.targets = CuttableFakes(self.host, self._on_run_ended)
        self.timers = ClusterTimers(
            self.cable,
            self.targets,
            clock,
            Announcer([self.events.append], clock.now),
            host_clock=self.host,
            zone=zone,
            name=name,
            on_miss=lambda timer, _at_us, reason: self.misses.append((timer, reason)),
            on_trust=self.trusts.append,
        )

    async def start(
        self, *definitions: Timer, is_start_up: bool = True, invalid: Collection[str] = ()
    ) -> None:
        started_up_us = instant_of(self.host.now())
        await self.timers.start(
            definitions, started_up_us=started_up_us, is_start_up=is_start_up, invalid=invalid
        )

    def _on_run_ended(self, row: RunRow) -> None:
        self.timers.run_ended(row)

    def die(self) -> None:
        """Be gone without a word, with everything that runs, as after kill -9."""
        self.cable.is_cut = True
        self.targets.cut_off()

    def runs(self, service: str = "") -> list[tuple[str, str]]:
        """When, by its host, and why services were started."""
        return [
            (began.when[3:], began.reason)
            for began in self.targets.began
            if not service or began.service == service
        ]

    def told(self, *names: str) -> list[dict[str, Any]]:
        """The facts of the events with these names."""
        return [event.fields for event in self.events if event.name in names]


class SharedWorld:
    """Machines, a database, and time."""

    def __init__(self, start: str = "12:00:30") -> None:
        self.start: datetime = at(start)
        self.steady = Steady()
        self.loop = SimLoop(self.steady, CrashPoints(), lambda: None)
        self.database = ModelDatabase(self.now_us())
        self.machines: list[Machine] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        complaints = list(self.loop.complaints)
        self.loop.bury()
        if kind is None:
            assert complaints == []

    def now_us(self) -> Instant:
        return instant_of(self.start) + self.steady.now_us

    def machine(self, name: str, *, off: timedelta = timedelta(0), zone: tzinfo = UTC) -> Machine:
        """A machine that does not run yet, with a clock that may be off."""
        self.machines.append(Machine(self, name, off=off, zone=zone))
        return self.machines[-1]

    def node(self, name: str, *definitions: Timer, **how: Any) -> Machine:
        """A machine that was just started, with these timers."""
        machine = self.machine(name, **how)
        self.do(machine.start(*definitions), within=timedelta(seconds=2))
        return machine

    def do(self, call: Coroutine[Any, Any, T], *, within: timedelta = timedelta(seconds=0.1)) -> T:
        """Do something to its end, which comes *within* some time."""
        task = self.loop.create_task(call)
        self.after(within)
        assert task.done(), f"it does not end: {task}"
        return task.result()

    def freeze(self, duration: timedelta) -> None:
        """Let time pass in which no machine does anything, as if all were stopped."""
        self.steady.now_us += duration_us(duration)

    def after(self, duration: timedelta) -> None:
        assert self.loop.run_until(self.steady.now_us + duration_us(duration))

    def until(self, moment: str) -> None:
        """Let time pass until the database shows *moment*."""
        assert self.loop.run_until(instant_of(at(moment)) - instant_of(self.start))

    def runs(self, service: str = "") -> list[tuple[str, str, str]]:
        """When, on which machine and why services were started."""
        runs = [(when, each.name, why) for each in self.machines for when, why in each.runs(service)]
        return sorted(runs)

    def row(self, name: str) -> ModelRow:
        """What the database has of a timer."""
        return self.database.spaces["default"].listed[name]

    def state(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = msgspec.json.decode(self.row(name).state)
        return state
