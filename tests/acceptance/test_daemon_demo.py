"""The demonstration that `make run` starts, through make itself, on a copy of its directory."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DULY = Path(sys.prefix) / "bin" / "duly"
PATIENCE_S = 150
"""Longer than two minutes, in which everything is to be seen."""


class Demo:
    """`make run` in a session of its own, whose lines are waited for."""

    def __init__(self, place: Path) -> None:
        # -o: the environment that runs this test is there, however old its marker is.
        marker = f"{sys.prefix}/.ready"
        place_of_duly = f"RUN_VENV={sys.prefix}"
        command = ["make", "--no-print-directory", "-o", marker, "run", place_of_duly, f"DEMO={place}"]
        self.config = place / "duly.toml"
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.seen: list[str] = []
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._listener = Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, pattern: str) -> str:
        """The first line that matches, of those seen and those to come."""
        for said in self.seen:
            if re.search(pattern, said):
                return said
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.seen.append(line)
            if re.search(pattern, line):
                return line
        pytest.fail(f"the demo ended without saying {pattern!r}:\n" + "\n".join(self.seen))

    def interrupt(self) -> None:
        """Ctrl-C: make, the shell and the daemon all get it, as they do from a terminal."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> list[str]:
        """All that it said, once it is over."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.seen.append(line)
        self.process.wait(PATIENCE_S)
        return self.seen

    def told(self, *words: str) -> Any:
        """What a command answers about this daemon, as data."""
        return json.loads(self.asked(*words, "--json").stdout)

    def asked(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command in a second terminal."""
        environment = {**os.environ, "DULY_CONFIG": str(self.config)}
        return subprocess.run(
            [DULY, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def pid(self) -> int:
        """The daemon's own process, as its banner says."""
        found = re.search(r"kill -9 (\d+)", self.wait_for("kill -9"))
        assert found is not None
        return int(found[1])

    def close(self) -> None:
        """End what is left of it."""
        if self.process.poll() is None:
            self.interrupt()
            self.ended()
        self._listener.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


Begin = Callable[[], Demo]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins the demo, again and again on the same state."""
    place = tmp_path / "demo"
    shutil.copytree(ROOT / "examples" / "daemon", place, ignore=shutil.ignore_patterns("duly.db*", "*.sock"))
    (place / "state" / "attempts").unlink(missing_ok=True)
    demos: list[Demo] = []

    def begin() -> Demo:
        demos.append(Demo(place))
        return demos[-1]

    yield begin
    for demo in demos:
        demo.close()


def test_everything_is_seen(begin: Begin) -> None:
    """The first two minutes show stages, restarts, every trigger, retries, misses, a limit and a mistake."""
    demo = begin()
    demo.wait_for("Look around, in a browser")
    demo.wait_for(r"EntryInvalid kind=timer id=mistaken .*did you mean report\?")
    for service in ("prepare", "database", "web", "announce"):
        demo.wait_for(rf"ServiceRunStarted service={service} .*reason=boot")
    starts = [line.split("service=")[1].split()[0] for line in demo.seen if "ServiceRunStarted" in line]
    order = [starts.index(name) for name in ("prepare", "database", "flaky", "web", "announce")]
    assert order == sorted(order)
    demo.wait_for(r"TimerFired timer=greet-once .*reason=startup")
    demo.wait_for(r"TimerFired timer=heartbeat .*reason=interval")
    # Its slot, every ten minutes, may take the place of a retry, and then the count starts over.
    demo.wait_for(r"TimerRetryScheduled timer=retried attempt=\d")
    demo.wait_for(r"third-time \| try 3: done")
    demo.wait_for(r"ServiceRunEnded service=stuck .*result=timeout")
    demo.wait_for(r"ServiceRestarting service=flaky .*result=exit")
    demo.wait_for(r"ServiceRunStarted service=flaky .*reason=restart")
    demo.wait_for(r"TimerFired timer=every-minute .*reason=schedule")
    demo.wait_for(r"TimerMissed timer=overlapping .*reason=overlap")
    demo.wait_for(r"TimerMissed timer=switched-off .*reason=disabled")
    timers = {timer["id"]: timer for timer in demo.told("timers")["timers"]}
    assert timers["overlapping"]["last_miss_reason"] == "overlap"
    assert timers["limited"]["last_result"] == "timeout"
    assert "success" in {run["result"] for run in demo.told("history", "third-time")["runs"]}
    assert [bad["id"] for bad in demo.told("timers")["invalid"]] == ["mistaken"]
    assert "overlap" in demo.asked("why", "overlapping").stdout
    assert "visitor" in demo.asked("logs", "web").stdout
    assert demo.asked("trigger", "greet-once", "--wait").stdout == "hello from a timer\n"


def assert_made_up_for(first: Demo, second: Demo) -> None:
    """The job that the end of *first* cut off is the first of its timer in *second*.

    It is a catch-up, unless a minute began between the two: then the due of that minute answers for both.
    """
    fired = r"TimerFired timer=catching-up .*reason=(\S+) scheduledTime=(\S+)"
    cut = [found for line in first.seen if (found := re.search(fired, line))][-1]
    again = re.search(fired, second.wait_for(fired))
    assert again is not None
    if again[1] != "catch-up":
        assert again[1] == "schedule"
        assert datetime.fromisoformat(again[2]) > datetime.fromisoformat(cut[2])


def test_ctrl_c_and_again(begin: Begin) -> None:
    """Ctrl-C stops in reverse order; the next start makes up for what was cut off, and only if persistent."""
    first = begin()
    first.wait_for(r"ServiceRunStarted service=archive ")
    first.wait_for(r"ServiceRunStarted service=slow ")
    first.wait_for(r"^database \| open")
    first.interrupt()
    said = first.ended()
    ends = [line.split("service=")[1].split()[0] for line in said if "ServiceRunEnded" in line]
    assert ends.index("web") < ends.index("database")
    assert "database | closing; nothing was lost" in said
    assert "SupervisorStopped" in said[-1]  # no line of make after it
    second = begin()
    assert_made_up_for(first, second)
    second.wait_for(r"TimerMissed timer=overlapping .*reason=shutdown")
    assert not [line for line in second.seen if re.search("timer=overlapping .*reason=catch-up", line)]


def test_kill_and_again(begin: Begin) -> None:
    """After kill -9 what was left running is ended before anything starts, and the job is made up for."""
    first = begin()
    first.wait_for(r"ServiceRunStarted service=archive ")
    first.wait_for(r"ServiceRunStarted service=slow ")
    os.kill(first.pid(), signal.SIGKILL)
    first.ended()
    second = begin()
    second.wait_for(r"LeftoverFound service=slow .*isAlive=True")
    assert_made_up_for(first, second)
    found = [n for n, line in enumerate(second.seen) if "LeftoverFound" in line]
    started = [n for n, line in enumerate(second.seen) if "ServiceRunStarted" in line]
    assert max(found) < min(started)
    runs = second.told("history", "slow")["runs"]
    assert runs[-1]["result"] == "interrupted"


def test_the_file_holds_one_mistake_and_no_surprise() -> None:
    """`duly check` finds the one entry that is wrong on purpose, and warns of nothing."""
    command = [str(DULY), "check", str(ROOT / "examples" / "daemon" / "duly.toml"), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    found = json.loads(told.stdout)
    assert told.returncode == 4
    assert [bad["id"] for bad in found["invalid"]] == ["mistaken"]
    assert found["warnings"] == []


def test_the_readme_as_a_stranger_follows_it(tmp_path: Path) -> None:
    """The file and the commands of the README work, one after the other, in an empty directory."""
    text = (ROOT / "README.md").read_text()
    found = re.search(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    # Any free port: the one of the README may be somebody's.
    (tmp_path / "duly.toml").write_text(found[1].replace('"8080"', '"0"'))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("hello")

    environment = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}

    def duly(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(DULY), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    checked = duly("check").stdout.splitlines()
    assert checked[-1] == "2 services and 1 timer can be used; nothing is wrong."
    with subprocess.Popen(
        [str(DULY), "run"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as daemon:
        try:
            assert daemon.stderr is not None
            assert any("TimersEnabled" in line for line in iter(daemon.stderr.readline, ""))
            triggered = duly("trigger", "backup", "--wait")
            assert (triggered.returncode, (tmp_path / "site.tgz").exists()) == (0, True)
            assert re.search(r"^backup +backup +yes .* success +0", duly("timers").stdout, re.MULTILINE)
        finally:
            daemon.send_signal(signal.SIGINT)
            daemon.communicate(timeout=PATIENCE_S)
        assert daemon.returncode == 0
