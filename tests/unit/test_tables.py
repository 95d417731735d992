"""Tables that fit."""

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.cli.output import Cell, Column, clipped, table, terminal_width, width

COLUMNS = (
    Column("id", "id", least=4),
    Column("state", "state"),
    Column("since", "since", rank=1),
    Column("why", "why", rank=2, least=6),
)
ROW = {"id": "database", "state": "running", "since": "5m ago", "why": "somebody asked for it"}


def test_as_wide_as_needed() -> None:
    """Where nobody looks at a terminal, nothing is cut, and no line ends in blanks."""
    assert table(COLUMNS, [ROW, {"id": "a", "state": "done", "since": "-", "why": ""}], None) == [
        "\x1b[2mID\x1b[0m        \x1b[2mSTATE\x1b[0m    \x1b[2mSINCE\x1b[0m   \x1b[2mWHY\x1b[0m",
        "database  running  5m ago  somebody asked for it",
        "a         done     -",
    ]


@pytest.mark.parametrize(
    ("columns_wide", "line"),
    [
        (48, "database  running  5m ago  somebody asked for it"),
        (47, "database  running  5m ago  somebody asked for …"),
        (33, "databa…  running  5m ago  somebo…"),
        (31, "datab…  running  5m ago  someb…"),
        (28, "database  running  5m ago"),
        (24, "databa…  running  5m ago"),
        (20, "database  running"),
        (13, "dat…  running"),
        (12, "database"),
        (5, "data…"),
    ],
)
def test_narrow(columns_wide: int, line: str) -> None:
    """Columns shrink, then the least important one goes, then the next; what is cut shows it."""
    assert table(COLUMNS, [ROW], columns_wide)[1] == line


@given(
    st.lists(st.fixed_dictionaries({key: st.text(max_size=30) for key in ROW}), max_size=4),
    st.integers(1, 90),
)
def test_never_wider(rows: list[dict[str, str]], columns_wide: int) -> None:
    """Whatever stands in it, a table is no wider than it may be, and each row is one line."""
    lines = table(COLUMNS, rows, columns_wide)
    assert len(lines) == len(rows) + 1
    for line in lines:
        plain = click.unstyle(line)
        assert plain.isprintable()
        assert width(plain) <= columns_wide


def test_wide_characters() -> None:
    """Characters that take two columns count as two, and none is cut in half."""
    assert clipped("日本語", 6) == "日本語"
    assert clipped("日本語", 5) == "日本…"
    assert clipped("日本語", 4) == "日…"
    assert clipped("abc", 0) == ""


def test_no_cell_reaches_the_terminal() -> None:
    """What a terminal would obey is escaped, before it is measured."""
    lines = table((Column("id", "id"),), [{"id": "a\x1b[31m\nb"}], None)
    assert lines[1] == "a\\x1b[31m\\nb"


def test_numbers_to_the_right() -> None:
    """A column can stand to the right, and have colours that do not count."""
    lines = table((Column("n", "number", right=True),), [{"n": Cell("7", "red")}], None)
    assert lines[1] == "     \x1b[31m7\x1b[0m"


def test_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS is obeyed; a pipe without it has no width."""
    monkeypatch.setenv("COLUMNS", "50")
    assert terminal_width() == 50
    monkeypatch.delenv("COLUMNS")
    assert terminal_width() is None
