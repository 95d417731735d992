"""Start-up: services brought up stage by stage, each when those it waits for have settled.

A simple service has settled when its process was made, or could not be; a oneshot when it has ended. A stage
is complete when all of it has settled, so a oneshot that hangs holds up later stages and nothing else. What
goes wrong with one service is that service's affair.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from duly.config.schema import Service
from duly.events import Announcer, described
from duly.instant import milliseconds
from duly.supervisor import services
from duly.supervisor.ended import Reason
from duly.supervisor.keeper import Keeper
from duly.supervisor.pauses import Pauses
from duly.supervisor.services import Phase
from duly.supervisor.stages import Place, Stage, held_up, start_order, unmet_requirement


class Startup:
    """One bringing up of services."""

    def __init__(
        self,
        chosen: Sequence[Service],
        keepers: Mapping[str, Keeper],
        pauses: Pauses,
        announcer: Announcer,
        *,
        returning: Collection[str] = (),
    ) -> None:
        self._order = start_order(chosen)
        self._keepers = keepers
        self._pauses = pauses
        self._announce = announcer.announce
        self._returning = returning
        """Those that ran until just now, and come back changed."""
        self._settled = {service.id: asyncio.Event() for service in chosen}
        for service in chosen:
            keepers[service.id].wait()

    def held_up(self) -> dict[str, tuple[str, ...]]:
        """For each service those that it waits for just now."""
        unsettled = {name for name, settled in self._settled.items() if not settled.is_set()}
        return held_up(self._order, unsettled)

    async def perform(self) -> None:
        """Bring all of them up."""
        for stage in self._order:
            await self._perform_stage(stage)

    async def _perform_stage(self, stage: Stage) -> None:
        begun_us = self._pauses.now_us()
        self._announce("StageStarted", stage=stage.number, services=len(stage.places))
        await asyncio.gather(*(self._bring_up(place) for place in stage.places))
        duration = milliseconds(max(self._pauses.now_us() - begun_us, 0))
        self._announce("StageCompleted", stage=stage.number, duration=duration)

    async def _bring_up(self, place: Place) -> None:
        service = place.service
        try:
            for name in place.waits_for:
                await self._settled[name].wait()
            await self._start(self._keepers[service.id])
        except Exception as error:
            keeper = self._keepers[service.id]
            if not keeper.is_active:
                said = f"could not be started: {described(error)}"
                keeper.state = services.failed(keeper.state, self._pauses.now_us(), said)
            self._announce("ServiceStartSkipped", service=service.id, reason=described(error))
        finally:
            self._settled[service.id].set()

    async def _start(self, keeper: Keeper) -> None:
        # Somebody may have started or stopped it by hand before its turn came; that holds.
        if keeper.state.phase is Phase.WAITING:
            if (lack := self._lack(keeper.service)) is not None:
                keeper.skip(lack)
                return
            is_returning = keeper.service.id in self._returning
            keeper.begin((Reason.RESTART if is_returning else Reason.BOOT).value)
        if (execution := keeper.execution) is not None:
            is_oneshot = keeper.service.type == "oneshot"
            await asyncio.wait([execution.ended if is_oneshot else execution.settled])

    def _lack(self, service: Service) -> str | None:
        required = [self._keepers[name] for name in service.requires if name in self._keepers]
        defined = {keeper.service.id: keeper.service for keeper in required}
        states = {keeper.service.id: keeper.state for keeper in required}
        return unmet_requirement(service, defined, states)
