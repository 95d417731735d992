"""Small cases, all of them: every crash point of a scenario, and every order of a handful of actions.

Random lives find what nobody thought of; these find what somebody could have thought of and did not. A
scenario is a plan. It is lived once to count its crash points, and then once for every point, and for
pairs of points, the second one in the recovery from the first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise, product

from duly.instant import MINUTE_US, SECOND_US, instant_of
from tests.simulation.director import lived
from tests.simulation.disk import Cut
from tests.simulation.life import Life
from tests.simulation.plan import (
    Action,
    Behaviour,
    Crash,
    Finish,
    How,
    Initialize,
    Plan,
    PlannedTask,
    Step,
    Stop,
)
from tests.simulation.steady import Point

_RECOVERY_POINTS = {Point.AWAIT: 60, Point.BEFORE_WRITE: 5, Point.UNACKNOWLEDGED: 5, Point.DISK: 30}
"""How many points of each kind a second crash may wait for: about as many as a start has."""

_AT_ONCE = -1
"""Before the process has done anything."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One life of an enumeration: where the process died in it."""

    crashes: tuple[Crash, ...]
    life: Life


def crash_points(plan: Plan) -> dict[Point, int]:
    """How many crash points of each kind *plan* has."""
    return lived(plan).points


def every_crash_point(
    plan: Plan,
    *,
    cuts: Iterable[Cut] = (Cut.KILL, Cut.LOSE, Cut.ANY),
    points: Iterable[Point] = tuple(Point),
    pairs: int = 0,
) -> Iterator[Visit]:
    """Live *plan* once for each crash point and each of *cuts*, and then for at most so many *pairs*."""
    counts = crash_points(plan)
    cuts = tuple(cuts) if plan.is_durable else (Cut.KILL,)
    for point in points:
        for after, cut in product(range(counts[point]), cuts):
            yield _visit(plan, Crash(_AT_ONCE, point, after, cut))
    yield from _pairs(plan, counts, cuts, pairs)


def _pairs(plan: Plan, points: dict[Point, int], cuts: tuple[Cut, ...], most: int) -> Iterator[Visit]:
    pairs = [
        (first, after, second, later)
        for first, number in points.items()
        for after in range(number)
        for second, recovery in _RECOVERY_POINTS.items()
        if points[second]
        for later in range(1, recovery)
    ]
    stride = max(len(pairs) // most, 1) if most else 0
    for index in range(0, min(stride * most, len(pairs)), stride or 1):
        first, after, second, later = pairs[index]
        cut = cuts[index // (stride or 1) % len(cuts)]
        yield _visit(plan, Crash(_AT_ONCE, first, after, cut, then=Crash(_AT_ONCE, second, later, cut)))


def _visit(plan: Plan, crash: Crash) -> Visit:
    life = lived(replace(plan, actions=(crash, *plan.actions)))
    return Visit((crash,) if crash.then is None else (crash, crash.then), life)


def spelled(crashes: Iterable[Crash]) -> str:
    """Where a process died, as `dying` reads it: kind of point, number, cut; a comma before the second."""
    return ",".join(f"{crash.point}:{crash.after}:{crash.cut}" for crash in crashes)


def dying(plan: Plan, spelling: str) -> Plan:
    """The plan in which the process dies as *spelling* says. Raises ValueError."""
    crash: Crash | None = None
    for word in reversed(spelling.split(",")):
        try:
            point, after, cut = word.split(":")
            crash = Crash(_AT_ONCE, Point(point), int(after), Cut(cut), then=crash)
        except ValueError:
            raise ValueError(
                "a crash point is written like await:12:kill, or disk:3:any,disk:7:any"
            ) from None
    assert crash is not None
    return replace(plan, actions=(crash, *plan.actions))


# --- every order ---

_EACH_MINUTE, _OTHER = PlannedTask("a", "* * * * *", 30 * SECOND_US), PlannedTask("a", "* * * * *", 0)

WORDS = ("due", "ok", "failed", "stop", "same", "other", "crash", "back", "forward")
"""What may happen in the tiny world, which has one task."""


def orders(depth: int, words: Iterable[str] = WORDS) -> Iterator[tuple[str, ...]]:
    """Every order of *depth* words in which no run is told to end that cannot be running."""
    for order in product(tuple(words), repeat=depth):
        if not any(one in _ENDS and two in _ENDS for one, two in pairwise(order)):
            yield order


_ENDS = frozenset({"ok", "failed"})


def tiny_world(order: tuple[str, ...], *, is_durable: bool = False) -> Plan:
    """The plan in which *order* happens: a word a second, and a due takes until the next minute."""
    actions: list[Action] = []
    at_us = SECOND_US
    for word in order:
        at_us += 60 * SECOND_US if word == "due" else SECOND_US
        actions += _happening(word, at_us)
    return Plan(
        seed=0,
        zone="UTC",
        start_us=instant_of(datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)),
        duration_us=at_us + SECOND_US,
        items=(_EACH_MINUTE,),
        actions=tuple(actions),
        behaviours={"a": (Behaviour(How.WAIT),)},
        is_durable=is_durable,
        heal_us=3 * MINUTE_US,
    )


def _happening(word: str, at_us: int) -> list[Action]:
    match word:
        case "ok" | "failed":
            return [Finish(at_us, "a", ok=word == "ok")]
        case "stop":
            return [Stop(at_us)]
        case "same":
            return [Initialize(at_us)]
        case "other":
            return [Initialize(at_us, (_OTHER,))]
        case "crash":
            return [Crash(at_us, downtime_us=0)]
        case "back":
            return [Step(at_us, -90 * SECOND_US)]
        case "forward":
            return [Step(at_us, 61 * SECOND_US)]
        case _:
            return []


def all_orders(depth: int, *, first: str | None = None) -> Iterator[tuple[tuple[str, ...], Life]]:
    """Live every order, or every one that begins with the word *first*."""
    for order in orders(depth):
        if first is None or order[0] == first:
            yield order, lived(tiny_world(order))
