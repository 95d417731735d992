"""`duly cluster`: the nodes of a cluster, what each runs, failovers, tasks, and the runs of all nodes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.options import RUN_NUMBER
from duly.cli.output import (
    Cell,
    Column,
    CommandError,
    Row,
    json_option,
    print_answer,
    relative,
    result_cell,
    table,
    terminal_width,
    untried,
    utc,
    wants_json,
)
from duly.cluster.table import (
    Nodes,
    NodeView,
    PastRun,
    ReadNodes,
    ReadRuns,
    ReadTasks,
    RemoveOne,
    SetPaused,
    TableRequest,
    TaskView,
    row_name,
    run_request,
)
from duly.daemon.protocol import EXITS, NOT_FOUND, UNREACHABLE
from duly.errors import SchedulerError, TaskNotFoundError
from duly.formatting import counted, length, printable
from duly.instant import NEVER_US, SECOND_US, Instant, datetime_at
from duly.places import PlaceError, StoreKind, kind_of

if TYPE_CHECKING:
    from duly.cluster.postgres import PostgresStore
    from duly.cluster.postgres_table import PostgresTable

_NODES = (
    Column("name", "node", least=12),
    Column("state", "state"),
    Column("runs", "runs", right=True),
    Column("lag", "lag", rank=1, right=True),
    Column("heartbeat", "heartbeat", rank=2),
    Column("version", "version", rank=4),
    Column("joined", "joined", rank=3),
)
_RUNS = (
    Column("run", "run", right=True),
    Column("task", "task", least=10),
    Column("node", "node", rank=2, least=8),
    Column("cause", "cause", rank=4),
    Column("started", "started"),
    Column("lasted", "lasted", rank=1),
    Column("result", "result"),
    Column("error", "error", rank=3, least=10),
)
_NAMES_SHOWN = 5
_FAILOVERS_SHOWN = 10


class _ShowsByDefault(click.Group):
    """A group whose first word may be left out: `duly cluster STORE` shows the cluster."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put in the word that was left out."""
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group("cluster", cls=_ShowsByDefault)
def cluster() -> None:
    """Show a cluster on PostgreSQL; run, pause, resume or remove one of its tasks.

    STORE is an address such as postgresql://host/database, or the file of a daemon (duly.toml, duly.py) whose
    store is such an address. It can be given in the environment, as DULY_STORE. Others can see a password in
    an argument (ps), but neither one in the environment nor one that PostgreSQL finds itself, in PGPASSWORD
    or in a password file. Looking needs read rights only.

    \b
        duly cluster postgresql://db.example/app
        duly cluster --namespace billing --task "nightly report" postgresql://db.example/app
        duly cluster history postgresql://db.example/app
        duly cluster pause "nightly report" postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)


def _cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        json_option,
        click.option("--namespace", metavar="NAME", help="The namespace; the address's, or 'default'."),
        click.argument("store", envvar="DULY_STORE", metavar="STORE"),
    ):
        command = option(command)
    return command


@cluster.command("show")
@_cluster_options
@click.option("--task", "task_name", metavar="NAME", help="Also show this task: when it is due, who runs it.")
def show(*, store: str, namespace: str | None, task_name: str | None) -> None:
    """Show the nodes on STORE, what each runs, and the failovers of the last day.

    \b
        duly cluster show postgresql://db.example/app
        DULY_STORE=postgresql://db.example/app duly cluster show --task "nightly report"
    """  # noqa: D301 (click's mark for lines to keep)
    with _connected(store, namespace) as (place, asked, _):
        now_us, nodes = asked.do(ReadNodes())
        tasks = [] if task_name is None else asked.do(ReadTasks(name=row_name(task_name)))
        if task_name is not None and not tasks:
            raise place.not_found(task_name, asked.do(ReadTasks()))
    print_answer(
        cluster_json(place.namespace, now_us, nodes, tasks),
        cluster_lines(place.namespace, now_us, nodes, tasks, terminal_width()),
    )


@cluster.command("history")
@_cluster_options
@click.option("--task", "task_name", metavar="NAME", help="Only runs of this task.")
@click.option(
    "-n", "--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many runs."
)
@click.option("--before", type=RUN_NUMBER, metavar="RUN", help="Only runs older than this one.")
def history(
    *, store: str, namespace: str | None, task_name: str | None, count: int, before: int | None
) -> None:
    """List the runs of all nodes on STORE that have ended, newest first.

    \b
        duly cluster history postgresql://db.example/app
        duly cluster history --task "nightly report" -n 50 postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)
    name = None if task_name is None else row_name(task_name)
    with _connected(store, namespace) as (place, asked, scheduler_id):
        now_us, _ = asked.do(ReadNodes())
        runs = asked.do(ReadRuns(name=name, before=before, limit=count, with_output=wants_json()))
    of_tasks = None if _is_daemon(store) else scheduler_id
    print_answer(
        history_json(place.namespace, now_us, runs, of_tasks),
        history_lines(now_us, runs, terminal_width(), count=count),
    )


@cluster.command("pause")
@click.argument("name")
@_cluster_options
def pause(*, name: str, store: str, namespace: str | None) -> None:
    """Pause the task NAME on all nodes: what comes due waits. A run of it goes on.

    \b
        duly cluster pause "nightly report" postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)
    _set_paused(name, store, namespace, is_paused=True)


@cluster.command("resume")
@click.argument("name")
@_cluster_options
def resume(*, name: str, store: str, namespace: str | None) -> None:
    """Let the paused task NAME go on. If it came due meanwhile, it runs once, at once.

    \b
        duly cluster resume "nightly report" postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)
    _set_paused(name, store, namespace, is_paused=False)


def _set_paused(name: str, store: str, namespace: str | None, *, is_paused: bool) -> None:
    request = SetPaused(name=row_name(name), is_paused=is_paused)
    _carry_out(name, request, store, namespace)
    said = f"{printable(name)} is {'paused' if is_paused else 'not paused any more'}."
    print_answer({"done": True, "task": name, "paused": is_paused}, [said])


@cluster.command("run")
@click.argument("name")
@_cluster_options
def run(*, name: str, store: str, namespace: str | None) -> None:
    """Have the task NAME run now, on whichever node has it. The timers of daemons have `duly trigger`.

    \b
        duly cluster run "nightly report" postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)
    if _is_daemon(store):
        raise click.UsageError("the timers of a daemon are started with duly trigger")
    _carry_out(name, run_request(name, time.time_ns()), store, namespace)  # noqa: TID251 (any number will do)
    print_answer({"done": True, "task": name}, [f"{printable(name)} runs as soon as a node can."])


@cluster.command("remove")
@click.argument("name")
@_cluster_options
def remove(*, name: str, store: str, namespace: str | None) -> None:
    """Remove the task NAME from all nodes. A run of it goes on.

    It comes back as a new task when a node starts that has it in its list, so change the program first.

    \b
        duly cluster remove "nightly report" postgresql://db.example/app
    """  # noqa: D301 (click's mark for lines to keep)
    _carry_out(name, RemoveOne(name=row_name(name)), store, namespace)
    print_answer({"done": True, "task": name}, [f"{printable(name)} is removed."])


def _carry_out(name: str, request: TableRequest[bool], store: str, namespace: str | None) -> None:
    with _connected(store, namespace) as (place, asked, _):
        if not asked.do(request):
            raise place.not_found(name, asked.do(ReadTasks()))


# --- the database ---


@contextmanager
def _connected(store: str, namespace: str | None) -> "Iterator[tuple[PostgresStore, PostgresTable, str]]":
    """A connection to the cluster that *store* means, and the cluster's scheduler id.

    Raises CommandError, also for what fails inside.
    """
    try:
        place = _place_of(store, namespace)
        if place is None:
            raise CommandError(
                "no-cluster",
                # It is not repeated: it may be an address with a password that lacks its beginning.
                "a file belongs to one scheduler at a time; give an address such as postgresql://host/database",
            )
        with closing(place.table(is_reader=True)) as asked:
            yield place, asked, asked.open(place.name, "")
    except PlaceError as error:
        raise CommandError("no-cluster", error.reason) from error
    except TaskNotFoundError as error:
        close = error.details["close"]
        raise CommandError(
            NOT_FOUND, error.message, exit_code=EXITS[NOT_FOUND], facts={"close": close}
        ) from error
    except (SchedulerError, ValueError, ImportError) as error:
        message = untried(error)
        raise CommandError(UNREACHABLE, message, exit_code=EXITS[UNREACHABLE]) from error


def _is_daemon(store: str) -> bool:
    return store.endswith((".toml", ".py"))


def _place_of(store: str, namespace: str | None) -> "PostgresStore | None":
    """The store of a cluster; None if it is a file."""
    url, schema = store, "duly"
    if _is_daemon(store):
        from duly.config.loading import load_to_run  # noqa: PLC0415 - not for --help
        from duly.config.schema import database_of  # noqa: PLC0415
        from duly.daemon.sharing import SCHEMA  # noqa: PLC0415

        database = database_of(load_to_run(Path(store)))
        if database is None:
            return None
        url, schema = database.secret, SCHEMA
    elif kind_of(store) is not StoreKind.DATABASE:
        return None
    from duly.cluster.postgres import PostgresStore  # noqa: PLC0415 - not every user has psycopg

    return PostgresStore(url, namespace=namespace, schema=schema)


# --- for machines ---


def cluster_json(
    namespace: str, now_us: Instant, nodes: Sequence[NodeView], tasks: Sequence[TaskView]
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "at": utc(now_us),
        "namespace": namespace,
        "nodes": [
            {
                "name": node.name,
                "state": node.state(now_us),
                "runs": list(node.runs) if node.fenced_us is None else [],
                "lag_ms": node.lag_us // 1_000,
                "heartbeat_age_s": (now_us - node.seen_us) / SECOND_US,
                "lease_s": node.lease_us / SECOND_US,
                "version": node.version,
                "joined": utc(node.joined_us),
            }
            for node in nodes
        ],
        "failovers": [
            {"at": utc(node.fenced_us), "node": node.name, "by": node.fenced_by, "runs": list(node.runs)}
            for node in Nodes(now_us, nodes).failovers
        ],
    }
    if tasks:
        task = tasks[0]
        answer["task"] = {
            "name": task.name,
            "due": utc(task.wake_us),
            "paused": task.paused,
            "run_by": task.run_by,
            "started": utc(task.started_us),
            "token": task.token,
            "interruptions": task.interruptions,
        }
    return answer


def history_json(
    namespace: str, now_us: Instant, runs: Sequence[PastRun], scheduler_id: str | None
) -> dict[str, Any]:
    """Past runs as JSON: of tasks, or of the timers of daemons, which have no *scheduler_id*."""
    shown = [
        {
            "id": past.id,
            "task": past.name,
            "node": past.node,
            "run_id": _run_id(past, scheduler_id),
            "token": past.token,
            "cause": past.run.cause,
            "scheduled": utc(past.run.scheduled_us),
            "started": utc(past.started_us),
            "ended": utc(past.run.ended_us),
            "duration_s": _lasted_s(past),
            "attempt": past.run.attempt,
            "result": past.run.result,
            "error": past.run.error,
            "traceback": None if scheduler_id is None else past.run.output,
        }
        for past in runs
    ]
    return {"at": utc(now_us), "namespace": namespace, "runs": shown}


def _run_id(past: PastRun, scheduler_id: str | None) -> str:
    """The id that a body could read: the history has its origin. Timers have numbers, which stay."""
    if scheduler_id is None or not past.run.run_id:
        return past.run.run_id
    from duly.engine.tasks import run_id_from  # noqa: PLC0415 - not for --help

    return str(run_id_from(scheduler_id, past.name, int(past.run.run_id)))


# --- for people ---


def cluster_lines(
    namespace: str,
    now_us: Instant,
    nodes: Sequence[NodeView],
    tasks: Sequence[TaskView],
    columns_wide: int | None,
) -> list[str]:
    present = Nodes(now_us, nodes).present
    silent = sum(node.state(now_us) == "silent" for node in present)
    runs = sum(len(node.runs) for node in present)
    summary = f"Namespace {printable(namespace)}: {counted(len(present), 'node')}, {counted(runs, 'run')}"
    lines = [f"{summary}; {counted(silent, 'node')} silent." if silent else f"{summary}."]
    if present:
        lines += ["", *table(_NODES, [_node_row(node, now_us) for node in present], columns_wide)]
    if runs:
        lines += ["", *(f"{printable(node.name)} runs {_names(node.runs)}" for node in present if node.runs)]
    if failovers := Nodes(now_us, nodes).failovers:
        lines += ["", *(_failover_line(node, now_us) for node in failovers[:_FAILOVERS_SHOWN])]
    if tasks:
        lines += ["", _task_line(tasks[0], now_us)]
    return lines


def history_lines(
    now_us: Instant, runs: Sequence[PastRun], columns_wide: int | None, *, count: int
) -> list[str]:
    if not runs:
        return ["Nothing has run yet, or not lately."]
    lines = table(_RUNS, [_run_row(past, now_us) for past in runs], columns_wide)
    if len(runs) == count:
        lines.append(click.style(f"There may be older ones: --before {runs[-1].id}", dim=True))
    return lines


def _node_row(node: NodeView, now_us: Instant) -> Row:
    state = node.state(now_us)
    return {
        "name": Cell(node.name, dim=state == "silent"),
        "state": Cell(state, "green" if state == "living" else "red"),
        "runs": str(len(node.runs)),
        "lag": length(node.lag_us / SECOND_US),
        "heartbeat": f"{length(max(now_us - node.seen_us, 0) / SECOND_US)} ago",
        "version": node.version,
        "joined": _when(node.joined_us, now_us),
    }


def _failover_line(node: NodeView, now_us: Instant) -> str:
    taken = f"its runs start once more: {_names(node.runs)}" if node.runs else "it ran nothing."
    by = printable(node.fenced_by or "another node")
    return f"Failover {_when(node.fenced_us, now_us)}: {printable(node.name)} was fenced by {by}; {taken}"


def _task_line(task: TaskView, now_us: Instant) -> str:
    if task.run_by is not None:
        begun = f"begun {_when(task.started_us, now_us)}, token {task.token}"
        doing = f"runs on {printable(task.run_by)}, {begun}"
    elif task.wake_us >= NEVER_US:
        doing = "is never due"
    else:
        doing = f"is due {_when(task.wake_us, now_us)}" if task.wake_us > now_us else "is due"
    paused = "; it is paused" if task.paused else ""
    times = "once" if task.interruptions == 1 else f"{task.interruptions} times in a row"
    cut = f"; it was cut off {times}" if task.interruptions else ""
    return f"{printable(task.name)} {doing}{paused}{cut}."


def _run_row(past: PastRun, now_us: Instant) -> Row:
    return {
        "run": str(past.id),
        "task": past.name,
        "node": past.node,
        "cause": past.run.cause,
        "started": _when(past.started_us, now_us),
        "lasted": length(_lasted_s(past)),
        "result": result_cell(past.run.result, is_running=False),
        "error": past.run.error or "-",
    }


def _lasted_s(past: PastRun) -> float:
    return max(past.run.ended_us - past.run.called_us, 0) / SECOND_US


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_NAMES_SHOWN])
    rest = len(names) - _NAMES_SHOWN
    return f"{shown} and {rest} more." if rest > 0 else f"{shown}."


def _when(at_us: Instant | None, now_us: Instant) -> str:
    return relative(None if at_us is None else datetime_at(at_us, UTC), datetime_at(now_us, UTC))
