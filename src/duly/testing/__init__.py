"""The test kit: virtual time, crashes, faulty stores, and the suite that every store passes.

Public and stable; our own tests use it and nothing else. `duly.testing.conformance` needs pytest and is
therefore not imported from here.
"""

from duly.scheduler import Scheduler
from duly.testing.clock import VirtualClock
from duly.testing.faulty import FaultyStore

__all__ = ["FaultyStore", "VirtualClock", "crash"]


async def crash(scheduler: Scheduler) -> None:
    """Drop *scheduler* as a crash of its process would: no cleanup, and nothing written after this point.

    Its runs are cut off, and its store may be opened by a new scheduler, which then shows what recovery does.
    """
    await scheduler._drop()  # noqa: SLF001 (the one friend a scheduler has)
