"""Makes a plan that fails as short as it can be while it still fails, and tells it as a story.

A plan is a list of things that will happen, so shrinking is leaving out: actions, tasks, odd behaviours,
knobs, time. Greedy and bounded; what counts as failing is the caller's to say.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from duly.engine.poller import WAVE
from duly.instant import MINUTE_US, SECOND_US
from tests.simulation.disk import Cut
from tests.simulation.plan import Action, Behaviour, Crash, Initialize, Items, Plan

MOST_TRIES = 400


P = TypeVar("P")


def shrunk(plan: Plan, fails: Callable[[Plan], bool], *, tries: int = MOST_TRIES) -> Plan:
    """The shortest plan found that still *fails*; *plan* itself is one that does."""
    return shortest(plan, fails, _shorter, tries=tries)


def shortest(
    plan: P, fails: Callable[[P], bool], shorter_than: Callable[[P], Iterable[P]], *, tries: int = MOST_TRIES
) -> P:
    """The same for any kind of plan, told how to make one a little shorter."""
    while tries > 0:
        for shorter in shorter_than(plan):
            tries -= 1
            if fails(shorter):
                plan = shorter
                break
            if tries <= 0:
                return plan
        else:
            return plan
    return plan


def _shorter(plan: Plan) -> Iterator[Plan]:
    """Plans that are a little shorter than *plan*, the boldest first."""
    last_us = max((action.at_us for action in plan.actions), default=0)
    for duration_us in (plan.duration_us // 4, plan.duration_us // 2, last_us + 5 * MINUTE_US):
        if duration_us < plan.duration_us:
            kept = tuple(action for action in plan.actions if action.at_us <= duration_us)
            yield replace(plan, duration_us=duration_us, actions=kept)
    if len(plan.actions) > 2:
        yield replace(plan, actions=plan.actions[: len(plan.actions) // 2])
        yield replace(plan, actions=plan.actions[len(plan.actions) // 2 :])
    for index in range(len(plan.actions)):
        yield replace(plan, actions=plan.actions[:index] + plan.actions[index + 1 :])
    for name in sorted(_names(plan)):
        yield _without(plan, name)
    for name, behaviours in plan.behaviours.items():
        if behaviours != (Behaviour(),):
            yield replace(plan, behaviours={**plan.behaviours, name: (Behaviour(),)})
        for index in range(len(behaviours) - 1):
            fewer = behaviours[:index] + behaviours[index + 1 :]
            yield replace(plan, behaviours={**plan.behaviours, name: fewer})
    if plan.run_timeout_us is not None:
        yield replace(plan, run_timeout_us=None)
    if plan.wave != WAVE:
        yield replace(plan, wave=WAVE)
    for index, action in enumerate(plan.actions):
        for simpler in _simpler(action):
            yield replace(plan, actions=(*plan.actions[:index], simpler, *plan.actions[index + 1 :]))


def _names(plan: Plan) -> set[str]:
    lists = [plan.items, *(action.items for action in plan.actions if isinstance(action, Initialize | Crash))]
    return {item.name for items in lists if items is not None for item in items}


def _without(plan: Plan, name: str) -> Plan:
    def kept(items: Items | None) -> Items | None:
        return None if items is None else tuple(item for item in items if item.name != name)

    def shorter(action: Action) -> Action:
        return replace(action, items=kept(action.items)) if isinstance(action, Initialize | Crash) else action

    behaviours = {each: how for each, how in plan.behaviours.items() if each != name}
    items, actions = kept(plan.items) or (), tuple(shorter(action) for action in plan.actions)
    return replace(plan, items=items, actions=actions, behaviours=behaviours)


def _simpler(action: Action) -> Iterator[Action]:
    if not isinstance(action, Crash):
        return
    if action.cut is not Cut.KILL:
        yield replace(action, cut=Cut.KILL)
    if action.damaged:
        yield replace(action, damaged="")
    if action.items is not None:
        yield replace(action, items=None)
    if action.downtime_us > SECOND_US:
        yield replace(action, downtime_us=SECOND_US)


def story(plan: Plan) -> str:
    """The plan, told line by line."""
    lines = [f"in {plan.zone}, on {'the simulated disk' if plan.is_durable else 'a store in memory'}:"]
    lines += [
        f"  task {item.name}: {item.cron!r}, retry after {item.delay_us / SECOND_US:g} s"
        for item in plan.items
    ]
    for name, behaviours in plan.behaviours.items():
        seen = ", ".join(f"{each.how} after {each.lasts_us / SECOND_US:g} s" for each in behaviours)
        lines.append(f"  runs of {name}: {seen}")
    if plan.run_timeout_us is not None:
        lines.append(f"  run_timeout {plan.run_timeout_us / SECOND_US:g} s")
    if plan.wave != WAVE:
        lines.append(f"  starts in waves of {plan.wave}")
    lines += [f"  at {action.at_us / SECOND_US:g} s: {_told(action)}" for action in plan.actions]
    lines.append(f"  healed at {plan.duration_us / SECOND_US:g} s")
    return "\n".join(lines)


def _told(action: Action) -> str:
    name, _, rest = repr(action).partition("(")
    rest = rest.removesuffix(")").partition(", ")[2]
    return f"{name.lower()} {rest}".strip()
