"""Random lives of an app: each run is the one that the model says, and what is broken is found out."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duly.core import task as core_task
from duly.core import timetable
from duly.core.options import Options, retry_at_us
from duly.core.task import Task, started, with_pause
from duly.core.timing import TextParts, parts_of
from duly.instant import Instant
from duly.store import SQLiteStore
from tests.simulation.app_lives import (
    AppPlan,
    app_drawn,
    app_faults,
    app_judged,
    app_lived,
    entries_drawn,
    limited_drawn,
)
from tests.worlds.model_table import ModelDatabase
from tests.worlds.stores import ModelCluster, StoreFactory

replaced = msgspec.structs.replace


@pytest.mark.parametrize("drawn", [app_drawn, entries_drawn, limited_drawn])
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(50, 5_050, 50))]
)
def test_no_life_differs_from_the_model(first: int, drawn: Callable[[int], AppPlan]) -> None:
    """Every run of every life begins when, why and for what the model says; the checker has no objection.

    Entries run by the kinds of now, and what waits for room begins in turn.
    """
    for seed in range(first, first + 50):
        faults, outcome = app_faults(drawn(seed))
        assert (faults, outcome.violations, outcome.faults) == ([], [], []), f"seed {seed}"


@pytest.mark.parametrize("drawn", [app_drawn, entries_drawn])
@pytest.mark.parametrize("seed", range(20))
def test_no_life_on_a_file_differs_from_the_model(
    seed: int, drawn: Callable[[int], AppPlan], tmp_path: Path
) -> None:
    """A file remembers everything that a store in memory does."""
    assert app_lived(drawn(seed), lambda: SQLiteStore(tmp_path / "state.db")) == []


def nodes_of_a_cluster() -> StoreFactory:
    """What makes the stores of nodes that share a model of the database."""
    database, places = ModelDatabase(), list[ModelCluster]()

    def place() -> ModelCluster:
        places.append(ModelCluster(database, places))
        return places[-1]

    return place


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nodes look at once when they are notified, as the model knows no heartbeats."""
    monkeypatch.setattr("duly.cluster.node._SOON_US", 0)


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(40, 2_040, 40))]
)
def test_no_life_in_a_cluster_differs_from_the_model(first: int, nodes: int) -> None:
    """Nodes start every run when, why and for what the model says, whichever of them is asked for it.

    The checker has no objection either. It judges most starts of two nodes, controls or not.
    """
    checked = unknown = 0
    for seed in range(first, first + 40):
        faults, outcome = app_faults(app_drawn(seed), nodes_of_a_cluster(), nodes)
        assert (faults, outcome.violations, outcome.faults) == ([], [], []), f"seed {seed}"
        checked += outcome.tallies["S1d"].checked
        unknown += outcome.tallies["S1d"].unknown
    assert nodes != 2 or checked > 20 * unknown > 0


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_no_life_with_limits_in_a_cluster_differs_from_the_model(nodes: int) -> None:
    """Room that all nodes share goes to the tasks in the same turn as on one machine."""
    for seed in range(40):
        faults, outcome = app_faults(limited_drawn(seed, has_sweeps=False), nodes_of_a_cluster(), nodes)
        assert (faults, outcome.violations, outcome.faults) == ([], [], []), f"seed {seed}"


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("nodes", [1, 3])
def test_no_life_with_entries_in_a_cluster_differs_from_the_model(nodes: int) -> None:
    """Entries are the same on every node, whichever of them is asked to add or remove them."""
    for seed in range(40):
        faults, outcome = app_faults(entries_drawn(seed), nodes_of_a_cluster(), nodes)
        assert (faults, outcome.violations, outcome.faults) == ([], [], []), f"seed {seed}"


# --- what is broken is found out ---


def anchor_of_the_last_start(task: Task) -> Instant:
    return task.last_attempt_us or task.registered_us


def without_zone(text: str) -> TextParts:
    return parts_of(text)._replace(zone=None)


def without_offset(text: str) -> TextParts:
    return parts_of(text)._replace(offset_us=0)


def always(*_: object) -> bool:
    return True


def never_paused(task: Task, *, paused: bool) -> Task:
    assert paused in {True, False}
    return task


def enabled_always(_where: str, _options: Any) -> bool:
    return True


def asked_twice(task: Task, now_us: Instant, *, is_retry: bool) -> Task:
    is_due = task.due_us <= now_us
    return replaced(
        started(task, now_us, is_retry=is_retry), requested_us=task.requested_us if is_due else None
    )


def retry_with(**options: Any) -> Callable[..., Instant | None]:
    def retry(given: Options, *facts: Any) -> Instant | None:
        return retry_at_us(replaced(given, **options), *facts)

    return retry


def same(task: Task, *_: object) -> Task:
    return task


def resumed_at_restart(task: Task) -> Task:
    return with_pause(task, paused=False)


def unasked_at_restart(task: Task) -> Task:
    return replaced(
        task, requested_us=None, running_since_us=None, interrupted=task.running_since_us is not None
    )


_TELLING = (88, 94, 362)
"""Lives that showed the rarest mistakes when this was written; others are tried if they do so no more."""

WRONG = [
    (core_task, "anchor_us", anchor_of_the_last_start),
    (timetable, "parts_of", without_zone),
    (timetable, "parts_of", without_offset),
    (timetable.LastDay, "_is_last_day", always),
    ("duly.engine.task_backend", "with_pause", never_paused),
    ("duly.declarations", "_enabled", enabled_always),
    ("duly.core.causes", "started", asked_twice),
    (core_task, "retry_at_us", retry_with(attempts=None)),
    (core_task, "retry_at_us", retry_with(retry_factor=1)),
    (core_task, "retry_at_us", retry_with(retry_longest_us=None)),
    ("duly.engine.tasks", "without_old_dues", same),
    ("duly.core.reconciliation", "with_options", same),
    ("duly.core.reconciliation", "cut_off", resumed_at_restart),
    ("duly.core.reconciliation", "cut_off", unasked_at_restart),
]


def break_it(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, wrong: Callable[..., object]) -> None:
    if isinstance(where, str):
        monkeypatch.setattr(f"{where}.{name}", wrong)
    else:
        monkeypatch.setattr(where, name, wrong)


@pytest.mark.parametrize(("where", "name", "wrong"), WRONG)
def test_wrong_app_is_found_out(
    where: Any, name: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app that decides one thing wrong differs from the model within 600 lives, and its trace shows it.

    But for an option that the app loses before it is recorded.
    """
    break_it(monkeypatch, where, name, wrong)
    differs, is_seen = False, name == "_enabled"
    for seed in chain(_TELLING, range(600)):
        faults, outcome = app_faults(app_drawn(seed))
        differs, is_seen = differs or bool(faults), is_seen or bool(outcome.violations)
        if differs and is_seen:
            return
    pytest.fail(f"{differs=}, {is_seen=}")


WRONG_ON_NODES = [
    (core_task, "anchor_us", anchor_of_the_last_start),
    (timetable, "parts_of", without_zone),
    ("duly.declarations", "_enabled", enabled_always),
    (core_task, "retry_at_us", retry_with(attempts=None)),
    (core_task, "retry_at_us", retry_with(retry_factor=1)),
    ("duly.engine.tasks", "without_old_dues", same),
    ("duly.cluster.tasks", "with_options", same),
    ("duly.cluster.tasks", "requested", same),
]


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize(
    ("where", "name", "wrong"), [each for each in WRONG_ON_NODES if each[1] != "_enabled"]
)
def test_wrong_app_is_seen_in_the_traces_of_nodes(
    where: Any, name: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker of clusters sees such mistakes in the traces of two nodes, too."""
    break_it(monkeypatch, where, name, wrong)
    assert any(
        app_judged(app_drawn(seed), nodes_of_a_cluster(), 2).violations
        for seed in chain(_TELLING, range(600))
    )
