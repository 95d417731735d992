"""Who waits for a run that was asked for by hand: each hears its number as it begins, or why not."""

import asyncio
from collections import defaultdict

from duly.timers.errors import TimerError, TimerRefusal


class Waiters:
    """Those who wait, by timer."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[asyncio.Future[int]]] = defaultdict(list)

    def add(self, name: str) -> "asyncio.Future[int]":
        """One more, for a run of the timer *name*."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[name].append(asked)
        return asked

    def remove(self, name: str, asked: "asyncio.Future[int]") -> bool:
        """One that waits no more; whether that was the last."""
        waiting = self._waiting.get(name, [])
        if asked in waiting:
            waiting.remove(asked)
        return not waiting

    def began(self, name: str, run: int) -> None:
        """Tell that the run has begun."""
        for asked in self._waiting.pop(name, ()):
            if not asked.done():
                asked.set_result(run)

    def refuse(self, name: str, error: TimerError) -> None:
        """Tell that it does not."""
        for asked in self._waiting.pop(name, ()):
            if not asked.done():
                asked.set_exception(error)

    def refuse_all(self, kind: TimerRefusal) -> None:
        """Tell everybody."""
        for name in list(self._waiting):
            self.refuse(name, TimerError(kind, timer=name))
