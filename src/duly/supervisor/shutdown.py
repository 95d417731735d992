"""Shutdown: services taken down in reverse order, and all of them within one deadline.

Unrelated services get TERM together; a service that others wait for gets it when those are gone. Shortly
before the deadline whatever is left is killed, in no order, and shutdown returns when the deadline has come
even if something refuses to die: whoever started us will not wait longer.
"""

import asyncio
from collections.abc import Sequence

from duly.events import described, tell_operator
from duly.supervisor.execution import Cut
from duly.supervisor.keeper import Keeper
from duly.supervisor.pauses import Pauses
from duly.supervisor.stages import Place, stop_order

_RESERVE = 0.1
_LONGEST_RESERVE_S = 1.0
"""The part of the deadline that is left for those who were killed to be gone."""


async def take_down(keepers: Sequence[Keeper], why: Cut) -> None:
    """Take some services down in order; one that cannot be killed holds the others up only for a while."""
    by_id = {keeper.service.id: keeper for keeper in keepers}
    gone = {name: asyncio.Event() for name in by_id}

    async def take_one_down(place: Place) -> None:
        name = place.service.id
        try:
            for other in place.waits_for:
                await gone[other].wait()
            await by_id[name].down(why)
        finally:
            gone[name].set()

    for stage in stop_order([keeper.service for keeper in keepers]):
        await asyncio.gather(*(take_one_down(place) for place in stage.places))


class Shutdown:
    """One taking down of everything."""

    def __init__(self, keepers: Sequence[Keeper], departed: Sequence[Keeper], pauses: Pauses) -> None:
        self._keepers = keepers
        self._departed = departed
        """Those whose services are no longer defined: they were killed, and their processes did not die."""
        self._pauses = pauses

    async def perform(self, timeout_s: float) -> list[str]:
        """Take everything down; the ids of services that are still alive at the deadline."""
        reserve_s = min(timeout_s * _RESERVE, _LONGEST_RESERVE_S)
        going = asyncio.ensure_future(self._go_down())
        try:
            if await self._pauses.within(timeout_s - reserve_s, going):
                going.result()
        except Exception as error:
            # Whatever it was, the rest of the shutdown matters more.
            tell_operator(f"duly: shutdown out of order: {described(error)}")
        finally:
            going.cancel()
        if self._alive():
            self._kill()
            dying = asyncio.ensure_future(self._ended())
            await self._pauses.within(reserve_s, dying)
            dying.cancel()
        return [keeper.service.id for keeper in self._alive()]

    async def _go_down(self) -> None:
        await take_down(self._keepers, Cut.SHUTDOWN)
        await self._ended()

    def _alive(self) -> list[Keeper]:
        return [each for each in (*self._keepers, *self._departed) if each.is_active or each.has_strays]

    def _kill(self) -> None:
        for keeper in self._alive():
            keeper.ask_down(Cut.SHUTDOWN)
            keeper.kill()

    async def _ended(self) -> None:
        await asyncio.gather(*(keeper.gone() for keeper in self._alive()))
