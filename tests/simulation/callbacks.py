"""What the callbacks of a simulated program do: what the plan says, run by run, or what the user wrote."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from duly.errors import SchedulerError
from duly.instant import SECOND_US
from tests.simulation.host import SimulatedProcess
from tests.simulation.plan import Behaviour, How, Items, Plan, PlannedTask

_BEHAVES = (Behaviour(),)
_ENDLESS = frozenset({How.HANG, How.WAIT})
_BRISK_US = 45 * SECOND_US


class PlannedError(Exception):
    """The plan has this run fail."""


class Callbacks:
    """Makes callbacks for the lists of a plan."""

    def __init__(self, plan: Plan, given: Mapping[str, Callable[[], Any]] | None = None) -> None:
        self._plan = plan
        self._given = given or {}
        self._runs: Counter[str] = Counter()
        self._is_healed = False
        self._waiting: list[tuple[str, asyncio.Future[bool]]] = []
        self.on_stop: Callable[[], None] = lambda: None
        """Called when a callback stops its own scheduler."""
        self.counts: Counter[str] = Counter()
        """How often callbacks did what."""

    @property
    def is_brisk(self) -> bool:
        """Whether every run is over in less than a minute."""
        behaviours = [each for several in self._plan.behaviours.values() for each in several]
        is_long = any(each.how in _ENDLESS or each.lasts_us > _BRISK_US for each in behaviours)
        return not is_long and not self._given

    def registrations(self, items: Items, process: SimulatedProcess) -> list[tuple[Any, ...]]:
        """The list that a user would hand to `initialize`."""
        return [
            (
                item.name,
                item.cron,
                self._callback(item, items, process),
                timedelta(microseconds=item.delay_us),
            )
            for item in items
        ]

    def finish(self, name: str, *, ok: bool) -> None:
        """Let the runs of *name* that wait to be told, end."""
        waiting, self._waiting = self._waiting, []
        for waiter, seen in waiting:
            if waiter != name:
                self._waiting.append((waiter, seen))
            elif not seen.done():
                seen.set_result(ok)

    def heal(self) -> None:
        """Let nobody wait any more, and nothing go wrong; runs that hang, hang."""
        self._is_healed = True
        for name, _ in list(self._waiting):
            self.finish(name, ok=True)

    def forget(self) -> None:
        """Forget the runs of a dead process."""
        self._waiting.clear()

    def _callback(self, item: PlannedTask, items: Items, process: SimulatedProcess) -> Callable[[], Any]:
        if (given := self._given.get(item.name)) is not None:
            return given

        async def callback() -> None:
            await self._behave(item.name, items, process)

        return callback

    async def _behave(self, name: str, items: Items, process: SimulatedProcess) -> None:
        behaviours = self._plan.behaviours.get(name, _BEHAVES)
        behaviour = behaviours[self._runs[name] % len(behaviours)]
        self._runs[name] += 1
        self.counts[behaviour.how] += 1
        if behaviour.lasts_us and not self._is_healed:
            await asyncio.sleep(behaviour.lasts_us / SECOND_US)  # noqa: TID251 (virtual time passes)
        if self._is_healed:
            return
        match behaviour.how:
            case How.RAISE:
                raise PlannedError
            case How.EXIT:
                raise SystemExit(3)
            case How.INTERRUPT:
                raise KeyboardInterrupt
            case How.CANCEL:
                raise asyncio.CancelledError
            case How.HANG:
                await asyncio.get_running_loop().create_future()
            case How.STOP:
                self.on_stop()
                await process.recorded.stop()
            case How.INITIALIZE:
                with suppress(SchedulerError):
                    await process.recorded.initialize(self.registrations(items, process))
            case How.WAIT:
                await self._wait(name)

    async def _wait(self, name: str) -> None:
        seen: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, seen))
        if not await seen:
            raise PlannedError
