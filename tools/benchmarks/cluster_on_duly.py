"""duly as one process of a cluster, or embedded on SQLite if the address is a path."""

import asyncio
import gc
import logging
import os
import time
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path

from tools.benchmarks import host
from tools.benchmarks.cluster_notes import Notebook
from tools.benchmarks.cluster_program import Orders, say_ready
from tools.benchmarks.tasks import Registration

from duly import Scheduler
from duly.cluster.store import ClusterStore

_AGAIN = timedelta(seconds=0.3)
"""A task of a stream fails after each run, and its next run comes so much later."""
_RETRY_DELAY = timedelta(minutes=5)


class FailedOnPurposeError(Exception):
    """How a run ends that is to be followed by another."""


async def serve(orders: Orders, notebook: Notebook) -> None:
    """Be as many nodes as ordered until the process is killed."""
    logging.getLogger("duly").addHandler(logging.NullHandler())  # thousands of failures on purpose
    schedulers = [Scheduler(_place(orders), timezone=UTC) for _ in range(orders.nodes)]
    tasks = _registrations(orders, notebook)
    before_mb, began_s = _resident_mb(), time.perf_counter()
    for scheduler in schedulers:
        await scheduler.initialize(tasks)
    took_s = time.perf_counter() - began_s
    say_ready(took_s=took_s, gained_mb=_resident_mb() - before_mb)
    await asyncio.Event().wait()


def _resident_mb() -> float:
    gc.collect()
    return host.resident_mb(os.getpid())


def _place(orders: Orders) -> ClusterStore | Path:
    if "://" not in orders.url:
        return Path(orders.url)
    from duly.cluster.postgres import LEASE, PostgresStore  # noqa: PLC0415 (not for SQLite)

    return PostgresStore(orders.url, lease=timedelta(seconds=orders.lease_s) if orders.lease_s else LEASE)


def _registrations(orders: Orders, notebook: Notebook) -> list[Registration]:
    if orders.kind == "stream":
        calls = [(name, partial(_fail, notebook, name, orders.lasts_s(name))) for name in orders.names]
        return [(name, "* * * * *", call, _AGAIN) for name, call in calls]
    work = [(name, partial(_work, notebook, name)) for name in orders.names]
    return [(name, orders.cron, call, _RETRY_DELAY) for name, call in work]


async def _work(notebook: Notebook, name: str) -> None:
    notebook.note_start(name, name)


async def _fail(notebook: Notebook, name: str, lasts_s: float) -> None:
    # A run that is cut off is followed by a run of the same task, whatever its number.
    notebook.note_start(name, name)
    await asyncio.sleep(lasts_s)  # noqa: TID251 (real time is what is measured)
    notebook.note_end(name, name)
    raise FailedOnPurposeError
