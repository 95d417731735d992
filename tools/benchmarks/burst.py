"""All tasks due in one minute: the lag of each call behind the due instant.

duly writes every start to SQLite, synced, before it calls; the peers in memory write nothing.
"""

from collections.abc import Sequence

from tools.benchmarks.case import Case, Numbers, Results, Row, at_most
from tools.benchmarks.contest import measured

WORKERS = 1
SIZES = (100, 1_000, 10_000, 100_000)
_GOALS_MS = {1_000: 8, 10_000: 60, 100_000: 1_200}
_DISTINCT_GOAL_MS = 75
_APP_GOAL_MS = 150
_IN_MEMORY = ("APScheduler", "aiocron", "schedule")
PEERS = ("APScheduler+SQLite", *_IN_MEMORY)
_TIMES_BETTER_THAN_DURABLE = 80


def cases(*, quick: bool) -> list[Case]:
    """Every contestant at the sizes it bears, as often as duly: the best of more rounds would be a gift."""
    found = [
        Case("duly", 100, "shared", rounds=5),
        *(Case(peer, 100, rounds=5) for peer in PEERS),
        Case("duly", 1_000, "shared", rounds=5),
        *(Case(peer, 1_000, rounds=5) for peer in PEERS),
        Case("duly", 10_000, "shared", rounds=3),
        Case("duly", 10_000, "distinct", rounds=3),
        *(Case(peer, 10_000, rounds=3) for peer in _IN_MEMORY),
        Case("duly", 100_000, "shared"),
        Case("duly App", 10_000, "shared", rounds=3),
    ]
    if not quick:  # the durable peer once only: it takes minutes, and misses by far more than noise
        found += [Case("APScheduler+SQLite", 10_000), *(Case(peer, 100_000) for peer in _IN_MEMORY)]
    return found


def measure(case: Case) -> Numbers:
    """One contestant."""
    return measured("burst", case)


def rows(results: Results) -> Sequence[Row]:
    """Median, 99th percentile and maximum for each size."""
    return [
        *(row for n in SIZES for row in _rows(results, n)),
        Row(
            "10,000 due, distinct cron texts, lag p99",
            "ms",
            (distinct_ms := results.best("p99_ms", "duly", 10_000, "distinct")),
            goal=f"{_DISTINCT_GOAL_MS} ms",
            is_met=at_most(distinct_ms, _DISTINCT_GOAL_MS),
        ),
        Row(
            "10,000 due in one minute, with App, lag p99",
            "ms",
            (app_ms := results.best("p99_ms", "duly App", 10_000, "shared")),
            goal=f"{_APP_GOAL_MS} ms",
            is_met=at_most(app_ms, _APP_GOAL_MS),
        ),
    ]


def _rows(results: Results, n: int) -> Sequence[Row]:
    p99_ms = results.best("p99_ms", "duly", n, "shared")
    peers = {peer: results.best("p99_ms", peer, n) for peer in PEERS}
    goal, is_met = "", None
    if (goal_ms := _GOALS_MS.get(n)) is not None:
        goal, is_met = f"{goal_ms:,} ms", at_most(p99_ms, goal_ms)
    if n == 1_000 and p99_ms is not None:
        goal += f", {_TIMES_BETTER_THAN_DURABLE}x APScheduler+SQLite"
        durable_ms = peers["APScheduler+SQLite"]
        is_met = bool(is_met) and (durable_ms is None or durable_ms / p99_ms >= _TIMES_BETTER_THAN_DURABLE)
    return [
        Row(
            f"{n:,} due in one minute, lag {name}",
            "ms",
            results.best(f"{name}_ms", "duly", n, "shared"),
            goal=goal if name == "p99" else "",
            is_met=is_met if name == "p99" else None,
            peers={peer: results.best(f"{name}_ms", peer, n) for peer in PEERS},
        )
        for name in ("p50", "p99", "max")
    ]
