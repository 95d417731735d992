"""The command: hunts every mutant in a copy of its own, a few at a time, and says which ones got away.

The scheduler as it is goes through the same hunt. If something objected to that, the deaths of the others would
prove nothing.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
from tools.markdown import wrapped
from tools.mutants.catalogue import MUTANTS
from tools.mutants.hunt import Finding
from tools.mutants.mutant import Mutant, apply, mutated_files
from tools.mutants.page import CONTROL, PAGE, page

ROOT = Path(__file__).resolve().parents[2]


class HuntError(Exception):
    """A hunt came to no result."""

    def __init__(self, name: str, complaint: str) -> None:
        super().__init__(f"the hunt for {name} failed; look at what it says and repair it:\n{complaint}")


@dataclass(frozen=True, slots=True)
class Hunter:
    """Hunts copies of the source as it was when the hunt began."""

    folder: Path
    budget_s: float

    def prepare(self) -> None:
        """Take the copy that all others are made from."""
        shutil.copytree(ROOT / "src", self.folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
        self.compile(self.folder / "source")

    @staticmethod
    def compile(folder: Path) -> None:
        """Compile what is in *folder* once, and not in every copy of it."""
        compile_dir(folder, quiet=1)

    def finding(self, mutant: Mutant) -> Finding:
        """What the hunt for *mutant* comes to."""
        if not mutant.edits:
            return self._hunted(self.folder / "source")
        copy = self.folder / mutant.name
        shutil.copytree(self.folder / "source", copy)
        apply(mutant, copy / "duly")
        try:
            return self._hunted(copy)
        finally:
            shutil.rmtree(copy)

    def _hunted(self, copy: Path) -> Finding:
        sound = self.folder / "source"
        command = [
            sys.executable,
            "-m",
            "tools.mutants.hunt",
            "hunt",
            str(copy),
            str(sound),
            str(self.budget_s),
        ]
        paths = os.pathsep.join([str(copy), str(ROOT)])
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": paths}, cwd=copy, capture_output=True, check=False
        )
        if done.returncode:  # which is nobody's death, and proves nothing
            raise HuntError(copy.name, done.stderr.decode(errors="replace"))
        return msgspec.json.decode(done.stdout, type=Finding)


def findings(mutants: list[Mutant], hunter: Hunter, jobs: int) -> Iterator[tuple[Mutant, Finding]]:
    """Each mutant with what its hunt came to, as they come."""
    hunter.prepare()
    for mutant in mutants:  # before any hunt begins: a stale one is found now, not after minutes
        mutated_files(mutant, hunter.folder / "source" / "duly")
    with ThreadPoolExecutor(jobs) as pool:
        hunts = {pool.submit(hunter.finding, mutant): mutant for mutant in mutants}
        for hunt in as_completed(hunts):
            yield hunts[hunt], hunt.result()


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="Hunt just this one; may be given several times.")
@click.option(
    "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="At a time."
)
@click.option(
    "--budget", type=float, default=60, show_default=True, help="Seconds of processor time for each."
)
@click.option(
    "--write", is_flag=True, help=f"Write the table to docs/{PAGE.name}, or with --only those rows."
)
def main(only: tuple[str, ...], jobs: int, budget: float, write: bool) -> None:
    """Hunt every mutant of the scheduler; fail if one gets away, or if the scheduler itself is killed."""
    # The control first: it uses its whole budget, and meanwhile the others pass.
    chosen = [CONTROL, *MUTANTS] if not only else [each for each in (CONTROL, *MUTANTS) if each.name in only]
    if unknown := set(only) - {each.name for each in chosen}:
        raise click.BadParameter(f"there is no mutant {', '.join(sorted(unknown))}")
    with TemporaryDirectory(prefix="duly-mutants-") as folder:
        found = _reported(findings(chosen, Hunter(Path(folder), budget), jobs))
    if write:
        PAGE.write_text(wrapped(page(found, PAGE.read_text() if only else "")))
    killed = sum(finding.is_kill for name, finding in found.items() if name != CONTROL.name)
    number = len(found.keys() - {CONTROL.name})
    is_sound = CONTROL.name not in found or not found[CONTROL.name].is_kill
    click.echo(f"{killed} of {number} killed" + ("" if is_sound else ", and so was the scheduler as it is"))
    sys.exit(0 if killed == number and is_sound else 1)


def _reported(findings: Iterator[tuple[Mutant, Finding]]) -> dict[str, Finding]:
    found = {}
    for mutant, finding in findings:
        found[mutant.name] = finding
        click.echo(f"{mutant.name:<42} {_fate(mutant, finding)}")
    return found


def _fate(mutant: Mutant, finding: Finding) -> str:
    seen = f"{finding.lives} lives, {finding.seconds} s"
    if finding.is_kill:
        return f"killed by {finding.killed_by} at {finding.where} ({seen}): {finding.reason[:150]}"
    return f"{'lives, as it should' if mutant is CONTROL else 'SURVIVED'} ({seen})"


if __name__ == "__main__":
    main()
