"""Hands a case to the contestant it names, in a fresh folder on a real disk."""

import asyncio
import importlib
import tempfile
from pathlib import Path

from tools.benchmarks.case import Case, Numbers

MODULES = {
    "duly": "on_duly",
    "duly App": "on_duly",
    "APScheduler": "on_apscheduler",
    "APScheduler+SQLite": "on_apscheduler",
    "aiocron": "on_aiocron",
    "schedule": "on_schedule",
}


def measured(name: str, case: Case) -> Numbers:
    """What the contestant of *case* makes of the benchmark *name*."""
    measure = importlib.import_module(f"tools.benchmarks.{MODULES[case.contestant]}").MEASURES[name]
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        numbers: Numbers = asyncio.run(measure(case, Path(folder)))
    return numbers
