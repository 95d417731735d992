"""A cluster store in PostgreSQL: odd names and settings, locks of others, broken connections."""

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from duly import Event, Scheduler, ScheduleTaskError
from duly.cluster import PostgresStore
from duly.cluster.connection import _is_over
from duly.cluster.postgres_table import PostgresTable
from duly.cluster.table import (
    Claim,
    Heartbeat,
    Join,
    Put,
    ReadDigest,
    ReadRuns,
    ReadTasks,
    Reconcile,
    RowEnd,
    TableRequest,
)
from duly.errors import StoreError
from duly.instant import SECOND_US
from duly.integrations import current
from duly.scheduler import TaskTuple
from tests.worlds.postgres import (
    STEADY_LEASE_S,
    PgBouncer,
    PostgresMissingError,
    PostgresServer,
    Servers,
    until,
)
from tests.worlds.proxy import Proxy, through

NEVER = "0 0 29 2 *"
NAMES = [" ", "nul \0 here", "%s %(name)s {schema}", "quote ' \" \\", "ä\n\t𝄞", "n" * 5_000]
SCHEMA = 'Odd "name" \' 100% {schema}'


async def nothing() -> None:
    pass


class Table:
    """A node that a test moves by hand."""

    def __init__(self, url: str, node: int, **options: float) -> None:
        self.table: PostgresTable = PostgresStore(url).table(**options)
        self.node = node

    def join(self) -> None:
        self.table.do(Join(node=self.node, name=f"n{self.node}", lease_us=60 * SECOND_US, version="0"))

    def claim(self, limit: int = 10) -> list[str]:
        return [row.name for row in self.table.do(Claim(node=self.node, gen=1_000, limit=limit)).claimed]

    def bring(self, *names: str) -> None:
        put = [Put(name, 1, "", "[]", 0) for name in names]
        base = self.table.do(ReadDigest()).generation
        self.table.do(Reconcile(node=self.node, put=put, removed=(), base=base))


@pytest.fixture
def table(postgres_url: str) -> Iterator[Table]:
    """A node with a list of two tasks."""
    asyncio.run(PostgresStore(postgres_url).open("id"))
    table = Table(postgres_url, 1)
    with closing(table.table):
        table.join()
        table.bring("a", "b")
        yield table


# --- schedulers ---


async def test_strange_names(postgres_url: str) -> None:
    """Tasks may be called anything, in a schema called anything; each runs, and is in the history."""
    store = PostgresStore(postgres_url, schema=SCHEMA, namespace="% ' \" {}")
    events: list[Event] = []
    ran: dict[str, object] = {}

    def registered(name: str) -> TaskTuple:
        async def body() -> None:
            run = current()
            assert run is not None
            ran[name] = run.token

        return name, "* * * * *", body, timedelta(0)

    scheduler = Scheduler(store, timezone=UTC, listeners=[events.append])
    await scheduler.initialize([registered(name) for name in NAMES])
    await asyncio.to_thread(until, lambda: len(ran) == len(NAMES), "all have run")
    await scheduler.stop()
    assert set(ran) == set(NAMES)
    with closing(store.table()) as table:
        past = table.do(ReadRuns())
        assert len(table.do(ReadTasks())) == len(NAMES)
    assert {run.token for run in past} == set(ran.values())
    assert {event.fields["taskName"] for event in events if event.name == "TaskRunCompleted"} == set(NAMES)
    await scheduler.initialize([registered(name) for name in NAMES])  # the same list, found again
    assert [event.name for event in events].count("ListReconciled") == 1
    await scheduler.stop()


async def test_dropped_schema_is_made_again(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """A schema that is dropped under a scheduler is told of; a scheduler that begins later makes it again."""
    events: list[Event] = []

    # With a short lease a heartbeat would not wait for the end of a DROP on a loaded machine.
    store = PostgresStore(postgres_url, lease=timedelta(seconds=STEADY_LEASE_S))
    scheduler = Scheduler(store, listeners=[events.append])
    await scheduler.initialize([("a", NEVER, nothing, timedelta(0))])
    postgres.rows("DROP SCHEMA duly CASCADE", database=postgres_database)
    await asyncio.to_thread(
        until,
        lambda: [event for event in events if event.name == "StoreFault"],
        "the scheduler tells of it",
    )
    faults = [event.fields["error"] for event in events if event.name == "StoreFault"]
    assert "has lost our tables" in faults[0]
    await scheduler.stop()
    await scheduler.initialize([("a", NEVER, nothing, timedelta(0))])
    await scheduler.stop()


async def test_reachable_later(postgres: PostgresServer, postgres_url: str) -> None:
    """A scheduler that could not begin can begin later, on the same object, and again after a stop."""
    with Proxy(postgres.port) as cable:
        scheduler = Scheduler(through(postgres_url, cable.port))
        cable.cut()
        with pytest.raises(ScheduleTaskError):
            await scheduler.initialize([("task", NEVER, nothing, timedelta(0))])
        cable.heal()
        for _ in range(2):
            await scheduler.initialize([("task", NEVER, nothing, timedelta(0))])
            await scheduler.stop()


async def test_busy_loop_keeps_its_lease(postgres_url: str) -> None:
    """Two nodes whose loop is busy with a burst for longer than a lease keep it, and no body is blamed."""
    events: list[Event] = []
    left, is_done = {f"task {number}" for number in range(500)}, asyncio.Event()

    async def work(name: str) -> None:
        until_s = time.perf_counter() + STEADY_LEASE_S / 480  # all of them together: longer than a lease
        while time.perf_counter() < until_s:
            pass
        left.discard(name)
        if not left:
            is_done.set()

    burst = [(name, "* * * * *", partial(work, name), timedelta(0)) for name in sorted(left)]
    store = partial(PostgresStore, postgres_url, lease=timedelta(seconds=STEADY_LEASE_S))
    nodes = [Scheduler(store(), listeners=[events.append]) for _ in range(2)]
    for node in nodes:
        await node.initialize(burst)
    await is_done.wait()
    for node in nodes:
        await node.stop()
    # If the host lets the loop wait for a second, a node gives up the claim that is on its way: it comes back
    # under a new id. It has no run then that it could lose.
    lost = {"LoopBlocked", "NodeFenced", "TrustLost"}
    assert [event for event in events if event.name in lost] == []
    assert [event for event in events if event.fields.get("released")] == []


async def test_default_timeout_of_sockets(
    postgres_url: str, postgres: PostgresServer, postgres_database: str
) -> None:
    """A default timeout of sockets, such as that of Celery's beat, delays no heartbeat."""
    beats = "SELECT max(beat) FROM duly.node"
    socket.setdefaulttimeout(60)
    try:
        scheduler = Scheduler(postgres_url)
        await scheduler.initialize([("task", NEVER, nothing, timedelta(0))])
    finally:
        socket.setdefaulttimeout(None)
    enough = partial(postgres.value, beats, database=postgres_database)
    await asyncio.to_thread(until, lambda: enough() >= 4, "four heartbeats")
    await scheduler.stop()


@pytest.fixture
def certificate(postgres_servers: Servers) -> Path:
    """A certificate that signs itself; beside it is its key."""
    home = postgres_servers.directory("tls")
    home.mkdir(mode=0o755)
    made = home / "certificate"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    command = [*make.split(), "-keyout", str(made.with_suffix(".key")), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    made.chmod(0o644)
    return made


async def test_tls(postgres: PostgresServer, postgres_database: str, certificate: Path) -> None:
    """A node reaches a server that wants TLS, and checks its certificate. Without TLS it is told so."""
    try:
        pooler = PgBouncer(postgres, certificate=(certificate, certificate.with_suffix(".key")))
    except PostgresMissingError as error:
        pytest.skip(str(error))
    tls_url = pooler.url(postgres_database)
    ran = asyncio.Event()

    async def run() -> None:
        ran.set()

    scheduler = Scheduler(f"{tls_url}?sslmode=verify-ca&sslrootcert={certificate}")
    await scheduler.initialize([("task", "* * * * *", run, timedelta(0))])
    await ran.wait()
    await scheduler.stop()
    with pytest.raises(StoreError, match="SSL required"):
        await PostgresStore(f"{tls_url}?sslmode=disable").open("id")


# --- opening ---


async def test_nodes_make_the_tables_together(postgres_url: str) -> None:
    """Nodes that open an empty database at the same time all succeed, and agree on the identifier."""
    opened = await asyncio.gather(*(PostgresStore(postgres_url).open(f"id {n}") for n in range(6)))
    assert len(set(opened)) == 1


def test_tables_are_ours_as_soon_as_they_are_there(postgres_url: str) -> None:
    """A node that looks while another one makes the tables does not take them for somebody else's."""
    is_over = threading.Event()

    def reasons() -> set[str]:
        found = set()
        while not is_over.is_set():
            with closing(PostgresStore(postgres_url).table(is_reader=True)) as table:
                for _ in range(20):
                    try:
                        table.open("it", "")
                    except StoreError as error:
                        found.add(str(error))
        return found

    with ThreadPoolExecutor() as threads, closing(PostgresStore(postgres_url).table()) as table:
        looking = [threads.submit(reasons) for _ in range(3)]
        with psycopg.connect(postgres_url, autocommit=True) as other:
            for _ in range(30):
                table.open("it", "id")
                other.execute("DROP SCHEMA duly CASCADE")
        is_over.set()
    seen = set().union(*(look.result() for look in looking))
    assert any("has no tables of duly" in reason for reason in seen)
    assert not [reason for reason in seen if "not ours" in reason]


async def test_cancelled_opening_can_be_repeated(postgres: PostgresServer, postgres_url: str) -> None:
    """An opening that is cancelled while it waits for a lock ends at once, and the next one works."""
    with psycopg.connect(postgres_url) as other:
        other.execute("CREATE SCHEMA duly")
        opening = asyncio.create_task(PostgresStore(postgres_url).open("first"))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await asyncio.to_thread(until, lambda: postgres.value(waiting), "the opening waits")
        opening.cancel()
        async with asyncio.timeout(60):
            with pytest.raises(asyncio.CancelledError):
                await opening
        other.rollback()
    assert await PostgresStore(postgres_url).open("second") in {"first", "second"}


@pytest.mark.parametrize(
    ("version", "words"), [(8, "tables of an older duly"), (99, "written by a newer duly")]
)
async def test_other_formats_are_refused(
    postgres: PostgresServer, postgres_database: str, postgres_url: str, version: int, words: str
) -> None:
    """Tables of another format are refused in one sentence that says what to do, and left as they are."""
    store = PostgresStore(postgres_url)
    await store.open("id")
    postgres.rows(f"UPDATE duly.meta SET duly_format = {version}", database=postgres_database)
    with pytest.raises(StoreError, match=words) as refused:
        await store.open("id")
    assert "\n" not in refused.value.message
    assert words == "written by a newer duly" or "drop that schema" in refused.value.message
    with pytest.raises(ScheduleTaskError, match=words):
        await Scheduler(postgres_url).initialize([])
    assert postgres.value("SELECT duly_format FROM duly.meta", database=postgres_database) == version


# --- settings of the server ---


def test_defaults_of_the_server_do_not_reach_us(
    postgres: PostgresServer, postgres_database: str, postgres_url: str, table: Table
) -> None:
    """Our transactions are durable and read committed, whatever the default; for others it stays as it is."""

    def do(statement: str) -> list[tuple[object, ...]]:
        return postgres.rows(statement, database=postgres_database)

    do(f"ALTER DATABASE {postgres_database} SET synchronous_commit = off")
    do(f"ALTER DATABASE {postgres_database} SET default_transaction_isolation = 'serializable'")
    do("CREATE TABLE public.seen (durable text, isolation text)")
    do("""CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          INSERT INTO public.seen VALUES (current_setting('synchronous_commit'),
                                          current_setting('transaction_isolation'));
          RETURN NULL; END $$""")
    do("CREATE TRIGGER see AFTER UPDATE ON duly.task EXECUTE FUNCTION public.see()")
    other = Table(postgres_url, 2)
    with closing(other.table):
        other.join()
        assert other.claim() == ["a", "b"]
    assert do("SELECT * FROM public.seen") == [("on", "read committed")]
    assert do("SHOW synchronous_commit") == [("off",)]


def test_claim_does_not_ask_the_time_for_each_row(
    postgres: PostgresServer, postgres_database: str, table: Table
) -> None:
    """A claim asks for the time as often with a hundred due rows as with one."""

    def times_asked() -> int:
        table.claim(limit=1)
        return int(postgres.value("SELECT nextval('public.asked')", database=postgres_database))

    postgres.rows("CREATE SEQUENCE public.asked", database=postgres_database)
    postgres.rows(
        """CREATE OR REPLACE FUNCTION duly.now_us() RETURNS bigint LANGUAGE sql VOLATILE
           AS $$ SELECT 1800000000000000 + 0 * nextval('public.asked') $$""",
        database=postgres_database,
    )
    with_two = times_asked()
    table.bring(*(f"task {number}" for number in range(100)))
    before = int(postgres.value("SELECT nextval('public.asked')", database=postgres_database))
    assert times_asked() - before == with_two


# --- locks and connections ---


def test_foreign_lock_is_not_waited_for_without_end(postgres_url: str, table: Table) -> None:
    """A request that another program's lock holds up gives up in time, says so, and changes nothing."""
    impatient = Table(postgres_url, 2, patience_s=0.5)
    with closing(impatient.table), psycopg.connect(postgres_url) as rival:
        impatient.join()
        rival.execute("LOCK TABLE duly.task")
        with pytest.raises(StoreError, match="in time"):
            impatient.claim()
        rival.rollback()
        assert impatient.claim() == ["a", "b"]


def test_broken_connections(postgres: PostgresServer, postgres_database: str, postgres_url: str) -> None:
    """A request without an answer ends in time with an error, and the first one after the fault works."""
    asyncio.run(PostgresStore(postgres_url).open("id"))
    with Proxy(postgres.port) as proxy:
        node = Table(through(postgres_url, proxy.port), 1, patience_s=0.5)
        with closing(node.table):
            node.join()
            beat = Heartbeat(node=1, acked=0)
            proxy.swallow_answers()
            with pytest.raises(StoreError) as unknown:
                node.table.do(beat)
            assert not unknown.value.is_undone
            proxy.heal()
            node.table.do(beat)
            proxy.cut()
            with pytest.raises(StoreError):
                node.table.do(beat)
            with pytest.raises(StoreError) as refused:  # nobody is there: it was certainly not done
                node.table.do(beat)
            assert refused.value.is_undone
            proxy.heal()
            node.table.do(beat)
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            postgres.rows(end, postgres_database)
            postgres.wait_until_left(postgres_database)
            connection = node.table._line._connection
            assert connection is not None
            until(lambda: _is_over(connection) and connection.closed, "the proxy has passed on the end")
            node.table.do(beat)  # an idle connection that the server ended costs nothing


class Counts(NamedTuple):
    """What was read of a relation."""

    scans: int
    """Scans of all rows."""
    rows: int


def counts(postgres: PostgresServer, database: str, relation: str) -> Counts:
    """What all sessions have read of *relation*. A session's counts are complete only when it is over.

    Before PostgreSQL 15 a collector keeps them, and we get a copy that may be older than the last end.
    """
    postgres.wait_until_left(database)
    over = postgres.value("SELECT clock_timestamp()")
    read = (
        "SELECT seq_scan, seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables "
        "WHERE relname = %s AND coalesce(pg_stat_get_snapshot_timestamp() > %s, true)"
    )
    found: list[tuple[int, int]] = []

    def is_new() -> bool:
        found[:] = postgres.rows(read, relation, over, database=database)
        return bool(found)

    until(is_new, "the counts are new")
    return Counts(*found[0])


def reads(
    table: Table, postgres: PostgresServer, database: str, relation: str, request: TableRequest[Any]
) -> Counts:
    """What *request* reads of *relation*. No other session may be open."""
    table.table.close()
    before = counts(postgres, database, relation)
    assert table.table.do(request)
    table.table.close()
    after = counts(postgres, database, relation)
    assert after.rows > before.rows
    return Counts(after.scans - before.scans, after.rows - before.rows)


@pytest.mark.parametrize(
    "request_",
    [
        ReadRuns(),
        ReadRuns(before=4_000),
        ReadRuns(before_us=4_000),
        ReadRuns(since_us=4_000),
        ReadRuns(name="t7", before=4_007),
        ReadRuns(run=("n1", "4000"), limit=1),
    ],
    ids=["all", "page", "before", "since", "task", "run"],
)
def test_no_look_reads_all_runs(
    table: Table, postgres: PostgresServer, postgres_database: str, postgres_url: str, request_: ReadRuns
) -> None:
    """However many runs there are, a look at some of them reads few: an index leads to each, in order."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO duly.run (namespace, name, node, token, started_us, ended_us, record, output) "
            "SELECT 'default', 't' || n % 50, 'n' || n % 3, n, n, n, "
            'format(\'["%s","due",1,2,"ok"]\', n), \'\' '
            "FROM generate_series(1, 5000) AS n"
        )
        connection.execute("VACUUM ANALYZE duly.run")
    scans, rows = reads(table, postgres, postgres_database, "run", request_)
    assert (scans, rows <= 2 * request_.limit) == (0, True), rows


@pytest.mark.parametrize("run_by", [1, None], ids=["all run", "none is due"])
def test_no_claim_reads_all_tasks(
    table: Table, postgres: PostgresServer, postgres_database: str, postgres_url: str, run_by: int | None
) -> None:
    """A claim with its ends reads few rows, also if statistics say that all tasks run, or that none does."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO duly.task "
            "(namespace, name, hash, gen, definition, state, wake_us, run_by, started_us) "
            "SELECT 'default', 't' || n, 1, 1, '', '', 9000000000000000, %s, 1 "
            "FROM generate_series(1, 20000) AS n",
            [run_by],
        )
        connection.execute("VACUUM ANALYZE duly.task")
        connection.execute("UPDATE duly.task SET run_by = NULL, wake_us = 0 WHERE name = 't7'")
        ids = connection.execute("SELECT id FROM duly.task WHERE name LIKE 't1%' LIMIT 20").fetchall()
    ends = [RowEnd(row_id, f"t{row_id}", 1, 0, 1, "", 9 * 10**15) for (row_id,) in ids]
    claim = Claim(node=table.node, gen=1_000, ends=ends, limit=9)
    scans, rows = reads(table, postgres, postgres_database, "task", claim)
    run_by_now = postgres.value("SELECT run_by FROM duly.task WHERE name = 't7'", database=postgres_database)
    assert run_by_now == table.node
    assert (scans, rows < 300) == (0, True), rows
