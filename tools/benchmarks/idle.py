"""The processor time of a minute in which nothing is due, with few tasks and with many.

The cases run at the same time: they are idle, and processor time is counted for each process by itself.
"""

from collections.abc import Sequence

from tools.benchmarks.case import Case, Numbers, Results, Row, at_most
from tools.benchmarks.contest import measured

WORKERS = 5
_SIZES = (1_000, 10_000, 100_000)
_GOALS_MS = {100_000: 5}
_PEERS = ("schedule", "APScheduler")
_VARIANTS = ("a minute", "ten seconds around its beginning")


def cases(*, quick: bool) -> list[Case]:
    """A whole minute; with *quick*, ten seconds in which a minute begins."""
    variant = _VARIANTS[1] if quick else _VARIANTS[0]
    duly = [Case("duly", n, variant, rounds=2) for n in _SIZES]
    return [
        *duly,
        *(Case(peer, n, variant) for n in (1_000, 10_000 if quick else 100_000) for peer in _PEERS),
    ]


def measure(case: Case) -> Numbers:
    """One contestant."""
    return measured("idle", case)


def rows(results: Results) -> Sequence[Row]:
    """One row for each size."""
    return [_row(results, n, variant) for variant in _VARIANTS for n in _SIZES if _has(results, n, variant)]


def _has(results: Results, n: int, variant: str) -> bool:
    return results.best("cpu_ms", "duly", n, variant) is not None


def _row(results: Results, n: int, variant: str) -> Row:
    cpu_ms = results.best("cpu_ms", "duly", n, variant)
    goal_ms = _GOALS_MS.get(n)
    return Row(
        f"idle {variant}, {n:,} tasks, CPU",
        "ms",
        cpu_ms,
        goal=f"{goal_ms} ms" if goal_ms else "",
        is_met=at_most(cpu_ms, goal_ms) if goal_ms else None,
        peers={peer: results.best("cpu_ms", peer, n, variant) for peer in _PEERS},
    )
