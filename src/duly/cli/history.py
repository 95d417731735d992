"""`duly history`: what ran and what did not, newest first.

With `--store` the history is that of an `App`: the runs of its tasks.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duly.cli.completion import ids
from duly.cli.options import RUN_NUMBER, store_file
from duly.cli.output import (
    Cell,
    Column,
    CommandError,
    Row,
    exit_text,
    print_answer,
    relative_text,
    result_cell,
    table,
    terminal_width,
    utc,
)
from duly.cli.proxy import DaemonProxy, daemon_options
from duly.clock import HostClock
from duly.errors import SchedulerError
from duly.formatting import length, printable
from duly.instant import SECOND_US

if TYPE_CHECKING:
    from duly.store.history import RunRow

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
_RESULTS = ("success", "failure", "timeout", "cancelled", "interrupted")
_MACHINE = Column("machine", "machine", rank=3, least=8)
"""Only where runs of other machines are shown."""


@click.command("history")
@click.argument("id", required=False, shell_complete=ids("services", "timers"))
@click.option(
    "-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many runs."
)
@click.option("--before", type=RUN_NUMBER, metavar="RUN", help="Only runs older than this one.")
@click.option("--shared", type=RUN_NUMBER, metavar="RUN", help="The same for runs in the database.")
@click.option("--service", metavar="ID", help="Only runs of this service.")
@click.option("--timer", metavar="ID", help="Only runs that this timer fired.")
@click.option("--store", metavar="FILE", help="The SQLite store of an App; ID is then a task.")
@click.option("--result", type=click.Choice(_RESULTS), help="Only runs of tasks that ended so.")
@click.option("--traceback", "with_traceback", is_flag=True, help="Show what failed runs of tasks raised.")
@daemon_options
def history(
    *,
    id: str | None,  # noqa: A002 (the word for it)
    count: int,
    before: int | None,
    shared: int | None,
    service: str | None,
    timer: str | None,
    store: str | None,
    result: str | None,
    with_traceback: bool,
    daemon: DaemonProxy,
) -> None:
    """List what ran, newest first, of a service or timer ID or of all; and what timers missed, and why.

    With --store it lists the runs of the tasks of an App that have ended.

    \b
        duly history
        duly history --store state.db sync_contacts --result failure --traceback
        duly history backup -n 50
        duly history backup --json | jq '.runs[] | select(.result != "success")'
    """  # noqa: D301 (click's mark for lines to keep)
    if id is not None and (service is not None or timer is not None):
        raise click.UsageError("give an ID, or --service and --timer, not both")
    if store is not None:
        if any(option is not None for option in (before, shared, service, timer)):
            raise click.UsageError(
                "--store goes with an ID, -n, --result and --traceback, and no other option"
            )
        _print_task_runs(store, id, result, count, with_traceback=with_traceback)
        return
    if result is not None or with_traceback:
        raise click.UsageError("--result and --traceback are for the runs of tasks: give --store FILE")
    response = daemon.read(
        "history", id=id, limit=count, before=before, shared=shared, service=service, timer=timer
    )
    print_answer(response, _lines(response, is_page=(before or shared) is not None))


def _lines(response: dict[str, Any], *, is_page: bool) -> Iterator[str]:
    now = datetime.fromisoformat(response["at"])
    rows = [(run["started_at"], 1, _run_row(run, now)) for run in response["runs"]]
    newest = max((_moment(at) for at, _, _ in rows), default=None) if is_page else None
    # Where runs are left out, misses of that time would stand among runs that are not shown.
    oldest = min((_moment(at) for at, _, _ in rows), default=None) if response["more"] else None
    rows += [
        (miss["at"], 0, _miss_row(miss, now))
        for miss in response["misses"]
        if (oldest is None or _moment(miss["at"]) >= oldest)
        and (newest is None or _moment(miss["at"]) <= newest)
    ]
    rows.sort(key=lambda row: (_moment(row[0]), row[1]), reverse=True)
    if rows:
        is_remote = any(run.get("machine") for run in response["runs"])
        columns = (_COLUMNS[0], _MACHINE, *_COLUMNS[1:]) if is_remote else _COLUMNS
        yield from table(columns, [row for _, _, row in rows], terminal_width())
    else:
        yield "Nothing has run on this machine." if response.get("fault") else "Nothing has run yet."
    if response["more"]:
        older = response.get("older") or {"before": response["runs"][-1]["id"]}
        how = " ".join(f"--{name} {number}" for name, number in older.items() if number)
        yield click.style(f"There are older ones: {how}", dim=True)
    if response.get("fault"):
        yield click.style(printable(f"Not complete: {response['fault']}"), "yellow")


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _run_row(run: dict[str, Any], now: datetime) -> Row:
    lasted = run["duration_s"]
    if lasted is None:
        lasted = (now - _moment(run["started_at"])).total_seconds()
    return {
        "run": str(run["id"]),
        "machine": run.get("machine") or "here",
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
        "machine": "here",
        "service": "-",
        "timer": miss["timer"],
        "reason": "-",
        "started": relative_text(miss["at"], now),
        "lasted": "-",
        "result": Cell("missed", "yellow"),
        "exit": "-",
        "message": miss["reason"],
    }


# --- the runs of tasks ---

_TASK_COLUMNS = (
    Column("run", "run", right=True),
    Column("task", "task", rank=1, least=10),
    Column("cause", "cause", rank=4),
    Column("attempt", "attempt", right=True, rank=5),
    Column("started", "started"),
    Column("lasted", "lasted", rank=2),
    Column("result", "result"),
    Column("node", "node", rank=6, least=8),
    Column("error", "error", rank=3, least=10),
)


def _print_task_runs(
    store: str, name: str | None, result: str | None, count: int, *, with_traceback: bool
) -> None:
    from duly.store.history import WantedTaskRuns  # noqa: PLC0415 - not for --help
    from duly.store.reading import read  # noqa: PLC0415

    wanted = WantedTaskRuns(name, result, limit=count)
    try:
        rows = read(store_file(store), lambda reader: reader.task_runs(wanted))
    except SchedulerError as error:
        raise CommandError("unreadable", error.message) from error
    now = HostClock().now()
    answer = {"at": now.isoformat(), "store": store, "runs": [_task_run_json(row) for row in rows]}
    print_answer(answer, _task_run_lines(rows, now, with_traceback=with_traceback))


def _task_run_json(row: "RunRow") -> dict[str, Any]:
    return {
        "id": row.id,
        "task": row.service,
        "node": row.node,
        "run_id": row.run_id,
        "cause": row.reason,
        "scheduled": utc(row.scheduled_us),
        "started": utc(row.started_us),
        "ended": utc(row.ended_us),
        "duration_s": None if row.lasted_us is None else row.lasted_us / SECOND_US,
        "attempt": row.attempt,
        "result": row.result,
        "error": row.message or None,
        "traceback": row.output or None,
    }


def _task_run_lines(rows: "Sequence[RunRow]", now: datetime, *, with_traceback: bool) -> Iterator[str]:
    if not rows:
        yield "No such run has ended yet, or it is no longer kept. The store of a Scheduler has no history."
        return
    yield from table(_TASK_COLUMNS, [_task_run_row(row, now) for row in rows], terminal_width())
    for row in rows if with_traceback else ():
        if row.output:
            yield ""
            yield click.style(f"run {row.id} of {printable(row.service)}:", bold=True)
            yield from (printable(line) for line in row.output.splitlines())


def _task_run_row(row: "RunRow", now: datetime) -> Row:
    return {
        "run": str(row.id),
        "task": row.service,
        "cause": row.reason or "-",
        "attempt": str(row.attempt or "-"),
        "started": relative_text(utc(row.started_us), now),
        "lasted": "-" if row.lasted_us is None else length(row.lasted_us / SECOND_US),
        "result": result_cell(row.result, is_running=False),
        "node": row.node or "-",
        "error": row.message or "-",
    }
