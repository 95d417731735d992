"""The tasks of the demo: six, each there to show one thing.

Nothing here is random. The flaky task fails by a pattern, so two people who watch the demo see the same play.
Only `pace` changes how long a part takes; names, crons and delays stay, or the store takes
them for new ones.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from itertools import cycle
from typing import NamedTuple

import duly
from duly.clock import Clock

EVERY_MINUTE = "* * * * *"
EVERY_FIVE = "0,5,10,15,20,25,30,35,40,45,50,55 * * * *"
RETRY_DELAY = timedelta(seconds=5)
FLAKY_FAILS = (True, True, False)
"""Two failures, then a success, over and over."""


class DemoTask(NamedTuple):
    """One task of the demo: what is registered, and how to speak of it."""

    name: str
    cron: str
    schedule: str
    """The cron in words."""
    about: str
    callback: Callable[[], Awaitable[object]]

    @property
    def registration(self) -> tuple[str, str, Callable[[], Awaitable[object]], timedelta]:
        """What `initialize` is given."""
        return self.name, self.cron, self.callback, RETRY_DELAY


def new_demo_tasks(
    clock: Clock, *, pace: float = 1.0, block: Callable[[float], None] = time.sleep
) -> list[DemoTask]:
    """The tasks, working on *clock*; *pace* stretches how long they work, *block* holds up a thread."""

    def work(length_s: float) -> Callable[[], Awaitable[None]]:
        async def callback() -> None:
            await clock.sleep_until(clock.now() + timedelta(seconds=length_s * pace))

        return callback

    flaky = _Flaky(work(1), cycle(FLAKY_FAILS))
    blocking = duly.in_thread(lambda: block(6 * pace))
    minute, five = "each minute", "every 5 min"
    return [
        DemoTask("steady", EVERY_MINUTE, minute, "works 2s, always well", work(2)),
        DemoTask("flaky", EVERY_MINUTE, minute, "fails two times in three, retried after 5s", flaky),
        DemoTask("slow", EVERY_MINUTE, minute, "works 75s, so its next due has to stand", work(75)),
        DemoTask("report", EVERY_FIVE, five, "waits for its minute", work(4)),
        DemoTask("blocking", EVERY_MINUTE, minute, "blocks for 6s, in a thread of its own", blocking),
        DemoTask("important", EVERY_MINUTE, minute, "works 40s; cut it off, it starts again", work(40)),
    ]


class _Flaky:
    """A callback that fails whenever the pattern says so."""

    def __init__(self, work: Callable[[], Awaitable[None]], fails: Iterator[bool]) -> None:
        self._work = work
        self._fails = fails

    async def __call__(self) -> None:
        await self._work()
        if next(self._fails):
            raise TimeoutError("no answer")
