"""`duly why`: why a task or a timer ran, or did not run, at a given minute.

The answer comes from a trace, or less precisely from a store; of a timer, from the daemon's history. None of
it is changed, and a scheduler may be at work on it meanwhile. One sentence for people comes first, then what
started in that minute and why.
"""

import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, tzinfo
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import click

from duly.cli.asking import zone_called
from duly.cli.finding import Place, config_option, default_config, place_of, store_file
from duly.cli.refusals import Refusal, printable, refused_time
from duly.cli.remembered import Memory
from duly.cli.verify import Files
from duly.clock import HostClock
from duly.core.record import COLUMNS, task_from
from duly.core.schedule import Schedule
from duly.cron import CronExpression
from duly.errors import SchedulerError
from duly.places import without_secrets
from duly.store.reading import records_in
from duly.verify.dues import face_at, instant_us
from duly.verify.reasons.answers import Answer, Kind, UnknownTaskError, Words, length_text, run_text
from duly.verify.reasons.arrivals import MOST_COUNTED, Run
from duly.verify.reasons.why import why as why_in_trace
from duly.verify.reasons.why import why_latest
from duly.verify.trace import Trace, TraceError, zone_of

_MOST_RUNS_SHOWN = 20
_DEFAULT_TRACE, _DEFAULT_STORE = "trace.jsonl", "state.db"
_COLOURS = {
    Kind.ANSWERED: "green",
    Kind.MERGED: "yellow",
    Kind.DOWN: "red",
    Kind.PENDING: "yellow",
    Kind.CLEARED: "yellow",
}


class Told(NamedTuple):
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
    "--tz", "zone_name", metavar="ZONE", help="With --store: an IANA zone; the host's if not given."
)
@click.option("-n", "--count", type=click.IntRange(1, 10_000), help="List the answers for the N latest dues.")
@config_option
@click.option("--socket", "socket_path", metavar="PATH", envvar="DULY_SOCKET", help="The daemon's socket.")
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")
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
    as_json: bool,
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
        place = _place_of_timer(task, config_path, socket_path, as_json=as_json)
        if place is not None:
            _answer_for_timer(place, task, at_text, zone_name, count=count, as_json=as_json)
            return
    files, store = _sources((*traces, *(more_traces if traces else ())), store, more_traces, as_json=as_json)
    at = _moment(at_text, as_json=as_json)
    file = None if store is None else store_file(store, as_json=as_json)
    with _refusals(as_json=as_json):
        if file is None:
            if zone_name is not None:
                raise _refused(
                    "unused_option", "--tz is for --store only: a trace says its zone", as_json=as_json
                )
            told = _from_trace(files, task, at, count)
        else:
            told = _from_store(file, task, at, count, zone_called(zone_name, as_json=as_json))
    _print(told, is_list=count is not None, as_json=as_json)


def _place_of_timer(
    name: str, config_path: str | None, socket_path: str | None, *, as_json: bool
) -> Place | None:
    """Where the daemon is that it is about; None if it is about a task."""
    if config_path is not None or socket_path is not None:
        return place_of(config_path, socket_path, as_json=as_json)
    path = default_config()
    if path is None:
        return None
    if not Path(_DEFAULT_TRACE).exists() and not Path(_DEFAULT_STORE).exists():
        return Place(path)  # nothing here knows of tasks
    from duly.cli.timer_why import default_place_with  # noqa: PLC0415 - not for tasks

    return default_place_with(name)


def _answer_for_timer(
    place: Place, name: str, at_text: str | None, zone_name: str | None, *, count: int | None, as_json: bool
) -> None:
    if zone_name is not None:
        message = "--tz is for --store only: a timer's zone is in its configuration"
        raise _refused("unused_option", message, as_json=as_json)
    from duly.cli.timer_why import why_timer  # noqa: PLC0415 - not for tasks

    why_timer(place, name, _moment(at_text, as_json=as_json), count, as_json=as_json)


# --- what is asked ---


def _sources(
    traces: tuple[str, ...], store: str | None, more: tuple[str, ...], *, as_json: bool
) -> tuple[tuple[str, ...], str | None]:
    """Which files to read: those given, or what lies in the current directory."""
    if more and not traces:
        word = without_secrets(more[0])
        message = f'"{word}" is one word too many; files come after --trace, and a name with spaces in quotes'
        raise _refused("too_many_words", message, as_json=as_json)
    if traces and store is not None:
        raise _refused("two_sources", "give --trace or --store, not both", as_json=as_json)
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
    raise _refused("no_source", message, as_json=as_json)


def _moment(text: str | None, *, as_json: bool) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
        # Two days inside what datetime can hold, so that no zone's offset overflows it.
        if not datetime(1, 1, 3) <= moment.replace(tzinfo=None) <= datetime(9999, 12, 29):  # noqa: DTZ001 (faces)
            raise refused_time(text, as_json=as_json)
    except ValueError as error:
        raise refused_time(text, as_json=as_json) from error
    return moment


def _from_trace(names: tuple[str, ...], task: str, at: datetime | None, count: int | None) -> Told:
    with ExitStack() as stack:
        trace = Trace(Files([(name, _opened(stack, name)) for name in names]).lines())
        answers = [why_in_trace(trace, task, at)] if count is None else why_latest(trace, task, count, at)
    return Told(answers, zone_of(trace.header.tz), trace.header.tz)


def _opened(stack: ExitStack, name: str) -> BufferedReader:
    if name != "-":
        return stack.enter_context(Path(name).open("rb"))
    binary: Any = sys.stdin.buffer
    return binary if isinstance(binary, BufferedReader) else BufferedReader(binary)


def _from_store(path: Path, name: str, at: datetime | None, count: int | None, zone: tzinfo) -> Told:
    records = records_in(path)
    index = COLUMNS.index("name")
    record = next((record for record in records if record[index] == name), None)
    if record is None:
        raise UnknownTaskError(name, [str(record[index]) for record in records])
    task = task_from(record, lambda text: Schedule(CronExpression.parse(text), zone))
    memory = Memory(task, zone, instant_us(HostClock().now()))
    return Told([memory.why(at)] if count is None else memory.why_latest(count, at), zone, str(zone))


@contextmanager
def _refusals(*, as_json: bool) -> Iterator[None]:
    """Whatever is wrong with the input becomes a refusal that says what."""
    try:
        yield
    except UnknownTaskError as error:
        raise _unknown(error, as_json=as_json) from error
    except TraceError as error:
        raise _refused("not_a_trace", str(error), as_json=as_json, line=error.line) from error
    except SchedulerError as error:
        raise _refused("unreadable", error.message, as_json=as_json) from error
    except (EOFError, zlib.error) as error:
        message = f"a file packed with gzip cannot be unpacked to its end: {error}"
        raise _refused("unreadable", message, as_json=as_json) from error
    except OSError as error:
        about = f'"{error.filename}": ' if error.filename is not None else ""
        raise _refused("unreadable", f"{about}{error.strerror or error}", as_json=as_json) from error


def _unknown(error: UnknownTaskError, *, as_json: bool) -> Refusal:
    close = [printable(name) for name in error.close]
    return Refusal(
        "unknown_task",
        f'there is no task "{error.task[:200]}" in it',
        facts={"task": error.task, "close": error.close},
        lines=["", f"did you mean {' or '.join(close)}?"] if close else [],
        as_json=as_json,
    )


def _refused(code: str, message: str, *, as_json: bool, **facts: Any) -> Refusal:
    return Refusal(code, message, facts=facts, lines=[], as_json=as_json)


# --- the answer ---


def _print(told: Told, *, is_list: bool, as_json: bool) -> None:
    if as_json:
        shown = [_as_dict(answer, told.zone) for answer in told.answers]
        facts = {"timezone": told.zone_name}
        click.echo(json.dumps(facts | ({"answers": shown} if is_list else shown[0]), indent=2))
        return
    for line in _table(told) if is_list else _lines(told.answers[0], told):
        click.echo(line)


def _lines(answer: Answer, told: Told) -> Iterator[str]:
    words = Words(told.zone)
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
    yield click.style(f"Times are those of {printable(told.zone_name)}.", dim=True)


def _run_line(run: Run, answer: Answer, words: Words) -> str:
    if not answer.is_from_store:
        return f"{words.time(run.started_us)}  {run_text(run, words)}"
    lasted = f" after {length_text(run.ended_us - run.started_us)}" if run.ended_us is not None else ""
    return f"{words.time(run.started_us)}  {run.ending}{lasted}; why it started, a store does not tell"


def _table(told: Told) -> Iterator[str]:
    """One line for each due."""
    words = Words(told.zone)
    for answer in told.answers:
        assert answer.minute_us is not None
        kind = f"{answer.kind}{'?' if answer.is_perhaps else ''}"
        run = f"{words.clock(answer.run.started_us, answer.minute_us)}" if answer.run else ""
        late = length_text(answer.late_us) if answer.late_us is not None else ""
        coloured = click.style(f"{kind:<10}", fg=_COLOURS[answer.kind])
        yield f"{words.time(answer.minute_us)}  {coloured}  {run:<23}  {late:<10}  {answer.reason}".rstrip()
    if not told.answers:
        yield "no dues"
    else:
        yield click.style(f"Times are those of {printable(told.zone_name)}.", dim=True)


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


def _run_as_dict(run: Run, zone: tzinfo) -> dict[str, Any]:
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
