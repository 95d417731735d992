import os
import pty
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "examples.demo")
PATIENCE_S = 60
HURRIED = ("--pace", "0.02")  # slow takes 1.5 s, important 0.8 s


class Demo:
    """A demo in a process of its own, whose lines are waited for."""

    def __init__(self, store: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "--store", str(store), *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )
        self.seen: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, text: str) -> str:
        """The next line that holds *text*."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.seen.append(line)
            if text in line:
                return line
        pytest.fail(f"the demo ended without saying {text!r}:\n" + "\n".join(self.seen))

    def ended(self) -> int:
        """The exit code, once all has been said."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.seen.append(line)
        return self.process.wait(timeout=PATIENCE_S)

    def said(self, text: str) -> bool:
        """Whether a line that was read holds *text*."""
        return any(text in line for line in self.seen)

    def complaint(self) -> str:
        """What was written to stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


Begin = Callable[..., Demo]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins demos on one store, and ends those that a failed test leaves behind."""
    demos: list[Demo] = []

    def begin(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path / "demo.db", *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        demo.process.kill()
        demo.process.wait()
        for stream in (demo.process.stdout, demo.process.stderr):
            if stream is not None:
                stream.close()


def test_a_demo_for_a_while(begin: Begin) -> None:
    """With --for the demo starts what is due, tells it line by line, and ends gracefully."""
    demo = begin("--for", "1.5", *HURRIED)
    assert demo.ended() == 0
    assert demo.said("a new story begins")
    for name in ("steady", "slow", "blocking", "important"):
        assert demo.said(f" {name}: started: it is new")
        assert demo.said(f" {name}: ended well after")
    assert demo.said(" flaky: failed after ")
    assert demo.said("s: TimeoutError: no answer; retry in 5s")
    assert demo.seen[-1].endswith("stopped: every result is recorded")
    assert demo.complaint() == ""


def test_a_killed_demo_goes_on_where_it_was(begin: Begin) -> None:
    """After kill -9 in the middle of a run the next demo tells of it and restarts the task at once."""
    first = begin()
    first.wait_for(" important: started")
    first.process.kill()
    assert first.ended() == -signal.SIGKILL
    second = begin(*HURRIED)
    second.wait_for("welcome back: last seen")
    assert "important were cut off, they restart now" in second.wait_for("cut off")
    second.wait_for(" important: was interrupted → restarted")
    second.wait_for(" important: ended well")
    second.process.send_signal(signal.SIGINT)
    assert second.ended() == 0
    third = begin("--for", "0", *HURRIED)
    assert third.ended() == 0
    assert third.said("welcome back")
    assert not third.said("cut off")


@pytest.mark.parametrize("asked_by", [signal.SIGINT, signal.SIGTERM])
def test_a_graceful_stop_waits_for_the_runs(begin: Begin, asked_by: signal.Signals) -> None:
    """The first Ctrl-C, like SIGTERM, lets the runs in flight end and records them."""
    demo = begin("--pace", "0.05")
    demo.wait_for(" important: started")
    demo.process.send_signal(asked_by)
    demo.wait_for("stopping: no new runs")
    demo.wait_for(" important: ended well")
    demo.wait_for(" slow: ended well")
    demo.wait_for("stopped: every result is recorded")
    assert demo.ended() == 0


def test_a_second_interrupt_cuts_the_runs_off(begin: Begin) -> None:
    """The second Ctrl-C ends the demo at once, and the next one finds the tasks interrupted."""
    first = begin()
    first.wait_for(" important: started")
    first.process.send_signal(signal.SIGINT)
    first.wait_for("stopping: no new runs")
    first.process.send_signal(signal.SIGINT)
    first.wait_for("important cut off. Run it again: the story goes on.")
    assert first.ended() == 128 + signal.SIGINT
    second = begin(*HURRIED)
    second.wait_for(" important: was interrupted → restarted")


def test_two_demos_on_one_store(begin: Begin) -> None:
    """A second demo on the same file is refused in one line, and the first does not notice."""
    first = begin("--pace", "0.05")
    first.wait_for(" important: started")
    second = begin()
    assert second.ended() == 1
    assert second.seen == []
    (line,) = second.complaint().splitlines()
    assert f"is in use by another scheduler (process {first.process.pid})" in line
    first.process.send_signal(signal.SIGINT)
    first.wait_for(" important: ended well")
    assert first.ended() == 0


def test_a_reader_that_leaves_ends_the_demo(tmp_path: Path) -> None:
    """A demo whose output nobody reads any more (`| head`) ends quietly."""
    reader, writer = os.pipe()
    with subprocess.Popen(
        [*PROGRAM, "--store", str(tmp_path / "demo.db")], stdout=writer, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGPIPE


def test_a_terminal_is_drawn_in_place(tmp_path: Path) -> None:
    """On a terminal the table is redrawn from the top, with colours, and the cursor is there at the end."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, "--store", str(tmp_path / "demo.db"), "--for", "1.5", *HURRIED],
        cwd=ROOT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30", "PYTHONIOENCODING": "utf-8"},
    ) as process:
        os.close(terminal)
        output = _all_of(controller)
        assert process.wait(timeout=PATIENCE_S) == 0
    os.close(controller)
    frames = output.split("\x1b[?25l\x1b[H")[1:]
    assert len(frames) > 2
    assert all(frame.endswith("\x1b[J\x1b[?25h") for frame in frames)
    assert "\x1b[36m● " in output
    assert "retry in 5s" in output
    assert "stopped: every result is recorded" in frames[-1]


def test_a_host_without_a_zone_gets_utc(tmp_path: Path) -> None:
    """A host whose zone cannot be found out shows the demo in UTC."""
    emitted = subprocess.run(
        [*PROGRAM, "--store", str(tmp_path / "demo.db"), "--for", "0", *HURRIED],
        cwd=ROOT,
        env={**os.environ, "TZ": "No/Where"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert ", zone UTC, " in emitted.stdout
    assert emitted.stderr == ""


def _all_of(controller: int) -> str:
    """Everything that is written to a terminal until its other side is closed."""
    written = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # Linux says so instead of the end of the file
            piece = b""
        if not piece:
            return written.decode()
        written += piece
