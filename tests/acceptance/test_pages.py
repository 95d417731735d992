"""Every code block of the README, the guides and the reference works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.pages import blocks, example_of, is_test

ROOT = Path(__file__).parents[2]
GUIDES = (
    path for folder in ("guides", "reference") for path in sorted((ROOT / "docs" / folder).glob("*.md"))
)
PAGES = [page for page in (ROOT / "README.md", *GUIDES) if blocks(page, "python")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run one after the other, as one program, in an empty folder."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.worlds.pages", str(page)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Task exception was never retrieved" not in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_of_examples_are_in_them(page: Path) -> None:
    """A block that names an example stands in it, word for word; the example is run by a test of its own."""
    for block in blocks(page, "python"):
        if (name := example_of(block)) is not None:
            assert block.partition("\n")[2] in (ROOT / name).read_text(), block


def test_blocks_of_tests_pass(tmp_path: Path) -> None:
    """The tests that pages show pass, each in a file of its own."""
    number = 0
    for page in PAGES:
        for block in blocks(page, "python"):
            if is_test(block):
                number += 1
                (tmp_path / f"test_{page.stem}_{number}.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{number} passed" in done.stdout
    assert number >= 2
