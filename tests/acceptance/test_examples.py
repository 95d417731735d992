"""Every example runs."""

import signal
import subprocess
import sys
from pathlib import Path

from duly.verify import judged

ROOT = Path(__file__).parents[2]


def test_quickstart_runs(tmp_path: Path) -> None:
    """The quick start runs its task at once, stops on Ctrl-C, and does not run the same minute again."""
    for expected in ("backing up", None):
        command = [sys.executable, "-u", str(ROOT / "examples" / "quickstart.py")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        ) as run:
            assert run.stdout is not None
            if expected is not None:
                assert run.stdout.readline().strip() == expected
                run.send_signal(signal.SIGINT)
            else:
                run.kill()
            run.communicate(timeout=60)
    assert (tmp_path / "state.db").exists()


def test_quickstart_leaves_a_trace(tmp_path: Path) -> None:
    """With its switch the quick start records what happens, also when killed, and the checker is content."""
    command = [sys.executable, "-u", str(ROOT / "examples" / "quickstart.py"), "--trace"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as run:
        assert run.stdout is not None
        assert run.stdout.readline().strip() == "backing up"
        run.kill()
        run.communicate(timeout=60)
    with (tmp_path / "trace.jsonl").open("rb") as trace:
        outcome = judged(trace)
    assert (outcome.violations, outcome.faults, outcome.starts) == ([], [], 1)


def test_example_tests_pass(tmp_path: Path) -> None:
    """The example of testing one's own schedule passes, with the fixture that duly brings."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(ROOT / "examples" / "test_my_schedule.py"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout
