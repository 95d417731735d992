"""The loop watch: which callback blocks the event loop."""

import asyncio
from datetime import UTC, datetime

from duly.engine.loop_watch import LoopWatch
from duly.events import Announcer, Event
from duly.instant import SECOND_US


class Watched:
    """A loop that a test watches; it says how much time has passed."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.at_us = 0
        announcer = Announcer([self.events.append], lambda: datetime(2026, 1, 1, tzinfo=UTC))
        self.watch = LoopWatch(announcer, lambda: self.at_us)

    def pass_by(self, seconds: float, looks: int = 4) -> list[bool]:
        """Let time pass within one step of a callback, with looks from beside."""
        found = []
        for _ in range(looks):
            self.at_us += int(seconds / looks * SECOND_US)
            found.append(self.watch.look())
        return found


async def turn() -> None:
    """Let the loop turn."""
    for _ in range(3):
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)


async def test_who_blocks_the_loop_is_told() -> None:
    """A callback that blocks the loop for more than a second is told of afterwards, by its name."""
    watched = Watched()

    async def block() -> None:
        assert watched.pass_by(2.0)[-1] is True

    await asyncio.create_task(block(), name="report")
    await turn()
    (event,) = watched.events
    assert (event.name, event.fields) == ("LoopBlocked", {"taskName": "report", "seconds": 1.5})


async def test_many_short_callbacks_block_nothing() -> None:
    """Callbacks in a row that are short, or turns of the loop in between, are not told of."""
    watched = Watched()

    async def short() -> None:
        for _ in range(5):
            assert not any(watched.pass_by(0.9))
            await turn()

    await asyncio.gather(short(), short())
    assert watched.events == []
