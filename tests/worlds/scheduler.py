"""A small world for scheduler tests: a virtual clock, a store that survives restarts, and a diary."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Protocol

import msgspec

from duly import App, Event, Scheduler
from duly.testing import VirtualClock, crash
from duly.verify import Header, Outcome, Recorder, judged
from duly.verify.cluster import judged_together
from duly.verify.trace import Crash, StoreKnown, TrustLost, micros
from tests.worlds.stores import HookedCluster, Place, fail_over

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
Registration = tuple[str, str, Any, timedelta]


def at(text: str, zone: tzinfo = UTC) -> datetime:
    """A time of 2026-01-01 ("12:34"), or of any day ("2026-03-29 02:30")."""
    if len(text) <= len("HH:MM:SS"):
        text = f"2026-01-01 {text}"
    return datetime.fromisoformat(text).replace(tzinfo=zone)


class Bare:
    """A scheduler as it was before its methods were replaced."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.initialize, self.stop = scheduler.initialize, scheduler.stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


class Record:
    """The trace of a world's schedulers, one process after the other."""

    def __init__(self, clock: VirtualClock, *, store: StoreKnown = "fresh") -> None:
        self._clock = clock
        self._store = store
        self._header: Header | None = None
        self._events: list[Any] = []
        self._processes = 0

    def of(self, scheduler: Scheduler) -> Scheduler:
        """The same scheduler, recorded."""
        drop, recorder = scheduler._drop, self._recorder()
        recorded = recorder.wrap(Bare(scheduler))
        self._go_on(recorder)

        async def dropped() -> None:
            recorder.abandon()
            await drop()
            self._note_crash()

        for name, method in (
            ("initialize", recorded.initialize),
            ("stop", recorded.stop),
            ("_drop", dropped),
        ):
            setattr(scheduler, name, method)
        return scheduler

    def of_app(self, app: App) -> App:
        """The same app, recorded. Its death is shown by the next one."""
        recorder = self._recorder()
        app = recorder.wrap(app)
        self._go_on(recorder)
        return app

    def _recorder(self) -> Recorder:
        window = timedelta(milliseconds=1)  # virtual: an end and a crash at the same instant
        self._processes += 1
        proc = f"p{self._processes}"
        return Recorder(
            store=self._store, persist_window=window, tick=None, proc=proc, listeners=[self._events.append]
        )

    def _go_on(self, recorder: Recorder) -> None:
        assert recorder.recorded is not None
        if self._events:
            recorder.recorded.emitter.last_us = micros(self._events[-1].t)
        self._header = recorder.header

    def _note_crash(self) -> None:
        now_ms = self._clock.now().timestamp() * 1000
        self._events.append(Crash(t=now_ms, proc=f"p{self._processes}"))

    def judged(self) -> Outcome:
        """What the checker says of it; of a node that lost its trust it is asked as of a cluster."""
        encode = msgspec.json.encode
        lines = [encode(self._header) + b"\n", *(encode(event) + b"\n" for event in self._events)]
        has_lost = any(isinstance(event, TrustLost) for event in self._events)
        return judged_together(lines) if has_lost else judged(lines)


class Recording(Protocol):
    """What has a record that is judged after the test."""

    record: Record


WORLDS: "list[Recording]" = []
"""The worlds of the running test; what happened in them is judged after it."""


class World:
    """Everything around a scheduler. `calls` is the diary: who was called when."""

    def __init__(
        self, same_store: Callable[[], Place], start: str | datetime = "12:00:30", zone: tzinfo = UTC
    ) -> None:
        self.zone = zone
        self.clock = VirtualClock(at(start, zone) if isinstance(start, str) else start)
        self.same_store = same_store
        self.calls: list[tuple[str, str]] = []
        self.events: list[Event] = []
        self.record = Record(self.clock)
        WORLDS.append(self)
        self.scheduler = self.new_scheduler()

    def new_scheduler(self, **options: Any) -> Scheduler:
        """A scheduler in this world, with a recorder around it."""
        options = {"timezone": self.zone, "listeners": [self.events.append], **options}
        place = self.same_store()
        if isinstance(place, HookedCluster):
            place.go_by(self.clock)
        return self.record.of(Scheduler(place, clock=self.clock, **options))

    def task(
        self,
        name: str,
        cron: str = "* * * * *",
        *,
        outcomes: Sequence[BaseException | None] = (),
        lasts: timedelta = timedelta(0),
        delay: timedelta = timedelta(minutes=5),
    ) -> Registration:
        """A registration whose callback notes each call, lasts, and ends as *outcomes* say, one by one."""
        left = list(outcomes)

        async def callback() -> None:
            self.calls.append((name, self.clock.now().astimezone(self.zone).strftime("%H:%M:%S")))
            if lasts:
                await self.clock.sleep_until(self.clock.now() + lasts)
            outcome = left.pop(0) if left else None
            if outcome is not None:
                # One exception may be raised hundreds of times: its traceback would grow, and is logged.
                raise outcome.with_traceback(None)

        return name, cron, callback, delay

    async def begin(self, *registrations: Registration, **options: Any) -> Scheduler:
        """Start a new scheduler with these registrations, and let it come to rest."""
        self.scheduler = self.new_scheduler(**options)
        await self.scheduler.initialize(list(registrations))
        await self.rest()
        return self.scheduler

    async def crash(self) -> None:
        """Kill the scheduler."""
        await crash(self.scheduler)
        fail_over(self.same_store())

    async def stop(self, within: timedelta = timedelta(days=400)) -> None:
        """Stop the scheduler, letting time pass for the runs it waits for."""
        stopping = asyncio.get_running_loop().create_task(self.scheduler.stop())
        await self.clock.advance(within)
        assert stopping.done()
        await stopping

    async def stop_after(self, moment: str) -> None:
        """Let time pass until *moment*, then stop."""
        await self.until(moment)
        await self.scheduler.stop()

    async def rest(self) -> None:
        """Let everything come to rest."""
        await self.clock.advance(timedelta(0))

    async def until(self, moment: str) -> None:
        """Let time pass until *moment*."""
        await self.clock.advance_to(at(moment, self.zone))

    def calls_of(self, name: str) -> list[str]:
        """When a task was called."""
        return [when for who, when in self.calls if who == name]

    def told(self, *names: str) -> list[tuple[str, dict[str, Any]]]:
        """The events with these names, or all but the chatter of polling."""
        return [
            (event.name, event.fields)
            for event in self.events
            if (event.name in names if names else not event.name.startswith("Poll"))
        ]
