"""Processes that left the group and the session of their service, and processes that are another daemon's."""

import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.running import Home, Running, oneshot, service, settings
from tests.worlds.postgres import until

_STRAYS = {
    "at once": "(setsid sh -c '{body}' &)",
    "when its parent ends": "setsid sh -c '{body}' &",
}
_BODIES = {
    "obeys TERM": "echo orphan $$; exec sleep 1000",
    "ignores TERM": 'trap "" TERM; echo orphan $$; while :; do sleep 0.2; done',
}
QUICK = settings(kill_grace_sec=0.5, shutdown_timeout_sec=5)
PATIENT = settings(kill_grace_sec=200, shutdown_timeout_sec=200)


def leaving(orphaned: str = "at once", body: str = "obeys TERM") -> str:
    """A shell command that leaves an orphan."""
    return _STRAYS[orphaned].format(body=_BODIES[body]) + "\n"


def orphan_of(daemon: Running, name: str) -> int:
    """The pid of the orphan that a service has told of."""
    [line] = daemon.out.until(rf"{name} . orphan \d+")
    return int(line.rpartition(" ")[2])


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is not dead and unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("orphaned", _STRAYS)
@pytest.mark.parametrize("body", _BODIES)
@pytest.mark.parametrize("how", ["stop", "shutdown", "hurry"])
def test_orphans_end_with_their_service(tmp_path: Path, how: str, body: str, orphaned: str) -> None:
    """`duly stop ID` and the end of the daemon end what has left both the group and the session."""
    how_long = PATIENT if how == "hurry" else QUICK
    home = Home(tmp_path, how_long + service("web", f"{leaving(orphaned, body)} echo up; sleep 1000"))
    with home.running() as daemon:
        orphan = orphan_of(daemon, "web")
        assert is_alive(orphan)
        if how == "stop":
            assert home.duly("stop", "web").returncode == 0
            assert not is_alive(orphan)
            assert home.asked("services")["services"][0]["state"] == "stopped"
        elif how == "hurry":
            daemon.send(signal.SIGTERM)
            daemon.log.until("SupervisorStopping")
            daemon.send(signal.SIGTERM)
        else:
            daemon.send(signal.SIGTERM)
        if how != "stop":
            assert daemon.code() == 0
            assert not is_alive(orphan)
            return
        daemon.ended()


def test_orphans_end_when_time_is_up(tmp_path: Path) -> None:
    """A oneshot that exceeds its timeout takes its orphans with it, and its result is a timeout."""
    home = Home(tmp_path, QUICK + oneshot("job", f"{leaving()} sleep 1000", at_startup=True, timeout_sec=1))
    with home.running(is_awaited=False) as daemon:
        orphan = orphan_of(daemon, "job")
        daemon.log.until("ServiceRunEnded service=job .*result=timeout")
        assert not is_alive(orphan)
        daemon.ended()


def test_a_service_that_comes_back_meets_no_orphans(tmp_path: Path) -> None:
    """What a simple service left is ended before it is started again, though it ended by itself."""
    home = Home(
        tmp_path,
        QUICK + service("web", f"[ -e again ] && exec sleep 1000; : >again; {leaving()} sleep 0.3; exit 3"),
    )
    with home.running() as daemon:
        orphan = orphan_of(daemon, "web")
        daemon.log.until("ServiceRestarting service=web")
        assert not is_alive(orphan)
        daemon.ended()


@pytest.mark.parametrize("how", ["stop", "shutdown", "removal"])
def test_a_job_may_leave_what_outlives_it(tmp_path: Path, how: str) -> None:
    """What a oneshot that ended by itself left lives on, until the service is stopped or the daemon ends."""
    job = oneshot("job", f"{leaving()} sleep 0.3", at_startup=True)
    home = Home(tmp_path, QUICK + job)
    with home.running(is_awaited=False) as daemon:
        orphan = orphan_of(daemon, "job")
        daemon.log.until("ServiceRunEnded service=job .*result=success")
        assert is_alive(orphan)
        if how == "stop":
            assert home.duly("stop", "job").returncode == 0
            assert not is_alive(orphan)
        elif how == "removal":
            daemon.log.until("SupervisorStarted")
            home.write(QUICK)
            assert home.duly("reload", "--allow-empty").returncode == 0
            assert not is_alive(orphan)
        daemon.ended()
        assert not is_alive(orphan)


# --- a copied store ---


def copied(home: Home, path: Path, text: str, *, running: int) -> Home:
    """Another home on a copy of the store, once that knows the processes of so many runs."""
    path.mkdir()
    with (
        closing(sqlite3.connect(home.path / "duly.db")) as store,
        closing(sqlite3.connect(path / "duly.db")) as copy,
    ):
        known = "SELECT count(*) FROM run WHERE pid IS NOT NULL AND ended_us IS NULL"
        until(lambda: store.execute(known).fetchone()[0] >= running, "runs in the store")
        store.backup(copy)
    return Home(path, text)


def test_a_copied_store_kills_nobody(tmp_path: Path) -> None:
    """A daemon on a copy of the store leaves alone what the first looks after, and starts no second of it."""
    text = (
        QUICK
        + service("web", "echo up $$; exec sleep 1000")
        + oneshot("late", "echo up $$; exec sleep 1000", at_startup=False)
        + service("clean", "echo up $$; exec env -i sleep 1000")
    )
    (tmp_path / "one").mkdir()
    home = Home(tmp_path / "one", text)
    with home.running() as first:
        ups = first.out.until("up", count=2)
        other = copied(home, tmp_path / "two", text, running=2)
        assert home.duly("start", "late").returncode == 0  # a number that the copy does not know
        ups += first.out.until("late . up")
        pids = [int(line.rpartition(" ")[2]) for line in ups]
        with other.running() as second:
            seen = second.log.until("LeftoverFound service=web .*isAlive=True")
            assert f"daemon={first.pid}" in seen[0]
            assert all(map(is_alive, pids))
            states = {each["id"]: each for each in other.asked("services")["services"]}
            assert (states["web"]["state"], states["clean"]["state"]) == ("skipped", "skipped")
            assert f"looked after by daemon {first.pid}" in states["web"]["reason"]
            refused = other.duly("start", "web")
            assert refused.returncode == 1
            assert "runs under another daemon, whose store this is a copy of" in refused.stderr
            second.ended()
        assert all(map(is_alive, pids))
        assert home.duly("stop", "web").returncode == 0
        with other.running() as second:
            second.out.until("web . up")
            second.ended()
        first.ended()
        assert not any(map(is_alive, pids))


def test_a_copied_store_of_a_dead_daemon_has_leftovers(tmp_path: Path) -> None:
    """Once the first daemon is dead, what it left is ended by anyone who has its store, copy or not."""
    text = QUICK + service("web", "echo up $$; exec sleep 1000")
    (tmp_path / "one").mkdir()
    home = Home(tmp_path / "one", text)
    with home.running() as first:
        [line] = first.out.until("up")
        pid = int(re.sub(r".* ", "", line))
        other = copied(home, tmp_path / "two", text, running=1)
        os.kill(first.pid, signal.SIGKILL)
        first.process.wait(60)
        first.keep()
    assert is_alive(pid)
    with other.running() as second:
        second.log.until("LeftoverFound service=web .*isAlive=True")
        second.out.until("web . up")
        assert not is_alive(pid)
        second.ended()
