"""What the cron commands answer when they cannot use what they were given.

A refusal is shown to people on stderr (the text, a mark under the bad part, why, what to write instead) and
to machines (`--json`) as one object on stdout. Either way the exit code is 2, and no control character of
the input reaches the terminal.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import IO, Any

import click

from duly.errors import InvalidCronExpressionError

_LONGEST_FIELD = 40
_MOST_FIELDS = 8


def printable(text: str) -> str:
    """The text with everything that a terminal would obey, or could not show, in escaped form."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class Refusal(click.ClickException):
    """Something given on the command line cannot be used."""

    exit_code = 2

    def __init__(
        self, code: str, message: str, *, facts: Mapping[str, Any], lines: Iterable[str], as_json: bool
    ) -> None:
        super().__init__(message)
        self.code = code
        self.facts = dict(facts)
        self.lines = list(lines)
        self.as_json = as_json
        # As the command had it: its context is gone by the time that click shows an error.
        context = click.get_current_context(silent=True)
        self.color = context.color if context else None

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it, for people on stderr, for machines on stdout."""
        if self.as_json:
            error = {"code": self.code, "message": self.message, **self.facts}
            click.echo(json.dumps({"error": error}, indent=2))
            return
        said = f"{click.style('error:', fg='red', bold=True)} {printable(self.message)}"
        for line in (said, *self.lines):
            click.echo(line, file, err=True, color=self.color)


def refused_expression(error: InvalidCronExpressionError, *, in_pieces: bool, as_json: bool) -> Refusal:
    """The refusal of a cron expression. *in_pieces*: it came as several arguments, not quoted."""
    from duly.cron.spelling import posix_spelling  # noqa: PLC0415 - not for commands without a cron text

    text, field, reason = (error.details[key] for key in ("expression", "field", "reason"))
    better = posix_spelling(text)
    lines = ["", *_marked(text, field)]
    if better is not None:
        lines += ["", f"write: {click.style(better, fg='green')}"]
    if in_pieces:
        lines += ["", 'Put the expression in quotes ("* * * * *"), or the shell puts file names for each *.']
    return Refusal(
        "invalid_expression",
        f"{field} field {reason}" if field != "expression" else f"the expression {reason}",
        facts={"expression": text, "field": field, "reason": reason, "write": better},
        lines=lines,
        as_json=as_json,
    )


def _marked(text: str, field: str) -> list[str]:
    """The expression, and a mark under the field that is wrong, or under all of it."""
    from duly.cron.fields import FIELDS  # noqa: PLC0415 - as above

    shown = [_shortened(printable(word)) for word in re.findall(r"[^ \t]+", text)]
    if len(shown) > _MOST_FIELDS:
        shown = [*shown[:_MOST_FIELDS], "…"]
    names = [known.name for known in FIELDS]
    if field not in names:
        before, marked = "", " ".join(shown)
    else:
        index = names.index(field)
        before, marked = "".join(f"{word} " for word in shown[:index]), shown[index]
    mark = " " * width(before) + click.style("^" * max(width(marked), 1), fg="red", bold=True)
    return [f"  {' '.join(shown)}", f"  {mark}"]


def _shortened(word: str) -> str:
    return word if len(word) <= _LONGEST_FIELD else f"{word[: _LONGEST_FIELD - 1]}…"


def refused_zone(name: str, known: Iterable[str], *, as_json: bool) -> Refusal:
    """The refusal of a time zone, with the names that come close to it."""
    close = close_zones(name, known)
    lines = ["", f"did you mean {' or '.join(close)}?"] if close else []
    return Refusal(
        "unknown_timezone",
        f'there is no time zone "{_shortened(name)}"',
        facts={"timezone": name, "close": close},
        lines=lines,
        as_json=as_json,
    )


def close_zones(name: str, known: Iterable[str]) -> list[str]:
    """The zones that somebody who wrote *name* may have meant, likeliest first, at most three."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake pays for it

    wanted = name[:100].strip().replace(" ", "_").lower()
    zones = {zone.lower(): zone for zone in sorted(known)}
    exact = [zones[wanted]] if wanted in zones else []
    cities = [zone for lower, zone in zones.items() if lower.rpartition("/")[2] == wanted]
    alike = [zones[lower] for lower in get_close_matches(wanted, zones, n=3, cutoff=0.7)]
    towns = {lower.rpartition("/")[2]: zone for lower, zone in zones.items() if "/" in lower}
    alike_towns = [towns[town] for town in get_close_matches(wanted, towns, n=3, cutoff=0.75)]
    return list(dict.fromkeys(exact + cities + alike + alike_towns))[:3]


def refused_time(text: str, *, as_json: bool) -> Refusal:
    """The refusal of a point in time."""
    return Refusal(
        "invalid_time",
        f'"{_shortened(text)}" is not a time; write it like 2026-03-29T01:30 or 2026-03-29T01:30+01:00',
        facts={"time": text},
        lines=[],
        as_json=as_json,
    )


def unknown_local_zone(*, as_json: bool) -> Refusal:
    """The refusal to guess the zone of a host that does not say it."""
    return Refusal(
        "unknown_timezone",
        "this host does not say its time zone; give one with --tz, such as --tz Europe/Berlin",
        facts={"timezone": None, "close": []},
        lines=[],
        as_json=as_json,
    )
