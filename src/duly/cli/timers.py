"""`duly timers`: what fires when, what became of it last, and which timers cannot be used.

Also where the timer subsystem is switched on and off in a running daemon.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from duly.cli.completing import ids
from duly.cli.finding import Failure, daemon_options, place_of
from duly.cli.refusals import printable
from duly.cli.relative import relative_text
from duly.cli.tables import Cell, Column, Row, table, terminal_width
from duly.cli.talking import Talk, say_disabled
from duly.cli.words import counted, result_cell

_COLUMNS = (
    Column("id", "id", least=12),
    Column("target", "target", rank=4, least=10),
    Column("enabled", "enabled", rank=3),
    Column("last", "last run", rank=1),
    Column("next", "next run"),
    Column("result", "result", rank=1),
    Column("exit", "exit", rank=5, right=True),
    Column("missed", "last miss", rank=6, least=10),
    Column("schedule", "schedule", rank=7, least=16),
)
_MEMBER = Column("member", "held by", rank=2, least=10)
_DETAILS = (
    ("fault", "does not run"),
    ("target", "target"),
    ("schedule", "schedule"),
    ("description", "description"),
    ("enabled", "enabled"),
    ("last_run_at", "last run"),
    ("last_result", "result"),
    ("last_exit", "exit code"),
    ("last_success_at", "last success"),
    ("last_failure_at", "last failure"),
    ("last_missed_at", "last miss"),
    ("last_miss_reason", "why missed"),
    ("next_run_at", "next run"),
    ("retry_attempt", "retries so far"),
    ("retry_next_at", "next retry"),
    ("registered_at", "known since"),
    ("member", "held by"),
)


@click.command("timers")
@click.argument("timer_id", metavar="[TIMER]", required=False, shell_complete=ids("timers"))
@click.option("--on/--off", "switch", default=None, help="Switch the timer subsystem of a running daemon.")
@daemon_options
def timers(
    *,
    timer_id: str | None,
    switch: bool | None,
    config_path: str | None,
    socket_path: str | None,
    as_json: bool,
) -> None:
    """List the timers, or show all about one TIMER.

    When each ran, when it runs next, how its last run ended, and why it last did not run.

    \b
        duly timers
        duly timers backup
        duly timers --json | jq '.timers[] | select(.last_result != "success")'
        duly timers --on        # the subsystem is experimental, and off by default
    """  # noqa: D301 (click's mark for lines to keep)
    talk = Talk(place_of(config_path, socket_path, as_json=as_json), as_json=as_json)
    if switch is not None:
        done = talk.act("gate", on=switch)
        talk.print_json(done) if as_json else click.echo(
            f"The timer subsystem is {'on' if switch else 'off'}."
        )
        return
    told = talk.read("timers")
    if told["status"] == "disabled":
        say_disabled(told["message"], as_json=as_json)
    if timer_id is not None:
        found = _one(told, timer_id, as_json=as_json)
        talk.print_json(found) if as_json else click.echo("\n".join(_lines(found, _now(told))))
        return
    if as_json:
        talk.print_json(told)
        return
    for line in _listed(told):
        click.echo(line)


def _now(told: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(told["at"])


def _listed(told: dict[str, Any]) -> Iterator[str]:
    if told["timers"]:
        is_shared = any(timer["member"] for timer in told["timers"])
        columns = (*_COLUMNS, _MEMBER) if is_shared else _COLUMNS
        yield from table(columns, [_row(timer, _now(told)) for timer in told["timers"]], terminal_width())
    else:
        yield "No timers."
    yield from _unreadable_lines([timer["fault"] for timer in told["timers"] if timer.get("fault")])
    yield from invalid_lines(told["invalid"], terminal_width())


def _unreadable_lines(faults: list[str]) -> Iterator[str]:
    if faults:
        yield ""
        yield click.style(f"{counted(len(faults), 'unreadable timer')}:", fg="red", bold=True)
    for fault in faults:
        yield f"- {printable(fault)}"


def _enabled_cell(timer: dict[str, Any]) -> Cell:
    if timer.get("fault"):  # an older daemon does not tell
        return Cell("unreadable", "red")
    return Cell("yes") if timer["enabled"] else Cell("no", "yellow")


def _row(timer: dict[str, Any], now: datetime) -> Row:
    missed = "-"
    if timer["last_missed_at"] is not None:
        missed = f"{timer['last_miss_reason']} {relative_text(timer['last_missed_at'], now)}"
    retry = f" (retry {timer['retry_attempt']})" if timer["retry_next_at"] is not None else ""
    return {
        "id": Cell(timer["id"], dim=not timer["enabled"]),
        "target": timer["target"],
        "enabled": _enabled_cell(timer),
        "last": relative_text(timer["last_run_at"], now),
        "next": relative_text(timer["next_run_at"], now) + retry,
        "result": result_cell(timer["last_result"], is_running=timer["running"]),
        "exit": "-" if timer["last_exit"] is None else str(timer["last_exit"]),
        "missed": missed,
        "schedule": timer["schedule"],
        "member": timer["member"] or "-",
    }


def _one(told: dict[str, Any], timer_id: str, *, as_json: bool) -> dict[str, Any]:
    for timer in told["timers"]:
        if timer["id"] == timer_id:
            return dict(timer)
    for bad in told["invalid"]:
        if bad["id"] == timer_id:
            message = f"timer {timer_id} is invalid: {bad['reason']}"
            raise Failure("invalid_configuration", message, exit_code=4, as_json=as_json, id=timer_id)
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake pays for it

    close = get_close_matches(timer_id[:100], [timer["id"] for timer in told["timers"]])
    hint = f"did you mean {' or '.join(map(printable, close))}?" if close else ""
    message = f"there is no timer {timer_id[:200]}"
    raise Failure("not_found", message, exit_code=3, as_json=as_json, hint=hint, id=timer_id, close=close)


def _lines(timer: dict[str, Any], now: datetime) -> Iterator[str]:
    yield click.style(printable(timer["id"]), bold=True)
    for key, title in _DETAILS:
        value = timer.get(key)
        if value in {None, "", 0} and key not in {"next_run_at", "last_run_at", "last_exit"}:
            continue
        if key.endswith("_at"):
            said = "-" if value is None else f"{value} ({relative_text(value, now)})"
        elif isinstance(value, bool):
            said = "yes" if value else "no"
        else:
            said = "-" if value is None else printable(str(value))
        yield f"  {title:<15} {said}"


def invalid_lines(invalid: list[dict[str, Any]], columns_wide: int | None) -> Iterator[str]:
    """The entries that cannot be used, each with its reason."""
    if not invalid:
        return
    yield ""
    yield click.style(f"{counted(len(invalid), 'invalid entry', 'invalid entries')}:", fg="red", bold=True)
    columns = (Column("entry", "entry"), Column("reason", "reason", least=20))
    rows = [
        {
            "entry": f"{bad['kind']} {bad['id'] if bad['id'] is not None else '#' + str(bad['index'] + 1)}",
            "reason": f"{bad['reason']}{'' if bad['line'] is None else ' (line ' + str(bad['line']) + ')'}",
        }
        for bad in invalid
    ]
    yield from table(columns, rows, columns_wide)[1:]
