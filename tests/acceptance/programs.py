"""Small programs that the acceptance tests run as real processes, and kill.

python -m tests.acceptance.programs NAME STORE ...: each writes one line per thing that happens, at once.
"""

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime, timedelta

from duly import Event, Scheduler, StoreInUseError
from duly.scheduler import TaskTuple
from duly.testing import VirtualClock
from duly.verify import Recorder

MINUTE = timedelta(minutes=1)


def say(line: str) -> None:
    """Write a line past every buffer, so that what was said before a kill was heard."""
    os.write(1, f"{line}\n".encode())


async def long_run(store: str) -> None:
    """One task that starts at once and never ends."""

    async def endless() -> None:
        say("called")
        await asyncio.Event().wait()

    def tell(event: Event) -> None:
        if event.name == "TaskRunStarted":
            say(f"started {event.fields['cause']}")

    scheduler = Scheduler(store, listeners=[tell])
    try:
        await scheduler.initialize([("endless", "* * * * *", endless, MINUTE)])
    except StoreInUseError as error:
        say(f"refused {error.message}")
        return
    await asyncio.Event().wait()


async def minutes(store: str, start: str) -> None:
    """Five tasks that run every virtual minute, from *start* on, without end."""
    clock = VirtualClock(datetime.fromtimestamp(int(start) * 60, UTC))

    def task(name: str) -> TaskTuple:
        async def callback() -> None:
            minute = int(clock.now().timestamp()) // 60
            say(f"S {name} {minute}")
            await asyncio.sleep(0)  # noqa: TID251 (somewhere to be killed)
            say(f"E {name} {minute}")

        return name, "* * * * *", callback, MINUTE

    recorder = Recorder(f"{store}.jsonl", store="fresh")
    scheduler = recorder.wrap(Scheduler(store, clock=clock, timezone=UTC))
    await scheduler.initialize([task(f"t{n}") for n in range(5)])
    await clock.advance(timedelta(0))  # the runs of this minute come before the next is spoken of
    while True:
        # Said before it comes, so that the next process never begins at an earlier minute than this one saw.
        say(f"T - {int(clock.now().timestamp()) // 60 + 1}")
        await clock.advance(MINUTE)


async def forked(store: str) -> None:
    """Hold a store, fork a child that lives on, and die."""
    scheduler = Scheduler(store)
    await scheduler.initialize([])
    child = os.fork()
    if child == 0:
        say(f"child {os.getpid()}")
        signal.pause()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


async def graceful(store: str) -> None:
    """Run until SIGTERM, then stop: the run in flight is waited for and recorded."""
    enough = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, enough.set)

    async def until_told() -> None:
        say("called")
        await enough.wait()

    def tell(event: Event) -> None:
        if event.name.startswith("TaskRun"):
            say(f"{event.name} {event.fields.get('cause', '')}".strip())

    scheduler = Scheduler(store, listeners=[tell])
    await scheduler.initialize(
        [("a", "0 0 1 1 *", until_told, MINUTE), ("b", "* * * * *", until_told, MINUTE)]
    )
    await enough.wait()
    await scheduler.stop()
    say("stopped")


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    asyncio.run({f.__name__: f for f in (long_run, minutes, forked, graceful)}[program](*arguments))
