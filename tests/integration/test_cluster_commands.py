"""`duly cluster` on a real database: nodes, namespaces, past runs, pauses, read rights, old runs."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from duly import App, Scheduler, TaskNotFoundError
from duly.cli import main
from duly.cluster import PostgresStore
from duly.cluster.node import Node
from duly.cluster.postgres import Upkeep
from duly.cluster.table import Join, ReadOldestXmin, ReadRuns
from duly.instant import MINUTE_US, SECOND_US
from duly.integrations import RunIdentity, current
from duly.observe import Metrics
from tests.worlds.postgres import PASSWORD, PostgresServer, until

HOUR = timedelta(hours=1)


async def duly(*words: str, code: int = 0, **environment: str) -> Any:
    """What `duly cluster ... --json` answers."""
    arguments = ["cluster", *words, "--json"]
    result = await asyncio.to_thread(lambda: CliRunner().invoke(main, arguments, env=environment))
    assert result.exit_code == code, result.output
    assert PASSWORD not in result.output
    return json.loads(result.stdout)


async def running(url: str, work: Callable[[str], Awaitable[None]]) -> None:
    """Do *work* while a scheduler runs one task and has one that fails; it is told the address."""
    has_failed, is_over = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        await is_over.wait()

    async def bad() -> None:
        has_failed.set()
        raise ValueError("no")

    scheduler = Scheduler(url, timezone=UTC)
    await scheduler.initialize([("long", "* * * * *", long, HOUR), ("bad", "* * * * *", bad, HOUR)])
    await has_failed.wait()
    try:
        await work(url)
    finally:
        is_over.set()
        await scheduler.stop()


def reader(server: PostgresServer, database: str) -> None:
    """A role that may read the tables and nothing else, and whose transactions are read-only."""
    server.rows("CREATE ROLE looker LOGIN PASSWORD 'looks'")
    server.rows("ALTER ROLE looker SET default_transaction_read_only = on")
    server.rows("GRANT USAGE ON SCHEMA duly TO looker", database=database)
    server.rows("GRANT SELECT ON ALL TABLES IN SCHEMA duly TO looker", database=database)


async def test_looking_needs_read_rights_only(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """A role that may only read sees nodes, tasks and past runs; it cannot pause anything."""

    async def look(url: str) -> None:
        await asyncio.to_thread(reader, postgres, postgres_database)
        address = f"postgresql://looker:looks@{url.rpartition('@')[2]}"
        answer = await duly("--task", "long", address)
        assert [(node["state"], node["runs"]) for node in answer["nodes"]] == [("living", ["long"])]
        assert answer["task"]["run_by"] == answer["nodes"][0]["name"]
        ended = "SELECT count(*) FROM duly.run"
        await asyncio.to_thread(
            until, lambda: postgres.value(ended, database=postgres_database), "an end is written"
        )
        (run,) = (await duly("history", "--task", "bad", DULY_STORE=address))["runs"]
        assert (run["result"], run["error"], run["node"]) == (
            *("failure", "ValueError: no", answer["nodes"][0]["name"]),
        )
        error = await duly("pause", "long", address, code=69)
        assert "a role that may only read" in error["error"]["message"]

    await running(postgres_url, look)


async def test_an_ordinary_role_will_do(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """A role that may make a schema and is no superuser runs tasks, and pauses, resumes and removes them."""
    postgres.rows("CREATE ROLE worker LOGIN PASSWORD 'works'")
    postgres.rows(f"GRANT CREATE ON DATABASE {postgres_database} TO worker")

    async def ask(url: str) -> None:
        for word in ("pause", "resume", "run", "remove"):
            assert (await duly(word, "bad", url))["done"]
        assert [node["runs"] for node in (await duly(url))["nodes"]] == [["long"]]
        with closing(PostgresStore(url).table()) as table:
            assert table.do(ReadOldestXmin()) >= 0

    await running(f"postgresql://worker:works@{postgres_url.rpartition('@')[2]}", ask)
    owners = postgres.rows(
        "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'duly'", database=postgres_database
    )
    assert owners == [("worker",)]


@pytest.mark.parametrize("asks", ["command", "program"])
async def test_pause_resume_and_remove(postgres_url: str, asks: str) -> None:
    """A command or a program pauses, resumes and removes a task; a name that is not there is refused."""
    store = PostgresStore(postgres_url)

    async def ask(word: str) -> None:
        if asks == "program":
            await getattr(store, word)("bad")
            return
        more = {"paused": word == "pause"} if word != "remove" else {}
        assert await duly(word, "bad", postgres_url) == {"done": True, "task": "bad", **more}

    async def switch(url: str) -> None:
        for word in ("pause", "resume"):
            await ask(word)
            assert (await duly("--task", "bad", url))["task"]["paused"] is (word == "pause")
        assert (await duly("resume", "baad", url, code=3))["error"]["close"] == ["bad"]
        await ask("remove")
        for word in ("pause", "resume", "remove"):
            with pytest.raises(TaskNotFoundError, match="There is no task 'bad' in namespace 'default'"):
                await getattr(store, word)("bad")
            assert (await duly(word, "bad", url, code=3))["error"]["code"] == "not_found"
        assert (await duly("--task", "bad", url, code=3))["error"]["code"] == "not_found"

    await running(postgres_url, switch)


async def test_run_now(postgres_url: str) -> None:
    """A task that is not due runs when a command or a program asks; a name that is not there is refused.

    The body has the run id and the fencing token that the history shows of its run.
    """
    runs: asyncio.Queue[RunIdentity | None] = asyncio.Queue()

    async def note() -> None:
        runs.put_nowait(current())

    scheduler = Scheduler(postgres_url, timezone=UTC)
    await scheduler.initialize([("rare", "0 0 29 2 *", note, HOUR)])
    assert await duly("run", "rare", postgres_url) == {"done": True, "task": "rare"}
    ran = [await runs.get()]
    await PostgresStore(postgres_url).run_now("rare")
    ran.append(await runs.get())
    assert (await duly("run", "rear", postgres_url, code=3))["error"]["close"] == ["rare"]
    with pytest.raises(TaskNotFoundError, match="There is no task 'rear'"):
        await PostgresStore(postgres_url).run_now("rear")
    await scheduler.stop()
    past = reversed((await duly("history", postgres_url))["runs"])
    shown = [(run["cause"], run["run_id"], run["token"]) for run in past]
    assert shown == [("manual", str(run.id), run.token) for run in ran if run is not None]
    assert 0 < (shown[0][2] or 0) < shown[1][2]


async def test_remove(postgres_url: str) -> None:
    """A task that is removed does not start again on a node that has it in its list; the others do."""
    started: asyncio.Queue[str] = asyncio.Queue()

    async def start(name: str) -> None:
        started.put_nowait(name)
        raise ValueError("once more")

    async def starts_until(name: str) -> list[str]:
        heard: list[str] = []
        while heard.count(name) < 5:
            heard.append(await started.get())
        return heard

    soon = timedelta(milliseconds=1)
    scheduler = Scheduler(postgres_url, timezone=UTC)
    tasks = [(name, "* * * * *", partial(start, name), soon) for name in ("one", "other")]
    await scheduler.initialize(tasks)
    await starts_until("one")
    assert await duly("remove", "one", postgres_url) == {"done": True, "task": "one"}
    await starts_until("other")  # a start of the one that was under way is among these
    assert "one" not in await starts_until("other")
    await scheduler.stop()


async def test_remove_while_a_run_starts_or_ends(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """A task is removed also when its row changes while the statement waits for it."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = '{}'"

    async def remove_during(change: str, name: str) -> None:
        with psycopg.connect(postgres_url) as other:
            other.execute(f"UPDATE duly.task SET run_by = {change} WHERE name = '{name}'")
            removing = asyncio.create_task(PostgresStore(postgres_url).remove(name))
            await asyncio.to_thread(
                until, lambda: postgres.value(waiting.format(postgres_database)), "the statement waits"
            )
            other.commit()
        await removing

    async def ask(_url: str) -> None:
        await remove_during("(SELECT id FROM duly.node)", "bad")  # as a claim does
        await remove_during("NULL", "long")  # as an end does

    await running(postgres_url, ask)


async def test_namespaces(postgres_url: str) -> None:
    """Another namespace of the same database has none of these nodes, by option and by address."""

    async def look(url: str) -> None:
        assert len((await duly(url))["nodes"]) == 1
        assert (await duly("--namespace", "billing", url))["nodes"] == []
        assert (await duly(f"{url}?namespace=billing"))["namespace"] == "billing"
        two = await duly("--namespace", "other", f"{url}?namespace=billing", code=69)
        assert "two namespaces" in two["error"]["message"]

    await running(postgres_url, look)


async def test_file_of_a_daemon(tmp_path: Path, postgres_url: str) -> None:
    """The file of a daemon stands for the address in it, and for the tables of daemons."""
    text = f'[supervisor]\ntimers = true\nstore = "{postgres_url}"\n'
    (tmp_path / "duly.toml").write_text(f'{text}[[service]]\nid = "a"\ntype = "oneshot"\ncommand = "true"\n')
    missing = await duly(str(tmp_path / "duly.toml"), code=69)
    assert "schema 'duly_daemon'; start a scheduler" in missing["error"]["message"]
    await PostgresStore(postgres_url, schema="duly_daemon").open("id")
    assert (await duly(str(tmp_path / "duly.toml")))["nodes"] == []


async def test_metrics_of_a_node(postgres_url: str) -> None:
    """A node tells how many nodes it sees, how old its last heartbeat is, and how late it claims."""
    store = PostgresStore(postgres_url)
    metrics = Metrics(node=store.health)
    assert b"duly_nodes" not in metrics.exposition()
    scheduler = Scheduler(store, timezone=UTC, listeners=[metrics.listener])
    await scheduler.initialize([])
    seen = metrics.exposition().decode()
    await scheduler.stop()
    assert "duly_nodes 1.0" in seen
    assert "duly_heartbeat_age_seconds " in seen
    assert "duly_claim_lag_seconds 0.0" in seen
    assert "duly_oldest_xmin_age " in seen
    assert b"duly_nodes" not in metrics.exposition()


OLD_RUNS = """INSERT INTO duly.run (namespace, name, node, token, started_us, ended_us, record)
    SELECT 'default', name, 'n', 1, days, duly.now_us() - (days + 0.5) * 86400000000,
        '["id", "cron", 0, 1, "success"]'
    FROM generate_series({}) AS name, generate_series({}) AS days"""


def test_old_runs_are_forgotten(postgres: PostgresServer, postgres_database: str, postgres_url: str) -> None:
    """The node with the smallest id removes runs that are older than the history, once a minute."""
    store = PostgresStore(postgres_url)

    def new_node(number: int) -> Node:
        lease_us = 6 * SECOND_US
        node = Node(name="n", version="", lease_us=lease_us, steady=lambda: 0, draw=lambda: number)
        node.joined(table.do(Join(node=node.id, name="n", lease_us=lease_us, version="")), 0)
        return node

    def left(by: Node) -> list[int]:
        Upkeep(by, table, 24 * 60 * MINUTE_US).carry_out(0)
        return [past.started_us for past in table.do(ReadRuns())]

    with closing(store.table()) as table:
        table.open(store.name, "id")
        nodes = [new_node(1), new_node(2)]
        postgres.rows(OLD_RUNS.format("1, 1", "0, 2"), database=postgres_database)
        assert left(by=nodes[1]) == [2, 1, 0]
        assert left(by=nodes[0]) == [0]


def test_a_program_says_how_many_runs_are_kept(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """With the limits of an app, of each task the latest runs are kept, in as many steps as that takes."""
    store = PostgresStore(postgres_url)
    app = App(store, history_age="30d", history_count=2)
    node = app._backend.node  # type: ignore[attr-defined]
    with closing(store.table()) as table:
        table.open(store.name, "id")
        node.joined(table.do(Join(node=node.id, name="n", lease_us=node.lease_us, version="")), 0)
        postgres.rows(OLD_RUNS.format("1, 120", "20, 31"), database=postgres_database)
        upkeep = Upkeep(node, table, None)
        upkeep.carry_out(0)
        upkeep.carry_out(node.beat_us)
        runs = table.do(ReadRuns(limit=2_000))
    assert Counter(past.name for past in runs) == dict.fromkeys(map(str, range(1, 121)), 2)
    assert {past.started_us for past in runs} == {28, 29}, "30 days old is too old, and the latest are kept"


def test_long_transaction_is_seen(postgres_url: str) -> None:
    """While somebody holds an old snapshot, the age of the oldest one grows with every claim."""
    store = PostgresStore(postgres_url)
    with closing(store.table()) as table, psycopg.connect(postgres_url) as dump:
        table.open(store.name, "id")
        dump.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        dump.execute("SELECT 1")
        before = table.do(ReadOldestXmin())
        for number in range(5):
            table.do(Join(node=number, name="n", lease_us=6 * SECOND_US, version=""))
        assert table.do(ReadOldestXmin()) >= before + 5
