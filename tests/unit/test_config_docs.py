"""The page about configuration: its examples load clean, its tables have every key and default."""

import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

from duly.config import Dashboard, Service, Settings, Timer, load
from duly.config.calendars import RANGES

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
BLOCKS = re.findall(r"^```(toml|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_there_are_examples() -> None:
    """Both forms are shown."""
    assert {form for form, _ in BLOCKS} == {"toml", "python"}


@pytest.mark.parametrize(("form", "text"), BLOCKS, ids=range(len(BLOCKS)))
def test_examples(tmp_path: Path, form: str, text: str) -> None:
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
    section = PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if "| `" in line
    ]
    return {row[0].strip("| `"): row for row in cells}


@pytest.mark.parametrize(
    ("heading", "kind"),
    [("Services", Service), ("Timers", Timer), ("Settings", Settings), ("Dashboard", Dashboard)],
)
def test_tables(heading: str, kind: Any) -> None:
    """Each key stands in its table, in the order of the schema, with the default that it has."""
    table = rows(heading)
    known: tuple[Field[Any], ...] = fields(kind)
    assert list(table) == [each.name for each in known]
    for each in known:
        shown = table[each.name][2]
        if each.default is MISSING:
            assert shown in {"required", "`{}`"}
        elif each.default is None or (each.default == () and each.name == "on_calendar"):
            assert not shown.startswith("`") or "name of the file" in shown
        else:
            assert shown.strip("`") == _written(each.default)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_calendar_table() -> None:
    """Each field of a calendar is listed with its values."""
    for name, (lowest, highest, _) in RANGES.items():
        assert re.search(rf"^\| `{name}` \| {lowest} to {highest}\b", PAGE, re.MULTILINE)
