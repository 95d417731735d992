"""schedule as a contestant: blocking callbacks, called one after the other by a loop that the user writes."""

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import schedule
from tools.benchmarks.case import Case, Numbers
from tools.benchmarks.lags import Lags


def _scheduler(n: int, callback: Any) -> Any:
    scheduler = schedule.Scheduler()
    for _ in range(n):
        scheduler.every().day.at("09:00").do(callback)
    return scheduler


async def burst(case: Case, folder: Path) -> Numbers:
    """The lag of every call when all jobs are due, and the user's loop looks at that very instant."""
    del folder
    lags = Lags(case.n)
    scheduler = _scheduler(case.n, lags.work_now)
    due = datetime.now()  # noqa: DTZ005, TID251 (schedule knows no other clock)
    for job in scheduler.jobs:
        job.next_run = due
    due_s = time.perf_counter()
    scheduler.run_pending()
    return lags.numbers(due_s)


async def idle(case: Case, folder: Path) -> Numbers:
    """The processor time of a minute in which nothing is due, looking once a second as its manual does."""
    del folder
    scheduler = _scheduler(case.n, lambda: None)
    looks = 60 if case.variant == "a minute" else 10
    far = datetime(2100, 1, 1)  # noqa: DTZ001 (schedule knows naive time only)
    for job in scheduler.jobs:
        job.next_run = far
    begin_s = time.process_time()
    for _ in range(looks):
        scheduler.run_pending()
        time.sleep(1)  # noqa: ASYNC251 (nothing else runs here)
    return {"cpu_ms": (time.process_time() - begin_s) * 1000}


MEASURES: dict[str, Any] = {"burst": burst, "idle": idle}
