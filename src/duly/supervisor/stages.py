"""The order in which services start and stop, and which of them cannot start.

Stages come one after the other. Within a stage a service waits for those it names in `after` and `requires`;
services that are not related wait for nothing and start together. Stopping is the same backwards. A relation
to a later stage cannot be waited for and does not count here; nor does one that would close a circle, which
configuration refuses, and which must not hold anything up if it comes this far.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from duly.config.schema import Service
from duly.supervisor.ended import Result
from duly.supervisor.services import Phase, ServiceState


class Place(NamedTuple):
    """A service in an order, and those of its own stage that come before it."""

    service: Service
    waits_for: tuple[str, ...]


class Stage(NamedTuple):
    """One stage of an order."""

    number: int
    places: tuple[Place, ...]


def start_order(services: Sequence[Service]) -> list[Stage]:
    """The stages that have services, each in an order that its relations allow; else as declared."""
    staged = sorted(services, key=lambda service: service.stage)  # stable: as declared within a stage
    return [
        Stage(number, tuple(_sorted(list(members))))
        for number, members in groupby(staged, key=lambda service: service.stage)
    ]


def stop_order(services: Sequence[Service]) -> list[Stage]:
    """The same backwards: a service waits for those that waited for it."""
    backwards = []
    for number, places in reversed(start_order(services)):
        after: dict[str, list[str]] = {place.service.id: [] for place in places}
        for place in reversed(places):
            for earlier in place.waits_for:
                after[earlier].append(place.service.id)
        turned = (Place(place.service, tuple(after[place.service.id])) for place in reversed(places))
        backwards.append(Stage(number, tuple(turned)))
    return backwards


def _sorted(members: list[Service]) -> Iterable[Place]:
    """One stage in topological order, the first declared first wherever there is a choice."""
    ids = {service.id for service in members}
    relations = {service.id: _relations(service, ids) for service in members}
    placed: set[str] = set()
    while members:
        free = (service for service in members if relations[service.id] <= placed)
        chosen = next(free, members[0])
        members.remove(chosen)
        # In order of declaration of the relations, and without those that a circle makes impossible.
        waits_for = (name for name in dict.fromkeys((*chosen.after, *chosen.requires)) if name in placed)
        yield Place(chosen, tuple(waits_for))
        placed.add(chosen.id)


def _relations(service: Service, ids: Collection[str]) -> set[str]:
    return {name for name in (*service.after, *service.requires) if name in ids and name != service.id}


def held_up(order: Sequence[Stage], unsettled: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each service what it waits for just now: what holds up its stage, or else its own relations."""
    found: dict[str, tuple[str, ...]] = {}
    earlier: tuple[str, ...] = ()
    for stage in order:
        for place in stage.places:
            own = tuple(name for name in place.waits_for if name in unsettled)
            found[place.service.id] = earlier or own
        earlier += tuple(place.service.id for place in stage.places if place.service.id in unsettled)
    return found


def unmet_requirement(
    service: Service, services: Mapping[str, Service], states: Mapping[str, ServiceState]
) -> str | None:
    """Why *service* cannot start, in words; None if all it requires is there."""
    for name in service.requires:
        if (lack := _lack(services.get(name), states.get(name))) is not None:
            return f"requires {name}, which {lack}"
    return None


def _lack(required: Service | None, state: ServiceState | None) -> str | None:
    if required is None or state is None:
        return "does not exist"
    if not required.enabled:
        return "is disabled"
    if state.phase is Phase.SKIPPED:
        return "was skipped"
    if required.type == "oneshot":
        return _lack_of_success(state)
    if state.phase is Phase.RUNNING:
        return None
    return f"is not running ({state.reason})" if state.reason else "is not running"


def _lack_of_success(state: ServiceState) -> str | None:
    if state.last_result is Result.SUCCESS:
        return None
    if state.is_active:
        return "has not ended yet"
    if state.last_result is None:
        return "has not run"
    return f"did not succeed ({state.reason})" if state.reason else "did not succeed"
