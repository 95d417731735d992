"""A mutant: a scheduler with one mistake in it, such as a tired engineer makes.

A mutant is a value: a text of a file, and what replaces it. It is applied to a copy of the source, never to
the source itself. The old text must be there exactly once, so a mutant that no longer fits the code is noticed
instead of quietly changing nothing. Only the scheduler is ever mutated; what judges it is not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

MUTABLE = ("clock.py", "core/", "cron/", "engine/", "scheduler.py", "store/")
"""Where a mutant may live, seen from the package: not in the checker, and not in the simulation."""


class StaleMutantError(Exception):
    """The code has moved on, and a mutant does not fit it any more."""

    def __init__(self, mutant: str, file: str, found: int) -> None:
        super().__init__(
            f"the mutant {mutant} does not fit {file}: its old text is there {found} times and must be there once;"
            " write it again in the catalogue"
        )
        self.mutant = mutant
        self.file = file
        self.found = found


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement of a text, in a file seen from the package."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake, which may need more than one edit where the code makes sure of something twice."""

    name: str
    wrong: str
    """One sentence: what this scheduler does that it must not, or fails to do."""
    edits: tuple[Edit, ...]


def mutant(name: str, file: str, old: str, new: str, *, wrong: str, also: Iterable[Edit] = ()) -> Mutant:
    """A mutant of one edit, *also* of some more."""
    return Mutant(name, wrong, (Edit(file, old, new), *also))


def mutated_files(mutant: Mutant, package: Path) -> dict[Path, str]:
    """The files of *package* that differ in the mutant, as they are there. Raises StaleMutantError."""
    files: dict[Path, str] = {}
    for edit in mutant.edits:
        path = package / edit.file
        text = files.get(path) or path.read_text()
        if (found := text.count(edit.old)) != 1:
            raise StaleMutantError(mutant.name, edit.file, found)
        files[path] = text.replace(edit.old, edit.new)
    return files


def apply(mutant: Mutant, package: Path) -> None:
    """Make *package*, which is a copy, the mutant."""
    for path, text in mutated_files(mutant, package).items():
        path.write_text(text)
        if path.suffix == ".py":  # or Python may take the code compiled before the edit for this one
            Path(cache_from_source(str(path))).unlink(missing_ok=True)
