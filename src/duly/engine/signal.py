"""A signal: wakes whoever waits for something to change.

Unlike asyncio's events it belongs to no event loop between uses, so a scheduler that was stopped on one loop
can be initialized on another. Waiting is for the next notice; the waiter looks for itself what has changed.
"""

import asyncio


class Signal:
    """Wakes its waiters."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Wake everybody who waits."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Return at the next notice."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter
