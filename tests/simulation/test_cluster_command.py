"""`python -m duly.testing.simulation.cluster`: numbers, stories, and the line that shows a failure again."""

import pytest
from click.testing import CliRunner, Result

from duly.testing.simulation.cluster.__main__ import main
from tests.simulation.test_cluster_lives import forgets_interrupted


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def test_many_seeds_in_two_processes() -> None:
    """A campaign ends with its numbers."""
    result = run("--members", "2", "--seeds", "12", "--jobs", "2")
    assert result.exit_code == 0
    assert "lives                12" in result.output
    assert "member-hours" in result.output
    assert "lives that failed    0" in result.output


def test_one_seed_is_told() -> None:
    """One seed is told as a story, with its hash."""
    result = run("--members", "3", "--seed", "3", "--only", "crash,clock")
    assert result.exit_code == 0
    assert "3 hosts, a lease of" in result.output
    assert "hash " in result.output
    assert "nothing is wrong" in result.output


def test_failure_is_shortened_and_can_be_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in a small world prints the line that shows it again, and that shortens it."""
    monkeypatch.setattr("duly.cluster.finding.cut_off", forgets_interrupted)
    result = run("--world", "handover", "--stride", "50", "--pairs", "0")
    assert result.exit_code == 1
    again = next(line for line in result.output.splitlines() if "reproduce: " in line).split("cluster ")[1]
    shown = run(*again.split())
    assert shown.exit_code == 1
    assert "The shortest story that fails in the same way" in shown.output
    assert again in shown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--at", "0:1:crash"), "--at needs --world"),
        (("--world", "deploy", "--at", "0:1:dance"), "0:12:request-lost"),
        (("--only", "gremlins"), "no such family of faults: gremlins"),
        (("--budget", "soon"), "60s, 5m or 1h"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], message: str) -> None:
    """An argument that means nothing is refused with what would."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
