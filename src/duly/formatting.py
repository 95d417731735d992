"""Text for people: durations, counts, lists, escaped text and "did you mean". Pure.

Durations have one unit where there is little room (`5m ago`), two where there is more (`1m 12s`), or all
that they have (`1h 30m 5s`). A unit never reaches the next one: sixty minutes are an hour.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from duly.instant import MINUTE_US, SECOND_US, Instant

_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_LONGEST_COMPARED = 100
_LONGEST_LINE = 200
_MOST_OFFERED = 3
# About a second, however many mistakes a file has and however many names it declares.
_MOST_COMPARISONS = 50_000
_comparisons_left: ContextVar[list[int] | None] = ContextVar("comparisons_left", default=None)


# --- durations ---


def apart(at_us: Instant, now_us: Instant) -> str:
    """How far an instant lies from *now_us*, in its largest unit: "5m ago", "in 2h", "now"."""
    apart_us = at_us - now_us
    if apart_us > 0:
        # Rounded up, so that what comes in half a second is not said to be here.
        return f"in {_one_unit(-(-apart_us // SECOND_US))}"
    passed_s = -apart_us // SECOND_US
    return f"{_one_unit(passed_s)} ago" if passed_s else "now"


def two_units(seconds: int) -> str:
    """Whole seconds in the two largest units that they have: "8s", "1m 12s", "2d 4h"."""
    return " ".join(f"{number}{unit}" for number, unit in _largest(seconds)) or "0s"


def length(seconds: float) -> str:
    """A measured duration in at most two units: "0.3s", "8s", "1m 12s", "2d 4h"."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f}s" if seconds % 1 else f"{seconds:.0f}s"
    return two_units(int(seconds + 0.5))


def brief_ms(milliseconds: float) -> str:
    """A measured duration for a log: "0.3ms", "42ms", "1.2s", "1m 12s"."""
    if milliseconds >= 1000:
        return length(milliseconds / 1000)
    return f"{milliseconds:.1f}ms" if 0 < milliseconds < 10 else f"{milliseconds:.0f}ms"


def exact_length(seconds: float) -> str:
    """A duration as exactly as it was given, in the units it has: "1h 30m", "0.5s"."""
    left = seconds
    parts = []
    for unit_s, unit in _UNITS[:-1]:
        number, left = divmod(left, unit_s)
        if number:
            parts.append(f"{number:.0f}{unit}")
    if left or not parts:
        parts.append(f"{left:g}s")
    return " ".join(parts)


def spelled_length(length_us: int) -> str:
    """A length of time in a sentence, in its two largest units: "4 ms", "1.5 s", "2 h 5 min"."""
    if length_us < SECOND_US:
        return f"{length_us // 1000} ms"
    if length_us < MINUTE_US:
        return f"{length_us // 100_000 / 10:g} s"
    return " ".join(
        f"{number} {'min' if unit == 'm' else unit}" for number, unit in _largest(length_us // SECOND_US)
    )


def _largest(seconds: int) -> list[tuple[int, str]]:
    """The two largest units of a length, without one that is zero."""
    parts: list[tuple[int, str]] = []
    for unit_s, unit in _UNITS:
        number, seconds = divmod(seconds, unit_s)
        if number or parts:
            parts.append((number, unit))
    return [(number, unit) for number, unit in parts[:2] if number]


def _one_unit(seconds: int) -> str:
    unit_s, unit = next((entry for entry in _UNITS if seconds >= entry[0]), _UNITS[-1])
    return f"{seconds // unit_s}{unit}"


# --- counts and lists ---


def counted(number: int, noun: str, many: str | None = None) -> str:
    """A number with its noun: "1 due", "2,000 dues"."""
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"


def joined(items: Sequence[str], word: str = "or") -> str:
    """The items as a list in a sentence: "a, b or c". Empty if there are none."""
    *most, last = items or ("",)
    return f"{', '.join(most)} {word} {last}" if most else last


def a_or_an(noun: str) -> str:
    """A noun with its article."""
    noun = printable(noun)
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


# --- text of others ---


def printable(text: str) -> str:
    """The text with everything that a terminal would obey, or could not show, in escaped form."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def one_line(text: str) -> str:
    """Text fit for one line of a log: control and direction characters escaped, no longer than needed."""
    return printable(excerpt(text))


def excerpt(text: str) -> str:
    """Text for a message: as it is, unless it is so long that it would bury the sentence around it."""
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}… ({len(text)} characters)"


def error_text(error: BaseException) -> str:
    """What an error says of itself, or its type when it says nothing."""
    return str(error) or type(error).__name__


def quoted(text: str) -> str:
    """Text in quotes, cut short, with everything escaped that a terminal would obey."""
    return f'"{printable(shortened(text, _LONGEST_COMPARED))}"'


def shortened(text: str, longest: int) -> str:
    """The text with at most *longest* characters; if it was longer, it ends in an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def value_text(value: object) -> str:
    """A value for a message: as one would write it, but short, in one line, and never failing.

    It may be anything that a configuration holds: a huge number, or an object that cannot be printed.
    """
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
    return a_or_an(type(value).__name__)


# --- did you mean ---


def suggestion(close: Iterable[str]) -> str:
    """The question that offers the names *close*: "did you mean a or b?". Empty if there are none."""
    offered = joined([printable(name) for name in close])
    return f"did you mean {offered}?" if offered else ""


def did_you_mean(name: str, known: Collection[str], aliases: Mapping[str, str] | None = None) -> str:
    """The end of a sentence that offers what *name* comes close to; empty when nothing does."""
    asked = suggestion(close_names(name, known, aliases))
    return f"; {asked}" if asked else ""


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
    cutoff = 0.6 if len(wanted) <= 3 else 0.7  # one letter of three is a third of the name
    return [by_key[key] for key in get_close_matches(wanted, by_key, n=_MOST_OFFERED, cutoff=cutoff)]


def close_zones(name: str, known: Iterable[str]) -> list[str]:
    """The time zones that *name* comes close to, by their whole names or by their cities."""
    zones = sorted(known)
    cities = {zone.rpartition("/")[2]: zone for zone in zones if "/" in zone}
    by_city = [cities[city] for city in close_names(name, cities)]
    by_name = close_names(name, zones)
    return list(dict.fromkeys([*by_name, *by_city]))[:_MOST_OFFERED]


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


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
