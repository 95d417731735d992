"""A scheduler and `duly cluster` on a database that refuses: one sentence, the right code, no secret."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from duly import Event, Scheduler, ScheduleTaskError
from duly.cli import main
from duly.verify import Recorder
from tests.postgres import PASSWORD, PostgresServer
from tests.proxy import Proxy, free_port, through

SECRET = "hunter2-s3cret"

Asked = Callable[[str], str]


async def nothing() -> None:
    pass


LIST = [("task", "* * * * *", nothing, timedelta(seconds=1))]


def as_role(url: str, role: str, password: str = SECRET) -> str:
    """The same database for another role."""
    return f"postgresql://{role}:{password}@{url.rpartition('@')[2]}"


@pytest.fixture
def role(postgres: PostgresServer, postgres_database: str) -> str:
    """A role that may log in, and nothing more."""
    name = f"role_at_{postgres_database}"
    postgres.rows(f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}'")
    return name


@pytest.fixture
def log() -> Iterator[StringIO]:
    """All that is logged."""
    said = StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    yield said
    logging.getLogger().removeHandler(handler)


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


async def refusal(url: str, trace: Path, log: StringIO) -> str:
    """The sentence with which a scheduler on *url* refuses to begin, wherever it is said."""
    events: list[Event] = []
    scheduler = Recorder(trace).wrap(Scheduler(url, listeners=[events.append]))
    with pytest.raises(ScheduleTaskError) as told:
        await scheduler.initialize(LIST)
    await scheduler.stop()
    (failed,) = [event for event in events if event.name == "SchedulerInitializationFailed"]
    check_no_secret(f"{events} {told.value} {told.value.__cause__} {told.value.details}")
    check_no_secret(trace.read_text() + log.getvalue())
    sentence = str(told.value.__cause__)
    assert sentence in failed.fields["error"]
    return sentence


def cluster_refusal(url: str) -> str:
    """The sentence with which `duly cluster` refuses, for people and for machines."""
    said = command("cluster", url, code=69).stderr
    answer = json.loads(command("cluster", "--json", url, code=69).stdout)
    assert len([line for line in said.splitlines() if line]) == 1
    assert answer["error"]["message"] in said
    return str(answer["error"]["message"])


CASES = ["unreachable", "wrong password", "no rights", "newer", "foreign", "recovery"]


@pytest.fixture(params=CASES)
def refused(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    postgres_database: str,
    postgres_url: str,
    role: str,
) -> tuple[str, str]:
    """An address that will not do, and words that say why."""
    match request.param:
        case "unreachable":
            return through(postgres_url, free_port()), "cannot be reached"
        case "wrong password":
            return as_role(postgres_url, "postgres"), "refuses the password"
        case "no rights":
            return as_role(postgres_url, role), "no tables of duly|lacks a right"
        case "newer":
            CliRunner().invoke(main, ["cluster", postgres_url])
            postgres.rows("CREATE SCHEMA duly", database=postgres_database)
            postgres.rows(
                "CREATE TABLE duly.meta (duly_format integer, scheduler_id text, shards integer)",
                database=postgres_database,
            )
            postgres.rows("INSERT INTO duly.meta VALUES (99, 'x', 32)", database=postgres_database)
            return postgres_url, "newer duly"
        case "foreign":
            postgres.rows("CREATE SCHEMA duly", database=postgres_database)
            postgres.rows("CREATE TABLE duly.invoices (id integer)", database=postgres_database)
            return postgres_url, "not ours"
    server: PostgresServer = request.getfixturevalue("own_postgres")
    return server.standby().url(), "standby"


def test_command_refuses(refused: tuple[str, str]) -> None:
    """`duly cluster` says what is wrong in one sentence, and ends with code 69."""
    url, words = refused
    sentence = cluster_refusal(url)
    assert any(word in sentence for word in words.split("|")), sentence
    assert url not in sentence


async def test_scheduler_refuses(refused: tuple[str, str], tmp_path: Path, log: StringIO) -> None:
    """`initialize` raises what is wrong, announces it, and leaves nothing behind."""
    url, words = refused
    sentence = await refusal(url, tmp_path / "trace.jsonl", log)
    assert any(word in sentence for word in words.split("|")), sentence


def test_looking_makes_nothing(postgres_url: str, postgres: PostgresServer, postgres_database: str) -> None:
    """`duly cluster` on an empty database says so, and leaves it empty."""
    assert "start a scheduler on it first" in cluster_refusal(postgres_url)
    count = "SELECT count(*) FROM pg_namespace WHERE nspname = 'duly'"
    assert postgres.value(count, database=postgres_database) == 0


@pytest.mark.parametrize("url", [f"postgresql://u:{SECRET}@h@x/y", f"postgresql://u:{SECRET}/@x:y/z"])
def test_unreadable_address(url: str) -> None:
    """An address that cannot be read in one way only is not repeated."""
    command("cluster", url, code=69)
    with pytest.raises(Exception, match=r"address|port") as told:
        Scheduler(url)
    check_no_secret(str(told.value))


def test_store_of_one(tmp_path: Path) -> None:
    """A file has no members, and is not made by asking."""
    said = command("cluster", str(tmp_path / "state.db"), code=2).stderr
    assert "one scheduler at a time" in said
    assert not (tmp_path / "state.db").exists()


@pytest.mark.parametrize("command_line", [["cluster"], ["store", "copy", __file__]])
def test_address_without_its_beginning(command_line: list[str]) -> None:
    """An address that lacks postgresql:// is taken for a file, and not repeated either."""
    said = command(*command_line, f"me:{SECRET}@db.example/app", code=2).stderr
    assert "postgresql://host/database" in said


async def test_reachable_later(postgres: PostgresServer, postgres_url: str) -> None:
    """A scheduler that could not begin can begin later, on the same object, and again after a stop."""
    with Proxy(postgres.port) as cable:
        scheduler = Scheduler(through(postgres_url, cable.port))
        cable.cut()
        with pytest.raises(ScheduleTaskError):
            await scheduler.initialize(LIST)
        cable.heal()
        for _ in range(2):
            await scheduler.initialize(LIST)
            await scheduler.stop()


async def test_real_board(postgres_url: str) -> None:
    """On a real board with one scheduler: it is alive, and holds everything."""
    scheduler = Scheduler(postgres_url)
    await scheduler.initialize([("task", "0 0 1 1 *", nothing, timedelta(0))])
    try:
        asked = ["cluster", postgres_url, "--json", "--task", "task"]
        answer = await asyncio.to_thread(lambda: CliRunner().invoke(main, asked, catch_exceptions=False))
        text = await asyncio.to_thread(
            lambda: CliRunner().invoke(main, ["cluster", "--shards"], env={"DULY_STORE": postgres_url})
        )
    finally:
        await scheduler.stop()
    told_json = json.loads(answer.output)
    (member,) = told_json["members"]
    assert (member["alive"], member["shards"], member["edition"]) == (True, 32, 1)
    assert told_json["shards"][told_json["task"]["shard"]]["holder"] == member["name"]
    assert text.output.startswith("1 member, 32 shards, edition 1.\n")
    assert text.output.count(member["name"]) == 33
