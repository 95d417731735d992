"""What a return code means, and what it means when we had a hand in it."""

import signal

import pytest

from duly.core.causes import Reason
from duly.store.history import Result
from duly.supervisor.results import RunResult, run_result_of, signal_name


@pytest.mark.parametrize(
    ("returncode", "expected"),
    [
        (0, RunResult(Result.SUCCESS, 0)),
        (1, RunResult(Result.EXIT, 1, None, "exited with code 1")),
        (255, RunResult(Result.EXIT, 255, None, "exited with code 255")),
        (-9, RunResult(Result.SIGNAL, None, 9, "ended by SIGKILL")),
        (-15, RunResult(Result.SIGNAL, None, 15, "ended by SIGTERM")),
    ],
)
def test_return_code_is_told_apart(returncode: int, expected: RunResult) -> None:
    """Success, a code above zero and a signal are three results."""
    assert run_result_of(returncode) == expected


@pytest.mark.parametrize("returncode", [0, 3, -15, -9])
def test_what_we_did_wins(returncode: int) -> None:
    """A run that we cut off is a timeout or interrupted, however its process took it; the facts are kept."""
    late = run_result_of(returncode, was_timed_out=True)
    cut = run_result_of(returncode, was_interrupted=True)
    both = run_result_of(returncode, was_timed_out=True, was_interrupted=True)
    assert (late.result, cut.result, both.result) == (Result.TIMEOUT, Result.INTERRUPTED, Result.TIMEOUT)
    for ended in (late, cut, both):
        assert ended.exit_code == (returncode if returncode >= 0 else None)
        assert ended.signal == (-returncode if returncode < 0 else None)
    assert "time limit" in late.message
    assert "shutdown" in cut.message


def test_signals_have_names() -> None:
    """Every signal number gets a name, real-time and unknown ones included."""
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(signal.SIGRTMIN + 3) == "SIGRTMIN+3"
    assert signal_name(200) == "signal 200"


def test_words_are_the_contract() -> None:
    """Results and reasons are spelled as the contract spells them."""
    of_tasks = {"success", "failure", "timeout", "cancelled", "interrupted"}
    assert {*Result} == {"success", "exit", "signal", "timeout", "spawn-error", "interrupted"} | of_tasks
    assert [*Reason] == [
        *("boot", "restart", "manual", "schedule", "startup", "interval", "retry", "catch-up", "trigger")
    ]
