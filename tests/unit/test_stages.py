"""The order of start and stop, and what keeps a service from starting."""

import random

import pytest

from duly.config import Service
from duly.store.history import Result
from duly.supervisor.results import RunResult
from duly.supervisor.services import Phase, ServiceState, after_end, idle, in_phase, running, starting
from duly.supervisor.stages import Stage, held_up, start_order, stop_order, unmet_requirement


def service(name: str, **options: object) -> Service:
    return Service(name, ("true",), **options)  # type: ignore[arg-type]


def names(order: list[Stage]) -> list[list[str]]:
    return [[place.service.id for place in stage.places] for stage in order]


def waits(order: list[Stage]) -> dict[str, tuple[str, ...]]:
    return {place.service.id: place.waits_for for stage in order for place in stage.places}


def test_stages_come_in_order_and_services_as_declared() -> None:
    """Stages are sorted by number; unrelated services of one stage stay in the order of declaration."""
    services = [service("c", stage=3), service("a", stage=1), service("b"), service("d", stage=1)]
    order = start_order(services)
    assert [stage.number for stage in order] == [1, 3]
    assert names(order) == [["a", "d"], ["c", "b"]]
    assert set(waits(order).values()) == {()}


def test_relations_within_a_stage() -> None:
    """A service waits for those it names in after and requires, and comes behind them."""
    services = [
        service("web", after=("cache",), requires=("db",)),
        service("cache", after=("db",)),
        service("db"),
        service("log"),
    ]
    order = start_order(services)
    assert names(order) == [["db", "cache", "web", "log"]]
    assert waits(order) == {"db": (), "cache": ("db",), "web": ("cache", "db"), "log": ()}


def test_relations_across_stages_are_the_business_of_stages() -> None:
    """A relation to an earlier stage needs no waiting, one to a later stage cannot have any."""
    services = [service("a", stage=1, after=("b",)), service("b", stage=2, requires=("a",))]
    assert waits(start_order(services)) == {"a": (), "b": ()}


def test_unknown_and_own_names_are_ignored() -> None:
    """A relation to a service that is not there, or to itself, holds nothing up."""
    assert waits(start_order([service("a", after=("absent", "a"))])) == {"a": ()}


def test_circle_is_broken() -> None:
    """A circle, which configuration refuses, still gives every service a place and no deadlock."""
    services = [service("a", after=("c",)), service("b", after=("a",)), service("c", after=("b",))]
    order = start_order(services)
    assert names(order) == [["a", "b", "c"]]
    assert waits(order) == {"a": (), "b": ("a",), "c": ("b",)}


def test_stop_is_start_backwards() -> None:
    """Later stages stop first; within one, a service waits for those that waited for it."""
    services = [
        service("db", stage=1),
        service("api", requires=("q",)),
        service("q"),
        service("web", after=("q",)),
    ]
    order = stop_order(services)
    assert names(order) == [["web", "api", "q"], ["db"]]
    assert waits(order) == {"web": (), "api": (), "q": ("web", "api"), "db": ()}


@pytest.mark.parametrize("seed", range(200))
def test_random_orders(seed: int) -> None:
    """Whatever the relations, every service has one place, behind all those it waits for, both ways round."""
    rng = random.Random(seed)
    ids = [f"s{i}" for i in range(rng.randint(1, 12))]
    services = [
        service(
            name,
            stage=rng.randint(1, 4),
            after=tuple(rng.sample(ids, rng.randint(0, min(3, len(ids))))),
            requires=tuple(rng.sample(ids, rng.randint(0, min(2, len(ids))))),
        )
        for name in ids
    ]
    for order in (start_order(services), stop_order(services)):
        flat = [name for stage in names(order) for name in stage]
        assert sorted(flat) == sorted(ids)
        for name, before in waits(order).items():
            assert all(flat.index(other) < flat.index(name) for other in before)


def test_held_up_by_relations_or_by_the_stage() -> None:
    """A waiting service names what it waits for: an earlier stage that is not done, or its own relations."""
    order = start_order([service("m", stage=1), service("a"), service("b", after=("a",)), service("c")])
    assert held_up(order, {"m", "a", "b", "c"}) == {"m": (), "a": ("m",), "b": ("m",), "c": ("m",)}
    assert held_up(order, {"a", "b", "c"}) == {"m": (), "a": (), "b": ("a",), "c": ()}


FAILED = RunResult(Result.EXIT, 3, None, "exited with code 3")


def up(name: str = "x") -> ServiceState:
    return running(starting(idle(0), 1, 0, is_restart=False), 0)


def after_run(required: Service, end: RunResult) -> ServiceState:
    return after_end(up(), required, end, 0, is_wanted=True)


ONESHOT, SIMPLE = service("x", type="oneshot"), service("x", restart="no")


@pytest.mark.parametrize(
    ("required", "state", "lack"),
    [
        (None, None, "does not exist"),
        (service("x", enabled=False), idle(0, "disabled"), "is disabled"),
        (SIMPLE, in_phase(idle(0), Phase.SKIPPED, 0, reason="requires y, which is disabled"), "was skipped"),
        (SIMPLE, up(), None),
        (SIMPLE, idle(0), "is not running"),
        (SIMPLE, after_run(SIMPLE, FAILED), "is not running (exited with code 3)"),
        (
            service("x"),
            after_run(service("x"), FAILED),
            "is not running (ended (exited with code 3); restarts after 1 s)",
        ),
        (ONESHOT, after_run(ONESHOT, RunResult(Result.SUCCESS, 0)), None),
        (ONESHOT, after_run(ONESHOT, FAILED), "did not succeed (exited with code 3)"),
        (ONESHOT, up(), "has not ended yet"),
        (ONESHOT, idle(0), "has not run"),
    ],
)
def test_unmet_requirements(required: Service | None, state: ServiceState | None, lack: str | None) -> None:
    """A oneshot must have succeeded and a simple service must be running; what lacks is said in words."""
    services = {} if required is None else {"x": required}
    states = {} if state is None else {"x": state}
    reason = unmet_requirement(service("me", requires=("x",)), services, states)
    assert reason == (None if lack is None else f"requires x, which {lack}")


def test_first_lack_is_told() -> None:
    """Of several requirements the first that is not met is named."""
    states = {"a": up(), "b": idle(0), "c": idle(0)}
    services = {name: service(name) for name in states}
    me = service("me", requires=("a", "b", "c"))
    assert unmet_requirement(me, services, states) == "requires b, which is not running"


def test_a_oneshot_that_runs_again_has_still_succeeded() -> None:
    """What counts is the last run that ended."""
    again = starting(after_run(ONESHOT, RunResult(Result.SUCCESS, 0)), 2, 5, is_restart=False)
    assert again.phase is Phase.STARTING
    assert unmet_requirement(service("me", requires=("x",)), {"x": ONESHOT}, {"x": again}) is None
