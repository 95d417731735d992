"""`duly status`: the daemon at a glance, and whether all is well."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from duly.cli.finding import daemon_options, place_of
from duly.cli.refusals import printable
from duly.cli.relative import length, relative_text
from duly.cli.talking import Talk
from duly.cli.words import counted

_MOST_REASONS = 20


_ABSENT = {"down": "not running", "silent": "silent", "closed": "not yours to ask"}
"""A daemon that does not answer, in a word."""


@click.command("status")
@click.option("--check", is_flag=True, help="End with 1 if something is wrong, 69 if the daemon is down.")
@daemon_options
def status(*, check: bool, config_path: str | None, socket_path: str | None, as_json: bool) -> None:
    """Show how the daemon is: its health, what it runs, what comes next, and where its files are.

    \b
        duly status
        duly status --check --json      # for the health check of a container
    """  # noqa: D301 (click's mark for lines to keep)
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    told = talk.read("status")
    if as_json:
        talk.print_json(told)
    else:
        for line in lines(told):
            click.echo(line)
    if check and told["state"] in _ABSENT:
        raise click.exceptions.Exit(69)
    if check and not told["health"]["ok"]:
        raise click.exceptions.Exit(1)


def lines(told: dict[str, Any]) -> Iterator[str]:
    """The status for people."""
    yield f"{click.style('duly ' + told['version'], bold=True)}  {_state(told)}"
    yield from _health(told["health"])
    counts = told["counts"]
    running = [f"{counts['services_running']} running"]
    if counts["services_failed"]:
        running.append(click.style(f"{counts['services_failed']} failed", fg="red"))
    yield f"  services   {counts['services']} ({', '.join(running)})"
    yield f"  timers     {_timers(told)}"
    if counts["invalid"]:
        yield f"  invalid    {counted(counts['invalid'], 'entry', 'entries')}; see `duly check`"
    for name in ("config", "store", "socket"):
        yield f"  {name:<10} {printable(told[name])}"
    if told.get("dashboard"):
        yield f"  dashboard  {printable(told['dashboard'])}"


def _state(told: dict[str, Any]) -> str:
    if told["state"] in _ABSENT:
        return click.style(_ABSENT[told["state"]], fg="red")
    state = click.style(told["state"], fg="green" if told["state"] == "running" else "yellow")
    return f"{state} for {length(told['uptime_s'] or 0)}, pid {told['pid']}"


def _health(health: dict[str, Any]) -> Iterator[str]:
    warnings = health.get("warnings", [])  # of which an older daemon knows nothing
    told = [click.style(counted(len(health["reasons"]), "problem"), fg="red")] if health["reasons"] else []
    told += [click.style(counted(len(warnings), "warning"), fg="yellow")] if warnings else []
    yield f"  health     {', '.join(told) or click.style('all is well', fg='green')}"
    everything = [*health["reasons"], *warnings]
    for reason in everything[:_MOST_REASONS]:
        yield f"             - {printable(reason)}"
    if (left := len(everything) - _MOST_REASONS) > 0:
        yield f"             and {left:,} more"


def _timers(told: dict[str, Any]) -> str:
    if told["timers"] == "disabled":
        return f"{click.style('off', fg='yellow')} (experimental; `duly timers` says how to switch them on)"
    counts, coming = told["counts"], told["next_firing"]
    said = f"{counts['timers']} ({counts['timers_running']} running)"
    if coming is None:
        return said
    now = datetime.fromisoformat(told["at"])
    return f"{said}; next: {printable(coming['timer'])} {relative_text(coming['at'], now)}"
