"""A text split into words by the quoting rules of a POSIX shell.

The rules and results are those of `shlex.split`. That one grows each word character by character, which takes
quadratic time: 15 s for a word of 1 MiB. This one takes linear time.
"""

import re

_PIECE = re.compile(
    r"""(?P<blank>[ \t\r\n]++)"""
    r"""|(?P<bare>[^ \t\r\n'"\\]++)"""
    r"""|\\(?P<escaped>.)"""
    r"""|'(?P<literal>[^']*+)'"""
    r"""|"(?P<quoted>[^"\\]*+(?:\\.[^"\\]*+)*+)\""""
    r"""|(?P<unclosed>.)""",
    re.DOTALL,
)
_ESCAPED_IN_QUOTES = re.compile(r'\\(["\\])')


class UnclosedError(Exception):
    """The text ends inside a quoted part, or after a backslash."""

    def __init__(self, opened_by: str) -> None:
        super().__init__("a backslash at its end" if opened_by == "\\" else "a quote that is not closed")


def shell_words(text: str) -> list[str]:
    """The words of a text. Raises UnclosedError."""
    words: list[str] = []
    pieces: list[str] = []
    for found in _PIECE.finditer(text):
        kind, piece = str(found.lastgroup), found[found.lastgroup or 0]
        if kind == "unclosed":
            raise UnclosedError(piece)
        if kind != "blank":
            pieces.append(_ESCAPED_IN_QUOTES.sub(r"\1", piece) if kind == "quoted" else piece)
        elif pieces:
            words.append("".join(pieces))
            pieces = []
    return [*words, "".join(pieces)] if pieces else words
