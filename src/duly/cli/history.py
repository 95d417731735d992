"""`duly history`: what ran and what did not, newest first."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from duly.cli.completing import ids
from duly.cli.finding import RUN_NUMBER, daemon_options, place_of
from duly.cli.relative import length, relative_text
from duly.cli.tables import Cell, Column, Row, table, terminal_width
from duly.cli.talking import Talk
from duly.cli.words import exit_text, result_cell

_COLUMNS = (
    Column("run", "run", right=True),
    Column("service", "service", rank=1, least=10),
    Column("timer", "timer", rank=5, least=8),
    Column("reason", "reason", rank=4),
    Column("started", "started"),
    Column("lasted", "lasted", rank=2),
    Column("result", "result"),
    Column("exit", "exit", rank=3, right=True),
    Column("message", "message", rank=6, least=10),
)


@click.command("history")
@click.argument("id", required=False, shell_complete=ids("services", "timers"))
@click.option(
    "-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many runs."
)
@click.option("--before", type=RUN_NUMBER, metavar="RUN", help="Only runs older than this one.")
@click.option("--service", metavar="ID", help="Only runs of this service.")
@click.option("--timer", metavar="ID", help="Only runs that this timer fired.")
@daemon_options
def history(
    *,
    id: str | None,  # noqa: A002 (the word for it)
    count: int,
    before: int | None,
    service: str | None,
    timer: str | None,
    config_path: str | None,
    socket_path: str | None,
    as_json: bool,
) -> None:
    """List what ran, newest first, of a service or timer ID or of all; and what timers missed, and why.

    \b
        duly history
        duly history backup -n 50
        duly history backup --json | jq '.runs[] | select(.result != "success")'
    """  # noqa: D301 (click's mark for lines to keep)
    if id is not None and (service is not None or timer is not None):
        raise click.UsageError("give an ID, or --service and --timer, not both")
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    told = talk.read("history", id=id, limit=count, before=before, service=service, timer=timer)
    if as_json:
        talk.print_json(told)
        return
    for line in _lines(told, is_page=before is not None):
        click.echo(line)


def _lines(told: dict[str, Any], *, is_page: bool) -> Iterator[str]:
    now = datetime.fromisoformat(told["at"])
    rows = [(run["started_at"], 1, _run_row(run, now)) for run in told["runs"]]
    newest = max((_moment(at) for at, _, _ in rows), default=None) if is_page else None
    # Where runs are left out, misses of that time would stand among runs that are not shown.
    oldest = min((_moment(at) for at, _, _ in rows), default=None) if told["more"] else None
    rows += [
        (miss["at"], 0, _miss_row(miss, now))
        for miss in told["misses"]
        if (oldest is None or _moment(miss["at"]) >= oldest)
        and (newest is None or _moment(miss["at"]) <= newest)
    ]
    rows.sort(key=lambda row: (_moment(row[0]), row[1]), reverse=True)
    if not rows:
        yield "Nothing has run yet."
        return
    yield from table(_COLUMNS, [row for _, _, row in rows], terminal_width())
    if told["more"]:
        yield click.style(f"There are older ones: --before {told['runs'][-1]['id']}", dim=True)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _run_row(run: dict[str, Any], now: datetime) -> Row:
    lasted = run["duration_s"]
    if lasted is None:
        lasted = (now - _moment(run["started_at"])).total_seconds()
    return {
        "run": str(run["id"]),
        "service": run["service"],
        "timer": run["timer"] or "-",
        "reason": run["reason"],
        "started": relative_text(run["started_at"], now),
        "lasted": length(max(lasted, 0)),
        "result": result_cell(run["result"], is_running=run["running"]),
        "exit": exit_text(run),
        "message": run["message"] or "-",
    }


def _miss_row(miss: dict[str, Any], now: datetime) -> Row:
    return {
        "run": "-",
        "service": "-",
        "timer": miss["timer"],
        "reason": "-",
        "started": relative_text(miss["at"], now),
        "lasted": "-",
        "result": Cell("missed", "yellow"),
        "exit": "-",
        "message": miss["reason"],
    }
