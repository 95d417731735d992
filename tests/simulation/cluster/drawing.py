"""Draws the plans of clusters from seeds.

Every family of faults draws from randomness of its own, so leaving one out leaves the others as they were.
Lives are short and dense: the interesting distances are those of a lease, of which a life has a few dozen.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from duly.instant import MINUTE_US, SECOND_US, instant_of
from tests.simulation.cluster import plan as planned
from tests.simulation.cluster.plan import (
    Action,
    BodyBehaviour,
    BodyEnding,
    ClusterPlan,
    Fate,
    Items,
    PlannedHost,
    SharedTask,
)
from tests.simulation.families import Families

START_US = instant_of(datetime(2026, 3, 1, 11, 59, tzinfo=UTC))
_NAMES = "abcdef"
_DELAYS_US = (0, SECOND_US, 15 * SECOND_US, 45 * SECOND_US, 5 * MINUTE_US)
_LASTING_US = (0, 0, 0, 1_000, 2 * SECOND_US, 10 * SECOND_US, 30 * SECOND_US, 61 * SECOND_US)
_HOWS = (BodyEnding.RETURN,) * 6 + (BodyEnding.RAISE,) * 2 + (BodyEnding.BLOCK, BodyEnding.EXIT)


@dataclass(frozen=True, slots=True)
class ClusterFaults(Families):
    """Which families of faults there are; all by default."""

    crash: bool = True
    """Programs die, at any turn of their loops."""
    pause: bool = True
    """Programs get no time for a while."""
    link: bool = True
    """Messages are lost, slow, late, overtaken; hosts are cut off from the database."""
    server: bool = True
    """The server restarts."""
    forget: bool = True
    """A standby takes over without the latest commits."""
    deploy: bool = True
    """Programs are restarted with newer and older lists, change their lists, come and go."""
    clock: bool = True
    """The clock of the database is set; steady clocks drift."""
    callback: bool = True
    """Bodies raise, last long, block their loop, end their process."""


class _ClusterDraw:
    def __init__(self, seed: int, family: str, plan: ClusterPlan) -> None:
        self.rng = random.Random(f"cluster {family} {seed}")
        self.plan = plan

    def times(self, most: int) -> list[int]:
        """A few moments, none at all in a quarter of the lives."""
        return sorted(self.moment() for _ in range(self.rng.choice((0, 1, most // 2, most))))

    def moment(self) -> int:
        """A moment, often where a minute begins."""
        at_us = self.rng.randrange(self.plan.duration_us)
        if self.rng.random() < 0.6:
            at_us -= (self.plan.start_us + at_us) % MINUTE_US
            at_us += self.rng.choice((0, -1, 1_500, 3_000, 10_000, SECOND_US, -SECOND_US, self.length_us()))
        return max(at_us, 0)

    def length_us(self) -> int:
        """A length of time about as long as leases, heartbeats and margins are."""
        lease_us = self.plan.lease_us
        length_us = self.rng.choice((1, 2, 3, 5, 6, 6, 7, 12, 30)) * lease_us // 6
        return max(length_us + self.rng.randrange(-lease_us // 6, lease_us // 6), 1)

    def host(self) -> int:
        return self.rng.randrange(len(self.plan.hosts))

    def items(self) -> int:
        return self.rng.randrange(len(self.plan.lists))


def cluster_drawn(seed: int, nodes: int = 3, faults: ClusterFaults | None = None) -> ClusterPlan:
    """The plan of a seed, for so many hosts."""
    faults = ClusterFaults() if faults is None else faults
    rng = random.Random(f"cluster {seed}")
    plan = ClusterPlan(
        seed=seed,
        start_us=START_US + rng.choice((0, 30 * SECOND_US, 59 * SECOND_US, rng.randrange(MINUTE_US))),
        duration_us=rng.randrange(2, 6) * MINUTE_US,
        hosts=tuple(_host(seed, number, faults) for number in range(nodes)),
        lists=_lists(rng),
        lease_us=rng.choice((2, 6, 6, 12)) * SECOND_US,
        behaviours=_behaviours(seed) if faults.callback else {},
    )
    actions: list[Action] = []
    for family in faults.families:
        if family in _FAMILIES:
            actions += _FAMILIES[family](_ClusterDraw(seed, family, plan))
    return replace(plan, actions=tuple(sorted(actions, key=lambda action: action.at_us)))


def _lists(rng: random.Random) -> tuple[Items, ...]:
    """A first list, and others that keep some of its tasks, change some and drop some."""
    first = tuple(_item(rng, name) for name in _NAMES[: rng.choice((1, 2, 4, 6))])
    lists = [first]
    for _ in range(2):
        kept = [item for item in first if rng.random() < 0.8]
        changed = [_item(rng, item.name) if rng.random() < 0.3 else item for item in kept]
        lists.append((*changed, *(_item(rng, "g") for _ in range(rng.randrange(2)))) or first)
    return tuple(lists)


def _item(rng: random.Random, name: str) -> SharedTask:
    every = rng.choice((1, 1, 1, 2, 3))
    return SharedTask(name, every, rng.randrange(every), rng.choice(_DELAYS_US))


def _host(seed: int, number: int, faults: ClusterFaults) -> PlannedHost:
    rng = random.Random(f"host {seed} {number}")
    boots_us = rng.choice((0, 0, 0, 1_000, rng.randrange(20 * SECOND_US), rng.randrange(2 * MINUTE_US)))
    drift_ppm = rng.choice((0, 50, -50, 500, -500, 5_000, -5_000))
    return PlannedHost(drift_ppm if faults.clock else 0, boots_us)


def _behaviours(seed: int) -> dict[str, tuple[BodyBehaviour, ...]]:
    rng = random.Random(f"behaviours {seed}")
    return {
        name: tuple(
            BodyBehaviour(rng.choice(_HOWS), rng.choice(_LASTING_US)) for _ in range(rng.choice((1, 2, 5)))
        )
        for name in (*_NAMES, "g")
        if rng.random() < 0.7
    }


def _crashes(draw: _ClusterDraw) -> Iterator[Action]:
    for at_us in draw.times(4):
        after = draw.rng.choice((0, 0, draw.rng.randrange(300)))
        yield planned.Crash(at_us, draw.host(), after, draw.length_us())


def _pauses(draw: _ClusterDraw) -> Iterator[Action]:
    for at_us in draw.times(4):
        yield planned.Pause(at_us, draw.host(), draw.length_us())


def _links(draw: _ClusterDraw) -> Iterator[Action]:
    rng = draw.rng
    for at_us in draw.times(4):
        yield planned.Part(at_us, draw.host(), draw.length_us(), is_late=rng.random() < 0.3)
    for at_us in draw.times(2):
        far_us = draw.plan.lease_us // rng.choice((3, 10, 100))
        yield planned.Slow(at_us, draw.host(), draw.length_us(), rng.randrange(far_us), rng.randrange(far_us))
    for at_us in draw.times(2):
        yield planned.Lossy(at_us, draw.host(), draw.length_us(), rng.choice((5, 30, 60)))
    for _ in range(rng.choice((0, 2, 8))):
        yield planned.Harm(draw.host(), rng.randrange(400), rng.choice(list(Fate)), draw.length_us())


def _restarts(draw: _ClusterDraw) -> Iterator[Action]:
    for at_us in draw.times(2):
        yield planned.Restart(at_us, draw.rng.choice((1_000, 100_000, draw.length_us())))


def _forgets(draw: _ClusterDraw) -> Iterator[Action]:
    for at_us in draw.times(2):
        back_us = draw.rng.choice((1_000, 300_000, draw.length_us(), 2 * draw.plan.lease_us))
        yield planned.Forget(at_us, back_us, draw.rng.choice((20_000, draw.length_us())))


def _deploys(draw: _ClusterDraw) -> Iterator[Action]:
    for at_us in draw.times(4):
        items = draw.items()
        if draw.rng.random() < 0.5:
            yield planned.Leave(
                at_us, draw.host(), draw.rng.choice((1_000, SECOND_US, draw.length_us())), items
            )
        else:
            yield planned.Change(at_us, draw.host(), items)


def _clocks(draw: _ClusterDraw) -> Iterator[Action]:
    for at_us in draw.times(2):
        # Together they do not go back by more than five minutes: then minutes would count again.
        yield planned.Jump(at_us, draw.rng.choice((1, 5, 20, 90, 240, -1, -5, -20, -90, -120)) * SECOND_US)


_FAMILIES: dict[str, Callable[[_ClusterDraw], Iterator[Action]]] = {
    "crash": _crashes,
    "pause": _pauses,
    "link": _links,
    "server": _restarts,
    "forget": _forgets,
    "deploy": _deploys,
    "clock": _clocks,
}
