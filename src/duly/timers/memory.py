"""A shelf that forgets when the process ends: for simulations and tests.

It keeps records, not timers, so what comes back has gone through the same door as from a file. Give the same
one to the timers of a second session to see what a restart would see.
"""

from collections.abc import Sequence
from typing import Any

from duly.store import Contents
from duly.timers.record import record_of
from duly.timers.timer import TimerState


class MemoryShelf:
    """Records in a dict."""

    def __init__(self) -> None:
        self.records: dict[int, Sequence[Any]] = {}
        """By timer id. Tests may look, and may damage."""

    async def open(self, new_id: str) -> Contents:
        """Read."""
        return Contents(new_id, [self.records[key] for key in sorted(self.records)])

    async def replace(self, *, put: Sequence[TimerState], removed: Sequence[int]) -> None:
        """Write timers whole, and forget others."""
        for timer_id in removed:
            self.records.pop(timer_id, None)
        self.records |= {timer.id: record_of(timer) for timer in put}

    async def save(self, timers: Sequence[TimerState]) -> None:
        """Write what running changed."""
        self.records |= {timer.id: record_of(timer) for timer in timers}
