"""`duly explain`: what an expression means, field by field, and whether that is what was meant.

The hints name the two surprises of POSIX cron that no error can catch, because the text is valid: day and
weekday as alternatives, and days that not every month has.
"""

import json
from collections.abc import Iterator
from typing import Any

import click

from duly.cli.asking import Question, question, question_options
from duly.cli.firings import Firing, firings, table
from duly.cli.firings import as_json as firing_as_json
from duly.cli.refusals import printable
from duly.cron import CronExpression
from duly.cron.fields import FIELDS, MONTH, WEEKDAY, Field, runs_of, values_of
from duly.cron.words import MONTHS, WEEKDAYS, in_words

_SHOWN_FIRINGS = 3
_LONGEST_TEXT = 24


@click.command("explain")
@question_options()
def explain(
    expression: tuple[str, ...], *, zone_name: str | None, origin_text: str | None, as_json: bool
) -> None:
    """Say in plain words when EXPRESSION is due.

    Shows the five fields, the next three times, and what might surprise.

        duly explain "0 0 1,15 * 1"
    """
    asked = question(expression, zone_name, origin_text, as_json=as_json)
    rows = firings(asked.expression, asked.origin, _SHOWN_FIRINGS)
    if as_json:
        click.echo(json.dumps(_as_json(asked, rows), indent=2))
        return
    for line in _lines(asked, rows):
        click.echo(line)


def _lines(asked: Question, rows: list[Firing]) -> Iterator[str]:
    yield click.style(in_words(asked.expression), bold=True)
    yield ""
    for field, text, mask in _fields(asked.expression):
        yield f"  {field.name:<8} {_shortened(text):<{_LONGEST_TEXT}} {values_text(field, mask)}".rstrip()
    yield ""
    yield f"Next in {printable(asked.zone_name)}:"
    yield from table(rows)
    for hint in hints(asked.expression):
        yield ""
        yield f"{click.style('hint:', fg='cyan', bold=True)} {hint}"


def _as_json(asked: Question, rows: list[Firing]) -> dict[str, Any]:
    return {
        "expression": asked.expression.text,
        "words": in_words(asked.expression),
        "fields": [
            {"name": field.name, "text": text, "values": values_of(mask)}
            for field, text, mask in _fields(asked.expression)
        ],
        "either_day": asked.expression.either_day,
        "hints": list(hints(asked.expression)),
        "timezone": asked.zone_name,
        "from": asked.origin.isoformat(),
        "firings": [firing_as_json(row) for row in rows],
    }


def _fields(expression: CronExpression) -> Iterator[tuple[Field, str, int]]:
    return zip(FIELDS, expression.text.split(), expression.masks, strict=True)


def values_text(field: Field, mask: int) -> str:
    """The values of a field, with names where people use names, and runs of three and more as ranges."""
    if mask == field.every:
        return f"every {field.name}"
    names = {MONTH: ("", *MONTHS), WEEKDAY: (*WEEKDAYS[-1:], *WEEKDAYS[:-1])}.get(field)

    def named(value: int) -> str:
        return names[value] if names else str(value)

    runs = runs_of(values_of(mask))
    return ", ".join(
        f"{named(run[0])} to {named(run[-1])}" if len(run) > 2 else ", ".join(map(named, run)) for run in runs
    )


def hints(expression: CronExpression) -> Iterator[str]:
    """What somebody who wrote this may not expect of it."""
    _, _, days, months, weekdays = map(values_of, expression.masks)
    if expression.either_day:
        if len(days) == 31 or len(weekdays) == 7:
            yield (
                "day and weekday are both restricted, so either is enough, and one of them names every day;"
                " only a plain * leaves the choice to the other field"
            )
        else:
            yield (
                "day and weekday are both restricted, so either is enough: it is due on days that match only"
                " one of them; write * in one of the fields to let the other decide"
            )
    elif days[0] > 28:
        if months == [2]:
            yield "the 29th of February comes in leap years only"
        elif 2 in months or days[0] > 30:
            yield f"months without a {_day(days[0])} are left out; no cron text means the last day of a month"


def _day(day: int) -> str:
    return f"{day}{'st' if day == 31 else 'th'}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"
