"""The theorems (spec/model.md 7), checked for themselves: a second line behind what they follow from.

Each has as little state as its own sentence needs, apart from the worlds of the judge. So a fault there does
not hide a fault here.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from duly.verify.calls import Init
from duly.verify.dues import NEVER_US
from duly.verify.properties import seconds
from duly.verify.tasks import TraceTask
from duly.verify.trace import ControlStart, Position, RunEnd
from duly.verify.worlds import LONG_AGO_US, TOLERATED_US, TaskConfig, World, Worlds

if TYPE_CHECKING:
    from duly.verify.judge import Judge


_MOST_DEAD = 1_000
"""Runs cut off by crashes that are remembered, should an end of one of them turn up."""


@dataclass(slots=True, eq=False)
class _Start:
    at: int
    next_us: int
    """The first due after it, or again after a step back; long ago if it came before one."""
    dues: int
    """How many of the task's starts had, by then, a due between them and the start before."""
    renewals: int
    """How often its task had been registered again by then."""
    ended_us: int = 0
    lost_at: int = NEVER_US
    """The position from which on its end may be forgotten."""


@dataclass(slots=True, eq=False)
class _Past:
    latest: _Start | None = None
    live: dict[int, _Start] = field(default_factory=dict)
    """The starts of the runs in flight, by position."""
    success: _Start | None = None
    """The latest start whose run succeeded."""
    excused: bool = False
    """Whether since the latest start it was registered again, failed, or a crash came."""
    dues: int = 0
    renewals: int = 0
    had_us: int = LONG_AGO_US
    """Up to when no minute counts, because the clock was set back a little from there."""

    def renew(self) -> None:
        """The task was registered again, or no more."""
        self.excused = True
        self.renewals += 1
        self.had_us = LONG_AGO_US  # it has not had the minutes that a step back repeats

    def step(self, before_us: int, after_us: int, again_us: int) -> None:
        """Account for a step of the clock, after which dues come again from *again_us* on."""
        if self.latest is not None:
            next_us = self.latest.next_us
            self.latest.next_us = LONG_AGO_US if next_us <= before_us else min(next_us, again_us)
        if self.success is not None:
            self.success.ended_us += after_us - before_us


class Theorems:
    """Follows a trace beside the judge."""

    def __init__(self, judge: "Judge", window_us: int) -> None:
        self._judge = judge
        self._objections = judge.objections
        self._words = judge.words
        self._tallies = judge.outcome.tallies
        self._window_us = window_us
        self._pasts: dict[str, _Past] = {}
        self._is_down = False
        """Whether a crash or a stop has come since the latest list."""
        self._stops: set[int] = set()
        """The calls of stop since then that may still be given up."""
        self._stop_end_at = 0
        self._stepped_us = LONG_AGO_US
        self._identical_at = 0
        self._dead: dict[tuple[str, int], Position] = {}
        self._owed: dict[str, int] = {}
        """Tasks cut off by a crash, and since when their start is owed."""
        self._is_demanding = False

    # --- lists, stops, crashes, time ---

    def take_list(self, configs: dict[str, TaskConfig], before: dict[str, TaskConfig] | None) -> None:
        """A valid list took effect; *before* is the one that it takes the place of."""
        self._is_down = False
        self._stops.clear()
        for task_id in [task_id for task_id in self._owed if not self._is_kept(task_id, configs)]:
            del self._owed[task_id]
        if configs == before:
            self._identical_at = self._judge.at
        for task_id in [task_id for task_id in self._pasts if not self._is_kept(task_id, configs)]:
            if self._pasts[task_id].live:
                self._pasts[task_id].renew()
            else:
                del self._pasts[task_id]
        for task_id, config in configs.items():
            if self._is_perhaps_fresh(task_id, config):
                self._pasts.setdefault(task_id, _Past()).renew()

    def _is_kept(self, task_id: str, configs: dict[str, TaskConfig]) -> bool:
        """Whether a list leaves a task as it is, because it has it or because it is an entry."""
        task = self._judge.tasks.get(task_id)
        worlds = task.worlds if task is not None else ()
        return task_id in configs or any(world.config and world.config.entry for world in worlds)

    def count_afresh(self, task_id: str, worlds: Worlds) -> None:
        """A list may have taken the store for one from far ahead; dues then count as in *worlds*, if any."""
        past = self._pasts.get(task_id)
        if past is None or not worlds:
            return
        past.had_us = LONG_AGO_US
        if past.latest is not None:
            past.latest.next_us = min(past.latest.next_us, *(world.next_us for world in worlds))

    def _is_perhaps_fresh(self, task_id: str, config: TaskConfig) -> bool:
        task = self._judge.tasks.get(task_id)
        return task is None or not all(config.is_of(world.config) for world in task.worlds)

    def control(self, task: TraceTask, call: Position) -> None:
        """A control of *task* may have taken effect: a start that was asked for needs no other cause."""
        assert isinstance(call.event, ControlStart)
        if call.event.control == "run" and task.id in self._pasts:
            self._pasts[task.id].excused = True
            self._pasts[task.id].renewals += 1
        elif call.event.control in {"pause", "add", "remove"}:
            self._owed.pop(task.id, None)
        if call.event.control in {"add", "remove"} and task.id in self._pasts:
            self._pasts[task.id].renew()

    def reopen(self, at_us: int) -> None:
        """Some list was answered: what is owed is owed from now on."""
        self._is_demanding = self._judge.is_active
        self._owed = dict.fromkeys(self._owed, at_us)

    def step(self, before_us: int, after_us: int) -> None:
        self._owed = dict.fromkeys(self._owed, after_us)
        if after_us < before_us:
            self._stepped_us = after_us
        is_noticed = self._judge.is_active and before_us - after_us <= TOLERATED_US
        is_repeating = after_us < before_us and not is_noticed
        for task_id, past in self._pasts.items():
            again_us = NEVER_US
            if is_repeating:
                again_us = _next_due_us(self._judge.tasks.get(task_id), after_us - 1)
                past.had_us = LONG_AGO_US
            elif after_us < before_us:
                past.had_us = max(past.had_us, before_us)
            past.step(before_us, after_us, again_us)

    def go_down(self, call: int) -> None:
        self._stops.add(call)
        self._is_demanding = False

    def come_up(self, call: int, at_us: int) -> None:
        """The stop *call* was in vain."""
        self._stops.discard(call)
        self.reopen(at_us)

    def stop_end(self, call: int, at: int, *, is_written: bool) -> None:
        """A stop returned. Unless all *is_written*, what a crash may undo may be undone."""
        self._is_down |= call in self._stops
        self._stops.discard(call)
        self._stop_end_at = at
        if not is_written:
            self._leave_open()

    def crash(
        self, running: Collection[TraceTask], inits: Collection[Init], configs: dict[str, TaskConfig]
    ) -> None:
        """The process died while *running* ran; the lists of *inits* may have replaced *configs*."""
        self._is_down, self._is_demanding = True, False
        self._stops.clear()
        lists = [init.configs or {} for init in inits]
        for task_id, past in self._pasts.items():
            past.renewals += any(_is_other(each.get(task_id), configs.get(task_id)) for each in lists)
        for task_id in [owed for owed in self._owed if not self._is_surely_interrupted(owed)]:
            del self._owed[task_id]
        for task in running:
            self.cut_off(task)
        for past in self._pasts.values():
            past.live.clear()
        self._leave_open()

    def cut_off(self, task: TraceTask) -> None:
        for run, (_, begun) in task.runs.items():
            self._dead[task.id, run] = begun
        while len(self._dead) > _MOST_DEAD:
            del self._dead[next(iter(self._dead))]
        if all(map(_is_free, task.worlds)):
            self._owed[task.id] = self._judge.now_us
        if task.id in self._pasts:
            self._pasts[task.id].live.clear()
            self._pasts[task.id].excused = True

    def _is_surely_interrupted(self, task_id: str) -> bool:
        task = self._judge.tasks.get(task_id)
        return task is not None and all(world.interrupted for world in task.worlds)

    def _leave_open(self) -> None:
        now_us = self._judge.now_us
        for task_id, past in self._pasts.items():
            past.excused = True
            if now_us - self._stepped_us < self._window_us:  # perhaps nobody has noticed that step
                past.had_us = LONG_AGO_US
                if past.latest is not None:
                    again_us = _next_due_us(self._judge.tasks.get(task_id), self._stepped_us - 1)
                    past.latest.next_us = min(past.latest.next_us, again_us)
            success = past.success
            if success is not None and now_us - success.ended_us < self._window_us:
                success.lost_at = min(success.lost_at, self._judge.at)

    def reach(self, item: Position) -> None:
        """Object to what is owed and did not come before *item*."""
        if not self._is_demanding or not self._owed:
            return
        bound_us = self._judge.present_bound_us
        for task_id, since_us in list(self._owed.items()):
            if since_us + bound_us < item.at_us:
                del self._owed[task_id]
                self._tallies["T6"].checked += 1
                since, bound = self._words.time(since_us), seconds(bound_us)
                reason = (
                    f"{task_id!r} was cut off by a crash, and did not start again within {bound} of {since}"
                )
                decisive = self._judge.calls.decisive
                self._objections.object_to("T6", task_id, since_us, reason, decisive, line=item.line)

    def open_count(self) -> int:
        """How many restarts are still owed, and not late."""
        return len(self._owed) if self._is_demanding else 0

    # --- runs ---

    def start(self, task: TraceTask, item: Position) -> None:
        if self._is_down or self._stops:
            reason = f"{self._words.start(item)} after a crash or a stop, before any initialize had succeeded"
            self._objections.object_at(item, "T1", task.id, reason, self._judge.calls.decisive)
        if task.runs:
            reason = self._words.overlap(item, task.runs)
            self._objections.object_at(item, "T2", task.id, reason, task.started)
        if self._owed and self._owed.pop(task.id, None) is not None:
            self._tallies["T6"].checked += 1
        past = self._pasts.setdefault(task.id, _Past())
        if past.latest is not None:
            self._look_between(task, past, item)
        next_us = _next_due_us(task, max(item.at_us, past.had_us))
        at = self._judge.at
        past.latest = past.live[at] = _Start(at, next_us, past.dues, past.renewals)
        past.excused = False

    def _look_between(self, task: TraceTask, past: _Past, item: Position) -> None:
        self._tallies["T3"].checked += 1
        assert past.latest is not None
        is_identical_between = self._identical_at > past.latest.at
        if is_identical_between:
            self._tallies["T7"].checked += 1
        is_due = past.latest.next_us <= item.at_us
        past.dues += is_due
        if past.excused or is_due:
            return
        objections, words = self._objections, self._words
        before = task.started
        since = f" since its start at {words.time(before.at_us)}" if before is not None else ""
        nothing = "there was no due, no failure, no crash and no new registration"
        reason = f"{words.start(item)}, and{since} {nothing}"
        objections.object_at(item, "T3", task.id, reason, task.started, task.ended)
        if is_identical_between:
            reason = f"{words.start(item)} after an initialize that changed nothing, and for no other cause"
            objections.object_at(item, "T7", task.id, reason, task.started, task.ended)

    def end(self, task: TraceTask, item: Position, event: RunEnd, begun_at: int, begun: Position) -> None:
        self._tallies["T5"].checked += 1
        if begun_at < self._stop_end_at:
            begin, end = self._words.time(begun.at_us), self._words.time(item.at_us)
            reason = f"the run of {task.id!r} of {begin} ended at {end}, after a stop had returned"
            self._objections.object_at(item, "T5", task.id, reason, begun)
        past = self._pasts.get(task.id)
        if past is None:
            return
        start = past.live.pop(begun_at, None)
        if past.latest is not None and task.counts_from_end:
            past.latest.next_us = min(past.latest.next_us, _next_due_us(task, item.at_us))
        if not event.ok:
            past.excused = True
        elif start is not None:
            start.ended_us = item.at_us
            self._look_at_success(task, past, start, item, begun)

    def give_up(self, task: TraceTask, begun_at: int) -> None:
        """A run that was recorded as started was never called."""
        past = self._pasts.get(task.id)
        if past is not None:
            past.live.pop(begun_at, None)

    def _look_at_success(
        self, task: TraceTask, past: _Past, start: _Start, item: Position, begun: Position
    ) -> None:
        before = past.success
        if before is None or before.lost_at < start.at:
            past.success = start
            return
        self._tallies["T4"].checked += 1
        past.success = start if start.at > before.at else before
        if before.dues == start.dues and before.renewals == start.renewals:
            begin = self._words.time(begun.at_us)
            reason = f"{task.id!r} succeeded a second time in one due period, by its run of {begin}"
            self._objections.object_at(item, "T4", task.id, reason, task.started, begun)

    def is_end_of_the_dead(self, item: Position, event: RunEnd) -> bool:
        """Whether *item* is the end of a run that a crash cut off; it is then objected to."""
        begun = self._dead.pop((event.id, event.run), None) if event.run is not None else None
        if begun is None:
            return False
        self._tallies["T8"].checked += 1
        begin, end = self._words.time(begun.at_us), self._words.time(item.at_us)
        reason = f"the run of {event.id!r} of {begin} was cut off by a crash, and yet ended at {end}"
        self._objections.object_at(item, "T8", event.id, reason, begun)
        return True


def _is_free(world: World) -> bool:
    """Whether nothing but its scheduler keeps a task from starting."""
    config = world.config
    return config is not None and not (world.paused or config.is_waiting or config.options.limit)


def _is_other(config: TaskConfig | None, than: TaskConfig | None) -> bool:
    return config is not than and (config is None or not config.is_of(than))


def _next_due_us(task: TraceTask | None, at_us: int) -> int:
    """The first due of *task* after an instant, under any configuration that it may have."""
    worlds = () if task is None else task.worlds
    if len(worlds) == 1:
        return worlds[0].due_after(at_us)[0]
    return min((world.due_after(at_us)[0] for world in worlds), default=NEVER_US)
