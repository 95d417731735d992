"""Every single fault of a small world: each message with each fate, and each other fault at each moment."""

from collections.abc import Iterator
from dataclasses import replace

from duly.instant import SECOND_US
from tests.simulation.cluster import plan as planned
from tests.simulation.cluster.director import ClusterLife, cluster_lived
from tests.simulation.cluster.drawing import START_US
from tests.simulation.cluster.plan import (
    Action,
    BodyBehaviour,
    ClusterPlan,
    Fate,
    PlannedHost,
    SharedTask,
)

_LEASE_US = 2 * SECOND_US
SMALL = ClusterPlan(
    seed=1,
    start_us=START_US + 58 * SECOND_US,
    duration_us=12 * SECOND_US,
    hosts=(PlannedHost(), PlannedHost(boots_us=300_000)),
    lists=((SharedTask("a"), SharedTask("b", delay_us=SECOND_US)),),
    behaviours={
        "a": (BodyBehaviour(lasts_us=3 * SECOND_US),),
        "b": (BodyBehaviour(planned.BodyEnding.RAISE, 500_000),),
    },
    lease_us=_LEASE_US,
    settle_us=5 * SECOND_US,
)
"""Two nodes and two tasks: one lasts longer than a lease, the other fails once."""


def single_faults(plan: ClusterPlan, *, every_us: int) -> Iterator[Action]:
    """All of them; those that are not of a message at moments so far apart."""
    sent = cluster_lived(plan).sent
    for host, number in enumerate(sent):
        for message in range(number):
            for fate in Fate:
                yield planned.Harm(host, message, fate, _LEASE_US // 2)
    lease_us = plan.lease_us
    for at_us in range(0, plan.duration_us, every_us):
        for host in range(len(plan.hosts)):
            yield planned.Crash(at_us, host, downtime_us=2 * lease_us)
            yield planned.Leave(at_us, host)
            for for_us in (lease_us // 2, lease_us * 9 // 10, lease_us * 3 // 2, 4 * lease_us):
                yield planned.Pause(at_us, host, for_us)
                yield planned.Part(at_us, host, for_us, is_late=True)
                yield planned.Part(at_us, host, for_us)
        for for_us in (1_000, lease_us, 3 * lease_us):
            yield planned.Restart(at_us, for_us)
            yield planned.Forget(at_us, lease_us // 2, for_us)
            yield planned.Forget(at_us, 2 * lease_us, for_us)
        yield planned.Jump(at_us, 20 * SECOND_US)
        yield planned.Jump(at_us, -20 * SECOND_US)


def every_single(
    plan: ClusterPlan, *, every_us: int, stride: int = 1
) -> Iterator[tuple[Action, ClusterLife]]:
    """Live *plan* with each of its single faults, or with each of so many."""
    for number, action in enumerate(single_faults(plan, every_us=every_us)):
        if number % stride == 0:
            yield action, cluster_lived(replace(plan, actions=(*plan.actions, action)))
