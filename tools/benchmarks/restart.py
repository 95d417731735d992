"""`initialize` on a store that already holds every task, after a short and after a long downtime."""

from collections.abc import Sequence
from itertools import product

from tools.benchmarks.case import Case, Numbers, Results, Row, at_most
from tools.benchmarks.contest import measured

WORKERS = 1
_SIZES = (10_000, 100_000)
_VARIANTS = tuple(
    f"{texts} cron texts, down {downtime}"
    for texts, downtime in product(("shared", "distinct"), ("a minute", "ten years"))
)
_GOALS_S = {100_000: 1.2}
_APP_N = 100_000


def cases(*, quick: bool) -> list[Case]:
    """Every size with every downtime."""
    rounds = 1 if quick else 3
    duly = [Case("duly", n, variant, rounds=rounds) for n in _SIZES for variant in _VARIANTS]
    return [*duly, Case("duly App", _APP_N, _VARIANTS[0], rounds=rounds)]


def measure(case: Case) -> Numbers:
    """One contestant."""
    return measured("restart", case)


def rows(results: Results) -> Sequence[Row]:
    """One row for each case."""
    return [
        *(_row(results, "duly", n, variant) for n in _SIZES for variant in _VARIANTS),
        _row(results, "duly App", _APP_N, _VARIANTS[0]),
    ]


def _row(results: Results, contestant: str, n: int, variant: str) -> Row:
    goal_s, took_s = _GOALS_S.get(n), results.best("took_s", contestant, n, variant)
    return Row(
        f"restart{', with App' if contestant != 'duly' else ''}, {n:,} stored tasks, {variant}",
        "s",
        took_s,
        goal=f"{goal_s} s" if goal_s else "",
        is_met=at_most(took_s, goal_s) if goal_s else None,
    )
