"""Turns: lifecycle calls are served one at a time, in the order in which they were made.

A call is numbered when it is made, which may be before it is first awaited
(`create_task(s.initialize(a))`, then `await s.initialize(b)`: a comes first). A call that is made and
never awaited must not hold up the others, so only calls that have begun stand in the queue, and a call that
begins lets those already handed to the loop begin too before it looks whether it is first.
"""

import asyncio
from bisect import insort
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

from duly.engine.signal import Signal

_numbers = count()


class Turns:
    """The order of calls."""

    def __init__(self) -> None:
        self._begun: list[int] = []
        self._serving = False
        self._changed = Signal()

    def number(self) -> int:
        """A number for a call made just now."""
        return next(_numbers)

    @asynccontextmanager
    async def of(self, number: int, check: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Wait until it is the turn of *number*; the others wait until the block ends.

        *check* is called before each wait and may raise, when waiting would be for ever.
        """
        insort(self._begun, number)
        try:
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
            while self._serving or self._begun[0] != number:
                check()
                await self._changed.wait()
            self._serving = True
        finally:
            self._begun.remove(number)
            self._changed.notify()
        try:
            yield
        finally:
            self._serving = False
            self._changed.notify()
