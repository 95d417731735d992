"""`duly next` and `duly explain`: when a cron expression or a timer is due, and what it means.

Firings are exact in their zone: local and UTC time, how far ahead, and what the clocks do meanwhile. The
hints of `explain` name the two surprises of POSIX cron that no error can catch, because the text is valid:
day and weekday as alternatives, and days that not every month has.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from pathlib import Path
from typing import Any

import click

from duly.cli.completion import ids
from duly.cli.options import (
    config_option,
    default_config,
    loaded_config,
    moment_of,
    unknown_timer,
    zone_called,
)
from duly.cli.output import CommandError, json_option, print_answer, width
from duly.clock import HostClock
from duly.cron import CronExpression
from duly.cron.english import MONTHS, WEEKDAYS, in_english
from duly.cron.fields import FIELDS, MONTH, WEEKDAY, Field, runs_of, values_of
from duly.cron.notes import Note, notes, offset_text
from duly.errors import CronCalculationError, InvalidCronExpressionError
from duly.formatting import printable, shortened, two_units
from duly.instant import NEVER_US, Instant, datetime_at, instant_of

_EXPLAINED_FIRINGS = 3
_LONGEST_TEXT = 24
_LONGEST_FIELD = 40
_MOST_FIELDS = 8


@dataclass(frozen=True, slots=True)
class Question:
    """A valid expression, and the time in its zone from which to look ahead."""

    expression: CronExpression
    origin: datetime
    zone_name: str


def question_options(**argument: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of both commands, and their argument, which *argument* says more of."""
    options = (
        json_option,
        click.option(
            "--from", "origin_text", metavar="TIME", help="Count from this ISO time instead of now."
        ),
        click.option("--tz", "zone_name", metavar="ZONE", help="An IANA zone; the host's own if not given."),
        click.argument("expression", nargs=-1, required=True, **argument),
    )

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in options:
            command = option(command)
        return command

    return with_options


def question(words: tuple[str, ...], zone_name: str | None, origin_text: str | None) -> Question:
    """What was asked. Raises CommandError."""
    try:
        expression = CronExpression.parse(" ".join(words))
    except InvalidCronExpressionError as error:
        raise refused_expression(error, in_pieces=len(words) > 1) from error
    zone = zone_called(zone_name)
    return Question(expression, _origin(origin_text, zone), str(zone))


def _origin(text: str | None, zone: tzinfo) -> datetime:
    return HostClock().now().astimezone(zone) if text is None else moment_of(text, zone)


def refused_expression(error: InvalidCronExpressionError, *, in_pieces: bool) -> CommandError:
    """The error for a cron expression. *in_pieces*: it came as several arguments, not quoted."""
    from duly.cron.spelling import posix_spelling  # noqa: PLC0415 - only a mistake needs it

    text, field, reason = (error.details[key] for key in ("expression", "field", "reason"))
    better = posix_spelling(text)
    hints = ["\n".join(_marked(text, field))]
    if better is not None:
        hints.append(f"write: {click.style(better, fg='green')}")
    if in_pieces:
        hints.append('Put the expression in quotes ("* * * * *"), or the shell puts file names for each *.')
    return CommandError(
        "invalid_expression",
        f"{field} field {reason}" if field != "expression" else f"the expression {reason}",
        hint="\n\n".join(hints),
        facts={"expression": text, "field": field, "reason": reason, "write": better},
    )


def _marked(text: str, field: str) -> list[str]:
    """The expression, and a mark under the field that is wrong, or under all of it."""
    words = [shortened(printable(word), _LONGEST_FIELD) for word in re.findall(r"[^ \t]+", text)]
    if len(words) > _MOST_FIELDS:
        words = [*words[:_MOST_FIELDS], "…"]
    names = [known.name for known in FIELDS]
    if field not in names:
        before, marked = "", " ".join(words)
    else:
        index = names.index(field)
        before, marked = "".join(f"{word} " for word in words[:index]), words[index]
    mark = " " * width(before) + click.style("^" * max(width(marked), 1), fg="red", bold=True)
    return [f"  {' '.join(words)}", f"  {mark}"]


# --- firings ---


@dataclass(frozen=True, slots=True)
class ShownFiring:
    """One time at which an expression is due."""

    local: datetime
    ahead: timedelta
    """How long after the origin, in real time."""
    notes: list[Note]


def firings(expression: CronExpression, origin: datetime, count: int) -> list[ShownFiring]:
    """The next *count* firings; fewer at the end of time."""
    times = list(islice(_until_the_end(expression, origin), count))
    begun = origin.astimezone(UTC)
    return [
        ShownFiring(local, local.astimezone(UTC) - begun, of_it)
        for local, of_it in zip(times, notes(expression, origin, times), strict=True)
    ]


def slots_ahead(following: Callable[[int], int], origin: datetime, count: int) -> list[ShownFiring]:
    """The next *count* slots of a timer, of whose schedule the *following* one is known of each."""
    rows: list[ShownFiring] = []
    at_us = instant_of(origin)
    while len(rows) < count and (at_us := following(at_us)) < NEVER_US:
        local = datetime_at(at_us, origin.tzinfo or UTC)
        rows.append(ShownFiring(local, local.astimezone(UTC) - origin.astimezone(UTC), []))
    return rows


def merged_firings(each: list[list[ShownFiring]], count: int) -> list[ShownFiring]:
    """The first *count* of several lists of firings; those at the same instant are one."""
    by_instant: dict[datetime, ShownFiring] = {}
    for row in sorted((row for rows in each for row in rows), key=lambda row: row.ahead):
        known = by_instant.setdefault(row.local.astimezone(UTC), row)
        known.notes.extend(note for note in row.notes if note not in known.notes)
    return list(by_instant.values())[:count]


def _until_the_end(expression: CronExpression, moment: datetime) -> Iterator[datetime]:
    while True:
        try:
            moment = expression.next_after(moment)
        except CronCalculationError:
            return
        yield moment


def _table(rows: list[ShownFiring]) -> Iterator[str]:
    """The firings as lines: what the clocks did before a firing stands above it, what concerns it below."""
    offset_width = max((len(_offset(row)) for row in rows), default=0)
    for row in rows:
        yield from (_note_line(note) for note in row.notes if note.kind != "repeated")
        local = click.style(f"{row.local:%a} {_face(row.local)} {_offset(row):<{offset_width}}", bold=True)
        utc = f"{_face(row.local.astimezone(UTC))} UTC"
        yield f"  {local}   {utc}   {ahead_text(row.ahead)}"
        yield from (_note_line(note) for note in row.notes if note.kind == "repeated")
    if not rows:
        yield "  never again before the year 10000"


def _firing_json(row: ShownFiring) -> dict[str, Any]:
    return {
        "local": row.local.isoformat(),
        "utc": row.local.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "weekday": row.local.isoweekday() % 7,
        "in_s": row.ahead.total_seconds(),
        "notes": [{"kind": note.kind, "text": note.text} for note in row.notes],
    }


def ahead_text(ahead: timedelta) -> str:
    """How far ahead, in the two largest units that it has: in 2h 5m."""
    return f"in {two_units(ahead // timedelta(seconds=1))}"


def _note_line(note: Note) -> str:
    return click.style(f"    {note.text}", fg="yellow")


def _face(moment: datetime) -> str:
    # Not strftime: %Y has no leading zeros on Linux, and offsets with seconds put seconds into UTC.
    return moment.replace(tzinfo=None).isoformat(" ", "seconds" if moment.second else "minutes")


def _offset(row: ShownFiring) -> str:
    offset = row.local.utcoffset()
    assert offset is not None
    return offset_text(offset)


# --- `duly next` ---


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
) -> None:
    """List the next times at which a TIMER of a configuration, or a cron EXPRESSION, is due.

    Each is shown in local time and in UTC, with a note where the clocks change. A single word is the id of a
    timer if there is a configuration. Of a timer its calendar, its moment and its fixed rate can be known
    ahead; the rate counts from when a daemon first ran with it, so its daemon or its store is asked.

    \b
        duly next "0 9 * * 1-5" --tz Europe/Berlin
        duly next backup -n 10
        duly next backup -c duly.toml --from 2026-03-28
    """  # noqa: D301 (click's mark for lines to keep)
    path = _config_of_timer(expression, config_path)
    if path is not None:
        _show_timer(path, " ".join(expression), count, zone_name, origin_text)
        return
    asked = question(expression, zone_name, origin_text)
    rows = firings(asked.expression, asked.origin, count)
    words = in_english(asked.expression)
    answer = {
        "expression": asked.expression.text,
        "words": words,
        "timezone": asked.zone_name,
        "from": asked.origin.isoformat(),
        "firings": [_firing_json(row) for row in rows],
    }
    print_answer(answer, _next_lines(words, asked.zone_name, rows))


def _config_of_timer(words: tuple[str, ...], config_path: str | None) -> Path | None:
    """The configuration, if it is about a timer: an expression has five fields, and never one word."""
    if len(words) != 1 or len(words[0].split()) != 1 or words[0].startswith("@"):
        return None
    return Path(config_path) if config_path is not None else default_config()


def _show_timer(
    path: Path, timer_id: str, count: int, zone_name: str | None, origin_text: str | None
) -> None:
    from duly.config.schema import config_zone, expression_of  # noqa: PLC0415 - timers only
    from duly.daemon.views import schedule_text  # noqa: PLC0415

    config = loaded_config(path)
    timer = next((timer for timer in config.timers if timer.id == timer_id), None)
    if timer is None:
        invalid = [(bad.id, bad.reason) for bad in config.invalid if bad.is_of("timer")]
        where = f" in {path}, and a cron expression has five fields"
        raise unknown_timer(timer_id, [timer.id for timer in config.timers], invalid, where)
    own = timer.timezone or zone_name
    zone = zone_called(own) if own is not None else config_zone(config)
    origin = _origin(origin_text, zone)
    registered_us = None if timer.every is None else _registered_us(path, timer_id)
    is_plain = not (timer.at or timer.every or timer.random_delay_sec or timer.exclude or timer.dst == "both")
    if is_plain and not any(calendar.day_of_month == "last" for calendar in timer.on_calendar):
        expressions = [expression_of(calendar) for calendar in timer.on_calendar]
        rows = merged_firings(
            [firings(each, origin, count) for each in expressions if each.has_a_date], count
        )
    else:
        from duly.daemon.slots import slots_of  # noqa: PLC0415 - hardly any timer needs it

        known = timer if registered_us is not None else replace(timer, every=None)
        rows = slots_ahead(slots_of(known, zone, registered_us), origin, count)
    unlisted = ""
    if timer.every is not None and registered_us is None:
        unlisted = "every counts from when the daemon first runs with it, which it never did"
    elif not (timer.on_calendar or timer.at or timer.every):
        unlisted = "no calendar: it counts from when duly starts, or its target ran; see `duly timers`"
    answer = {
        "timer": timer.id,
        "target": timer.target,
        "words": schedule_text(timer),
        "timezone": str(zone),
        "from": origin.isoformat(),
        "firings": [_firing_json(row) for row in rows],
    }
    print_answer(answer, _next_lines(schedule_text(timer), str(zone), rows, unlisted))


def _registered_us(path: Path, timer_id: str) -> Instant | None:
    """When a daemon first ran with a timer, as it says, or its store; None if none ever did."""
    from duly.cli.proxy import DaemonProxy  # noqa: PLC0415 - only a fixed rate needs it

    timers = DaemonProxy(str(path), None).read("timers").get("timers", ())  # none while they are off
    text = next((timer["registered_at"] for timer in timers if timer["id"] == timer_id), None)
    return None if text is None else instant_of(datetime.fromisoformat(text))


def _next_lines(words: str, zone_name: str, rows: list[ShownFiring], unlisted: str = "") -> Iterator[str]:
    yield f"{printable(words)} ({printable(zone_name)})"
    yield ""
    if rows or not unlisted:
        yield from _table(rows)
    if unlisted:
        yield f"  {unlisted}"


# --- `duly explain` ---


@click.command("explain")
@question_options()
def explain(expression: tuple[str, ...], *, zone_name: str | None, origin_text: str | None) -> None:
    """Say in plain words when EXPRESSION is due.

    Shows the five fields, the next three times, and what might surprise.

        duly explain "0 0 1,15 * 1"
    """
    asked = question(expression, zone_name, origin_text)
    rows = firings(asked.expression, asked.origin, _EXPLAINED_FIRINGS)
    answer = {
        "expression": asked.expression.text,
        "words": in_english(asked.expression),
        "fields": [
            {"name": field.name, "text": text, "values": values_of(mask)}
            for field, text, mask in _fields(asked.expression)
        ],
        "either_day": asked.expression.either_day,
        "hints": list(hints(asked.expression)),
        "timezone": asked.zone_name,
        "from": asked.origin.isoformat(),
        "firings": [_firing_json(row) for row in rows],
    }
    print_answer(answer, _explain_lines(asked, rows))


def _explain_lines(asked: Question, rows: list[ShownFiring]) -> Iterator[str]:
    yield click.style(in_english(asked.expression), bold=True)
    yield ""
    for field, text, mask in _fields(asked.expression):
        said = shortened(text, _LONGEST_TEXT)
        yield f"  {field.name:<8} {said:<{_LONGEST_TEXT}} {values_text(field, mask)}".rstrip()
    yield ""
    yield f"Next in {printable(asked.zone_name)}:"
    yield from _table(rows)
    for hint in hints(asked.expression):
        yield ""
        yield f"{click.style('hint:', fg='cyan', bold=True)} {hint}"


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
            day = f"{days[0]}{'st' if days[0] == 31 else 'th'}"
            yield f"months without a {day} are left out; no cron text means the last day of a month"
