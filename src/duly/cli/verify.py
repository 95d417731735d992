"""`duly verify`: judge a recorded trace, and say what it shows.

The judge reads a trace once; the page (`--html`) and the matching (`--targets`) read it again. Exit codes: 0
nothing is held against the scheduler, 1 a property is violated, 2 the input cannot be judged, is itself at
fault, or has a gap in which nothing was recorded, 70 the checker itself failed. Code 1 is a verdict: no crash
and no Ctrl-C may end with it.
"""

import json
import os
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from duly.cli.output import CommandError, json_option, wants_json
from duly.cli.trace_files import TraceFiles, input_errors, trace_files
from duly.formatting import printable
from duly.verify.cluster import judged_timers, judged_together
from duly.verify.foreign.table import CsvError, lines_from_csv
from duly.verify.judge import judged
from duly.verify.reporting.cluster import cluster_pictures
from duly.verify.reporting.report import Report, TextLine, TextRole, as_dict, text_lines
from duly.verify.reporting.timeline import pictures
from duly.verify.targets import Account, account_of
from duly.verify.trace import header_of

_NOT_WHOLE = "the trace has a fault or a gap, or one of a node is missing; dues and runs cannot be matched"
_OF_TIMERS = "V1 says whether every slot of a timer was answered"
_STYLES: dict[TextRole, dict[str, Any]] = {
    TextRole.GOOD: {"fg": "green"},
    TextRole.BAD: {"fg": "red", "bold": True},
    TextRole.UNSURE: {"fg": "yellow"},
    TextRole.FAINT: {"dim": True},
    TextRole.STRONG: {"bold": True},
}


@click.command("verify")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@json_option
@click.option("--html", "html", metavar="FILE", help="Also write a page with time lines to FILE.")
@click.option("--targets", "is_matched", is_flag=True, help="Also match dues with runs; for clusters always.")
@click.option("--csv-tasks", metavar="FILE", help="TRACE is a CSV of runs, and FILE one of their tasks.")
@click.option("--tz", "zone_name", metavar="ZONE", help="With --csv-tasks: the zone of the cron texts.")
@click.option("--from", "since", metavar="TIME", help="With --csv-tasks: judge from here on.")
@click.option("--until", "until", metavar="TIME", help="With --csv-tasks: judge up to here.")
@click.pass_context
def verify(
    ctx: click.Context,
    *,
    traces: tuple[str, ...],
    html: str | None,
    csv_tasks: str | None,
    zone_name: str | None,
    since: str | None,
    until: str | None,
    is_matched: bool,
) -> None:
    """Check a recorded trace against every property of the model.

    Several files are read one after the other, in the order given, as the parts of one trace: the oldest
    first. Those of the nodes of a cluster are judged together; give those of all nodes. "-" is the
    standard input; what is packed with gzip is unpacked.

        duly verify trace.jsonl.1 trace.jsonl --html page.html

        duly verify one.jsonl two.jsonl three.jsonl --html page.html

        duly verify runs.csv --csv-tasks tasks.csv --tz Europe/Berlin

    Exit code 0: nothing is held against the scheduler. 1: a property is violated. 2: this is no trace, one
    with faults of its own, or one with a gap in which nothing was recorded. 70: the checker itself failed, so
    there is no verdict.
    """
    options = {"--tz": zone_name, "--from": since, "--until": until}
    with _internal_errors(traces):
        with ExitStack() as stack:
            with input_errors():
                _refuse_overwriting(html, (*traces, *filter(None, [csv_tasks])))
                if csv_tasks is None:
                    given = next((name for name, value in options.items() if value is not None), None)
                    if given is not None:  # a trace says its zone and its times itself
                        message = f"{given} is for CSV only: give --csv-tasks too, or leave it out"
                        raise CommandError("unused_option", message)
                    files = trace_files(stack, traces, is_read_twice=is_matched or html is not None)
                    _refuse_half_a_cluster(files)
                else:
                    files = _tables(stack, traces, csv_tasks, options)
            with input_errors(files):
                report = _report(files, is_matched=is_matched)
                if html is not None:
                    draw = cluster_pictures if files.is_cluster else pictures
                    drawn = draw(report, files.lines())
                    from duly.verify.reporting.page import page  # noqa: PLC0415 (it needs an extra)

                    Path(html).write_text(page(report, drawn), encoding="utf-8")
        exit_code = report.exit_code if _is_printed(report) else 2
    ctx.exit(exit_code)


class CheckerError(CommandError):
    """The checker itself failed. There is no verdict, so the exit code is none of those of a verdict."""

    exit_code = 70

    def __init__(self, traces: tuple[str, ...], error: BaseException) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}, line {frame.lineno}"
        said = " ".join(str(error).split())[:200]
        what = f"{type(error).__name__}: {said}" if said else type(error).__name__
        names = ", ".join(f'"{name}"' for name in traces)
        message = f"duly failed on {names} ({what}; {place}); that is a fault of duly, and no verdict"
        super().__init__("internal_error", message, exit_code=self.exit_code)


@contextmanager
def _internal_errors(traces: tuple[str, ...]) -> Iterator[None]:
    """Turn what nobody expected into exit code 70; the 1 of Python, or of click's Abort, says "violated"."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit):
        raise
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None  # as shells do it: 128 and the signal
    except Exception as error:  # MemoryError and RecursionError are among these
        raise CheckerError(traces, error) from error


def _report(source: TraceFiles, *, is_matched: bool) -> Report:
    """Judge it, by itself or with the other nodes of its cluster, and *is_matched* see to its targets."""
    is_of_timers = source.kind == "timers"
    judge = judged_timers if is_of_timers else judged_together if source.is_cluster else judged
    outcome, account = judge(source.lines()), None
    is_whole = not outcome.fault_count and not outcome.gaps and not outcome.is_partial
    why_not = _OF_TIMERS if is_of_timers else "" if is_whole else _NOT_WHOLE
    is_wanted = is_matched or (not why_not and (source.is_cluster or source.is_foreign))
    if is_wanted:
        account = Account(refused=why_not) if why_not else account_of(source.lines())
    return Report(outcome, header_of(1, source.head), source.chain, account)


def _is_printed(report: Report) -> bool:
    """Print the report. Whether that was possible."""
    try:
        if wants_json():
            click.echo(json.dumps(as_dict(report), indent=2))
        else:
            for line in text_lines(report):
                click.echo(_painted(line))
    except OSError as error:
        # A reader that has gone away (`| head`) is nobody to tell.
        if not isinstance(error, BrokenPipeError):
            click.echo(f"error: the report cannot be written: {error.strerror}", err=True)
        return False
    return True


def _painted(line: TextLine) -> str:
    pieces = ((printable(piece.text), _STYLES.get(piece.role)) for piece in line)
    return "".join(click.style(text, **style) if style else text for text, style in pieces)


def _tables(
    stack: ExitStack, traces: tuple[str, ...], tasks_name: str, options: dict[str, str | None]
) -> TraceFiles:
    """The trace that a CSV of runs and one of tasks hold. It is kept in a file: a table may be a pipe."""
    zone = options["--tz"]
    if zone is None:
        raise CommandError("missing_option", "--csv-tasks needs --tz, such as --tz Europe/Berlin")
    if len(traces) != 1:
        raise CommandError("too_many_files", "with --csv-tasks give one CSV of runs; put the rows together")
    with (
        Path(traces[0]).open(newline="", encoding="utf-8") as runs,
        Path(tasks_name).open(newline="", encoding="utf-8") as tasks,
    ):
        copy = stack.enter_context(TemporaryFile(buffering=0))  # noqa: SIM115
        try:
            lines = lines_from_csv(runs, tasks, zone=zone, since=options["--from"], until=options["--until"])
            copy.write(b"".join(lines))
        except CsvError as error:
            raise CommandError("bad_table", str(error), facts={"line": error.line}) from error
    copy.seek(0)
    return TraceFiles([(traces[0], BufferedReader(copy))], is_of_tables=True, is_foreign=True)


def _refuse_half_a_cluster(files: TraceFiles) -> None:
    """Traces of nodes go with those of nodes."""
    if files.is_cluster and "" in files.nodes:
        name = files.files[files.nodes.index("")][0]
        message = f'"{name}" is not of a node of a cluster, and another file is; verify them apart'
        raise CommandError("mixed_traces", message)


def _refuse_overwriting(html: str | None, inputs: tuple[str, ...]) -> None:
    """A page must not be written over what it shows, nor fail after minutes of reading."""
    if html is None:
        return
    target = Path(html)
    if target.exists() and any(os.path.exists(name) and target.samefile(name) for name in inputs):  # noqa: PTH110 ("-")
        message = f'--html would overwrite "{html}", which is to be read; choose another name'
        raise CommandError("would_overwrite", message)
    if target.is_dir() or not target.parent.is_dir():
        message = f'--html cannot write "{html}": choose a file in a folder that exists'
        raise CommandError("unwritable", message)
    if find_spec("jinja2") is None:
        raise CommandError("unwritable", "--html needs jinja2: pip install 'duly[web]'")
