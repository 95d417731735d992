"""Lives a plan: boots, runs, breaks and kills the simulated program, heals it at the end, and judges.

The director acts from outside, between two handles of the loop, at the times that the plan says. It knows
what a person at the machine could know, and nothing of the scheduler's inside. What it hands to the
checker is the trace of the boundary; what the checker cannot see there (`inspection`) is looked up in the
store.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from duly import marks
from duly.errors import SchedulerError
from duly.instant import SECOND_US, milliseconds
from duly.scheduler import SchedulerState
from duly.verify import trace
from duly.verify.judge import Judge
from tests.simulation import plan as planned
from tests.simulation.callbacks import Callbacks
from tests.simulation.disk import Cut
from tests.simulation.host import Host, SimulatedProcess, encoded
from tests.simulation.inspection import damaged, disagreements, still_damaged, stored_list, torn_list
from tests.simulation.life import Life, unheard
from tests.simulation.loop import StandstillError
from tests.simulation.plan import Items, Plan
from tests.simulation.steady import Point

_AGAIN_US = 7 * SECOND_US
_STOPPED_S = 150
_ATTEMPTS_TO_HEAL = 12
_IN_DOUBT = planned.Crash(0, downtime_us=20 * SECOND_US)
_SHARED_MEMORY = Path("/dev/shm")


def lived(
    plan: Plan,
    callbacks: Mapping[str, Callable[[], Any]] | None = None,
    *,
    configure: Callable[[Host], None] = lambda _host: None,
    wire: Callable[[SimulatedProcess], None] = lambda _process: None,
) -> Life:
    """Live *plan*, with a user's *callbacks* for tasks of these names.

    *configure* and *wire* may change the host and every new process, for simulations of what is broken.
    """
    folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with (
        unheard(),
        marks.counted() as passed,
        tempfile.TemporaryDirectory(prefix="duly-", dir=folder, ignore_cleanup_errors=True) as name,
    ):
        host = Host(plan, Path(name))
        configure(host)
        try:
            life = _Director(host, Callbacks(plan, callbacks), wire).life()
            life.marks = passed
            return life
        finally:
            host.close()


class _Director:
    def __init__(self, host: Host, callbacks: Callbacks, wire: Callable[[SimulatedProcess], None]) -> None:
        self._host = host
        self._plan = host.plan
        self._callbacks = callbacks
        self._wire = wire
        self._process: SimulatedProcess | None = None
        self._items: Items = host.plan.items
        self._crash: planned.Crash | None = None
        self._next_crash: planned.Crash | None = None
        self._points: dict[Point, int] = {}
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._faults: dict[str, int] = {}
        self._fault: planned.Break | None = None
        self._lag_us = 0
        self._damaged: list[Any] = []
        self._objections: list[str] = []
        self._counts: Counter[str] = Counter()
        self._header: trace.Header | None = None
        self._is_brisk = callbacks.is_brisk
        callbacks.on_stop = self._go_on_after_stop

    # --- the course of a life ---

    def life(self) -> Life:
        """Live the plan and judge it."""
        for action in self._plan.actions:
            self._at(action.at_us, self._performer(action))
        try:
            self._boot()
            self._run_until(self._plan.duration_us)
            self._heal()
        except StandstillError as error:
            self._objections.append(str(error))
        self._host.note_own(trace.End)
        self._inspect()
        return self._judged()

    def _at(self, at_us: int, act: Callable[[], None]) -> None:
        heappush(self._agenda, (at_us, next(self._order), act))

    def _run_until(self, until_us: int) -> None:
        """Let time pass, and do what is on the agenda when its time has come."""
        steady = self._host.steady
        while steady.now_us < until_us or (self._agenda and self._agenda[0][0] <= until_us):
            next_us = min(self._agenda[0][0], until_us) if self._agenda else until_us
            self._let_pass(next_us)
            if self._agenda and self._agenda[0][0] <= steady.now_us:
                heappop(self._agenda)[2]()

    def _run_for(self, duration_us: int) -> None:
        self._run_until(self._host.steady.now_us + duration_us)

    def _let_pass(self, until_us: int) -> None:
        """Let time pass up to *until_us*, or up to the death of the process."""
        if self._process is None:
            self._host.steady.now_us = max(self._host.steady.now_us, until_us)
        elif not self._process.loop.run_until(until_us):
            self._bury()

    def _boot(self) -> None:
        if self._process is not None:
            return
        host = self._host
        if host.trace and milliseconds(host.clock.now_us) < host.trace[-1].t:
            host.trace.append(trace.ClockStep(t=milliseconds(host.clock.now_us), origin=host.trace[-1].t))
        self._process = process = SimulatedProcess(host, on_fatal=lambda: None)
        self._wire(process)
        if self._header is None:
            self._header = self._declared(process.recorder.header)
        self._apply_faults()
        self._initialize(self._items)
        if self._next_crash is not None:
            self._arm(self._next_crash)

    def _declared(self, header: trace.Header) -> trace.Header:
        """The header, which says nothing of this machine, and what the plan's troubles may delay."""
        troubled_us = self._plan.troubled_us + self._plan.slack_us
        delta_ms = header.delta_ms + milliseconds(troubled_us)
        stop_ms = header.delta_stop_ms + milliseconds(troubled_us)
        return msgspec.structs.replace(
            header, boot="", impl="", tzdata="", delta_ms=delta_ms, delta_stop_ms=stop_ms
        )

    # --- the program ---

    def _initialize(self, items: Items, patience: int | None = None) -> None:
        process = self._process
        if process is None:
            return
        self._items = items
        process.failures.clear()
        process.initialize(self._callbacks.registrations(items, process), patience)
        self._at(self._host.steady.now_us + _AGAIN_US, lambda: self._look_after(process))

    def _go_on_after_stop(self) -> None:
        """A program that has stopped itself begins again a little later."""
        asyncio.get_running_loop().call_later(_STOPPED_S, self._initialize_again)

    def _initialize_again(self) -> None:
        if not self._must_wait():
            self._initialize(self._items)

    def _look_after(self, process: SimulatedProcess) -> None:
        """Try again what failed for the store's sake; a damaged row is repaired first."""
        if process is not self._process or not process.failures:
            return
        if self._must_wait():
            self._at(self._host.steady.now_us + _AGAIN_US, lambda: self._look_after(process))
            return
        process.failures.clear()
        self._counts["initialize failed"] += 1
        if self._damaged and process.scheduler.state is SchedulerState.UNINITIALIZED:
            self._repair()
        if process.scheduler.state is not SchedulerState.RUNNING:
            self._initialize(self._items)

    # --- actions ---

    def _performer(self, action: planned.Action) -> Callable[[], None]:
        return lambda: self._perform(action)

    def _perform(self, action: planned.Action) -> None:
        self._counts[type(action).__name__.lower()] += 1
        now_us = self._host.steady.now_us
        match action:
            case planned.Initialize():
                if not self._must_wait():
                    items = self._items if action.items is None else action.items
                    self._initialize(items, action.patience)
            case planned.Mistake():
                self._mistake()
            case planned.Stop():
                if self._process is not None:
                    self._process.stop(action.patience)
            case planned.Crash():
                self._arm(action)
            case planned.Step():
                self._step(action.by_us)
            case planned.Stall():
                self._host.steady.now_us += action.for_us
            case planned.Finish():
                self._within(lambda: self._callbacks.finish(action.name, ok=action.ok))
            case _:
                self._trouble(action, on=True)
                self._at(now_us + action.for_us, lambda: self._trouble(action, on=False))

    def _must_wait(self) -> bool:
        """Whether an `initialize` would wait for a stop that waits for long runs; a program waits first."""
        is_stopping = bool(self._host.stopping) or (self._process is not None and self._process.stops > 0)
        return is_stopping and self._host.running > 0 and not self._is_brisk

    def _mistake(self) -> None:
        process = self._process
        if process is None:
            return
        registrations: list[Any] = [*self._callbacks.registrations(self._items, process), ()]
        try:
            accepted = process.loop.within(lambda: process.recorded.initialize(registrations))
        except SchedulerError:
            return
        accepted.close()
        self._objections.append("a list that is not valid was accepted")

    def _within(self, act: Callable[[], None]) -> None:
        if self._process is not None:
            self._process.loop.within(act)

    def _step(self, by_us: int) -> None:
        host, before_us = self._host, self._host.clock.now_us
        if self._process is not None:
            self._process.loop.within(lambda: host.clock.step(by_us))
            return
        host.clock.step(by_us)
        origin = max(milliseconds(before_us), host.trace[-1].t if host.trace else 0)
        host.note_own(trace.ClockStep, origin=origin)

    def _trouble(self, action: planned.Trouble, *, on: bool) -> None:
        name = type(action).__name__
        self._faults[name] = self._faults.get(name, 0) + (1 if on else -1)
        if isinstance(action, planned.Break):
            self._fault = action if on else None
        if isinstance(action, planned.Lag):
            self._lag_us = action.lag_us if on else 0
        self._apply_faults()

    def _apply_faults(self) -> None:
        host, process = self._host, self._process
        disk = host.disk
        disk.fault = None if self._fault is None else self._fault.fault
        disk.fault_rate = 1.0 if self._fault is None else self._fault.rate
        if process is not None:
            process.worker.lag_us = self._lag_us
            process.simulated_store.is_refusing = self._faults.get("Refuse", 0) > 0
            process.simulated_store.is_losing = self._faults.get("Lose", 0) > 0
        if self._faults.get("Lock", 0) > 0 and process is not None:
            host.lock()
        else:
            host.unlock()

    # --- death ---

    def _arm(self, crash: planned.Crash) -> None:
        if self._process is None or self._crash is not None:
            return
        self._crash = crash
        if crash.point is Point.AWAIT and crash.after == 0:
            self._process.fall()  # between two handles, which is here
        else:
            self._host.points.arm(crash.point, crash.after)

    def _bury(self) -> None:
        host, process, crash = self._host, self._process, self._crash or _IN_DOUBT
        assert process is not None
        self._counts[f"crash at {crash.point}" if self._crash is not None else "crash in doubt"] += 1
        process.fall()
        host.points.disarm()
        self._process = self._crash = None
        self._next_crash = crash.then
        host.note_own(trace.Crash, proc=process.name)
        if host.running:
            self._counts["crash with runs in flight"] += 1
        if host.outstanding:
            self._counts["crash inside initialize"] += 1
        if host.stopping:
            self._counts["crash inside stop"] += 1
        process.bury()
        self._callbacks.forget()
        process.come_back(crash.cut if self._plan.is_durable else Cut.KILL)
        self._objections += torn_list(host, self._damaged)
        host.effective = stored_list(host, self._damaged)
        host.outstanding.clear()
        host.stopping.clear()
        host.running = 0
        self._items = self._items if crash.items is None else crash.items
        self._damage(crash.damaged)
        self._at(host.steady.now_us + crash.downtime_us, self._boot)

    def _damage(self, name: str) -> None:
        self._repair()
        before, after = damaged(self._host.rows, name)
        if before:
            self._counts["damaged row"] += 1
            self._host.put_rows(after)
            self._damaged = before

    def _repair(self) -> None:
        """Put a damaged row back as it was, unless a list has removed it meanwhile."""
        broken = still_damaged(self._host.rows)
        rows, self._damaged = [row for row in self._damaged if row[0] in broken], []
        if rows:
            self._counts["repaired"] += 1
            self._host.put_rows(rows)

    # --- the end ---

    def _heal(self) -> None:
        """Let nothing be wrong any more, and give every obligation the time to be met."""
        host = self._host
        self._points = host.points.counts
        host.points.disarm()
        self._crash = self._next_crash = None
        self._agenda.clear()
        self._faults.clear()
        self._fault, self._lag_us = None, 0
        self._boot()
        self._apply_faults()
        self._within(self._callbacks.heal)
        self._run_for(30 * SECOND_US)
        if host.stopping and host.running:  # a run that never ends; only the death of the process ends that
            self._process_of_last_resort()
        self._initialize(self._items)
        for _ in range(_ATTEMPTS_TO_HEAL):
            self._run_for(2 * _AGAIN_US)
            if not host.outstanding and self._is_up():
                break
        else:
            self._objections.append("the program could not be brought up again after everything was healed")
        self._run_for(self._plan.heal_us)

    def _process_of_last_resort(self) -> None:
        assert self._process is not None
        self._process.fall()
        self._bury()
        self._agenda.clear()
        self._boot()

    def _is_up(self) -> bool:
        return self._process is not None and self._process.scheduler.state is SchedulerState.RUNNING

    def _inspect(self) -> None:
        """Look for what the checker cannot see, and take the last process apart."""
        process = self._process
        if process is None:
            return
        self._objections += process.loop.complaints
        self._objections += torn_list(self._host, self._damaged)
        self._objections += disagreements(self._host)
        process.fall()
        process.bury()

    def _judged(self) -> Life:
        host = self._host
        assert self._header is not None
        judge = Judge(self._header)
        for number, event in enumerate(host.trace, start=2):
            judge.take(trace.Position(number, trace.micros(event.t), event))
        self._counts.update({f"callback {how}": number for how, number in self._callbacks.counts.items()})
        return Life(
            self._plan,
            encoded(self._header, host.trace),
            judge.finish(),
            self._objections,
            self._points,
            self._counts,
            steady_us=host.steady.now_us,
            last_us=host.clock.now_us,
        )
