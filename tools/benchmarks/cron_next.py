"""The time of one `next` of a cron expression, parsed beforehand.

Two ways of asking: walking from one occurrence to the next, and from minutes strewn over two years. Every
call has another origin. Rounds of the contestants alternate in one process; the best of each counts.
"""

import importlib
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from statistics import geometric_mean
from typing import Any
from zoneinfo import ZoneInfo

from tools.benchmarks.case import Case, Numbers, Results, Row

from duly.cron import CronExpression

WORKERS = 1
EXPRESSIONS = (
    "* * * * *",
    "30 * * * *",
    "0,15,30,45 * * * *",
    "0,5,10,15,20,25,30,35,40,45,50,55 * * * *",
    "23 0-20 * * *",
    "0 0 * * *",
    "0 3 * * *",
    "30 2 * * *",
    "0 0,12 * * *",
    "0 9 * * 1-5",
    "0,30 9-17 * * 1-5",
    "0 22 * * 1-5",
    "5 4 * * 0",
    "0 0 * * 0",
    "15 14 1 * *",
    "0 0 1,15 * 3",
    "0 12 1 1,4,7,10 *",
    "59 23 31 12 *",
    "0 0 1 1 *",
    "0 0 29 2 *",
)
ZONES: dict[str, tzinfo] = {"UTC": UTC, "New York": ZoneInfo("America/New_York")}
_PEER_GOALS = {"cronsim": 12.0, "croniter": 20.0, "croniter-rs": 1 / 1.3}
_GOAL_US = 1.5
_CALLS = 120
_LAST_YEAR = 2040

Timed = Callable[[str, datetime, int, Sequence[datetime]], tuple[float, float]]
"""From an expression, a start, a number of steps and strewn minutes: seconds of walking, and of jumping."""


def _by_duly(text: str, start: datetime, steps: int, strewn: Sequence[datetime]) -> tuple[float, float]:
    next_after = CronExpression.parse(text).next_after
    begin_s = time.perf_counter()
    moment = start
    for _ in range(steps):
        moment = next_after(moment)
    between_s = time.perf_counter()
    for moment in strewn:
        next_after(moment)
    return between_s - begin_s, time.perf_counter() - between_s


def _by_cronsim(text: str, start: datetime, steps: int, strewn: Sequence[datetime]) -> tuple[float, float]:
    cronsim: Any = importlib.import_module("cronsim").CronSim
    walk, jumps = cronsim(text, start), [cronsim(text, moment) for moment in strewn]
    begin_s = time.perf_counter()
    for _ in range(steps):
        next(walk)
    between_s = time.perf_counter()
    for jump in jumps:
        next(jump)
    return between_s - begin_s, time.perf_counter() - between_s


def _by_croniter_of(module: str) -> Timed:
    def timed(text: str, start: datetime, steps: int, strewn: Sequence[datetime]) -> tuple[float, float]:
        croniter: Any = importlib.import_module(module).croniter
        get_next = croniter(text, start).get_next
        begin_s = time.perf_counter()
        for _ in range(steps):
            get_next(datetime)
        between_s = time.perf_counter()
        for moment in strewn:
            get_next(datetime, moment)
        return between_s - begin_s, time.perf_counter() - between_s

    return timed


CONTESTANTS: dict[str, Timed] = {
    "duly": _by_duly,
    "croniter-rs": _by_croniter_of("croniter_rs"),
    "cronsim": _by_cronsim,
    "croniter": _by_croniter_of("croniter"),
}


def cases(*, quick: bool) -> list[Case]:
    """All contestants together, so that their rounds can alternate."""
    return [Case("all", variant="rounds: 5" if quick else "rounds: 15")]


def measure(case: Case) -> Numbers:
    """The geometric means in microseconds of every contestant that is installed."""
    best: dict[tuple[str, str, str, str], float] = {}
    present = [name for name in CONTESTANTS if _is_installed(name)]
    for _ in range(int(case.variant.split()[-1])):
        for place, zone in ZONES.items():
            for text in EXPRESSIONS:
                start, steps, strewn = _questions(text, zone)
                for name in present:
                    walk_s, jump_s = CONTESTANTS[name](text, start, steps, strewn)
                    for way, taken_s in ("walk", walk_s / steps), ("jump", jump_s / len(strewn)):
                        key = name, place, text, way
                        best[key] = min(best.get(key, taken_s), taken_s)
    return _means_us(best, present)


def _questions(text: str, zone: tzinfo) -> tuple[datetime, int, list[datetime]]:
    start = datetime(2026, 1, 1, 0, 7, tzinfo=zone)
    expression, moment, steps = CronExpression.parse(text), start, 0
    while steps < _CALLS and moment.year < _LAST_YEAR:
        moment, steps = expression.next_after(moment), steps + 1
    dice = random.Random(text)
    strewn = [start + timedelta(minutes=dice.randrange(2 * 365 * 24 * 60)) for _ in range(_CALLS)]
    return start, steps, strewn


def _means_us(best: dict[tuple[str, str, str, str], float], present: Sequence[str]) -> Numbers:
    numbers: Numbers = {}
    for name in present:
        own = {key: taken_s * 1e6 for key, taken_s in best.items() if key[0] == name}
        numbers[name] = geometric_mean(own.values())
        for place in ZONES:
            for way in ("walk", "jump"):
                chosen = [us for key, us in own.items() if key[1] == place and key[3] == way]
                numbers[f"{name} {place} {way}"] = geometric_mean(chosen)
    return numbers


def _is_installed(name: str) -> bool:
    try:
        importlib.import_module(name.replace("-", "_"))
    except ModuleNotFoundError:
        return False
    return True


def rows(results: Results) -> Sequence[Row]:
    """The mean of all, then its parts."""

    def found(name: str) -> float | None:
        both = (results.best(name, *case.key) for case in (*cases(quick=True), *cases(quick=False)))
        return next((us for us in both if us is not None), None)

    duly_us = found("duly")
    peers = {name: found(name) for name in _PEER_GOALS}
    goals = [
        Row(
            f"cron next, against {peer}",
            "us",
            duly_us,
            goal=f"{least:.0f}x faster" if least > 1 else f"at most {1 / least:.1f}x as slow",
            is_met=None if duly_us is None or peer_us is None else peer_us / duly_us >= least,
            peers={peer: peer_us},
        )
        for (peer, least), peer_us in zip(_PEER_GOALS.items(), peers.values(), strict=True)
    ]
    met = None if duly_us is None else duly_us < _GOAL_US
    return [
        Row("cron next, geometric mean of all", "us", duly_us, f"under {_GOAL_US} us", met, peers),
        *goals,
        *(
            Row(
                f"  {place}, {'occurrence to occurrence' if way == 'walk' else 'from strewn minutes'}",
                "us",
                found(f"duly {place} {way}"),
                peers={name: found(f"{name} {place} {way}") for name in peers},
            )
            for place in ZONES
            for way in ("walk", "jump")
        ),
    ]
