"""`initialize` on a store that already holds every task, after a short and after a long downtime."""

from collections.abc import Sequence
from itertools import product

from benchmarks.case import Case, Numbers, Results, Row, at_most
from benchmarks.contest import measured

WORKERS = 1
_SIZES = (10_000, 100_000)
_VARIANTS = tuple(
    f"{texts} cron texts, down {downtime}"
    for texts, downtime in product(("shared", "distinct"), ("a minute", "ten years"))
)
_GOALS_S = {100_000: 2.0}


def cases(*, quick: bool) -> list[Case]:
    """Every size with every downtime."""
    return [Case("duly", n, variant, rounds=1 if quick else 3) for n in _SIZES for variant in _VARIANTS]


def measure(case: Case) -> Numbers:
    """One contestant."""
    return measured("restart", case)


def rows(results: Results) -> Sequence[Row]:
    """One row for each case."""
    return [
        _row(n, variant, results.best("took_s", "duly", n, variant)) for n in _SIZES for variant in _VARIANTS
    ]


def _row(n: int, variant: str, took_s: float | None) -> Row:
    goal_s = _GOALS_S.get(n)
    return Row(
        f"restart, {n:,} stored tasks, {variant}",
        "s",
        took_s,
        goal=f"{goal_s} s" if goal_s else "",
        is_met=at_most(took_s, goal_s) if goal_s else None,
    )
