"""The list of attacks is whole: every test file is in it, and every test that it names exists."""

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def test_the_list_of_attacks_is_whole() -> None:
    """Each file of this folder is named in the README, and each test named there is in its file."""
    text = (HERE / "README.md").read_text()
    files = {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert files == set(re.findall(r"`(test_\w+\.py)", text))
    current = ""
    for file, test in re.findall(r"`(test_\w+\.py)?(?:::(test_\w+\*?))?`", text):
        current = file or current
        if test:
            assert f"def {test.removesuffix('*')}" in (HERE / current).read_text(), (current, test)


def test_the_page_of_guarantees_has_the_promises_for_stores() -> None:
    """What is promised for the file of a store is on the page as it was written."""
    assert (ROOT / "proof/stores.md").read_text() in (ROOT / "docs/guarantees.md").read_text()
