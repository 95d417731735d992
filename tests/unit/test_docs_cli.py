"""The pages about the daemon say what is so: every command, every key, every word, and examples that load."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from duly.cli import COMMANDS, main
from duly.cli.verify import CheckerError
from duly.config import load
from duly.daemon import shapes
from duly.daemon.protocol import EXITS
from duly.supervisor.ended import Reason, Result
from duly.timers.dues import Miss

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()
PAGES = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("cli.md", "daemon.md", "timers.md"))]
SHAPES = {
    name.removesuffix("Shape").lower(): shape
    for name, shape in vars(shapes).items()
    if name.endswith("Shape") and name != "Shape"
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_described(name: str) -> None:
    """Each command has its line in a table of the page."""
    assert re.search(rf"^\|.*`duly {name}\b.*\|.+\|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_shows_an_example(name: str) -> None:
    """The help of each command has a line that can be typed."""
    told = CliRunner().invoke(main, [name, "--help"])
    assert told.exit_code == 0
    assert re.search(rf"^ {{6}}.*\bduly {name}\b", told.stdout, re.MULTILINE)


def test_no_command_is_made_up() -> None:
    """The pages name no command that is not there."""
    text = "".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"`duly ([a-z]+)\b", text)) <= set(COMMANDS)


@pytest.mark.parametrize("name", SHAPES)
def test_every_key_is_listed(name: str) -> None:
    """Each shape of an answer is listed with all its keys, in their order."""
    listed = re.search(rf"^{name} +\{{(.*)\}}$", PAGE, re.MULTILINE)
    assert listed is not None
    fields: tuple[Any, ...] = msgspec.structs.fields(SHAPES[name])
    assert listed[1].split(", ") == [field.name for field in fields]


@pytest.mark.parametrize(
    ("heading", "words"),
    [("`result` of a run", Result), ("`reason` of a run", Reason)],
    ids=["result", "reason"],
)
def test_every_word_is_listed(heading: str, words: type[Result] | type[Reason]) -> None:
    """Results and reasons of runs are listed, each one and no other."""
    assert _words_after(heading) == [word.value for word in words]


def test_every_miss_is_listed() -> None:
    """The reasons of misses are listed, here and with their meaning on the page about timers."""
    assert _words_after("`reason` of a miss") == [word.value for word in Miss]
    timers = (ROOT / "docs" / "timers.md").read_text()
    assert [word for word in Miss if f"| `{word.value}` |" not in timers] == []


def test_every_exit_code_is_listed() -> None:
    """The codes of the page are those that errors have, and that of a checker that failed."""
    table = PAGE.split("## Exit codes", 1)[1].split("\n## ", 1)[0]
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    assert codes == sorted({*EXITS.values(), CheckerError.exit_code})


TOML = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in PAGES
    for number, text in enumerate(
        re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize("text", TOML)
def test_examples_load(tmp_path: Path, text: str) -> None:
    """Each example of a file loads, with nothing invalid and nothing to warn of."""
    (tmp_path / "duly.toml").write_text(text)
    found = load(tmp_path / "duly.toml")
    assert (found.invalid, found.warnings) == ((), ())
    assert found.services


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """What the pages link to is there."""
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def _words_after(heading: str) -> list[str]:
    line = re.search(rf"^- {re.escape(heading)}: (.*)$", PAGE, re.MULTILINE)
    assert line is not None
    return re.findall(r"`([a-z-]+)`", line[1])
