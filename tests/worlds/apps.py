"""Lives of a program with an `App`, on any store and in virtual time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from duly import App
from duly.events import Event
from duly.testing import VirtualClock, crash
from tests.worlds.scheduler import WORLDS, Record
from tests.worlds.stores import HookedCluster, StoreFactory, fail_over

START = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)  # a Thursday
Calls = list[tuple[str, datetime]]
Declare = Callable[[App, Callable[[str], None]], None]


class Programs:
    """Lives of one program on one store: the same tasks are declared each time."""

    def __init__(
        self,
        same_store: StoreFactory,
        declare: Callable[[App, Callable[[str], None]], None],
        *,
        is_old: bool = False,
    ) -> None:
        """*is_old*: the store remembers other programs."""
        self.clock = VirtualClock(START)
        self.calls: Calls = []
        self.events: list[Event] = []
        self._same_store = same_store
        self._declare = declare
        self.record = Record(self.clock, store="unknown" if is_old else "fresh")
        WORLDS.append(self)

    def app(self, **options: Any) -> App:
        """The program once more; its tasks are declared and it is not started."""
        options = {"clock": self.clock, "timezone": "UTC", "listeners": [self.events.append], **options}
        store = self._same_store()
        if isinstance(store, HookedCluster):
            store.go_by(self.clock)
        app = App(store, **options)
        self._declare(app, lambda name: self.calls.append((name, self.clock.now())))
        return self.record.of_app(app)

    def times(self, name: str) -> list[float]:
        """When a task was called, in seconds since the first start."""
        return [(at - START).total_seconds() for called, at in self.calls if called == name]

    async def crash(self, app: App) -> None:
        """Kill a program."""
        await crash(app)
        fail_over(self._same_store())

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        await self.clock.advance(timedelta(seconds=seconds))

    def told(self, name: str) -> list[dict[str, Any]]:
        """The facts of the events of that name."""
        return [event.fields for event in self.events if event.name == name]
