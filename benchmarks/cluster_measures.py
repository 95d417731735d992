"""How a cluster is measured: tasks due in one minute, the death of a process, idleness, a first list.

The processes are real, on one durable PostgreSQL, and everything is on this machine.
"""

import calendar
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import host
from benchmarks.case import Case, Numbers
from benchmarks.cluster_members import Members, TooSlowError, database, members_of
from benchmarks.cluster_notes import Note, now_us
from benchmarks.cluster_program import Orders
from benchmarks.lags import quantile

_SET_UP_S = {"duly": (25, 0.001), "APScheduler 4": (25, 0.03), "Procrastinate": (25, 0.001)}
"""How long before the due minute the first process is started, and how much longer for each task."""
_PATIENCE_S = 120.0
"""How long after its due a task may start."""
_FAILOVER_PATIENCE_S = 60.0
_CUT_OFF_PATIENCE_S = 45.0
_COUNTED_S = 12
"""A server has counted the transactions of a connection when that has been quiet for ten seconds."""
_DOUBLES_S = 2
"""Whatever starts a second time does so within this."""


# --- tasks due in one minute ---


def burst(case: Case, folder: Path) -> Numbers:
    """`burst MINUTES, PLACE`: the lag of each start, in so many minutes one after another."""
    minutes, place = _words(case, "burst")
    orders = _orders(case, "burst")
    if place == "SQLite":
        return _burst(orders._replace(url=str(folder / "state.db")), folder, 1, int(minutes))
    with database() as (_, url):
        return _burst(orders._replace(url=url), folder, int(place.split()[0]), int(minutes))


def _burst(orders: Orders, folder: Path, count: int, minutes: int) -> Numbers:
    base_s, each_s = _SET_UP_S[orders.contestant]
    wall, _ = host.next_minute(base_s + orders.n * each_s)
    first_us = _epoch_us(wall)
    dues_us = [first_us + i * 60_000_000 for i in range(minutes)]
    texts = ",".join(str((wall.tm_min + i) % 60) for i in range(minutes))
    with members_of(orders._replace(minutes=texts), folder) as members:
        began_us, began_s = now_us(), time.monotonic()
        try:
            for _ in range(count):
                members.begin((first_us - now_us()) / 1e6 - 3)
            members.until_shared()
        except TooSlowError:
            return {"is_unready": 1, "set_up_s": (now_us() - began_us) / 1e6, "load": host.load()}
        set_up_s = (now_us() - began_us) / 1e6
        if members.reading.read_on() or now_us() > first_us - 1_000_000:
            raise RuntimeError(f"it took {set_up_s:.1f} s until all was ready: too long")
        cpu_s = _cpu_s(members)
        expected = orders.n * minutes
        last_s = (dues_us[-1] - now_us()) / 1e6
        members.until(lambda: _noted(members) >= expected, last_s + _PATIENCE_S, look_s=0.5)
        time.sleep(_DOUBLES_S)
        numbers = _lags(members, orders, dues_us)
        return numbers | {
            "cpu_ms": (_cpu_s(members) - cpu_s) * 1000 / expected,
            "set_up_s": set_up_s,
            # How far the wall clock was set meanwhile: lags are no better than that.
            "clock_ms": abs((now_us() - began_us) / 1000 - (time.monotonic() - began_s) * 1000),
            "load": host.load(),
        }


def _noted(members: Members) -> int:
    members.reading.read_on()
    return len(members.reading.notes)


def _lags(members: Members, orders: Orders, dues_us: list[int]) -> Numbers:
    """A start answers the last due before it. What did not start counts as if it did when time was up."""
    first: dict[tuple[str, int], int] = {}
    times: Counter[tuple[str, int]] = Counter()
    pids: Counter[int] = Counter()
    for note in members.starts_after(0):
        due_us = max((due_us for due_us in dues_us if due_us <= note.at_us), default=None)
        if due_us is None:
            raise RuntimeError(f"{note.name} started before it was due")
        first.setdefault((note.name, due_us), note.at_us - due_us)
        times[note.name, due_us] += 1
        pids[note.pid] += 1
    expected = [(name, due_us) for name in orders.names for due_us in dues_us]
    lags_ms = sorted(first.get(key, _PATIENCE_S * 1e6) / 1000 for key in expected)
    return {
        "p50_ms": quantile(lags_ms, 0.5),
        "p99_ms": quantile(lags_ms, 0.99),
        "max_ms": lags_ms[-1],
        "missed": len(expected) - len(first),
        "doubled": sum(count - 1 for count in times.values()),
        "busiest_percent": max(pids.values(), default=0) / max(pids.total(), 1) * 100,
    }


# --- the death of a process ---


def failover(case: Case, folder: Path) -> Numbers:
    """`failover KILLS, lease SECONDS s`: kill one of three processes while tasks start all the time."""
    kills, lease = _words(case, "failover")
    lease_s = float(lease.split()[1]) if lease else 0.0
    with _three(case, "stream", folder, ttl_us=round(lease_s * 1e6)) as members:
        deaths: list[Numbers] = []
        for number in range(int(kills)):
            _await_stream(members, case.n)
            # At another point between two renewals each time.
            time.sleep((number + 0.5) / int(kills) * lease_s / 3)
            deaths.append(_death(members, number % 3, lease_s))
            members.begin(_PATIENCE_S)
    found: Numbers = {"load": host.load()}
    for key in ("first_s", "first_from_kill_s", "all_s"):
        if values := sorted(death[key] for death in deaths if key in death):
            found |= {f"{key[:-2]}_median_s": median(values), f"{key[:-2]}_worst_s": values[-1]}
    for key in ("tasks", "lost", "cut", "again"):
        found[key] = sum(death[key] for death in deaths)
    return found


def _await_stream(members: Members, n: int) -> None:
    """Wait until all share the tasks, and each has started since."""
    members.until_shared()
    since_us = now_us()
    if not members.until(lambda: len({note.name for note in members.starts_after(since_us)}) == n, 150):
        raise RuntimeError("not every task starts again and again")


def _death(members: Members, index: int, lease_s: float) -> Numbers:
    """Kill a process, and wait until every task that it ran last has started elsewhere."""
    killed_us = now_us()
    victim = members.kill(index)
    renewed_us = members.renewed_us(victim.pid) if members.has_board else None
    members.reading.read_on()
    before = [note for note in members.reading.notes if note.at_us <= killed_us or note.pid == victim.pid]
    ran_by = {note.name: note.pid for note in before if note.is_start}
    its = {name for name, pid in ran_by.items() if pid == victim.pid}
    if not its:
        raise RuntimeError("the process that was killed had run nothing")
    cut = _cut_off(before, victim.pid)

    def elsewhere() -> dict[str, int]:
        found: dict[str, int] = {}
        for note in members.starts_after(killed_us):
            if note.pid != victim.pid and note.name in its:
                found.setdefault(note.name, note.at_us)
        return found

    def begun_again() -> set[str]:
        starts = members.starts_after(killed_us)
        return cut & {note.run for note in starts if note.pid != victim.pid}

    members.until(lambda: len(elsewhere()) == len(its), _FAILOVER_PATIENCE_S)
    # Runs that were cut off come back when a lease runs out, if at all; the tasks may go on before that.
    members.until(lambda: begun_again() == cut, _CUT_OFF_PATIENCE_S)
    at_us = sorted(elsewhere().values())
    limit_us = killed_us + round(_FAILOVER_PATIENCE_S * 1e6)
    last_us = limit_us if len(at_us) < len(its) else at_us[-1]
    numbers: Numbers = {
        "all_s": (last_us - killed_us) / 1e6,
        "first_from_kill_s": (min(at_us, default=limit_us) - killed_us) / 1e6,
        "tasks": len(its),
        "lost": len(its) - len(at_us),
        "cut": len(cut),
        "again": len(begun_again()),
    }
    if renewed_us is not None:
        numbers["first_s"] = (min(at_us, default=limit_us) - renewed_us) / 1e6
        if killed_us - renewed_us > lease_s * 1e6:
            raise RuntimeError("the member had not renewed its lease when it was killed")
    return numbers


def _cut_off(notes: list[Note], pid: int) -> set[str]:
    """The runs of a process that have begun and not ended."""
    is_open: dict[str, bool] = {}
    for note in notes:
        if note.pid == pid:
            is_open[note.run] = note.is_start
    return {run for run, is_so in is_open.items() if is_so}


# --- idleness ---


def idle(case: Case, folder: Path) -> Numbers:
    """`idle SECONDS, COUNT members`: what members cost when nothing is due."""
    seconds, place = _words(case, "idle")
    count = int(place.split()[0])
    # Nothing but what members ask for may count. One message is one line in the log.
    with database({"log_statement": "all", "autovacuum": "off"}) as (server, url):
        orders = _orders(case, "idle")._replace(url=url)
        with members_of(orders, folder) as members:
            for _ in range(count):
                members.begin(_PATIENCE_S)
            members.until_shared()
            time.sleep(_COUNTED_S)

            def counted() -> tuple[int, int]:
                sql = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'bench'"
                lines = server.log.read_text().splitlines()
                return server.value(sql), sum(" bench LOG:  " in line for line in lines)

            (commits, queries), began_s = counted(), time.monotonic()
            before_s = [host.cpu_s(member.pid) for member in members.alive]
            time.sleep(float(seconds))
            (commits_after, queries_after), passed_s = counted(), time.monotonic() - began_s
            cpu_s = sum(host.cpu_s(member.pid) for member in members.alive) - sum(before_s)
            return {
                "queries_per_s": (queries_after - queries) / passed_s / count,
                "commits_per_s": (commits_after - commits) / passed_s / count,
                "cpu_percent": cpu_s / passed_s / count * 100,
                "resident_mb": max(host.resident_mb(member.pid) for member in members.alive),
                "load": host.load(),
            }


# --- a first list ---


def initialize(case: Case, folder: Path) -> Numbers:
    """`initialize`: the first process brings a list to an empty database, the second joins it."""
    with database() as (_, url), members_of(_orders(case, "idle")._replace(url=url), folder) as members:
        took_s = members.begin(_PATIENCE_S)
        began_s = time.monotonic()
        joined_s = members.begin(_PATIENCE_S)
        members.until_shared()
        shared_s = time.monotonic() - began_s
        return {"took_s": took_s, "joined_s": joined_s, "shared_s": shared_s, "load": host.load()}


# --- common ---


@contextmanager
def _three(case: Case, kind: str, folder: Path, *, ttl_us: int) -> Iterator[Members]:
    with database() as (_, url):
        orders = _orders(case, kind)._replace(url=url, ttl_us=ttl_us)
        with members_of(orders, folder) as members:
            for _ in range(3):
                members.begin(_PATIENCE_S)
            yield members


def _orders(case: Case, kind: str) -> Orders:
    return Orders(case.contestant, "", "", kind, case.n)


def _words(case: Case, kind: str) -> tuple[str, str]:
    amount, _, rest = case.variant.removeprefix(kind).strip().partition(", ")
    return amount, rest


def _cpu_s(members: Members) -> float:
    return sum(host.cpu_s(member.pid) for member in members.alive)


def _epoch_us(wall: time.struct_time) -> int:
    return calendar.timegm(wall) * 1_000_000


MEASURES = {"burst": burst, "failover": failover, "idle": idle, "initialize": initialize}
