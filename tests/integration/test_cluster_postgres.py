"""A scheduler and `duly cluster` on a database that refuses: one sentence, the right code, no secret."""

import asyncio
import json
import logging
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from duly import Event, Scheduler, ScheduleTaskError
from duly.cli import main
from duly.cluster import PostgresStore
from duly.verify import Recorder
from tests.worlds.postgres import (
    PASSWORD,
    STEADY_LEASE_S,
    PgBouncer,
    PostgresMissingError,
    PostgresServer,
    Servers,
    until,
)
from tests.worlds.proxy import Proxy, free_port, through

SECRET = "hunter2-s3cret"

Asked = Callable[[str], str]


async def nothing() -> None:
    pass


LIST = [("task", "* * * * *", nothing, timedelta(seconds=1))]


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


@pytest.fixture(params=["unreachable", "wrong password"])
def refused(request: pytest.FixtureRequest, postgres_url: str) -> tuple[str, str]:
    """An address that will not do, and words that say why (test_postgres_sentences has all of these)."""
    if request.param == "unreachable":
        return through(postgres_url, free_port()), "cannot be reached"
    return f"postgresql://postgres:{SECRET}@{postgres_url.rpartition('@')[2]}", "refuses the password"


def test_command_refuses(refused: tuple[str, str]) -> None:
    """`duly cluster` says what is wrong in one sentence, and ends with code 69."""
    url, words = refused
    sentence = cluster_refusal(url)
    assert words in sentence
    assert url not in sentence


async def test_scheduler_refuses(refused: tuple[str, str], tmp_path: Path, log: StringIO) -> None:
    """`initialize` raises what is wrong, announces it, and leaves nothing behind."""
    url, words = refused
    sentence = await refusal(url, tmp_path / "trace.jsonl", log)
    assert words in sentence


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
    """A file has no nodes, and is not made by asking."""
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


async def test_node_of_a_scheduler(postgres_url: str) -> None:
    """A scheduler is a living node that runs nothing; its task is shown by name."""
    scheduler = Scheduler(postgres_url)
    await scheduler.initialize([("task", "0 0 1 1 *", nothing, timedelta(0))])
    try:
        asked = ["cluster", postgres_url, "--json", "--task", "task"]
        answer = await asyncio.to_thread(lambda: CliRunner().invoke(main, asked, catch_exceptions=False))
        text = await asyncio.to_thread(
            lambda: CliRunner().invoke(main, ["cluster"], env={"DULY_STORE": postgres_url})
        )
    finally:
        await scheduler.stop()
    shown = json.loads(answer.output)
    (node,) = shown["nodes"]
    assert (node["state"], node["runs"], shown["failovers"]) == ("living", [], [])
    assert (shown["task"]["name"], shown["task"]["run_by"]) == ("task", None)
    assert text.output.startswith("Namespace default: 1 node, 0 runs.\n")
    assert node["name"] in text.output


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
        await scheduler.initialize(LIST)
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


@pytest.fixture
def tls_url(postgres: PostgresServer, postgres_database: str, certificate: Path) -> str:
    """A database behind a PgBouncer that wants TLS."""
    try:
        pooler = PgBouncer(postgres, certificate=(certificate, certificate.with_suffix(".key")))
    except PostgresMissingError as error:
        pytest.skip(str(error))
    return pooler.url(postgres_database)


async def test_tls(tls_url: str, certificate: Path) -> None:
    """A node reaches a server that wants TLS, and checks its certificate. Without TLS it is told so."""
    ran = asyncio.Event()

    async def run() -> None:
        ran.set()

    scheduler = Scheduler(f"{tls_url}?sslmode=verify-ca&sslrootcert={certificate}")
    await scheduler.initialize([("task", "* * * * *", run, timedelta(0))])
    await ran.wait()
    await scheduler.stop()
    assert "SSL required" in cluster_refusal(f"{tls_url}?sslmode=disable")
