"""What services say about each other: requirements, order, cycles, and how faults spread."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.config import config_of
from duly.config.checking import _knots

PATH = Path("duly.toml")


def service(name: str, **keys: Any) -> dict[str, Any]:
    return {"id": name, "command": ["true"], **keys}


def reasons(*services: dict[str, Any]) -> dict[str | None, str]:
    return {each.id: each.reason for each in config_of(PATH, services).invalid}


def warnings(*services: dict[str, Any]) -> list[tuple[str | None, str]]:
    return [(each.id, each.reason) for each in config_of(PATH, services).warnings]


def test_unknown_requirement() -> None:
    """A service that requires what is not there is invalid."""
    assert reasons(service("database"), service("web", requires=["databse"])) == {
        "web": 'requires "databse", which is no service; did you mean database?'
    }


def test_unknown_order() -> None:
    """A service that wants to come after what is not there is warned of."""
    assert warnings(service("cache"), service("web", after=["cach"])) == [
        ("web", 'after "cach" has no effect: there is no such service; did you mean cache?')
    ]


def test_later_stage() -> None:
    """What is required must not start in a later stage; what one comes after may, but that has no effect."""
    late = service("late", stage=4)
    assert reasons(late, service("early", requires=["late"])) == {
        "early": 'requires "late", which starts later: in stage 4, and this one in stage 3'
    }
    assert warnings(late, service("early", after=["late"])) == [
        ("early", 'after "late" has no effect: it starts later, in stage 4')
    ]
    assert reasons(late, service("same", requires=["late"], stage=4)) == {}


def test_faults_spread() -> None:
    """Anyone who requires an invalid service is invalid too, and the others are not."""
    found = reasons(
        service("c", requires=["b"]),
        service("b", requires=["a"]),
        service("a", stage=9),
        service("d", after=["a"]),
    )
    assert found == {
        "a": "stage must be 1 to 4, not 9",
        "b": 'requires "a", which is invalid',
        "c": 'requires "b", which is invalid',
    }


def test_cycle() -> None:
    """Every member of a cycle is invalid and told the way round; requires and after count alike."""
    found = reasons(
        service("a", requires=["b"]),
        service("b", after=["c"]),
        service("c", requires=["a"]),
        service("d", after=["a"]),
        service("e", requires=["a"]),
    )
    assert found == {
        "a": 'waits for itself: "a" -> "b" -> "c" -> "a"',
        "b": 'waits for itself: "b" -> "c" -> "a" -> "b"',
        "c": 'waits for itself: "c" -> "a" -> "b" -> "c"',
        "e": 'requires "a", which is invalid',
    }


def test_two_cycles() -> None:
    """Each member is told its own shortest cycle, though they hang together."""
    found = reasons(
        service("a", after=["b", "c"]),
        service("b", after=["a"]),
        service("c", after=["a"]),
    )
    assert found["b"] == 'waits for itself: "b" -> "a" -> "b"'
    assert found["c"] == 'waits for itself: "c" -> "a" -> "c"'


@pytest.mark.parametrize("is_ring", [True, False])
def test_long_chains(is_ring: bool) -> None:
    """Thousands of services in a row neither overflow a stack nor fill a screen."""
    count = 5000
    rows = [service(f"s{number}", requires=[f"s{number + 1}"]) for number in range(count - 1)]
    last = service(f"s{count - 1}", requires=["s0"] if is_ring else [])
    found = reasons(*rows, last)
    assert set(found.values()) == (
        {f"is one of {count} services that wait for each other in a cycle"} if is_ring else set()
    )
    assert len(found) == (count if is_ring else 0)


@given(st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=8, max_size=8))
def test_knots_are_what_can_reach_itself(edges: list[list[int]]) -> None:
    """The members of cycles are exactly the nodes from which some way leads back."""
    graph = {
        str(node): [str(other) for other in others if other != node] for node, others in enumerate(edges)
    }

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        stack = list(graph[start])
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += graph[node]
        return seen

    knots = list(_knots(graph))
    assert {node for knot in knots for node in knot} == {node for node in graph if node in reached(node)}
    assert all(knot <= reached(node) for knot in knots for node in knot)


@pytest.mark.parametrize(
    ("required", "reason"),
    [
        (service("db", enabled=False), "is disabled"),
        (service("db", at_startup=False), "does not run at start-up; give that one at_startup = true"),
    ],
)
def test_requirements_that_never_come_up(required: dict[str, Any], reason: str) -> None:
    """A service that can never start, because what it requires is not started, is warned of."""
    assert warnings(required, service("web", requires=["db"])) == [
        ("web", f'will not start: it requires "db", which {reason}')
    ]
    assert warnings(required, service("web", requires=["db"], enabled=False)) == []
