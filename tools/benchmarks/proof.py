"""What the proof costs: verifying a trace, watching online, recording, simulating."""

import asyncio
import io
import resource
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tools.benchmarks.case import Case, Numbers, Results, Row, at_most

from duly import Scheduler
from duly.store import MemoryStore
from duly.testing import VirtualClock
from duly.verify import Header, Recorder, judged
from duly.verify.judge import Judge
from duly.verify.trace import Trace

WORKERS = 1
_START = datetime(2026, 3, 1, tzinfo=UTC)
_TASKS = 500
_EVENTS = 1_000_000
_FEW_EVENTS = 100_000
_VERIFY_GOAL_S = 10.0
_MONITOR_GOAL_US = 10.0
_SIMULATION_GOAL_YEARS = 10.0
_MINUTES = 200
_RECORDED_TASKS = 100


def cases(*, quick: bool) -> list[Case]:
    """Each in a process of its own."""
    return [
        Case("verify", _FEW_EVENTS),
        *([] if quick else [Case("verify", _EVENTS)]),
        Case("monitor", rounds=2),
        Case("recorder", variant="off", rounds=2),
        Case("recorder", variant="listeners only", rounds=2),
        Case("recorder", variant="file", rounds=2),
        Case("simulation", 91 if quick else 365, "due together"),
        Case("simulation", 91 if quick else 365, "due apart"),
    ]


def measure(case: Case) -> Numbers:
    match case.contestant:
        case "verify":
            return _verified(case.n)
        case "monitor":
            return _monitored()
        case "recorder":
            return asyncio.run(_recorded(case.variant))
        case _:
            return _simulated(timedelta(days=case.n), together=case.variant == "due together")


def rows(results: Results) -> Sequence[Row]:
    """One row for each claim."""
    few_s, many_s = (results.best("seconds", "verify", n) for n in (_FEW_EVENTS, _EVENTS))
    few_mb, many_mb = (results.best("resident_mb", "verify", n) for n in (_FEW_EVENTS, _EVENTS))
    monitor_us = results.best("us", "monitor")
    off, heard, filed = (results.best("us", "recorder", 0, way) for way in ("off", "listeners only", "file"))
    together, apart = (_years(results, way) for way in ("due together", "due apart"))
    return [
        Row(f"verify {_FEW_EVENTS:,} events, {_TASKS} tasks", "s", few_s),
        Row(
            f"verify {_EVENTS:,} events, {_TASKS} tasks",
            "s",
            many_s,
            f"{_VERIFY_GOAL_S:.0f} s",
            at_most(many_s, _VERIFY_GOAL_S),
        ),
        Row(f"  resident, {_FEW_EVENTS:,} events", "MB", few_mb),
        Row(
            f"  resident, {_EVENTS:,} events", "MB", many_mb, "as with fewer events", _alike(few_mb, many_mb)
        ),
        Row(
            "monitor, per event",
            "us",
            monitor_us,
            f"{_MONITOR_GOAL_US:.0f} us",
            at_most(monitor_us, _MONITOR_GOAL_US),
        ),
        Row("one run in virtual time, not recorded", "us", off),
        Row("  recorded, no file", "us", heard),
        Row("  recorded to a file", "us", filed),
        Row(
            "simulated years a CPU-minute, ten hourly tasks, SQLite",
            "",
            together,
            f"{_SIMULATION_GOAL_YEARS:.0f}",
            None if together is None else together >= _SIMULATION_GOAL_YEARS,
        ),
        Row("  each at a minute of its own", "", apart),
    ]


def _years(results: Results, way: str) -> float | None:
    best = [results.best("cpu_minutes_per_year", "simulation", days, way) for days in (91, 365)]
    return max((1 / minutes for minutes in best if minutes), default=None)


def _alike(few_mb: float | None, many_mb: float | None) -> bool | None:
    return None if few_mb is None or many_mb is None else many_mb <= few_mb * 1.2


def trace_lines(events: int) -> Iterator[bytes]:
    """A healthy trace: every task every minute, starts spread over a second, ends a second later."""
    begin_ms = round(_START.timestamp() * 1000)
    regs = ",".join(f'["task {index}","* * * * *",60000]' for index in range(_TASKS))
    yield b'{"ev":"Header","v":1,"tz":"Europe/Berlin"}\n'
    yield f'{{"t":{begin_ms},"ev":"InitStart","call":1,"proc":"a","regs":[{regs}]}}\n'.encode()
    yield f'{{"t":{begin_ms + 1},"ev":"InitEnd","call":1,"ok":true}}\n'.encode()
    for minute in range(events // (2 * _TASKS)):
        at_ms = begin_ms + minute * 60_000
        for name, later_ms, rest in (("RunStart", 2, ""), ("RunEnd", 1002, ',"ok":true')):
            for index in range(_TASKS):
                run = minute * _TASKS + index
                text = f'"ev":"{name}","id":"task {index}","run":{run}{rest}'
                yield f'{{"t":{at_ms + later_ms + index},{text}}}\n'.encode()


def _verified(events: int) -> Numbers:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        with path.open("wb") as file:
            file.writelines(trace_lines(events))
        begin_s = time.perf_counter()
        with path.open("rb") as file:
            outcome = judged(file)
        taken_s = time.perf_counter() - begin_s
    assert not outcome.violations
    resident_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": taken_s, "resident_mb": resident_mb}


def _monitored() -> Numbers:
    """The judge alone, on events that are read already, as a monitor gets them."""
    trace = Trace(io.BytesIO(b"".join(trace_lines(_FEW_EVENTS))))
    items = list(trace)
    judge = Judge(Header(v=1, tz="Europe/Berlin"))
    begin_s = time.perf_counter()
    for item in items:
        judge.take(item)
    return {"us": (time.perf_counter() - begin_s) * 1e6 / len(items)}


async def _recorded(way: str) -> Numbers:
    clock = VirtualClock(_START)

    async def callback() -> None:
        pass

    with TemporaryDirectory() as folder:
        scheduler: Any = Scheduler(MemoryStore(), clock=clock, timezone=UTC)
        if way != "off":
            path = Path(folder) / "trace.jsonl" if way == "file" else None
            scheduler = Recorder(path).wrap(scheduler)
        delay = timedelta(minutes=1)
        await scheduler.initialize(
            [(f"task {n}", "* * * * *", callback, delay) for n in range(_RECORDED_TASKS)]
        )
        begin_s = time.perf_counter()
        await clock.advance(timedelta(minutes=_MINUTES))
        taken_s = time.perf_counter() - begin_s
        await scheduler.stop()
    return {"us": taken_s * 1e6 / (_MINUTES * _RECORDED_TASKS)}


def _simulated(duration: timedelta, *, together: bool) -> Numbers:
    from tests.simulation import NO_FAULTS, simulate  # noqa: PLC0415 (only where it is measured)

    async def callback() -> None:
        pass

    minutes = [0] * 10 if together else range(0, 60, 6)
    tasks = [(f"task {n}", f"{at} * * * *", callback, timedelta(minutes=1)) for n, at in enumerate(minutes)]
    begin_s = time.process_time()
    life = simulate(tasks, seed=1, duration=duration, timezone=UTC, start=_START, faults=NO_FAULTS)
    taken_s = time.process_time() - begin_s
    assert not life.outcome.violations
    return {"cpu_minutes_per_year": (taken_s / 60) / (duration / timedelta(days=365))}
