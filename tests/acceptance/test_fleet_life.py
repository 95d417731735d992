"""What `duly` says of a store that is a database: refusals, waiting, and never a password."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from duly.cli import main
from tests.acceptance.running import Home, environment, one_sentence, oneshot, settings, timer
from tests.acceptance.test_daemon_web import ask, port_of
from tests.worlds.fleet import Fleet
from tests.worlds.postgres import LOGIN, PASSWORD, PostgresServer
from tests.worlds.proxy import LOOPBACK, free_port

JOB = oneshot("job", "exit 0") + timer("job", "job", on_calendar={"minute": 0})
SECRETS = (PASSWORD, quote(PASSWORD, safe=""), "pass/word", "pass%2Fword")


def stored(url: object, **options: object) -> str:
    """A file whose store is *url*."""
    return settings(timers=True, store=url, **options) + JOB


def hidden(text: str) -> str:
    """The text, in which no password is."""
    assert [secret for secret in SECRETS if secret in text] == [], text
    return text


@pytest.mark.parametrize("options", [(), ("--wait", "2")], ids=" ".join)
def test_unreachable(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Without its database the daemon does not start, and says where it looked; with --wait, after a time."""
    place = f"{LOOPBACK}:{free_port()}/x"
    home = Home(tmp_path, stored(f"postgresql://{LOGIN}@{place}"))
    answer = home.duly("run", str(home.config), *options, config=False)
    assert (answer.returncode, answer.stdout) == (1, "")
    said = one_sentence(answer)
    assert place in said
    assert "cannot be reached" in said
    assert "tried again" not in said
    waiting = r"(?m)^duly: waiting for the database, \d+ s by now: cannot be reached"
    assert bool(re.search(waiting, hidden(answer.stderr))) is bool(options)


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
    answer = home.duly("run", str(home.config), "--wait", "60", config=False)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "refuses the password" in one_sentence(answer)
    assert wrong not in answer.stderr
    assert quote(wrong, safe="") not in answer.stderr


_LOOKS = [
    (command, *options)
    for command in ("check", "plan", "status", "services", "timers", "history")
    for options in ((), ("--json",))
]


def said_of(home: Home, *command: str) -> str:
    """All that a command says; no password is in it."""
    answer = CliRunner().invoke(main, [*command, "-c", str(home.config)], env=environment())
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
    return hidden(answer.output)


def test_no_password_is_shown(postgres_url: str, tmp_path: Path) -> None:
    """No command, page or log shows the password of the store, whether or not the daemon is there.

    When it is down its timers are not shown from a file that has none; a sentence says why.
    """
    home = Home(tmp_path, "")
    home.config.write_text(stored(postgres_url) + '\n[dashboard]\nlisten = "127.0.0.1:0"\n')
    with home.running("-v") as daemon:
        daemon.log.until("TimersEnabled")
        port = port_of(daemon)
        for page in ("/", "/timers", "/services", "/api/v1/status", "/api/v1/timers", "/metrics"):
            status, _, body = ask(port, "GET", page)
            assert status in {200, 404}
            hidden(body)
        for command in (*_LOOKS, ("reload",)):
            said_of(home, *command)
        shown = hidden(home.duly("cluster", str(home.config), config=False).stdout)
        assert f":{daemon.pid} " in shown
        hidden("\n".join(daemon.ended()))
    for command in _LOOKS:
        said_of(home, *command)
    assert "only a running daemon shows them" in said_of(home, "status")
    for file in home.path.iterdir():
        if file != home.config and file.is_file():
            hidden(file.read_bytes().decode(errors="replace"))
