"""The gate, with a real daemon: closed, nothing of timers happens; opened and closed at run time, at once."""

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
JOBS = (
    oneshot("job", "echo job ran")
    + oneshot("held", "echo held; read line <go; echo freed")
    + timer("t", "job", on_startup_sec=0.1, on_unit_active_sec=0.1, retry_intervals_sec=[])
    + timer("held", "held", on_calendar={"minute": 0, "hour": 0})
)
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


def test_closed_gate_means_nothing_of_timers(tmp_path: Path) -> None:
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
            assert home.asked(command, "t")["status"] == "disabled"
        assert "off" in home.duly("timers").stdout
        daemon.send(signal.SIGHUP)
        daemon.log.until("ConfigurationReloaded", count=2)
        daemon.ended()
        assert daemon.log.matching(r"Timer|Poll") == []
    statements, modules = seen(home)
    assert len(statements) > 10
    assert [text for text in statements if _TIMER_SQL.search(text)] == []
    assert [name for name in modules if name.startswith("duly.timers")] == []


def test_an_open_gate_is_seen_by_the_same_eyes(tmp_path: Path) -> None:
    """On: what the test above looks for is there, so that it would have seen it."""
    home = Home(tmp_path, settings(timers=True) + WEB + JOBS)
    with watched(home) as daemon:
        daemon.log.until("TimerRunEnded timer=t", count=2)
        daemon.ended()
    statements, modules = seen(home)
    assert [text for text in statements if _TIMER_SQL.search(text)]
    assert "duly.timers.face" in modules


def test_parent_switch_closes_the_gate(tmp_path: Path) -> None:
    """With the supervisor off nothing runs, and timers stay off whatever their own switch says."""
    home = Home(tmp_path, settings(enabled=False, timers=True) + WEB + JOBS)
    with watched(home) as daemon:
        assert home.asked("timers")["status"] == "disabled"
        assert home.asked("timers", "--on")["status"] == "disabled"
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
    home = Home(tmp_path, settings(timers=False) + WEB + JOBS)
    subprocess.run(["mkfifo", str(tmp_path / "go")], check=True)
    with home.running("-v") as daemon:
        assert home.duly("timers", "--on").stdout == "The timer subsystem is on.\n"
        daemon.log.until("TimersEnabled")
        assert (
            home.duly("trigger", "t").returncode == 0
        )  # start-up has long been, so it does not come by itself
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
