"""What a crash leaves open: lists half taken, ends perhaps not written, clock steps perhaps not noticed.

Each question makes new worlds of a task beside those it has (docs/decisions/0011).
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from datetime import tzinfo
from typing import NamedTuple

from duly.verify.calls import Init
from duly.verify.task import Task
from duly.verify.trace import Position, RunEnd
from duly.verify.worlds import (
    Config,
    World,
    Worlds,
    allowed_us,
    cut_off,
    failed,
    listed,
    one_of_each,
    removed,
    set_back,
    started,
    unnoticed,
)


class _Step(NamedTuple):
    """The latest step back, and what the worlds were before it."""

    at: int
    before_us: int
    after_us: int
    worlds: dict[str, Worlds]


class Unknowns:
    """What happened so lately that a crash may undo it."""

    def __init__(self, zone: tzinfo, window_us: int) -> None:
        self._zone = zone
        self._window_us = window_us
        self._ends: deque[tuple[int, Task, int]] = deque()
        """(time, task, position of the start) of the ends within the persist window."""
        self._step: _Step | None = None

    def note_end(self, task: Task, at_us: int) -> None:
        """A run of *task* has ended."""
        ends = self._ends
        while ends and at_us - ends[0][0] >= self._window_us:
            ends.popleft()
        if self._window_us:
            ends.append((at_us, task, task.started_at))

    def note_step(self, tasks: Collection[Task], at: int, before_us: int, after_us: int) -> None:
        """The clock was set back."""
        self._step = _Step(at, before_us, after_us, {task.id: task.worlds for task in tasks})

    def shift(self, by_us: int) -> None:
        """Account for a step of the clock: the age of an end is a length of time."""
        self._ends = deque((ended_us + by_us, task, begun_at) for ended_us, task, begun_at in self._ends)

    def leave_lists_open(self, tasks: Collection[Task], inits: list[Init], crash_us: int, at: int) -> None:
        """A crash inside `initialize`: nobody knows whether its list took effect, nor when."""
        for task in tasks if inits else ():
            task.worlds = one_of_each(self._after_lists(task, inits, crash_us, at))

    def _after_lists(self, task: Task, inits: list[Init], crash_us: int, at: int) -> Iterator[World]:
        for world in task.worlds:
            yield world
            at_call: Worlds = (world,)
            at_crash = world
            for init in inits:
                config = (init.configs or {}).get(task.id)
                if config is None:
                    at_call, at_crash = (removed(world),), removed(at_crash)
                else:
                    at_call = one_of_each(
                        other
                        for each in at_call
                        for other in listed_at_call(task, each, config, init, at, self._zone)
                    )
                    at_crash = listed(at_crash, config, crash_us, at, self._zone)
                yield from at_call
                yield at_crash

    def leave_step_open(self, tasks: Mapping[str, Task], crash_us: int) -> None:
        """A crash soon after a step back: nobody knows whether what it meant was written."""
        step, self._step = self._step, None
        if step is None or crash_us - step.after_us >= self._window_us:
            return
        for task_id, worlds in step.worlds.items():
            task = tasks.get(task_id)
            if task is not None and task.started_at < step.at and _configs(task.worlds) == _configs(worlds):
                others = one_of_each(
                    w for world in worlds for w in unnoticed(world, step.before_us, step.after_us)
                )
                if task.ended is not None and task.ended_at > step.at:
                    others = _after_end(task, task.ended, others)
                task.worlds = one_of_each((*task.worlds, *others))

    def leave_starts_open(self, tasks: Collection[Task], crash_us: int) -> None:
        """A crash while a start was owed: it may have been written, and its callback not yet been called."""
        for task in tasks:
            if not task.runs and allowed_us(task.worlds) <= crash_us:
                written = (cut_off(started(world, crash_us, is_alone=True)) for world in task.worlds)
                task.worlds = one_of_each((*task.worlds, *written))

    def leave_ends_open(self, running: Collection[str], crash_us: int) -> None:
        """A crash soon after an end: nobody knows whether the end was written."""
        for ended_us, task, started_at in self._ends:
            is_recent = crash_us - ended_us < self._window_us
            if is_recent and task.started_at == started_at and task.id not in running:
                task.worlds = one_of_each((*task.worlds, *(cut_off(world) for world in task.worlds)))
        self._ends.clear()


def _after_end(task: Task, ended: Position, worlds: Worlds) -> Worlds:
    assert isinstance(ended.event, RunEnd)
    if ended.event.ok:
        return worlds
    return one_of_each(failed(world, ended.at_us, task.started_at) for world in worlds)


def listed_at_call(  # noqa: PLR0917 (what a list is to a task)
    task: Task, world: World, config: Config, init: Init, at: int, zone: tzinfo
) -> Worlds:
    """The worlds in which a list took effect at once, and all that came since came under it."""
    after = listed(world, config, init.start.at_us, at, zone)
    if after is world:
        return (world,)
    worlds: Worlds = (after,)
    for before_us, after_us, is_active in init.steps_back:
        stepped = unnoticed if not is_active else _noticed
        worlds = one_of_each(other for each in worlds for other in stepped(each, before_us, after_us))
    if task.started is not None and task.started_at > init.at:
        start_us = task.started.at_us
        worlds = one_of_each(started(each, start_us, is_alone=False) for each in worlds)
    return worlds


def _noticed(world: World, before_us: int, after_us: int) -> Worlds:
    return (set_back(world, before_us, after_us),)


def _configs(worlds: Worlds) -> set[int]:
    return {id(world.config) for world in worlds}
