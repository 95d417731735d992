"""The test kit: virtual time, crashes, faulty stores, and the suite that every store passes.

Public and stable; our own tests use it and nothing else.

    clock.VirtualClock    time that a test moves by hand
    crash                 the end of a scheduler's process, without ending the process
    faulty.FaultyStore    a store that fails, or loses its answers, on demand
    conformance           the suite that every store passes; it needs pytest, so it is not imported from here
    plugin                the pytest plug-in: the fixture `virtual_clock`

The invariant: time passes only when nothing can go on without it. At each instant that somebody sleeps for,
the clock waits until no task is ready and no thread is at work for the loop (`threads.outstanding`). So
nothing depends on how fast the machine is.

What it does not do: a thread of a callback that blocks for more than two seconds is left behind, and time
goes on. A store is waited for without limit: its answer decides what happens next. A crash writes nothing
after the call, but cannot end a thread; what one does later, the dropped scheduler ignores.
"""

from typing import TYPE_CHECKING

from duly.lazy import lazy_names

if TYPE_CHECKING:
    from duly.app import App
    from duly.scheduler import Scheduler
    from duly.testing.clock import VirtualClock
    from duly.testing.faulty import FaultyStore

__all__ = ["FaultyStore", "VirtualClock", "crash"]

# Imported when first asked for: pytest imports the plug-in of this package in every session.
__getattr__ = lazy_names(__name__, {"FaultyStore": "faulty", "VirtualClock": "clock"})


async def crash(scheduler: "Scheduler | App") -> None:
    """Drop *scheduler* as a crash of its process would: no cleanup, and nothing written after this point.

    Its runs are cut off, and its store may be opened by a new scheduler, which then shows what recovery does.
    """
    from duly.app import App  # noqa: PLC0415 (as above)

    if isinstance(scheduler, App):
        scheduler = scheduler._scheduler  # noqa: SLF001
    await scheduler._drop()  # noqa: SLF001 (the one friend a scheduler has)
