"""`duly services`: what is supervised, whether it runs, and since when."""

from datetime import datetime
from typing import Any

import click

from duly.cli.finding import daemon_options, place_of
from duly.cli.relative import relative_text
from duly.cli.tables import Cell, Column, Row, table, terminal_width
from duly.cli.talking import Talk
from duly.cli.timers import invalid_lines
from duly.cli.words import STATES, exit_text

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
def services(*, config_path: str | None, socket_path: str | None, as_json: bool) -> None:
    """List the services: what each is up to, since when, and how its last run ended.

    \b
        duly services
        duly services --json | jq -r '.services[] | select(.state == "failed") | .id'
    """  # noqa: D301 (click's mark for lines to keep)
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    told = talk.read("services")
    if as_json:
        talk.print_json(told)
        return
    now, wide = datetime.fromisoformat(told["at"]), terminal_width()
    lines = table(_COLUMNS, [_row(service, now) for service in told["services"]], wide)
    for line in (*(lines if told["services"] else ["No services."]), *invalid_lines(told["invalid"], wide)):
        click.echo(line)


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
