"""aiocron as a contestant: one timer of the event loop for each crontab, nothing kept on disk."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiocron
from tools.benchmarks.case import Case, Numbers
from tools.benchmarks.lags import Lags
from tools.benchmarks.on_duly import all_called

_ARMING_S = 0.0002
"""Time to allow for each crontab to be armed before all are due; doubled until it is enough."""


async def burst(case: Case, folder: Path) -> Numbers:
    """The lag of every start when all crontabs are due in one second."""
    del folder
    arming_s = _ARMING_S
    while True:
        lags = Lags(case.n)
        due, due_s = _soon(2 + case.n * arming_s)
        text = f"{due.second} {due.minute} {due.hour} * * *"
        crontabs = [aiocron.crontab(text, func=lags.work, start=False, tz=UTC) for _ in range(case.n)]
        for crontab in crontabs:
            crontab.start()
        if time.perf_counter() < due_s - 1:
            break
        for crontab in crontabs:
            crontab.stop()
        arming_s *= 2
    await all_called(lags)
    for crontab in crontabs:
        crontab.stop()
    return lags.numbers(due_s)


def _soon(seconds: float) -> tuple[datetime, float]:
    """The next whole second at least that far ahead, and the `perf_counter` it comes at."""
    now, now_s = datetime.now(UTC), time.perf_counter()  # noqa: TID251 (aiocron knows no other clock)
    due = (now + timedelta(seconds=seconds + 1)).replace(microsecond=0)
    return due, now_s + (due - now).total_seconds()


MEASURES: dict[str, Any] = {"burst": burst}
