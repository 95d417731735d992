"""`duly timers`: what fires when, what became of it last, and which timers cannot be used.

Also where the timer subsystem is switched on and off in a running daemon.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from duly.cli.completion import ids
from duly.cli.options import unknown_timer
from duly.cli.output import Cell, Column, Row, print_answer, relative_text, result_cell, table, terminal_width
from duly.cli.proxy import DaemonProxy, daemon_options, say_disabled
from duly.formatting import counted, printable

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
_MEMBER = Column("member", "runs on", rank=2, least=10)
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
    ("member", "runs on"),
)


@click.command("timers")
@click.argument("timer_id", metavar="[TIMER]", required=False, shell_complete=ids("timers"))
@click.option("--on/--off", "switch", default=None, help="Switch the timer subsystem of a running daemon.")
@daemon_options
def timers(*, timer_id: str | None, switch: bool | None, daemon: DaemonProxy) -> None:
    """List the timers, or show all about one TIMER.

    When each ran, when it runs next, how its last run ended, and why it last did not run.

    \b
        duly timers
        duly timers backup
        duly timers --json | jq '.timers[] | select(.last_result != "success")'
        duly timers --on        # the subsystem is experimental, and off by default
    """  # noqa: D301 (click's mark for lines to keep)
    if switch is not None:
        done = daemon.act("gate", on=switch)
        print_answer(done, [f"The timer subsystem is {'on' if switch else 'off'}."])
        return
    response = daemon.read("timers")
    if response["status"] == "disabled":
        say_disabled(response["message"])
    if timer_id is None:
        print_answer(response, _listed(response))
        return
    timer = timer_in(response, timer_id)
    print_answer(timer, _lines(timer, _now(response)))


def _now(response: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(response["at"])


def _listed(response: dict[str, Any]) -> Iterator[str]:
    if response["timers"]:
        is_shared = any(timer["member"] for timer in response["timers"])
        columns = (*_COLUMNS, _MEMBER) if is_shared else _COLUMNS
        yield from table(
            columns, [_row(timer, _now(response)) for timer in response["timers"]], terminal_width()
        )
    else:
        yield "No timers."
    yield from _unreadable_lines([timer["fault"] for timer in response["timers"] if timer.get("fault")])
    yield from invalid_lines(response["invalid"], terminal_width())
    if response.get("fault"):
        yield click.style(printable(f"Perhaps old: {response['fault']}"), "yellow")


def _unreadable_lines(faults: list[str]) -> Iterator[str]:
    if faults:
        yield ""
        yield click.style(f"{counted(len(faults), 'unreadable timer')}:", fg="red", bold=True)
    for fault in faults:
        yield f"- {printable(fault)}"


def _enabled_cell(timer: dict[str, Any]) -> Cell:
    if timer.get("fault"):  # an older daemon does not say it
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


def timer_in(response: dict[str, Any], timer_id: str) -> dict[str, Any]:
    """One timer of an answer to "timers". Raises CommandError."""
    for timer in response["timers"]:
        if timer["id"] == timer_id:
            return dict(timer)
    known = [timer["id"] for timer in response["timers"]]
    raise unknown_timer(timer_id, known, [(bad["id"], bad["reason"]) for bad in response["invalid"]])


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
            "reason": f"{bad['reason']}{_where(bad)}",
        }
        for bad in invalid
    ]
    yield from table(columns, rows, columns_wide)[1:]


def _where(bad: dict[str, Any]) -> str:
    line = None if bad["line"] is None else f"line {bad['line']}"
    where = ", ".join(filter(None, (bad.get("file"), line)))  # an older daemon sends no file
    return f" ({where})" if where else ""
