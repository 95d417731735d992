"""kill -9 of the daemon, at any point: what it left is ended, nothing runs twice at once, nothing is lost."""

import os
import random
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.running import Home, Running, living, oneshot, service, settings, timer
from tests.acceptance.test_daemon_host import fill, tiny_disk

# A job that finds the lock taken says so in its log: two of a kind at once. The lock is held by every process
# of a run, so that it is free only when the whole group is gone.
_JOB = """
exec 9>>{name}.lock
flock -n 9 || {{ echo "TWICE {name} $DULY_RUN_ID" >>run.log; exit 99; }}
{trap}
echo "S {name} $DULY_RUN_ID" >>run.log
echo began
{work}
echo "E {name} $DULY_RUN_ID" >>run.log
"""


def job(name: str, work: str, *, is_deaf: bool = False) -> str:
    """A script that keeps a log of its runs."""
    return _JOB.format(name=name, work=work, trap="trap '' TERM" if is_deaf else "")


CONFIG = (
    settings(timers=True, kill_grace_sec=0.3, shutdown_timeout_sec=5, timezone="UTC")
    + service("web", job("web", "sleep 1000"))
    + oneshot("quick", job("quick", "sleep 0.02"))
    + oneshot("deaf", job("deaf", "sleep 0.4; sleep 0.4", is_deaf=True))
    + oneshot("long", job("long", "sleep 1000"))
    + oneshot("setup", job("setup", "sleep 0.05"), at_startup=True, stage=1)
    + timer("quick", "quick", on_startup_sec=0.05, on_unit_active_sec=0.05, retry_intervals_sec=[])
    + timer("deaf", "deaf", on_startup_sec=0.1, on_unit_active_sec=0.1, retry_intervals_sec=[])
    + timer("long", "long", on_startup_sec=0.15, retry_intervals_sec=[])
)


class Entry(NamedTuple):
    """A line of the log."""

    word: str
    job: str
    run: int


def run_log(home: Home) -> list[Entry]:
    """What the jobs wrote."""
    path = home.path / "run.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Entry(word, name, int(marker.rpartition(":")[2])) for word, name, marker in map(str.split, lines)]


def check(home: Home, seen: str) -> None:
    """The history agrees with the log, and nothing ran twice at once."""
    entries = run_log(home)
    assert [entry for entry in entries if entry.word == "TWICE"] == [], seen
    runs = {run["id"]: run for run in all_runs(home)}
    assert [run for run in runs.values() if run["running"]] == [], seen
    began = Counter((entry.job, entry.run) for entry in entries if entry.word == "S")
    assert set(began.values()) == {1}, seen
    ended = {entry.run for entry in entries if entry.word == "E"}
    for name, run_id in began:
        assert runs[run_id]["service"] == name, seen
        result = runs[run_id]["result"]
        assert result == "interrupted" if run_id not in ended else result in {"success", "interrupted"}, seen
    silent = [run["result"] for run in runs.values() if (run["service"], run["id"]) not in began]
    assert set(silent) <= {"interrupted"}, seen  # ended before it could write


def all_runs(home: Home) -> list[dict[str, object]]:
    """Every run of the history."""
    runs: list[dict[str, object]] = []
    while True:
        older = ("--before", str(runs[-1]["id"])) if runs else ()
        page = home.asked("history", "-n", "1000", *older)
        runs += page["runs"]
        if not page["more"]:
            return runs


@pytest.mark.parametrize("seed", range(3))
def test_kill_at_any_point(tmp_path: Path, seed: int) -> None:
    """Killed again and again, the daemon ends its leftovers first, and the history agrees with what ran."""
    chance = random.Random(seed)
    home = Home(tmp_path, CONFIG)
    for life in range(6):
        seen = f"seed {seed}, life {life}"
        with home.running(is_awaited=False) as daemon:
            if life:
                daemon.log.until("SupervisorStarted")
                words = [line.split()[3] for line in daemon.log.lines]
                first = words.index("ServiceRunStarted")
                assert "LeftoverFound" not in words[first:], seen
            daemon.out.until("began", count=chance.randrange(1, 25))
            killed(daemon)
    with home.running() as daemon:
        daemon.log.until("TimerFired timer=long")
        daemon.ended()
    assert living(tmp_path) == []
    check(home, f"seed {seed}")


def set_back(home: Home, hours: int) -> None:
    """Have the timers of a dead daemon have lived, and been answered, hours earlier than they did."""
    by_us = hours * 3_600_000_000
    with closing(sqlite3.connect(home.path / "duly.db")) as store, store:
        store.execute(
            "UPDATE timer SET registered_us = registered_us - ?, answered_us = answered_us - ?",
            (by_us, by_us),
        )


def test_missed_slots_are_caught_up_once(tmp_path: Path) -> None:
    """Hours of missed slots are one run; cut off by kill -9 it is one run again; done, it is none."""
    # Half an hour away from the next slot on either side: none comes due by itself.
    minute = (datetime.now(UTC) + timedelta(minutes=30)).minute  # noqa: TID251 (the daemon is a real one)
    work = "[ -e second ] || { : >second; sleep 1000; }"
    home = Home(
        tmp_path,
        settings(timers=True, kill_grace_sec=0.3, timezone="UTC")
        + oneshot("job", job("job", work))
        + timer("t", "job", on_calendar={"minute": minute}, retry_intervals_sec=[]),
    )
    with home.running() as daemon:
        daemon.log.until("TimersEnabled")
        killed(daemon)
    assert run_log(home) == []
    set_back(home, 5)
    with home.running() as daemon:
        daemon.log.until("TimerFired timer=t .*reason=catch-up")
        daemon.out.until("job . began")
        killed(daemon)
    with home.running() as daemon:
        daemon.log.until("LeftoverFound service=job .*isAlive=True")
        daemon.log.until("TimerFired timer=t .*reason=catch-up")
        daemon.log.until("TimerRunEnded timer=t .*result=success")
        assert home.duly("enable", "t").returncode == 0  # answered when all about the timer is on disk
        killed(daemon)
    with home.running() as daemon:
        daemon.log.until("TimersEnabled")
        daemon.ended()
        assert daemon.log.matching("TimerFired") == []
    check(home, "")
    seen = [(run["reason"], run["result"]) for run in reversed(all_runs(home))]
    assert seen == [("catch-up", "interrupted"), ("catch-up", "success")]


def killed(daemon: Running) -> None:
    """Kill the daemon, and let what it ran live on: anyone who starts next must deal with that."""
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.process.wait(60)
    daemon.keep()


def test_unrecorded_run_is_a_leftover_too(tmp_path: Path) -> None:
    """A run that no store could be told of, because the disk was full, is found by its mark and ended."""
    with tiny_disk(tmp_path / "disk", "2m") as disk:
        home = Home(
            tmp_path,
            settings(store=str(disk / "duly.db"), kill_grace_sec=0.3)
            + oneshot("unknown", job("unknown", "sleep 1000"), at_startup=False)
            + oneshot("other", "exit 0"),
        )
        with home.running() as daemon:
            daemon.log.until("ServiceRunEnded service=other")
            fill(disk / "ballast")
            assert home.duly("start", "unknown").returncode == 0
            daemon.out.until("unknown . began")
            daemon.log.until("StoreFault")
            killed(daemon)
        (disk / "ballast").unlink()
        with home.running() as daemon:
            daemon.log.until("LeftoverFound .*isAlive=True")
            assert home.duly("start", "unknown").returncode == 0
            daemon.out.until("unknown . began")
            daemon.ended()
        assert [entry.word for entry in run_log(home)] == ["S", "S"]


def test_kill_of_a_service_is_not_a_leftover(tmp_path: Path) -> None:
    """A pid of a run that ended is not touched at the next start, no matter who has it."""
    home = Home(tmp_path, service("web", job("web", "sleep 1000")))
    with home.running() as daemon:
        daemon.out.until("began")
        daemon.ended()
    with home.running() as daemon:
        daemon.out.until("began")
        assert not daemon.log.matching("LeftoverFound")
        daemon.ended()
    check(home, "")
