"""`duly why`: why a task or a timer ran, or did not run, at a given minute.

The answer comes from a trace, or less precisely from a store; of a timer, from the daemon's history. None of
it is changed, and a scheduler may be at work on it meanwhile. One sentence for people comes first, then what
started in that minute and why.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

import click

from duly.cli.options import config_option, default_config, moment_of, refused_time, store_file, zone_called
from duly.cli.output import CommandError, json_option, print_answer, times_are_those_of
from duly.cli.proxy import DaemonProxy, socket_option
from duly.cli.trace_files import TraceFiles, input_errors, open_input
from duly.clock import HostClock
from duly.core.record import COLUMNS, task_from
from duly.core.timetable import Timetables
from duly.core.timing import parts_of
from duly.errors import SchedulerError
from duly.formatting import printable, spelled_length, suggestion
from duly.places import without_secrets
from duly.store.reading import records_in
from duly.verify.dues import face_at, instant_us
from duly.verify.reasons.answers import Answer, Kind, UnknownTaskError, Words, run_text
from duly.verify.reasons.chronicle import MOST_COUNTED, TracedRun
from duly.verify.reasons.why import why as why_in_trace
from duly.verify.reasons.why import why_latest
from duly.verify.trace import Trace, zone_of
from duly.web.task_memory import TaskMemory

_MOST_RUNS_SHOWN = 20
_DEFAULT_TRACE, _DEFAULT_STORE = "trace.jsonl", "state.db"
_COLOURS = {
    Kind.ANSWERED: "green",
    Kind.MERGED: "yellow",
    Kind.DOWN: "red",
    Kind.PENDING: "yellow",
    Kind.CLEARED: "yellow",
}


class WhyAnswers(NamedTuple):
    """The answers, and by whose clocks their times are."""

    answers: list[Answer]
    zone: tzinfo
    zone_name: str


@click.command("why")
@click.argument("task", metavar="NAME")
@click.argument("more_traces", nargs=-1, metavar="")
@click.option("--at", "at_text", metavar="TIME", help="An ISO time; the latest due if not given.")
@click.option(
    "--trace", "traces", multiple=True, metavar="FILE...", help="A recorded trace; oldest file first."
)
@click.option("--store", metavar="FILE", help="A SQLite store, if there is no trace.")
@click.option(
    "--tz",
    "zone_name",
    metavar="ZONE",
    help="With --store: an IANA zone; the task's own or the host's if not given.",
)
@click.option("-n", "--count", type=click.IntRange(1, 10_000), help="List the answers for the N latest dues.")
@config_option
@socket_option
@json_option
def why(
    *,
    task: str,
    more_traces: tuple[str, ...],
    at_text: str | None,
    traces: tuple[str, ...],
    store: str | None,
    zone_name: str | None,
    count: int | None,
    config_path: str | None,
    socket_path: str | None,
) -> None:
    """Say why the timer or task NAME ran, or did not run, at a given minute.

    A time without an offset is meant as the clocks of the zone show it.

    \b
        duly why backup --at 2026-03-29T02:30
        duly why backup -c duly.toml -n 10
        duly why backup --at 2026-03-29T02:30 --trace trace.jsonl.1 trace.jsonl
        duly why backup --store state.db -n 10

    With --trace or --store it is about a task of a scheduler; with --config or --socket, about a timer of a
    daemon. With none of them it is about the timer NAME of duly.toml or duly.py in the current directory, if
    there is one; else about a task, and trace.jsonl is read, or else state.db.
    """  # noqa: D301 (click's mark for lines to keep)
    if not traces and store is None and not more_traces:
        daemon = _daemon_of_timer(task, config_path, socket_path)
        if daemon is not None:
            if zone_name is not None:
                message = "--tz is for --store only: a timer's zone is in its configuration"
                raise CommandError("unused_option", message)
            from duly.cli.timer_why import why_timer  # noqa: PLC0415 - not for tasks

            why_timer(daemon, task, _moment(at_text), count)
            return
    files, store = _sources((*traces, *(more_traces if traces else ())), store, more_traces)
    at = _moment(at_text)
    file = None if store is None else store_file(store)
    with _refusals():
        if file is None:
            if zone_name is not None:
                raise CommandError("unused_option", "--tz is for --store only: a trace says its zone")
            result = _from_trace(files, task, at, count)
        else:
            result = _from_store(file, task, at, count, None if zone_name is None else zone_called(zone_name))
    shown = [_as_dict(answer, result.zone) for answer in result.answers]
    print_answer(
        {"timezone": result.zone_name} | ({"answers": shown} if count is not None else shown[0]),
        _table(result) if count is not None else _lines(result.answers[0], result),
        ensure_ascii=True,
    )


def _daemon_of_timer(name: str, config_path: str | None, socket_path: str | None) -> DaemonProxy | None:
    """The daemon that it is about; None if it is about a task."""
    daemon = DaemonProxy(config_path, socket_path)
    if config_path is not None or socket_path is not None:
        return daemon
    if default_config() is None:
        return None
    if not Path(_DEFAULT_TRACE).exists() and not Path(_DEFAULT_STORE).exists():
        return daemon  # nothing here knows of tasks
    from duly.cli.timer_why import has_timer  # noqa: PLC0415 - not for tasks

    return daemon if has_timer(daemon, name) else None


# --- what is asked ---


def _sources(
    traces: tuple[str, ...], store: str | None, more: tuple[str, ...]
) -> tuple[tuple[str, ...], str | None]:
    """Which files to read: those given, or what lies in the current directory."""
    if more and not traces:
        word = without_secrets(more[0])
        message = f'"{word}" is one word too many; files come after --trace, and a name with spaces in quotes'
        raise CommandError("too_many_words", message)
    if traces and store is not None:
        raise CommandError("two_sources", "give --trace or --store, not both")
    if traces or store is not None:
        return traces, store
    if Path(_DEFAULT_TRACE).exists():
        return (_DEFAULT_TRACE,), None
    if Path(_DEFAULT_STORE).exists():
        return (), _DEFAULT_STORE
    message = (
        f"there is neither {_DEFAULT_TRACE} nor {_DEFAULT_STORE} here; "
        "give a recorded trace with --trace FILE, or a store with --store FILE"
    )
    raise CommandError("no_source", message)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = moment_of(text)
    # Two days inside what datetime can hold, so that no zone's offset overflows it.
    if not datetime(1, 1, 3) <= moment.replace(tzinfo=None) <= datetime(9999, 12, 29):  # noqa: DTZ001 (faces)
        raise refused_time(text)
    return moment


def _from_trace(names: tuple[str, ...], task: str, at: datetime | None, count: int | None) -> WhyAnswers:
    with ExitStack() as stack:
        files = TraceFiles([(name, open_input(stack, name)) for name in names])
        with input_errors(files):
            trace = Trace(files.lines())
            answers = [why_in_trace(trace, task, at)] if count is None else why_latest(trace, task, count, at)
    return WhyAnswers(answers, zone_of(trace.header.tz), trace.header.tz)


def _from_store(
    path: Path, name: str, at: datetime | None, count: int | None, zone: tzinfo | None
) -> WhyAnswers:
    records = records_in(path)
    index = COLUMNS.index("name")
    record = next((record for record in records if record[index] == name), None)
    if record is None:
        raise UnknownTaskError(name, [str(record[index]) for record in records])
    task = task_from(record, Timetables(zone or UTC).of)
    zone = zone or parts_of(task.schedule.text).zone or zone_called(None)
    memory = TaskMemory(task, zone, instant_us(HostClock().now()))
    return WhyAnswers([memory.why(at)] if count is None else memory.why_latest(count, at), zone, str(zone))


@contextmanager
def _refusals() -> Iterator[None]:
    """Whatever is wrong with the input becomes an error that says what."""
    try:
        with input_errors():
            yield
    except UnknownTaskError as error:
        raise CommandError(
            "unknown_task",
            f'there is no task "{error.task[:200]}" in it',
            hint=suggestion(error.close),
            facts={"task": error.task, "close": error.close},
        ) from error
    except SchedulerError as error:
        raise CommandError("unreadable", error.message) from error


# --- the answer ---


def _lines(answer: Answer, result: WhyAnswers) -> Iterator[str]:
    words = Words(result.zone)
    yield click.style(printable(answer.sentence), bold=True)
    for detail in answer.details:
        yield printable(detail)
    if answer.runs:
        yield ""
        yield "Started in that minute:"
        yield from (f"  {_run_line(run, answer, words)}" for run in answer.runs[:_MOST_RUNS_SHOWN])
        if (left := len(answer.runs) - _MOST_RUNS_SHOWN) > 0:
            yield f"  and {left:,} more"
    if answer.run is not None and answer.run not in answer.runs:
        yield ""
        yield "The run that answered it:"
        yield f"  {_run_line(answer.run, answer, words)}"
    yield ""
    yield times_are_those_of(result.zone_name)


def _run_line(run: TracedRun, answer: Answer, words: Words) -> str:
    if not answer.is_from_store:
        return f"{words.time(run.started_us)}  {run_text(run, words)}"
    lasted = f" after {spelled_length(run.ended_us - run.started_us)}" if run.ended_us is not None else ""
    return f"{words.time(run.started_us)}  {run.ending}{lasted}; why it started, a store does not say"


def _table(result: WhyAnswers) -> Iterator[str]:
    """One line for each due."""
    words = Words(result.zone)
    for answer in result.answers:
        assert answer.minute_us is not None
        kind = f"{answer.kind}{'?' if answer.is_perhaps else ''}"
        run = f"{words.clock(answer.run.started_us, answer.minute_us)}" if answer.run else ""
        late = spelled_length(answer.late_us) if answer.late_us is not None else ""
        coloured = click.style(f"{kind:<10}", fg=_COLOURS[answer.kind])
        yield f"{words.time(answer.minute_us)}  {coloured}  {run:<23}  {late:<10}  {answer.reason}".rstrip()
    yield times_are_those_of(result.zone_name) if result.answers else "no dues"


def _as_dict(answer: Answer, zone: tzinfo) -> dict[str, Any]:
    return {
        "task": answer.task,
        "kind": str(answer.kind),
        "reason": answer.reason,
        "sentence": answer.sentence,
        "details": list(answer.details),
        "perhaps": answer.is_perhaps,
        "source": "store" if answer.is_from_store else "trace",
        "cron": answer.cron,
        "at": _time(answer.minute_us, zone),
        "due": _time(answer.minute_us, zone) if answer.is_due else None,
        "run": _run_as_dict(answer.run, zone) if answer.run else None,
        "late_ms": answer.late_us / 1000 if answer.late_us is not None else None,
        "dues_answered": min(answer.dues_answered, MOST_COUNTED),
        "more_dues": answer.dues_answered > MOST_COUNTED,
        "times": {name: _time(at_us, zone) for name, at_us in answer.times.items()},
        "runs": [_run_as_dict(run, zone) for run in answer.runs],
    }


def _run_as_dict(run: TracedRun, zone: tzinfo) -> dict[str, Any]:
    return {
        "started": _time(run.started_us, zone),
        "ended": _time(run.ended_us, zone),
        "ending": str(run.ending),
        "number": run.number,
        "causes": [
            {
                "kind": str(cause.kind),
                "at": _time(cause.at_us, zone),
                "last": _time(cause.last_us, zone),
                "count": cause.count,
                "perhaps": cause.is_perhaps,
            }
            for cause in run.causes
        ],
    }


def _time(at_us: int | None, zone: tzinfo) -> str | None:
    return face_at(at_us, zone).isoformat() if at_us is not None else None
