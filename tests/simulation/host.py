"""The simulated host, and the processes that live and die on it.

The host is what a crash leaves: steady time, the wall clock, the disk, the trace. A process is a loop
with a scheduler on it, a recorder around that, and a worker before the store. When a process
dies, everything it could still reach is put out of its reach first; only then is it taken apart.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import apsw
import msgspec

from duly.core.record import Record
from duly.errors import SchedulerError
from duly.instant import MINUTE_US, milliseconds
from duly.scheduler import Scheduler
from duly.store import MemoryStore, SQLiteStore
from duly.verify import trace
from duly.verify.recorder import Recorder
from tests.simulation.clock import SimClock
from tests.simulation.disk import Cut, SimDisk
from tests.simulation.loop import SimLoop
from tests.simulation.plan import Plan
from tests.simulation.steady import CrashPoints, Steady
from tests.simulation.stores import SimulatedStore, SimWorker, driven

List = list[tuple[str, str, float]]

_LONG_US = 30 * 24 * 60 * MINUTE_US
"""Nobody listens to the events of longer lives, which then pass twice as fast."""


class Host:
    """What outlives processes."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.zone = ZoneInfo(plan.zone)
        self.steady = Steady()
        self.points = CrashPoints()
        self.clock = SimClock(self.steady, plan.start_us)
        rng = random.Random(f"disk {plan.seed}")
        self.disk = SimDisk(folder, self.points, rng)
        self.memory = MemoryStore()
        self.trace: list[trace.TraceEvent] = []
        self.processes = 0
        self.effective: List = []
        """The list that took effect last."""
        self.outstanding: dict[int, List] = {}
        """The lists of `initialize` calls that have not returned."""
        self.stopping: set[int] = set()
        self.running = 0
        self._locker: apsw.Connection | None = None

    # --- the trace ---

    def note(self, event: trace.TraceEvent) -> None:
        """Take an event of the trace."""
        self.trace.append(event)
        kind = type(event)
        if kind is trace.RunStart:
            self.running += 1
        elif kind is trace.RunEnd:
            self.running -= 1
        else:
            self._note_call(event)

    def _note_call(self, event: trace.TraceEvent) -> None:
        match event:
            case trace.InitStart():
                self.outstanding[event.call] = event.regs
            case trace.InitEnd():
                regs = self.outstanding.pop(event.call)
                self.effective = regs if event.ok else self.effective
            case trace.StopStart():
                self.stopping.add(event.call)
            case trace.StopEnd():
                self.stopping.discard(event.call)

    def note_own(self, kind: Callable[..., trace.TraceEvent], **facts: Any) -> None:
        """Add an event that no process can record."""
        now_ms = milliseconds(self.clock.now_us)
        last_ms = self.trace[-1].t if self.trace else now_ms
        if now_ms < last_ms and kind is not trace.ClockStep:
            self.trace.append(trace.ClockStep(t=now_ms, origin=last_ms))
        self.note(kind(t=now_ms, **facts))

    # --- the store ---

    @property
    def rows(self) -> Sequence[Record]:
        """What the store holds, read while no process has it open, or from beside one that has."""
        if not self.plan.is_durable:
            return list(self.memory.records.values())
        if not self.disk.path.exists():
            return []
        connection = apsw.Connection(str(self.disk.path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if not connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'task'").get:
                return []
            return connection.execute("SELECT * FROM task ORDER BY id").fetchall()
        finally:
            connection.close()

    def put_rows(self, rows: Sequence[Record]) -> None:
        """Have somebody overwrite rows, while no process has the store open."""
        if not self.plan.is_durable:
            self.memory.records.update({row[0]: tuple(row) for row in rows})
            return
        is_locked = self._locker is not None
        self.unlock()
        connection = apsw.Connection(str(self.disk.path))
        for row in rows:
            connection.execute(f"REPLACE INTO task VALUES ({', '.join('?' * len(row))})", tuple(row))
        connection.close()
        self.disk.reread()
        if is_locked:
            self.lock()

    def lock(self) -> None:
        """Have another program lock the database, if it is there."""
        if self.plan.is_durable and self._locker is None and self.disk.images.get(self.disk.path.name):
            try:
                self._locker = apsw.Connection(str(self.disk.path), vfs=self.disk.name)
                self._locker.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                self._locker.execute("BEGIN IMMEDIATE")
            except apsw.Error:  # the disk has other troubles, or there is nothing in the file yet
                self.unlock()

    def unlock(self) -> None:
        """Have the other program go away."""
        if self._locker is not None:
            self._locker.close(force=True)
            self._locker = None

    def close(self) -> None:
        """Let go of the disk."""
        self.unlock()
        self.disk.unregister()


class SimulatedProcess:
    """One process of the simulated program."""

    def __init__(self, host: Host, *, on_fatal: Callable[[], None]) -> None:
        plan = host.plan
        host.processes += 1
        self.host = host
        self.name = f"p{host.processes}"
        self.is_dead = False
        self._on_fatal = on_fatal
        self.loop = SimLoop(host.steady, host.points, self.fall)
        self.worker = SimWorker(self.loop, host.points, self.fall)
        self.worker.waited_us = self._waited_us
        host.disk.on_fatal = self.fall
        self.simulated_store = self._simulated_store()
        self.simulated_store.in_doubt = lambda: host.disk.sync_failed
        self.simulated_store.on_doubt = self._doubt
        timeout_us = plan.run_timeout_us
        self.scheduler = Scheduler(
            self.simulated_store,
            clock=host.clock,
            timezone=host.zone,
            listeners=[_on_event] if plan.duration_us < _LONG_US else [],
            run_timeout=None if timeout_us is None else timedelta(microseconds=timeout_us),
        )
        self.scheduler._poller.wave = plan.wave
        self.recorder = Recorder(
            None,
            listeners=[host.note],
            clock=host.clock,
            timezone=host.zone,
            proc=self.name,
            store="fresh",
            tick=None,
            persist_window=timedelta(microseconds=plan.persist_window_us),
        )
        self.recorded = self.recorder.wrap(self.scheduler)
        self.failures: list[BaseException] = []
        self.stops = 0
        """Calls of `stop` from outside that have not returned."""

    def _simulated_store(self) -> SimulatedStore:
        host = self.host
        if not host.plan.is_durable:
            return SimulatedStore(host.memory, self.worker, has_worker=False)
        store = SQLiteStore(host.disk.path, vfs=host.disk.name, worker=self.worker)
        return SimulatedStore(store, self.worker, has_worker=True)

    def _waited_us(self) -> int:
        waited_us, self.host.disk.slept_us = self.host.disk.slept_us, 0
        return waited_us

    def _doubt(self) -> None:
        """A list was to be written and nobody knows whether it was: a program can only die of that."""
        if self.host.outstanding:
            self.fall()

    # --- what the program does ---

    def initialize(self, registrations: list[Any], patience: int | None = None) -> None:
        """Call `initialize`, soon; give it up after so many turns of the loop."""
        call = self.loop.create_task(self._called(lambda: self.recorded.initialize(registrations)))
        self._give_up(call, patience)

    def stop(self, patience: int | None = None) -> None:
        """Call `stop`, soon; give it up after so many turns of the loop."""
        self.stops += 1
        call = self.loop.create_task(self._called(self.recorded.stop))
        call.add_done_callback(self._note_stopped)
        self._give_up(call, patience)

    def _give_up(self, call: "asyncio.Task[None]", patience: int | None) -> None:
        if patience is not None:
            self.loop.call_soon(call.cancel if patience == 0 else partial(self._give_up, call, patience - 1))

    def _note_stopped(self, _call: object) -> None:
        self.stops -= 1

    async def _called(self, call: Callable[[], Any]) -> None:
        try:
            await call()
        except (SchedulerError, asyncio.CancelledError) as error:
            self.failures.append(error)

    # --- death ---

    def fall(self) -> None:
        """Die, here and now: whatever this process still does reaches nothing."""
        if self.is_dead:
            return
        self.is_dead = True
        self.host.disk.kill()
        self.worker.is_dead = self.simulated_store.is_dead = True
        self.recorder.abandon()
        self.host.clock.forget()
        self.loop.die()
        self._on_fatal()

    def bury(self) -> None:
        """Take apart what is left of a process that fell."""
        assert self.is_dead
        self.host.unlock()
        driven(self.simulated_store.drop())
        self.loop.bury()

    def come_back(self, cut: Cut) -> None:
        """Leave the disk to the next process."""
        self.host.disk.come_back(cut)


def _on_event(_event: object) -> None:
    """Listen: anyone who is listened to says more."""


def encoded(header: trace.Header, events: Sequence[trace.TraceEvent]) -> list[bytes]:
    """A trace as lines."""
    encode = msgspec.json.Encoder().encode
    return [encode(header) + b"\n", *(encode(event) + b"\n" for event in events)]
