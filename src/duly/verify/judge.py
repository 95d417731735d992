"""The incremental monitor: takes a trace event by event and objects as soon as something is certain.

Each property of spec/model.md 5 to 7 is judged in the state just before the event. Work per event is
constant. Work in proportion to the list is done in three cases: a list takes effect, the clock is stepped, a
crash leaves it open whether a list had taken effect. `tests/reference/formal/` evaluates the same
properties as the formulas that they are; property tests show that both say the same.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from duly.verify import trace
from duly.verify.calls import Calls, Init
from duly.verify.dues import NEVER_US, ScheduleTextError
from duly.verify.properties import Objections, Outcome, Sentences, Violation, gaps_before
from duly.verify.tasks import Deadlines, TraceLists, TraceTask
from duly.verify.theorems import Theorems
from duly.verify.trace import EntryDeclared, Fault, Header, Position, micros
from duly.verify.unknowns import Unknowns, listed_afresh, listed_meanwhile
from duly.verify.worlds import (
    LONG_AGO_US,
    UNREGISTERED,
    TaskConfig,
    World,
    Worlds,
    after_end,
    after_start,
    after_step_back,
    allowed_us,
    one_of_each,
    owed_us,
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
        lists: TraceLists | None = None,
    ) -> None:
        self.zone = trace.zone_of(header.tz)
        self._delta_us = micros(header.delta_ms)
        self._delta_per_task_us = micros(header.delta_per_task_ms)
        self._is_unknown = header.store == "unknown"
        self.objections = Objections(on_violation)
        self.outcome = self.objections.outcome
        self._tallies = self.outcome.tallies
        self.outcome.gaps += gaps_before(header)
        self.words = Sentences(self.zone)
        is_first_after = header.first_due == "after"
        self._lists = lists if lists is not None else TraceLists(self.zone, is_first_after=is_first_after)
        self.tasks: dict[str, TraceTask] = {}
        self._configs: dict[str, TaskConfig] = {}
        """The latest successful list."""
        self._has_list = False
        self._kinds: dict[str, trace.KindDeclared] = {}
        self._limits: dict[str, int] = {}
        self.running: dict[str, TraceTask] = {}
        self._is_initialized = False
        """Since the latest list took effect nothing has ended that, except for a stop not yet over."""
        self._was_active = False
        """Whether it is active, or was and only a stop not yet over has ended that."""
        self._reopened_us = LONG_AGO_US
        """When all deadlines last opened again: a list, a step of the clock."""
        self.present_bound_us = self._delta_us
        self._deadlines = Deadlines()
        self._unknowns = Unknowns(self.zone, micros(header.persist_window_ms))
        self.at = 0
        """The number of the position; greater is later, also at equal times."""
        self._now_us: int | None = None
        self._proc: str | None = None
        """The process that speaks now."""
        self._former_procs: set[str] = set()
        self._inferred_line = 0
        """Where the latest crash was inferred; if that was wrong, so is what was objected to since."""
        self._controls: dict[int, tuple[TraceTask, int, Position]] = {}
        """The outstanding calls that control a task, and where they began."""
        self._handlers: dict[type[Any], Callable[[Position, Any], None]] = {
            trace.InitStart: self._on_init_start,
            trace.InitEnd: self._on_init_end,
            trace.ControlStart: self._on_control_start,
            trace.ControlEnd: self._on_control_end,
            trace.StopStart: self._on_stop_start,
            trace.StopEnd: self._on_stop_end,
            trace.RunStart: self._on_run_start,
            trace.RunEnd: self._on_run_end,
            trace.Missed: self._on_missed,
            trace.Crash: self._on_crash,
            trace.TrustLost: self._on_trust_lost,
        }
        self.calls = Calls(self, micros(header.delta_stop_ms))
        self._theorems = Theorems(self, micros(header.persist_window_ms))
        self._last: Position | None = None
        for task_id, run in header.running:
            start = Position(1, LONG_AGO_US, trace.RunStart(t=0, id=task_id, run=run))
            self._begin_run(self._task(task_id), run, start)

    @property
    def is_active(self) -> bool:
        """Whether starts are owed at all."""
        return self._is_initialized and not self.calls.stops

    @property
    def now_us(self) -> int:
        assert self._now_us is not None
        return self._now_us

    # --- time ---

    def take(self, item: Position | Fault) -> None:
        if isinstance(item, Fault):
            self.objections.add_fault(item)
            return
        self.outcome.events += 1
        event = item.event
        if event.proc is not None and event.proc != self._proc:
            # First: if another process speaks, the one before has died, and its runs with it.
            self._on_other_process(item, event.proc)
        self.at += 1
        if type(event) is trace.ClockStep:
            self._on_step(item, event)
        else:
            now_us = self._now_us
            if now_us is not None and item.at_us < now_us:
                before, after = self.words.time(now_us), self.words.time(item.at_us)
                reason = (
                    f"time goes back from {before} to {after} without a ClockStep; is the trace reordered?"
                )
                self.objections.fault(item.line, reason)
                item = Position(item.line, now_us, event)
            else:
                self._reach(item)
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(item, event)
        self._last = item

    def finish(self) -> Outcome:
        """The outcome, with what is still open at the horizon."""
        now_us = self._now_us
        for name in ("S1a", "S1b", "S1c", "S1d", "S6", "T1", "T2"):
            self._tallies[name].checked = self.outcome.starts
        if now_us is not None and self.is_active:
            self._tallies["L1"].open = self._deadlines.open_count(now_us)
        self._tallies["L2"].open, self._tallies["L3"].open = self.calls.open_counts()
        self._tallies["T6"].open = self._theorems.open_count()
        return self.outcome

    def _reach(self, item: Position) -> None:
        """Let time pass up to *item*: deadlines that lie before it have been missed."""
        at_us = item.at_us
        # Before the event itself: it comes too late for these.
        if self._deadlines.soonest_us < at_us:
            for task, onset_us in self._deadlines.take_passed(at_us):
                self._miss(task, onset_us, item.line)
        if self.calls.soonest_us < at_us:
            self.calls.reach(item)
        self._theorems.reach(item)
        if self._now_us is None:
            self.outcome.first_us = at_us
        self._now_us = self.outcome.last_us = at_us

    def _miss(self, task: TraceTask, onset_us: int, line: int) -> None:
        self._tallies["L1"].checked += 1
        task.missed_us = onset_us
        reason = self.words.not_started(task.id, task.worlds, onset_us, self.present_bound_us)
        evidence = (task.started, task.ended, self.calls.init_end)
        self.objections.object_to("L1", task.id, onset_us, reason, *evidence, line=line)

    def _on_step(self, item: Position, step: trace.ClockStep) -> None:
        before_us, after_us = micros(step.origin), item.at_us
        if self._now_us is not None and before_us < self._now_us:
            before, now = self.words.time(before_us), self.words.time(self._now_us)
            self.objections.fault(item.line, f"the clock is stepped from {before} when it is {now} already")
            # The trace is at fault. Go on from what is known: time must not go back here.
            before_us = self._now_us
        # What was due before the step is missed by the old time; the rest opens again in the new time.
        self._reach(Position(item.line, before_us, step))
        if after_us < before_us:
            self._set_back(before_us, after_us)
        self._unknowns.shift(after_us - before_us)
        self._theorems.step(before_us, after_us)
        self.calls.reopen(before_us, after_us)
        for task in self.tasks.values():
            task.idle_us = min(task.idle_us, after_us)
        self._now_us = self.outcome.last_us = self._reopened_us = after_us
        self._bound_worlds(item)
        self._renew_deadlines()

    def _set_back(self, before_us: int, after_us: int) -> None:
        self._unknowns.on_step_back(self.tasks.values(), self.at, before_us, after_us)
        for task in self.tasks.values():
            task.worlds = after_step_back(task.worlds, before_us, after_us, is_noticed=self.is_active)

    # --- lists ---

    def _on_init_start(self, item: Position, event: trace.InitStart) -> None:
        self.calls.begin_init(item, event, self._lists.read(event.regs, event.options))

    def _on_init_end(self, item: Position, event: trace.InitEnd) -> None:
        init = self.calls.end_init(item, event)
        if init is None or event.void:
            return
        if event.ok:
            self._tallies["S4"].checked += 1
            if init.configs is None:
                at = self.words.time(item.at_us)
                reason = f"initialize succeeded at {at} with a list that is not valid: {init.invalid}"
                self.objections.object_at(item, "S4", None, reason, init.start)
            else:
                self._take_effect(init, init.configs, item, event.paused, event.entries)
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
                self.objections.fault(item.line, reason)
                # A fault makes everything after it doubtful, so any one of them will do.
                task.worlds = task.worlds[:1]

    def _take_effect(
        self,
        init: Init,
        configs: dict[str, TaskConfig],
        item: Position,
        paused: Collection[str],
        entries: Mapping[str, EntryDeclared],
    ) -> None:
        event = init.start.event
        assert isinstance(event, trace.InitStart)
        self._theorems.take_list(configs, self._configs if self._has_list else None)
        self._kinds, self._limits = event.kinds, event.limits
        self._apply(configs, init, item.at_us)
        if self._is_unknown:
            self._is_unknown = False
            for task_id, entry in entries.items():
                config = self._entry_config(entry)
                known = UNREGISTERED.after_list(config, item.at_us, self.at, self.zone)
                self._task(task_id).worlds = (known,)
            for task_id in (*configs, *entries):
                task = self.tasks[task_id]
                is_paused = task_id in paused
                task.worlds = one_of_each(
                    other
                    for world in task.worlds
                    for other in world.with_unknown_past(item.at_us, is_paused=is_paused)
                )
        self._configs, self._has_list = configs, True
        self._is_initialized = True
        self._was_active |= self.is_active
        self.present_bound_us = self.bound_us(len(configs))

    def bound_us(self, tasks: int) -> int:
        """The time within which what is owed must happen, with so many tasks."""
        return self._delta_us + self._delta_per_task_us * tasks

    def _apply(self, configs: dict[str, TaskConfig], init: Init, end_us: int) -> None:
        """Make *configs* the list: it took effect when *init* was called, or when it returned."""
        for task_id, config in configs.items():
            task = self._task(task_id)
            task.listed_us = min(task.listed_us, end_us)
            afresh = () if self._is_initialized else listed_afresh(task, init, end_us)
            if len(task.worlds) > 1 or task.worlds[0].config is not config:
                task.stirred_at = self.at
                self._unknowns.on_list(task, config, init, self.at)
                task.worlds = listed_meanwhile(task, config, init, end_us, self.at, self.zone)
            if afresh:
                task.worlds = one_of_each((*task.worlds, *afresh))
                self._theorems.count_afresh(task_id, afresh)
        for task in [task for task in self.tasks.values() if task.id not in configs]:
            task.worlds = one_of_each(world.after_other_list(self._entry_config) for world in task.worlds)
            # Else a trace of many names would be kept in memory whole.
            if not task.runs and not task.may_be_registered:
                del self.tasks[task.id]

    def _entry_config(self, entry: EntryDeclared) -> TaskConfig:
        return self._lists.of_entry(entry, self._kinds)

    # --- stops ---

    def _on_stop_start(self, item: Position, event: trace.StopStart) -> None:
        self.calls.begin_stop(item, event)
        self._theorems.go_down(event.call)
        self._renew_deadlines()

    def _on_stop_end(self, item: Position, event: trace.StopEnd) -> None:
        stop = self.calls.end_stop(item, event)
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
        self.calls.look_at_stop(stop, item)
        self._theorems.stop_end(event.call, self.at, is_written=event.ok)

    # --- runs ---

    def _on_run_start(self, item: Position, event: trace.RunStart) -> None:
        task, at_us = self._task(event.id), item.at_us
        if event.run is not None and event.run in task.runs:
            reason = f"run {event.run} of {event.id!r} starts, and has started already"
            self.objections.fault(item.line, reason)
        self.outcome.starts += 1
        # All properties look at the state before the start. Only then the start takes effect.
        worlds, objections = task.worlds, []
        if not self.is_active:
            objections.append(("S1a", self.words.not_active(item, self.calls.decisive)))
        if not task.may_be_registered:
            reason = f"{self.words.start(item)}, and it is not in the latest list that took effect"
            objections.append(("S1b", reason))
        if task.runs:
            objections.append(("S1c", self.words.overlap(item, task.runs)))
        if allowed_us(worlds, at_us, self.present_bound_us) > at_us:
            objections.append(("S1d", self.words.no_cause(item, task.started, task.ended, worlds)))
        if self._limits:
            objections += self._over_limit(task, item)
        for name, reason in objections:
            evidence = (task.started, task.ended, self.calls.decisive)
            self.objections.object_at(item, name, task.id, reason, *evidence)
        if self.is_active and not task.runs and owed_us(worlds, at_us) <= at_us:
            self._tallies["L1"].checked += 1
        self._theorems.start(task, item)
        task.worlds = after_start(worlds, at_us, is_alone=not task.runs)
        task.stirred_at = self.at
        if task.controls:
            self._leave_controls_open(task)
        self._begin_run(task, event.run, item)

    def _over_limit(self, task: TraceTask, item: Position) -> Iterator[tuple[str, str]]:
        """Whether so many runs are in flight that one more is over the limit of *task*, in every world."""
        allowed = {_limit_of(world, self._limits) for world in task.worlds}
        for name, most in [each for each in allowed if each is not None and len(allowed) == 1]:
            limits = [
                {_limit_of(world, self._limits) for world in each.worlds} for each in self.running.values()
            ]
            if sum(each == {(name, most)} for each in limits) >= most:
                reason = f"{self.words.start(item)} while {most} runs were in flight, the limit of {name!r}"
                yield "S6", reason

    def _begin_run(self, task: TraceTask, run: int | None, item: Position) -> None:
        # A run without a number gets one that no recorder gives.
        task.runs[-self.at if run is None else run] = (self.at, item)
        task.version += 1
        task.started, task.started_at = item, self.at
        self.running[task.id] = task
        self.calls.look_at_l3(item)

    def _on_run_end(self, item: Position, event: trace.RunEnd) -> None:
        task = self.tasks.get(event.id)
        if task is None or not task.runs or (event.run is not None and event.run not in task.runs):
            if not self._theorems.is_end_of_the_dead(item, event):
                self.objections.fault(item.line, f"a run of {event.id!r} ends, and had not started")
            return
        begun_at, begun = task.runs.pop(next(iter(task.runs)) if event.run is None else event.run)
        task.ended, task.ended_at = item, self.at
        if not event.ok or task.counts_from_end:
            task.worlds = after_end(task.worlds, item.at_us, begun_at, is_ok=event.ok)
        self._theorems.end(task, item, event, begun_at, begun)
        self._unknowns.on_end(task.id, item.at_us)
        if not task.runs:
            self._end_last_run(task, item)

    def _end_last_run(self, task: TraceTask, item: Position) -> None:
        del self.running[task.id]
        task.idle_us = item.at_us
        if task.id not in self._configs and not task.may_be_registered and not self.calls.inits:
            del self.tasks[task.id]
        elif self.is_active:
            self._add_deadline(task)
        self.calls.look_at_l3(item)

    # --- controls ---

    def _on_control_start(self, item: Position, event: trace.ControlStart) -> None:
        """A control takes effect at some instant between its call and its return."""
        if event.call in self._controls:
            self.objections.fault(item.line, f"call {event.call} begins, and is outstanding already")
        task = self._task(event.id)
        self._controls[event.call] = task, self.at, item
        task.controls[event.call] = event
        self._theorems.control(task, item)
        self._change(task, item, lambda: self._leave_controls_open(task))

    def _on_control_end(self, item: Position, event: trace.ControlEnd) -> None:
        if event.call not in self._controls:
            reason = f"a control returns from call {event.call}, which is not outstanding"
            self.objections.fault(item.line, reason)
            return
        task, begun_at, start = self._controls.pop(event.call)
        control = task.controls.pop(event.call)
        # It has certainly taken effect if nothing else touched the task meanwhile. Otherwise both stay
        # open.
        is_sure = event.ok and event.hit and task.stirred_at <= begun_at and not task.controls

        def settle() -> None:
            if is_sure:
                task.worlds = self._worlds_after(task, control, start.at_us, item.at_us - start.at_us)

        self._theorems.control(task, start)
        self._change(task, item, settle)
        task.stirred_at = self.at

    def _leave_controls_open(self, task: TraceTask) -> None:
        """What is outstanding may take effect now, or later."""
        for event in task.controls.values():
            task.worlds = one_of_each((*task.worlds, *self._worlds_after(task, event, self.now_us)))

    def _worlds_after(
        self, task: TraceTask, event: trace.ControlStart, at_us: int, slack_us: int = 0
    ) -> Worlds:
        """The worlds of *task* after a control that took effect at *at_us*, or up to *slack_us* later."""
        if event.entry is None:
            return one_of_each(world.after_control(event.control) for world in task.worlds)
        try:
            config = self._entry_config(event.entry)
        except ScheduleTextError:
            return task.worlds  # which the scheduler refuses, too
        task.listed_us = min(task.listed_us, at_us)
        ends_us = (at_us, at_us + slack_us) if config.dues.is_by_minute else (at_us,)
        return one_of_each(
            world.after_list(config, end_us, self.at, self.zone, slack_us)
            for world in task.worlds
            for end_us in ends_us
        )

    def _change(self, task: TraceTask, item: Position, change: Callable[[], None]) -> None:
        """Make a *change* to what a task is owed; a deadline that was open and is so still stays as it is."""
        # A deadline counts from when the start became owed. A change that leaves it owed must not move it.
        was_owed = self._is_owed(task)
        change()
        is_owed = self._is_owed(task)
        if is_owed and not was_owed:
            task.idle_us = max(task.idle_us, item.at_us)
        if self.is_active and not task.runs and not (was_owed and is_owed):
            task.version += 1
            self._add_deadline(task)

    def _is_owed(self, task: TraceTask) -> bool:
        return self.is_active and not task.runs and owed_us(task.worlds, self.now_us) <= self.now_us

    # --- what the scheduler itself says it did not run ---

    def _on_missed(self, item: Position, event: trace.Missed) -> None:
        """The scheduler has given up a due, and perhaps a start that it had announced for it.

        Each such due violates L1, once. Its word is needed where starts are not enough: when a minutely task
        misses one minute and runs the next, the start of the next comes soon enough to answer both.
        """
        task = self.tasks.get(event.id)
        if event.run is not None:
            if task is None or event.run not in task.runs:
                reason = f"run {event.run} of {event.id!r} is given up, and had not started"
                self.objections.fault(item.line, reason)
                return
            begun_at, _ = task.runs.pop(event.run)
            self._theorems.give_up(task, begun_at)
        if task is None:
            return
        self._on_missed_due(task, micros(event.due), item)
        if task.runs:
            return
        if task.id in self.running:
            self._end_last_run(task, item)
        elif self.is_active:
            self._add_deadline(task)

    def _on_missed_due(self, task: TraceTask, due_us: int, item: Position) -> None:
        # What is due before the task was registered is nobody's loss here.
        if task.listed_us >= due_us or not any(
            world.due_after(due_us - 1)[0] <= due_us for world in task.worlds
        ):
            return
        is_too_old = any(world.is_too_old(due_us, item.at_us) for world in task.worlds)
        task.worlds = one_of_each(world.after_miss(due_us) for world in task.worlds)
        if is_too_old:
            return
        if due_us > task.missed_us:  # else: its deadline has passed already, and was objected to
            task.missed_us = due_us
            self._tallies["L1"].checked += 1
            when = f"{task.id!r} was due at {self.words.time(due_us)}"
            reason = f"{when}, and the scheduler itself says that it did not run"
            evidence = (task.started, task.ended, item)
            self.objections.object_to("L1", task.id, due_us, reason, *evidence, line=item.line)

    # --- deadlines ---

    def _add_deadline(self, task: TraceTask) -> None:
        owed = owed_us(task.worlds, self.now_us)
        # With a named limit a task may have to wait for the runs of others, nobody knows for how long.
        is_limited = self._limits and any(_limit_of(world, self._limits) for world in task.worlds)
        if owed >= NEVER_US or is_limited:
            return
        onset_us = max(owed, self._reopened_us, task.idle_us)
        self._deadlines.add(task, onset_us, self.present_bound_us, tasks=len(self.tasks))

    def _renew_deadlines(self) -> None:
        """Let all deadlines of L1 open again, or fall away."""
        self._deadlines.clear()
        if self.is_active:
            for task in self.tasks.values():
                if not task.runs:
                    self._add_deadline(task)

    # --- crashes ---

    def _on_other_process(self, item: Position, proc: str) -> None:
        """Another process speaks. Unless the one before was stopped, it must have died."""
        is_up = bool(self.running) or self.calls.is_any_outstanding or not self.calls.is_stopped
        if proc in self._former_procs:
            if self._inferred_line:
                # The inferred crash was wrong, and so may be all that was found since.
                self.objections.take_back(since_line=self._inferred_line)
            reason = f"process {proc} speaks again after {self._proc}: two schedulers in one trace?"
            self.objections.fault(item.line, reason)
        elif self._last is not None and self._proc is not None and is_up:
            self.at += 1
            crash = trace.Crash(t=self.now_us / 1000)
            self._on_crash(Position(self._last.line, self.now_us, crash), crash)
            self._inferred_line = item.line
        if self._proc is not None:
            self._former_procs.add(self._proc)
        self._proc = proc

    def _on_crash(self, item: Position, _event: trace.Crash) -> None:
        self.outcome.crashes += 1
        # Each question multiplies the worlds that those before it have left: starts that may be written come
        # first, then lists, steps and ends. The theorems look at the runs before these are forgotten.
        if self._was_active:  # a stop may have been waiting for the write of a start
            self._unknowns.leave_starts_open(self.tasks.values(), item.at_us, self.present_bound_us)
        inits = [init for init in self.calls.inits if init.configs is not None]
        if inits:
            for task_id in chain.from_iterable(init.configs or () for init in inits):
                self._task(task_id)
            if not self._is_initialized:
                for task in self.tasks.values():
                    self._theorems.count_afresh(task.id, listed_afresh(task, inits[0], item.at_us))
        self._unknowns.leave_lists_open(
            self.tasks.values(), inits, item.at_us, self.at, is_restart=not self._is_initialized
        )
        self._unknowns.leave_step_open(self.tasks, item.at_us)
        self._theorems.crash(self.running.values(), inits, self._configs)
        for task, _, start in self._controls.values():
            task.controls.clear()
            self._theorems.control(task, start)
        self._controls.clear()
        for task in self.running.values():
            task.worlds = one_of_each(world.after_cut() for world in task.worlds)
            task.runs.clear()
            task.idle_us = item.at_us
        self._unknowns.leave_ends_open(self.tasks, item.at_us)
        for task in list(self.tasks.values()) if inits else list(self.running.values()):
            if not task.may_be_registered:
                del self.tasks[task.id]
        self.running.clear()
        self._is_initialized = self._was_active = False
        self._deadlines.clear()
        self._bound_worlds(item)
        self.calls.crash(item)

    def _on_trust_lost(self, item: Position, event: trace.TrustLost) -> None:
        """A node of a cluster has cut off some of its runs; all else goes on."""
        for task in [task for name, task in self.running.items() if name in event.runs]:
            self._theorems.cut_off(task)
            task.worlds = one_of_each(world.after_cut() for world in task.worlds)
            task.runs.clear()
            self._end_last_run(task, item)

    def _task(self, task_id: str) -> TraceTask:
        if task_id not in self.tasks:
            self.tasks[task_id] = TraceTask(task_id)
        return self.tasks[task_id]


def _limit_of(world: World, limits: Mapping[str, int]) -> tuple[str, int] | None:
    """The named limit of a task in one world, and how many runs it allows."""
    name = world.config.options.limit if world.config is not None else None
    return None if name is None or name not in limits else (name, limits[name])


def judged(lines: Iterable[bytes]) -> Outcome:
    """What a trace, given line by line, says of every property. Raises TraceError if it is none."""
    outcome = Outcome()
    for recording in trace.recordings_in(lines):
        judge = Judge(recording.header)
        for item in recording:
            judge.take(item)
        judge.outcome.torn_line = recording.torn_line
        outcome.add(judge.finish())
    return outcome
