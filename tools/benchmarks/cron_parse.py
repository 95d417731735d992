"""The time to parse a cron text: the first in a process, one not seen before, and one seen a moment ago."""

import importlib
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from statistics import fmean, geometric_mean
from typing import Any

from tools.benchmarks.case import Case, Numbers, Results, Row
from tools.benchmarks.cron_next import EXPRESSIONS
from tools.benchmarks.on_duly import forget_all

from duly.cron import CronExpression

WORKERS = 1
_ALL = "all"
_PEERS = {"cronsim": "CronSim", "croniter": "croniter", "croniter-rs": "croniter"}
_START = datetime(2026, 1, 1, tzinfo=UTC)
_WAYS = {"first": "cold, all caches empty", "new": "cold, a new text among others", "repeated": "repeated"}
_REPEATED_GOAL_US = 1.0
_NEW_TEXTS = 500

Parse = Callable[[str], object]


def cases(*, quick: bool) -> list[Case]:
    """All contestants together, so that their rounds can alternate."""
    return [Case(_ALL, variant="rounds: 20" if quick else "rounds: 100")]


def measure(case: Case) -> Numbers:
    """The mean in microseconds of every contestant that is installed, in each way, of its best round."""
    parsers = _parsers()
    taken: dict[str, list[float]] = {f"{name} {way}": [] for name in parsers for way in _WAYS}
    best: dict[tuple[str, str], float] = {}
    new_texts = _new_texts()
    for _ in range(int(case.variant.split()[-1])):
        for name, parse in parsers.items():
            for text in EXPRESSIONS:
                forget_all()
                for way in ("first", "repeated"):
                    key, us = (f"{name} {way}", text), _timed_us(parse, text)
                    best[key] = min(best.get(key, us), us)
            forget_all()
            taken[f"{name} new"].append(fmean(_timed_us(parse, text) for text in new_texts))
    for name, way in ((name, way) for name in parsers for way in ("first", "repeated")):
        taken[f"{name} {way}"].append(geometric_mean(best[f"{name} {way}", text] for text in EXPRESSIONS))
    return {key: min(means) for key, means in taken.items()}


def _timed_us(parse: Parse, text: str) -> float:
    begin_s = time.perf_counter()
    parse(text)
    return (time.perf_counter() - begin_s) * 1e6


def _new_texts() -> list[str]:
    """Texts as people write them, all different."""
    dice = random.Random(1)
    texts: dict[str, None] = {}
    while len(texts) < _NEW_TEXTS:
        minute, hour = dice.randrange(60), dice.choice(["*", "9-17", str(dice.randrange(24)), "0,6,12,18"])
        day, weekday = dice.choice(
            [("*", "*"), ("*", "1-5"), (str(dice.randrange(1, 29)), "*"), ("*", "0,6")]
        )
        texts[f"{minute} {hour} {day} * {weekday}"] = None
    return list(texts)


def _parsers() -> dict[str, Parse]:
    parsers: dict[str, Parse] = {"duly": CronExpression.parse}
    for name, attribute in _PEERS.items():
        try:
            peer: Any = getattr(importlib.import_module(name.replace("-", "_")), attribute)
        except ModuleNotFoundError:
            continue
        parsers[name] = partial(_parsed_by, peer)
    return parsers


def _parsed_by(peer: Any, text: str) -> object:
    return peer(text, _START)


def rows(results: Results) -> Sequence[Row]:
    """One row for each way."""
    return [_row(results, way) for way in _WAYS]


def _row(results: Results, way: str) -> Row:
    def found(name: str) -> float | None:
        both = (
            results.best(f"{name} {way}", *case.key) for case in (*cases(quick=True), *cases(quick=False))
        )
        return next((us for us in both if us is not None), None)

    duly_us, cronsim_us = found("duly"), found("cronsim")
    if way == "repeated":
        goal = f"nearly free (under {_REPEATED_GOAL_US:.0f} us)"
        is_met = None if duly_us is None else duly_us < _REPEATED_GOAL_US
    else:
        goal = "faster than cronsim"
        is_met = None if duly_us is None or cronsim_us is None else duly_us < cronsim_us
    return Row(
        f"cron parse, {_WAYS[way]}", "us", duly_us, goal, is_met, {peer: found(peer) for peer in _PEERS}
    )
