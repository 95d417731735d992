"""The incremental monitor: takes a trace event by event and objects as soon as something is certain.

Each property of MODEL.md is judged in the state just before the event. Work per event is constant; work in
proportion to the list is done only when a list takes effect, when the clock is stepped, and when a crash
leaves it open whether a list had taken effect. `formal/` evaluates the same properties as the formulas
that they are; property tests show that both say the same.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from duly.verify.calls import Calls, Init
from duly.verify.deadlines import Deadlines
from duly.verify.dues import NEVER_US
from duly.verify.lists import Lists
from duly.verify.losses import Losses
from duly.verify.objections import Objections
from duly.verify.processes import Processes
from duly.verify.properties import Outcome, Violation, gaps_before
from duly.verify.task import Task
from duly.verify.theorems import Theorems
from duly.verify.trace import (
    ClockStep,
    Crash,
    Fault,
    Header,
    InitEnd,
    InitStart,
    Missed,
    Position,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
    micros,
    recordings_in,
    zone_of,
)
from duly.verify.unknowns import Unknowns, listed_afresh, listed_meanwhile
from duly.verify.wording import Wording
from duly.verify.worlds import (
    LONG_AGO_US,
    Config,
    Worlds,
    allowed_us,
    cut_off,
    failed,
    of_unknown_past,
    one_of_each,
    owed_us,
    removed,
    set_back,
    started,
    unnoticed,
)

_MOST_WORLDS = 300
"""States that a task may be in. A real trace leaves a handful open; without a bound they would multiply."""


class Judge:
    """Follows one trace. `outcome` says at any time what is known; `finish` closes it."""

    def __init__(
        self,
        header: Header,
        *,
        on_violation: Callable[[Violation], None] | None = None,
        lists: Lists | None = None,
    ) -> None:
        self.zone = zone_of(header.tz)
        self._delta_us = micros(header.delta_ms)
        self._delta_per_task_us = micros(header.delta_per_task_ms)
        self._is_unknown = header.store == "unknown"
        self.objections = Objections(on_violation)
        self.outcome = self.objections.outcome
        self._tallies = self.outcome.tallies
        self.outcome.gaps += gaps_before(header)
        self.words = Wording(self.zone)
        is_first_after = header.first_due == "after"
        self._lists = lists if lists is not None else Lists(self.zone, is_first_after=is_first_after)
        self.tasks: dict[str, Task] = {}
        self._configs: dict[str, Config] = {}
        """The latest successful list."""
        self._has_list = False
        self._running: dict[str, Task] = {}
        self._is_initialized = False
        """Since the latest list took effect nothing has ended that, except for a stop not yet over."""
        self._was_active = False
        """Whether it is active, or was and only a stop not yet over has ended that."""
        self._reopened_us = LONG_AGO_US
        """When all deadlines last opened anew: a list, a step of the clock."""
        self._bound_us = self._delta_us
        self._deadlines = Deadlines()
        self._unknowns = Unknowns(self.zone, micros(header.persist_window_ms))
        self._at = 0
        """The number of the position; greater is later, also at equal times."""
        self._now_us: int | None = None
        self._processes = Processes(self)
        self._handlers: dict[type[Any], Callable[[Position], None]] = {
            InitStart: self._on_init_start,
            InitEnd: self._on_init_end,
            StopStart: self._on_stop_start,
            StopEnd: self._on_stop_end,
            RunStart: self._on_run_start,
            RunEnd: self._on_run_end,
            Missed: Losses(self).take,
            Crash: self._on_crash,
        }
        self._calls = Calls(self, micros(header.delta_stop_ms))
        self._theorems = Theorems(self, micros(header.persist_window_ms))
        self._last: Position | None = None
        for task_id, run in header.running:
            start = Position(1, LONG_AGO_US, RunStart(t=0, id=task_id, run=run))
            self._begin_run(self._task(task_id), run, start)

    @property
    def is_active(self) -> bool:
        """Whether starts are owed at all."""
        return self._is_initialized and not self._calls.is_stopping

    @property
    def is_anything_running(self) -> bool:
        """Whether a run is in flight."""
        return bool(self._running)

    @property
    def at(self) -> int:
        """The number of the present position."""
        return self._at

    @property
    def now_us(self) -> int:
        """The time of the present position."""
        assert self._now_us is not None
        return self._now_us

    @property
    def present_bound_us(self) -> int:
        """Within what time an obligation must be met, with the tasks that there are."""
        return self._bound_us

    @property
    def decisive(self) -> Position | None:
        """What last began or ended activity."""
        return self._calls.decisive

    # --- time ---

    def take(self, item: Position | Fault) -> None:
        """Take the next item of the trace."""
        if isinstance(item, Fault):
            self.objections.fault(item)
            return
        self.outcome.events += 1
        self._processes.notice(item, self._last)
        self._at += 1
        if type(item.event) is ClockStep:
            self._on_step(item, item.event)
        else:
            now_us = self._now_us
            if now_us is not None and item.at_us < now_us:
                self.objections.fault(Fault(item.line, self.words.time_goes_back(item, now_us)))
                item = Position(item.line, now_us, item.event)
            else:
                self._reach(item)
            self._handlers.get(type(item.event), _let_pass)(item)
        self._last = item

    def finish(self) -> Outcome:
        """The outcome, with what is still open at the horizon."""
        now_us = self._now_us
        for name in ("S1a", "S1b", "S1c", "S1d"):
            self._tallies[name].checked = self.outcome.starts
        if now_us is not None and self.is_active:
            self._tallies["L1"].open = self._deadlines.open(now_us)
        self._tallies["L2"].open, self._tallies["L3"].open = self._calls.open()
        self._tallies["T6"].open = self._theorems.open()
        return self.outcome

    def _reach(self, item: Position) -> None:
        """Let time pass up to *item*: deadlines that lie before it have been missed."""
        at_us = item.at_us
        for task, onset_us in self._deadlines.passed(at_us):
            self._miss(task, onset_us, item.line)
        self._calls.reach(item)
        self._theorems.reach(item)
        if self._now_us is None:
            self.outcome.first_us = at_us
        self._now_us = self.outcome.last_us = at_us

    def _miss(self, task: Task, onset_us: int, line: int) -> None:
        self._tallies["L1"].checked += 1
        task.missed_us = onset_us
        reason = self.words.not_started(task.id, task.worlds, onset_us, self._bound_us)
        self.objections.object_to(
            "L1", task.id, onset_us, reason, (task.started, task.ended, self._calls.init_end), line=line
        )

    def _on_step(self, item: Position, step: ClockStep) -> None:
        before_us, after_us = micros(step.origin), item.at_us
        if self._now_us is not None and before_us < self._now_us:
            self.objections.fault(Fault(item.line, self.words.step_from_the_past(before_us, self._now_us)))
            before_us = self._now_us
        self._reach(Position(item.line, before_us, step))
        if after_us < before_us:
            self._set_back(before_us, after_us)
        self._unknowns.shift(after_us - before_us)
        self._theorems.step(before_us, after_us)
        self._calls.reopen(before_us, after_us)
        for task in self.tasks.values():
            task.idle_us = min(task.idle_us, after_us)
        self._now_us = self.outcome.last_us = self._reopened_us = after_us
        self._bound_worlds(item)
        self._renew_deadlines()

    def _set_back(self, before_us: int, after_us: int) -> None:
        self._unknowns.note_step(self.tasks.values(), self._at, before_us, after_us)
        for task in self.tasks.values():
            if self.is_active:
                task.worlds = one_of_each(set_back(world, before_us, after_us) for world in task.worlds)
            else:
                task.worlds = one_of_each(
                    other for world in task.worlds for other in unnoticed(world, before_us, after_us)
                )

    # --- lists ---

    def _on_init_start(self, item: Position) -> None:
        event = item.event
        assert isinstance(event, InitStart)
        self._calls.begin_init(item, self._lists.read(event.regs))

    def _on_init_end(self, item: Position) -> None:
        event = item.event
        assert isinstance(event, InitEnd)
        init = self._calls.end_init(item)
        if init is None or event.void:
            return
        if event.ok:
            self._tallies["S4"].checked += 1
            if init.configs is None:
                reason = self.words.invalid_list(init, item)
                self.objections.object_to("S4", None, item.at_us, reason, (init.start, item), line=item.line)
            else:
                self._take_effect(init, init.configs, item)
        elif init.configs is not None:
            self._is_initialized = self._was_active = False
        self._reopened_us = item.at_us
        self._theorems.reopen(item.at_us)
        self._bound_worlds(item)
        self._renew_deadlines()

    def _bound_worlds(self, item: Position) -> None:
        """Give up what cannot be followed: crashes and steps of the clock multiply what may be the case."""
        for task in self.tasks.values():
            if len(task.worlds) > _MOST_WORLDS:
                reason = f"after so many crashes and steps of the clock it is open what {task.id!r} is owed"
                self.objections.fault(Fault(item.line, reason))
                task.worlds = task.worlds[:1]

    def _take_effect(self, init: Init, configs: dict[str, Config], item: Position) -> None:
        self._theorems.list(configs, self._configs if self._has_list else None)
        self._apply(configs, init, item.at_us)
        if self._is_unknown:
            self._is_unknown = False
            for task_id in configs:
                task = self.tasks[task_id]
                task.worlds = one_of_each(
                    other for world in task.worlds for other in of_unknown_past(world, item.at_us)
                )
        self._configs, self._has_list = configs, True
        self._is_initialized = True
        self._was_active |= self.is_active
        self._bound_us = self.bound_us(len(configs))

    def bound_us(self, tasks: int) -> int:
        """The time within which what is owed must happen, with so many tasks."""
        return self._delta_us + self._delta_per_task_us * tasks

    def _apply(self, configs: dict[str, Config], init: Init, end_us: int) -> None:
        """Make *configs* the list: it took effect when *init* was called, or when it returned."""
        for task_id, config in configs.items():
            task = self._task(task_id)
            task.listed_us = min(task.listed_us, end_us)
            afresh = () if self._is_initialized else listed_afresh(task, init, end_us)
            if len(task.worlds) > 1 or task.worlds[0].config is not config:
                self._unknowns.note_list(task, config, init, self._at)
                task.worlds = listed_meanwhile(task, config, init, end_us, self._at, self.zone)
            if afresh:
                task.worlds = one_of_each((*task.worlds, *afresh))
                self._theorems.count_afresh(task_id, afresh)
        for task in [task for task in self.tasks.values() if task.id not in configs]:
            task.worlds = one_of_each(removed(world) for world in task.worlds)
            if not task.runs:
                del self.tasks[task.id]

    # --- stops ---

    def _on_stop_start(self, item: Position) -> None:
        event = item.event
        assert isinstance(event, StopStart)
        self._calls.begin_stop(item)
        self._theorems.go_down(event.call)
        self._renew_deadlines()

    def _on_stop_end(self, item: Position) -> None:
        event = item.event
        assert isinstance(event, StopEnd)
        stop = self._calls.end_stop(item)
        if stop is None:
            return
        if event.void:
            self._was_active |= self.is_active
            self._reopened_us = item.at_us
            self._theorems.come_up(event.call, item.at_us)
            self._renew_deadlines()
            return
        self._is_initialized = self._was_active = False
        if not event.ok:
            self._unknowns.leave_step_open(self.tasks, item.at_us)
            self._unknowns.leave_ends_open(self.tasks, item.at_us)
        self._calls.look_at_stop(stop, item, self._running)
        self._theorems.stop_end(event.call, self._at, is_written=event.ok)

    # --- runs ---

    def _on_run_start(self, item: Position) -> None:
        event = item.event
        assert isinstance(event, RunStart)
        task, at_us = self._task(event.id), item.at_us
        if event.run is not None and event.run in task.runs:
            self.objections.fault(
                Fault(item.line, f"run {event.run} of {event.id!r} starts, and has started already")
            )
        self.outcome.starts += 1
        worlds, objections = task.worlds, []
        if not self.is_active:
            objections.append(("S1a", self.words.not_active(item, self._calls)))
        if all(world.config is None for world in worlds):
            objections.append(("S1b", self.words.not_registered(item)))
        if task.runs:
            objections.append(("S1c", self.words.overlap(item, task.runs)))
        if allowed_us(worlds) > at_us:
            objections.append(("S1d", self.words.no_cause(item, task.started, task.ended, worlds)))
        for name, reason in objections:
            evidence = (task.started, task.ended, self._calls.decisive, item)
            self.objections.object_to(name, task.id, at_us, reason, evidence, line=item.line)
        if self.is_active and not task.runs and owed_us(worlds) <= at_us:
            self._tallies["L1"].checked += 1
        self._theorems.start(task, item)
        task.worlds = self._worlds_after_start(task, at_us)
        self._begin_run(task, event.run, item)

    def _worlds_after_start(self, task: Task, at_us: int) -> Worlds:
        is_alone = not task.runs
        if len(task.worlds) == 1:
            return (started(task.worlds[0], at_us, is_alone=is_alone),)
        return one_of_each(started(world, at_us, is_alone=is_alone) for world in task.worlds)

    def _begin_run(self, task: Task, run: int | None, item: Position) -> None:
        # A run without a number gets one that no recorder gives.
        task.runs[-self._at if run is None else run] = (self._at, item)
        task.version += 1
        task.started, task.started_at = item, self._at
        self._running[task.id] = task
        self._calls.look_at_l3(item)

    def _on_run_end(self, item: Position) -> None:
        event = item.event
        assert isinstance(event, RunEnd)
        task = self.tasks.get(event.id)
        if task is None or not task.runs or (event.run is not None and event.run not in task.runs):
            if not self._theorems.is_end_of_the_dead(item):
                self.objections.fault(Fault(item.line, f"a run of {event.id!r} ends, and had not started"))
            return
        begun_at, begun = task.runs.pop(next(iter(task.runs)) if event.run is None else event.run)
        self._theorems.end(task, item, begun_at, begun)
        task.ended, task.ended_at = item, self._at
        if not event.ok:
            task.worlds = one_of_each(failed(world, item.at_us, begun_at) for world in task.worlds)
        self._unknowns.note_end(task.id, item.at_us)
        if not task.runs:
            self._end_last_run(task, item)

    def _end_last_run(self, task: Task, item: Position) -> None:
        del self._running[task.id]
        task.idle_us = item.at_us
        is_known = task.id in self._configs or any(world.config is not None for world in task.worlds)
        if not is_known and not self._calls.inits:
            del self.tasks[task.id]
        elif self.is_active:
            self._add_deadline(task)
        self._calls.look_at_l3(item)

    def take_back(self, task: Task, run: int) -> None:
        """A run that is recorded as started was never called."""
        begun_at, _ = task.runs.pop(run)
        self._theorems.give_up(task, begun_at)

    def settle(self, task: Task, item: Position) -> None:
        """Look anew at what *task* is owed."""
        if task.runs:
            return
        if task.id in self._running:
            self._end_last_run(task, item)
        elif self.is_active:
            self._add_deadline(task)

    # --- deadlines ---

    def _add_deadline(self, task: Task) -> None:
        owed = owed_us(task.worlds)
        if owed >= NEVER_US:
            return
        onset_us = max(owed, self._reopened_us, task.idle_us)
        self._deadlines.add(task, onset_us, self._bound_us, tasks=len(self.tasks))

    def _renew_deadlines(self) -> None:
        """Let all deadlines of L1 open anew, or fall away."""
        self._deadlines.clear()
        if self.is_active:
            for task_id in self._configs:
                task = self.tasks[task_id]
                if not task.runs:
                    self._add_deadline(task)

    # --- crashes ---

    @property
    def is_something_up(self) -> bool:
        """Whether the present process has not been stopped."""
        return bool(self._running) or self._calls.is_any_outstanding or not self._calls.is_stopped

    def infer_crash(self, item: Position) -> None:
        """The process died, and nobody said so."""
        self._at += 1
        self._on_crash(item)

    def _on_crash(self, item: Position) -> None:
        self.outcome.crashes += 1
        if self._was_active:  # a stop may have been waiting for the write of a start
            self._unknowns.leave_starts_open(self.tasks.values(), item.at_us)
        inits = [init for init in self._calls.inits if init.configs is not None]
        if inits:
            for task_id in chain.from_iterable(init.configs or () for init in inits):
                self._task(task_id)
            if not self._is_initialized:
                for task in self.tasks.values():
                    self._theorems.count_afresh(task.id, listed_afresh(task, inits[0], item.at_us))
        self._unknowns.leave_lists_open(
            self.tasks.values(), inits, item.at_us, self._at, is_restart=not self._is_initialized
        )
        self._unknowns.leave_step_open(self.tasks, item.at_us)
        self._theorems.crash(self._running.values(), inits, self._configs)
        for task in self._running.values():
            task.worlds = one_of_each(cut_off(world) for world in task.worlds)
            task.runs.clear()
            task.idle_us = item.at_us
        self._unknowns.leave_ends_open(self.tasks, item.at_us)
        for task in list(self.tasks.values()) if inits else list(self._running.values()):
            if all(world.config is None for world in task.worlds):
                del self.tasks[task.id]
        self._running.clear()
        self._is_initialized = self._was_active = False
        self._deadlines.clear()
        self._bound_worlds(item)
        self._calls.crash(item)

    def _task(self, task_id: str) -> Task:
        if task_id not in self.tasks:
            self.tasks[task_id] = Task(task_id)
        return self.tasks[task_id]


def _let_pass(_item: Position) -> None:
    """Do nothing: such an event only says that time has passed, or what a cluster did."""


def judged(lines: Iterable[bytes]) -> Outcome:
    """What a trace, given line by line, says of every property. Raises TraceError if it is none."""
    outcome = Outcome()
    for trace in recordings_in(lines):
        judge = Judge(trace.header)
        for item in trace:
            judge.take(item)
        judge.outcome.torn_line = trace.torn_line
        outcome.add(judge.finish())
    return outcome
