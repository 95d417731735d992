"""Rules for the files of the repository that no linter knows: modules, tests, maps, citations, pages.

Whether the pages say what the code does is in `test_docs.py`.
"""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tools.house import (
    MANY_MACHINES,
    MANY_MACHINES_TESTS,
    dangling,
    lines_of,
    measured,
    report,
    tracked,
    types_used_twice,
    widest,
)
from tools.markdown import WIDTH, wrapped

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
MAPS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md", "docs/glossary.md")
README = (ROOT / "README.md").read_text()
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


# --- modules and tests ---

FORBIDDEN_WORDS = re.compile(r"(Manager|Helper|Util|Impl)$|^(utils?|helpers?|misc|common)$")
QUAINT_WORDS = re.compile(
    r"(?<!-)\b(anew|doomed|haunted|heed(?:s|ed)?|lest|thence|whence|whoever|[Kk]eepers?)\b"
)
"""What plain English has another word for. Names of mutants may end in one."""


def test_modules_say_what_they_are() -> None:
    """Every module has a docstring, and names that say something."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), f"{path}: say what this module is about"
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        assert not [name for name in (*names, path.stem) if FORBIDDEN_WORDS.search(name)], path


@pytest.mark.parametrize("place", ["src", "docs", "tools", "examples"])
def test_english_is_plain(place: str) -> None:
    """No page and no source uses a word that plain English has another word for."""
    paths = [
        path for path in (ROOT / place).rglob("*") if path.suffix in {".py", ".md", ".sql", ".html", ".js"}
    ]
    found = {str(path.relative_to(ROOT)): QUAINT_WORDS.findall(path.read_text()) for path in paths}
    assert {path: words for path, words in found.items() if words} == {}


def test_no_type_has_the_name_of_another() -> None:
    """A name of a class, or of an alias of a type, has one meaning in the whole package."""
    assert types_used_twice(measured(str(path), path.read_text()) for path in SOURCES) == {}


def test_tests_say_what_they_show() -> None:
    """Every test has a docstring: one sentence, or two."""
    functions = [
        (path, node)
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert not [(path, node.name) for path, node in functions if not ast.get_docstring(node)]


def test_nothing_names_this_machine() -> None:
    """No tracked text holds a path of the machine it was written on."""
    pattern = re.compile(r"(?<![A-Za-z0-9_.])/(?:work|farm|root)/")
    texts = [*SOURCES, *TESTS, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    assert not [path for path in texts if path != Path(__file__) and pattern.search(path.read_text())]


SUITE = "callbacks, clock_steps, letting_go, lifecycle, overrides, recovery, retries, starts, store_faults"


@pytest.mark.parametrize("name", SUITE.split(", "))
def test_scheduler_suite_runs_on_every_store(name: str) -> None:
    """A test of the scheduler suite runs on every store, unless it says why not."""
    text = (ROOT / "tests" / "integration" / f"test_{name}.py").read_text()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        words = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        words |= {argument.arg for argument in node.args.args}
        is_about_a_file = bool(words & {"MemoryStore", "SQLiteStore", "tmp_path", "tmp_path_factory"})
        reasons = [ast.unparse(mark) for mark in node.decorator_list if "sqlite_only" in ast.unparse(mark)]
        assert bool(reasons) or not is_about_a_file, node.name
        assert "same_store" not in words or not is_about_a_file, node.name


# --- imports ---

ENTRY_POINTS = {
    "duly",
    "duly.__main__",  # `python -m`
    *(entry.partition(":")[0] for entry in PROJECT["project"]["scripts"].values()),
    *PROJECT["project"]["entry-points"]["pytest11"].values(),
    # Public, for programs and tests of users. What these import is shipped with them.
    *(f"duly.integrations.{name}" for name in ("celery", "fastapi", "flask", "django")),
    *("duly.integrations.django.apps", "duly.integrations.django.management.commands.duly"),
    *("duly.observe", "duly.store", "duly.verify", "duly.verify.foreign"),
    *("duly.testing", "duly.testing.conformance"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


def mentioned(text: str) -> set[str]:
    """The names that *text* imports, anywhere in it, and its strings: a command's module is one of those."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "imports are absolute"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def test_nothing_is_shipped_that_only_tests_import() -> None:
    """Every module of the package is reached by imports from what users run or import."""
    reached: set[str] = set()
    waiting = sorted(ENTRY_POINTS)
    assert [name for name in waiting if name not in MODULES] == []
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in reached:
            reached.add(name)
            # An import also runs the packages around the module.
            waiting += [name.rpartition(".")[0], *mentioned(MODULES[name].read_text())]
    assert sorted(MODULES.keys() - reached) == []


LOADED_BEFORE_TIMERS = (
    *("duly.cli.run", "duly.daemon.client", "duly.daemon.daemon", "duly.daemon.foreground"),
    "duly.supervisor.supervisor",
)


@pytest.mark.heavy
def test_importing_the_daemon_imports_no_timers() -> None:
    """What `duly run` loads before its timer switch is on holds nothing of timers; no contract says that."""
    modules, packages = ", ".join(LOADED_BEFORE_TIMERS), ("duly.timers", "duly.cluster_timers")
    code = f"import sys, {modules}; print([name for name in sys.modules if name.startswith({packages})])"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout == "[]\n"


@pytest.mark.heavy
def test_the_pytest_plugin_imports_nothing_until_it_is_used() -> None:
    """A session that uses no fixture of duly loads its errors and its plug-in, and no event loop."""
    code = "import sys, duly.testing.plugin; print([name for name in sys.modules if name.startswith('duly')])"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    small = ("errors", "formatting", "instant", "lazy", "testing", "testing.plugin", "version")
    loaded = {"duly", *(f"duly.{name}" for name in small)}
    assert set(ast.literal_eval(result.stdout)) <= loaded


# --- maps: ARCHITECTURE.md and the like ---

PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|sql|md|txt|toml|html|js)))`")


NOTES = [path for path in SOURCES if path.name == "__init__.py"]
LISTED = re.compile(r"^ {2,}([a-z][\w.]*(?:, [a-z][\w.]*)*) {2,}\S", re.MULTILINE)
"""A line of a design note that begins with names of modules."""


@pytest.mark.parametrize("path", NOTES, ids=module_name)
def test_design_notes_list_what_exists(path: Path) -> None:
    """What the design note of a package lists is a module of it, a module beside it, or a name in it."""
    listed = ", ".join(LISTED.findall(ast.get_docstring(ast.parse(path.read_text())) or "")).split(", ")
    names = [each.partition(".")[0] for each in listed if each]
    near = {each.stem for folder in (path.parent, path.parent.parent) for each in folder.iterdir()}
    assert [name for name in names if name not in near and f"def {name}(" not in path.read_text()] == []


@pytest.mark.parametrize("name", MAPS)
def test_every_path_exists(name: str) -> None:
    """Each path on a map is there, from the root of the repository or of the package."""
    found = PATH.findall((ROOT / name).read_text())
    assert found
    roots = (ROOT, ROOT / "src" / "duly")
    # A configuration may be called so; it is no file of ours.
    named = [path for path in found if path not in {"duly.py", "duly.toml"}]
    assert [path for path in named if not any((root / path).exists() for root in roots)] == []


def test_the_diagram_has_the_layers_of_the_contract() -> None:
    """The packages of ARCHITECTURE.md stand in the order that the import contract has."""
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    diagram = (ROOT / "ARCHITECTURE.md").read_text().split("```")[1].strip().splitlines()
    drawn = [re.split(r" {2,}", line)[0] for line in diagram]
    assert drawn == [layer.strip("()") for layer in layers]


def test_the_list_of_attacks_is_whole() -> None:
    """Each file of tests/attacks is named in its README, and each test named there is in its file."""
    folder = ROOT / "tests" / "attacks"
    text = (folder / "README.md").read_text()
    assert {path.name for path in folder.glob("test_*.py")} == set(re.findall(r"`(test_\w+\.py)", text))
    current = ""
    for file, test in re.findall(r"`(test_\w+\.py)?(?:::(test_\w+\*?))?`", text):
        current = file or current
        if test:
            assert f"def {test.removesuffix('*')}" in (folder / current).read_text(), (current, test)


@pytest.mark.parametrize(
    "named", sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", GUARANTEES))), ids="::".join
)
def test_guarantees_name_tests_that_exist(named: tuple[str, str]) -> None:
    """Each guarantee names a test, and the test is there."""
    path, test = named
    assert (ROOT / path).exists()
    assert not test or f"def {test}(" in (ROOT / path).read_text()


# --- citations and links ---


@pytest.mark.parametrize(
    "place",
    [
        *("src", "tests", "docs", "tools"),
        *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    ],
)
def test_citations_lead_somewhere(place: str) -> None:
    """Every page that is cited is in the repository, and has the sections that are cited."""
    paths = [path for path in (ROOT / place, *(ROOT / place).rglob("*")) if path.suffix in {".py", ".md"}]
    texts = {path: path.read_text() for path in paths if path != Path(__file__)}
    assert texts
    found = {path: dangling(text, path.parent) for path, text in texts.items()}
    assert not {str(path.relative_to(ROOT)): each for path, each in found.items() if each}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(S1a, spec/model.md 5), `docs/spec/timers.md 3 to 5`, (cluster.md#daemons), decision 0011", []),
        ("spec/model.md 3, 99 and 5.7", ["spec/model.md 5.7", "spec/model.md 99"]),
        ("timers.md 3.1", ["timers.md 3.1"]),  # the guide of users has no numbers
        ("cluster.md#nowhere", ["cluster.md nowhere"]),
        ("NOWHERE.md 3", ["NOWHERE.md"]),
        ("decisions/9999", ["decision 9999"]),
    ],
)
def test_dangling_citations_are_found(text: str, expected: list[str]) -> None:
    """A citation of a page, section or decision that does not exist is found."""
    assert dangling(text, ROOT / "src") == expected


DOCS = (str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "CHANGELOG.md", *MAPS, *DOCS]


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    """Each link on a page leads to a file."""
    page = ROOT / name
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


# --- prose, and `make house` ---


@pytest.mark.heavy
def test_prose_is_wrapped() -> None:
    """No line of prose in a page is wider than the limit; `python tools/markdown.py FILE` wraps one."""
    pages = [path for path in tracked() if path.endswith(".md")]
    assert [path for path in pages if widest({path: (ROOT / path).read_text()})[0] > WIDTH] == []


def test_widest_line_leaves_out_tables_and_code() -> None:
    """What cannot be wrapped is not measured."""
    text = "a few words\n\n| a table that is wide |\n\n```\nsome code that is wide\n```\nthe widest words\n"
    assert widest({"page": text}) == (16, "page:8")


def test_wrapping_changes_only_prose() -> None:
    """Long paragraphs and items are wrapped below themselves; tables, code and narrow paragraphs stay."""
    wide = " ".join(["word"] * 30)
    text = f"# {wide}\n\n- {wide}\n  and - more\n\n| {wide} |\n\n```\n{wide}\n```\nnarrow\nlines\n"
    result = wrapped(text)
    assert result.split() == text.split()
    assert wrapped(result) == result
    assert [line for line in result.splitlines() if len(line) > WIDTH] == [f"# {wide}", f"| {wide} |", wide]
    assert result.endswith("narrow\nlines\n")
    assert "\n  word" in result
    assert "\n- more" not in result


@pytest.mark.heavy
def test_every_pattern_for_many_machines_finds_files() -> None:
    """A file that is renamed does not drop out of what is counted for many machines."""
    files = tracked()
    patterns = [*MANY_MACHINES, *MANY_MACHINES_TESTS]
    assert [pattern for pattern in patterns if not lines_of([pattern], files)] == []


MODULE = '''"""An idea."""


Runs = list[int]


class Run:
    """A run."""

    # Comments count.
    def length(self) -> int:
        return 1
'''


def test_report_of_a_small_tree(tmp_path: Path) -> None:
    """Files, lines, medians, comments and names used twice are those of the tree."""
    for name in ("src/duly/core/run.py", "src/duly/run.py", "tests/test_run.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(MODULE)
    (tmp_path / "page").with_suffix(".md").write_text(f"See decision {9999}.\n")
    files = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*.*"))]
    lines = [" ".join(line.split()) for line in report(files, tmp_path)]
    assert "shipped Python 2 files 24 lines" in lines
    assert "core 1 files 12 lines" in lines
    assert "(top) 1 files 12 lines" in lines
    assert "median module 12 lines" in lines
    assert "median function 2 lines" in lines
    assert "comment lines 14.3% (one in 7)" in lines
    assert "Run 2, Runs 2" in lines
    assert "dangling citations 1" in lines
    assert f"page{'.md'}: decision {9999}" in lines
