"""A callback that forks: its child must not go on as a second scheduler."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import apsw
import pytest

from duly.verify import judged

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


class Ended:
    """One program that ran to its end."""

    def __init__(self, program: str, directory: Path) -> None:
        command = [sys.executable, "-m", "tests.attacks.fork_programs", program, str(directory)]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=False
        )
        self.lines = ended.stdout.splitlines()
        self.complaints = ended.stderr
        self.code = ended.returncode

    def of(self, who: str) -> list[str]:
        """What the parent or the child has written."""
        return [line.removeprefix(f"{who} ") for line in self.lines if line.startswith(f"{who} ")]


def check_parent(ended: Ended, directory: Path) -> None:
    """The parent ran each task once a minute, recorded it and stored it, as if nothing had happened."""
    said = Counter(ended.of("parent"))
    for name in ("b", "c"):
        assert said[f"called {name}"] == said[f"TaskRunCompleted {name}"] == 2, ended.lines
    assert said["TaskRunStarted forking"] == said["TaskRunCompleted forking"] == 2, ended.lines
    assert ended.of("parent")[-1] == "is Stopped"
    assert ended.code == 0, ended.complaints
    lines = (directory / "trace.jsonl").read_bytes().splitlines(keepends=True)
    assert sum(b'"RunStart"' in line for line in lines) == 6
    outcome = judged(lines)
    assert (outcome.faults, outcome.violations) == ([], [])
    connection = apsw.Connection(str(directory / "state.db"))
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    assert connection.execute("SELECT count(*) FROM task WHERE running_since_us IS NULL").get == 3
    connection.close()


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("child_raises", "ValueError: from the child"),
        ("child_returns", "(forking)"),
        ("child_awaits", "came back to the scheduler"),
        ("child_awaits_last", "came back to the scheduler"),
        ("thread_forks", "ValueError: from the child of a thread"),
    ],
)
def test_child_that_comes_back_ends(tmp_path: Path, program: str, complaint: str) -> None:
    """A forked child that returns to the scheduler ends there, says so, and calls and writes nothing."""
    ended = Ended(program, tmp_path)
    assert ended.of("child") == []
    assert "ended with 70" in " ".join(ended.of("parent"))
    assert complaint in ended.complaints
    assert "it ends here" in ended.complaints
    check_parent(ended, tmp_path)


def test_child_may_exit(tmp_path: Path) -> None:
    """A forked child that ends with sys.exit has its own exit code, and what it printed is not lost."""
    ended = Ended("child_exits", tmp_path)
    assert ended.of("child") == ["printed"]
    assert "child ended with 3" in ended.of("parent")
    assert ended.complaints == ""
    check_parent(ended, tmp_path)


def test_child_of_the_program_does_not_close_the_loop(tmp_path: Path) -> None:
    """A child that leaves `asyncio.run` ends before it closes the loop, which the parent still uses."""
    ended = Ended("main_forks", tmp_path)
    assert ended.of("child") == []
    assert "child ended with 4" in ended.of("parent")
    assert ended.complaints == ""
    check_parent(ended, tmp_path)


def test_every_use_in_a_child_raises(tmp_path: Path) -> None:
    """In a forked child `initialize`, `stop` and `state` raise, and say whose the scheduler is."""
    ended = Ended("child_calls", tmp_path)
    sentence = (
        "this scheduler belongs to process P, and this is its forked child C;"
        " a child needs a scheduler and a store of its own"
    )
    assert ended.of("child") == [sentence] * 3
    assert "child ended with 0" in ended.of("parent")
    check_parent(ended, tmp_path)


def test_process_of_multiprocessing_works(tmp_path: Path) -> None:
    """A process that `multiprocessing` forks from a callback works, also with a scheduler of its own."""
    ended = Ended("child_is_a_process", tmp_path)
    assert ended.of("child") == ["called its own"]
    assert "child ended with 0" in ended.of("parent")
    check_parent(ended, tmp_path)


def test_scheduler_at_rest_may_be_used_by_a_child(tmp_path: Path) -> None:
    """A scheduler that was stopped before the fork, or never started, belongs to nobody."""
    ended = Ended("preloaded", tmp_path)
    assert ended.of("parent") == ["called", "called", "child ended with 0"]
    assert ended.of("child") == ["called"]
