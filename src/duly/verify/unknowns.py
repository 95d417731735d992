"""What a crash leaves open: lists half taken, ends perhaps not written, clock steps perhaps not noticed.

Each question makes new worlds of a task beside those it has (docs/decisions/0011).
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from datetime import tzinfo
from typing import NamedTuple

from duly.verify.calls import Init
from duly.verify.dues import NEVER_US
from duly.verify.tasks import TraceTask
from duly.verify.trace import RunEnd
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

    def on_end(self, task_id: str, at_us: int) -> None:
        if not self._window_us:
            return
        ends = self._ends
        while ends and at_us - ends[0][0] >= self._window_us:
            ends.popleft()
        ends.append((at_us, task_id))

    def on_step_back(self, tasks: Collection[TraceTask], at: int, before_us: int, after_us: int) -> None:
        self._steps = self._recent(before_us)
        if self._window_us:
            # As they were before the step: if it was not noticed, everything since follows from these.
            worlds = {task.id: task.worlds for task in tasks}
            self._steps.append(_Step(at, before_us, after_us, worlds, before_us))

    def shift(self, by_us: int) -> None:
        """Account for a step of the clock: the age of an end, or of a step, is a length of time."""
        self._steps = [step._replace(came_us=step.came_us + by_us) for step in self._steps]
        self._ends = deque((ended_us + by_us, task_id) for ended_us, task_id in self._ends)

    def on_list(self, task: TraceTask, config: TaskConfig, init: Init, at: int) -> None:
        """A list has changed *task*: it may have done so before the steps back since its call."""
        for step in self._steps:
            if step.at > init.at:
                step.worlds[task.id] = one_of_each(
                    world.after_list(config, init.start.at_us, at, self._zone, _slack_us(init, step.after_us))
                    for world in step.worlds.get(task.id, (UNREGISTERED,))
                )

    def leave_lists_open(
        self, tasks: Collection[TraceTask], inits: list[Init], crash_us: int, at: int, *, is_restart: bool
    ) -> None:
        """A crash inside `initialize`: nobody knows whether its list took effect, nor when.

        *is_restart*: the first of *inits* was to open the store again.
        """
        for task in tasks if inits else ():
            afresh = listed_afresh(task, inits[0], crash_us) if is_restart else ()
            task.worlds = one_of_each(
                other
                for world in (*task.worlds, *afresh)
                for other in self._after_lists(task, world, inits, crash_us, at)
            )

    def _after_lists(
        self, task: TraceTask, world: World, inits: list[Init], crash_us: int, at: int
    ) -> Iterator[World]:
        recent = (step.at for step in self._recent(crash_us) if step.at > task.started_at)
        open_since = next(recent, NEVER_US)
        yield world
        at_call: Worlds = (world,)
        at_crash = world
        for init in inits:
            config = (init.configs or {}).get(task.id)
            if config is None:
                # What becomes of an entry with other kinds, the next list says before anything starts.
                is_entry = world.config is not None and world.config.entry is not None
                at_call, at_crash = ((world,), world) if is_entry else ((UNREGISTERED,), UNREGISTERED)
            else:
                at_call = one_of_each(
                    other
                    for each in at_call
                    for other in listed_at_call(
                        task, each, config, init, crash_us, at, self._zone, open_since
                    )
                )
                at_crash = at_crash.after_list(config, crash_us, at, self._zone)
            yield from at_call
            yield at_crash

    def leave_step_open(self, tasks: Mapping[str, TraceTask], crash_us: int) -> None:
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
                task.worlds = one_of_each((*task.worlds, *_worlds_unnoticed(task, mine)))

    def _recent(self, at_us: int) -> list[_Step]:
        return [step for step in self._steps if at_us - step.came_us < self._window_us]

    def leave_starts_open(self, tasks: Collection[TraceTask], crash_us: int, grace_us: int) -> None:
        """A crash while a start was owed: it may have been written, and its callback not yet been called."""
        for task in tasks:
            if not task.runs and allowed_us(task.worlds, crash_us, grace_us) <= crash_us:
                # Only in worlds in which a start was allowed can one have been written.
                owing = [world for world in task.worlds if world.allowed_us(crash_us, grace_us) <= crash_us]
                started = after_start(tuple(owing), crash_us, is_alone=True)
                task.worlds = one_of_each((*task.worlds, *(world.after_cut() for world in started)))

    def leave_ends_open(self, tasks: Mapping[str, TraceTask], crash_us: int) -> None:
        """A crash soon after an end: nobody knows whether the end was written."""
        for ended_us, task_id in self._ends:
            task = tasks.get(task_id)
            if task is not None and crash_us - ended_us < self._window_us:
                task.worlds = one_of_each((*task.worlds, *(world.after_cut() for world in task.worlds)))
        self._ends.clear()


def _worlds_unnoticed(task: TraceTask, steps: list[_Step]) -> Worlds:
    """The worlds in which nobody noticed some of *steps*, or all."""
    worlds = steps[0].worlds[task.id]
    for step, next_at in zip(steps, [*(step.at for step in steps[1:]), NEVER_US], strict=True):
        worlds = after_step_back(worlds, step.before_us, step.after_us, is_noticed=False)
        if task.ended is not None and step.at < task.ended_at < next_at:
            assert isinstance(task.ended.event, RunEnd)
            worlds = after_end(worlds, task.ended.at_us, task.started_at, is_ok=task.ended.event.ok)
    return worlds


def listed_meanwhile(  # noqa: PLR0917 (what a list is to a task)
    task: TraceTask, config: TaskConfig, init: Init, end_us: int, at: int, zone: tzinfo
) -> Worlds:
    """The worlds after a list that took effect when it was called, or when the call returned."""
    at_end = (world.after_list(config, end_us, at, zone) for world in task.worlds)
    at_call = (
        other.with_dues_from(end_us)
        for world in task.worlds
        for other in listed_at_call(task, world, config, init, end_us, at, zone)
    )
    return one_of_each((*at_call, *at_end))


def listed_at_call(  # noqa: PLR0917 (what a list is to a task)
    task: TraceTask,
    world: World,
    config: TaskConfig,
    init: Init,
    end_us: int,
    at: int,
    zone: tzinfo,
    open_since: int = NEVER_US,
) -> Worlds:
    """The worlds in which a list took effect at once, and all that came since came under it.

    An interval counts from some instant up to *end_us*.

    Perhaps nobody noticed the steps back from the position *open_since* on.
    """
    after = world.after_list(config, init.start.at_us, at, zone, _slack_us(init, end_us))
    if after is world:
        return (world,)
    worlds: Worlds = (after,)
    for step_at, before_us, after_us, is_active in init.steps_back:
        is_noticed = is_active and step_at < open_since
        worlds = after_step_back(worlds, before_us, after_us, is_noticed=is_noticed)
    if task.started is not None and task.started_at > init.at:
        worlds = after_start(worlds, task.started.at_us, is_alone=False)
    return worlds


def _slack_us(init: Init, end_us: int) -> int:
    """By how much later than when it was called a list may have taken effect."""
    return (
        max(end_us, *(before_us for _, before_us, _, _ in init.steps_back), init.start.at_us)
        - init.start.at_us
    )


def listed_afresh(task: TraceTask, init: Init, end_us: int) -> Worlds:
    """The worlds in which a list that opened the store again took it for one from far ahead of the clock.

    It did so when it was called: no later instant adds anything, unless the clock was set back meanwhile.
    """
    config = (init.configs or {}).get(task.id)
    commit_us = end_us if init.steps_back else init.start.at_us
    if config is None or all(not world.is_ahead(config, commit_us) for world in task.worlds):
        return ()
    answered_us = LONG_AGO_US
    if task.started is not None and task.started_at > init.at and not init.steps_back:
        answered_us = task.started.at_us
    return one_of_each(
        world.counting_afresh(commit_us, answered_us)
        for world in task.worlds
        if world.is_ahead(config, commit_us)
    )


def _configs(worlds: Worlds) -> set[int]:
    return {id(world.config) for world in worlds}
