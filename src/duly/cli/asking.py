"""What the cron commands are asked: an expression, a zone, a time to count from. Read once, or refused.

The options are shared, so that `duly next` and `duly explain` take the same ones and mean the same by them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import click
import tzlocal

from duly.cli.refusals import refused_expression, refused_time, refused_zone, unknown_local_zone
from duly.clock import HostClock
from duly.cron import CronExpression
from duly.errors import InvalidCronExpressionError


@dataclass(frozen=True, slots=True)
class Question:
    """A valid expression, and the time in its zone from which to look ahead."""

    expression: CronExpression
    origin: datetime
    zone_name: str


def question_options(**argument: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that every cron command has, and its argument, which *argument* says more of."""

    def optioned(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object."),
            click.option(
                "--from", "origin_text", metavar="TIME", help="Count from this ISO time instead of now."
            ),
            click.option(
                "--tz", "zone_name", metavar="ZONE", help="An IANA zone; the host's own if not given."
            ),
            click.argument("expression", nargs=-1, required=True, **argument),
        ):
            command = option(command)
        return command

    return optioned


def question(
    words: tuple[str, ...], zone_name: str | None, origin_text: str | None, *, as_json: bool
) -> Question:
    """What was asked. Raises Refusal."""
    try:
        expression = CronExpression.parse(" ".join(words))
    except InvalidCronExpressionError as error:
        raise refused_expression(error, in_pieces=len(words) > 1, as_json=as_json) from error
    zone = zone_called(zone_name, as_json=as_json)
    return Question(expression, origin_of(origin_text, zone, as_json=as_json), str(zone))


def zone_called(name: str | None, *, as_json: bool) -> tzinfo:
    """The zone of this name, or the host's own. Raises Refusal."""
    try:
        return ZoneInfo(name) if name is not None else tzlocal.get_localzone()
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: "Europe" is a folder
        if name is None:
            raise unknown_local_zone(as_json=as_json) from error
        raise refused_zone(name, available_timezones(), as_json=as_json) from error


def origin_of(text: str | None, zone: tzinfo, *, as_json: bool) -> datetime:
    """The time to count from; without an offset it is meant as the clocks of the zone show it."""
    if text is None:
        return HostClock().now().astimezone(zone)
    try:
        moment = datetime.fromisoformat(text.strip())
        moment = moment.replace(tzinfo=zone) if moment.tzinfo is None else moment.astimezone(zone)
        # On the first and the last day that datetime knows, some zones have no UTC.
        return moment.astimezone(UTC).astimezone(zone)
    except (ValueError, OverflowError) as error:
        raise refused_time(text, as_json=as_json) from error
