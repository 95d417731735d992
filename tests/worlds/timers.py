"""A small world for timer tests: a virtual clock, fake services, a repository that survives."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, timedelta, tzinfo
from typing import Any, NamedTuple

from duly.clock import Step
from duly.config.schema import Calendar, Timer
from duly.core.causes import Reason
from duly.errors import StoreError
from duly.events import Announcer, Event
from duly.instant import Instant, datetime_at, instant_of
from duly.store.history import Result
from duly.supervisor.results import Refused, RunResult, ServiceError, TargetState
from duly.testing import VirtualClock
from duly.timers.local import LocalTimers
from duly.timers.record import MemoryTimerRepository, TimerRepository
from duly.timers.timer import TimerState
from tests.worlds.scheduler import at

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

SUCCESS = RunResult(Result.SUCCESS, 0)
EXIT = RunResult(Result.EXIT, 3)
KILLED = RunResult(Result.SIGNAL, None, 9)
OVERDUE = RunResult(Result.TIMEOUT, None, 15)
NO_PROGRAM = RunResult(Result.SPAWN_ERROR)
INTERRUPTED = RunResult(Result.INTERRUPTED, None, 15)

HOURLY = Calendar(minute=(0,))
MINUTELY = Calendar()


def daily(hour: int) -> Calendar:
    """Once a day, on the hour."""
    return Calendar(minute=(0,), hour=(hour,))


def timer(name: str = "t", target: str = "job", **options: Any) -> Timer:
    """A timer as checking would leave it: tuples, and no retries unless asked for."""
    calendars = options.pop("on_calendar", ())
    options["on_calendar"] = (calendars,) if isinstance(calendars, Calendar) else tuple(calendars)
    options.setdefault("retry_intervals_sec", ())
    return Timer(name, target, **options)


class Began(NamedTuple):
    """One run, as the services saw it."""

    service: str
    when: str
    reason: str
    timer: str | None
    scheduled_us: Instant | None
    run_id: int


class FakeTargets:
    """Services in virtual time: each run lasts and ends as it was told to, and outlasts those who wait."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.is_stopping = False
        self.states: dict[str, TargetState] = {"job": "idle", "other": "idle"}
        self.lasts: defaultdict[str, timedelta] = defaultdict(timedelta)
        self.ends: defaultdict[str, list[RunResult]] = defaultdict(list)
        self.always: dict[str, RunResult] = {}
        self.began: list[Began] = []
        self.hooks: list[Any] = []
        self.outcomes: dict[int, str] = {}
        self.last_ends: dict[str, Instant] = {}
        self.live: dict[str, tuple[int, asyncio.Future[RunResult]]] = {}
        self.collisions = 0
        """How often a run was asked for that could not be."""
        self.refusals: list[ServiceError] = []
        self._next_id = 1

    def target_state(self, service_id: str) -> TargetState:
        """Whether a service can be started now."""
        return "active" if service_id in self.live else self.states.get(service_id, "missing")

    def replace_run(self, service_id: str) -> None:
        """End the run of a service: another is due."""
        if service_id in self.live:
            self.end(service_id, RunResult(Result.INTERRUPTED))

    def new_run_id(self) -> int:
        """The next number."""
        self._next_id += 1
        return self._next_id - 1

    def last_end_us(self, service_id: str) -> Instant | None:
        """When the last run of a service ended."""
        return self.last_ends.get(service_id)

    def outcome(self, run_id: int, timer: str = "") -> str | None:
        """What became of a run."""
        return self.outcomes.get(run_id)

    async def run(
        self,
        service_id: str,
        *,
        reason: Reason,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,
    ) -> RunResult:
        """Run a service to its end."""
        if self.refusals:
            raise self.refusals.pop(0)
        if self.target_state(service_id) != "idle":
            self.collisions += 1
            raise ServiceError(Refused.ACTIVE, service_id)
        run_id = self.new_run_id() if run_id is None else run_id
        end: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self.live[service_id] = (run_id, end)
        self.outcomes[run_id] = "running"
        when = self.clock.now().astimezone(UTC).strftime("%d %H:%M:%S")
        self.began.append(Began(service_id, when, reason.value, timer, scheduled_us, run_id))
        lasting = asyncio.get_running_loop().create_task(self._last(service_id, end))
        await asyncio.wait([end])
        lasting.cancel()
        return end.result()

    async def _last(self, service_id: str, end: "asyncio.Future[RunResult]") -> None:
        lasts = self.lasts[service_id]
        if lasts:
            await self.clock.sleep_until(self.clock.now() + lasts)
        if not end.done():
            ends = self.ends[service_id]
            self.end(service_id, ends.pop(0) if ends else self.always.get(service_id, SUCCESS))

    def end(self, service_id: str, ended: RunResult) -> None:
        """End the run of a service now."""
        run_id, end = self.live.pop(service_id)
        self.outcomes[run_id] = ended.result.value
        now_us = instant_of(self.clock.now())
        self.last_ends[service_id] = now_us
        end.set_result(ended)
        for hook in self.hooks:
            hook(service_id, now_us)

    def die(self) -> None:
        """Be gone, with everything that runs, as after kill -9."""
        for run_id, end in self.live.values():
            self.outcomes[run_id] = "interrupted"
            end.cancel()
        self.live.clear()
        self.hooks.clear()

    async def by_hand(self, service_id: str) -> None:
        """Start a service by hand, and do not wait for it."""
        self._by_hand = asyncio.get_running_loop().create_task(self._manual(service_id))

    async def _manual(self, service_id: str) -> None:
        with suppress(asyncio.CancelledError):  # it died with the supervisor
            await self.run(service_id, reason=Reason.MANUAL)


class FailingRepository(MemoryTimerRepository):
    """A repository that can break."""

    is_broken = False

    async def replace(self, *, put: Sequence[TimerState], removed: Sequence[int]) -> None:
        """Write, unless broken."""
        self._check()
        await super().replace(put=put, removed=removed)

    async def save(self, timers: Sequence[TimerState]) -> None:
        """Write, unless broken."""
        self._check()
        await super().save(timers)

    def _check(self) -> None:
        if self.is_broken:
            raise StoreError(store="x", reason="is broken")


class HeldRepository(MemoryTimerRepository):
    """A repository whose writes wait while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = asyncio.Event()
        self.is_free.set()

    async def replace(self, *, put: Sequence[TimerState], removed: Sequence[int]) -> None:
        """Write, when free."""
        await self.is_free.wait()
        await super().replace(put=put, removed=removed)

    async def save(self, timers: Sequence[TimerState]) -> None:
        """Write, when free."""
        await self.is_free.wait()
        await super().save(timers)


def state_of(timers: LocalTimers, name: str) -> TimerState:
    return next(timer for timer in timers.all() if timer.name == name)


class TimerWorld:
    """Everything around the timers of one machine, over several lives of the supervisor."""

    def __init__(
        self, start: str = "12:00:30", *, zone: tzinfo = UTC, repository: TimerRepository | None = None
    ) -> None:
        self.zone = zone
        self.clock = VirtualClock(at(start, zone))
        self.repository: Any = MemoryTimerRepository() if repository is None else repository
        self.targets = FakeTargets(self.clock)
        self.events: list[Event] = []
        self.misses: list[tuple[str, str, str]] = []
        self.started_up_us = instant_of(self.clock.now())
        self.clock.watch(self._on_step)
        self.timers = self._new()

    def _on_step(self, step: Step) -> None:
        """Count the time since start-up as the supervisor does: by how long it was."""
        self.started_up_us += step.after_us - step.before_us

    def _new(self) -> LocalTimers:
        announcer = Announcer([self.events.append], self.clock.now)
        return LocalTimers(
            self.repository, self.targets, self.clock, announcer, zone=self.zone, on_miss=self._on_miss
        )

    def _on_miss(self, name: str, at_us: Instant, reason: str) -> None:
        self.misses.append((name, self.shown(at_us), reason))

    def shown(self, instant_us: Instant | None) -> str:
        """An instant as the tests write it."""
        return "-" if instant_us is None else datetime_at(instant_us, UTC).strftime("%d %H:%M:%S")

    async def begin(self, *definitions: Timer, invalid: Collection[str] = ()) -> LocalTimers:
        """Start the supervisor with these timers."""
        self.started_up_us = instant_of(self.clock.now())
        return await self.open(*definitions, is_start_up=True, invalid=invalid)

    async def open(
        self, *definitions: Timer, is_start_up: bool = False, invalid: Collection[str] = ()
    ) -> LocalTimers:
        """Open the switch."""
        self.timers = self._new()
        self.targets.hooks = [self.timers.service_ended]
        await self.timers.start(
            definitions, started_up_us=self.started_up_us, is_start_up=is_start_up, invalid=invalid
        )
        await self.rest()
        return self.timers

    async def shut(self) -> None:
        """Close the switch."""
        self.targets.hooks = []
        await self.timers.stop()
        await self.rest()

    async def stop(self) -> None:
        """Stop the supervisor; what runs is cut off."""
        self.targets.is_stopping = True
        closing = asyncio.get_running_loop().create_task(self.timers.close())
        await self.rest()
        for service in list(self.targets.live):
            self.targets.end(service, INTERRUPTED)
        await closing
        self._die()

    async def crash(self) -> None:
        """Kill the supervisor, with everything it runs."""
        await self.timers._poller.drop()
        self._die()

    def _die(self) -> None:
        self.targets.die()
        self.targets.is_stopping = False

    async def rest(self) -> None:
        """Let everything come to rest."""
        await self.clock.advance(timedelta(0))

    async def until(self, moment: str) -> None:
        """Let time pass until *moment*."""
        await self.clock.advance_to(at(moment, self.zone))

    async def after(self, duration: timedelta) -> None:
        """Let time pass."""
        await self.clock.advance(duration)

    # --- what happened ---

    def runs(self, service: str = "job") -> list[tuple[str, str]]:
        """When and why a service was started, and forget that."""
        runs = [(item.when, item.reason) for item in self.targets.began if item.service == service]
        self.targets.began = [item for item in self.targets.began if item.service != service]
        return runs

    def state(self, name: str = "t") -> TimerState:
        """One timer."""
        return state_of(self.timers, name)

    def next_run_us(self, name: str = "t") -> Instant | None:
        """When a timer fires next."""
        return self.timers.next_of(self.state(name), instant_of(self.clock.now()))

    def next_run(self, name: str = "t") -> str:
        """When a timer will fire next."""
        return self.shown(self.next_run_us(name))

    def told(self, *names: str) -> list[dict[str, Any]]:
        """The facts of the events with these names."""
        return [event.fields for event in self.events if event.name in names]

    def timer_events(self) -> list[str]:
        """The names of all events of timers, and forget them."""
        names = [event.name for event in self.events if event.name.startswith("Timer")]
        self.events.clear()
        return names


def names(timers: Sequence[TimerState]) -> list[str]:
    return [item.name for item in timers]
