"""Several machines: failover, a burst over three members, idle members, and a list of ten thousand tasks.

The members are processes on one machine, with a durable PostgreSQL on the same. So are the peers that can do
the same: APScheduler 4 and the periodic tasks of Procrastinate.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.case import Case, Numbers, Results, Row, at_most

from duly.store.board import TTL_US

WORKERS = 1
_PEERS = ("APScheduler 4", "Procrastinate")
_SIZES = (1_000, 10_000)
_STREAM = 32
"""Tasks that start again and again while processes are killed."""
_LEASES_S = {TTL_US / 1e6: 10, 2.0: 3}
"""The lease by default and a short one, with the longest failover that is to be had with each."""
_BURST_P99_MS = 2_000
_QUERIES_PER_S = 1
_IDLE_TASKS = 1_000


def cases(*, quick: bool) -> list[Case]:
    """Every burst awaits a minute, and peers need several for the large one."""
    minutes, kills, idle_s = (1, 2, 20) if quick else (3, 6, 60)
    found = [
        *(Case("duly", _STREAM, _failover(kills, lease_s)) for lease_s in _LEASES_S),
        *(Case(peer, _STREAM, f"failover {min(kills, 3)}") for peer in _PEERS),
    ]
    for n in _SIZES:
        places = ("3 members", "1 member", "SQLite")
        found += [Case("duly", n, f"burst {minutes}, {place}") for place in places]
        if n == _SIZES[0] or not quick:
            found += [Case(peer, n, "burst 1, 3 members") for peer in _PEERS]
    found += [Case("duly", _IDLE_TASKS, f"idle {idle_s}, {count} members") for count in (1, 3)]
    found += [Case("duly", _SIZES[-1], "initialize", rounds=1 if quick else 3)]
    return found


def measure(case: Case) -> Numbers:
    """One contestant."""
    from benchmarks.cluster_measures import MEASURES  # noqa: PLC0415 (whoever prints needs no PostgreSQL)

    with tempfile.TemporaryDirectory(prefix="duly-bench-", dir="/tmp") as folder:
        return MEASURES[case.variant.split()[0]](case, Path(folder))


def rows(results: Results) -> Sequence[Row]:
    """What the issue has goals for, the peers next to it, and how busy the machine was."""
    known = {case.key: case for quick in (True, False) for case in cases(quick=quick)}.values()
    measured = [case for case in known if results.best("load", *case.key) is not None]
    found = [row for case in measured if case.contestant == "duly" for row in _rows(results, case, measured)]
    if loads := [results.best("load", *case.key) or 0.0 for case in measured]:
        found.append(Row("load average after a case of these, the lowest", "", min(loads)))
        found.append(Row("... the highest", "", max(loads)))
    return found


def _failover(kills: int, lease_s: float) -> str:
    return f"failover {kills}, lease {lease_s:g} s"


def _rows(results: Results, case: Case, measured: Sequence[Case]) -> Iterator[Row]:
    kind, _, place = case.variant.partition(", ")
    peers = {
        peer.contestant: peer
        for peer in measured
        if peer.contestant != "duly" and peer.n == case.n and peer.variant.split()[0] == kind.split()[0]
    }
    of = _Found(results, case, peers)
    match kind.split()[0]:
        case "failover":
            yield from _failover_rows(of, place, int(kind.split()[1]))
        case "burst":
            yield from _burst_rows(of, case.n, place)
        case "idle":
            yield from _idle_rows(of, case.n, place)
        case _:
            yield from _initialize_rows(of, case.n)


class _Found:
    """The numbers of one case of duly, and of the peers in the same case."""

    def __init__(self, results: Results, case: Case, peers: Mapping[str, Case]) -> None:
        self._results = results
        self._case = case
        self._peers = peers

    def duly(self, name: str) -> float | None:
        """A number of duly's."""
        return self._results.best(name, *self._case.key)

    def row(self, what: str, unit: str, name: str, *, limit: float | None = None, peers: bool = True) -> Row:
        """A number of duly's, with a goal if there is a *limit*, and the same number of the peers."""
        value = self.duly(name)
        return Row(
            what,
            unit,
            value,
            goal="" if limit is None else f"{limit:,g} {unit}".rstrip(),
            is_met=None if limit is None else at_most(value, limit),
            peers={self._called(peer): self._of(peer, name) for peer in _PEERS} if peers else {},
        )

    def _of(self, peer: str, name: str) -> float | None:
        return self._results.best(name, *self._peers[peer].key) if peer in self._peers else None

    def _called(self, peer: str) -> str:
        """Its name, and why it has no numbers if that is known."""
        if self._of(peer, "is_unready") is None:
            return peer
        return f"{peer} (not ready after {self._of(peer, 'set_up_s'):.0f} s)"


def _failover_rows(of: _Found, lease: str, kills: int) -> Iterator[Row]:
    goal_s = _LEASES_S[float(lease.split()[1])]
    is_default = goal_s == max(_LEASES_S.values())
    what = (
        f"failover, {lease}{' (default)' if is_default else ''}, {kills} kills, last renewal to first start"
    )
    yield of.row(f"{what}, worst", "s", "first_worst_s", limit=goal_s, peers=False)
    yield of.row("... median", "s", "first_median_s", peers=False)
    yield of.row("... from the kill to the first start, median", "s", "first_from_kill_median_s")
    yield of.row("... from the kill until all its tasks started, median", "s", "all_median_s")
    yield of.row("... worst", "s", "all_worst_s")
    yield of.row("... runs that were cut off", "", "cut")
    yield of.row("... of those begun again", "", "again")
    yield of.row("... tasks that did not go on within a minute", "", "lost", limit=0)


def _burst_rows(of: _Found, n: int, place: str) -> Iterator[Row]:
    is_cluster = place == "3 members"
    limit = _BURST_P99_MS if is_cluster and n == _SIZES[-1] else None
    what = f"{n:,} due in one minute, {place}"
    yield of.row(f"{what}, lag p50", "ms", "p50_ms", peers=is_cluster)
    yield of.row("... p99", "ms", "p99_ms", limit=limit, peers=is_cluster)
    yield of.row("... max", "ms", "max_ms", peers=is_cluster)
    yield of.row("... not started within two minutes", "", "missed", limit=0, peers=is_cluster)
    yield of.row("... started twice", "", "doubled", limit=0, peers=is_cluster)
    yield of.row("... CPU of all processes for each", "ms", "cpu_ms", peers=is_cluster)
    yield of.row("... wall clock was set meanwhile by", "ms", "clock_ms", peers=is_cluster)
    if is_cluster:
        yield of.row("... part of the busiest process", "%", "busiest_percent")


def _idle_rows(of: _Found, n: int, place: str) -> Iterator[Row]:
    what = f"{place}, {n:,} tasks, nothing due, each:"
    yield of.row(f"{what} queries", "/s", "queries_per_s", limit=_QUERIES_PER_S, peers=False)
    yield of.row("... transactions", "/s", "commits_per_s", limit=_QUERIES_PER_S, peers=False)
    yield of.row("... CPU", "% of a core", "cpu_percent", peers=False)
    yield of.row("... resident set", "MB", "resident_mb", peers=False)


def _initialize_rows(of: _Found, n: int) -> Iterator[Row]:
    yield of.row(f"initialize, {n:,} tasks, empty database", "s", "took_s", peers=False)
    yield of.row("... of a second member", "s", "joined_s", peers=False)
    yield of.row("... from its launch until both hold the same", "s", "shared_s", peers=False)
