"""APScheduler 3 as a contestant: in memory, and on SQLite through SQLAlchemy."""

import asyncio
import time
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import apscheduler.executors.base
import apscheduler.schedulers.base
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from tools.benchmarks.case import Case, Numbers
from tools.benchmarks.clocks import StagedClock, StagedDatetime
from tools.benchmarks.footprint import Footprint
from tools.benchmarks.lags import Lags
from tools.benchmarks.on_duly import HEAD_START, all_called
from tools.benchmarks.tasks import BEFORE_DUE, DUE, Registration, registrations

_lags = Lags(0)


async def work() -> None:
    """The callback; a job store on disk wants one that can be imported."""
    await _lags.work()


def _stage() -> StagedClock:
    """Have APScheduler read a staged clock instead of the host's."""
    clock = StagedClock(BEFORE_DUE)
    StagedDatetime.clock = clock
    apscheduler.schedulers.base.datetime = StagedDatetime
    apscheduler.executors.base.datetime = StagedDatetime
    return clock


def _scheduler(case: Case, folder: Path) -> Any:
    is_durable = case.contestant == "APScheduler+SQLite"
    store = SQLAlchemyJobStore(url=f"sqlite:///{folder}/jobs.db") if is_durable else MemoryJobStore()
    scheduler = AsyncIOScheduler(jobstores={"default": store}, timezone=UTC)
    scheduler.start()
    return scheduler


def _add(scheduler: Any, tasks: list[Registration]) -> None:
    for name, text, _, _ in tasks:
        trigger = CronTrigger.from_crontab(text, timezone=UTC)
        scheduler.add_job(work, trigger, id=name, misfire_grace_time=86_400)


async def initialize(case: Case, folder: Path) -> Numbers:
    """How long it takes to add the jobs."""
    tasks = registrations(case.n)
    _stage()
    scheduler = _scheduler(case, folder)
    begin_s = time.perf_counter()
    _add(scheduler, tasks)
    took_s = time.perf_counter() - begin_s
    scheduler.shutdown()
    return {"took_s": took_s}


async def memory(case: Case, folder: Path) -> Numbers:
    """What a job costs."""
    tasks = registrations(case.n, distinct="distinct" in case.variant)
    scheduler = _scheduler(case, folder)
    footprint = Footprint(traced="traced" in case.variant)
    _add(scheduler, tasks)
    numbers = footprint.per_task(case.n)
    scheduler.shutdown()
    return numbers


async def burst(case: Case, folder: Path) -> Numbers:
    """The lag of every start when all jobs are due in one minute."""
    global _lags  # noqa: PLW0603 (the job store finds the callback by its module)
    _lags = Lags(case.n)
    clock = _stage()
    scheduler = _scheduler(case, folder)
    _add(scheduler, registrations(case.n, due=True))
    await asyncio.sleep(0)  # noqa: TID251 (let it arm its timer on the standing clock)
    due_s = clock.run_from(DUE - HEAD_START) + HEAD_START.total_seconds()
    scheduler.wakeup()
    await all_called(_lags)
    scheduler.shutdown()
    return _lags.numbers(due_s)


async def idle(case: Case, folder: Path) -> Numbers:
    """The processor time of a while in which nothing is due."""
    seconds = 60.0 if case.variant == "a minute" else 10.0
    clock = _stage()
    scheduler = _scheduler(case, folder)
    _add(scheduler, registrations(case.n))
    clock.run_from(DUE - timedelta(seconds=5))
    scheduler.wakeup()
    await asyncio.sleep(1)  # noqa: TID251 (let it come to rest)
    begin_s = time.process_time()
    await asyncio.sleep(seconds)  # noqa: TID251 (real time is what is measured)
    took_s = time.process_time() - begin_s
    scheduler.shutdown()
    return {"cpu_ms": took_s * 1000}


MEASURES: dict[str, Any] = {"initialize": initialize, "memory": memory, "burst": burst, "idle": idle}
