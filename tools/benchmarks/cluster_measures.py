"""How a cluster is measured while nothing fails: tasks due in one minute, idleness, a long list.

The processes are real, on one durable PostgreSQL, and everything is on this machine.
"""

import calendar
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.worlds.postgres import PgBouncer, PostgresMissingError, PostgresServer
from tools.benchmarks import host
from tools.benchmarks.case import Case, Numbers
from tools.benchmarks.cluster_nodes import Nodes, TooSlowError, database, nodes_of
from tools.benchmarks.cluster_notes import now_us
from tools.benchmarks.cluster_program import Orders
from tools.benchmarks.lags import quantile

from duly.cluster.postgres import PostgresStore
from duly.cluster.table import Put, PutOne, SetPaused, TableRequest, hash_of

_SET_UP_S = {"duly": (25, 0.0005), "APScheduler 4": (25, 0.03), "Procrastinate": (25, 0.001)}
"""How long before the due minute the first process is started, and how much longer for each task."""
PATIENCE_S = 120.0
"""How long after its due a task may start, and how long a process may take to be ready."""
_COUNTED_S = 12
"""A server has counted the transactions of a connection when that has been quiet for ten seconds."""
_DOUBLES_S = 2
"""Whatever starts a second time does so within this."""
_PER_PROCESS = 32
"""More nodes than three share processes: one machine has not enough memory and cores for 64 of those."""
_LATE_ENDS = """
SELECT count(*), max(commit_us - ended_us), max(commit_us - started_us / 60000000 * 60000000)
FROM (SELECT (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint AS commit_us, *
      FROM duly.run) AS run"""
_ADDITIONS = 200
_DEFINITION = '["0 3 * * *",300000000,"UTC"]'


# --- tasks due in one minute ---


def burst(case: Case, folder: Path) -> Numbers:
    """`burst MINUTES, PLACE`: the lag of each start, in so many minutes one after another."""
    minutes, place = words_of(case, "burst")
    if place == "SQLite":
        return _burst(orders_of(case, "burst", str(folder / "state.db")), folder, 1, int(minutes), None)
    with database({"track_commit_timestamp": "on"}) as (server, url):
        address = _pooled(server) if place.endswith("PgBouncer") else url
        return _burst(orders_of(case, "burst", address), folder, int(place.split()[0]), int(minutes), server)


def _pooled(server: PostgresServer) -> str:
    try:
        return PgBouncer(server, pool_size=2).url("bench")
    except PostgresMissingError as error:
        raise ModuleNotFoundError("pgbouncer") from error


def _burst(orders: Orders, folder: Path, count: int, minutes: int, server: PostgresServer | None) -> Numbers:
    base_s, each_s = _SET_UP_S[orders.contestant]
    wall, _ = host.next_minute(base_s + orders.n * each_s)
    first_us = calendar.timegm(wall) * 1_000_000
    dues_us = [first_us + i * 60_000_000 for i in range(minutes)]
    texts = ",".join(str((wall.tm_min + i) % 60) for i in range(minutes))
    with nodes_of(orders._replace(minutes=texts), folder) as nodes:
        began_us, began_s = now_us(), time.monotonic()
        try:
            for _ in range(count):
                nodes.begin((first_us - now_us()) / 1e6 - 3)
        except TooSlowError:
            return {"is_unready": 1, "set_up_s": (now_us() - began_us) / 1e6, "load": host.load()}
        set_up_s = (now_us() - began_us) / 1e6
        if nodes.reading.read_on() or now_us() > first_us - 1_000_000:
            raise RuntimeError(f"it took {set_up_s:.1f} s until all was ready: too long")
        cpu_s = nodes.cpu_s()
        expected = orders.n * minutes
        with _recorded(orders, server, expected) as recorded:
            last_s = (dues_us[-1] - now_us()) / 1e6
            nodes.until(lambda: _noted(nodes) >= expected, last_s + PATIENCE_S, look_s=0.5)
            time.sleep(_DOUBLES_S)
        return (
            _lags(nodes, dues_us)
            | recorded
            | {
                "cpu_ms": (nodes.cpu_s() - cpu_s) * 1000 / expected,
                "set_up_s": set_up_s,
                # How far the wall clock was set meanwhile: lags are no better than that.
                "clock_ms": abs((now_us() - began_us) / 1000 - (time.monotonic() - began_s) * 1000),
                "load": host.load(),
            }
        )


def _noted(nodes: Nodes) -> int:
    nodes.reading.read_on()
    return len(nodes.reading.notes)


@contextmanager
def _recorded(orders: Orders, server: PostgresServer | None, expected: int) -> Iterator[Numbers]:
    """How late ends were recorded, and what a run costs in the write-ahead log; only of duly."""
    numbers: Numbers = {}
    if server is None or orders.contestant != "duly":
        yield numbers
        return
    before = _wal_bytes(server)
    yield numbers
    end_s = time.monotonic() + PATIENCE_S
    while server.value("SELECT count(*) FROM duly.run", database="bench") < expected:
        if time.monotonic() > end_s:
            raise RuntimeError("not every end was recorded")
        time.sleep(0.5)
    numbers["wal_bytes"] = (_wal_bytes(server) - before) / expected
    ((runs, end_us, recorded_us),) = server.rows(_LATE_ENDS, database="bench")
    numbers |= {"end_s": end_us / 1e6, "recorded_s": recorded_us / 1e6, "recorded_twice": runs - expected}


def _wal_bytes(server: PostgresServer) -> float:
    return float(server.value("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


def _lags(nodes: Nodes, dues_us: list[int]) -> Numbers:
    """A start answers the last due before it. What did not start counts as if it did when time was up."""
    first: dict[tuple[str, int], int] = {}
    times: Counter[tuple[str, int]] = Counter()
    pids: Counter[int] = Counter()
    for note in nodes.starts_after(0):
        due_us = max((due_us for due_us in dues_us if due_us <= note.at_us), default=None)
        if due_us is None:
            raise RuntimeError(f"{note.name} started before it was due")
        first.setdefault((note.name, due_us), note.at_us - due_us)
        times[note.name, due_us] += 1
        pids[note.pid] += 1
    expected = [(name, due_us) for name in nodes.orders.names for due_us in dues_us]
    lags_ms = sorted(first.get(key, PATIENCE_S * 1e6) / 1000 for key in expected)
    return {
        "p50_ms": quantile(lags_ms, 0.5),
        "p99_ms": quantile(lags_ms, 0.99),
        "max_ms": lags_ms[-1],
        "missed": len(expected) - len(first),
        "doubled": sum(count - 1 for count in times.values()),
        "busiest_percent": max(pids.values(), default=0) / max(pids.total(), 1) * 100,
    }


# --- idleness ---


def idle(case: Case, folder: Path) -> Numbers:
    """`idle SECONDS, COUNT nodes, lease SECONDS s`: what nodes cost when nothing is due."""
    seconds, place = words_of(case, "idle")
    count = int(place.split()[0])
    lease = place.partition(", lease ")[2].split()
    per_process = min(count, _PER_PROCESS) if count > 3 else 1
    # Nothing but what nodes ask for may count. One message is one line in the log.
    settings = {"autovacuum": "off"} | ({"log_statement": "all"} if per_process == 1 else {})
    with database(settings) as (server, url):
        orders = orders_of(case, "idle", url)._replace(nodes=per_process)
        orders = orders._replace(lease_s=float(lease[0]) if lease else 0.0)
        with nodes_of(orders, folder) as nodes:
            for _ in range(0, count, per_process):
                nodes.begin(PATIENCE_S)
            time.sleep(_COUNTED_S)

            def counted() -> Counter[str]:
                sql = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'bench'"
                lines = server.log.read_text().splitlines()
                return Counter(
                    commits=server.value(sql),
                    queries=sum(" bench LOG:  " in line for line in lines),
                    cpu_us=round(nodes.cpu_s() * 1e6),
                    server_us=round(_server_cpu_s(server) * 1e6),
                )

            before, began_s = counted(), time.monotonic()
            time.sleep(float(seconds))
            after, passed_s = counted(), time.monotonic() - began_s
            per_s = {key: (after[key] - before[key]) / passed_s for key in after}
            return {
                **({"queries_per_s": per_s["queries"] / count} if per_process == 1 else {}),
                "commits_per_s": per_s["commits"] / count,
                "cpu_percent": per_s["cpu_us"] / 1e4 / count,
                "server_percent": per_s["server_us"] / 1e4,
                "resident_mb": max(host.resident_mb(node.pid) for node in nodes.alive),
                "load": host.load(),
            }


def _server_cpu_s(server: PostgresServer) -> float:
    found = 0.0
    for pid in server._processes():
        with suppress(OSError):  # some end meanwhile
            found += host.cpu_s(pid)
    return found


# --- a long list ---


def stored(case: Case, folder: Path) -> Numbers:
    """`stored`: a first process brings a long list, a second has the same; then tasks change one by one."""
    with database() as (_, url), nodes_of(orders_of(case, "idle", url), folder) as nodes:
        first = nodes.begin(PATIENCE_S * 5)
        second = nodes.begin(PATIENCE_S * 5)
        names = [f"task-{i:06}" for i in range(0, case.n, case.n // _ADDITIONS)]
        return {
            "took_s": first["took_s"],
            "joined_s": second["took_s"],
            "gained_mb": second["gained_mb"],
            "add_p99_ms": _p99_ms(url, lambda i: PutOne(put=_added(f"added-{i}"), kind="added")),
            "pause_p99_ms": _p99_ms(url, lambda i: SetPaused(name=names[i], is_paused=True)),
            "load": host.load(),
        }


def _p99_ms(url: str, request: Callable[[int], TableRequest[Any]]) -> float:
    table = PostgresStore(url).table()
    took_ms = []
    try:
        table.do(SetPaused(name="", is_paused=False))  # it connects
        for i in range(_ADDITIONS):
            began_s = time.perf_counter()
            table.do(request(i))
            took_ms.append((time.perf_counter() - began_s) * 1000)
    finally:
        table.close()
    return quantile(sorted(took_ms), 0.99)


def _added(name: str) -> Put:
    return Put(name, hash_of(name, _DEFINITION), _DEFINITION, "[]", now_us() + 3_600_000_000)


# --- common ---


def orders_of(case: Case, kind: str, url: str) -> Orders:
    """What the processes of a case are to do."""
    return Orders(case.contestant, url, "", kind, case.n)


def words_of(case: Case, kind: str) -> tuple[str, str]:
    """The variant of a case: how many, and where or how."""
    amount, _, rest = case.variant.removeprefix(kind).strip().partition(", ")
    return amount, rest
