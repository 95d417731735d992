"""`duly check`: everything that is wrong with a file, at once, and what may surprise about it.

One line for each finding, in the form `file:line: entry: reason` that editors can follow, and a summary. What
is wrong makes the exit code 4, a warning does not.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from duly.cli.options import config_file, config_option
from duly.cli.output import json_option, print_answer
from duly.clock import HostClock
from duly.config import Config, ConfigError, load
from duly.config.schema import Invalid, Warned, config_zone
from duly.config.warnings import missing_on_host
from duly.formatting import counted, printable
from duly.instant import NEVER_US, instant_of

INVALID_CONFIGURATION = 4
_MOST_SCHEDULES = 30
_ERROR = click.style("error:", fg="red", bold=True)


@click.command("check")
@click.argument("config", required=False, metavar="[CONFIG]")
@config_option
@json_option
@click.option("--json-schema", "is_schema", is_flag=True, help="Print the schema of such files, for editors.")
@click.pass_context
def check(ctx: click.Context, config: str | None, *, config_path: str | None, is_schema: bool) -> None:
    """Report everything that is wrong with the file CONFIG (./duly.toml or ./duly.py), and what may surprise.

    Nothing is started. Commands and directories are looked for on this host. The exit code is 4 if the file
    or an entry of it cannot be used; warnings leave it at 0.

    \b
        duly check
        duly check new.toml --json
        duly check --json-schema > duly.schema.json
    """  # noqa: D301 (click's mark for lines to keep)
    if is_schema:
        from duly.config.json_schema import json_schema  # noqa: PLC0415 - editors ask once

        click.echo(json.dumps(json_schema(), indent=2))
        return
    path = config_file(config or config_path, "check")
    try:
        loaded = load(path, partial(missing_on_host, environ=os.environ))
    except ConfigError as error:
        errors = [asdict(fault) for fault in error.faults]
        answer = {**_as_json(Config(error.path)), "ok": False, "errors": errors}
        print_answer(answer, _unusable_lines(error), ensure_ascii=True)
        ctx.exit(INVALID_CONFIGURATION)
    print_answer(_as_json(loaded), _lines(loaded), ensure_ascii=True)
    ctx.exit(INVALID_CONFIGURATION if loaded.invalid else 0)


def _unusable_lines(error: ConfigError) -> Iterator[str]:
    for fault in error.faults:
        yield f"{_where(error.path, fault.line)}: {_ERROR} {printable(fault.reason)}"
    yield "The file cannot be used."


def _lines(config: Config) -> Iterator[str]:
    for fault in config.faults:
        yield _line(config.path, fault, _ERROR)
    for warned in config.warnings:
        yield _line(config.path, warned, click.style("warning:", fg="yellow", bold=True))
    yield from _schedules(config)
    yield _summary(config)


def _schedules(config: Config) -> Iterator[str]:
    """When each timer fires, in words: what a cron text means is easily mistaken."""
    from duly.daemon.slots import slots_of  # noqa: PLC0415 - a file that is refused needs none
    from duly.daemon.views import schedule_text  # noqa: PLC0415 - as above

    zone, now_us = config_zone(config), instant_of(HostClock().now())
    for timer in config.timers[:_MOST_SCHEDULES]:
        is_endless = timer.on_startup_sec is not None or timer.on_unit_active_sec is not None
        is_over = not is_endless and slots_of(timer, zone, now_us)(now_us) >= NEVER_US
        over = "; nothing is ahead" if is_over else ""
        yield click.style(f"  {printable(timer.id)}: {printable(schedule_text(timer))}{over}", dim=True)
    if (more := len(config.timers) - _MOST_SCHEDULES) > 0:
        yield click.style(f"  and {more} more: see duly timers", dim=True)


def _line(path: Path, found: Invalid | Warned, word: str) -> str:
    entry = f"{found.kind} {found.index + 1}"
    if found.kind == "supervisor":
        entry = "supervisor"
    elif found.id is not None:
        entry = f'{found.kind} "{printable(found.id)}"'
    path = path if found.file is None else path.parent / found.file
    return f"{_where(path, found.line)}: {word} {entry}: {printable(found.reason)}"


def _where(path: Path, line: int | None) -> str:
    return printable(str(path)) + (f":{line}" if line is not None else "")


def _summary(config: Config) -> str:
    usable = (
        f"{counted(len(config.services), 'service')} and {counted(len(config.timers), 'timer')} can be used"
    )
    if not config.invalid and not config.warnings:
        return f"{usable}; nothing is wrong."
    wrong = f"{len(config.invalid)} invalid" if config.invalid else "nothing is invalid"
    warned = f", {counted(len(config.warnings), 'warning')}" if config.warnings else ""
    return f"{usable}; {wrong}{warned}."


def _as_json(config: Config) -> dict[str, Any]:
    return {
        "config": str(config.path),
        "ok": not config.invalid,
        "services": [service.id for service in config.services],
        "timers": [timer.id for timer in config.timers],
        "errors": [],
        "invalid": [asdict(invalid) for invalid in config.invalid],
        "warnings": [asdict(warned) for warned in config.warnings],
        "faults": [asdict(fault) for fault in config.faults],
    }
