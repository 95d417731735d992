"""Values and names as messages show them: short, printable, with what was probably meant instead.

Whatever a configuration holds can come here: huge numbers, lone surrogates, objects that cannot be printed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_LONGEST_COMPARED = 100
_MOST_OFFERED = 3
# About a second, however many mistakes a file has and however many names it declares.
_MOST_COMPARISONS = 50_000
_comparisons_left: ContextVar[list[int] | None] = ContextVar("comparisons_left", default=None)


@contextmanager
def limited_comparisons() -> Iterator[None]:
    """Limit the search for close names in one file: all mistakes get a reason, the first ones an offer."""
    token = _comparisons_left.set([_MOST_COMPARISONS])
    try:
        yield
    finally:
        _comparisons_left.reset(token)


def _may_compare(count: int) -> bool:
    left = _comparisons_left.get()
    if left is None:
        return True
    left[0] -= count
    return left[0] >= 0


def shown(value: object) -> str:
    """A value for a message: as one would write it, but short, in one line, and never failing."""
    if value is None:
        return "null (None)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 100:
        return "a number of more than 30 digits"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, int | float):
        return repr(value)
    return f"{a_or_an(type(value).__name__)}"


def quoted(text: str) -> str:
    """Text in quotes, cut short, with everything escaped that a terminal would obey."""
    cut = text if len(text) <= _LONGEST_COMPARED else f"{text[: _LONGEST_COMPARED - 1]}…"
    return f'"{printable(cut)}"'


def printable(text: str) -> str:
    """The text with what cannot be printed in escaped form."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def a_or_an(noun: str) -> str:
    """A noun with its article."""
    noun = printable(noun)
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def joined(items: Iterable[str], word: str = "or") -> str:
    """The items as a list in a sentence."""
    *most, last = items
    return f"{', '.join(most)} {word} {last}" if most else last


def did_you_mean(name: str, known: Collection[str], aliases: Mapping[str, str] | None = None) -> str:
    """The end of a sentence that offers what *name* comes close to; empty when nothing does."""
    close = close_names(name, known, aliases)
    return f"; did you mean {joined(close)}?" if close else ""


def close_names(name: str, known: Collection[str], aliases: Mapping[str, str] | None = None) -> list[str]:
    """The known names that somebody who wrote *name* may have meant, likeliest first."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake pays for it

    wanted = _plain(name[:_LONGEST_COMPARED].strip())
    if aliases and wanted in aliases:
        return [aliases[wanted]]
    if not _may_compare(len(known)):
        return []
    by_key = {_plain(candidate): candidate for candidate in reversed(list(known))}
    if wanted in by_key:
        return [by_key[wanted]]
    return [by_key[key] for key in get_close_matches(wanted, by_key, n=_MOST_OFFERED, cutoff=0.7)]


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


def close_zones(name: str, known: Iterable[str]) -> list[str]:
    """The time zones that *name* comes close to, by their whole names or by their cities."""
    zones = sorted(known)
    cities = {zone.rpartition("/")[2]: zone for zone in zones if "/" in zone}
    by_city = [cities[city] for city in close_names(name, cities)]
    by_name = close_names(name, zones)
    return list(dict.fromkeys([*by_name, *by_city]))[:_MOST_OFFERED]
