"""Renewals beside everything else, and since when a member has been in touch with its board.

A lease must not depend on how fast the board does other things: a move of shards or a long write takes
several answers, and each may be slow. So whoever has heard of one renewal orders the next, and if nobody has
asked by then it is asked for beside whatever is under way.
"""

import asyncio
from collections.abc import Callable, Coroutine

from duly.instant import SECOND_US
from duly.marks import mark


class Renewal:
    """The next renewal, which comes even if its member is busy with something else."""

    def __init__(self, renew: Callable[[], Coroutine[None, None, None]]) -> None:
        self._renew = renew
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.asked_us = 0
        """When it was last asked for."""
        self.asking = asyncio.Lock()
        """Held while the board is asked: one at a time, so that no question waits behind another."""

    def order(self, pause_us: int) -> None:
        """Renew after *pause_us*, in place of what was ordered before."""
        self._cancel()
        self._timer = asyncio.get_running_loop().call_later(max(pause_us, 0) / SECOND_US, self._begin)

    async def stop(self) -> None:
        """Forget what was ordered, and end what is under way."""
        self._cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        if not self.asking.locked():  # otherwise it is being asked for
            mark("renewed beside a move")
            self._task = asyncio.get_running_loop().create_task(self._renew(), name="duly renewal")


class Touch:
    """Since when a member has been in touch with its board, with no break and with the same server."""

    def __init__(self) -> None:
        self._server = ""
        self.since_us: int | None = None

    def heard(self, server: str, asked_us: int) -> bool:
        """Note an answer of *server* to what was asked at *asked_us*; whether that is another than before."""
        is_other = bool(self._server) and server != self._server
        if is_other:
            mark("another server")
            self.since_us = None
        self._server = server
        if self.since_us is None:
            self.since_us = asked_us
        return is_other
