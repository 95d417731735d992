"""Plans in which the board is worse than usual: lists that come and go, and standbys that have forgotten."""

import random
from dataclasses import replace

from duly.instant import SECOND_US
from duly.testing.simulation.cluster import ClusterPlan
from duly.testing.simulation.cluster.plan import Action, Change, Forget
from duly.testing.simulation.plan import Behaviour, How


def with_restless_lists(plan: ClusterPlan) -> ClusterPlan:
    """The plan with runs that last, and lists that come and go meanwhile."""
    chance = random.Random(plan.seed)
    names = sorted({item.name for items in plan.lists for item in items})
    runs = {
        name: tuple(
            Behaviour(chance.choice((How.RETURN, How.RAISE)), chance.randrange(5, 90) * SECOND_US)
            for _ in range(3)
        )
        for name in names
    }
    changes = [
        Change(
            chance.randrange(plan.duration_us),
            chance.randrange(len(plan.hosts)),
            chance.randrange(len(plan.lists)),
        )
        for _ in range(8)
    ]
    return replace(_with(plan, changes), behaviours=runs)


def with_forgetful_standbys(plan: ClusterPlan) -> ClusterPlan:
    """The plan with standbys that lag behind by moments or by leases, and take over one after another."""
    chance = random.Random(f"forgetful {plan.seed}")
    lease_us = plan.ttl_us
    return _with(
        plan,
        [
            Forget(
                chance.randrange(lease_us, plan.duration_us),
                chance.choice((10_000, 300_000, lease_us // 2, lease_us, 2 * lease_us, 5 * lease_us)),
                chance.choice((20_000, 200_000, lease_us // 3, lease_us // 2)),
            )
            for _ in range(3)
        ],
    )


def _with(plan: ClusterPlan, more: list[Change] | list[Forget]) -> ClusterPlan:
    actions: list[Action] = [*plan.actions, *more]
    return replace(plan, actions=tuple(sorted(actions, key=lambda action: action.at_us)))
