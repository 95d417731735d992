"""A small daemon for tests to kill: python -m tests.integration.supervised_program STORE [full].

It supervises one service that ignores TERM and has a child, and says the numbers of both processes. With
`full` nothing more can be written to the disk when that service starts.
"""

import asyncio
import os
import resource
import sys
from pathlib import Path

from duly.clock import HostClock
from duly.config import Service, Settings
from duly.events import Announcer
from duly.processes.process import HostProcesses
from duly.store import SQLiteStore
from duly.store.history import History
from duly.supervisor.supervisor import Supervisor

STUBBORN = "trap '' TERM; sleep 1000 & echo $$ $!; wait; wait"


async def supervised(store: SQLiteStore, settings: Settings) -> tuple[Supervisor, History]:
    """A supervisor on a store, with what was before taken over."""
    contents = await store.open(f"daemon of {store.name}")  # nobody else's, who may run the same test now
    clock = HostClock()
    announcer = Announcer([], clock.now)
    history = History(store, clock, announcer)
    await history.open()
    supervisor = Supervisor(
        HostProcesses(), history, clock, announcer, scheduler_id=contents.scheduler_id, settings=settings
    )
    await supervisor.adopt()
    return supervisor, history


async def main(path: str, *, is_disk_full: bool) -> None:
    """Supervise until killed."""
    supervisor, history = await supervised(SQLiteStore(Path(path)), Settings())
    if is_disk_full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    await supervisor.start([Service("stubborn", ("sh", "-c", STUBBORN))], {"stubborn"})
    if not is_disk_full:
        await history.settled()
    tail, said = supervisor.output_of(1), asyncio.Event()
    assert tail is not None
    tail.watch(lambda _: said.set())
    while b"\n" not in tail.text().encode():
        await said.wait()
        said.clear()
    os.write(1, tail.text().encode())
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], is_disk_full=sys.argv[2:] == ["full"]))
