"""`duly check`: everything that is wrong with a file, at once, and what may surprise about it.

One line for each finding, in the form `file:line: entry: reason` that editors can follow, and a summary. What
is wrong makes the exit code 4, a warning does not.
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from duly.cli.finding import Failure, config_option, default_config
from duly.cli.refusals import printable
from duly.config import Config, ConfigError, Invalid, Warned, load
from duly.config.host import missing_on_host

INVALID_CONFIGURATION = 4


@click.command("check")
@click.argument("config", required=False, metavar="[CONFIG]")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")
@click.pass_context
def check(ctx: click.Context, config: str | None, *, config_path: str | None, as_json: bool) -> None:
    """Tell everything that is wrong with the file CONFIG (./duly.toml or ./duly.py), and what may surprise.

    Nothing is started. Commands and directories are looked for on this host. The exit code is 4 if the file
    or an entry of it cannot be used; warnings leave it at 0.

    \b
        duly check
        duly check new.toml --json
    """  # noqa: D301 (click's mark for lines to keep)
    given = config or config_path
    path = Path(given) if given is not None else default_config()
    if path is None:
        message = "there is neither duly.toml nor duly.py here; give a file: duly check FILE"
        raise Failure("no_configuration", message, exit_code=2, as_json=as_json)
    try:
        loaded = load(path, partial(missing_on_host, environ=os.environ))
    except ConfigError as error:
        _tell(_unusable_as_json(error) if as_json else list(_unusable_lines(error)))
        ctx.exit(INVALID_CONFIGURATION)
    _tell(_as_json(loaded) if as_json else list(_lines(loaded)))
    ctx.exit(INVALID_CONFIGURATION if loaded.invalid else 0)


def _tell(answer: dict[str, Any] | list[str]) -> None:
    for line in [json.dumps(answer, indent=2)] if isinstance(answer, dict) else answer:
        click.echo(line)


# --- for people ---


def _unusable_lines(error: ConfigError) -> Iterator[str]:
    for fault in error.faults:
        yield f"{_where(error.path, fault.line)}: {_red('error:')} {printable(fault.reason)}"
    yield "The file cannot be used."


def _lines(config: Config) -> Iterator[str]:
    for invalid in config.invalid:
        yield _line(config.path, invalid, _red("error:"))
    for warned in config.warnings:
        yield _line(config.path, warned, click.style("warning:", fg="yellow", bold=True))
    yield _summary(config)


def _line(path: Path, found: Invalid | Warned, word: str) -> str:
    return f"{_where(path, found.line)}: {word} {_entry(found)}: {printable(found.reason)}"


def _where(path: Path, line: int | None) -> str:
    return printable(str(path)) + (f":{line}" if line is not None else "")


def _entry(found: Invalid | Warned) -> str:
    if found.kind == "supervisor":
        return "supervisor"
    return (
        f'{found.kind} "{printable(found.id)}"' if found.id is not None else f"{found.kind} {found.index + 1}"
    )


def _red(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def _summary(config: Config) -> str:
    usable = (
        f"{_count(len(config.services), 'service')} and {_count(len(config.timers), 'timer')} can be used"
    )
    if not config.invalid and not config.warnings:
        return f"{usable}; nothing is wrong."
    wrong = f"{len(config.invalid)} invalid" if config.invalid else "nothing is invalid"
    warned = f", {_count(len(config.warnings), 'warning')}" if config.warnings else ""
    return f"{usable}; {wrong}{warned}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- for machines ---


def _as_json(config: Config) -> dict[str, Any]:
    return {
        "config": str(config.path),
        "ok": not config.invalid,
        "services": [service.id for service in config.services],
        "timers": [timer.id for timer in config.timers],
        "errors": [],
        "invalid": [_found(invalid) for invalid in config.invalid],
        "warnings": [_found(warned) for warned in config.warnings],
    }


def _unusable_as_json(error: ConfigError) -> dict[str, Any]:
    return {
        "config": str(error.path),
        "ok": False,
        "services": [],
        "timers": [],
        "errors": [{"line": fault.line, "reason": fault.reason} for fault in error.faults],
        "invalid": [],
        "warnings": [],
    }


def _found(found: Invalid | Warned) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "id": found.id,
        "index": found.index,
        "line": found.line,
        "reason": found.reason,
    }
