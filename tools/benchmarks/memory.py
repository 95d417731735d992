"""Memory per registered task, beyond the registrations that the user holds anyway."""

from collections.abc import Sequence

from tools.benchmarks.case import Case, Numbers, Results, Row, at_most
from tools.benchmarks.contest import measured

WORKERS = 1
_GOAL_BYTES = 1024
_DULY_N = 100_000
_PEER_N = 20_000
_WAYS = {"traced": "Python's allocations", "resident": "resident set"}


def cases(*, quick: bool) -> list[Case]:
    """Counted both ways, with shared and with distinct cron texts."""
    del quick
    duly = [Case("duly", _DULY_N, f"{texts} {way}") for way in _WAYS for texts in ("shared", "distinct")]
    duly.append(Case("duly App", _DULY_N, "shared resident"))
    return [*duly, *(Case("APScheduler", _PEER_N, f"shared {way}") for way in _WAYS)]


def measure(case: Case) -> Numbers:
    """One contestant."""
    return measured("memory", case)


def rows(results: Results) -> Sequence[Row]:
    """One row for each way of counting."""
    app_bytes = results.best("bytes", "duly App", _DULY_N, "shared resident")
    return [
        *(_row(results, texts, way) for texts in ("shared", "distinct") for way in _WAYS),
        Row(
            "memory per task, with App, shared cron texts, resident set",
            "B",
            app_bytes,
            goal=f"{_GOAL_BYTES} B",
            is_met=at_most(app_bytes, _GOAL_BYTES),
        ),
    ]


def _row(results: Results, texts: str, way: str) -> Row:
    duly_bytes = results.best("bytes", "duly", _DULY_N, f"{texts} {way}")
    peer_bytes = results.best("bytes", "APScheduler", _PEER_N, f"{texts} {way}")
    return Row(
        f"memory per task, {texts} cron texts, {_WAYS[way]}",
        "B",
        duly_bytes,
        goal=f"{_GOAL_BYTES} B",
        is_met=at_most(duly_bytes, _GOAL_BYTES),
        peers={"APScheduler": peer_bytes} if texts == "shared" else {},
    )
