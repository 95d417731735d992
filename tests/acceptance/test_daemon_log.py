"""What the daemon says of itself: levels, units, JSON, the first Ctrl-C; and the manual page."""

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.running import DULY, Home, environment, oneshot, service, settings, timer

FAILING = settings(timers=True) + oneshot("job", "exit 3") + timer("t", "job", on_startup_sec=0.1)
LOST = service("lost", "x", restart="no").replace("/bin/sh", "/no/such/program")


def test_failures_are_warnings(tmp_path: Path) -> None:
    """A run that failed is a warning, one that a person stopped is not; durations have units."""
    web = service("web", "echo up; exec sleep 1000", restart="no")
    home = Home(tmp_path, FAILING + LOST + web + oneshot("slow", "sleep 1000", timeout_sec=0.2))
    with home.running() as daemon:
        [job] = daemon.log.until("ServiceRunEnded service=job")
        [lost] = daemon.log.until("ServiceRunEnded service=lost")
        [slow] = daemon.log.until("ServiceRunEnded service=slow")
        for line, result in ((job, "exit"), (lost, "spawn-error"), (slow, "timeout")):
            assert " WARNING " in line
            assert f"result={result}" in line
        daemon.out.until("up")
        assert home.duly("stop", "web").returncode == 0
        [stopped] = daemon.log.until("ServiceRunEnded service=web")
        assert " INFO " in stopped
        seen = [*daemon.log.matching("duration="), *daemon.ended()]
        durations = [line.partition("duration=")[2].split()[0] for line in seen if "duration=" in line]
        assert len(durations) > 5
        assert [each for each in durations if not each.endswith(("ms", "s", "m", "h"))] == []


def test_quiet_daemon_tells_failures(tmp_path: Path) -> None:
    """With -q a failed job is still told."""
    with Home(tmp_path, FAILING).running("-q", is_awaited=False) as daemon:
        daemon.log.until("WARNING ServiceRunEnded service=job.*result=exit")
        daemon.ended()


def test_log_as_json(tmp_path: Path) -> None:
    """Every line of the log is an object, also those that bypass the log; numbers stay numbers."""
    home = Home(tmp_path, FAILING + '[[service]]\nid = "bad"\n')
    with home.running("--log-format", "json") as daemon:
        daemon.log.until("TimerRunEnded")
        home.write("")
        daemon.send(signal.SIGHUP)
        daemon.log.until("not reloaded")
        lines: list[dict[str, Any]] = [json.loads(line) for line in daemon.ended()]
    by_event = {line.get("event"): line for line in lines}
    ended = by_event["ServiceRunEnded"]
    assert (ended["level"], ended["service"], ended["exitCode"]) == ("WARNING", "job", 3)
    assert isinstance(ended["duration"], int | float)
    assert by_event["EntryInvalid"]["reason"] == "has no command"
    [refused] = [line for line in lines if "not reloaded" in line.get("message", "")]
    assert (refused["level"], "event" in refused) == ("WARNING", False)
    assert all(line["time"][10] == "T" for line in lines)


def test_first_ctrl_c_says_what_it_waits_for(tmp_path: Path) -> None:
    """The first Ctrl-C names what runs, how long it may take, and how to hurry; the second one does."""
    stubborn = service("stubborn", "trap '' TERM; echo up; while :; do sleep 1000; done")
    with Home(tmp_path, settings(shutdown_timeout_sec=40) + stubborn).running() as daemon:
        daemon.out.until("up")
        daemon.send(signal.SIGINT)
        [said] = daemon.log.until("stopping; this waits for")
        assert said == "duly: stopping; this waits for stubborn, at most 40s; Ctrl-C again ends them at once"
        daemon.send(signal.SIGINT)
        assert daemon.code() == 0
        assert daemon.log.matching("again: ending what still runs at once")


def duly(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [DULY, *arguments], check=False, capture_output=True, text=True, timeout=60, env=environment()
    )


@pytest.mark.parametrize(
    ("word", "offer"), [("statsu", "status"), ("log", "logs"), ("ps", "services"), ("trigr", "trigger")]
)
def test_commands_that_are_nearly_right(word: str, offer: str) -> None:
    """A command that does not exist is answered with the one that was perhaps meant."""
    answer = duly(word)
    assert answer.returncode == 2
    assert f'there is no command "{word}"; did you mean {offer}' in answer.stderr


def test_manual_page() -> None:
    """The manual page has every command with its options, and groff has nothing to object to."""
    page = duly("--man").stdout
    for name in ("run", "logs", "cluster history", "import crontab", "store check"):
        assert f'.SS "duly {name} ' in page
    assert r"\fB\-\-log\-format [text|json]\fR" in page
    if (groff := shutil.which("groff")) is None:
        pytest.skip("no groff here")
    shown = subprocess.run(
        [groff, "-man", "-Tascii", "-ww"], input=page, check=True, capture_output=True, text=True, timeout=60
    )
    assert shown.stderr == ""
    assert "duly check new.toml --json" in shown.stdout
