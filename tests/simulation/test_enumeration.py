"""Small cases, all of them: every crash point of a scenario, every order of a few actions."""

import pytest

from tests.simulation import Cut, Plan, Point, all_orders, crash_points, every_crash_point, lived
from tests.simulation.enumeration import orders, tiny_world
from tests.simulation.scenarios import SCENARIOS


@pytest.mark.parametrize("plan", SCENARIOS.values(), ids=SCENARIOS)
def test_every_crash_point(plan: Plan) -> None:
    """Whenever the process is killed, what it leaves is enough to go on correctly."""
    visited = 0
    for visit in every_crash_point(plan, cuts=(Cut.KILL,)):
        visit.life.check()
        visited += visit.life.outcome.crashes
    assert visited == sum(crash_points(plan).values())


@pytest.mark.slow
@pytest.mark.parametrize("cut", [cut for cut in Cut if cut is not Cut.KILL])
@pytest.mark.parametrize("plan", SCENARIOS.values(), ids=SCENARIOS)
def test_every_crash_point_without_power(plan: Plan, cut: Cut) -> None:
    """Nor does it matter what the power takes with it, and whether the process dies again in recovery."""
    for visit in every_crash_point(plan, cuts=(cut,), pairs=300):
        visit.life.check()


def test_disk_points_without_power() -> None:
    """A power cut at any write or sync of a first start leaves nothing that a second start cannot use."""
    plan = SCENARIOS["first-start"]
    visits = [
        visit
        for cut in (Cut.LOSE, Cut.PREFIX, Cut.ANY)
        for visit in every_crash_point(plan, cuts=(cut,), points=(Point.DISK,))
    ]
    for visit in visits:
        visit.life.check()
    assert len(visits) == 3 * crash_points(plan)[Point.DISK]


def test_pairs_of_crashes() -> None:
    """A second crash in the recovery from the first changes nothing either."""
    visits = list(every_crash_point(SCENARIOS["first-start"], points=(), pairs=60))
    for visit in visits:
        visit.life.check()
    assert len(visits) == 60
    assert sum(visit.life.outcome.crashes == 2 for visit in visits) > 30


@pytest.mark.parametrize("first", sorted({order[0] for order in orders(3)}))
def test_all_orders(first: str) -> None:
    """Every order of three things that can happen to a task satisfies the model."""
    number = 0
    for order, life in all_orders(3, first=first):
        assert life.is_sound, f"{order}: {life.faults[0]}"
        number += 1
    assert number == sum(order[0] == first for order in orders(3))


@pytest.mark.parametrize("last", ["stop", "crash"])
def test_small_steps_back_that_add_up(last: str) -> None:
    """Four small steps back and a restart let minutes run a second time, and nobody objects."""
    life = lived(tiny_world(("back", "back", "back", "back", last)))
    assert life.is_sound, life.faults[0]
    assert life.starts > lived(tiny_world(("back", "back", "back", "back", "same"))).starts


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["due", "ok", "failed", "stop", "same", "other", "crash", "back", "forward"]
)
def test_all_longer_orders(first: str) -> None:
    """So does every order of five."""
    for order, life in all_orders(5, first=first):
        assert life.is_sound, f"{order}: {life.faults[0]}"
