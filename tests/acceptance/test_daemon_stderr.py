"""A daemon whose stderr nobody reads: whatever it has to say there, it works and ends all the same."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.acceptance.running import DULY, PATIENCE_S, Home, environment

ONE = '[[service]]\nid = "one"\ncommand = ["sh", "-c", "echo is up; exec sleep 1000"]\n'


def full_pipe() -> tuple[int, int]:
    """The two ends of a pipe that takes nothing more."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while os.write(writing, b"x" * 4096):
            pass
    os.set_blocking(writing, True)
    return reading, writing


def test_full_stderr_does_no_harm(tmp_path: Path) -> None:
    """Neither the log nor a refused reload waits for a reader of stderr; answers come, and TERM ends it."""
    home = Home(tmp_path, ONE)
    reading, writing = full_pipe()
    command = [DULY, "run", str(home.config)]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, env=environment())
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"one | is up\n"
        home.write("[[[")
        daemon.send_signal(signal.SIGHUP)
        answer = home.duly("reload", "--socket", str(tmp_path / "duly.sock"), config=False)
        assert answer.returncode == 4
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0
    finally:
        os.close(reading)  # anyone who still waits for a reader gets an error instead
        os.close(writing)
        daemon.terminate()
        daemon.wait(PATIENCE_S)
        daemon.communicate()
