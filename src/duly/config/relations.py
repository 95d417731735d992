"""What entries say about each other: requirements and order among services, targets of timers.

A service that cannot start, because what it requires is unknown, later, invalid or waiting for it in turn, is
invalid; so is a timer without a target that it could run. `after` only orders, so an unknown id there is for
`footguns` to warn of. Pure, and linear in the size of the file.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from duly.config.checking import Checked, ids_held
from duly.config.errors import EntryFault
from duly.config.schema import Service, Timer
from duly.config.words import did_you_mean, quoted

_LONGEST_SHOWN_CYCLE = 20
Graph = Mapping[str, Sequence[str]]


def related_services(checked: Sequence[Checked[Service]]) -> list[Checked[Service]]:
    """The services again, those that can never start now with a fault."""
    held = ids_held(checked)
    usable = {name: each.entry for name, each in held.items() if each.entry is not None}
    faults: dict[str, EntryFault] = {}
    for service in usable.values():
        if (fault := _requirement_fault(service, held, usable)) is not None:
            faults[service.id] = fault
    for name, reason in _cycles(usable):
        faults.setdefault(name, EntryFault(reason, "requires" if usable[name].requires else "after"))
    _spread(faults, usable, {name for name, each in held.items() if each.entry is None})
    return [_faulted(each, faults.get(each.id or "")) if each.holds_id else each for each in checked]


def _faulted(checked: Checked[Service], fault: EntryFault | None) -> Checked[Service]:
    return checked if fault is None or checked.entry is None else replace(checked, entry=None, fault=fault)


def _requirement_fault(
    service: Service, held: Mapping[str, Checked[Service]], usable: Mapping[str, Service]
) -> EntryFault | None:
    for name in service.requires:
        if name not in held:
            reason = f"requires {quoted(name)}, which is no service{did_you_mean(name, held)}"
            return EntryFault(reason, "requires")
        required = usable.get(name)
        if required is not None and required.stage > service.stage:
            stages = f"in stage {required.stage}, and this one in stage {service.stage}"
            reason = f"requires {quoted(name)}, which starts later: {stages}"
            return EntryFault(reason, "requires")
    return None


def _spread(faults: dict[str, EntryFault], usable: Mapping[str, Service], unusable: set[str]) -> None:
    """Whoever requires an invalid service is invalid too."""
    dependents: dict[str, list[str]] = {}
    for service in usable.values():
        for name in service.requires:
            dependents.setdefault(name, []).append(service.id)
    queue = deque([*unusable, *faults])
    while queue:
        bad = queue.popleft()
        for name in dependents.get(bad, ()):
            if name not in faults:
                faults[name] = EntryFault(f"requires {quoted(bad)}, which is invalid", "requires")
                queue.append(name)


# --- cycles ---


def _cycles(services: Mapping[str, Service]) -> Iterator[tuple[str, str]]:
    """Each service that waits for itself, and how."""
    graph = {
        name: [other for other in dict.fromkeys((*service.requires, *service.after)) if other in services]
        for name, service in services.items()
    }
    for members in _knots(graph):
        for name in members:
            if len(members) > _LONGEST_SHOWN_CYCLE:
                yield name, f"is one of {len(members)} services that wait for each other in a cycle"
            else:
                yield name, f"waits for itself: {' -> '.join(map(quoted, _way_back(name, graph, members)))}"


def _knots(graph: Graph) -> Iterator[set[str]]:
    """The sets of two and more nodes that can all reach each other (Kosaraju's way, without recursion)."""
    reverse: dict[str, list[str]] = {name: [] for name in graph}
    for name, others in graph.items():
        for other in others:
            reverse[other].append(name)
    assigned: set[str] = set()
    for root in reversed(_finished(graph)):
        if root in assigned:
            continue
        members, stack = {root}, [root]
        assigned.add(root)
        while stack:
            for other in reverse[stack.pop()]:
                if other not in assigned:
                    assigned.add(other)
                    members.add(other)
                    stack.append(other)
        if len(members) > 1:
            yield members


def _finished(graph: Graph) -> list[str]:
    """The nodes in the order in which a depth-first walk leaves them."""
    seen: set[str] = set()
    order: list[str] = []
    for root in graph:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(graph[root]))]
        while stack:
            name, others = stack[-1]
            following = next((other for other in others if other not in seen), None)
            if following is None:
                stack.pop()
                order.append(name)
            else:
                seen.add(following)
                stack.append((following, iter(graph[following])))
    return order


def _way_back(start: str, graph: Graph, members: set[str]) -> list[str]:
    """The shortest way from a node to itself."""
    came_from: dict[str, str] = {}
    queue = deque([start])
    while start not in came_from:
        name = queue.popleft()
        for other in graph[name]:
            if other in members and other not in came_from:
                came_from[other] = name
                queue.append(other)
    way = [start]
    while len(way) == 1 or way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]


# --- targets ---


def related_timers(
    timers: Sequence[Checked[Timer]], services: Sequence[Checked[Service]]
) -> list[Checked[Timer]]:
    """The timers again, those without a target that they could run now with a fault."""
    held = ids_held(services)
    return [_targeted(each, held) for each in timers]


def _targeted(checked: Checked[Timer], held: Mapping[str, Checked[Service]]) -> Checked[Timer]:
    timer = checked.entry
    if timer is None:
        return checked
    fault = _target_fault(timer.target, held)
    return checked if fault is None else replace(checked, entry=None, fault=EntryFault(fault, "target"))


def _target_fault(target: str, held: Mapping[str, Checked[Service]]) -> str | None:
    if target not in held:
        return f"target {quoted(target)} is no service{did_you_mean(target, held)}"
    service = held[target].entry
    if service is None:
        return f"target {quoted(target)} is an invalid service"
    if service.type != "oneshot":
        return f"target {quoted(target)} is a simple service; a timer can only run a oneshot"
    return None
