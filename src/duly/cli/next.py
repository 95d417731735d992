"""`duly next`: the next firings of an expression, exact in its zone, for people or for machines."""

import json

import click

from duly.cli.asking import question, question_options
from duly.cli.firings import as_json as firing_as_json
from duly.cli.firings import firings, table
from duly.cli.refusals import printable
from duly.cron.words import in_words


@click.command("next")
@question_options
@click.option(
    "-n", "--count", type=click.IntRange(1, 10_000), default=5, show_default=True, help="How many to list."
)
def next_firings(
    expression: tuple[str, ...], count: int, *, zone_name: str | None, origin_text: str | None, as_json: bool
) -> None:
    """List the next times at which EXPRESSION is due.

    Each is shown in local time and in UTC, with a note where the clocks change.

        duly next "0 9 * * 1-5" --tz Europe/Berlin
    """
    asked = question(expression, zone_name, origin_text, as_json=as_json)
    rows = firings(asked.expression, asked.origin, count)
    if as_json:
        answer = {
            "expression": asked.expression.text,
            "words": in_words(asked.expression),
            "timezone": asked.zone_name,
            "from": asked.origin.isoformat(),
            "firings": [firing_as_json(row) for row in rows],
        }
        click.echo(json.dumps(answer, indent=2))
        return
    click.echo(f"{in_words(asked.expression)} ({printable(asked.zone_name)})")
    click.echo()
    for line in table(rows):
        click.echo(line)
