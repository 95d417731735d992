"""APScheduler 4, a pre-release, as one process of a cluster: its SQLAlchemy data store on asyncpg.

All schedules are of one task without a limit of its own; everything else is as it comes: each process is
scheduler and worker, takes a hundred schedules and a hundred jobs at a time, and leases them for 30 s.
"""

import asyncio
import time
from typing import Any

from apscheduler import AsyncScheduler, current_job
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.asyncpg import AsyncpgEventBroker
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy.ext.asyncio import create_async_engine
from tools.benchmarks.cluster_notes import Notebook
from tools.benchmarks.cluster_program import EVERY_S, Orders, say_ready

_TASK = "work"
_notebooks: list[Notebook] = []
"""Where `work` notes: a task is known to other processes by its name alone, and takes no notebook along."""


async def serve(orders: Orders, notebook: Notebook) -> None:
    """Be a scheduler and a worker until the process is killed."""
    _notebooks.append(notebook)
    began_s = time.perf_counter()
    engine = create_async_engine(orders.url.replace("postgresql://", "postgresql+asyncpg://"))
    broker = AsyncpgEventBroker.from_async_sqla_engine(engine)
    async with AsyncScheduler(SQLAlchemyDataStore(engine), broker) as scheduler:
        await scheduler.configure_task(_TASK, func=work, max_running_jobs=None)
        if orders.is_first:
            for name in orders.names:
                arguments = (name, orders.lasts_s(name))
                await scheduler.add_schedule(_TASK, _trigger(orders), id=name, args=arguments)
        await scheduler.start_in_background()
        say_ready(took_s=time.perf_counter() - began_s)
        await asyncio.Event().wait()


def _trigger(orders: Orders) -> Any:
    if orders.kind == "stream":
        return IntervalTrigger(seconds=EVERY_S)
    return CronTrigger.from_crontab(orders.cron, timezone="UTC")


async def work(name: str, lasts_s: float) -> None:
    """The task."""
    run = str(current_job.get().id)
    _notebooks[0].note_start(name, run)
    if lasts_s:
        await asyncio.sleep(lasts_s)  # noqa: TID251 (real time is what is measured)
        _notebooks[0].note_end(name, run)
