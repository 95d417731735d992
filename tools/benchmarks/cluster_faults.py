"""How a cluster is measured while something fails: a process, the database, the machine of the database."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from statistics import median

from tests.worlds.postgres import LOGIN, PostgresServer
from tests.worlds.proxy import LOOPBACK
from tools.benchmarks import host
from tools.benchmarks.case import Case, Numbers
from tools.benchmarks.cluster_measures import PATIENCE_S, orders_of, words_of
from tools.benchmarks.cluster_nodes import EndedError, Nodes, database, nodes_of
from tools.benchmarks.cluster_notes import Note, now_us

from duly.cluster.postgres import PostgresStore
from duly.cluster.table import ReadNodes

_FAILOVER_PATIENCE_S = 60.0
_CUT_OFF_PATIENCE_S = 45.0
_DOWN_S = 1.0
"""How long a server that is restarted is away."""
_LOST_S = 2.0
"""How much of the past a standby lacks."""
_NAME, _RUN = attrgetter("name"), attrgetter("run")


# --- the death of a process ---


def failover(case: Case, folder: Path) -> Numbers:
    """`failover KILLS, lease SECONDS s`: kill one of three processes while tasks start all the time."""
    kills, lease = words_of(case, "failover")
    lease_s = float(lease.split()[1]) if lease else 0.0
    with database() as (_, url), _three(case, url, folder, lease_s) as nodes:
        deaths: list[Numbers] = []
        for number in range(int(kills)):
            nodes.until_all_start(now_us(), PATIENCE_S)
            # At another point between two heartbeats each time.
            time.sleep((number + 0.5) / int(kills) * lease_s / 6)
            deaths.append(_death(nodes, number % 3))
            nodes.begin(PATIENCE_S)
    found: Numbers = {"load": host.load()}
    for key in ("first", "first_from_kill", "all"):
        if values := sorted(death[f"{key}_s"] for death in deaths if f"{key}_s" in death):
            found |= {f"{key}_median_s": median(values), f"{key}_worst_s": values[-1]}
    for key in ("lost", "cut", "again"):
        found[key] = sum(death[key] for death in deaths)
    return found


def _death(nodes: Nodes, index: int) -> Numbers:
    """Kill a process, and wait until every task that it ran last has started elsewhere."""
    killed_us = now_us()
    pid = nodes.kill(index).pid
    nodes.reading.read_on()
    before = [note for note in nodes.reading.notes if note.at_us <= killed_us or note.pid == pid]
    ran_by = {note.name: note.pid for note in before if note.is_start}
    its = {name for name, by in ran_by.items() if by == pid}
    cut = _cut_off(before, pid)
    if not cut:
        raise RuntimeError("the process that was killed ran nothing")

    def elsewhere(key: Callable[[Note], str], wanted: set[str]) -> dict[str, int]:
        """When each of the wanted first started in another process."""
        found: dict[str, int] = {}
        for note in nodes.starts_after(killed_us):
            if note.pid != pid and key(note) in wanted:
                found.setdefault(key(note), note.at_us)
        return found

    nodes.until(lambda: len(elsewhere(_NAME, its)) == len(its), _FAILOVER_PATIENCE_S)
    # Runs that were cut off come back when a lease runs out, if at all; the tasks may go on before that.
    nodes.until(lambda: len(elsewhere(_RUN, cut)) == len(cut), _CUT_OFF_PATIENCE_S)
    went_on, again = elsewhere(_NAME, its), elsewhere(_RUN, cut)
    limit_us = killed_us + round(_FAILOVER_PATIENCE_S * 1e6)
    first_us = min(again.values(), default=limit_us)
    last_us = max(went_on.values()) if len(went_on) == len(its) else limit_us
    numbers: Numbers = {
        "all_s": (last_us - killed_us) / 1e6,
        "first_from_kill_s": (first_us - killed_us) / 1e6,
        "lost": len(its) - len(went_on),
        "cut": len(cut),
        "again": len(again),
    }
    if nodes.orders.contestant == "duly":
        numbers["first_s"] = (first_us - _last_heartbeat_us(nodes, pid)) / 1e6
    return numbers


def _cut_off(notes: list[Note], pid: int) -> set[str]:
    """The runs of a process that have begun and not ended."""
    is_open: dict[str, bool] = {}
    for note in notes:
        if note.pid == pid:
            is_open[note.run] = note.is_start
    return {run for run, is_so in is_open.items() if is_so}


def _last_heartbeat_us(nodes: Nodes, pid: int) -> int:
    """When a process of duly sent its last heartbeat, by the database's clock."""
    table = PostgresStore(nodes.orders.url).table()
    try:
        _, views = table.do(ReadNodes())
    finally:
        table.close()
    return max(view.seen_us for view in views if view.name.endswith(f":{pid}"))


# --- a fault of the database ---


def restart(case: Case, folder: Path) -> Numbers:
    """`restart TIMES`: restart the server, which forgets nothing, while tasks start all the time."""
    try:
        return _restarted(case, folder)
    except EndedError:
        if case.contestant == "duly":
            raise
        return {"is_gone": 1, "load": host.load()}


def _restarted(case: Case, folder: Path) -> Numbers:
    times, _ = words_of(case, "restart")
    firsts_s: list[float] = []
    with database() as (server, url), _three(case, url, folder) as nodes:
        for _ in range(int(times)):
            nodes.until_all_start(now_us(), PATIENCE_S)
            server.stop()
            time.sleep(_DOWN_S)
            began_us = now_us()
            server.start()
            firsts_s.append(_first_start_s(nodes, began_us, now_us()))
            nodes.until_all_start(now_us(), PATIENCE_S)
    return {"first_worst_s": max(firsts_s), "first_median_s": median(firsts_s), "load": host.load()}


def standby(case: Case, folder: Path) -> Numbers:
    """`standby, HOW`: kill the server and promote its standby, which `lost nothing` or `lost commits`."""
    _, how = words_of(case, "standby")
    with database() as (server, _):
        other = server.standby()
        hosts = f"{LOOPBACK}:{server.port},{LOOPBACK}:{other.port}"
        url = f"postgresql://{LOGIN}@{hosts}/bench?target_session_attrs=read-write"
        with _three(case, url, folder) as nodes:
            nodes.until_all_start(now_us(), PATIENCE_S)
            _kill(server, other, is_behind=how == "lost commits")
            began_us = now_us()
            other.promote()
            first_s = _first_start_s(nodes, began_us, ready_us := now_us())
            nodes.until_all_start(ready_us, PATIENCE_S)
            all_s = (now_us() - ready_us) / 1e6
    return {"first_worst_s": first_s, "all_worst_s": all_s, "load": host.load()}


def _kill(server: PostgresServer, other: PostgresServer, *, is_behind: bool) -> None:
    if is_behind:
        other.stop_receiving()
        time.sleep(_LOST_S)
        server.kill()
    else:
        server.stop()  # in this way it sends the last of its log to the standby first


def _first_start_s(nodes: Nodes, began_us: int, ready_us: int) -> float:
    """From when the server was ready to the first start, which is not before it began to come up."""
    if not nodes.until(lambda: any(nodes.starts_after(began_us)), PATIENCE_S):
        raise RuntimeError("nothing starts any more")
    return max(min(note.at_us for note in nodes.starts_after(began_us)) - ready_us, 0) / 1e6


@contextmanager
def _three(case: Case, url: str, folder: Path, lease_s: float = 0.0) -> Iterator[Nodes]:
    with nodes_of(orders_of(case, "stream", url)._replace(lease_s=lease_s), folder) as nodes:
        for _ in range(3):
            nodes.begin(PATIENCE_S)
        yield nodes
