"""The model of row claims (docs/spec/claims.md): SPIN tries every order of its steps.

With -s each test prints the states that SPIN visited, or the shortest story of what a broken variant does.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "docs" / "spec" / "claims.pml"
MEMORY_MB = 6000
DEPTH = 20_000

pytestmark = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="there is no spin or no gcc here: apt install spin gcc",
)

# What the output of SPIN says of a violated property: part of the text of its assertion, or of its verdict.
TWO_RUNS = "state!=2"  # two runs of a task at once
TWO_STARTS = ">=finished["  # a second start for a due
WRONG_END = "fenced["  # an end by a node that is fenced or does not own the row
UNANSWERED = "pan:1: acceptance cycle"  # a due that is never answered

LOST, FAULT, FORGET, ROUNDS, LIVENESS = "LOST=1", "FAULT=1", "FORGET=1", "ROUNDS=1", "LIVENESS"


@dataclass(frozen=True)
class Configuration:
    """A size of the model and the faults that come, as macros of the model."""

    nodes: int
    tasks: int
    switches: tuple[str, ...]

    @property
    def macros(self) -> list[str]:
        return [f"-D{macro}" for macro in (f"NODES={self.nodes}", f"TASKS={self.tasks}", *self.switches)]

    def __str__(self) -> str:
        return f"{self.nodes}-nodes-{self.tasks}-tasks-{'-'.join(self.switches).lower().replace('=1', '')}"


def verdict(configuration: Configuration, folder: Path, *, shortest: bool = False) -> str:
    """What SPIN prints about the model in this configuration, built and run in *folder*.

    *shortest* looks for the shortest counterexample.
    """
    shutil.copy(MODEL, folder / MODEL.name)
    live = LIVENESS in configuration.switches
    run(folder, "spin", "-a", *configuration.macros, MODEL.name)
    # Every step touches shared state, so partial order reduction gains nothing and costs half of the time.
    options = ["-w", "-O0" if shortest else "-O1", "-DNOREDUCE", f"-DMEMLIM={MEMORY_MB}"]
    options += ["-DNFAIR=5"] if live else ["-DSAFETY", "-DNOCLAIM"]
    options += ["-DREACH"] if shortest else []
    run(folder, "gcc", *options, "-o", "pan", "pan.c")
    return run(folder, "./pan", f"-m{DEPTH}", *(["-a", "-f"] if live else []), *(["-i"] if shortest else []))


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{' '.join(command)}: {output}"
    return output


def story(configuration: Configuration, folder: Path) -> str:
    """The steps of the counterexample that SPIN has found, one each line, and what it violates."""
    return run(folder, "spin", "-T", "-t", *configuration.macros, MODEL.name).partition("#processes")[0]


def assert_holds(configuration: Configuration, folder: Path) -> None:
    output = verdict(configuration, folder)
    for truncated in ("max search depth too small", "Search not completed", "MEMLIM", "out of memory"):
        assert truncated not in output, output
    assert "errors: 0" in output, output
    states = next(line.strip() for line in output.splitlines() if "states, stored" in line)
    print(f"\n{configuration}: {states}, errors: 0")  # noqa: T201 - asked for with -s


CONFIGURATIONS = [
    Configuration(3, 2, (LOST, FAULT, ROUNDS)),
    Configuration(2, 2, (LOST, FORGET, ROUNDS)),
    Configuration(3, 1, (FAULT, FORGET, ROUNDS)),
    Configuration(2, 1, ("DUES=2", LOST, FAULT, FORGET, ROUNDS)),
    Configuration(2, 1, (LOST, FAULT, FORGET)),
    Configuration(3, 1, (LOST, FAULT)),
    Configuration(3, 1, (LIVENESS, LOST, FAULT, ROUNDS)),
    Configuration(2, 1, (LIVENESS, LOST, FORGET, ROUNDS)),
    Configuration(2, 1, (LIVENESS, FAULT, FORGET, ROUNDS)),
]
LARGER = [
    Configuration(3, 2, (LOST, FAULT)),
    Configuration(3, 2, (FORGET, ROUNDS)),
    Configuration(3, 1, (LOST, FAULT, FORGET, ROUNDS)),
    Configuration(2, 2, (LOST, FORGET)),
    Configuration(2, 2, (LIVENESS, LOST, FAULT, ROUNDS)),
    Configuration(2, 1, (LIVENESS, LOST, FAULT, FORGET, ROUNDS)),
]


@pytest.mark.parametrize(
    "configuration",
    [*CONFIGURATIONS, *(pytest.param(each, marks=pytest.mark.slow) for each in LARGER)],
    ids=str,
)
def test_model_holds(configuration: Configuration, tmp_path: Path) -> None:
    """No task runs twice at once, no due is started twice, no fenced node records an end.

    With LIVENESS: every due is answered while a node lives.
    """
    assert_holds(configuration, tmp_path)


# The switches that each variant needs, and what it violates first.
VARIANTS: dict[str, tuple[tuple[str, ...], str]] = {
    "NO_TOKEN": ((FAULT,), WRONG_END),
    "WALL_CLOCK_LEASE": ((), TWO_RUNS),
    "FENCE_WITHOUT_COUNTER": ((FAULT,), WRONG_END),
    "CALL_BEFORE_COMMIT": ((), TWO_RUNS),
    "HEARTBEAT_ON_LOOP": ((FAULT,), TWO_RUNS),
    "NO_RESTORE": ((FORGET,), TWO_STARTS),
    "NO_TRUST_CHECK": ((FAULT,), TWO_RUNS),
    "NO_CHECK_ON_RESUME": ((FAULT,), TWO_RUNS),
    "OLD_ANSWER": ((FAULT,), TWO_RUNS),
    "FENCE_LEAVES_ROWS": ((FAULT,), WRONG_END),
    "TRUST_LIKE_LEASE": ((FAULT,), TWO_RUNS),
    "LOOK_TIMED_BEFORE_SEND": ((FAULT,), TWO_RUNS),
    "CONTINUE_AT_ONCE": ((FORGET,), TWO_RUNS),
    "RESTORE_ONLY_RUNNING": ((FORGET,), TWO_STARTS),
    "LATE_RESTORE": ((FORGET, FAULT), TWO_RUNS),
    "END_UNCHECKED": ((FORGET, FAULT), WRONG_END),
    "NO_NEW_ID": ((LIVENESS, LOST), UNANSWERED),
    "NO_SWEEP": ((LIVENESS, LOST), UNANSWERED),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_broken_variant(variant: str, tmp_path: Path) -> None:
    """Without any one of its rules the design breaks the property that the rule is there for."""
    switches, violated = VARIANTS[variant]
    configuration = Configuration(2, 1, (f"BROKEN={variant}", ROUNDS, *switches))
    output = verdict(configuration, tmp_path, shortest=violated != UNANSWERED)
    assert "pan:1:" in output, f"nothing is wrong with {variant}: {output}"
    counterexample = story(configuration, tmp_path)
    print(f"\n{variant}\n{counterexample}")  # noqa: T201 - asked for with -s
    assert violated in (output if violated == UNANSWERED else counterexample.replace(" ", ""))


@pytest.mark.parametrize("variant", ["NO_TOKEN", "NO_RESTORE", "NO_NEW_ID", "NO_SWEEP"])
def test_variants_need_their_fault(variant: str, tmp_path: Path) -> None:
    """A variant is caught because of a fault: where no fault comes the rule is not missed."""
    switches = [switch for switch in VARIANTS[variant][0] if switch == LIVENESS]
    assert_holds(Configuration(2, 1, (f"BROKEN={variant}", ROUNDS, *switches)), tmp_path)
