"""`python -m tests.simulation`: numbers, stories, and the line that shows a failure again."""

from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from tests.simulation import Faults, drawn, lived
from tests.simulation.__main__ import command, main
from tests.simulation.drawing import HOUR_US
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.test_lives import forgets_interrupted

NODES = [[], ["--nodes", "2"]]
"""A scheduler on a file, and nodes on a database."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("nodes", NODES)
def test_many_seeds_in_two_processes(nodes: list[str]) -> None:
    """A campaign ends with its numbers, whatever the number of processes."""
    result = run(*nodes, "--seeds", "12", "--jobs", "2")
    assert result.exit_code == 0
    assert "lives                12" in result.output
    assert "lives that failed    0" in result.output
    assert "rare paths taken" in result.output


@pytest.mark.parametrize("nodes", NODES)
def test_one_seed_is_told(nodes: list[str]) -> None:
    """One seed is told as a story, with the hash of its trace."""
    result = run(*nodes, "--seed", "3", "--only", "crash,clock")
    assert result.exit_code == 0
    assert "healed at" in result.output
    assert "hash " in result.output
    assert "nothing is wrong" in result.output


def test_failure_is_shortened_and_can_be_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that fails says why, tells the shortest story that fails alike, and how to see it again."""
    monkeypatch.setattr("duly.core.reconciliation.cut_off", forgets_interrupted)
    plans = (drawn(seed, Faults.only("crash", "callback")) for seed in range(200))
    brief = (plan for plan in plans if plan.duration_us < HOUR_US and len(plan.actions) < 4)
    failing = next(plan.seed for plan in brief if not lived(plan).is_sound)
    result = run("--seed", str(failing), "--only", "crash,callback")
    assert result.exit_code == 1
    assert "The shortest story that fails in the same way" in result.output
    assert f"reproduce: {command(failing, Faults.only('crash', 'callback'))}" in result.output


def test_failure_of_a_cluster_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for nodes."""
    monkeypatch.setattr("duly.cluster.node.Observer.look", lambda *_: [])
    result = run("--nodes", "2", "--seed", "1", "--only", "crash")
    assert result.exit_code == 1
    assert "The shortest story that fails in the same way" in result.output
    assert "reproduce: python -m tests.simulation --nodes 2 --seed 1 --only crash" in result.output


def test_orders() -> None:
    """Every order of two actions is lived and counted."""
    result = run("--orders", "2")
    assert result.exit_code == 0
    assert "lives                77" in result.output


def test_failure_of_an_order_or_a_point_can_be_reproduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders and crash points that fail print the line that shows each again, shortened."""
    monkeypatch.setattr("duly.core.reconciliation.cut_off", forgets_interrupted)
    in_memory = replace(SCENARIOS["first-start"], is_durable=False)  # has a tenth of the crash points
    monkeypatch.setitem(SCENARIOS, "first-start", in_memory)
    for arguments in (("--orders", "2"), ("--points", "first-start", "--pairs", "0")):
        result = run(*arguments)
        assert result.exit_code == 1
        again = next(line for line in result.output.splitlines() if "reproduce: " in line).split(
            "simulation "
        )[1]
        shown = run(*again.split())
        assert shown.exit_code == 1
        assert "The shortest story that fails in the same way" in shown.output
        assert again in shown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--order", "due,dance"), "'dance' is none of"),
        (("--at", "await:1:kill"), "--at needs --points"),
        (("--only", "gremlins"), "no such family of faults: gremlins"),
        (("--only", "disk", "--nodes", "2"), "no such family of faults: disk"),
        (("--budget", "soon"), "60s, 5m or 1h"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], message: str) -> None:
    """An argument that means nothing is refused with what would."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
