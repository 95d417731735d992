"""The hand that holds a leash: it puts it on, puts it on again when its guardian is lost, and takes it off.

The leash ends what timers have started here should this process be unable to; without one nothing starts.
"""

import asyncio
from datetime import timedelta

from duly.cluster.clock import BoardClock
from duly.supervisor.children import Brood
from duly.supervisor.leash import Leash, LeashError

_FIRST_PAUSE_S = 1
_LONGEST_PAUSE_S = 16


class Hand:
    """Holds the leash of one member of a board."""

    def __init__(self, brood: Brood, clock: BoardClock) -> None:
        self.leash = Leash(brood, on_lost=self._on_lost, steady=clock.steady)
        self.fault: LeashError | None = None
        """Why the leash is not on, though it should be."""
        self._clock = clock
        self._restarting: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Put the leash on; if that cannot be, it is tried again, and nothing starts until it is on."""
        try:
            await self.leash.start()
        except LeashError as error:
            self.fault = error
            self._on_lost()

    async def end(self) -> None:
        """Take the leash off: what runs may go on."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        self.fault = None
        await self.leash.close()

    def _on_lost(self) -> None:
        self._restarting = asyncio.get_running_loop().create_task(self._restart(), name="duly leash")

    async def _restart(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self.leash.start()
            except LeashError as error:
                self.fault = error
            else:
                self.fault = None
                return
            await self._clock.sleep_until(self._clock.now() + timedelta(seconds=pause_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
