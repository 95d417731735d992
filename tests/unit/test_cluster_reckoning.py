"""The reckoning of simulated clusters: what a task may wait for after the board forgot, and what not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duly.instant import MINUTE_US, SECOND_US
from duly.testing.simulation.cluster.plan import ClusterPlan, Host
from duly.testing.simulation.cluster.reckoning import reckoned
from duly.testing.simulation.cluster.witness import (
    Called,
    Edition,
    Ended,
    Forgotten,
    History,
    Run,
    Seen,
    Served,
    Stopped,
)
from duly.testing.simulation.plan import Item

START_US = 1_000 * MINUTE_US
RUNNER = 7
LIST, OTHER = (Item("a", "* * * * *", 0),), (Item("b", "59 * * * *", 0),)
PLAN = ClusterPlan(seed=1, start_us=START_US, duration_us=5 * MINUTE_US, hosts=(Host(),), lists=(LIST, OTHER))


def run_of_a() -> Run:
    """The run of a task that a list removes while it goes on."""
    program = cast("Any", SimpleNamespace(name="h0.1", clock=None))
    return Run("a", program, RUNNER, started_us=START_US, called_us=START_US, committed=2)


def faults_after(run: Run, *later: tuple[int, Seen], alive: int = RUNNER) -> list[str]:
    """What is wrong if a list removes "a" as *run* begins, the board forgets, and a list brings "a" back."""
    seen: list[tuple[int, Seen]] = [
        (0, Edition(LIST, START_US, frozenset({RUNNER}))),
        (0, Served(LIST)),
        (0, Called(run)),
        (1, Edition(OTHER, START_US + SECOND_US, frozenset({RUNNER}))),
        (1, Served(OTHER)),
        (2, Forgotten(OTHER)),
        (60, Edition(LIST, START_US + MINUTE_US, frozenset({alive}))),
        (60, Served(LIST)),
        *later,
    ]
    history = History([(START_US + at_s * SECOND_US, each) for at_s, each in seen])
    return reckoned(PLAN, history, START_US + PLAN.duration_us).faults


def test_a_task_that_came_back_waits_for_its_run() -> None:
    """A board that forgot is told of the run of a removed task: brought back, the task waits for it."""
    run = run_of_a()
    assert faults_after(run) == []


@pytest.mark.parametrize("over", [Ended, Stopped])
def test_a_wait_ends_with_the_run(over: type[Ended | Stopped]) -> None:
    """When that run has ended, or was cut off, the task is owed a start again, and late without one."""
    run = replace(run_of_a(), ended_us=START_US + 90 * SECOND_US, ok=True)
    (fault,) = faults_after(run, (90, over(run)))
    assert fault.startswith("late: a was owed a start since 90.000 s")


def test_a_dead_runner_is_waited_for_by_nobody() -> None:
    """If the runner was dead by the board when the task came back, the task is late without a start."""
    run = run_of_a()
    (fault,) = faults_after(run, alive=RUNNER + 1)
    assert fault.startswith("late: a was owed a start since 60.000 s")


def test_a_task_that_was_removed_after_it_was_cut_off() -> None:
    """Its member is believed to live: brought back, the task waits for it, and may start when it is dead."""
    run = run_of_a()
    seen: list[tuple[int, Seen]] = [
        (0, Edition(LIST, START_US, frozenset({RUNNER}))),
        (0, Served(LIST)),
        (0, Called(run)),
        (1, Stopped(run)),
        (2, Edition(OTHER, START_US + 2 * SECOND_US, frozenset({RUNNER}))),
        (2, Served(OTHER)),
        (3, Edition(LIST, START_US + 3 * SECOND_US, frozenset({RUNNER}))),
        (3, Served(LIST)),
        (5, Called(replace(run, started_us=START_US + 5 * SECOND_US, committed=9))),
    ]
    history = History([(START_US + at_s * SECOND_US, each) for at_s, each in seen])
    faults = reckoned(PLAN, history, START_US + 10 * SECOND_US).faults
    assert not [fault for fault in faults if fault.startswith("cause")]
