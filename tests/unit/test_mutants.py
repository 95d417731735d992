"""The mutants: each still fits the code, is told apart from the others, and can be hunted."""

from collections import Counter
from pathlib import Path

import pytest
from tools.mutants.catalogue import MUTANTS
from tools.mutants.command import ROOT, Hunter
from tools.mutants.hunt import Finding, objection
from tools.mutants.mutant import MUTABLE, Mutant, StaleMutantError, apply, mutant, mutated_files
from tools.mutants.page import CONTROL, PAGE, page
from tools.mutants.worlds import calendar, crowded

from tests.simulation import lived

PACKAGE = ROOT / "src" / "duly"


def named(mutant: Mutant) -> str:
    return mutant.name


def test_there_are_enough_of_them() -> None:
    """There are at least forty mutants, each with a name of its own."""
    names = Counter(mutant.name for mutant in MUTANTS)
    assert len(names) == len(MUTANTS) >= 40


@pytest.mark.parametrize("mutant", MUTANTS, ids=named)
def test_fits_the_code(mutant: Mutant) -> None:
    """Every mutant still finds its text in the source exactly once, changes it, and can be compiled."""
    for path, text in mutated_files(mutant, PACKAGE).items():
        assert text != path.read_text()
        if path.suffix == ".py":
            compile(text, str(path), "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=named)
def test_leaves_the_judges_alone(mutant: Mutant) -> None:
    """Every mutant changes the scheduler only, and says in one sentence what is wrong with it."""
    assert all(edit.file.startswith(MUTABLE) for edit in mutant.edits)
    assert mutant.wrong[0].isupper()
    assert mutant.wrong.endswith(".")


def test_no_two_are_the_same() -> None:
    """No two mutants make the same program."""
    programs = Counter(tuple(sorted(mutated_files(mutant, PACKAGE).items())) for mutant in MUTANTS)
    assert max(programs.values()) == 1


def test_stale_mutant_is_noticed(tmp_path: Path) -> None:
    """A mutant whose text is not there, or there twice, is refused with its name."""
    (tmp_path / "clock.py").write_text("tick tick")
    for old in ("tock", "tick"):
        with pytest.raises(StaleMutantError, match="drowsy"):
            apply(mutant("drowsy", "clock.py", old, "", wrong="It dozes."), tmp_path)


def test_apply_forgets_what_was_compiled(tmp_path: Path) -> None:
    """A copy that is made a mutant loses the compiled form of what it was."""
    (tmp_path / "clock.py").write_text("tick = 1\n")
    compile_cache = tmp_path / "__pycache__"
    compile_cache.mkdir()
    Hunter.compile(tmp_path)
    assert list(compile_cache.iterdir())
    apply(mutant("drowsy", "clock.py", "tick = 1", "tick = 2", wrong="It dozes."), tmp_path)
    assert (tmp_path / "clock.py").read_text() == "tick = 2\n"
    assert not list(compile_cache.iterdir())


@pytest.mark.heavy
def test_hunt_kills_a_mutant_and_spares_the_scheduler(tmp_path: Path) -> None:
    """An easy mutant is killed by the property it violates; the scheduler as it is outlives the hunt."""
    hunter = Hunter(tmp_path, budget_s=1.5)
    hunter.prepare()
    easy = next(mutant for mutant in MUTANTS if mutant.name == "retry-without-delay")
    assert "S1d" in hunter.finding(easy).killed_by
    assert not hunter.finding(CONTROL).is_kill


@pytest.mark.parametrize("seed", range(1, 31))
def test_worlds_of_the_hunt_are_fair(seed: int) -> None:
    """The scheduler as it is lives in the worlds of the hunt without objection."""
    for plan in (crowded(seed), calendar(seed)):
        life = lived(plan)
        assert objection(life) is None, life.faults


def test_worlds_follow_from_their_seed() -> None:
    """The same seed always gives the same world."""
    assert crowded(7) == crowded(7) != crowded(8)
    assert calendar(7) == calendar(7) != calendar(8)


def test_page_tells_of_survivors() -> None:
    """The page counts the killed, marks those that got away, and says how the scheduler itself fared."""
    first, second = MUTANTS[:2]
    found = {
        first.name: Finding("S1d", "why", "seed 17", 34, 1.0),
        second.name: Finding("", "", "", 99, 60.0),
        CONTROL.name: Finding("", "", "", 99, 60.0),
    }
    text = page(found)
    assert "1 of 2 are killed." in text
    assert f"| {first.name} | {first.wrong} | S1d | seed 17 | 34 |" in text
    assert f"| {second.name} | {second.wrong} | **survived** |  | 99 |" in text
    assert "for 99 lives, and outlived it" in text


def test_page_is_complete() -> None:
    """The page in docs tells of every mutant, and of no survivor."""
    text = PAGE.read_text()
    assert all(f"| {mutant.name} | {mutant.wrong} |" in text for mutant in MUTANTS)
    assert "**survived**" not in text
