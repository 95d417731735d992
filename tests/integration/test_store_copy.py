"""`duly store copy`: from a file to a database, with all that is remembered; and on from there."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from duly import Event, Scheduler
from duly.cli import main
from duly.cluster import PostgresStore
from duly.cluster.table import ReadTasks, TaskView, row_name
from duly.cluster.tasks import TaskCodec
from duly.core.task import Task, cut_off, failed, started, succeeded
from duly.store import SQLiteStore
from duly.testing.conformance import NOW_US, sample_task
from tests.worlds.postgres import PASSWORD, PostgresServer

MINUTE_US = 60_000_000


def named(number: int, name: str) -> Task:
    """A task that has never run."""
    return replace(sample_task(number), name=name)


def every_state() -> list[Task]:
    """Tasks in every state that a store can hold, with odd names."""
    running = started(named(1, "running"), NOW_US, is_retry=False)
    once = started(named(2, "failed"), NOW_US, is_retry=False)
    waiting = failed(once, NOW_US + 5)
    twice = failed(
        started(replace(waiting, name="failed twice", id=3), NOW_US + 7, is_retry=True), NOW_US + 9
    )
    interrupted = cut_off(started(named(4, "interrupted"), NOW_US, is_retry=False))
    good = succeeded(started(named(5, "succeeded"), NOW_US, is_retry=False), NOW_US + 11)
    odd = ["", " ", "a\x00b", "Grüße, 世界 🎉", "'; DROP TABLE task; --", "x" * 100_000, "%s\\n"]
    return [running, waiting, twice, interrupted, good, *(named(6 + n, name) for n, name in enumerate(odd))]


def filled(path: Path, tasks: Sequence[Task], scheduler_id: str = "its-id") -> None:
    """A store with these tasks, that nobody holds."""

    async def fill() -> None:
        store = SQLiteStore(path)
        await store.open(scheduler_id)
        await store.replace(put=tasks, removed=[])
        await store.close()

    asyncio.run(fill())


def copy(source: Path, target: str, *options: str, code: int = 0) -> Result:
    """Call the command, which ends with *code*."""
    result = CliRunner().invoke(main, ["store", "copy", "--tz", "UTC", str(source), target, *options])
    assert result.exit_code == code, result.output
    assert PASSWORD not in result.output
    assert "Traceback" not in result.output
    return result


def held(url: str) -> tuple[str, dict[str, str]]:
    """The identifier of a database, and the states in it by the names of their rows."""
    store = PostgresStore(url)
    with closing(store.table(is_reader=True)) as table:
        scheduler_id = table.open(store.name, "")
        views: list[TaskView] = list(table.do(ReadTasks(limit=1_000_000)))
    return scheduler_id, {view.name: view.state for view in views}


def states(tasks: Sequence[Task]) -> dict[str, str]:
    """What a database has of *tasks*: those that ran were cut off."""
    return {row_name(task.name): TaskCodec().state(cut_off(task)) for task in tasks}


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Whatever happens, what is in the file stays as it is."""

    def rows() -> list[str]:
        with closing(sqlite3.connect(path)) as connection:
            connection.text_factory = lambda data: data.decode(errors="surrogateescape")
            return list(connection.iterdump())

    before = rows()
    yield
    assert rows() == before


@pytest.mark.parametrize("tasks", [every_state(), []], ids=["every state", "none"])
def test_everything_is_copied(tmp_path: Path, postgres_url: str, tasks: list[Task]) -> None:
    """Every task arrives with all that is remembered of it, and the identifier; the file stays as it is."""
    source = tmp_path / "state.db"
    filled(source, tasks)
    with unchanged(source):
        said = copy(source, postgres_url).output
    assert f"{len(tasks)} tasks copied" in said
    assert held(postgres_url) == ("its-id", states(tasks))


def test_many_tasks(tmp_path: Path, postgres_url: str) -> None:
    """Ten thousand tasks are no other case."""
    tasks = [named(n, f"task {n}") for n in range(1, 10_001)]
    filled(tmp_path / "state.db", tasks)
    assert json.loads(copy(tmp_path / "state.db", postgres_url, "--json").output) == {"copied": 10_000}
    assert held(postgres_url)[1] == states(tasks)


def test_full_target_is_refused(tmp_path: Path, postgres_url: str) -> None:
    """A database that holds tasks is not touched, nor mixed with others."""
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    filled(first, every_state())
    filled(second, [named(1, "another")], "another-id")
    copy(first, postgres_url)
    before = held(postgres_url)
    for source in (first, second):
        assert "has tasks in namespace" in copy(source, postgres_url, code=1).output
    assert held(postgres_url) == before


def test_living_nodes_are_refused(tmp_path: Path, postgres_url: str) -> None:
    """While a scheduler is in the namespace nothing is copied there; another namespace is free."""
    filled(tmp_path / "state.db", every_state())

    async def refused() -> str:
        scheduler = Scheduler(postgres_url, timezone=UTC)
        await scheduler.initialize([])
        said = await asyncio.to_thread(lambda: copy(tmp_path / "state.db", postgres_url, code=1).output)
        await asyncio.to_thread(copy, tmp_path / "state.db", postgres_url, "--namespace", "other")
        await scheduler.stop()
        return said

    assert "has living nodes in namespace 'default'" in asyncio.run(refused())
    assert held(f"{postgres_url}?namespace=other")[1] == states(every_state())


def test_held_file_is_refused(tmp_path: Path, postgres_url: str, postgres: PostgresServer) -> None:
    """While a scheduler is on the file nothing is copied, and nothing is made in the database."""
    source = tmp_path / "state.db"
    filled(source, every_state())

    async def refused() -> str:
        store = SQLiteStore(source)
        await store.open("")
        said = await asyncio.to_thread(lambda: copy(source, postgres_url, code=1).output)
        await store.close()
        return said

    assert f"in use by another scheduler (process {os.getpid()}" in asyncio.run(refused())
    database = postgres_url.rpartition("/")[2]
    count = "SELECT count(*) FROM pg_namespace WHERE nspname = 'duly'"
    assert postgres.value(count, database=database) == 0


@pytest.mark.parametrize(("column", "value"), [("retry_count", -5), ("cron", "nonsense")])
def test_damaged_task_is_refused(tmp_path: Path, postgres_url: str, column: str, value: object) -> None:
    """A task that cannot be read is not left behind in silence: nothing is copied."""
    source = tmp_path / "state.db"
    filled(source, every_state())
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.execute(f"UPDATE task SET {column} = ? WHERE id = 5", [value])
    assert (column if value == -5 else str(value)) in copy(source, postgres_url, code=1).output


def test_failure_on_the_way_leaves_nothing(
    tmp_path: Path, postgres_url: str, postgres: PostgresServer
) -> None:
    """If the copy cannot be finished the database holds no task, and the next try succeeds."""
    source, tasks = tmp_path / "state.db", every_state()
    filled(source, [])
    copy(source, postgres_url)
    source.unlink()
    filled(source, tasks)
    database = postgres_url.rpartition("/")[2]
    postgres.rows("ALTER TABLE duly.task ADD CONSTRAINT trap CHECK (name <> 'succeeded')", database=database)
    copy(source, postgres_url, code=1)
    assert held(postgres_url)[1] == {}
    postgres.rows("ALTER TABLE duly.task DROP CONSTRAINT trap", database=database)
    copy(source, postgres_url)
    assert held(postgres_url)[1] == states(tasks)


async def test_scheduler_goes_on(tmp_path: Path, postgres_url: str) -> None:
    """A scheduler on the copy keeps the tasks: none is new, and none runs again."""
    events: list[Event] = []
    starts: list[str] = []
    failed_once = asyncio.Event()

    async def good() -> None:
        starts.append("good")

    async def bad() -> None:
        starts.append("bad")
        failed_once.set()
        raise ValueError

    # The minute that begins next must not come in between; "good" ran in this one and is not due before.
    listed = [
        ("good", "* * * * *", good, timedelta(hours=1)),
        ("bad", "* * * * *", bad, timedelta(hours=1)),
    ]
    before = Scheduler(tmp_path / "state.db", timezone=UTC, listeners=[events.append])
    await before.initialize(listed)
    await failed_once.wait()
    await before.stop()
    count = len(starts)
    await asyncio.to_thread(lambda: copy(tmp_path / "state.db", postgres_url))
    events.clear()
    after = Scheduler(postgres_url, timezone=UTC, listeners=[events.append])
    await after.initialize(listed)
    await after.stop()
    names = [event.name for event in events]
    assert names.count("TaskPreserved") == 2
    assert "TaskAdded" not in names
    again = {event.fields["cause"] for event in events if event.name == "TaskRunStarted"}
    assert again <= {"cron"}  # a minute may have begun meanwhile
    assert len(starts) - count == names.count("TaskRunStarted")
