"""duly as one process of a cluster, or embedded on SQLite if the address is a path."""

import asyncio
import logging
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from benchmarks.cluster_notes import Notebook
from benchmarks.cluster_program import Orders, say_ready
from benchmarks.tasks import Registration

from duly import Scheduler
from duly.store import Board, Store
from duly.store.board import TTL_US

_AGAIN = timedelta(seconds=0.3)
"""A task of a stream fails after each run, and its next run comes so much later."""
_RETRY_DELAY = timedelta(minutes=5)


class FailedOnPurposeError(Exception):
    """How a run ends that is to be followed by another."""


async def serve(orders: Orders, notebook: Notebook) -> None:
    """Be a member until the process is killed."""
    logging.getLogger("duly").addHandler(logging.NullHandler())  # thousands of failures on purpose
    scheduler = Scheduler(_place(orders), timezone=UTC)
    tasks = _registrations(orders, notebook)
    began_s = time.perf_counter()
    await scheduler.initialize(tasks)
    say_ready(time.perf_counter() - began_s)
    await asyncio.Event().wait()


def _place(orders: Orders) -> Store | Board | Path:
    if "://" not in orders.url:
        return Path(orders.url)
    from duly.store.postgres import PostgresBoard  # noqa: PLC0415 (not for SQLite)

    return PostgresBoard(orders.url, lease=timedelta(microseconds=orders.ttl_us or TTL_US))


def _registrations(orders: Orders, notebook: Notebook) -> list[Registration]:
    if orders.kind == "stream":
        calls = [(name, partial(_fail, notebook, name, orders.lasts_s(name))) for name in orders.names]
        return [(name, "* * * * *", call, _AGAIN) for name, call in calls]
    work = [(name, partial(_work, notebook, name)) for name in orders.names]
    if orders.kind == "burst":
        return [(name, f"{orders.minutes} * * * *", call, _RETRY_DELAY) for name, call in work]
    hour = (datetime.now(UTC).hour + 12) % 24  # noqa: TID251 (a benchmark of the host's clock)
    return [(name, f"{i % 50} {hour} * * *", call, _RETRY_DELAY) for i, (name, call) in enumerate(work)]


async def _work(notebook: Notebook, name: str) -> None:
    notebook.note_start(name, name)


async def _fail(notebook: Notebook, name: str, lasts_s: float) -> None:
    # A run that is cut off is followed by a run of the same task, whatever its number.
    notebook.note_start(name, name)
    await asyncio.sleep(lasts_s)  # noqa: TID251 (real time is what is measured)
    notebook.note_end(name, name)
    raise FailedOnPurposeError
