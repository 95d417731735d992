"""What `duly` says of a store that is a database: refusals, waiting, and never a password."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.acceptance.running import Home, Running, one_sentence, oneshot, settings, timer
from tests.acceptance.test_daemon_web import ask, port_of
from tests.worlds.fleet import Fleet
from tests.worlds.postgres import LOGIN, PASSWORD, PostgresServer
from tests.worlds.proxy import LOOPBACK, free_port

JOB = oneshot("job", "exit 0") + timer("job", "job", on_calendar={"minute": 0})
SECRETS = (PASSWORD, quote(PASSWORD, safe=""), "pass/word", "pass%2Fword")


def stored(url: object, **options: object) -> str:
    """A file whose store is *url*."""
    return settings(timers=True, store=url, **options) + JOB


def refused(home: Home, *options: str, code: int = 1) -> str:
    """What `duly run` refuses with, in one sentence; no secret is in it."""
    answer = home.duly("run", str(home.config), *options, config=False)
    assert answer.returncode == code, answer
    hidden(answer.stdout + answer.stderr)
    return one_sentence(answer)


def hidden(text: str) -> str:
    """The text, in which no password is."""
    assert [secret for secret in SECRETS if secret in text] == [], text
    return text


def test_unreachable(tmp_path: Path) -> None:
    """Without its database the daemon does not start, says where it looked, and not that it tries again."""
    port = free_port()
    home = Home(tmp_path, stored(f"postgresql://{LOGIN}@{LOOPBACK}:{port}/x"))
    said = refused(home)
    assert f"{LOOPBACK}:{port}/x" in said
    assert "cannot be reached" in said
    assert "tried again" not in said


def test_waiting_in_vain(tmp_path: Path) -> None:
    """With --wait it tells on stderr that it waits, and why; then it gives up as it would have without."""
    home = Home(tmp_path, stored(f"postgresql://{LOGIN}@{LOOPBACK}:{free_port()}/x"))
    answer = home.duly("run", str(home.config), "--wait", "2", config=False)
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert re.search(r"(?m)^duly: waiting for the database, \d+ s by now: cannot be reached", answer.stderr)
    assert "cannot be reached" in one_sentence(answer)
    hidden(answer.stderr)


def test_a_database_that_comes(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """A database that comes up while it is waited for is used."""
    own_postgres.stop()
    with Fleet(own_postgres.url(), tmp_path) as fleet:
        a = fleet.machine("a", fleet.jobs(["quick"])).start("--wait", "60", is_awaited=False)
        a.until("waiting for the database")
        own_postgres.start()
        fleet.until_going_on(["quick"])
        a.daemon.ended()
        hidden("\n".join(a.daemon.log.lines))


def test_told_to_stop_while_waiting(tmp_path: Path) -> None:
    """A daemon that waits for its database ends when it is told to."""
    home = Home(tmp_path, stored(f"postgresql://{LOGIN}@{LOOPBACK}:{free_port()}/x"))
    with home.running("--wait", "600", is_awaited=False) as daemon:
        daemon.log.until("waiting for the database")
        daemon.process.terminate()
        assert daemon.process.wait(60) in {0, -15}
        assert "Traceback" not in "\n".join(daemon.log.all())


def test_wrong_password(postgres: PostgresServer, tmp_path: Path) -> None:
    """A wrong password is refused in a sentence that does not repeat it, whatever --wait says."""
    wrong = "wrong-pass/word"
    url = postgres.url().replace(LOGIN, f"postgres:{quote(wrong, safe='')}")
    home = Home(tmp_path, stored(url))
    for options in ((), ("--wait", "60")):
        said = refused(home, *options)
        assert "refuses the password" in said
        assert wrong not in said
        assert quote(wrong, safe="") not in said


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"url": "mysql://root:secret-pass@db/app"}, "store must be the path of a SQLite file or begin with"),
        ({"url": f"postgresql://postgres:{PASSWORD}@db/app"}, "store is an address that"),
        ({"url": f"postgresql://{LOGIN}@db:0/app"}, "store has a port that is no number"),
        ({"url": f"postgresql://{LOGIN}@db/app", "lease_sec": 0.1}, "lease_sec must be at least 0.5 s"),
        ({"url": f"postgresql://{LOGIN}@db/app", "lease_sec": True}, "lease_sec must be"),
    ],
    ids=["mysql", "unescaped", "port", "short lease", "no number"],
)
def test_bad_settings(tmp_path: Path, entries: dict[str, object], reason: str) -> None:
    """What is wrong with the store or the lease is found by check and by run, and no secret is repeated."""
    home = Home(tmp_path, stored(**entries))
    for command in (("check",), ("check", "--json"), ("run",)):
        answer = home.duly(*command, str(home.config), config=False)
        said = answer.stdout + answer.stderr
        assert answer.returncode == 4, said
        assert reason in said
        assert "Traceback" not in said
        assert "secret-pass" not in hidden(said)


@pytest.fixture
def shared(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Home, Running]]:
    """A daemon with a dashboard whose store is a database."""
    home = Home(tmp_path, "")
    home.config.write_text(stored(postgres_url) + '\n[dashboard]\nlisten = "127.0.0.1:0"\n')
    with home.running("-v") as daemon:
        daemon.log.until("TimersEnabled")
        yield home, daemon


_LOOKS = [
    (command, *options)
    for command in ("check", "plan", "status", "services", "timers", "history")
    for options in ((), ("--json",))
]


def said_of(home: Home, *command: str) -> str:
    """All that a command says; no password is in it."""
    answer = home.duly(*command)
    assert "Traceback" not in answer.stderr
    return hidden(answer.stdout + answer.stderr)


def test_no_password_is_shown(shared: tuple[Home, Running]) -> None:
    """No command, page or log shows the password of the store, whether or not the daemon is there."""
    home, daemon = shared
    port = port_of(daemon)
    for page in ("/", "/timers", "/services", "/api/v1/status", "/api/v1/timers", "/metrics"):
        status, _, body = ask(port, "GET", page)
        assert status in {200, 404}
        hidden(body)
    for command in (*_LOOKS, ("reload",)):
        said_of(home, *command)
    hidden("\n".join(daemon.ended()))
    for command in _LOOKS:
        said_of(home, *command)
    for file in home.path.iterdir():
        if file != home.config and file.is_file():
            hidden(file.read_bytes().decode(errors="replace"))


def test_down_but_shared(shared: tuple[Home, Running]) -> None:
    """When the daemon is down its timers are not shown from a file that has none; the sentence says why."""
    home, daemon = shared
    daemon.ended()
    answer = home.duly("status")
    assert "only a running daemon shows them" in hidden(answer.stdout + answer.stderr)


def test_cluster_command(postgres_url: str, tmp_path: Path) -> None:
    """`duly cluster FILE` shows the machines that share a daemon's timers, and no password."""
    with Fleet(postgres_url, tmp_path) as fleet:
        a, b = fleet.begin("ab", fleet.jobs(["quick"]))
        answer = a.home.duly("cluster", str(a.home.config), config=False)
        assert answer.returncode == 0
        hidden(answer.stdout)
        for machine in (a, b):
            assert f":{machine.daemon.pid} " in answer.stdout
