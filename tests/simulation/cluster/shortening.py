"""Tells the plan of a cluster as a story, and makes one that fails as short as it can be."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from duly.instant import MINUTE_US
from tests.simulation.cluster.plan import BodyBehaviour, ClusterPlan, PlannedHost
from tests.simulation.shrinking import MOST_TRIES, shortest


def cluster_story(plan: ClusterPlan) -> str:
    """The plan, told line by line."""
    lines = [f"a lease of {plan.lease_us / 1e6:g} s, healed at {plan.duration_us / 1e6:g} s"]
    lines += [f"  host {number}: {host}" for number, host in enumerate(plan.hosts)]
    lines += [f"  list {number}: {', '.join(map(str, items))}" for number, items in enumerate(plan.lists)]
    lines += [f"  runs of {name}: {', '.join(map(str, hows))}" for name, hows in plan.behaviours.items()]
    lines += [f"  {action}" for action in plan.actions]
    return "\n".join(lines)


def cluster_shrunk(
    plan: ClusterPlan, fails: Callable[[ClusterPlan], bool], *, tries: int = MOST_TRIES
) -> ClusterPlan:
    """The shortest plan found that still *fails*; *plan* itself is one that does."""
    return shortest(plan, fails, _shorter, tries=tries)


def _shorter(plan: ClusterPlan) -> Iterator[ClusterPlan]:
    """Plans that leave something out: actions, time, tasks, odd behaviours, wrong clocks."""
    actions = plan.actions
    if len(actions) > 2:
        yield replace(plan, actions=actions[: len(actions) // 2])
        yield replace(plan, actions=actions[len(actions) // 2 :])
    for index in range(len(actions)):
        yield replace(plan, actions=actions[:index] + actions[index + 1 :])
    last_us = max((action.at_us for action in actions), default=0)
    if (duration_us := last_us + MINUTE_US) < plan.duration_us:
        yield replace(plan, duration_us=duration_us)
    for name in sorted({item.name for items in plan.lists for item in items}):
        yield replace(plan, lists=tuple(tuple(i for i in items if i.name != name) for items in plan.lists))
    for name, behaviours in plan.behaviours.items():
        if behaviours != (BodyBehaviour(),):
            yield replace(plan, behaviours={**plan.behaviours, name: (BodyBehaviour(),)})
    for index, host in enumerate(plan.hosts):
        if host != (plain := PlannedHost(items=host.items)):
            yield replace(plan, hosts=(*plan.hosts[:index], plain, *plan.hosts[index + 1 :]))
