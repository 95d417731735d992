"""A full disk behind stdout or stderr: output resumes when it can, and health says what is missing."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from duly.daemon.client import Client
from duly.daemon.echo import Echo
from tests.acceptance.running import Home, service
from tests.attacks.waiting import PATIENCE_S, needs_root, small_disk, until

LISTENING = "exec 3<>go-on; while read -r line <&3; do echo $line; done"
LINE = b"web | 0123456789\n"


def dev_full() -> int:
    """A file that is always full."""
    return os.open("/dev/full", os.O_WRONLY)


def hung_up_terminal() -> int:
    """A terminal that is gone: writing to it is an input/output error."""
    master, slave = os.openpty()
    os.close(master)
    return slave


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The two ends of a pipe."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (dev_full, "the disk behind {} is full"),
        (hung_up_terminal, "{} cannot be written: Input/output error"),
    ],
)
def test_output_resumes_after_a_failed_write(pipe: tuple[int, int], broken: Any, reason: str) -> None:
    """Lines that cannot be written are counted, the output says how many, and goes on."""
    descriptor = broken()
    echo = Echo(descriptor)
    sentence = f"3 output lines dropped: {reason.format(f'descriptor {descriptor}')}"
    echo.put(b"one\ntwo\n")
    until(echo.faults)
    echo.put(b"three\n")
    assert echo.faults() == [sentence]
    reading, writing = pipe
    os.dup2(writing, descriptor)
    os.close(writing)
    with os.fdopen(os.dup(reading), "rb") as read:
        assert read.readline() == f"duly: {sentence}\n".encode()
        until(lambda: not echo.faults())
        echo.put(b"four\n")
        assert read.readline() == b"four\n"
    echo.close(20)
    os.close(descriptor)


def test_dropped_lines_take_no_memory() -> None:
    """However much comes while writing fails, none of it is kept."""
    descriptor = dev_full()
    echo = Echo(descriptor)
    echo.put(b"first\n")
    until(echo.faults)
    for _ in range(100):
        echo.put(b"y\n" * 30_000)
    assert not echo._waiting
    assert echo.faults()[0].startswith("3000001 output lines dropped")
    echo.close(20)
    os.close(descriptor)


def test_a_pipe_without_a_reader_is_given_up(pipe: tuple[int, int]) -> None:
    """Output that nobody can ever read again is no fault, and is not kept."""
    reading, writing = os.pipe()
    os.close(reading)
    echo = Echo(writing)
    echo.put(b"one\n")
    echo._thread.join(60)
    assert not echo._thread.is_alive()
    echo.put(b"two\n")
    assert (echo.faults(), list(echo._waiting)) == ([], [])
    os.close(writing)
    os.close(pipe[1])


@needs_root
def test_a_daemon_on_a_full_disk_speaks_again(tmp_path: Path) -> None:
    """A daemon whose log and output were on a full disk is not well, resumes both, and is well again."""
    os.mkfifo(tmp_path / "go-on")
    home = Home(tmp_path, service("web", LISTENING, cwd="."))
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "disk"))
        out, log = disk.path / "out", disk.path / "log"
        streams = [stack.enter_context(path.open("ab")) for path in (out, log)]
        daemon = stack.enter_context(home.running(is_awaited=False, stdout=streams[0], stderr=streams[1]))
        go_on = os.open(tmp_path / "go-on", os.O_RDWR)
        stack.callback(os.close, go_on)
        os.write(go_on, b"before\n")
        until(lambda: out.read_bytes() == b"web | before\n" and "SupervisorStarted" in log.read_text())
        client = Client(str(tmp_path / "duly.sock"))

        def faults() -> list[str]:
            return sorted(each for each in client.ask("status")["health"]["reasons"] if "dropped" in each)

        disk.fill()
        os.write(go_on, b"0123456789\n" * 1_000)
        until(lambda: client.ask("reload") and len(faults()) == 2)
        reasons = {each.partition(" dropped: ")[2] for each in faults()}
        assert reasons == {"the disk behind stderr is full", "the disk behind stdout is full"}
        answer = home.duly("status", "--check")
        assert answer.returncode == 1
        assert "output lines dropped: the disk behind stdout is full" in answer.stdout
        disk.free()
        until(lambda: not faults())
        assert home.duly("status", "--check").returncode == 0
        os.write(go_on, b"again\n")
        until(lambda: out.read_bytes().endswith(b"web | again\n"))
        client.ask("reload")
        until(lambda: "ConfigurationReloaded" in log.read_text().rpartition("dropped:")[2])
        shown = out.read_bytes()
        [seen] = re.findall(rb"\nduly: (\d+) output lines dropped: the disk behind stdout is full\n", shown)
        assert shown.count(LINE) + int(seen) == 1_000
        assert re.search(
            r"\nduly: \d+ output lines? dropped: the disk behind stderr is full\n", log.read_text()
        )
        client.ask("shut_down")
        assert daemon.process.wait(PATIENCE_S) == 0
