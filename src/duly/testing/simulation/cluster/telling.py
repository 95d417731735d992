"""Tells the plan of a cluster as a story, and makes one that fails as short as it can be.

Shrinking is leaving out, as for a single program: actions, tasks, odd behaviours, wrong clocks, time.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from duly.instant import MINUTE_US, SECOND_US
from duly.testing.simulation.cluster.plan import Action, ClusterPlan, Host
from duly.testing.simulation.plan import Behaviour
from duly.testing.simulation.shrinking import MOST_TRIES, shortest


def cluster_story(plan: ClusterPlan) -> str:
    """The plan, told line by line."""
    lines = [f"{len(plan.hosts)} hosts, a lease of {_seconds(plan.ttl_us)}, {plan.shards} shards:"]
    for number, host in enumerate(plan.hosts):
        lines.append(
            f"  host {number}: begins at {_seconds(host.boots_us)} with list {host.items}, wall clock off by "
            f"{_seconds(host.offset_us)}, steady clock by {host.drift_ppm} ppm"
        )
    for number, items in enumerate(plan.lists):
        lines.append(f"  list {number}:")
        lines += [f"    {item.name}: {item.cron!r}, retry after {_seconds(item.delay_us)}" for item in items]
    for name, behaviours in plan.behaviours.items():
        told = ", ".join(f"{each.how} after {_seconds(each.lasts_us)}" for each in behaviours)
        lines.append(f"  runs of {name}: {told}")
    if plan.run_timeout_us is not None:
        lines.append(f"  run_timeout {_seconds(plan.run_timeout_us)}")
    lines += [f"  at {_seconds(action.at_us)}: {_told(action)}" for action in plan.actions]
    lines.append(f"  healed at {_seconds(plan.duration_us)}")
    return "\n".join(lines)


def _seconds(length_us: int) -> str:
    return f"{length_us / SECOND_US:g} s"


def _told(action: Action) -> str:
    facts = [
        f"{each.name.removesuffix('_us')} {_fact(each.name, getattr(action, each.name))}"
        for each in fields(action)
        if each.name != "at_us" and getattr(action, each.name) is not None
    ]
    return f"{type(action).__name__.lower()} {', '.join(facts)}"


def _fact(name: str, value: object) -> str:
    return _seconds(value) if name.endswith("_us") and isinstance(value, int) else str(value)


def cluster_shrunk(
    plan: ClusterPlan, fails: Callable[[ClusterPlan], bool], *, tries: int = MOST_TRIES
) -> ClusterPlan:
    """The shortest plan found that still *fails*; *plan* itself is one that does."""
    return shortest(plan, fails, _shorter, tries=tries)


def _shorter(plan: ClusterPlan) -> Iterator[ClusterPlan]:
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
        lists = tuple(tuple(item for item in items if item.name != name) for items in plan.lists)
        yield replace(plan, lists=lists)
    for name, behaviours in plan.behaviours.items():
        if behaviours != (Behaviour(),):
            yield replace(plan, behaviours={**plan.behaviours, name: (Behaviour(),)})
    for index, host in enumerate(plan.hosts):
        if host != (plain := Host(items=host.items)):
            yield replace(plan, hosts=(*plan.hosts[:index], plain, *plan.hosts[index + 1 :]))
    if plan.run_timeout_us is not None:
        yield replace(plan, run_timeout_us=None)
