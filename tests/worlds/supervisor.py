"""A small world for tests of the supervisor: a virtual clock, fake processes, a history, and all it told."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from duly import Event
from duly.config import Service, Settings
from duly.events import Announcer, Listener
from duly.instant import instant_of
from duly.store.history import History, HistoryDatabase, RunRow
from duly.store.memory import MemoryDatabase
from duly.supervisor.services import ServiceView
from duly.supervisor.supervisor import Supervisor
from duly.testing import VirtualClock
from tests.worlds.fake_processes import FakeProcess, FakeProcesses

SECOND = timedelta(seconds=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class World:
    """A supervisor, its fake processes, its history, and everything it told."""

    def __init__(self, settings: Settings | None = None, database: HistoryDatabase | None = None) -> None:
        self.clock = VirtualClock(NOON)
        self.events: list[Event] = []
        self.listeners: list[Listener] = [self.events.append]
        announcer = Announcer([self._tell], self.clock.now)
        self.processes = FakeProcesses(self.clock)
        self.database = database or MemoryDatabase()
        self.history = History(self.database, self.clock, announcer)
        self.supervisor = Supervisor(
            self.processes,
            self.history,
            self.clock,
            announcer,
            scheduler_id="world",
            settings=settings or Settings(),
        )
        self.calls: list[asyncio.Task[Any]] = []

    def _tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    async def start(self, *services: Service, boot: set[str] | None = None) -> None:
        """Have services started, and let everything come to rest."""
        ids = {service.id for service in services} if boot is None else boot
        await self.do(self.supervisor.start(services, ids))

    async def reload(self, *services: Service) -> asyncio.Task[Any]:
        """Have services reloaded, and let everything come to rest."""
        return await self.do(self.supervisor.reload(services, {service.id for service in services}))

    async def do(self, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Make a call without waiting for it, and let everything come to rest."""
        task = asyncio.get_running_loop().create_task(call)
        self.calls.append(task)
        await self.rest()
        return task

    async def rest(self) -> None:
        """Let everything come to rest."""
        await self.clock.advance(timedelta(0))

    async def after(self, seconds: float) -> None:
        """Let time pass."""
        await self.clock.advance(timedelta(seconds=seconds))

    async def stop(self) -> float:
        """Stop, letting time pass; how many seconds it took."""
        begun = self.clock.now()
        stopping = await self.do(self.supervisor.stop())
        while not stopping.done():
            await self.after(0.1)
        return (self.clock.now() - begun).total_seconds()

    def view(self, name: str) -> ServiceView:
        """A service as it is shown."""
        return next(view for view in self.supervisor.views() if view.id == name)

    def state(self, name: str) -> str:
        """The state that is shown of a service."""
        return self.view(name).state

    def living(self) -> list[str]:
        """The programs of the processes that live."""
        return [process.command.argv[0] for process in self.processes.living]

    def started(self) -> list[str]:
        """The programs of all processes ever started."""
        return [process.command.argv[0] for process in self.processes.started]

    def process(self, name: str) -> FakeProcess:
        """The newest process of a program."""
        return next(p for p in reversed(self.processes.started) if p.command.argv[0] == name)

    def told(self, *names: str) -> list[tuple[str, dict[str, Any]]]:
        """The events with these names."""
        return [(event.name, event.fields) for event in self.events if event.name in names]

    async def runs(self, name: str | None = None) -> list[RunRow]:
        """The rows of the history, oldest first."""
        return list(reversed(await self.history.runs(service=name, limit=10_000)))


def simple(name: str, **options: Any) -> Service:
    return Service(name, (name,), **options)


def oneshot(name: str, **options: Any) -> Service:
    return Service(name, (name,), type="oneshot", **options)


def at(seconds: float) -> int:
    return instant_of(NOON + timedelta(seconds=seconds))


def world_of(*, stays: tuple[str, ...] = (), lasts: dict[str, float] | None = None, **settings: Any) -> World:
    """A world in which some programs run until they are told to end, and some last a while."""
    world = World(Settings(**settings))
    for name in stays:
        world.processes.script(name)
    for name, seconds in (lasts or {}).items():
        world.processes.script(name, lasts=timedelta(seconds=seconds))
    return world
