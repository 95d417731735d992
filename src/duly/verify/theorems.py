"""The theorems of MODEL.md, checked for themselves: a second line behind the properties they follow from.

Each is looked at with as little state as its own sentence needs, apart from the worlds of the monitor, so
that a fault there does not hide behind a fault here.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from duly.verify.calls import Init
from duly.verify.dues import NEVER_US
from duly.verify.task import Task
from duly.verify.trace import Position, RunEnd
from duly.verify.worlds import LONG_AGO_US, TOLERATED_US, Config, Worlds

if TYPE_CHECKING:
    from duly.verify.judge import Judge


_MOST_DEAD = 1_000
"""Runs cut off by crashes that are remembered, should an end of one of them turn up."""


class _Start:
    """What the theorems remember of one start."""

    __slots__ = ("at", "dues", "ended_us", "lost_at", "next_us", "renewals")

    def __init__(self, at: int, next_us: int, past: "_Past") -> None:
        self.at = at
        self.next_us = next_us
        """The first due after it, or again after a step back; long ago if it came before one."""
        self.dues = past.dues
        """How many of the task's starts had, by then, a due between them and the start before."""
        self.renewals = past.renewals
        """How often its task had been registered afresh by then."""
        self.ended_us = 0
        self.lost_at = NEVER_US
        """The position from which on its end may be forgotten."""


class _Past:
    """What the theorems remember of one task."""

    __slots__ = ("dues", "excused", "had_us", "latest", "live", "renewals", "success")

    def __init__(self) -> None:
        self.latest: _Start | None = None
        self.live: dict[int, _Start] = {}
        """The starts of the runs in flight, by position."""
        self.success: _Start | None = None
        """The latest start whose run succeeded."""
        self.excused = False
        """Whether since the latest start it was registered afresh, failed, or a crash came."""
        self.dues = 0
        self.renewals = 0
        self.had_us = LONG_AGO_US
        """Up to when no minute counts, because the clock was set back a little from there."""

    def renew(self) -> None:
        """The task was registered afresh, or no more."""
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
        self._tallies = judge.outcome.tallies
        self._window_us = window_us
        self._pasts: dict[str, _Past] = {}
        self._is_down = False
        """Whether a crash or a stop has come since the latest list."""
        self._stops: set[int] = set()
        """The calls of stop since then of which it is not known yet whether they are given up."""
        self._stop_end_at = 0
        self._stepped_us = LONG_AGO_US
        self._identical_at = 0
        self._dead: dict[tuple[str, int], Position] = {}
        self._owed: dict[str, int] = {}
        """Tasks cut off by a crash, and since when their start is owed."""
        self._is_demanding = False

    # --- lists, stops, crashes, time ---

    def list(self, configs: dict[str, Config], before: dict[str, Config] | None) -> None:
        """A valid list took effect; *before* is the one that it takes the place of."""
        self._is_down = False
        self._stops.clear()
        for task_id in self._owed.keys() - configs.keys():
            del self._owed[task_id]
        if configs == before:
            self._identical_at = self._judge.at
        for task_id in self._pasts.keys() - configs.keys():
            if self._pasts[task_id].live:
                self._pasts[task_id].renew()
            else:
                del self._pasts[task_id]
        for task_id, config in configs.items():
            if self._is_perhaps_fresh(task_id, config):
                self._pasts.setdefault(task_id, _Past()).renew()

    def count_afresh(self, task_id: str, worlds: Worlds) -> None:
        """A list may have taken the store for one from far ahead; dues then count as in *worlds*, if any."""
        past = self._pasts.get(task_id)
        if past is None or not worlds:
            return
        past.had_us = LONG_AGO_US
        if past.latest is not None:
            past.latest.next_us = min(past.latest.next_us, *(world.next_us for world in worlds))

    def _is_perhaps_fresh(self, task_id: str, config: Config) -> bool:
        task = self._judge.tasks.get(task_id)
        return task is None or any(world.config is not config for world in task.worlds)

    def reopen(self, at_us: int) -> None:
        """Some list was answered: what is owed is owed from now on."""
        self._is_demanding = self._judge.is_active
        self._owed = dict.fromkeys(self._owed, at_us)

    def step(self, before_us: int, after_us: int) -> None:
        """The clock was stepped."""
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
        """The stop *call* began."""
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

    def crash(self, running: Collection[Task], inits: Collection[Init], configs: dict[str, Config]) -> None:
        """The process died while *running* ran; the lists of *inits* may have replaced *configs*."""
        self._is_down, self._is_demanding = True, False
        self._stops.clear()
        lists = [init.configs or {} for init in inits]
        for task_id, past in self._pasts.items():
            past.renewals += any(each.get(task_id) is not configs.get(task_id) for each in lists)
        for task_id in [owed for owed in self._owed if not self._is_surely_interrupted(owed)]:
            del self._owed[task_id]
        for task in running:
            for run, (_, begun) in task.runs.items():
                self._dead[task.id, run] = begun
            if all(world.config is not None for world in task.worlds):
                self._owed[task.id] = self._judge.now_us
        while len(self._dead) > _MOST_DEAD:
            del self._dead[next(iter(self._dead))]
        for past in self._pasts.values():
            past.live.clear()
        self._leave_open()

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
                reason = self._judge.words.not_restarted(task_id, since_us, bound_us)
                self._judge.objections.object_to(
                    "T6", task_id, since_us, reason, (self._judge.decisive,), line=item.line
                )

    def open(self) -> int:
        """How many restarts are still owed, and not late."""
        return len(self._owed) if self._is_demanding else 0

    # --- runs ---

    def start(self, task: Task, item: Position) -> None:
        """A run is about to start."""
        words, judge = self._judge.words, self._judge
        for name in ("T1", "T2"):
            self._tallies[name].checked += 1
        if self._is_down or self._stops:
            judge.objections.object_to(
                "T1", task.id, item.at_us, words.down(item), (judge.decisive, item), line=item.line
            )
        if task.runs:
            evidence = (task.started, item)
            judge.objections.object_to(
                "T2", task.id, item.at_us, words.overlap(item, task.runs), evidence, line=item.line
            )
        if self._owed and self._owed.pop(task.id, None) is not None:
            self._tallies["T6"].checked += 1
        past = self._pasts.setdefault(task.id, _Past())
        if past.latest is not None:
            self._look_between(task, past, item)
        next_us = _next_due_us(task, max(item.at_us, past.had_us))
        past.latest = past.live[judge.at] = _Start(judge.at, next_us, past)
        past.excused = False

    def _look_between(self, task: Task, past: _Past, item: Position) -> None:
        self._tallies["T3"].checked += 1
        assert past.latest is not None
        is_identical_between = self._identical_at > past.latest.at
        if is_identical_between:
            self._tallies["T7"].checked += 1
        is_due = past.latest.next_us <= item.at_us
        past.dues += is_due
        if past.excused or is_due:
            return
        evidence = (task.started, task.ended, item)
        reason = self._judge.words.nothing_between(item, task.started)
        self._judge.objections.object_to("T3", task.id, item.at_us, reason, evidence, line=item.line)
        if is_identical_between:
            reason = self._judge.words.identical_list(item)
            self._judge.objections.object_to("T7", task.id, item.at_us, reason, evidence, line=item.line)

    def end(self, task: Task, item: Position, begun_at: int, begun: Position) -> None:
        """A run has ended."""
        event = item.event
        assert isinstance(event, RunEnd)
        self._tallies["T5"].checked += 1
        if begun_at < self._stop_end_at:
            reason = self._judge.words.ended_after_stop(item, begun)
            self._judge.objections.object_to("T5", task.id, item.at_us, reason, (begun, item), line=item.line)
        past = self._pasts.get(task.id)
        if past is None:
            return
        start = past.live.pop(begun_at, None)
        if not event.ok:
            past.excused = True
        elif start is not None:
            start.ended_us = item.at_us
            self._look_at_success(task, past, start, item, begun)

    def give_up(self, task: Task, begun_at: int) -> None:
        """A run that was recorded as started was never called."""
        past = self._pasts.get(task.id)
        if past is not None:
            past.live.pop(begun_at, None)

    def _look_at_success(
        self, task: Task, past: _Past, start: _Start, item: Position, begun: Position
    ) -> None:
        before = past.success
        if before is None or before.lost_at < start.at:
            past.success = start
            return
        self._tallies["T4"].checked += 1
        past.success = start if start.at > before.at else before
        if before.dues == start.dues and before.renewals == start.renewals:
            reason = self._judge.words.second_success(item, begun)
            evidence = (task.started, begun, item)
            self._judge.objections.object_to("T4", task.id, item.at_us, reason, evidence, line=item.line)

    def is_end_of_the_dead(self, item: Position) -> bool:
        """Whether *item* is the end of a run that a crash cut off; it is then objected to."""
        event = item.event
        assert isinstance(event, RunEnd)
        begun = self._dead.pop((event.id, event.run), None) if event.run is not None else None
        if begun is None:
            return False
        self._tallies["T8"].checked += 1
        reason = self._judge.words.ended_after_crash(item, begun)
        self._judge.objections.object_to("T8", event.id, item.at_us, reason, (begun, item), line=item.line)
        return True


def _next_due_us(task: Task | None, at_us: int) -> int:
    """The first due of *task* after an instant, under any configuration that it may have."""
    if task is None:
        return NEVER_US
    return min(
        (world.config.dues.after(at_us) for world in task.worlds if world.config is not None),
        default=NEVER_US,
    )
