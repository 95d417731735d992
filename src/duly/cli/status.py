"""`duly status` and `duly services`: the daemon at a glance, and what each service is up to."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from duly.cli.output import (
    STATES,
    Cell,
    Column,
    Row,
    exit_text,
    print_answer,
    relative_text,
    table,
    terminal_width,
)
from duly.cli.proxy import DaemonProxy, daemon_options
from duly.cli.timers import invalid_lines
from duly.formatting import counted, length, printable

_MOST_REASONS = 20


_ABSENT = {"down": "not running", "silent": "silent", "closed": "not yours to ask"}
"""A daemon that does not answer, in a word."""


@click.command("status")
@click.option("--check", is_flag=True, help="End with 1 if something is wrong, 69 if the daemon is down.")
@daemon_options
def status(*, check: bool, daemon: DaemonProxy) -> None:
    """Show how the daemon is: its health, what it runs, what comes next, and where its files are.

    \b
        duly status
        duly status --check --json      # for the health check of a container
    """  # noqa: D301 (click's mark for lines to keep)
    response = daemon.read("status")
    print_answer(response, _status_lines(response))
    if check and response["state"] in _ABSENT:
        raise click.exceptions.Exit(69)
    if check and not response["health"]["ok"]:
        raise click.exceptions.Exit(1)


def _status_lines(response: dict[str, Any]) -> Iterator[str]:
    yield f"{click.style('duly ' + response['version'], bold=True)}  {_state(response)}"
    yield from _health(response["health"])
    counts = response["counts"]
    running = [f"{counts['services_running']} running"]
    if counts["services_failed"]:
        running.append(click.style(f"{counts['services_failed']} failed", fg="red"))
    yield f"  services   {counts['services']} ({', '.join([*running, *_disabled(response, 'service')])})"
    yield f"  timers     {_timers(response)}"
    if counts["invalid"]:
        is_crontab = not response["config"].endswith((".toml", ".py"))
        see = "" if is_crontab else "; see `duly check`"
        yield f"  invalid    {counted(counts['invalid'], 'entry', 'entries')}{see}"
    for name in ("config", "store", "socket"):
        yield f"  {name:<10} {printable(response[name])}"
    if response.get("dashboard"):
        yield f"  dashboard  {printable(response['dashboard'])}"


def _state(response: dict[str, Any]) -> str:
    if response["state"] in _ABSENT:
        return click.style(_ABSENT[response["state"]], fg="red")
    state = click.style(response["state"], fg="green" if response["state"] == "running" else "yellow")
    return f"{state} for {length(response['uptime_s'] or 0)}, pid {response['pid']}"


def _health(health: dict[str, Any]) -> Iterator[str]:
    warnings = health.get("warnings", [])  # an older daemon sends none
    summary = [click.style(counted(len(health["reasons"]), "problem"), fg="red")] if health["reasons"] else []
    summary += [click.style(counted(len(warnings), "warning"), fg="yellow")] if warnings else []
    yield f"  health     {', '.join(summary) or click.style('all is well', fg='green')}"
    everything = [*health["reasons"], *warnings]
    for reason in everything[:_MOST_REASONS]:
        yield f"             - {printable(reason)}"
    if (left := len(everything) - _MOST_REASONS) > 0:
        yield f"             and {left:,} more"


def _timers(response: dict[str, Any]) -> str:
    if response["timers"] == "disabled":
        return f"{click.style('off', fg='yellow')} (experimental; `duly timers` says how to switch them on)"
    counts, coming = response["counts"], response["next_firing"]
    running = [f"{counts['timers_running']} running", *_disabled(response, "timer")]
    said = f"{counts['timers']} ({', '.join(running)})"
    if coming is None:
        return said
    now = datetime.fromisoformat(response["at"])
    return f"{said}; next: {printable(coming['timer'])} {relative_text(coming['at'], now)}"


def _disabled(response: dict[str, Any], kind: str) -> list[str]:
    """How many of a kind are disabled, if any are."""
    states = response["health"].get("states", [])  # an older daemon sends none
    number = sum((each["kind"], each["state"]) == (kind, "disabled") for each in states)
    return [f"{number} disabled"] if number else []


# --- `duly services` ---


_COLUMNS = (
    Column("id", "id", least=12),
    Column("type", "type", rank=4),
    Column("stage", "stage", rank=6, right=True),
    Column("state", "state"),
    Column("since", "since", rank=1),
    Column("pid", "pid", rank=2, right=True),
    Column("restarts", "restarts", rank=5, right=True),
    Column("last", "last run", rank=3),
    Column("exit", "exit", rank=3, right=True),
    Column("reason", "why", rank=7, least=12),
)


@click.command("services")
@daemon_options
def services(*, daemon: DaemonProxy) -> None:
    """List the services: what each is up to, since when, and how its last run ended.

    \b
        duly services
        duly services --json | jq -r '.services[] | select(.state == "failed") | .id'
    """  # noqa: D301 (click's mark for lines to keep)
    response = daemon.read("services")
    print_answer(response, _service_lines(response))


def _service_lines(response: dict[str, Any]) -> Iterator[str]:
    now, wide = datetime.fromisoformat(response["at"]), terminal_width()
    if response["services"]:
        yield from table(_COLUMNS, [_row(service, now) for service in response["services"]], wide)
    else:
        yield "No services."
    yield from invalid_lines(response["invalid"], wide)


def _row(service: dict[str, Any], now: datetime) -> Row:
    run = service["last_run"]
    state = service["state"] if service["enabled"] else "disabled"
    return {
        "id": Cell(service["id"], dim=not service["enabled"]),
        "type": service["type"],
        "stage": str(service["stage"]),
        "state": Cell(state, STATES.get(state)),
        "since": relative_text(service["since"], now),
        "pid": "-" if service["pid"] is None else str(service["pid"]),
        "restarts": str(service["restarts"]),
        "last": "-" if run is None else relative_text(run["started_at"], now),
        "exit": "-" if run is None else exit_text(run),
        "reason": service["reason"] or "-",
    }
