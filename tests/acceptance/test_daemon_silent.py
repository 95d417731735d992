"""Commands and a daemon that is stopped, and a daemon whose directory has a name that is no text."""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.acceptance.running import (
    DULY,
    PATIENCE_S,
    Home,
    Running,
    environment,
    one_sentence,
    oneshot,
    service,
    settings,
    timer,
)

TEXT = (
    settings(timers=True, timezone="UTC", kill_grace_sec=0.5)
    + service("web", "echo up; exec sleep 1000")
    + oneshot("job", "exit 0")
    + timer("t", "job", on_startup_sec=100_000)
)


def paused(daemon: Running) -> None:
    """Stop the daemon, as Ctrl-Z, a debugger or a frozen container does, and return when it is."""
    daemon.send(signal.SIGSTOP)
    os.waitid(os.P_PID, daemon.pid, os.WSTOPPED | os.WNOWAIT)


def at_once(home: Home, *commands: tuple[str, ...]) -> list["subprocess.CompletedProcess[str]"]:
    """What several commands say that run beside each other."""
    running = [
        subprocess.Popen(
            [DULY, *command, "-c", str(home.config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=home.path,
        )
        for command in commands
    ]
    told = [(each, each.communicate(timeout=PATIENCE_S)) for each in running]
    return [subprocess.CompletedProcess(each.args, each.returncode, *said) for each, said in told]


def test_a_stopped_daemon_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Questions are answered from the store; actions end with 69, and are done when the daemon goes on."""
    home = Home(tmp_path, TEXT)
    with home.running() as daemon:
        daemon.log.until("TimersEnabled")
        paused(daemon)
        reading = (
            ("services",),
            ("timers", "--json"),
            ("status", "--check"),
            ("history",),
            ("logs", "web", "-f"),
            ("plan",),
        )
        acting = (("stop", "web"), ("reload",), ("trigger", "t", "--wait"), ("stop", "job", "--json"))
        answers = at_once(home, *reading, *acting)
        services, timers, status, history, logs, plan = answers[: len(reading)]
        for read in (services, history, logs, plan):
            assert read.returncode == 0, read
            assert "it says nothing; is it stopped or overloaded?" in read.stderr
            assert "this is what its store remembers" in read.stderr
        assert json.loads(timers.stdout)["source"] == "store"
        assert (status.returncode, "the daemon says nothing" in status.stdout) == (69, True)
        *told, as_json = answers[len(reading) :]
        for acted in told:
            assert acted.returncode == 69, acted
            assert "it says nothing; is it stopped or overloaded?" in one_sentence(acted)
            assert "may still do it when it goes on" in acted.stderr
        assert as_json.returncode == 69
        assert json.loads(as_json.stdout)["error"]["may_be_done"] is True
        daemon.send(signal.SIGCONT)
        daemon.log.until("ServiceRunEnded service=web")
        daemon.log.until("ServiceRunEnded service=job .*reason=trigger")
        daemon.log.until("ConfigurationReloaded")
        daemon.ended()


def test_a_stopped_daemon_is_not_taken_for_one_that_has_ended(tmp_path: Path) -> None:
    """`duly stop --wait` does not say that a daemon has stopped that was only stopped by a signal."""
    home = Home(tmp_path, TEXT.replace("exec sleep 1000", "trap : TERM; while :; do sleep 0.1; done"))
    with home.running() as daemon:
        daemon.out.until("web . up")
        stopping = subprocess.Popen(
            [DULY, "stop", "--wait", "-c", str(home.config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=home.path,
        )
        daemon.log.until("SupervisorStopping")
        paused(daemon)
        out, err = stopping.communicate(timeout=PATIENCE_S)
        assert (stopping.returncode, out) == (69, ""), err
        daemon.send(signal.SIGCONT)
        assert daemon.code() == 0


def test_a_long_action_is_waited_for(tmp_path: Path) -> None:
    """An action may take longer than a daemon may be silent: as long as it answers others, it is at work."""
    home = Home(
        tmp_path,
        settings(kill_grace_sec=7) + service("web", "trap '' TERM; echo up; while :; do sleep 1; done"),
    )
    with home.running() as daemon:
        daemon.out.until("web . up")
        stopped = home.duly("stop", "web")
        assert (stopped.returncode, stopped.stdout) == (0, "Stopped web.\n"), stopped
        daemon.ended()


# --- names that are no text ---


def test_a_directory_whose_name_is_no_text(tmp_path: Path) -> None:
    """In a directory whose name is not UTF-8 the daemon runs, and every command answers."""
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.mkdir()
    home = Home(path, TEXT)
    snapshots = (
        ("status",),
        ("services",),
        ("timers",),
        ("history",),
        ("logs", "web"),
        ("plan",),
        ("next", "t"),
        ("why", "t"),
    )
    strict = environment(PYTHONIOENCODING="utf-8:strict")

    def told(*command: str, code: int = 0) -> str:
        more = [str(home.config)] if command[0] in {"check", "simulate"} else ["-c", str(home.config)]
        answer = subprocess.run(
            [DULY, *command, *more],
            check=False,
            capture_output=True,
            timeout=PATIENCE_S,
            cwd=path,
            env=strict,
        )
        assert answer.returncode == code, answer
        assert b"Traceback" not in answer.stderr
        return answer.stdout.decode()

    with home.running() as daemon:
        daemon.log.until("TimersEnabled")
        daemon.log.until("ServiceRunStarted service=web")
        for command in snapshots:
            told(*command)
            json.loads(told(*command, "--json"))
        assert "caf\\udce9/duly.db" in told("status")
        for command in (("trigger", "t"), ("stop", "web"), ("start", "web"), ("reload",)):
            told(*command)
        home.write("[[service")
        assert "caf\\\\udce9" in told("reload", "--json", code=4)
        told("check", code=4)
        told("plan", code=4)
        home.write(TEXT)
        for command in (("check",), ("check", "--json"), ("simulate",), ("simulate", "--json")):
            told(*command)
        daemon.ended()
    for command in snapshots:
        told(*command)
        json.loads(told(*command, "--json"))
    told("stop", "web", code=69)


def test_an_id_that_is_no_text(tmp_path: Path) -> None:
    """An id that is not UTF-8 is one that nobody has, no matter who answers."""
    home = Home(tmp_path, TEXT)
    name = os.fsdecode(b"caf\xe9")
    with home.running() as daemon:
        daemon.log.until("TimersEnabled")
        for command in ("start", "stop", "trigger", "enable", "history", "logs", "timers", "next", "why"):
            refused = home.duly(command, name)
            assert (refused.returncode, "caf\\udce9" in one_sentence(refused)) == (3, True), refused
        daemon.ended()
    for command in ("history", "logs", "timers", "next", "why"):
        refused = home.duly(command, name)
        assert (refused.returncode, "caf\\udce9" in one_sentence(refused)) == (3, True), refused
