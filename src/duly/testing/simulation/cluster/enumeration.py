"""A small world of two members and one task, and every single thing that can go wrong in it.

The scenario is lived once to count the messages that each host sends and the turns that each loop takes.
Then it is lived once for each message and each of its fates, once for each (or every so many) turns at which
a program can die, and for pairs of those.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from duly.instant import MINUTE_US, SECOND_US, instant_of
from duly.testing.simulation.cluster.director import ClusterLife, cluster_lived
from duly.testing.simulation.cluster.plan import Action, Change, ClusterPlan, Crash, Fate, Harm, Host, Leave
from duly.testing.simulation.plan import Behaviour, How, Item

_A = Item("a", "* * * * *", 10 * SECOND_US)
_B = Item("b", "* * * * *", 10 * SECOND_US)
_OTHER = Item("a", "* * * * *", 0)
_START_US = instant_of(datetime(2026, 3, 1, 12, 0, 50, tzinfo=UTC))

HANDOVER = ClusterPlan(
    seed=1,
    start_us=_START_US,
    duration_us=45 * SECOND_US,
    hosts=(Host(), Host(boots_us=12 * SECOND_US)),
    lists=((_A,),),
    behaviours={"a": (Behaviour(How.RETURN, 8 * SECOND_US), Behaviour(How.RAISE, SECOND_US), Behaviour())},
    shards=1,
    actions=(Leave(20 * SECOND_US, 0, downtime_us=10 * SECOND_US),),
    settle_us=MINUTE_US,
)
"""One member runs the task when another joins; the first one leaves, in the middle of a retry's delay."""

DEPLOY = ClusterPlan(
    seed=2,
    start_us=_START_US,
    duration_us=45 * SECOND_US,
    hosts=(Host(), Host()),
    lists=((_A,), (_OTHER,)),
    behaviours={
        "a": (Behaviour(How.RETURN, 5 * SECOND_US), Behaviour(How.RETURN, 15 * SECOND_US), Behaviour())
    },
    shards=1,
    actions=(Leave(15 * SECOND_US, 1, items=1), Change(25 * SECOND_US, 0, 1)),
    settle_us=MINUTE_US,
)
"""A deploy of a list that changes the task while it runs: one program restarts, one changes its list."""

COMEBACK = ClusterPlan(
    seed=1,  # with others the member that ran the task may be the one that takes it again
    start_us=_START_US,
    duration_us=45 * SECOND_US,
    hosts=(Host(), Host()),
    lists=((_A,), (_B,)),
    behaviours={
        "a": (Behaviour(How.RETURN, SECOND_US), Behaviour(How.RETURN, 25 * SECOND_US), Behaviour()),
    },
    shards=1,
    actions=(Change(15 * SECOND_US, 1, 1), Change(22 * SECOND_US, 1, 0)),
    settle_us=MINUTE_US,
)
"""A list removes the task while it runs, and the next one brings it back while that run goes on."""

WORLDS = {"handover": HANDOVER, "deploy": DEPLOY, "comeback": COMEBACK}


@dataclass(frozen=True, slots=True)
class ClusterVisit:
    """One life of an enumeration: what went wrong in it."""

    wrongs: tuple[Action, ...]
    life: ClusterLife


def wrongs_of(plan: ClusterPlan, *, stride: int = 1) -> list[Action]:
    """Every single thing that can go wrong in *plan*: each fate of each message, and a death at every turn.

    With a *stride* only at every so many turns.
    """
    life = cluster_lived(plan)
    wrongs: list[Action] = []
    for host, sent in enumerate(life.sent):
        late_us = plan.patience_us + plan.ttl_us // 2
        for number in range(1, sent + 1):
            wrongs += [Harm(host, number, fate, late_us) for fate in Fate]
    for host, turns in enumerate(life.turns):
        boots_us = plan.hosts[host].boots_us
        wrongs += [Crash(boots_us, host, after) for after in range(1, turns, stride)]
    return wrongs


def every_wrong(plan: ClusterPlan, *, stride: int = 1, pairs: int = 0) -> Iterator[ClusterVisit]:
    """Live *plan* once for each thing that can go wrong, and then for so many *pairs* of them."""
    wrongs = wrongs_of(plan, stride=stride)
    for wrong in wrongs:
        yield visited(plan, (wrong,))
    rng = random.Random(f"pairs {plan.seed}")  # noqa: S311 (reproducible, not secret)
    for _ in range(pairs):
        yield visited(plan, tuple(rng.sample(wrongs, 2)))


def visited(plan: ClusterPlan, wrongs: Iterable[Action]) -> ClusterVisit:
    """The life of *plan* with these things going wrong."""
    wrongs = tuple(wrongs)
    return ClusterVisit(wrongs, cluster_lived(replace(plan, actions=(*plan.actions, *wrongs))))


def spelled(wrongs: Iterable[Action]) -> str:
    """What went wrong, as `wrongs_from` reads it."""
    return ",".join(_spelled(wrong) for wrong in wrongs)


def _spelled(wrong: Action) -> str:
    if isinstance(wrong, Harm):
        return f"{wrong.host}:{wrong.number}:{wrong.fate}"
    assert isinstance(wrong, Crash)
    return f"{wrong.host}:{wrong.after}:crash"


def wrongs_from(plan: ClusterPlan, spelling: str) -> tuple[Action, ...]:
    """What goes wrong, from its spelling: host, number, fate. Raises ValueError."""
    wrongs: list[Action] = []
    for word in spelling.split(","):
        try:
            host, number, fate = word.split(":")
            at = int(host)
            if fate == "crash":
                wrongs.append(Crash(plan.hosts[at].boots_us, at, int(number)))
            else:
                late_us = plan.patience_us + plan.ttl_us // 2
                wrongs.append(Harm(at, int(number), Fate(fate), late_us))
        except (ValueError, IndexError):
            raise ValueError("what goes wrong is written like 0:12:request-lost or 1:300:crash") from None
    return tuple(wrongs)
