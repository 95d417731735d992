"""What metrics read of the present: how each task, timer and service is at this moment. Pure.

Events say what happened. When a job ended well before this process began, and what is due and was not
answered, no event says: that is read from the states of those who have it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from duly.core.task import Task
from duly.core.timetable import longest_gap_us
from duly.instant import NEVER_US, Instant


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task, a timer or a service. What does not apply to it, or is not known, is None."""

    kind: str
    name: str
    due_us: Instant | None = None
    """The first due that nothing has answered; in the past if that is owed."""
    interval_us: int | None = None
    """The longest time between two runs, by its schedule; None if it runs once, or is not to run."""
    success_us: Instant | None = None
    is_ok: bool | None = None
    """Whether its last run ended well."""
    is_enabled: bool | None = None
    """Of a timer."""
    is_up: bool | None = None
    """Of a service that is to stay up."""


class Readings(NamedTuple):
    """How a daemon is."""

    entries: Sequence[Reading]
    states: Sequence[tuple[str, str, str]]
    """Which services and timers are not simply well: kind, name and state."""
    problems: int
    """How much is wrong."""
    invalid: int
    """How many entries of the configuration cannot be used."""


def is_well(success_us: Instant | None, failure_us: Instant | None) -> bool | None:
    """Whether the last run ended well, of which the latest success and failure are known."""
    if failure_us is None:
        return None if success_us is None else True
    return success_us is not None and success_us > failure_us


def with_run_us(gap_us: int, run_us: int, *, is_from_end: bool) -> int:
    """The interval between two runs, if the schedule has *gap_us* and a run usually takes *run_us*."""
    # A run that takes longer than the schedule's interval lets dues pass, and the next one comes after it.
    return gap_us + run_us if is_from_end or run_us > gap_us else gap_us


def of_tasks(tasks: Iterable[Task]) -> Iterator[Reading]:
    for task in tasks:
        is_at_rest = task.paused or not task.options.enabled
        gap_us = None if is_at_rest else longest_gap_us(task.schedule)
        # While a run is in flight, `last_attempt_us` is its start, and the last success came before.
        run_us = (
            max((task.last_success_us or 0) - (task.last_attempt_us or 0), 0) if task.last_attempt_us else 0
        )
        yield Reading(
            kind="task",
            name=task.name,
            due_us=None if is_at_rest or task.due_us >= NEVER_US else task.due_us,
            interval_us=(
                None if gap_us is None else with_run_us(gap_us, run_us, is_from_end=task.schedule.is_from_end)
            ),
            success_us=task.last_success_us,
            is_ok=is_well(task.last_success_us, task.last_failure_us),
        )
