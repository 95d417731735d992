"""Wraps the prose of Markdown at 100 columns; `python tools/markdown.py FILE...` does it in place.

Tables, code, headings, quotes and link definitions stay as they are.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
_ITEM = re.compile(r"(\s*(?:[-*+]|\d+[.)])\s+)(.*)")
_FENCE = re.compile(r"\s*(```|~~~)")
_NOT_PROSE = re.compile(r"\s*([|#<>]|---|===|$)|\[[^\]]+\]:|\s*(```|~~~)")
_ENDS_PROSE = re.compile(r"\s*([-*+#>]|\d+[.)])(\s|$)")
"""At the beginning of a line these words begin something else than a line of prose."""


def wrapped(text: str) -> str:
    """The text with no line of prose wider than `WIDTH`. Paragraphs that are narrow enough stay."""
    return "\n".join(_lines(text.split("\n")))


def _lines(lines: list[str]) -> Iterator[str]:
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if fence := _FENCE.match(line):
            yield line
            while index < len(lines) and not lines[index].strip().startswith(fence[1]):
                yield lines[index]
                index += 1
        elif _NOT_PROSE.match(line):
            yield line
            continue
        else:
            end = index
            while end < len(lines) and not (_NOT_PROSE.match(lines[end]) or _ENDS_PROSE.match(lines[end])):
                end += 1
            yield from _paragraph([line, *lines[index:end]])
            index = end
            continue
        if index < len(lines):  # the end of the code
            yield lines[index]
            index += 1


def _paragraph(lines: list[str]) -> Iterator[str]:
    if max(map(len, lines)) <= WIDTH or any(line.endswith(("  ", "\\")) for line in lines):
        yield from lines
        return
    item = _ITEM.match(lines[0])
    first = item[1] if item else lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    words = " ".join([item[2] if item else lines[0], *lines[1:]]).split()
    row = first + words[0]
    for word in words[1:]:
        if len(row) + 1 + len(word) > WIDTH and not _ENDS_PROSE.match(f"{word} ") and word[0] != "|":
            yield row
            row = " " * len(first) + word
        else:
            row += f" {word}"
    yield row


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(wrapped(path.read_text()))
