"""`duly verify`: judge a recorded trace, and tell what it shows.

Reading is streaming: a trace of any length passes through without being kept. Only the page (`--html`) reads
it a second time, so what can be read only once (a pipe) is then kept in a temporary file. Exit codes: 0
nothing is held against the scheduler, 1 a property is violated, 2 the input cannot be judged, is itself at
fault, or has a gap in which nothing was recorded, 70 the checker itself failed. Code 1 is a verdict: no crash
and no Ctrl-C may end with it.
"""

import errno
import json
import os
import stat
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from gzip import BadGzipFile, GzipFile
from importlib.util import find_spec
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any

import click
import msgspec

from duly.cli.output import CommandError, json_option, unreadable, wants_json
from duly.formatting import printable
from duly.verify.cluster import judged_timers, judged_together
from duly.verify.foreign.table import CsvError, lines_from_csv
from duly.verify.judge import judged
from duly.verify.reporting.cluster import cluster_pictures
from duly.verify.reporting.report import Chain, Report, TextLine, TextRole, as_dict, text_lines
from duly.verify.reporting.timeline import pictures
from duly.verify.targets import Account, account_of
from duly.verify.trace import Header, TraceError, header_of

_LONGEST_LINE_BYTES = 1 << 26
_PROGRESS_FROM_BYTES = 20_000_000
_PROGRESS_EVERY_LINES = 20_000
_NOT_WHOLE = "the trace has a fault or a gap, or one of a node is missing; dues and runs cannot be matched"
_OF_TIMERS = "V1 says whether every slot of a timer was answered"
_GZIP_MAGIC = b"\x1f\x8b"
_STYLES: dict[TextRole, dict[str, Any]] = {
    TextRole.GOOD: {"fg": "green"},
    TextRole.BAD: {"fg": "red", "bold": True},
    TextRole.UNSURE: {"fg": "yellow"},
    TextRole.FAINT: {"dim": True},
    TextRole.STRONG: {"bold": True},
}


@dataclass(slots=True)
class Files:
    """The files of one trace, read in order; *chain* learns which line stands in which of them."""

    files: list[tuple[str, BufferedReader]]
    advance: Callable[[int], object] = lambda _: None
    chain: Chain = field(default_factory=Chain)
    nodes: tuple[str | None, ...] = ()
    """The node of a cluster that wrote each file: empty if none did, None if the header cannot be read."""
    kind: str = "tasks"
    """What the first is about. If another is about something else, the judge says so."""
    is_of_tables: bool = False
    """Whether it was made of CSV tables: then its lines are called events, and stand in no file."""
    head: bytes = b""
    """The first line of all that is not blank: known when it has been read."""
    _was_read: bool = False

    @property
    def is_cluster(self) -> bool:
        return any(self.nodes)

    @property
    def is_rereadable(self) -> bool:
        """Whether all of them are files, and not pipes."""
        return all(file.seekable() for _, file in self.files)

    def lines(self) -> Iterator[bytes]:
        """Every line of every file. Going back to the first is possible for files, and not for pipes."""
        is_again, self._was_read = self._was_read, True
        self.chain = Chain(unit="event" if self.is_of_tables else "line")
        number = 0
        for name, file in self.files:
            if is_again:
                file.seek(0)
            if not self.is_of_tables:
                self.chain.begin(name, number + 1)
            first = last = b""
            for line in self._lines_of(file):
                number += 1
                first, last = first or line, line if line.endswith(b"\n") else last
                self.head = self.head or line.strip()
                yield line
            if os.fstat(file.fileno()).st_mode & stat.S_ISVTX:
                # The mark of a recorder that lost events and could not say so in the file.
                number += 1
                yield _gap_after(first, last)

    def _lines_of(self, file: BufferedReader) -> Iterator[bytes]:
        done, can_tell = 0, file.seekable()
        # readline with a bound: something endless without line ends must not fill the memory.
        lines = iter(partial(_unpacked(file).readline, _LONGEST_LINE_BYTES), b"")
        for count, line in enumerate(lines, start=1):
            yield line
            if count % _PROGRESS_EVERY_LINES == 0 and can_tell:
                self.advance(file.tell() - done)
                done = file.tell()


def _gap_after(first: bytes, last: bytes) -> bytes:
    """A header like *first* that says that nothing was recorded after the event *last*."""
    try:
        header, event = header_of(1, first), json.loads(last)
    except ValueError:  # which the judge will refuse by itself
        return b""
    header.store, header.running, header.follows = "unknown", [], False
    header.gap = event.get("t"), None
    return msgspec.json.encode(header) + b"\n"


def _unpacked(file: BufferedReader) -> BufferedIOBase:
    return GzipFile(fileobj=file) if file.peek(2).startswith(_GZIP_MAGIC) else file


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
                    files = _files(stack, traces, is_read_twice=is_matched or html is not None)
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


def _is_foreign(header: Header | None) -> bool:
    """Whether it is of another scheduler than ours: its dues are counted without being asked for."""
    return header is not None and header.first_due == "after"


def _report(source: Files, *, is_matched: bool) -> Report:
    """Judge it, by itself or with the other nodes of its cluster, and *is_matched* see to its targets."""
    is_cluster, is_of_timers = source.is_cluster, source.kind == "timers"
    judge = judged_timers if is_of_timers else judged_together if is_cluster else judged
    outcome = judge(source.lines())
    header = header_of(1, source.head)
    account = None
    is_whole = not outcome.fault_count and not outcome.gaps and not outcome.is_partial
    why_not = _OF_TIMERS if is_of_timers else "" if is_whole else _NOT_WHOLE
    is_wanted = is_matched or (not why_not and (is_cluster or _is_foreign(header)))
    if is_wanted and source.is_rereadable:
        account = Account(refused=why_not) if why_not else account_of(source.lines())
    return Report(outcome, header, source.chain, account)


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


def _files(stack: ExitStack, names: tuple[str, ...], *, is_read_twice: bool) -> Files:
    files, nodes, kinds = [], [], []
    for name in names:
        file = open_input(stack, name)
        if not file.peek(1):  # no recorder leaves an empty file, so what was in it is lost
            raise CommandError("not_a_trace", f'"{name}" is empty; a trace begins with a Header')
        header = _header_at(file)
        if is_read_twice or _is_foreign(header):
            file = _rereadable(stack, file)
        files.append((name, file))
        nodes.append(header.node if header is not None else None)
        kinds.append(header.kind if header is not None else "tasks")
    # The parts of each node stand together, in the order given.
    order = sorted(range(len(files)), key=lambda index: nodes.index(nodes[index]))
    files, nodes = [files[index] for index in order], [nodes[index] for index in order]
    total = sum(os.fstat(file.fileno()).st_size for _, file in files)
    if total < _PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        return Files(files, nodes=tuple(nodes), kind=kinds[0])
    bar = stack.enter_context(click.progressbar(length=total, label="reading", file=sys.stderr))
    return Files(files, advance=bar.update, nodes=tuple(nodes), kind=kinds[0])


def _header_at(file: BufferedReader) -> Header | None:
    """The header that the file begins with; None if it is no trace."""
    if file.seekable():
        head = _unpacked(file).readline(_LONGEST_LINE_BYTES)
        file.seek(0)
    else:
        head = file.peek()
        if head.startswith(_GZIP_MAGIC):
            head = zlib.decompressobj(wbits=31).decompress(head)
        head = head.partition(b"\n")[0]
    try:
        return header_of(1, head)
    except TraceError:
        return None


def open_input(stack: ExitStack, name: str) -> BufferedReader:
    """The file of that name; "-" is the standard input."""
    if name != "-":
        return stack.enter_context(Path(name).open("rb"))
    if sys.stdin is None:
        raise OSError(errno.EBADF, "the standard input is closed", "-")
    assert isinstance(sys.stdin.buffer, BufferedReader)
    return sys.stdin.buffer


def _rereadable(stack: ExitStack, binary: BufferedReader) -> BufferedReader:
    """The file, or a copy of it if it is a pipe."""
    if stat.S_ISREG(os.fstat(binary.fileno()).st_mode):
        return binary
    copy = stack.enter_context(TemporaryFile(buffering=0))  # noqa: SIM115
    copyfileobj(binary, copy)
    copy.seek(0)
    return BufferedReader(copy)


def _tables(
    stack: ExitStack, traces: tuple[str, ...], tasks_name: str, options: dict[str, str | None]
) -> Files:
    """The trace that a CSV of runs and one of tasks tell. It is kept in a file: a table may be a pipe."""
    zone = options["--tz"]
    if zone is None:
        raise CommandError("missing_option", "--csv-tasks needs --tz, such as --tz Europe/Berlin")
    if len(traces) != 1:
        raise CommandError("too_many_files", "with --csv-tasks give one CSV of runs; put the rows together")
    with (
        Path(traces[0]).open(newline="", encoding="utf-8") as runs,
        Path(tasks_name).open(newline="", encoding="utf-8") as tasks,
    ):
        lines = lines_from_csv(runs, tasks, zone=zone, since=options["--from"], until=options["--until"])
        copy = stack.enter_context(TemporaryFile(buffering=0))  # noqa: SIM115
        copy.write(b"".join(lines))
    copy.seek(0)
    return Files([(traces[0], BufferedReader(copy))], is_of_tables=True)


def _refuse_half_a_cluster(files: Files) -> None:
    """Traces of nodes go with those of nodes."""
    if not files.is_cluster:
        return
    if "" in files.nodes:
        name = files.files[files.nodes.index("")][0]
        message = f'"{name}" is not of a node of a cluster, and another file is; verify them apart'
        raise CommandError("mixed_traces", message)
    if not all(file.seekable() for _, file in files.files):
        message = "the traces of a cluster are read twice; give files, not a pipe"
        raise CommandError("unreadable", message)


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


@contextmanager
def input_errors(files: Files | None = None) -> Iterator[None]:
    """Whatever is wrong with the input becomes an error that says what, and where in *files*."""
    try:
        yield
    except TraceError as error:
        where, hint = f"line {error.line}", ""
        if files is not None and files.chain.names:
            place = files.chain.place(error.line)
            where = f'"{place.file}", line {place.line}'
            hint = "for a CSV of runs give --csv-tasks, too" if place.file.endswith(".csv") else ""
        message = f"{where}: {error.reason}"
        raise CommandError("not_a_trace", message, hint=hint, facts={"line": error.line}) from error
    except CsvError as error:
        raise CommandError("bad_table", str(error), facts={"line": error.line}) from error
    except (EOFError, zlib.error, BadGzipFile) as error:
        name = f'"{files.chain.names[-1]}"' if files is not None and files.chain.names else "the input"
        message = f"{name} is packed with gzip and cannot be unpacked to its end: {error}"
        raise CommandError("unreadable", message) from error
    except OSError as error:
        raise unreadable(error) from error
