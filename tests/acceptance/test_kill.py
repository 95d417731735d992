"""Real processes, real files, kill -9."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duly.verify import judged

ROOT = Path(__file__).parents[2]


@contextmanager
def process(program: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.acceptance.programs", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        try:
            yield running
        finally:
            running.kill()


def line(running: "subprocess.Popen[str]") -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def test_killed_run_is_interrupted_and_restarts(tmp_path: Path) -> None:
    """A task that was running when its process got kill -9 starts at once in the next process."""
    store = str(tmp_path / "state.db")
    with process("long_run", store) as first:
        assert [line(first), line(first)] == ["started startup", "called"]
    for _ in range(2):
        with process("long_run", store) as again:
            assert [line(again), line(again)] == ["started interrupted", "called"]


def test_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    """Two processes on one file: the second gets a clear error; after kill -9 of the first, none."""
    store = str(tmp_path / "state.db")
    with process("long_run", store) as first:
        assert line(first) == "started startup"
        with process("long_run", store) as second:
            assert line(second).startswith(
                f"refused Store {store} is in use by another scheduler (process {first.pid}"
            )
            assert second.wait(60) == 0
    with process("long_run", store) as third:
        assert line(third) == "started interrupted"


def test_hold_dies_with_the_process_not_with_its_children(tmp_path: Path) -> None:
    """A forked child that outlives its parent does not keep the store held."""
    store = str(tmp_path / "state.db")
    with process("forked", store) as parent:
        child = int(line(parent).removeprefix("child "))
        try:
            parent.wait(60)
            with process("long_run", store) as next_one:
                assert line(next_one) == "started startup"
        finally:
            os.kill(child, signal.SIGKILL)


def test_graceful_stop_records_the_end(tmp_path: Path) -> None:
    """A process told to end waits for its run, records it, and the next process finds nothing interrupted."""
    store = str(tmp_path / "state.db")
    with process("graceful", store) as first:
        assert [line(first), line(first)] == ["TaskRunStarted startup", "called"]
        first.send_signal(signal.SIGTERM)
        assert [line(first), line(first)] == ["TaskRunCompleted", "stopped"]
        assert first.wait(60) == 0
    with process("graceful", store) as second:
        second.send_signal(signal.SIGTERM)
        remaining = second.communicate(timeout=60)[0]
    assert "interrupted" not in remaining


@pytest.mark.parametrize("seed", range(3))
def test_kill_at_any_point_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    """Killed at random points again and again, every minute of every task is run, none twice without cause.

    A minute may be run a second time only by a process that began in it: the one before was killed while, or
    just after, the minute was run, or after its start was recorded and before it was called.
    """
    chance = random.Random(seed)
    store = str(tmp_path / "state.db")
    minute, began, starts = 30_000_000, [], []
    for generation in range(8):
        began.append(minute)
        with process("minutes", store, str(minute)) as running:
            said = [line(running) for _ in range(chance.randrange(3, 60))]
            running.send_signal(signal.SIGKILL)
            assert running.stdout is not None
            said += running.stdout.readlines()  # what it said before it died
        for kind, name, when in map(str.split, said):
            minute = int(when)
            if kind == "S":
                starts.append((generation, name, minute))
    for name in {name for _, name, _ in starts}:
        ran = [(generation, minute) for generation, who, minute in starts if who == name]
        minutes = [minute for _, minute in ran]
        seen = f"seed {seed}, {name}"
        assert set(range(minutes[0], minutes[-1])) <= set(minutes), f"{seen}: a minute was lost"
        assert len(ran) == len(set(ran)), f"{seen}: a minute was run twice by one process"
        again = [(generation, minute) for n, (generation, minute) in enumerate(ran) if minute in minutes[:n]]
        assert all(began[generation] == minute for generation, minute in again), f"{seen}: {again}"
    with Path(f"{store}.jsonl").open("rb") as trace:
        outcome = judged(trace)
    assert (outcome.violations, outcome.faults) == ([], []), f"seed {seed}"
    assert len(starts) <= outcome.starts <= len(starts) + len(began)  # killed between its record and its word
