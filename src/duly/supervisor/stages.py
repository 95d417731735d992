"""Stages: the order in which services start and stop, start-up, and shutdown.

Stages come one after the other. Within a stage a service waits for those it names in `after` and `requires`;
services that are not related start together. Stopping is the same backwards. A relation to a later stage
cannot be waited for and does not count here. Nor does one that would close a circle: configuration refuses
it, and it must not hold anything up if it comes this far.

Start-up: a simple service has settled when its process was made, or could not be; a oneshot when it has
ended. A stage is complete when all of it has settled, so a oneshot that hangs holds up later stages and
nothing else.

Shutdown: unrelated services get TERM together; a service that others wait for gets it when those are gone.
Shortly before the deadline all that is left is killed, in no order. Shutdown returns at the deadline even if
something refuses to die: the service manager above us will not wait longer.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from duly.config.schema import Service
from duly.core.causes import Reason
from duly.events import Announcer, described, warn_operator
from duly.instant import milliseconds
from duly.processes.pauses import Pauses
from duly.store.history import Result
from duly.supervisor import services
from duly.supervisor.controller import ServiceController
from duly.supervisor.execution import CutReason
from duly.supervisor.services import Phase, ServiceState


class OrderedService(NamedTuple):
    """A service in an order, and those of its own stage that come before it."""

    service: Service
    waits_for: tuple[str, ...]


class Stage(NamedTuple):
    """One stage of an order."""

    number: int
    places: tuple[OrderedService, ...]


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
        turned = (OrderedService(place.service, tuple(after[place.service.id])) for place in reversed(places))
        backwards.append(Stage(number, tuple(turned)))
    return backwards


def _sorted(members: list[Service]) -> Iterable[OrderedService]:
    """One stage in topological order, the first declared first wherever there is a choice."""
    ids = {service.id for service in members}
    relations = {
        service.id: (ids & {*service.after, *service.requires}) - {service.id} for service in members
    }
    placed: set[str] = set()
    while members:
        free = (service for service in members if relations[service.id] <= placed)
        chosen = next(free, members[0])
        members.remove(chosen)
        # In order of declaration of the relations, and without those that a circle makes impossible.
        waits_for = (name for name in dict.fromkeys((*chosen.after, *chosen.requires)) if name in placed)
        yield OrderedService(chosen, tuple(waits_for))
        placed.add(chosen.id)


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


# --- start-up ---


class Startup:
    """One start-up of some services."""

    def __init__(
        self,
        chosen: Sequence[Service],
        controllers: Mapping[str, ServiceController],
        pauses: Pauses,
        announcer: Announcer,
        *,
        returning: Collection[str] = (),
    ) -> None:
        self._order = start_order(chosen)
        self._controllers = controllers
        self._pauses = pauses
        self._announce = announcer.announce
        self._returning = returning
        """Those that ran until just now, and come back changed."""
        self._settled = {service.id: asyncio.Event() for service in chosen}
        for service in chosen:
            controllers[service.id].wait()

    def held_up(self) -> dict[str, tuple[str, ...]]:
        """For each service those that it waits for just now."""
        unsettled = {name for name, settled in self._settled.items() if not settled.is_set()}
        return held_up(self._order, unsettled)

    async def perform(self) -> None:
        for stage in self._order:
            await self._perform_stage(stage)

    async def _perform_stage(self, stage: Stage) -> None:
        begun_us = self._pauses.now_us()
        self._announce("StageStarted", stage=stage.number, services=len(stage.places))
        await asyncio.gather(*(self._bring_up(place) for place in stage.places))
        duration = milliseconds(max(self._pauses.now_us() - begun_us, 0))
        self._announce("StageCompleted", stage=stage.number, duration=duration)

    async def _bring_up(self, place: OrderedService) -> None:
        service = place.service
        try:
            for name in place.waits_for:
                await self._settled[name].wait()
            await self._start(self._controllers[service.id])
        except Exception as error:
            controller = self._controllers[service.id]
            if not controller.is_active:
                said = f"could not be started: {described(error)}"
                controller.state = services.in_phase(
                    controller.state, Phase.FAILED, self._pauses.now_us(), reason=said
                )
            self._announce("ServiceStartSkipped", service=service.id, reason=described(error))
        finally:
            # Whatever came of it: those that wait for it must not wait for ever.
            self._settled[service.id].set()

    async def _start(self, controller: ServiceController) -> None:
        while (holder := controller.lock_holder) is not None:
            await asyncio.wait([holder.ended])
        # Somebody may have started or stopped it by hand before its turn came; that holds.
        if controller.state.phase is Phase.WAITING:
            if (lack := self._lack(controller.service)) is not None:
                controller.skip(lack)
                return
            is_returning = controller.service.id in self._returning
            controller.begin((Reason.RESTART if is_returning else Reason.BOOT).value)
        if (execution := controller.execution) is not None:
            is_oneshot = controller.service.type == "oneshot"
            await asyncio.wait([execution.ended if is_oneshot else execution.settled])

    def _lack(self, service: Service) -> str | None:
        required = [self._controllers[name] for name in service.requires if name in self._controllers]
        defined = {controller.service.id: controller.service for controller in required}
        states = {controller.service.id: controller.state for controller in required}
        return unmet_requirement(service, defined, states)


# --- shutdown ---

_RESERVE = 0.1
_LONGEST_RESERVE_S = 1.0
"""The part of the deadline that is left for those who were killed to be gone."""


async def take_down(controllers: Sequence[ServiceController], why: CutReason) -> None:
    """Take some services down in order; one that cannot be killed holds the others up only for a while."""
    by_id = {controller.service.id: controller for controller in controllers}
    gone = {name: asyncio.Event() for name in by_id}

    async def take_one_down(place: OrderedService) -> None:
        name = place.service.id
        try:
            for other in place.waits_for:
                await gone[other].wait()
            await by_id[name].down(why)
        finally:
            gone[name].set()

    for stage in stop_order([controller.service for controller in controllers]):
        await asyncio.gather(*(take_one_down(place) for place in stage.places))


async def shut_down(
    controllers: Sequence[ServiceController],
    removed: Sequence[ServiceController],
    pauses: Pauses,
    timeout_s: float,
) -> list[str]:
    """Take everything down; the ids of services that are still alive at the deadline.

    *removed* are those of services that are no longer defined: they were killed, and did not die.
    """

    def alive() -> list[ServiceController]:
        return [each for each in (*controllers, *removed) if each.is_active or each.has_orphans]

    async def until_gone() -> None:
        await asyncio.gather(*(controller.wait_gone() for controller in alive()))

    async def go_down() -> None:
        await take_down(controllers, CutReason.SHUTDOWN)
        await until_gone()

    reserve_s = min(timeout_s * _RESERVE, _LONGEST_RESERVE_S)
    going = asyncio.ensure_future(go_down())
    try:
        if await pauses.within(timeout_s - reserve_s, going):
            going.result()
    except Exception as error:
        # Whatever it was, the rest of the shutdown matters more.
        warn_operator(f"duly: shutdown out of order: {described(error)}")
    finally:
        # The order ends here. What is left is killed, all at once.
        going.cancel()
    if alive():
        for controller in alive():
            controller.ask_down(CutReason.SHUTDOWN)
            controller.kill()
        dying = asyncio.ensure_future(until_gone())
        await pauses.within(reserve_s, dying)
        dying.cancel()
    return [controller.service.id for controller in alive()]
