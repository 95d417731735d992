"""Passwords of databases: never the name of a file, never in a message, a log, an answer or `ps`."""

import asyncio
import json
import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import pytest
from click.testing import CliRunner
from examples.demo.__main__ import demo

from duly import Scheduler
from duly.cli import main
from duly.cluster import PostgresStore
from duly.places import StoreKind, has_password, kind_of, without_secrets
from duly.store import store_for
from tests.acceptance.running import Home, oneshot, settings, timer

SECRET = "hunter2"
NO_ADDRESSES = (
    f"host=db.example password={SECRET}",
    f"host=db.example user=app password='{SECRET} and more' dbname=app",
    f"password = {SECRET}",
    f"connect_timeout=3\nhost=db.example\npassword={SECRET}",
    f"Host=db.example;Username=app;Password={SECRET}",
    f"postgresql:app:{SECRET}@db.example/app",
    f"postgres:/app:{SECRET}@db.example/app",
    f"POSTGRESQL://app:{SECRET}@db.example/app",
    f" postgresql://app:{SECRET}@db.example/app",
    f"postgresql+psycopg://app:{SECRET}@db.example/app",
    f"jdbc:postgresql://db.example/app?password={SECRET}",
    f"app:{SECRET}@db.example/app",
    f"app:{SECRET}/x@db.example/app",
    f"//app:{SECRET}@db.example/app",
    f"mysql://app:{SECRET}@db.example/app",
)
ADDRESSES = (
    f"postgresql://app:{SECRET}@127.0.0.1:1/app",
    f"postgresql://app@127.0.0.1:1/app?password={SECRET}",
    f"postgresql://app@127.0.0.1:1/app?sslmode=prefer&sslpassword={SECRET}",
    f"postgresql://app:{SECRET}@127.0.0.1:x/app",
    f"postgresql://app:a/{SECRET}@127.0.0.1:1/app",
    f"postgresql://127.0.0.1:1/host%3Dx%20password%3D{SECRET}",
    f"postgresql://app@127.0.0.1:1/app?pass{SECRET}",
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which the test works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", NO_ADDRESSES)
def test_what_is_no_address_is_no_file_either(place: str, here: Path) -> None:
    """A store that looks like a database, and is not written as one, is refused without its password."""
    for given in (place, Path(place)):
        with pytest.raises(ValueError, match=r"address|no store is known") as refused:
            store_for(given)
        assert SECRET not in str(refused.value)
        with pytest.raises(ValueError, match=r"address|no store is known") as refused:
            Scheduler(store=given)
        assert SECRET not in str(refused.value)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["state.db", "./host=x", "/tmp/a:b@c", "dir/password=x", "a@b.db", "a:b.db", "reports=2026.db"]
)
def test_a_file_may_have_a_strange_name(name: str) -> None:
    """A path that says its directory is a path, whatever the name of its file."""
    assert kind_of(name) is StoreKind.FILE


COMMANDS = (
    ("cluster", "{}"),
    ("cluster", "duly.toml", "{}"),
    ("cluster", "--task", "{}"),
    ("store", "copy", "state.db", "{}"),
    ("store", "copy", "{}", "state.db"),
    ("store", "{}"),
    ("why", "job", "--store", "{}"),
    ("why", "job", "{}"),
    ("why", "job", "--store", "{}", "--json"),
    ("cluster", "{}", "--json"),
    ("dashboard", "--store", "{}"),
    ("{}",),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_repeats_a_password(command: tuple[str, ...], here: Path) -> None:
    """Whatever a command makes of an address, right or wrong, its output has no password in it."""
    (here / "duly.toml").write_text("")
    for place in (*NO_ADDRESSES, *ADDRESSES):
        arguments = [word.format(place) for word in command]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code != 0, (arguments, done.output)
        assert isinstance(done.exception, SystemExit), (arguments, done.exception)
        assert SECRET not in done.output, (arguments, done.output)
    assert SECRET not in " ".join(str(path) for path in here.rglob("*"))


def test_the_demo_repeats_no_password() -> None:
    """The demo refuses an address without a word of it."""
    for place in (*NO_ADDRESSES, *ADDRESSES):
        done = CliRunner().invoke(demo, ["--store", place, "--for", "0"])
        assert done.exit_code != 0, (place, done.output)
        assert SECRET not in done.output, (place, done.output)


@pytest.mark.parametrize("text", [*NO_ADDRESSES, *ADDRESSES[:2]])
def test_the_last_resort_takes_passwords_out(text: str) -> None:
    """What others say of an address is told without its password, and what holds none as it is."""
    assert SECRET not in without_secrets(f"no such thing: '{text}'")
    plain = 'job: write "@daily" at 10:30, postgresql://app@db.example:1/app, not user=app@example'
    assert without_secrets(plain) == plain


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://app:pw@h/db", True),
        ("postgresql://app:pw@h:1,g:2/db", True),
        ("postgresql://h/db?user=app&password=pw", True),
        ("postgresql://h/db?sslpassword=pw", True),
        ("postgresql://h/db?pass%77ord=pw", True),
        ("postgresql://app@h:5432/db", False),
        ("postgresql://[::1]:5432/db", False),
        ("postgresql:///db?host=/run/pg:1", False),
    ],
)
def test_a_password_in_an_address_is_seen(address: str, expected: object) -> None:
    """A password is seen before the host and among the options, also an escaped one."""
    assert has_password(address) is expected


@pytest.mark.parametrize("command", [("cluster",), ("store", "copy", "state.db")], ids=" ".join)
def test_an_address_comes_from_the_environment(
    command: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ps` shows arguments, so every command that takes an address takes it from DULY_STORE as well."""
    (here / "state.db").touch()
    monkeypatch.setenv("DULY_STORE", f"postgresql://app:{SECRET}@127.0.0.1:1/app")
    done = CliRunner().invoke(main, list(command))
    assert "postgresql://app@127.0.0.1:1/app: cannot be reached" in done.stderr
    assert SECRET not in done.output


@pytest.mark.parametrize("where", ["DULY_STORE", "PGPASSWORD", "PGPASSFILE"])
def test_a_database_is_reached_without_a_password_in_the_command(
    where: str, postgres_url: str, tmp_path: Path
) -> None:
    """The password may come with the address in DULY_STORE, or alone in PGPASSWORD or a password file."""
    user, _, place = postgres_url.removeprefix("postgresql://").rpartition("@")
    name, password = map(unquote, user.split(":"))
    asyncio.run(PostgresStore(postgres_url).open("id"))
    found = {"DULY_STORE": postgres_url, "PGPASSWORD": password, "PGPASSFILE": str(tmp_path / "pgpass")}
    escaped = password.replace("\\", "\\\\").replace(":", "\\:")
    (tmp_path / "pgpass").write_text(f"*:*:*:{name}:{escaped}\n")
    (tmp_path / "pgpass").chmod(0o600)
    arguments = [] if where == "DULY_STORE" else [f"postgresql://{name}@{place}"]
    done = CliRunner().invoke(main, ["cluster", *arguments], env={"PGPASSFILE": "", where: found[where]})
    assert done.exit_code == 0, done.output
    assert done.stderr == ""


# --- the daemon ---


@pytest.mark.parametrize("place", NO_ADDRESSES)
def test_a_configuration_is_refused_without_its_password(place: str, here: Path) -> None:
    """A daemon whose store is no address of a database does not start, and names no password."""
    config = here / "duly.toml"
    config.write_text(f"[supervisor]\nstore = {json.dumps(place)}\n")
    for command in ("run", "check", "cluster"):
        done = CliRunner().invoke(main, [command, str(config)])
        assert done.exit_code in {4, 69}, done.output
        assert SECRET not in done.output
    assert [path.name for path in here.iterdir()] == ["duly.toml"]


def test_a_whole_run_shows_no_password(tmp_path: Path) -> None:
    """Nothing that a daemon writes, answers or gives to its jobs has the password of its store in it."""
    address = f"postgresql://app:{SECRET}@127.0.0.1:1/app?sslpassword={SECRET}2"
    home = Home(
        tmp_path,
        settings(store=address, timers=False)
        + oneshot("job", "env", at_startup=True)
        + timer("often", "job", on_unit_active_sec=1),
    )
    dashboard = f"[dashboard]\nlisten = 'unix:{tmp_path}/web.sock'"
    home.config.write_text(home.config.read_text().replace("[dashboard]\nenabled = false", dashboard))
    with home.running("-v", env={"DULY_STORE": address}) as daemon:
        said = [home.duly(*command.split()).stdout for command in _QUESTIONS]
        said += [_fetched(tmp_path / "web.sock", path) for path in _PAGES]
        answer = home.duly("timers", "--on")
        said += [answer.stdout, answer.stderr, *daemon.ended(), *daemon.out.all()]
    said += [home.duly("status", "--json").stdout, home.duly("plan").stdout]
    files = [path for path in tmp_path.iterdir() if path.is_file() and path != home.config]
    assert any("store" in each for each in said)
    assert all(SECRET not in each for each in said), [each for each in said if SECRET in each]
    assert all(SECRET.encode() not in path.read_bytes() for path in files), files


_PAGES = (
    "/",
    "/services",
    "/services/job",
    "/verification",
    "/invalid",
    "/runs",
    "/runs/1",
    "/api/v1/status",
)
_QUESTIONS = (
    "status",
    "status --json",
    "services --json",
    "history --json",
    "logs job",
    "check",
    "check --json",
)


def _fetched(socket_path: Path, path: str) -> str:
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(socket_path))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as file:
            answer = file.read().decode(errors="replace")
    assert answer.startswith("HTTP/1.1 200"), answer
    return answer
