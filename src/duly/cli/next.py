"""`duly next`: the next firings of a timer or an expression, exact in its zone, for people or machines."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from duly.cli.asking import origin_of, question, question_options, zone_called
from duly.cli.completing import ids
from duly.cli.finding import Failure, config_option, default_config
from duly.cli.firings import Firing, firings, merged, table
from duly.cli.firings import as_json as firing_as_json
from duly.cli.refusals import printable
from duly.cli.words import json_text
from duly.cron.words import in_words

if TYPE_CHECKING:
    from duly.config.schema import Config, Timer


@click.command("next")
@config_option
@question_options(metavar="TIMER|EXPRESSION...", shell_complete=ids("timers"))
@click.option(
    "-n", "--count", type=click.IntRange(1, 10_000), default=5, show_default=True, help="How many to list."
)
def next_firings(
    expression: tuple[str, ...],
    count: int,
    *,
    config_path: str | None,
    zone_name: str | None,
    origin_text: str | None,
    as_json: bool,
) -> None:
    """List the next times at which a TIMER of a configuration, or a cron EXPRESSION, is due.

    Each is shown in local time and in UTC, with a note where the clocks change. A single word is the id of a
    timer if there is a configuration; of a timer only its calendar can be known ahead.

    \b
        duly next "0 9 * * 1-5" --tz Europe/Berlin
        duly next backup -n 10
        duly next backup -c duly.toml --from 2026-03-28
    """  # noqa: D301 (click's mark for lines to keep)
    path = _config_of_timer(expression, config_path)
    if path is not None:
        _print_timer(path, " ".join(expression), count, zone_name, origin_text, as_json=as_json)
        return
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
    _print(in_words(asked.expression), asked.zone_name, rows)


def _config_of_timer(words: tuple[str, ...], config_path: str | None) -> Path | None:
    """The configuration, if it is about a timer: an expression has five fields, and never one word."""
    if len(words) != 1 or len(words[0].split()) != 1 or words[0].startswith("@"):
        return None
    return Path(config_path) if config_path is not None else default_config()


def _print_timer(
    path: Path, timer_id: str, count: int, zone_name: str | None, origin_text: str | None, *, as_json: bool
) -> None:
    from duly.cli.offline import zone_of  # noqa: PLC0415 - timers only
    from duly.daemon.words import expression_of, schedule_words  # noqa: PLC0415

    config, timer = _found(path, timer_id, as_json=as_json)
    own = timer.timezone or zone_name
    zone = zone_called(own, as_json=as_json) if own is not None else zone_of(config)
    origin = origin_of(origin_text, zone, as_json=as_json)
    expressions = [expression_of(calendar) for calendar in timer.on_calendar]
    rows = merged([firings(each, origin, count) for each in expressions if each.has_a_date], count)
    if as_json:
        answer = {
            "timer": timer.id,
            "target": timer.target,
            "words": schedule_words(timer),
            "timezone": str(zone),
            "from": origin.isoformat(),
            "firings": [firing_as_json(row) for row in rows],
        }
        click.echo(json_text(answer))
        return
    _print(schedule_words(timer), str(zone), rows, has_calendar=bool(expressions))


def _found(path: Path, timer_id: str, *, as_json: bool) -> "tuple[Config, Timer]":
    from duly.config.errors import ConfigError  # noqa: PLC0415 - timers only
    from duly.config.loading import load  # noqa: PLC0415
    from duly.config.words import close_names  # noqa: PLC0415

    try:
        config = load(path)
    except ConfigError as error:
        raise Failure("invalid_configuration", error.message, exit_code=4, as_json=as_json) from error
    for timer in config.timers:
        if timer.id == timer_id:
            return config, timer
    for bad in config.invalid:
        if bad.kind == "timer" and bad.id == timer_id:
            message = f"timer {timer_id} is invalid: {bad.reason}"
            raise Failure("invalid_configuration", message, exit_code=4, as_json=as_json, id=timer_id)
    close = close_names(timer_id, [timer.id for timer in config.timers])
    hint = f"did you mean {' or '.join(map(printable, close))}?" if close else ""
    message = f"there is no timer {timer_id[:200]} in {path}, and a cron expression has five fields"
    raise Failure("not_found", message, exit_code=3, as_json=as_json, hint=hint, id=timer_id, close=close)


def _print(words: str, zone_name: str, rows: list[Firing], *, has_calendar: bool = True) -> None:
    click.echo(f"{printable(words)} ({printable(zone_name)})")
    click.echo()
    if not has_calendar:
        click.echo("  no calendar: when it fires depends on when its target runs; see `duly timers`")
        return
    for line in table(rows):
        click.echo(line)
