"""Programs that fork where a scheduler is at work; `test_forks` runs them as real processes.

python -m tests.attacks.fork_programs NAME DIRECTORY. Each line is written at once, with who wrote it.
"""

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from duly import Event, ForkedSchedulerError, Scheduler, in_thread
from duly.testing import VirtualClock
from duly.verify import Recorder

MINUTE = timedelta(minutes=1)
PARENT = os.getpid()


def say(line: str) -> None:
    """Write a line past every buffer, with who writes it."""
    os.write(1, f"{'parent' if os.getpid() == PARENT else 'child'} {line}\n".encode())


def tell(event: Event) -> None:
    """Write down the events that a second scheduler would repeat."""
    if event.name.startswith("TaskRun"):
        say(f"{event.name} {event.fields['taskName']}")


def wait_for_child(pid: int) -> None:
    """Write down how a child ended."""
    say(f"child ended with {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


async def life(directory: str, forks: Callable[[], Awaitable[object]]) -> None:
    """Two virtual minutes of a recorded scheduler with a task that forks once and two that do not."""
    clock = VirtualClock(datetime(2026, 1, 1, 12, tzinfo=UTC))
    has_forked = False

    async def forking() -> None:
        nonlocal has_forked
        if not has_forked:
            has_forked = True
            await forks()

    def task(name: str) -> tuple[str, str, Callable[[], Awaitable[object]], timedelta]:
        async def callback() -> None:
            say(f"called {name}")

        return name, "* * * * *", callback, MINUTE

    recorder = Recorder(f"{directory}/trace.jsonl", store="fresh")
    scheduler = recorder.wrap(Scheduler(f"{directory}/state.db", clock=clock, timezone=UTC, listeners=[tell]))
    SCHEDULERS.append(scheduler)
    tasks = [("forking", "* * * * *", forking, MINUTE), task("b"), task("c")]
    if forks is child_awaits_last:  # the ends of the others are still to be told
        tasks.reverse()
    await scheduler.initialize(tasks)
    await clock.advance(timedelta(0))
    if forks is main_forks and not (child := os.fork()):
        sys.exit(4)
    elif forks is main_forks:
        wait_for_child(child)
    await clock.advance(MINUTE)
    await scheduler.stop()
    recorder.close()
    say(f"is {scheduler.state}")


SCHEDULERS: list[Scheduler] = []


async def main_forks() -> None:
    """The callback does not fork; the program does, and its child takes the event loop apart."""


async def child_raises() -> None:
    """The child of a callback comes back with an exception."""
    if child := os.fork():
        wait_for_child(child)
    else:
        raise ValueError("from the child")


async def child_returns() -> None:
    """The child of a callback comes back."""
    if child := os.fork():
        wait_for_child(child)


async def child_awaits() -> None:
    """The child of a callback gives the loop a chance to go on."""
    if child := os.fork():
        wait_for_child(child)
    else:
        while True:  # noqa: ASYNC110 (this is the attack)
            await asyncio.sleep(0)  # noqa: TID251 (this too)


async def child_awaits_last() -> None:
    """The same, when the other tasks of the minute have just ended."""
    await child_awaits()


async def child_exits() -> None:
    """The child of a callback ends as Python programs do."""
    if child := os.fork():
        wait_for_child(child)
    else:
        sys.stdout.write("child printed\n")  # into a buffer
        sys.exit(3)


async def child_calls() -> None:
    """The child of a callback uses the scheduler, in every way there is."""
    if child := os.fork():
        wait_for_child(child)
        return
    scheduler = SCHEDULERS[0]
    calls: list[Callable[[], object]] = [
        lambda: scheduler.initialize([]),
        scheduler.stop,
        lambda: scheduler.state,
    ]
    for call in calls:
        try:
            call()
        except ForkedSchedulerError as error:
            say(error.message.replace(str(PARENT), "P").replace(str(os.getpid()), "C"))
    os._exit(0)


def _thread_forks() -> None:
    if child := os.fork():
        wait_for_child(child)
    else:
        raise ValueError("from the child of a thread")


async def thread_forks() -> None:
    """A blocking callback forks in its thread, and the child comes back with an exception."""
    await in_thread(_thread_forks)()


async def child_is_a_process() -> None:
    """A callback starts a process of `multiprocessing`, by fork, which has a scheduler of its own."""
    process = multiprocessing.get_context("fork").Process(target=_own_scheduler)
    process.start()
    process.join()
    say(f"child ended with {process.exitcode}")


def _own_scheduler() -> None:
    async def callback() -> None:
        say("called its own")

    async def main() -> None:
        scheduler = Scheduler(":memory:")
        await scheduler.initialize([("own", "* * * * *", callback, MINUTE)])
        await asyncio.sleep(0.1)  # noqa: TID251 (lets it be called)
        await scheduler.stop()

    asyncio.run(main())


def preloaded(directory: str) -> None:
    """A scheduler is made and used before the fork, and used again by the child when it is at rest."""
    called = []

    async def callback() -> None:
        called.append(os.getpid())
        say("called")

    clock = VirtualClock(datetime(2026, 1, 1, 12, tzinfo=UTC))
    scheduler = Scheduler(Path(directory) / "state.db", clock=clock, timezone=UTC)

    async def use() -> None:
        await scheduler.initialize([("a", "* * * * *", callback, MINUTE)])
        await clock.advance(MINUTE)
        await scheduler.stop()

    asyncio.run(use())
    if child := os.fork():
        wait_for_child(child)
    else:
        asyncio.run(use())
        os._exit(0)


if __name__ == "__main__":
    program, directory = sys.argv[1:]
    if program == "preloaded":
        preloaded(directory)
    else:
        with suppress(KeyboardInterrupt):
            asyncio.run(life(directory, globals()[program]))
