"""What is said of a database that refuses: one sentence, what to do, and never a password."""

import asyncio
import json
import logging
import traceback
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from io import StringIO
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from duly import Event, Scheduler, ScheduleTaskError
from duly.cli import main
from duly.cluster import PostgresStore
from duly.cluster.messages import reason_of
from duly.cluster.table import Heartbeat, Join
from duly.errors import StoreError
from duly.instant import SECOND_US
from duly.verify import Recorder
from tests.worlds.postgres import PASSWORD, PostgresServer
from tests.worlds.proxy import free_port, through

SECRET = "hunter2-s3cret"
JOIN = Join(node=1, name="host", lease_us=SECOND_US, version="0")


def join(store: PostgresStore) -> None:
    with closing(store.table()) as table:
        table.do(JOIN)


async def refused(url: str, *, passes: bool = False) -> StoreError:
    """The error of opening a store at *url*, raised at once unless it *passes*. Nothing of it is secret."""
    tries: list[tuple[str, float]] = []
    wait = timedelta(0) if passes else timedelta(minutes=2)
    with pytest.raises(StoreError) as told:
        await PostgresStore(url, wait=wait, on_wait=lambda *tried: tries.append(tried)).open("id")
    assert tries == []
    error = told.value
    check_no_secret("".join(traceback.format_exception(error)) + repr(error) + repr(error.details))
    return error


def check_no_secret(text: str) -> None:
    """Nobody says a password, nor any form of it that would do."""
    for secret in (SECRET, PASSWORD, PASSWORD.replace("/", "%2F").replace(" ", "%20")):
        assert secret not in text


def command(*arguments: str, code: int) -> Result:
    """What a command says; it ends with *code*."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    check_no_secret(result.output)
    assert "Traceback" not in result.output
    return result


def cluster_refusal(url: str) -> str:
    """The sentence with which `duly cluster` refuses, for people and for machines."""
    said = command("cluster", url, code=69).stderr
    answer = json.loads(command("cluster", "--json", url, code=69).stdout)
    assert len([line for line in said.splitlines() if line]) == 1
    assert answer["error"]["message"] in said
    return str(answer["error"]["message"])


@pytest.fixture
def log() -> Iterator[StringIO]:
    said = StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    yield said
    logging.getLogger().removeHandler(handler)


def as_role(url: str, role: str, password: str = SECRET) -> str:
    """The same database for another role."""
    _, _, place = url.rpartition("@")
    return f"postgresql://{role}:{password}@{place}"


@pytest.fixture
def role(postgres: PostgresServer, postgres_database: str) -> str:
    """A role that may log in, and nothing more."""
    name = f"role_of_{postgres_database}"
    postgres.rows(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    return name


@pytest.mark.parametrize("how", ["unreachable", "wrong password"])
async def test_everybody_says_the_same(how: str, postgres_url: str, tmp_path: Path, log: StringIO) -> None:
    """A store, `duly cluster` and a scheduler refuse with one sentence; a scheduler announces it, too."""
    url, words = as_role(postgres_url, "postgres"), ["refuses the password"]
    if how == "unreachable":
        url, words = through(postgres_url, free_port()), ["cannot be reached (", "refused"]
    error = await refused(url, passes=how == "unreachable")
    assert all(word in error.message for word in words)
    assert error.details["store"].startswith("postgresql://postgres@127.0.0.1:")
    assert isinstance(error.__cause__, psycopg.OperationalError)
    said = await asyncio.to_thread(cluster_refusal, url)
    assert all(word in said for word in words)
    events: list[Event] = []
    scheduler = Recorder(tmp_path / "trace").wrap(Scheduler(url, listeners=[events.append]))
    with pytest.raises(ScheduleTaskError) as told:
        await scheduler.initialize([])
    await scheduler.stop()
    (failed,) = [event for event in events if event.name == "SchedulerInitializationFailed"]
    check_no_secret(f"{events} {told.value} {told.value.__cause__} {told.value.details}")
    check_no_secret((tmp_path / "trace").read_text() + log.getvalue())
    assert all(word in str(told.value.__cause__) for word in words)
    assert str(told.value.__cause__) in failed.fields["error"]


def test_looking_makes_nothing(postgres_url: str, postgres: PostgresServer, postgres_database: str) -> None:
    """`duly cluster` on an empty database says so, and leaves it empty."""
    assert "start a scheduler on it first" in cluster_refusal(postgres_url)
    count = "SELECT count(*) FROM pg_namespace WHERE nspname = 'duly'"
    assert postgres.value(count, database=postgres_database) == 0


@pytest.mark.parametrize("command_line", [["cluster"], ["store", "copy", __file__]])
def test_address_without_its_beginning(command_line: list[str]) -> None:
    """An address that lacks postgresql:// is taken for a file, and not repeated either."""
    said = command(*command_line, f"me:{SECRET}@db.example/app", code=2).stderr
    assert "postgresql://host/database" in said


async def test_unknown_host() -> None:
    """The name of the host means nothing."""
    error = await refused(f"postgresql://me:{SECRET}@no-such-host.invalid/x", passes=True)
    assert "cannot be reached (" in error.message
    assert "no-such-host.invalid" in error.message


async def test_no_password(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password is wanted and none is there."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    _, _, place = postgres_url.rpartition("@")
    error = await refused(f"postgresql://postgres@{place}")
    assert "asks for a password" in error.message


async def test_unknown_database(postgres_url: str) -> None:
    """There is no such database."""
    error = await refused(postgres_url + "_or_not")
    assert "has no such database" in error.message


@pytest.mark.parametrize(
    ("mode", "words"), [("require", "does not support SSL"), ("perhaps", "invalid sslmode value")]
)
async def test_encryption(postgres_url: str, mode: str, words: str) -> None:
    """Encryption is wanted that the server does not have, or in a way that nobody knows."""
    assert words in (await refused(f"{postgres_url}?sslmode={mode}")).message


async def test_no_right_to_make_a_schema(postgres_url: str, role: str) -> None:
    """The role may not make the schema: the right that is missing is named."""
    error = await refused(as_role(postgres_url, role))
    assert "lacks a right (permission denied for database" in error.message


async def test_no_right_to_the_schema(postgres_url: str, role: str) -> None:
    """The tables are there, and the role may not look into its schema."""
    await PostgresStore(postgres_url).open("id")
    error = await refused(as_role(postgres_url, role))
    assert "lacks a right (permission denied for schema duly)" in error.message


async def test_no_right_to_a_table(
    postgres: PostgresServer, postgres_database: str, postgres_url: str, role: str
) -> None:
    """The role lacks some rights: opening says which, before anything fails half-way."""
    await PostgresStore(postgres_url).open("id")
    for statement in (
        f"GRANT USAGE ON SCHEMA duly TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA duly TO {role}",
        f"REVOKE INSERT, DELETE ON duly.task FROM {role}",
    ):
        postgres.rows(statement, database=postgres_database)
    error = await refused(as_role(postgres_url, role))
    assert "the role needs INSERT on table duly.task, DELETE on table duly.task" in error.message
    postgres.rows(f"GRANT INSERT, DELETE ON duly.task TO {role}", database=postgres_database)
    store = PostgresStore(as_role(postgres_url, role))
    assert await store.open("other") == "id"
    join(store)


async def test_prepared_schema_is_enough(
    postgres: PostgresServer, postgres_database: str, postgres_url: str, role: str
) -> None:
    """A role that may make no schema can use an empty one that was made for it."""
    postgres.rows(f"CREATE SCHEMA duly AUTHORIZATION {role}", database=postgres_database)
    assert await PostgresStore(as_role(postgres_url, role)).open("id") == "id"


async def test_foreign_schema(postgres: PostgresServer, postgres_database: str, postgres_url: str) -> None:
    """A schema of that name with tables of another program is left alone; another schema can be chosen."""
    postgres.rows("CREATE SCHEMA duly", database=postgres_database)
    postgres.rows("CREATE TABLE duly.meta (theirs text)", database=postgres_database)
    error = await refused(postgres_url)
    assert "has a schema 'duly' that is not ours; choose another database or schema" in error.message
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'duly'"
    assert postgres.value(tables, database=postgres_database) == 1
    assert await PostgresStore(postgres_url, schema="other").open("id") == "id"


async def test_standby(own_postgres: PostgresServer) -> None:
    """A standby is told from a primary, by the connection or by asking it."""
    error = await refused(own_postgres.standby().url(), passes=True)
    assert "is read-only: a standby" in error.message
    error = await refused(own_postgres.standby().url() + "?target_session_attrs=any", passes=True)
    assert "is in recovery: a standby" in error.message


async def test_read_only_database(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """A database that is made read-only under a node says so."""
    store = PostgresStore(postgres_url + "?target_session_attrs=any")
    await store.open("id")
    join(store)
    postgres.rows(f"ALTER DATABASE {postgres_database} SET default_transaction_read_only = on")
    with closing(store.table()) as table, pytest.raises(StoreError, match="is read-only"):
        table.do(Heartbeat(node=1, acked=0))


async def test_too_many_connections(
    postgres: PostgresServer, postgres_database: str, postgres_url: str, role: str
) -> None:
    """There is no connection left for us."""
    postgres.rows(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    with psycopg.connect(as_role(postgres_url, role)):
        error = await refused(as_role(postgres_url, role))
    assert "has too many connections" in error.message


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("53100", "its disk is full"),
        ("57P01", "is being shut down"),
        ("57P03", "is starting up"),
        ("25006", "is read-only"),
        ("42501", "lacks a right (no way)"),
        ("XX000", "failed: no way (XX000)"),
    ],
)
def test_other_states(state: str, words: str) -> None:
    """What is hard to bring about has its sentence too."""
    assert words in reason_of(psycopg.errors.lookup(state)("no way"))


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@host:port/db",
        f"postgresql://me:{SECRET}@host:99999/db",
        f"postgresql://me:a/{SECRET}@host/db",
        f"postgresql://me:a?{SECRET}@host/db",
        f"postgresql://me:a#{SECRET}@host/db",
        f"postgresql://me:a@{SECRET}@host/db",
        f"postgresql://me:{SECRET}%zz@host/db",
        f"postgresql://me:{SECRET}%00@host/db",
        f"postgresql://me:{SECRET}@[::1/db",
        f"postgresql://me@host/db?password={SECRET}&passwort=x",
        f"postgresql://me@host/db?{SECRET}",
        f"mysql://me:{SECRET}@host/db",
        f"host=x password={SECRET}",
    ],
)
async def test_unreadable_address(url: str) -> None:
    """An address that cannot be read, or not in one way only, is refused without repeating any of it."""
    error = await refused(url)
    assert error.message.startswith("Store postgresql://…: ")
    assert error.__cause__ is None
    if url.startswith("postgresql:"):
        await asyncio.to_thread(command, "cluster", url, code=69)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"postgresql://me:{SECRET}@host/db", "postgresql://me@host/db"),
        (f"postgres://me:{SECRET}@host:5433/db?sslmode=require", "postgresql://me@host:5433/db"),
        (f"postgresql://host/db?user=me&password={SECRET}", "postgresql://me@host/db"),
        (f"postgresql://me:{SECRET}@a:1,b:2/db", "postgresql://me@a:1,b:2/db"),
        (f"postgresql://me:{SECRET}@a,b:2/db", "postgresql://me@a,b:2/db"),
        (f"postgresql://me:{SECRET}@[::1]:5/d%40b", "postgresql://me@[::1]:5/d%40b"),
        ("postgresql:///db?host=/run/pg&port=5", "postgresql:///db?host=/run/pg&port=5"),
        (f"postgresql://m%40e:{SECRET}@h/d?sslpassword={SECRET}", "postgresql://m%40e@h/d"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_name_holds_no_secret(url: str, name: str) -> None:
    """A store is called by its address, without password and options."""
    assert PostgresStore(url).name == name
