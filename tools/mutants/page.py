"""The page docs/mutants.md: which mistakes there are, and what finds each of them."""

from collections.abc import Mapping
from pathlib import Path

from tools.mutants.catalogue import MUTANTS
from tools.mutants.hunt import Finding
from tools.mutants.mutant import Mutant

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutants.md"

CONTROL = Mutant("control", "Nothing: the scheduler as it is.", ())
"""What must not be killed."""

_HEAD = """# Mutants

A checker that has never objected to anything proves little. So here are {number} schedulers with one mistake each, such
as a tired engineer makes, and what the simulation and the checker have to say about them. Written by
`python tools/mutants/run.py --write`; no line of the table is typed by hand.

Each mutant is put into a copy of the source and hunted there: random lives with every fault there is, every crash
point of some small scenarios, every order of a few actions, and lives of an app, in turn, until a property of the model is violated,
the store holds what it must not, an app does something else than its exact model, or the simulated program cannot go on. The last column says how many lives that took. The
hunt is the same every time. {control}

Read the number with care. The worlds of the hunt and this catalogue were worked on until no mutant was left over, and three mutants that survived were
dropped as no different in this simulation (a list that returns before its starts with a store that answers at once; a stop forgotten by an initialize, which
the poller's hold covers; not writing all rows after a fault, which needs a database replaced while in use). So it shows that each mistake below is found, not how
many of all mistakes would be.

{killed} of {number} are killed.

| mutant | what is wrong with it | killed by | in | lives |
|---|---|---|---|---|
"""

_SURVIVED = "**survived**"


def page(found: Mapping[str, Finding], before: str = "") -> str:
    """The whole page; mutants that were not hunted have the rows of the page *before*, or none."""
    rows = {line.split(" | ")[0].removeprefix("| "): f"{line}\n" for line in before.splitlines()}
    rows |= {mutant.name: _row(mutant, found[mutant.name]) for mutant in MUTANTS if mutant.name in found}
    table = [rows[mutant.name] for mutant in MUTANTS if mutant.name in rows]
    killed = sum(_SURVIVED not in row for row in table)
    head = _HEAD.format(number=len(table), killed=killed, control=_control(found.get(CONTROL.name)))
    return head + "".join(table)


def _control(finding: Finding | None) -> str:
    if finding is None:
        return "The scheduler as it is was not hunted this time."
    fate = f"was killed by {finding.killed_by}" if finding.is_kill else "outlived it"
    return f"The scheduler as it is went through the same hunt for {finding.lives} lives, and {fate}."


def _row(mutant: Mutant, finding: Finding) -> str:
    fate = [finding.killed_by, finding.where] if finding.is_kill else [_SURVIVED, ""]
    cells = [mutant.name, mutant.wrong, *fate, str(finding.lives)]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"
