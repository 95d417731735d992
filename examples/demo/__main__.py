"""The command: `python -m examples.demo`, from the root of a checkout."""

import asyncio
import os
import sys
from collections.abc import Iterable
from datetime import UTC, tzinfo

import click
import tzlocal
from examples.demo.formatting import joined
from examples.demo.memory import DemoMemory, memories_in, story_of
from examples.demo.output import output_for
from examples.demo.show import Show
from examples.demo.tasks import DemoTask, new_demo_tasks
from examples.demo.view import began

from duly.clock import HostClock
from duly.errors import SchedulerError, ScheduleTaskError
from duly.instant import instant_of
from duly.places import PlaceError, StoreKind, kind_of


@click.command()
@click.option("--store", default="demo.db", show_default=True, metavar="PATH", help="The SQLite file to use.")
@click.option(
    "--for",
    "length_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop gracefully after this time. [default: on Ctrl-C]",
)
@click.option(
    "--pace",
    type=click.FloatRange(min=0),
    default=1.0,
    metavar="FACTOR",
    help="Stretch how long the tasks work; 0.1 hurries them.",
)
@click.option("--trace", metavar="PATH", help="Record what happens, for `duly verify` and `duly why`.")
def demo(store: str, length_s: float | None, pace: float, trace: str | None) -> None:
    """Watch six tasks run, fail, retry, wait, and survive.

    Press Ctrl-C for a graceful stop, press it twice (or kill the process) to cut the runs off, and run it
    again: the store remembers, and the story goes on.

        python -m examples.demo --trace demo.jsonl
    """
    clock, zone = HostClock(), _zone_of_host()
    demo_tasks = new_demo_tasks(clock, pace=pace)
    _check_file(store)
    memories = memories_in(store)
    _check_ours(store, memories, demo_tasks)
    view = began(
        demo_tasks,
        memories,
        store=store,
        zone=zone,
        process_id=os.getpid(),
        story=story_of(memories, instant_of(clock.now()), zone),
    )
    try:
        asyncio.run(
            Show(view, output_for(sys.stdout), clock).perform(demo_tasks, length_s=length_s, trace=trace)
        )
    except (SchedulerError, ValueError) as error:
        raise click.ClickException(_sentence(error)) from error


def _zone_of_host() -> tzinfo:
    """The zone of the host, or UTC where it does not say: a demo needs no more."""
    try:
        return tzlocal.get_localzone()
    except (KeyError, ValueError):  # a TZ that no database knows; settings that contradict each other
        return UTC


def _check_file(store: str) -> None:
    """Refuse what is no file; it is not repeated, because it may hold a password."""
    try:
        if kind_of(store) is StoreKind.DATABASE:
            raise click.ClickException("the demo keeps its tasks in a SQLite file; give the path of one")
    except PlaceError as error:
        raise click.ClickException(error.reason) from error


def _check_ours(store: str, memories: Iterable[DemoMemory], demo_tasks: Iterable[DemoTask]) -> None:
    """Refuse a store with other tasks: to the scheduler they would be orphans, and it would forget them."""
    names = {part.name for part in demo_tasks}
    others = [memory.name for memory in memories if memory.name not in names]
    if others:
        shown = joined([repr(name) for name in others[:3]] + ["others"] * (len(others) > 3))
        raise click.ClickException(
            f"Store {store} holds tasks that are not the demo's: {shown}; choose another path"
        )


def _sentence(error: Exception) -> str:
    """What went wrong, without the name of the task that happened to be first."""
    cause = error.details["cause"] if isinstance(error, ScheduleTaskError) else error
    return str(cause)


if __name__ == "__main__":
    demo(prog_name="python -m examples.demo")
