"""Measure the house: how large it is, how it is split, and what is out of order. `make house` prints it.

Files are those that git would track. A comment line holds nothing but a comment; the share is of the lines
that are not blank. A citation is the name of a Markdown file, perhaps with numbers of sections or an anchor,
or the number of a decision. It dangles if there is no such file, section or decision.
"""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = "src/duly"
CITING = "tests/unit/test_tree.py"
"""Has examples of citations that lead nowhere, on purpose."""

MANY_MACHINES = (
    "src/duly/cluster/*",
    "src/duly/cluster_timers/*",
    "src/duly/processes/watchdog*.py",
    "src/duly/verify/cluster/*",
    "src/duly/cli/cluster.py",
    "src/duly/daemon/remote.py",
    "src/duly/daemon/sharing.py",
)
"""Source that exists for many machines alone, Python and SQL."""
MANY_MACHINES_TESTS = (
    "tests/acceptance/conftest.py",
    "tests/conformance/*table*.py",
    "tests/simulation/cluster/*",
    "tests/simulation/test_claims_model.py",
    "tests/*cluster*.py",
    "tests/*fleet*.py",
    "tests/*model_table.py",
    "tests/worlds/shared_timers.py",
    "tests/integration/*watchdog*.py",
    "tests/integration/test_postgres_*.py",
    "tests/integration/test_store_copy.py",
    "tests/unit/test_database_clock.py",
    "tests/unit/test_node.py",
    "tests/unit/test_timer_rows.py",
    "tests/unit/test_watchdog_process.py",
)
"""Tests and test worlds that would go with it. PostgreSQL servers for tests are not among them."""

_NUMBER = r"\d+(?:\.\d+)*"
_CITATION = re.compile(
    rf"((?:[\w.-]+/)*[\w.-]+\.md)\b(?:#([\w-]+))?(?: ({_NUMBER}(?:(?:, | and | to ){_NUMBER})*))?"
)
_DECISION = re.compile(r"\bdecisions?[ /](\d{4})\b", re.IGNORECASE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Module(NamedTuple):
    """What counts of one Python file."""

    path: str
    lines: int
    filled: int
    """Lines that are not blank."""
    comments: int
    functions: tuple[int, ...]
    """The lengths of its functions, in lines."""
    types: tuple[str, ...]
    """Its classes, and the aliases of types at its top."""


def measured(path: str, text: str) -> Module:
    """One Python file."""
    lines = [line.strip() for line in text.splitlines()]
    nodes = list(ast.walk(ast.parse(text)))
    functions = [each for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    classes = [each.name for each in nodes if isinstance(each, ast.ClassDef)]
    assigned = [each.targets[0] for each in nodes if isinstance(each, ast.Assign) and each.col_offset == 0]
    names = [each.id for each in assigned if isinstance(each, ast.Name)]
    return Module(
        path,
        lines=len(lines),
        filled=sum(1 for line in lines if line),
        comments=sum(1 for line in lines if line.startswith("#")),
        functions=tuple((each.end_lineno or each.lineno) - each.lineno + 1 for each in functions),
        types=(*classes, *(name for name in names if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name))),
    )


def package_of(path: str) -> str:
    """The package of a shipped file; what lies beside the packages is one, too."""
    inner = path.removeprefix(f"{PACKAGE}/")
    return inner.partition("/")[0] if "/" in inner else "(top)"


def lines_per_package(modules: Iterable[Module]) -> dict[str, tuple[int, int]]:
    """For each package its files and lines, the largest first."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for module in modules:
        files, lines = found[package_of(module.path)]
        found[package_of(module.path)] = files + 1, lines + module.lines
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def types_used_twice(modules: Iterable[Module]) -> dict[str, int]:
    """Names with more than one class or alias of a type, and how many they have."""
    names = Counter(name for module in modules for name in module.types)
    return {name: number for name, number in sorted(names.items()) if number > 1}


def dangling(text: str, folder: Path, root: Path = ROOT) -> list[str]:
    """The citations in *text*, of a file in *folder*, that lead nowhere."""
    decisions = root / "docs" / "decisions"
    numbers = _DECISION.findall(text)
    found = [f"decision {each}" for each in numbers if not any(decisions.glob(f"{each}-*.md"))]
    for name, anchor, sections in _CITATION.findall(text):
        bases = (folder, root, root / "docs")
        page = next((base / name for base in bases if (base / name).is_file()), None)
        cited = {anchor, *re.findall(_NUMBER, sections)} - {""}
        if page is None:
            found.append(name)
        elif cited:
            found += [f"{name} {each}" for each in sorted(cited - _sections_of(page))]
    return found


@cache
def _sections_of(page: Path) -> frozenset[str]:
    """The sections of *page*, each by its number and by its anchor."""
    headings = _HEADING.findall(page.read_text())
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return frozenset(anchors | {heading.split()[0].rstrip(".") for heading in headings})


def widest(texts: Mapping[str, str]) -> tuple[int, str]:
    """How wide the widest line is, and where. Tables, links and code are left out: they cannot be wrapped."""
    found = (0, "nowhere")
    for path, text in texts.items():
        is_code = False
        for number, line in enumerate(text.splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            if is_code or line.startswith("|") or " " not in line.strip():
                continue
            found = max(found, (len(line), f"{path}:{number}"))
    return found


def lines_of(globs: Iterable[str], files: Iterable[str], root: Path = ROOT) -> int:
    """The lines of all *files* that match one of *globs*, in which a star matches slashes, too."""
    chosen = [path for path in files if any(fnmatch(path, glob) for glob in globs)]
    return sum(len((root / path).read_text().splitlines()) for path in chosen)


def report(files: Sequence[str], root: Path = ROOT) -> Iterator[str]:
    """The whole report, line by line."""
    texts = {path: (root / path).read_text() for path in files if path.endswith((".md", ".py"))}
    modules = [measured(path, text) for path, text in texts.items() if path.endswith(".py")]
    shipped = [module for module in modules if module.path.startswith(f"{PACKAGE}/")]
    yield f"shipped Python        {len(shipped):>6} files {sum(each.lines for each in shipped):>7,} lines"
    tests = [module for module in modules if module.path.startswith("tests/")]
    yield f"tests                 {len(tests):>6} files {sum(each.lines for each in tests):>7,} lines"
    others = len(modules) - len(shipped) - len(tests)
    lines = sum(each.lines for each in modules) - sum(each.lines for each in (*shipped, *tests))
    yield f"other Python          {others:>6} files {lines:>7,} lines"
    source, for_it = lines_of(MANY_MACHINES, files, root), lines_of(MANY_MACHINES_TESTS, files, root)
    yield f"for many machines: {source:,} source, {for_it:,} tests"
    yield ""
    for package, (number, length) in lines_per_package(shipped).items():
        yield f"  {package:<19} {number:>6} files {length:>7,} lines"
    yield ""
    functions = [length for module in shipped for length in module.functions]
    comments, filled = sum(each.comments for each in shipped), sum(each.filled for each in shipped)
    yield f"median module         {median(each.lines for each in shipped):>6.0f} lines"
    yield f"median function       {median(functions):>6.0f} lines"
    yield f"modules under 60      {sum(1 for each in shipped if each.lines < 60):>6}"
    yield f"functions over 40     {sum(1 for each in functions if each > 40):>6}"
    yield f"comment lines         {comments / filled:>6.1%} (one in {filled / max(comments, 1):.0f})"
    twice = types_used_twice(shipped)
    yield f"type names used twice {len(twice):>6}"
    if twice:
        yield "  " + ", ".join(f"{name} {number}" for name, number in twice.items())
    citing = {path: text for path, text in texts.items() if path != CITING}
    lost = [
        f"{path}: {each}"
        for path, text in citing.items()
        for each in dangling(text, (root / path).parent, root)
    ]
    yield f"dangling citations    {len(lost):>6}"
    yield from (f"  {each}" for each in lost)
    width, place = widest({path: text for path, text in texts.items() if path.endswith(".md")})
    yield f"widest Markdown line  {width:>6} columns ({place}; without tables and code)"


def tracked(root: Path = ROOT) -> list[str]:
    """The files of the repository, also those that are new."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(path for path in set(listed) if (root / path).is_file())


if __name__ == "__main__":
    sys.stdout.write("\n".join(report(tracked())) + "\n")
