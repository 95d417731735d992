"""`duly dashboard`: the tasks of an embedded scheduler in a browser, from its store and its trace. Read-only.

The daemon has a dashboard of its own, which `duly run` serves. This is for the library: nothing is written,
no lock is taken, and the scheduler may be at work meanwhile.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.options import store_file, zone_called
from duly.cli.output import CommandError
from duly.clock import HostClock
from duly.errors import SchedulerError
from duly.instant import Instant

if TYPE_CHECKING:
    from duly.core.task import Task
    from duly.web.settings import WebSettings

_ANSWERS = 8
_MOST_TRACE_BYTES = 16 * 2**20
"""A longer trace is not read through for every page of a task; `duly why` does that."""


@click.command("dashboard")
@click.option("--store", required=True, metavar="FILE", help="The SQLite store of the scheduler.")
@click.option("--trace", metavar="FILE", help="The trace that it records, for runs and proofs.")
@click.option("--tz", "zone_name", metavar="ZONE", help="The scheduler's IANA zone; the host's if not given.")
@click.option(
    "--listen",
    default="127.0.0.1:8787",
    show_default=True,
    metavar="ADDRESS",
    help="HOST:PORT, or unix:PATH. One that others can reach needs a token.",
)
@click.option("--token-file", metavar="FILE", help="Holds the token; or set DULY_OPERATOR_TOKEN.")
def dashboard(
    *, store: str, trace: str | None, zone_name: str | None, listen: str, token_file: str | None
) -> None:
    """Show the tasks of an embedded scheduler in a browser, live and read-only, until Ctrl-C.

    \b
        duly dashboard --store state.db
        duly dashboard --store state.db --trace trace.jsonl --listen 127.0.0.1:9000
    """  # noqa: D301 (click's mark for lines to keep)
    zone = zone_called(zone_name)
    path = store_file(store)
    if not path.is_file():
        raise _failed(f"there is no store at {store}; give the path of a scheduler's SQLite file")
    try:
        settings = _settings(listen, token_file)
    except ImportError as error:
        raise _failed(f"the dashboard needs {error.name}: pip install 'duly[web]'") from error
    except (SchedulerError, ValueError) as error:
        raise _failed(str(error)) from error
    asyncio.run(_serve(path, None if trace is None else Path(trace), zone, settings))


def _settings(listen: str, token_file: str | None) -> "WebSettings":
    """How to listen. Raises WebRefusedError, ValueError, ImportError."""
    from duly.config.schema import Config, Dashboard  # noqa: PLC0415
    from duly.config.values import address  # noqa: PLC0415 - not for --help
    from duly.web import server  # noqa: F401, PLC0415 - to know that all it needs is here
    from duly.web.settings import settings_from  # noqa: PLC0415

    address(listen)
    declared = Dashboard(listen=listen, token_file=token_file)
    return settings_from(Config(Path(), dashboard=declared, is_listen_given=True), os.environ)


async def _serve(store: Path, trace: Path | None, zone: tzinfo, settings: "WebSettings") -> None:
    from duly.web.dashboard import serve_store  # noqa: PLC0415 - not for --help
    from duly.web.live import Live  # noqa: PLC0415
    from duly.web.task_store import TaskStore  # noqa: PLC0415

    live, answers = Live(secrets.token_hex(4)), _answering(trace, zone)
    tasks = TaskStore(store, live, zone=zone, clock=HostClock(), trace=trace, answers=answers)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)

    def on_start(url: str) -> None:
        click.echo(f"The dashboard of {store} is at {url} (Ctrl-C ends it)")

    try:
        await serve_store(store.name, tasks, settings, ended, on_start)
    except SchedulerError as error:
        raise _failed(error.message) from error


def _answering(
    trace: Path | None, zone: tzinfo
) -> "Callable[[Task, Instant, datetime | None], Sequence[tuple[str, str]]]":
    """What became of a task's latest dues, or of a minute: by the trace, or less precisely by the store."""

    def answers(task: "Task", now_us: Instant, at: datetime | None) -> list[tuple[str, str]]:
        found = _from_trace(trace, task.name, at) if trace is not None else None
        if found is None:
            from duly.web.task_memory import TaskMemory  # noqa: PLC0415 - not for --help
            from duly.web.task_store import zone_of_task  # noqa: PLC0415

            memory = TaskMemory(task, zone_of_task(task, zone), now_us)
            found = [memory.why(at)] if at is not None else memory.why_latest(_ANSWERS)
        return [(str(answer.kind), answer.sentence) for answer in reversed(found)]

    return answers


def _from_trace(trace: Path, name: str, at: datetime | None) -> list[Any] | None:
    """The answers of a trace; None if it does not know the task, cannot be read, or is too long."""
    from duly.verify.reasons.answers import UnknownTaskError  # noqa: PLC0415 - not for --help
    from duly.verify.reasons.why import why, why_latest  # noqa: PLC0415
    from duly.verify.trace import Trace, TraceError  # noqa: PLC0415

    try:
        if trace.stat().st_size > _MOST_TRACE_BYTES:
            return None
        with trace.open("rb") as file:
            return why_latest(Trace(file), name, _ANSWERS) if at is None else [why(Trace(file), name, at)]
    except (OSError, TraceError, UnknownTaskError):
        return None  # the site says what is wrong with the file


def _failed(message: str) -> CommandError:
    return CommandError("failed", message, exit_code=1)
