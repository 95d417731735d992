"""`initialize` on a new, durable store; peers add the same tasks to theirs."""

from collections.abc import Sequence

from tools.benchmarks.case import Case, Numbers, Results, Row, at_most
from tools.benchmarks.contest import measured

WORKERS = 1
_GOALS_S = {
    (10_000, "shared"): 0.2,
    (10_000, "distinct"): 0.2,
    (100_000, "shared"): 0.8,
    (100_000, "distinct"): 1.2,
}


def cases(*, quick: bool) -> list[Case]:
    """Every size for duly, peers at the sizes they bear."""
    duly = [
        Case("duly", n, texts, rounds=3) for n in (1_000, 10_000, 100_000) for texts in ("shared", "distinct")
    ]
    peers = [
        Case("APScheduler+SQLite", 1_000, rounds=3),
        Case("APScheduler", 1_000, rounds=3),
        Case("APScheduler", 10_000, rounds=3),
    ]
    if not quick:
        peers += [Case("APScheduler+SQLite", 10_000), Case("APScheduler", 100_000)]
    return [*duly, *peers]


def measure(case: Case) -> Numbers:
    """One contestant."""
    return measured("initialize", case)


def rows(results: Results) -> Sequence[Row]:
    """One row for each size and kind of cron texts."""
    return [_row(results, n, texts) for n in (1_000, 10_000, 100_000) for texts in ("shared", "distinct")]


def _row(results: Results, n: int, texts: str) -> Row:
    took_s = results.best("took_s", "duly", n, texts)
    goal_s = _GOALS_S.get((n, texts))
    peers = ("APScheduler+SQLite", "APScheduler") if texts == "shared" else ()
    return Row(
        f"initialize, {n:,} tasks, {texts} cron texts",
        "s",
        took_s,
        goal=f"{goal_s} s" if goal_s else "",
        is_met=at_most(took_s, goal_s) if goal_s else None,
        peers={peer: results.best("took_s", peer, n) for peer in peers},
    )
