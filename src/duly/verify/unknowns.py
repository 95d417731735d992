"""What a crash leaves open: lists half taken, ends perhaps not written, clock steps perhaps not noticed.

Each question makes new worlds of a task beside those it has (docs/decisions/0011).
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from datetime import tzinfo
from typing import NamedTuple

from duly.verify.calls import Init
from duly.verify.dues import NEVER_US
from duly.verify.task import Task
from duly.verify.trace import Position, RunEnd
from duly.verify.worlds import (
    LONG_AGO_US,
    UNREGISTERED,
    Config,
    World,
    Worlds,
    allowed_us,
    cause_us,
    counting_afresh,
    cut_off,
    failed,
    is_ahead,
    listed,
    moored,
    one_of_each,
    removed,
    set_back,
    started,
    unnoticed,
)


class _Step(NamedTuple):
    """A step back, and what the worlds were before it."""

    at: int
    before_us: int
    after_us: int
    worlds: dict[str, Worlds]
    came_us: int
    """When it came, on the clock as it is set now."""


class Unknowns:
    """What happened so lately that a crash may undo it."""

    def __init__(self, zone: tzinfo, window_us: int) -> None:
        self._zone = zone
        self._window_us = window_us
        self._ends: deque[tuple[int, str]] = deque()
        """(time, task) of the ends within the persist window."""
        self._steps: list[_Step] = []
        """The steps back within the persist window."""

    def note_end(self, task_id: str, at_us: int) -> None:
        """A run of a task has ended."""
        ends = self._ends
        while ends and at_us - ends[0][0] >= self._window_us:
            ends.popleft()
        if self._window_us:
            ends.append((at_us, task_id))

    def note_step(self, tasks: Collection[Task], at: int, before_us: int, after_us: int) -> None:
        """The clock was set back."""
        self._steps = self._recent(before_us)
        if self._window_us:
            worlds = {task.id: task.worlds for task in tasks}
            self._steps.append(_Step(at, before_us, after_us, worlds, before_us))

    def shift(self, by_us: int) -> None:
        """Account for a step of the clock: the age of an end, or of a step, is a length of time."""
        self._steps = [step._replace(came_us=step.came_us + by_us) for step in self._steps]
        self._ends = deque((ended_us + by_us, task_id) for ended_us, task_id in self._ends)

    def note_list(self, task: Task, config: Config, init: Init, at: int) -> None:
        """A list has changed *task*: it may have done so before the steps back since its call."""
        for step in self._steps:
            if step.at > init.at:
                step.worlds[task.id] = one_of_each(
                    listed(world, config, init.start.at_us, at, self._zone)
                    for world in step.worlds.get(task.id, (UNREGISTERED,))
                )

    def leave_lists_open(
        self, tasks: Collection[Task], inits: list[Init], crash_us: int, at: int, *, is_restart: bool
    ) -> None:
        """A crash inside `initialize`: nobody knows whether its list took effect, nor when.

        *is_restart*: the first of *inits* was to open the store anew.
        """
        for task in tasks if inits else ():
            afresh = listed_afresh(task, inits[0], crash_us) if is_restart else ()
            task.worlds = one_of_each(
                other
                for world in (*task.worlds, *afresh)
                for other in self._after_lists(task, world, inits, crash_us, at)
            )

    def _after_lists(
        self, task: Task, world: World, inits: list[Init], crash_us: int, at: int
    ) -> Iterator[World]:
        recent = (step.at for step in self._recent(crash_us) if step.at > task.started_at)
        open_since = next(recent, NEVER_US)
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
                    for other in listed_at_call(task, each, config, init, at, self._zone, open_since)
                )
                at_crash = listed(at_crash, config, crash_us, at, self._zone)
            yield from at_call
            yield at_crash

    def leave_step_open(self, tasks: Mapping[str, Task], crash_us: int) -> None:
        """A crash soon after a step back: nobody knows whether what it meant was written."""
        steps, self._steps = self._recent(crash_us), []
        for task in tasks.values() if steps else ():
            # With a start what the steps before it meant is written, and with another list.
            mine = [
                step
                for step in steps
                if step.at > task.started_at
                and _configs(step.worlds.get(task.id, ())) == _configs(task.worlds)
            ]
            if mine:
                task.worlds = one_of_each((*task.worlds, *_unnoticed(task, mine)))

    def _recent(self, at_us: int) -> list[_Step]:
        return [step for step in self._steps if at_us - step.came_us < self._window_us]

    def leave_starts_open(self, tasks: Collection[Task], crash_us: int) -> None:
        """A crash while a start was owed: it may have been written, and its callback not yet been called."""
        for task in tasks:
            if not task.runs and allowed_us(task.worlds) <= crash_us:
                owing = (world for world in task.worlds if cause_us(world) <= crash_us)
                written = (cut_off(started(world, crash_us, is_alone=True)) for world in owing)
                task.worlds = one_of_each((*task.worlds, *written))

    def leave_ends_open(self, tasks: Mapping[str, Task], crash_us: int) -> None:
        """A crash soon after an end: nobody knows whether the end was written."""
        for ended_us, task_id in self._ends:
            task = tasks.get(task_id)
            if task is not None and crash_us - ended_us < self._window_us:
                task.worlds = one_of_each((*task.worlds, *(cut_off(world) for world in task.worlds)))
        self._ends.clear()


def _unnoticed(task: Task, steps: list[_Step]) -> Worlds:
    """The worlds in which nobody noticed some of *steps*, or all."""
    worlds = steps[0].worlds[task.id]
    for step, next_at in zip(steps, [*(step.at for step in steps[1:]), NEVER_US], strict=True):
        worlds = one_of_each(
            other for world in worlds for other in unnoticed(world, step.before_us, step.after_us)
        )
        if task.ended is not None and step.at < task.ended_at < next_at:
            worlds = _after_end(task, task.ended, worlds)
    return worlds


def _after_end(task: Task, ended: Position, worlds: Worlds) -> Worlds:
    assert isinstance(ended.event, RunEnd)
    if ended.event.ok:
        return worlds
    return one_of_each(failed(world, ended.at_us, task.started_at) for world in worlds)


def listed_meanwhile(  # noqa: PLR0917 (what a list is to a task)
    task: Task, config: Config, init: Init, end_us: int, at: int, zone: tzinfo
) -> Worlds:
    """The worlds after a list that took effect when it was called, or when the call returned."""
    at_end = (listed(world, config, end_us, at, zone) for world in task.worlds)
    at_call = (
        moored(other, end_us)
        for world in task.worlds
        for other in listed_at_call(task, world, config, init, at, zone)
    )
    return one_of_each((*at_call, *at_end))


def listed_at_call(  # noqa: PLR0917 (what a list is to a task)
    task: Task, world: World, config: Config, init: Init, at: int, zone: tzinfo, open_since: int = NEVER_US
) -> Worlds:
    """The worlds in which a list took effect at once, and all that came since came under it.

    Perhaps nobody noticed the steps back from the position *open_since* on.
    """
    after = listed(world, config, init.start.at_us, at, zone)
    if after is world:
        return (world,)
    worlds: Worlds = (after,)
    for step_at, before_us, after_us, is_active in init.steps_back:
        stepped = _noticed if is_active and step_at < open_since else unnoticed
        worlds = one_of_each(other for each in worlds for other in stepped(each, before_us, after_us))
    if task.started is not None and task.started_at > init.at:
        start_us = task.started.at_us
        worlds = one_of_each(started(each, start_us, is_alone=False) for each in worlds)
    return worlds


def listed_afresh(task: Task, init: Init, end_us: int) -> Worlds:
    """The worlds in which a list that opened the store anew took it for one from far ahead of the clock.

    It did so when it was called: no later instant adds anything, unless the clock was set back meanwhile.
    """
    config = (init.configs or {}).get(task.id)
    commit_us = end_us if init.steps_back else init.start.at_us
    if config is None or all(not is_ahead(world, config, commit_us) for world in task.worlds):
        return ()
    answered_us = LONG_AGO_US
    if task.started is not None and task.started_at > init.at and not init.steps_back:
        answered_us = task.started.at_us
    return one_of_each(
        counting_afresh(world, commit_us, answered_us)
        for world in task.worlds
        if is_ahead(world, config, commit_us)
    )


def _noticed(world: World, before_us: int, after_us: int) -> Worlds:
    return (set_back(world, before_us, after_us),)


def _configs(worlds: Worlds) -> set[int]:
    return {id(world.config) for world in worlds}
