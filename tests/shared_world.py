"""Machines that share their timers on a board in memory, in virtual time: what processes cannot show exactly.

All of them live on one simulated loop. Each has its own host clock, its own services (`FakeTargets`) and its
own cable to the board, which can be pulled.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Self, TypeVar, cast

from duly.cluster.clock import BoardClock
from duly.config.schema import Timer
from duly.daemon.holding import Stopwatch, declared_of, stints_of
from duly.errors import StoreError
from duly.events import LEVELS, Announcer, Event
from duly.instant import SECOND_US, Instant, datetime_at, duration_us, instant_of
from duly.store.board import (
    Decide,
    Hold,
    Published,
    Reply,
    Request,
    SupersededError,
    Taken,
    TimerRow,
    View,
    shard_of,
)
from duly.supervisor.ended import Ended, Reason
from duly.testing import VirtualClock
from duly.testing.memory_board import MemoryBoard
from duly.testing.memory_table import Table
from duly.testing.simulation.clock import SimClock
from duly.testing.simulation.loop import SimLoop
from duly.testing.simulation.steady import CrashPoints, Steady
from duly.timers.record import COLUMNS, name_in
from duly.timers.shared import SharedTimers
from duly.verify.held import HeldMonitor
from tests.timer_world import INTERRUPTED, MINUTELY, FakeTargets, timer
from tests.world import at

T = TypeVar("T")

_LOOKS_EVERY_S = 20

TTL_US = 6 * SECOND_US
TRUSTED_US = TTL_US - TTL_US // 6
"""How long after a beat a member trusts its lease."""
SHARDS = 4
JOBS = [next(f"job{n}" for n in count() if shard_of(f"job{n}", SHARDS) == shard) for shard in range(SHARDS)]
"""A job for each shard, in order."""
EACH = [timer(f"t{n}", job, on_calendar=MINUTELY) for n, job in enumerate(JOBS)]
"""A timer for each of them."""
LONG = timedelta(hours=3)


def each(**options: Any) -> list[Timer]:
    """A timer for each job, with other triggers."""
    return [timer(f"t{n}", job, **options) for n, job in enumerate(JOBS)]


class CuttableFakes(FakeTargets):
    """Services whose runs can be cut off."""

    def __init__(self, clock: SimClock, tell: Callable[..., None]) -> None:
        super().__init__(cast("VirtualClock", clock))
        self.states = dict.fromkeys([*JOBS, "other"], "idle")
        self.cuts = 0
        self._tell = tell
        self._since_us: dict[int, Instant] = {}
        self._timers: dict[int, str | None] = {}

    async def run(
        self,
        service_id: str,
        *,
        reason: Reason,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,
    ) -> Ended:
        """Run a service to its end, and tell of it as a supervisor would."""
        number = self.new_run_id() if run_id is None else run_id
        if self.target_state(service_id) == "idle" and not self.refusals:
            self._since_us[number], self._timers[number] = instant_of(self.clock.now()), timer
            self._tell("ServiceRunStarted", service=service_id, runId=number, timer=timer)
        return await super().run(
            service_id, reason=reason, timer=timer, scheduled_us=scheduled_us, run_id=number
        )

    def end(self, service_id: str, ended: Ended) -> None:
        """End the run of a service now, and tell of it."""
        number, _ = self.live[service_id]
        self._tell(
            "ServiceRunEnded",
            service=service_id,
            runId=number,
            timer=self._timers[number],
            result=ended.result.value,
            duration=(instant_of(self.clock.now()) - self._since_us[number]) / 1_000,
        )
        super().end(service_id, ended)

    def cut_off(self) -> None:
        """End everything that runs."""
        self.cuts += 1
        for service in list(self.live):
            self.end(service, INTERRUPTED)


class Cable(MemoryBoard):
    """A machine's way to the board, which can be cut, and may take its time."""

    is_cut = False
    latency_s = 0.0
    error: Exception | None = None
    """What the next giving of shards raises."""

    def __init__(self, now_us: Callable[[], Instant], *, ttl_us: int, table: Table) -> None:
        super().__init__(now_us, ttl_us=ttl_us, table=table)
        self.refused: list[bool] = []
        """Of each write that a newer list refused, whether it would have begun a run."""
        self.calls: list[str] = []
        """What was called, of what is about requests."""
        self.fails: set[str] = set()
        """Calls that fail, of those about requests and the writing of timers."""
        self.fails_in: set[int] = set()
        """Shards whose timers cannot be written."""
        self.loses: set[str] = set()
        """Of those about requests, calls that are done and seem to fail."""

    async def join(self, member: int, name: str, /, *, ttl_us: int) -> None:
        """Join, after a while."""
        await self._pass()
        await super().join(member, name, ttl_us=ttl_us)

    async def beat(self, member: int, /, *, ttl_us: int, lag_ms: int = 0, is_leaving: bool = False) -> View:
        """Beat, after a while."""
        await self._pass()
        return await super().beat(member, ttl_us=ttl_us, lag_ms=lag_ms, is_leaving=is_leaving)

    async def publish(
        self, member: int, fingerprint: str, decide: Decide, /, *, displaces: bool = True
    ) -> Published:
        """Publish, after a while."""
        await self._pass()
        return await super().publish(member, fingerprint, decide, displaces=displaces)

    async def take(self, member: int, shards: Sequence[int], /) -> Taken:
        """Take, after a while."""
        await self._pass()
        return await super().take(member, shards)

    async def write_timers(
        self,
        member: int,
        hold: Hold,
        number: int,
        /,
        *,
        put: Sequence[TimerRow],
        removed: Sequence[int],
        edition: int | None = None,
    ) -> None:
        """Write, after a while, and note what is refused."""
        await self._pass()
        self._fail("write_timers", {"write_timers"} if hold.shard in self.fails_in else self.fails)
        try:
            await super().write_timers(member, hold, number, put=put, removed=removed, edition=edition)
        except SupersededError:
            self.refused.append(any(row.run_by is not None for row in put))
            raise

    async def ask(self, request: Request, /) -> None:
        """Ask, after a while."""
        await self._tried("ask", lambda: super(Cable, self).ask(request))

    async def take_requests(self, member: int, holds: Sequence[Hold], /) -> Sequence[Request]:
        """Take requests, after a while."""
        return await self._tried("take_requests", lambda: super(Cable, self).take_requests(member, holds))

    async def answer(self, member: int, request_id: int, answer: str, /) -> None:
        """Answer, after a while."""
        await self._tried("answer", lambda: super(Cable, self).answer(member, request_id, answer))

    async def reply(self, request_id: int, /, *, withdraws: bool = False) -> Reply | None:
        """Look for an answer, after a while."""
        return await self._tried("reply", lambda: super(Cable, self).reply(request_id, withdraws=withdraws))

    async def _tried(self, name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.calls.append(name)
        await self._pass()
        self._fail(name, self.fails)
        answer = await call()
        self._fail(name, self.loses)
        return answer

    def _fail(self, name: str, among: set[str]) -> None:
        if name in among:
            raise StoreError(store=self.name, reason=f"fails to {name}")

    async def give(self, member: int, holds: Sequence[Hold], /) -> None:
        """Give, or fail in a way that nobody expects."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        await super().give(member, holds)

    async def _pass(self) -> None:
        if self.latency_s:
            await asyncio.sleep(self.latency_s)  # noqa: TID251 (in virtual time)

    def _opened(self) -> Table:
        if self.is_cut:
            raise StoreError(store=self.name, reason="is out of reach")
        return super()._opened()


class Member:
    """One machine."""

    def __init__(self, world: "SharedWorld", name: str, *, off: timedelta) -> None:
        self.name = name
        self.world = world
        self.host = SimClock(world.steady, world.now_us() + duration_us(off))
        self.cable = Cable(world.now_us, ttl_us=TTL_US, table=world.table)
        self.targets = CuttableFakes(self.host, self._tell_monitor)
        self.events: list[Event] = []
        self.violations: list[dict[str, Any]] = []
        """What its monitor objects to."""
        self.misses: list[tuple[str, str]] = []
        self.trusts: list[int] = []
        clock = BoardClock(lambda: world.steady.now_us, wall=self.host.now)
        self.timers = SharedTimers(
            self.cable,
            self.targets,
            clock,
            Announcer([self.events.append, self._heed], clock.now),
            host_clock=self.host,
            zone=UTC,
            name=name,
            shards=SHARDS,
            note_miss=lambda timer, _at_us, reason: self.misses.append((timer, reason)),
            on_trust=self.trusts.append,
        )
        self.timers.tenancy.draw = world.numbers.__next__
        self.targets.hooks = [self.timers.service_ended]
        self._clock = clock
        self.monitor = HeldMonitor(
            lambda: declared_of(self.timers, UTC),
            lambda: stints_of(self.timers),
            [lambda event: self.violations.append(event.fields)],
            steady_us=Stopwatch(clock).steady_us,
            slack_us=4 * TTL_US,
        )

    async def start(
        self, *definitions: Timer, is_start_up: bool = True, invalid: Collection[str] = ()
    ) -> None:
        """Put it to work."""
        started_up_us = instant_of(self.host.now())
        await self.timers.start(
            definitions, started_up_us=started_up_us, is_start_up=is_start_up, invalid=invalid
        )
        if not self.timers.tenancy.is_leaving:
            self._tell_monitor("TimersEnabled")
            self._look()

    def _tell_monitor(self, name: str, **fields: Any) -> None:
        self._heed(Event(name, LEVELS[name], self._clock.now(), fields))

    def _heed(self, event: Event) -> None:
        if self.timers.tenancy.is_leaving:  # as told by TimersDisabled, or SupervisorStopping
            self.monitor.listener(Event("TimersDisabled", 20, event.time, {}))
        self.monitor.listener(event)

    def _look(self) -> None:
        self.monitor.look(self._clock.now())
        self.world.loop.call_later(_LOOKS_EVERY_S, self._look)

    def die(self) -> None:
        """Be gone without a word, with everything that runs, as after kill -9."""
        self.cable.is_cut = True
        self.targets.hooks = []
        self.targets.cut_off()

    @property
    def held(self) -> list[int]:
        """The shards that the board has as its own."""
        numbers = {number for number, seat in self.world.table.members.items() if seat.name == self.name}
        return [at for at, shard in enumerate(self.world.table.shards) if shard.holder in numbers]

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
    """Machines, a board, and time."""

    def __init__(self, start: str = "12:00:30") -> None:
        self.start: datetime = at(start)
        self.steady = Steady()
        self.loop = SimLoop(self.steady, CrashPoints(), lambda: None)
        self.table = Table()
        self.numbers = count(1)
        self.machines: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        complaints = list(self.loop.complaints)
        self.loop.bury()
        if kind is None:
            assert complaints == []
            assert [each for member in self.machines for each in member.violations] == []

    def now_us(self) -> Instant:
        """The time of the board."""
        return instant_of(self.start) + self.steady.now_us

    def machine(self, name: str, *, off: timedelta = timedelta(0)) -> Member:
        """A machine that does not run yet, with a clock that may be off."""
        self.machines.append(Member(self, name, off=off))
        return self.machines[-1]

    def member(self, name: str, *definitions: Timer, off: timedelta = timedelta(0)) -> Member:
        """A machine that was just started, with these timers."""
        member = self.machine(name, off=off)
        self.do(member.start(*definitions))
        return member

    def do(self, call: Coroutine[Any, Any, T], *, within: timedelta = timedelta(0)) -> T:
        """Do something to its end, which comes at once or *within* some time."""
        task = self.loop.create_task(call)
        self.after(within)
        assert task.done(), f"it does not end: {task}"
        return task.result()

    def freeze(self, duration: timedelta) -> None:
        """Let time pass in which no machine does anything, as if all were stopped."""
        self.steady.now_us += duration_us(duration)

    def after(self, duration: timedelta) -> None:
        """Let time pass."""
        assert self.loop.run_until(self.steady.now_us + duration_us(duration))

    def until(self, moment: str) -> None:
        """Let time pass until the board shows *moment*."""
        assert self.loop.run_until(instant_of(at(moment)) - instant_of(self.start))

    def shown(self, instant_us: Instant) -> str:
        """An instant as tests write it."""
        return datetime_at(instant_us, UTC).strftime("%H:%M:%S")

    def row(self, name: str) -> dict[str, Any]:
        """What the board has of a timer."""
        (record,) = [row.record for row in self.rows() if name_in(row.record) == name]
        return dict(zip(COLUMNS, record, strict=True))

    def rows(self) -> Sequence[TimerRow]:
        """What the board has of all timers."""
        return [row for _, row in sorted(self.table.timers.items())]
