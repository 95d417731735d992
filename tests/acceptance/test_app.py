"""`app.run()` as a program of its own: signals, kill -9, and the next life."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = """
import sys
from duly import App, Run, every

app = App(sys.argv[1])

def say(line: str) -> None:
    sys.stdout.write(line + "\\n")  # in one piece: two threads write here
    sys.stdout.flush()

@app.task(every("0.2s"))
def quick() -> None:
    say("quick")

@app.task(every("0.2s", after_end=True))
def slow(run: Run) -> None:
    say(f"slow begins {run.cause}")
    if sys.stdin.readline():
        say("slow ends")

app.run()
"""


@contextmanager
def program(folder: Path, text: str = PROGRAM) -> Iterator[subprocess.Popen[str]]:
    """The program, which reads a line for each end of `slow`."""
    command = [sys.executable, "-c", text, str(folder / "state.db")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(process: subprocess.Popen[str], start: str) -> str:
    """The next line of the program that begins like this."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line.strip()
    raise AssertionError(f"the program has ended without {start!r}: {process.communicate()}")


def say(process: subprocess.Popen[str]) -> None:
    """Give the program a line."""
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def test_signals_and_the_next_life(tmp_path: Path) -> None:
    """Ctrl-C waits for a run and names it; a run that kill -9 cuts off starts again."""
    with program(tmp_path) as first:
        assert until(first, "slow begins") == "slow begins cron"
        assert until(first, "quick") == "quick", "a function that blocks its thread keeps no other waiting"
        first.send_signal(signal.SIGINT)
        assert first.stderr is not None
        seen = first.stderr.readline()
        assert "waiting for" in seen
        assert "slow" in seen
        assert "Ctrl-C again" in seen
        say(first)
        until(first, "slow ends")
        assert first.wait(60) == 0
    with program(tmp_path) as second:
        assert until(second, "slow begins") == "slow begins cron"
        second.kill()
    with program(tmp_path) as third:
        assert until(third, "slow begins") == "slow begins interrupted"
        third.send_signal(signal.SIGTERM)
        assert third.stderr is not None
        assert "waiting for" in third.stderr.readline()
        third.send_signal(signal.SIGTERM)
        assert third.wait(60) == 130


STANDBY = """
import sys
from duly import App, every

def on_event(event):
    if event.name in {"SchedulerInitializationCompleted", "TaskRunStarted"}:
        sys.stdout.write(event.name + "\\n")
        sys.stdout.flush()

app = App(sys.argv[1], standby=True, listeners=[on_event])

@app.task(every("365d"))
def job() -> None: ...

with app.background() as controls:
    sys.stdout.write("started\\n")
    sys.stdout.flush()
    for line in sys.stdin:
        controls.run_now("job")
        sys.stdout.write("done\\n")
        sys.stdout.flush()
"""


def test_a_standby_takes_over_after_kill_9(tmp_path: Path) -> None:
    """A second process asks the first to run a task, and runs it itself once the first was killed."""
    with program(tmp_path, STANDBY) as first:
        until(first, "SchedulerInitializationCompleted")
        until(first, "started")
        with program(tmp_path, STANDBY) as second:
            until(second, "started")
            say(second)
            until(first, "TaskRunStarted")
            assert until(second, "") == "done"
            first.kill()
            assert until(second, "") == "SchedulerInitializationCompleted"
            say(second)
            assert until(second, "") == "TaskRunStarted"
            until(second, "done")
