"""Memory per registered task, beyond the registrations that the user holds anyway."""

from collections.abc import Sequence

from tools.benchmarks.case import Case, Numbers, Results, Row, at_most
from tools.benchmarks.contest import measured

WORKERS = 1
SIZES = (1_000, 10_000, 100_000)
_GOALS_BYTES = {"shared": 700, "distinct": 1_000}
_APP_GOAL_BYTES = 1024
_N = 100_000
_WAYS = {"traced": "Python's allocations", "resident": "resident set"}


def cases(*, quick: bool) -> list[Case]:
    """Counted both ways, with shared and with distinct cron texts."""
    del quick
    return [
        *(Case("duly", n, f"{texts} resident") for n in SIZES for texts in _GOALS_BYTES),
        *(Case("APScheduler", n, "shared resident") for n in SIZES),
        Case("APScheduler", _N, "shared traced"),
        *(Case("duly", _N, f"{texts} traced") for texts in _GOALS_BYTES),
        Case("duly App", _N, "shared resident"),
    ]


def measure(case: Case) -> Numbers:
    """One contestant."""
    return measured("memory", case)


def rows(results: Results) -> Sequence[Row]:
    """One row for each way of counting."""
    app_bytes = results.best("bytes", "duly App", _N, "shared resident")
    return [
        *(_row(results, texts, way) for texts in _GOALS_BYTES for way in _WAYS),
        Row(
            "memory per task, with App, shared cron texts, resident set",
            "B",
            app_bytes,
            goal=f"{_APP_GOAL_BYTES} B",
            is_met=at_most(app_bytes, _APP_GOAL_BYTES),
        ),
    ]


def _row(results: Results, texts: str, way: str) -> Row:
    duly_bytes = results.best("bytes", "duly", _N, f"{texts} {way}")
    peer_bytes = results.best("bytes", "APScheduler", _N, f"{texts} {way}")
    return Row(
        f"memory per task, {texts} cron texts, {_WAYS[way]}",
        "B",
        duly_bytes,
        goal=f"{_GOALS_BYTES[texts]} B",
        is_met=at_most(duly_bytes, _GOALS_BYTES[texts]),
        peers={"APScheduler": peer_bytes} if texts == "shared" else {},
    )
