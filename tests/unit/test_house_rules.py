"""House rules that no linter knows."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
FORBIDDEN_WORDS = re.compile(r"(Manager|Helper|Util|Impl)$|^(utils?|helpers?|misc|common)$")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_open_with_their_idea(path: Path) -> None:
    """Every module begins with a docstring and stays small enough to be one idea."""
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "say what this module is about"
    assert text.count("\n") <= 500, "is this two ideas?"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_something(path: Path) -> None:
    """No class or module is called by a word that says nothing."""
    tree = ast.parse(path.read_text())
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert not [name for name in (*names, path.stem) if FORBIDDEN_WORDS.search(name)]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_say_what_they_show(path: Path) -> None:
    """Every test has a docstring: one sentence, or two."""
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    silent = [f.name for f in functions if f.name.startswith("test_") and not ast.get_docstring(f)]
    assert not silent


def test_nothing_names_this_machine() -> None:
    """No tracked text holds a path of the machine it was written on."""
    pattern = re.compile(r"(?<![A-Za-z0-9_.])/(?:work|farm|root)/")
    texts = [*SOURCES, *TESTS, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    assert not [path for path in texts if path != Path(__file__) and pattern.search(path.read_text())]


SUITE = "callbacks, clock_steps, letting_go, lifecycle, overrides, recovery, retries, starts, store_faults"


@pytest.mark.parametrize("name", SUITE.split(", "))
def test_scheduler_suite_runs_on_every_store(name: str) -> None:
    """A test of the scheduler suite names no store of its own, unless it says why it is about a file."""
    text = (ROOT / "tests" / "integration" / f"test_{name}.py").read_text()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        words = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        words |= {argument.arg for argument in node.args.args}
        is_about_a_file = bool(words & {"MemoryStore", "SQLiteStore", "tmp_path", "tmp_path_factory"})
        reasons = [ast.unparse(mark) for mark in node.decorator_list if "sqlite_only" in ast.unparse(mark)]
        assert is_about_a_file == bool(reasons), node.name
        assert "same_store" not in words or not is_about_a_file, node.name
