"""Where the entries of a file stand: parsers give values, people want lines.

The scanner of TOML walks over the text once, knows strings and comments so that nothing inside them counts,
and notes tables and keys. It checks no syntax: `tomllib` does that. Where the number of tables found differs
from the number of entries (inline tables), no line is given: none is better than a wrong one.

It runs before `tomllib`, because that takes quadratic time and memory for a key of many parts (a.b.c...): a
file of 40 KB fills gigabytes. So the scanner takes any text at all, in linear time, and refuses such keys.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from duly.config.schema import EntryTable, Table, Warned

MOST_KEY_PARTS = 100
# A string without an end is a token too. Otherwise each quote in it would be tried, each time to the end.
_SKIPPED = re.compile(
    r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+(?:"{3,5})?'
    r"|'''[^']*+(?:'(?!'')[^']*+)*+(?:'{3,5})?"
    r'|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+"
    r"|[\n=,\[\]{}]|[^\"'\#\n=,\[\]{}]++",
    re.DOTALL,
)
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|'[^'\n]*')"""
_NAME = rf"[ \t]*({_PART})[ \t]*(?:\.[ \t]*({_PART})[ \t]*)?(?:\.[^\n=\]]*)?"
_SEPARATORS = frozenset("\n=,[]{}")
_ARRAY_TABLE = re.compile(rf"[ \t]*\[\[{_NAME}\]\]")
_TABLE = re.compile(rf"[ \t]*\[{_NAME}\]")
_KEY = re.compile(rf"{_NAME}=")


@dataclass(slots=True)
class TableLines:
    """A table: its line, and the lines of its keys."""

    line: int | None
    keys: dict[str, int] = field(default_factory=dict)
    file: str | None = None
    """Where it stands, if that is not the file itself but one that it includes."""

    def line_of(self, key: str | None) -> int | None:
        return self.line if key is None else self.keys.get(key, self.line)


@dataclass(frozen=True, slots=True)
class Written:
    """An entry as it was written, and where."""

    table: EntryTable
    index: int
    value: object
    place: TableLines


@dataclass(slots=True)
class Places:
    """All tables of a file, by their first name, and the keys outside of any."""

    tables: dict[str, list[TableLines]] = field(default_factory=dict)
    top: dict[str, int] = field(default_factory=dict)

    def of(self, table: Table, count: int) -> Sequence[TableLines]:
        """Where the *count* entries of a table stand; nowhere, if that is not certain."""
        found = self.tables.get(table, [])
        return found if len(found) == count else [TableLines(None)] * count


_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Document(NamedTuple):
    """What a file holds, in whichever form, before it is checked."""

    places: Places
    services: Sequence[object] = ()
    timers: Sequence[object] = ()
    jobs: Sequence[object] = ()
    notify: Sequence[object] = ()
    supervisor: Mapping[Any, Any] = _NOTHING
    dashboard: Mapping[Any, Any] = _NOTHING
    defaults: Mapping[Any, Any] = _NOTHING
    warnings: tuple[Warned, ...] = ()

    @classmethod
    def of(cls, places: Places, tables: Mapping[Table, Any], *warnings: Warned) -> Self:
        parts: dict[str, Any] = {_PARTS.get(table, table): value for table, value in tables.items()}
        return cls(places, **parts, warnings=warnings)


_PARTS = {"service": "services", "timer": "timers", "job": "jobs"}


class LongKeyError(Exception):
    """A key of the text has more parts than MOST_KEY_PARTS."""

    def __init__(self, line: int) -> None:
        super().__init__(f"a key has more than {MOST_KEY_PARTS} parts (a.b.c...)")
        self.line = line


def toml_places(text: str) -> Places:
    """The tables and keys of a TOML text. Raises LongKeyError."""
    places = Places()
    keys = places.top
    for number, line, elements in _plain_lines(text):
        if (header := _ARRAY_TABLE.match(line)) or (header := _TABLE.match(line)):
            keys = _opened(places, header, number, is_array=line.lstrip().startswith("[["))
        elif (found := _KEY.match(line)) is not None:
            keys.setdefault(_bare(found[1]), number)
            if keys is places.top and elements:  # a list of tables, each in braces
                places.tables.setdefault(_bare(found[1]), []).extend(map(TableLines, elements))
    return places


def _opened(places: Places, header: re.Match[str], number: int, *, is_array: bool) -> dict[str, int]:
    """The keys of the table that a header opens."""
    name, inner = _bare(header[1]), header[2]
    known = places.tables.setdefault(name, [])
    if inner is not None and known:
        known[-1].keys.setdefault(_bare(inner), number)
        return {}
    if is_array or not known:
        known.append(TableLines(number))
    places.top.setdefault(name, number)
    return known[-1].keys if inner is None else {}


def _bare(name: str) -> str:
    return name[1:-1] if name[0] in "\"'" else name


def _plain_lines(text: str) -> list[tuple[int, str, list[int]]]:
    """The lines at which a statement begins, with their numbers. What brackets hold is left out.

    Of a list, the lines at which its tables begin, too.
    """
    found: list[tuple[int, str, list[int]]] = []
    number, begins, depth, dots = 1, 0, 0, 0
    at_start = True
    for token in _SKIPPED.finditer(text):
        piece = token[0]
        if at_start:
            begins, first = token.start(), number
            end = text.find("\n", begins)
            found.append((first, text[begins : end if end >= 0 else len(text)], []))
            at_start = False
        # Between two of these there is one key or one value, and no value has more than one dot.
        dots = 0 if piece in _SEPARATORS else dots + (0 if piece[0] in "\"'#" else piece.count("."))
        if dots >= MOST_KEY_PARTS:
            raise LongKeyError(number)
        if piece in ("[", "{"):
            if piece == "{" and depth == 1:
                found[-1][2].append(number)
            depth += 1
        elif piece in ("]", "}"):
            depth -= 1
        number += piece.count("\n")
        if piece == "\n" and depth == 0:
            at_start = True
    return found
