"""The pages say what is so: every command, key, word, default, property, event and error; examples load."""

import logging
import re
import shlex
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click import Context
from click.testing import CliRunner

from duly.cli import COMMANDS, main
from duly.cli.verify import CheckerError
from duly.config import Dashboard, Service, Settings, Timer, load
from duly.config.calendars import CALENDAR_FIELDS
from duly.config.schema import Notify
from duly.core.causes import Reason
from duly.daemon import json_types
from duly.daemon.protocol import EXITS
from duly.errors import __all__ as errors
from duly.events import LEVELS
from duly.integrations import errors as integration_errors
from duly.store.history import Result
from duly.timers.dues import Miss
from duly.verify.properties import CLUSTER_PROPERTIES, PROPERTIES
from duly.verify.timers import TIMER_PROPERTIES
from tests.worlds.pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("cli.md", "daemon.md", "timers.md")),
    *(ROOT / page for page in ("docs/guides/daemon.md", "docs/guides/from-cron.md")),
]
ANSWERS = {
    name.removesuffix("Json").lower(): kind
    for name, kind in vars(json_types).items()
    if name.endswith("Json")
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


@pytest.mark.parametrize("name", ANSWERS)
def test_every_key_is_listed(name: str) -> None:
    """Each kind of answer is listed with all its keys, in their order."""
    listed = re.search(rf"^{name} +\{{(.*)\}}$", PAGE, re.MULTILINE)
    assert listed is not None
    keys: tuple[Any, ...] = msgspec.structs.fields(ANSWERS[name])
    assert listed[1].split(", ") == [key.name for key in keys]


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
    if "conf.d" in text:
        (tmp_path / "conf.d").mkdir()
        (tmp_path / "conf.d" / "more.toml").touch()
    found = load(tmp_path / "duly.toml")
    assert (found.invalid, found.warnings) == ((), ())
    assert found.services


def _words_after(heading: str) -> list[str]:
    line = re.search(rf"^- {re.escape(heading)}: ((?:.+\n)(?:  .+\n)*)", PAGE, re.MULTILINE)
    assert line is not None
    return re.findall(r"`([a-z-]+)`", line[1])


# --- docs/configuration.md ---

CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
BLOCKS = re.findall(r"^```(toml|python)\n(.*?)^```", CONFIGURATION, re.MULTILINE | re.DOTALL)


def test_both_forms_are_shown() -> None:
    """Both forms are shown."""
    assert {form for form, _ in BLOCKS} == {"toml", "python"}


@pytest.mark.parametrize(("form", "text"), BLOCKS, ids=range(len(BLOCKS)))
def test_configurations_load(tmp_path: Path, form: str, text: str) -> None:
    """Each example loads, without anything invalid and without a warning."""
    path = tmp_path / f"duly.{'py' if form == 'python' else form}"
    path.write_text(text)
    found = load(path)
    assert (found.invalid, found.warnings) == ((), ())
    assert found.services


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    """The first two examples are one configuration."""
    loaded = []
    for (_, text), name in zip(BLOCKS[:2], ("duly.toml", "duly.py"), strict=True):
        (tmp_path / name).write_text(text)
        loaded.append(load(tmp_path / name))
    one, other = loaded
    assert (one.settings, one.services, one.timers) == (other.settings, other.services, other.timers)


def rows(heading: str) -> dict[str, list[str]]:
    section = CONFIGURATION.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if "| `" in line
    ]
    return {row[0].strip("| `"): row for row in cells}


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("Services", Service),
        ("Timers", Timer),
        ("Notifications", Notify),
        ("Settings", Settings),
        ("Dashboard", Dashboard),
    ],
)
def test_tables_of_keys(heading: str, kind: Any) -> None:
    """Each key stands in its table, in the order of the schema, with the default that it has."""
    table = rows(heading)
    known: tuple[Field[Any], ...] = fields(kind)
    assert list(table) == [each.name for each in known]
    for each in known:
        shown = table[each.name][2]
        if each.default is MISSING:
            assert shown in {"required", "`{}`"}
        elif each.name == "smtp":  # said where it is used
            assert shown == "`smtp://localhost`"
        elif each.default is None or (each.default == () and shown == "none"):
            assert not shown.startswith("`") or "name of the file" in shown
        else:
            assert shown.strip("`").replace('"', "'") == _written(each.default).replace('"', "'")


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_table_of_calendars() -> None:
    """Each field of a calendar is listed with its values."""
    for name, field in CALENDAR_FIELDS.items():
        assert re.search(rf"^\| `{name}` \| {field.lowest} to {field.highest}\b", CONFIGURATION, re.MULTILINE)


# --- docs/spec ---


@pytest.mark.parametrize(
    ("page", "properties"),
    [("spec/model.md", {**PROPERTIES, **CLUSTER_PROPERTIES}), ("spec/timers.md", {**TIMER_PROPERTIES})],
)
def test_properties_are_in_the_contract(page: str, properties: dict[str, str]) -> None:
    """Every property has one row with the sentence that the checker prints, and a formula."""
    text = (ROOT / "docs" / page).read_text()
    rows = re.findall(r"^\| ([A-Z]\d\w?) \| (.+?) \| `.+ \|$", text, re.MULTILINE)
    assert dict(rows) == properties
    assert len(rows) == len(properties)


def test_events_and_errors_are_in_the_contract() -> None:
    """Every event is in a table with its level, and every error class has a row."""
    scheduler, timers = ((ROOT / "docs/spec" / f"{page}.md").read_text() for page in ("scheduler", "timers"))
    rows = re.findall(r"^\| (\w+) \| ([A-Z]+) \|", scheduler + timers, re.MULTILINE)
    assert {name: getattr(logging, level) for name, level in rows} == LEVELS
    assert {*re.findall(r"^\| (\w+Error) \|", scheduler, re.MULTILINE), "SchedulerError"} == {*errors}


# --- docs/reference, and commands in the guides ---


def test_every_event_is_in_the_reference() -> None:
    """Every event is described once, with its level."""
    page = (ROOT / "docs/reference/events.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([A-Z]+) \| .+ \|$", page, re.MULTILINE)
    assert {name: getattr(logging, level) for name, level in rows} == LEVELS
    assert len(rows) == len(LEVELS)


def test_every_error_is_in_the_reference() -> None:
    """Every error of the package is described once: what happened, and what to do."""
    page = (ROOT / "docs/reference/errors.md").read_text()
    rows = re.findall(r"^\| (`.+?`) \| .+ \|.* \|$", page, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    defined = set(re.findall(r"^class ([A-Z]\w+Error)\(", sources, re.MULTILINE))
    assert len(listed) == len(set(listed))
    assert set(listed) <= defined
    public = {*errors, *(name for name in vars(integration_errors) if name.endswith("Error"))}
    assert public - {"SchedulerError"} <= {*listed}


GUIDES = [*(ROOT / "docs/guides").glob("*.md"), *(ROOT / "docs/reference").glob("*.md")]
COMMANDS_SHOWN = [
    line.partition("  #")[0].strip()
    for page in (ROOT / "README.md", *sorted(GUIDES))
    for text in blocks(page, "")
    for line in text.splitlines()
]


@pytest.mark.parametrize("line", [line for line in COMMANDS_SHOWN if line.startswith("duly ")])
def test_commands_in_the_guides_can_be_typed(line: str) -> None:
    """Each command of duly that a page shows has arguments that it takes."""
    _, name, *words = shlex.split(line)
    command = main.get_command(Context(main), name)
    assert command is not None
    command.make_context(name, words)
