"""The shelf: where the timers of one `Timers` are kept, and all that it knows of a store."""

from typing import Protocol

from duly.store import Contents
from duly.store.protocol import Shelf
from duly.timers.timer import TimerState


class TimerShelf(Shelf[TimerState], Protocol):
    """Where timers are kept."""

    async def open(self, new_id: str, /) -> Contents:
        """Read all records."""
        ...
