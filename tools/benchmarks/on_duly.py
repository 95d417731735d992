"""duly as a contestant."""

import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

from tools.benchmarks.case import Case, Numbers
from tools.benchmarks.clocks import ShiftedClock, StagedClock
from tools.benchmarks.footprint import Footprint
from tools.benchmarks.lags import Lags
from tools.benchmarks.tasks import BEFORE_DUE, DUE, Registration, registrations

from duly import App, Scheduler
from duly.clock import Clock
from duly.testing import crash

HEAD_START = timedelta(seconds=1.5)


def forget_all() -> None:
    """Empty every cache of duly, as a new process would find them."""
    for name, module in list(sys.modules.items()):
        if name == "duly" or name.startswith("duly."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


class AppAsScheduler:
    """An App with the two methods of a Scheduler."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def initialize(self, tasks: Sequence[Registration]) -> None:
        """Declare the tasks, and start."""
        for name, cron, callback, retry_delay in tasks:
            self.app.declare(callback, cron, name=name, retry=retry_delay)
        await self.app.start()

    async def stop(self) -> None:
        """Stop the app."""
        await self.app.stop()


def scheduler_of(case: Case, folder: Path, clock: Clock) -> Scheduler | AppAsScheduler:
    """What the contestant of *case* runs."""
    if case.contestant == "duly":
        return Scheduler(folder / "state.db", clock=clock, timezone=UTC)
    return AppAsScheduler(App(folder / "state.db", clock=clock, timezone="UTC"))


async def initialize(case: Case, folder: Path) -> Numbers:
    """How long `initialize` takes on a new store."""
    tasks = registrations(case.n, distinct="distinct" in case.variant)
    scheduler = Scheduler(folder / "state.db", clock=ShiftedClock(BEFORE_DUE), timezone=UTC)
    begin_s = time.perf_counter()
    await scheduler.initialize(tasks)
    took_s = time.perf_counter() - begin_s
    await scheduler.stop()
    return {"took_s": took_s}


async def restart(case: Case, folder: Path) -> Numbers:
    """How long `initialize` takes on a store that knows every task, after a downtime."""
    tasks = registrations(case.n, distinct="distinct" in case.variant)
    first = scheduler_of(case, folder, ShiftedClock(BEFORE_DUE))
    await first.initialize(tasks)
    await first.stop()
    forget_all()
    downtime = timedelta(days=3653) if "ten years" in case.variant else timedelta(minutes=1)
    second = scheduler_of(case, folder, ShiftedClock(BEFORE_DUE + downtime))
    begin_s = time.perf_counter()
    await second.initialize(tasks)
    took_s = time.perf_counter() - begin_s
    await crash(second.app if isinstance(second, AppAsScheduler) else second)
    return {"took_s": took_s}


async def memory(case: Case, folder: Path) -> Numbers:
    """What a registered task costs beyond the registration itself."""
    tasks = registrations(case.n, distinct="distinct" in case.variant)
    scheduler = scheduler_of(case, folder, ShiftedClock(BEFORE_DUE))
    footprint = Footprint(traced="traced" in case.variant)
    await scheduler.initialize(tasks)
    numbers = footprint.per_task(case.n)
    await scheduler.stop()
    return numbers


async def burst(case: Case, folder: Path) -> Numbers:
    """The lag of every start when all tasks are due in one minute."""
    lags = Lags(case.n)
    tasks = registrations(case.n, distinct="distinct" in case.variant, due=True, callback=lags.work)
    clock = StagedClock(BEFORE_DUE)
    scheduler = scheduler_of(case, folder, clock)
    await scheduler.initialize(tasks)
    due_s = clock.run_from(DUE - HEAD_START) + HEAD_START.total_seconds()
    await all_called(lags)
    await scheduler.stop()
    return lags.numbers(due_s)


async def idle(case: Case, folder: Path) -> Numbers:
    """The processor time of a while in which nothing is due, though a minute begins."""
    seconds = 60.0 if case.variant == "a minute" else 10.0
    clock = ShiftedClock(DUE - timedelta(seconds=20))
    scheduler = Scheduler(folder / "state.db", clock=clock, timezone=UTC)
    await scheduler.initialize(registrations(case.n))
    await clock.sleep_until(DUE - timedelta(seconds=5))
    begin_s = time.process_time()
    await asyncio.sleep(seconds)  # noqa: TID251 (real time is what is measured)
    took_s = time.process_time() - begin_s
    await scheduler.stop()
    return {"cpu_ms": took_s * 1000}


async def all_called(lags: Lags) -> None:
    """Return when every callback was called, looking seldom enough to disturb nobody."""
    while not lags.is_complete:  # noqa: ASYNC110 (an event would have to be looked after in every callback)
        await asyncio.sleep(0.25)  # noqa: TID251 (real time is what is measured)


MEASURES: dict[str, Any] = {
    "initialize": initialize,
    "restart": restart,
    "memory": memory,
    "burst": burst,
    "idle": idle,
}
