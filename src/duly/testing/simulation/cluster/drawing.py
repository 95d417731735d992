"""Draws the plans of clusters from seeds.

Every family of troubles draws from randomness of its own, so leaving one out leaves the others as they were.
Lives are short and dense: the interesting distances are those of a lease, of which a life has a few dozen.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from duly.instant import MINUTE_US, SECOND_US, instant_of
from duly.testing.simulation.cluster.plan import (
    Action,
    Away,
    Change,
    ClusterPlan,
    Crash,
    Fate,
    Forget,
    Harm,
    Host,
    Leave,
    Lossy,
    Part,
    Pause,
    Slow,
    Step,
)
from duly.testing.simulation.families import Families
from duly.testing.simulation.plan import Behaviour, How, Item, Items

HOUR_US = 60 * MINUTE_US
_START_US = instant_of(datetime(2026, 3, 1, 11, 59, tzinfo=UTC))
_NAMES = ("a", "b", "c", "d", "e", "f")
_DELAYS_US = (0, SECOND_US, 15 * SECOND_US, 45 * SECOND_US, 5 * MINUTE_US)
_LASTING_US = (0, 0, 0, 1_000, 2 * SECOND_US, 10 * SECOND_US, 30 * SECOND_US, 61 * SECOND_US)
_TICKS_US = (None, SECOND_US, 5 * SECOND_US, MINUTE_US)
_SOME_MINUTES = ",".join(map(str, range(0, 60, 2)))
_CRONS = ("* * * * *", "* * * * *", f"{_SOME_MINUTES} * * * *", "1,3,4,8,9,59 * * * *")


@dataclass(frozen=True, slots=True)
class ClusterFaults(Families):
    """Which families of troubles there are; all by default."""

    crash: bool = True
    """Programs die, at any turn of their loops."""
    pause: bool = True
    """Programs get no time for a while."""
    link: bool = True
    """Messages are lost, slow, late, overtaken; hosts are parted from the board."""
    board: bool = True
    """The board is away for everybody."""
    forget: bool = True
    """The board comes back without its latest commits."""
    deploy: bool = True
    """Programs are restarted with newer and older lists, change their lists, come and go."""
    clock: bool = True
    """Wall clocks are hours off and are set; steady clocks drift."""
    callback: bool = True
    """Callbacks raise, hang, last long."""


class _Draw:
    def __init__(self, seed: int, family: str, plan: ClusterPlan) -> None:
        self.rng = random.Random(f"cluster {family} {seed}")  # noqa: S311 (reproducible, not secret)
        self.plan = plan

    def times(self, most: int) -> list[int]:
        """A few moments, none at all in a third of the lives."""
        return sorted(self.moment() for _ in range(self.rng.choice((0, 1, most // 2, most))))

    def moment(self) -> int:
        """A moment, often where a minute begins."""
        at_us = self.rng.randrange(self.plan.duration_us)
        if self.rng.random() < 0.6:
            at_us -= (self.plan.start_us + at_us) % MINUTE_US
            at_us += self.rng.choice((0, -1, 1_500, 3_000, 10_000, SECOND_US, -SECOND_US, self.lease_us()))
        return max(at_us, 0)

    def lease_us(self) -> int:
        """A length of time about as long as leases, beats and margins are."""
        ttl_us = self.plan.ttl_us
        length_us = self.rng.choice(
            (ttl_us // 6, ttl_us // 3, ttl_us // 2, ttl_us, ttl_us, 2 * ttl_us, 5 * ttl_us)
        )
        return max(length_us + self.rng.randrange(-ttl_us // 6, ttl_us // 6), 1)

    def host(self) -> int:
        """One of the hosts."""
        return self.rng.randrange(len(self.plan.hosts))

    def items(self) -> int:
        """One of the lists."""
        return self.rng.randrange(len(self.plan.lists))


def cluster_drawn(seed: int, members: int = 3, faults: ClusterFaults | None = None) -> ClusterPlan:
    """The plan of a seed, for so many hosts."""
    faults = ClusterFaults() if faults is None else faults
    rng = random.Random(f"cluster {seed}")  # noqa: S311 (reproducible, not secret)
    lists = _lists(rng)
    ttl_us = rng.choice((3, 6, 6, 12, 20)) * SECOND_US
    plan = ClusterPlan(
        seed=seed,
        start_us=_START_US + rng.choice((0, 30 * SECOND_US, 59 * SECOND_US, rng.randrange(MINUTE_US))),
        duration_us=rng.randrange(2, 8) * MINUTE_US,
        hosts=tuple(_host(seed, number, faults) for number in range(members)),
        lists=lists,
        ttl_us=ttl_us,
        shards=rng.choice((1, 2, 4, 8, 8)),
        run_timeout_us=rng.choice((None, None, None, 40 * SECOND_US)),
        settle_us=90 * SECOND_US,
        tick_us=random.Random(f"cluster tick {seed}").choice(_TICKS_US),  # noqa: S311 (reproducible)
        behaviours=_behaviours(seed) if faults.callback else {},
    )
    actions: list[Action] = []
    for family in faults.families:
        if family in _FAMILIES:
            actions += _FAMILIES[family](_Draw(seed, family, plan))
    ordered = tuple(sorted(actions, key=lambda action: action.at_us))
    return replace(plan, actions=ordered)


def _lists(rng: random.Random) -> tuple[Items, ...]:
    """A first list, and others that keep some of its tasks, change some and drop some."""
    first = tuple(_item(rng, name) for name in _NAMES[: rng.choice((1, 2, 4, 6))])
    lists = [first]
    for _ in range(2):
        kept = [item for item in first if rng.random() < 0.8]
        changed = [_item(rng, item.name) if rng.random() < 0.3 else item for item in kept]
        lists.append((*changed, *(_item(rng, "g") for _ in range(rng.randrange(2)))))
    return tuple(lists)


def _item(rng: random.Random, name: str) -> Item:
    return Item(name, rng.choice(_CRONS), rng.choice(_DELAYS_US))


def _host(seed: int, number: int, faults: ClusterFaults) -> Host:
    rng = random.Random(f"host {seed} {number}")  # noqa: S311 (reproducible, not secret)
    boots_us = rng.choice((0, 0, 0, 1_000, rng.randrange(20 * SECOND_US), rng.randrange(2 * MINUTE_US)))
    offset_us = rng.choice((0, HOUR_US, -3 * HOUR_US, 5 * SECOND_US, 400 * 24 * HOUR_US))
    drift_ppm = rng.choice((0, 50, -50, 500, -500, 5_000, -5_000))
    if not faults.clock:
        offset_us = drift_ppm = 0
    return Host(offset_us, drift_ppm, boots_us)


def _crashes(draw: _Draw) -> Iterator[Action]:
    for at_us in draw.times(5):
        after = draw.rng.choice((0, 0, 1, 5, draw.rng.randrange(40)))
        downtime_us = draw.rng.choice((0, SECOND_US, draw.lease_us(), draw.lease_us(), 2 * MINUTE_US))
        yield Crash(at_us, draw.host(), after, downtime_us)


def _pauses(draw: _Draw) -> Iterator[Action]:
    for at_us in draw.times(5):
        yield Pause(at_us, draw.host(), draw.lease_us())


def _links(draw: _Draw) -> Iterator[Action]:
    rng, ttl_us = draw.rng, draw.plan.ttl_us
    for at_us in draw.times(6):
        match rng.randrange(4):
            case 0:
                yield Part(at_us, draw.host(), draw.lease_us(), is_late=rng.random() < 0.5)
            case 1:
                delays_us = (0, 50_000, SECOND_US, ttl_us // 3, ttl_us // 2, ttl_us, 2 * ttl_us)
                yield Slow(at_us, draw.host(), draw.lease_us(), rng.choice(delays_us), rng.choice(delays_us))
            case 2:
                yield Lossy(at_us, draw.host(), draw.lease_us(), rng.choice((10, 30, 60)))
            case _:
                fate = rng.choice((Fate.REQUEST_LOST, Fate.ANSWER_LOST, Fate.REQUEST_LATE, Fate.ANSWER_LATE))
                yield Harm(draw.host(), rng.randrange(1, 200), fate, ttl_us // 2 + draw.lease_us())


def _boards(draw: _Draw) -> Iterator[Action]:
    for at_us in draw.times(2):
        yield Away(at_us, draw.lease_us(), is_silent=draw.rng.random() < 0.5)


def _forgets(draw: _Draw) -> Iterator[Action]:
    if draw.rng.random() < 0.3:
        back_us = draw.rng.choice((1_000, 10_000, SECOND_US, draw.lease_us()))
        yield Forget(draw.moment(), back_us, draw.lease_us())


def _deploys(draw: _Draw) -> Iterator[Action]:
    rng = draw.rng
    hosts = range(len(draw.plan.hosts))
    for at_us in draw.times(3):
        items = draw.items()
        match rng.randrange(4):
            case 0:  # a rolling deploy
                between_us = rng.choice((0, SECOND_US, draw.lease_us()))
                for host in hosts:
                    yield Leave(at_us + host * between_us, host, rng.choice((0, SECOND_US)), items)
            case 1:
                yield Leave(at_us, draw.host(), draw.lease_us(), rng.choice((None, items)))
            case 2:
                yield Change(at_us, draw.host(), items)
            case _:
                yield Crash(at_us, draw.host(), 0, draw.lease_us(), items)


def _clocks(draw: _Draw) -> Iterator[Action]:
    for at_us in draw.times(3):
        yield Step(at_us, draw.host(), draw.rng.choice((HOUR_US, -HOUR_US, 30 * SECOND_US)))


_FAMILIES: dict[str, Callable[[_Draw], Iterator[Action]]] = {
    "crash": _crashes,
    "pause": _pauses,
    "link": _links,
    "board": _boards,
    "forget": _forgets,
    "deploy": _deploys,
    "clock": _clocks,
}


def _behaviours(seed: int) -> dict[str, tuple[Behaviour, ...]]:
    rng = random.Random(f"cluster callback {seed}")  # noqa: S311 (reproducible, not secret)
    hows = (*(How.RETURN,) * 8, *(How.RAISE,) * 4, How.EXIT, How.HANG)
    return {
        name: (
            *(Behaviour(rng.choice(hows), rng.choice(_LASTING_US)) for _ in range(rng.choice((0, 2, 5)))),
            Behaviour(),
        )
        for name in (*_NAMES, "g")
    }
