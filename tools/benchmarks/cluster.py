"""Several machines: bursts over several nodes, faults, idle nodes, and a list of a million tasks.

The nodes are processes on one machine, with a durable PostgreSQL on the same. So are the peers that can do
the same: APScheduler 4 and the periodic tasks of Procrastinate.
"""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.benchmarks.case import Case, Numbers, Results, Row, at_most

WORKERS = 1
_PEERS = ("APScheduler 4", "Procrastinate")
_SIZES = (1_000, 10_000)
_LARGE = 100_000
_MILLION = 1_000_000
_STREAM = 32
"""Tasks that start again and again while something fails."""
_LEASES_S = (6, 2)
"""The lease by default and a short one."""
_POOLED = "3 nodes through PgBouncer"
_SHORT = f"1 node, lease {_LEASES_S[1]} s"

_NUMBERS = {
    "failover": {
        "first_worst_s": ("s", "last heartbeat to the first restart of a run that was cut off, worst"),
        "first_median_s": ("s", "median"),
        "first_from_kill_median_s": ("s", "from the kill to the first restart, median"),
        "all_median_s": ("s", "from the kill until all its tasks started, median"),
        "all_worst_s": ("s", "worst"),
        "cut": ("", "runs that were cut off"),
        "again": ("", "of those begun again"),
        "lost": ("", "tasks that did not go on within a minute"),
    },
    "burst": {
        "p50_ms": ("ms", "lag p50"),
        "p99_ms": ("ms", "p99"),
        "max_ms": ("ms", "max"),
        "missed": ("", "not started within two minutes"),
        "doubled": ("", "started twice"),
        "recorded_s": ("s", "until all ends are recorded"),
        "end_s": ("s", "an end is recorded after, worst"),
        "wal_bytes": ("B", "write-ahead log of a run"),
        "cpu_ms": ("ms", "CPU of all processes for each"),
        "clock_ms": ("ms", "wall clock was set meanwhile by"),
        "busiest_percent": ("%", "part of the busiest process"),
    },
    "restart": {
        "first_worst_s": ("s", "from the first connection to the first start, worst"),
        "first_median_s": ("s", "median"),
    },
    "standby": {
        "first_worst_s": ("s", "from the promotion to the first start"),
        "all_worst_s": ("s", "until all tasks started"),
    },
    "stored": {
        "took_s": ("s", "first load"),
        "joined_s": ("s", "a node with the same list is ready after"),
        "gained_mb": ("MB", "resident set besides the caller's list"),
        "add_p99_ms": ("ms", "one task added, p99"),
        "pause_p99_ms": ("ms", "one task paused, p99"),
    },
    "idle": {
        "queries_per_s": ("/s", "messages of each"),
        "commits_per_s": ("/s", "transactions of each"),
        "server_percent": ("% of a core", "CPU of the database"),
        "cpu_percent": ("% of a core", "CPU of each"),
        "resident_mb": ("MB", "resident set of a process"),
    },
}
"""What is shown of each kind of case, in which unit, and how it is called."""
_ALWAYS = {"missed": 0, "doubled": 0, "lost": 0, "end_s": 1}
_GOALS: Mapping[tuple[str, str, int], Numbers] = {
    ("failover", "lease 6 s", _STREAM): {"first_worst_s": 9},
    ("failover", "lease 2 s", _STREAM): {"first_worst_s": 3},
    ("burst", "3 nodes", _SIZES[-1]): {"p99_ms": 350, "wal_bytes": 2_000},
    ("burst", _POOLED, _SIZES[-1]): {"p99_ms": 800},
    ("burst", "4 nodes", _LARGE): {"max_ms": 3_000, "recorded_s": 8},
    ("burst", "1 node", _LARGE): {"max_ms": 6_000},
    ("restart", "", _STREAM): {"first_worst_s": 1},
    ("stored", "", _MILLION): {
        "took_s": 20,
        "joined_s": 3,
        "gained_mb": 120,
        "add_p99_ms": 5,
        "pause_p99_ms": 5,
    },
    # One a second, and one more that a minute may begin or end with.
    ("idle", "1 node", _SIZES[0]): {"queries_per_s": 1.05, "commits_per_s": 1.05},
    ("idle", _SHORT, _SIZES[0]): {"queries_per_s": 3.05, "commits_per_s": 3.05},
    ("idle", "64 nodes", _SIZES[0]): {"server_percent": 8},  # nothing is prepared
}
"""What the numbers of a kind, a place and a size are to be at most."""


def cases(*, quick: bool) -> list[Case]:
    """Every burst awaits a minute, and peers need several for the large one."""
    minutes, kills, idle_s = (1, 2, 20) if quick else (3, 6, 60)
    found = [
        *(Case("duly", _STREAM, f"failover {kills}, lease {lease_s} s") for lease_s in _LEASES_S),
        *(Case(peer, _STREAM, f"failover {min(kills, 3)}") for peer in _PEERS),
    ]
    for n in _SIZES:
        places = ("3 nodes", "1 node", "SQLite", *([_POOLED] if n == _SIZES[-1] else []))
        found += [Case("duly", n, f"burst {minutes}, {place}") for place in places]
        if n == _SIZES[0] or not quick:
            found += [Case(peer, n, "burst 1, 3 nodes") for peer in _PEERS]
    places = ("1 node", _SHORT, "64 nodes")
    found += [Case("duly", _SIZES[0], f"idle {idle_s}, {place}") for place in places]
    found += [Case(peer, _SIZES[0], f"idle {idle_s}, 1 node") for peer in _PEERS]
    found += [Case(contestant, _STREAM, f"restart {minutes}") for contestant in ("duly", *_PEERS)]
    if quick:
        return [*found, Case("duly", _LARGE, "stored")]
    found += [Case("duly", _LARGE, f"burst 1, {place}") for place in ("4 nodes", "1 node")]
    found += [Case("duly", _STREAM, f"standby 1, {how}") for how in ("lost nothing", "lost commits")]
    return [*found, Case("duly", _MILLION, "stored")]


def measure(case: Case) -> Numbers:
    """One contestant."""
    from tools.benchmarks import cluster_faults, cluster_measures  # noqa: PLC0415 (the report needs no PostgreSQL)

    kind = case.variant.split()[0]
    module = cluster_measures if hasattr(cluster_measures, kind) else cluster_faults
    with tempfile.TemporaryDirectory(prefix="duly-bench-", dir="/tmp") as folder:
        numbers: Numbers = getattr(module, kind)(case, Path(folder))
    return numbers


def rows(results: Results) -> Sequence[Row]:
    """What the issue has goals for, the peers next to it, and how busy the machine was."""
    known = {case.key: case for quick in (True, False) for case in cases(quick=quick)}.values()
    measured = [case for case in known if results.best("load", *case.key) is not None]
    found = [row for case in measured if case.contestant == "duly" for row in _rows(results, case, measured)]
    if loads := [results.best("load", *case.key) or 0.0 for case in measured]:
        found.append(Row("load average after a case of these, the lowest", "", min(loads)))
        found.append(Row("... the highest", "", max(loads)))
    return found


def _rows(results: Results, case: Case, measured: Sequence[Case]) -> Iterator[Row]:
    """The numbers of one case of duly, and of the peers in the same case."""
    kind, place = _kind(case), case.variant.partition(", ")[2]
    goals = _ALWAYS | _GOALS.get((kind, place, case.n), {})
    peers = [
        peer
        for peer in measured
        if peer.contestant != "duly" and (_kind(peer), peer.n) == (kind, case.n) and place in _SHARED[kind]
    ]
    what = f"{case.n:,} tasks, {case.variant}: "
    for key, (unit, label) in _NUMBERS[kind].items():
        value = results.best(key, *case.key)
        if value is None:
            continue
        yield Row(
            f"{what}{label}",
            unit,
            value,
            goal=f"{goals[key]:,g} {unit}".rstrip() if key in goals else "",
            is_met=at_most(value, goals[key]) if key in goals else None,
            peers={_called(results, peer): results.best(key, *peer.key) for peer in peers},
        )
        what = "... "


_SHARED = defaultdict[str, tuple[str, ...]](
    tuple,
    burst=("3 nodes",),
    failover=tuple(f"lease {lease_s} s" for lease_s in _LEASES_S),
    idle=("1 node",),
    restart=("",),
)
"""The places that peers have, too, of each kind."""


def _kind(case: Case) -> str:
    return case.variant.split()[0]


def _called(results: Results, peer: Case) -> str:
    """Its name, and why it has no numbers if that is known."""
    if results.best("is_gone", *peer.key) is not None:
        return f"{peer.contestant} (its process ended)"
    if results.best("is_unready", *peer.key) is not None:
        return f"{peer.contestant} (not ready after {results.best('set_up_s', *peer.key):.0f} s)"
    return peer.contestant
