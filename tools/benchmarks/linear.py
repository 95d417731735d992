"""Linear compute: machine instructions, counted by callgrind, as the input grows (spec/model.md 14).

Sweeps the number of tasks, how many of them are due, the length of their names and of the downtime.
Instructions do not depend on what else the machine is doing, so two processes are counted at once.
"""

import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise

from tools.benchmarks.case import Case, Numbers, Results, Row, scaled

WORKERS = 2
_SIZES = tuple(1_000 * 2**i for i in range(8))
_DISTINCT_SIZES = _SIZES[:6]
_QUICK_SIZES = (4_000, 16_000)
_GOAL_EXPONENT = 1.05
_TOP_DOUBLINGS = 2

_NAME_LENGTHS = (8, 64, 512, 4_096)
_NAMES_N = 1_000

_DOWNTIMES_MINUTES = {"a minute": 1, "a day": 1_440, "a year": 525_600, "ten years": 5_256_000}
_DOWNTIMES_N = 8_000
_GOAL_DOWNTIME = 1.05

_DUE_OF = 32_000
_DUE = tuple(1_000 * 2**i for i in range(6))

_RESTART = "restart, all overdue, and their runs"
_POLL = "one poll, all due"
_PARTS = {
    "initialize": ("fresh: initialize", "fresh: prepare"),
    _POLL: ("fresh: poll", "fresh: initialize"),
    _RESTART: ("known: initialize", "known: prepare"),
}
"""What is counted: the process that goes through it, and the one that stops before it."""

_REGIONS = tuple(dict.fromkeys(region for pair in _PARTS.values() for region in pair))


def cases(*, quick: bool) -> list[Case]:
    """Every process to count, the longest first."""
    least, most = _QUICK_SIZES if quick else (_SIZES[0], _SIZES[-1])
    found = [Case(region, n, _variant()) for n in _SIZES if least <= n <= most for region in _REGIONS]
    found += [
        Case(region, n, _variant(texts="distinct"))
        for n in _DISTINCT_SIZES
        if least <= n <= most
        for region in _REGIONS
    ]
    found += [
        Case(region, _NAMES_N, _variant(length=length)) for length in _NAME_LENGTHS for region in _REGIONS
    ]
    found += [
        Case(region, _DUE_OF, _variant(due=due))
        for due in _DUE
        if least <= due <= most
        for region in _PARTS[_POLL]
    ]
    found += [
        Case(region, _DOWNTIMES_N, _variant(downtime=minutes))
        for minutes in _DOWNTIMES_MINUTES.values()
        for region in _PARTS[_RESTART]
    ]
    return sorted(dict.fromkeys(found), key=lambda case: -case.n)


def _variant(*, length: int = 16, downtime: int = 1, texts: str = "shared", due: int | None = None) -> str:
    return f"{length} {downtime} {texts} {due or 'all'}"


def measure(case: Case) -> Numbers:
    """The instructions of one process."""
    if shutil.which("valgrind") is None:
        raise ModuleNotFoundError("valgrind", name="valgrind")
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    command += ["-m", "tools.benchmarks.linear_region", case.contestant, str(case.n), *case.variant.split()]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    assert collected is not None, done.stderr
    return {"instructions": float(collected[1])}


def rows(results: Results) -> Sequence[Row]:
    """The counts, and the exponents of their growth."""
    found: list[Row] = []
    for part in _PARTS:
        for texts, sizes in ("shared", _SIZES), ("distinct", _DISTINCT_SIZES):
            counts = {n: _count(results, part, n, _variant(texts=texts)) for n in sizes}
            found += _growth(f"{part}, {texts} cron texts", counts, "tasks")
    for part in _PARTS:
        counts = {
            length: _count(results, part, _NAMES_N, _variant(length=length)) for length in _NAME_LENGTHS
        }
        found += _growth(f"{part}, {_NAMES_N:,} tasks", counts, "characters in a name")
    counts = {due: _count(results, _POLL, _DUE_OF, _variant(due=due)) for due in _DUE}
    found += _growth(f"one poll, {_DUE_OF:,} tasks", counts, "due")
    return [*found, *_downtimes(results)]


def _count(results: Results, part: str, n: int, variant: str) -> float | None:
    through, before = (results.best("instructions", region, n, variant) for region in _PARTS[part])
    return None if through is None or before is None else through - before


def _growth(what: str, counts: dict[int, float | None], of: str) -> list[Row]:
    known = {size: count for size, count in counts.items() if count is not None}
    sizes = list(known)
    found = [
        Row(f"linear: {what}, {size:,} {of}", "M instr", scaled(count, 1e-6)) for size, count in known.items()
    ]
    for i, (small, large) in enumerate(pairwise(sizes)):
        exponent = math.log(known[large] / known[small]) / math.log(large / small)
        is_top = i >= len(sizes) - 1 - _TOP_DOUBLINGS
        found.append(
            Row(
                f"linear: {what}, exponent {small:,} to {large:,}",
                "",
                exponent,
                goal=f"{_GOAL_EXPONENT}" if is_top else "",
                is_met=exponent <= _GOAL_EXPONENT if is_top else None,
            )
        )
    return found


def _downtimes(results: Results) -> list[Row]:
    counts = {
        name: _count(results, _RESTART, _DOWNTIMES_N, _variant(downtime=minutes))
        for name, minutes in _DOWNTIMES_MINUTES.items()
    }
    first = counts["a minute"]
    if first is None:
        return []
    return [
        Row(
            f"linear: restart, {_DOWNTIMES_N:,} tasks, down {name}, against a minute",
            "x",
            scaled(count, 1 / first),
            goal=f"{_GOAL_DOWNTIME}",
            is_met=None if count is None else count / first <= _GOAL_DOWNTIME,
        )
        for name, count in counts.items()
    ]
