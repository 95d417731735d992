"""The timer switch of a real daemon: closed, nothing of timers happens; it opens and closes at once."""

import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.acceptance.running import Home, Running, oneshot, service, settings, timer

ROOT = Path(__file__).parents[2]
WEB = service("web", "echo web up; exec sleep 1000")
SERVICES = oneshot("job", "echo job ran") + oneshot("held", "echo held; read line <go; echo freed")
HELD = timer("held", "held", on_calendar={"minute": 0, "hour": 0})
JOBS = SERVICES + timer("t", "job", on_startup_sec=0.1, on_unit_active_sec=0.1, retry_intervals_sec=[]) + HELD
_TIMER_SQL = re.compile(r"\b(?:from|into|update|table|join)\s+(?:timer|miss)s?\b", re.IGNORECASE)


@contextmanager
def watched(home: Home) -> Iterator[Running]:
    """The daemon, with its statements and modules written to the file `seen`."""
    command = [sys.executable, "-m", "tests.acceptance.watched", str(home.config), str(home.path / "seen")]
    running = Running(home, command, {"PYTHONPATH": str(ROOT)}, {})
    try:
        running.log.until("SupervisorStarted")
        yield running
    finally:
        running.end()


def seen(home: Home) -> tuple[list[str], list[str]]:
    """The statements after those that made the tables, and the modules."""
    lines = (home.path / "seen").read_text().splitlines()
    statements = [line.removeprefix("sql ") for line in lines if line.startswith("sql ")]
    made = max((n for n, text in enumerate(statements) if "PRAGMA user_version =" in text), default=0)
    return statements[made:], [line.split()[1] for line in lines if line.startswith("module ")]


def test_closed_switch_means_nothing_of_timers(tmp_path: Path) -> None:
    """Off: no module of timers, no event of timers, no statement on their tables, no section anywhere."""
    home = Home(tmp_path, settings(timers=False) + WEB + JOBS)
    with watched(home) as daemon:
        daemon.out.until("web up")
        assert home.duly("start", "job", "--wait").returncode == 0
        home.write(settings(timers=False) + WEB + JOBS + oneshot("more", "exit 0"))
        assert home.duly("reload").returncode == 0
        status = home.asked("status")
        assert status["timers"] == "disabled"
        assert "timers" not in status["counts"]
        assert status["next_firing"] is None
        disabled = home.asked("timers")
        assert (disabled["status"], set(disabled)) == ("disabled", {"status", "message"})
        for command in ("trigger", "enable", "disable"):
            assert home.asked(command, "t", code=1)["status"] == "disabled"
        assert "off" in home.duly("timers").stdout
        daemon.send(signal.SIGHUP)
        daemon.log.until("ConfigurationReloaded", count=2)
        daemon.ended()
        assert daemon.log.matching(r"Timer|Poll") == []
    statements, modules = seen(home)
    assert len(statements) > 10
    assert [text for text in statements if _TIMER_SQL.search(text)] == []
    assert [name for name in modules if name.startswith("duly.timers")] == []


def test_an_open_switch_is_seen_by_the_same_eyes(tmp_path: Path) -> None:
    """On: what the test above looks for is there, so that it would have seen it."""
    home = Home(tmp_path, settings(timers=True) + WEB + JOBS)
    with watched(home) as daemon:
        daemon.log.until("TimerRunEnded timer=t", count=2)
        daemon.ended()
    statements, modules = seen(home)
    assert [text for text in statements if _TIMER_SQL.search(text)]
    assert "duly.timers.local" in modules


def test_parent_switch_closes_the_switch(tmp_path: Path) -> None:
    """With the supervisor off nothing runs, and timers stay off whatever their own switch says."""
    home = Home(tmp_path, settings(enabled=False, timers=True) + WEB + JOBS)
    with watched(home) as daemon:
        assert home.asked("timers")["status"] == "disabled"
        assert home.asked("timers", "--on", code=1)["status"] == "disabled"
        daemon.ended()
        assert daemon.log.matching(r"Timer|ServiceRunStarted") == []
    statements, modules = seen(home)
    assert [text for text in statements if _TIMER_SQL.search(text)] == []
    assert [name for name in modules if name.startswith("duly.timers")] == []


def timer_rows(home: Home) -> list[tuple[object, ...]]:
    """The timers in the store, as they are."""
    with closing(sqlite3.connect(f"file:{home.path}/duly.db?mode=ro", uri=True)) as connection:
        return list(connection.execute("SELECT * FROM timer ORDER BY name"))


def test_opened_and_closed_at_run_time(tmp_path: Path) -> None:
    """`--on` puts timers to work; `--off` ends that at once; a run in flight ends as its service's run."""
    # No start-up trigger: the first run is the one that is asked for.
    after_runs = timer("t", "job", on_unit_active_sec=0.1, retry_intervals_sec=[])
    home = Home(tmp_path, settings(timers=False) + WEB + SERVICES + after_runs + HELD)
    subprocess.run(["mkfifo", str(tmp_path / "go")], check=True)
    with home.running("-v") as daemon:
        assert home.duly("timers", "--on").stdout == "The timer subsystem is on.\n"
        daemon.log.until("TimersEnabled")
        assert home.duly("trigger", "t").returncode == 0
        daemon.log.until("TimerRunEnded timer=t", count=3)
        assert home.duly("trigger", "held").returncode == 0
        daemon.out.until("held . held")
        assert home.duly("timers", "--off").returncode == 0
        closed = len(daemon.log.lines)
        before = timer_rows(home)
        assert home.asked("timers")["status"] == "disabled"
        with (tmp_path / "go").open("w") as go:
            go.write("\n")
        daemon.log.until("ServiceRunEnded service=held .*result=success", after=closed)
        daemon.out.until("held . freed")
        assert home.duly("start", "job", "--wait").returncode == 0
        assert timer_rows(home) == before
        assert [
            line for line in daemon.log.lines[closed:] if " Timer" in line and "Disabled" not in line
        ] == []
        [held] = home.asked("history", "held")["runs"]
        assert (held["result"], held["timer"]) == ("success", "held")
        assert home.duly("timers", "--on").returncode == 0
        [again] = [each for each in home.asked("timers")["timers"] if each["id"] == "held"]
        assert again["running"] is False
        daemon.log.until("TimerRunEnded timer=t", after=len(daemon.log.lines))
        daemon.ended()


def test_a_reload_opens_and_closes(tmp_path: Path) -> None:
    """The switch in the file takes effect with a reload, both ways."""
    home = Home(tmp_path, settings(timers=False) + JOBS)
    with home.running() as daemon:
        home.write(settings(timers=True) + JOBS)
        assert home.duly("reload").returncode == 0
        assert daemon.log.until("TimersEnabled timers=2")
        home.write(settings(timers=False) + JOBS)
        assert home.duly("reload").returncode == 0
        assert daemon.log.until("TimersDisabled")
        assert home.asked("timers")["status"] == "disabled"
        daemon.ended()


def test_option_beats_the_file(tmp_path: Path) -> None:
    """--timers and --no-timers decide, whatever the file says."""
    home = Home(tmp_path, settings(timers=False) + JOBS)
    with home.running("--timers") as daemon:
        daemon.log.until("TimerRunEnded timer=t", count=2)
        daemon.ended()
    home.write(settings(timers=True) + JOBS)
    with home.running("--no-timers") as daemon:
        assert home.asked("timers")["status"] == "disabled"
        daemon.ended()
        assert daemon.log.matching("Timer") == []


def test_timers_that_nobody_switched_on(tmp_path: Path) -> None:
    """Timers without the switch: one warning at the start, one in the status, and a trigger fails."""
    home = Home(tmp_path, JOBS)
    said = "2 timers are defined and will never fire: timers are switched off; write timers = true under"
    with home.running() as daemon:
        assert len(daemon.log.matching(f"WARNING.*{said}")) == 1
        status = home.asked("status")
        assert [each[: len(said)] for each in status["health"]["warnings"]] == [said]
        assert status["health"]["ok"]
        assert said in home.duly("status").stdout
        assert home.duly("status", "--check").returncode == 0
        trigger = home.duly("trigger", "t")
        assert (trigger.returncode, "timers = true" in trigger.stdout) == (1, True)
        assert home.duly("timers", "--on").returncode == 0
        assert home.asked("status")["health"]["warnings"] == []
        daemon.ended()
    with home.running("--no-timers") as daemon:
        daemon.ended()
        assert daemon.log.matching("WARNING") == []
    home.write(settings(timers=True) + WEB)
    with home.running() as daemon:
        daemon.ended()
        assert daemon.log.matching("WARNING") == []


def test_a_switch_in_the_wrong_place(tmp_path: Path) -> None:
    """`timers = true` outside of [supervisor], or as a list in Python, is explained."""
    home = Home(tmp_path, "timers = true\n" + JOBS)
    refused = home.duly("run", str(home.config), config=False)
    assert refused.returncode == 4
    assert "duly.toml:1: timers is a setting: write it under [supervisor]" in refused.stderr
    python = Home(tmp_path, "SERVICES = []\nTIMERS = True\n", "duly.py")
    checked = python.duly("check", str(python.config), config=False)
    assert (
        "duly.py:2: error: TIMERS must be a list, not true; the switch is SUPERVISOR = {'timers': True}"
        in checked.stdout
    )
