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
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any, Protocol

import click
import msgspec

from duly.cli.refusals import Refusal, printable
from duly.verify.cluster import judged_together
from duly.verify.foreign.table import CsvError, lines_from_csv
from duly.verify.judge import judged
from duly.verify.properties import Outcome
from duly.verify.reporting.as_json import as_dict
from duly.verify.reporting.cluster import cluster_pictures
from duly.verify.reporting.page import page
from duly.verify.reporting.report import Chain, Line, Report, Role, text_lines
from duly.verify.reporting.timeline import pictures
from duly.verify.targets import accounted
from duly.verify.trace import Header, TraceError, header_of

_LONGEST_LINE_BYTES = 1 << 26
_PROGRESS_FROM_BYTES = 20_000_000
_PROGRESS_EVERY_LINES = 20_000
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_STYLES: dict[Role, dict[str, Any]] = {
    Role.GOOD: {"fg": "green"},
    Role.BAD: {"fg": "red", "bold": True},
    Role.UNSURE: {"fg": "yellow"},
    Role.FAINT: {"dim": True},
    Role.STRONG: {"bold": True},
}


class Source(Protocol):
    """Something that can be read as a trace, as often as one likes."""

    chain: Chain

    @property
    def is_rereadable(self) -> bool:
        """Whether it can be read once more."""

    def lines(self) -> Iterator[bytes]:
        """Every line, from the first."""


@dataclass(slots=True)
class Files:
    """The files of one trace, read in order; *chain* learns which line stands in which of them."""

    files: list[tuple[str, BufferedReader]]
    advance: Callable[[int], object] = lambda _: None
    chain: Chain = field(default_factory=Chain)
    members: tuple[str | None, ...] = ()
    """Of which member of a cluster each file is: empty if of none, None if that cannot be read."""

    @property
    def is_cluster(self) -> bool:
        """Whether any of them is of a member."""
        return any(self.members)

    @property
    def is_rereadable(self) -> bool:
        """Whether all of them are files, and not pipes."""
        return all(file.seekable() for _, file in self.files)

    def lines(self) -> Iterator[bytes]:
        """Every line of every file. Going back to the first is possible for files, and not for pipes."""
        is_again, number = bool(self.chain.names), 0
        self.chain = Chain()
        for name, file in self.files:
            if is_again:
                file.seek(0)
            self.chain.begin(name, number + 1)
            first = last = b""
            for line in self._lines_of(file):
                number += 1
                yield line
                first, last = first or line, line if line.endswith(b"\n") else last
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
        header, event = header_of(1, first.removeprefix(b"\xef\xbb\xbf")), json.loads(last)
    except ValueError:  # which the judge will refuse by itself
        return b""
    header.store, header.running, header.follows = "unknown", [], False
    header.gap = event.get("t"), None
    return msgspec.json.encode(header) + b"\n"


def _unpacked(file: BufferedReader) -> BufferedIOBase:
    return GzipFile(fileobj=file) if file.peek(2).startswith(_GZIP_MAGIC) else file


@dataclass(slots=True)
class Tables:
    """The CSV of runs and that of tasks, which become a trace on the way."""

    runs: Path
    tasks: Path
    zone: str
    since: str | None
    until: str | None
    chain: Chain = field(default_factory=lambda: Chain(unit="event"))
    is_rereadable: bool = True
    _lines: list[bytes] | None = None

    def lines(self) -> Iterator[bytes]:
        """The trace that the tables tell. It is kept: a table may be a pipe, which can be read only once."""
        if self._lines is None:
            with self.runs.open(newline="", encoding="utf-8") as runs:
                with self.tasks.open(newline="", encoding="utf-8") as tasks:
                    lines = lines_from_csv(runs, tasks, zone=self.zone, since=self.since, until=self.until)
                self._lines = list(lines)
        return iter(self._lines)


@click.command("verify")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...")
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")
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
    as_json: bool,
) -> None:
    """Check a recorded trace against every property of the model.

    Several files are read one after the other, in the order given, as the parts of one trace: the oldest
    first. Those of the members of a cluster are judged together; give those of all members. "-" is the
    standard input; what is packed with gzip is unpacked.

        duly verify trace.jsonl.1 trace.jsonl --html page.html

        duly verify one.jsonl two.jsonl three.jsonl --html page.html

        duly verify runs.csv --csv-tasks tasks.csv --tz Europe/Berlin

    Exit code 0: nothing is held against the scheduler. 1: a property is violated. 2: this is no trace, one
    with faults of its own, or one with a gap in which nothing was recorded. 70: the checker itself failed, so
    there is no verdict.
    """
    options = {"--tz": zone_name, "--from": since, "--until": until}
    with _internal_errors(traces, as_json=as_json):
        with ExitStack() as stack, _refusals(as_json=as_json) as reading:
            _refuse_overwriting(html, (*traces, *filter(None, [csv_tasks])), as_json=as_json)
            if csv_tasks is None:
                _refuse_without_tables(options, as_json=as_json)
                files = _files(stack, traces, is_read_twice=is_matched or html is not None)
                _refuse_empty(files, as_json=as_json)
                _refuse_half_a_cluster(files, as_json=as_json)
                reading.source = files
            else:
                reading.source = _tables(traces, csv_tasks, options, as_json=as_json)
            report = _report(reading.source, is_matched=is_matched)
            if html is not None:
                draw = cluster_pictures if _is_cluster(reading.source) else pictures
                drawn = draw(report, reading.source.lines())
                Path(html).write_text(page(report, drawn), encoding="utf-8")
        exit_code = report.exit_code if _is_printed(report, as_json=as_json) else 2
    ctx.exit(exit_code)


class CheckerError(Refusal):
    """The checker itself failed. There is no verdict, so the exit code is none of those of a verdict."""

    exit_code = 70

    def __init__(self, traces: tuple[str, ...], error: BaseException, *, as_json: bool) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}, line {frame.lineno}"
        said = " ".join(str(error).split())[:200]
        what = f"{type(error).__name__}: {said}" if said else type(error).__name__
        names = ", ".join(f'"{name}"' for name in traces)
        message = f"duly failed on {names} ({what}; {place}); that is a fault of duly, and no verdict"
        super().__init__("internal_error", message, facts={}, lines=[], as_json=as_json)


@contextmanager
def _internal_errors(traces: tuple[str, ...], *, as_json: bool) -> Iterator[None]:
    """Turn what nobody expected into exit code 70; the 1 of Python, or of click's Abort, says "violated"."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit):
        raise
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None  # as shells do it: 128 and the signal
    except Exception as error:  # MemoryError and RecursionError are among these
        raise CheckerError(traces, error, as_json=as_json) from error


def _is_foreign(header: Header | None) -> bool:
    """Whether it is of another scheduler than ours: its dues are counted without being asked for."""
    return header is not None and header.first_due == "after"


def _is_cluster(source: Source) -> bool:
    return isinstance(source, Files) and source.is_cluster


def _report(source: Source, *, is_matched: bool) -> Report:
    """Judge it, by itself or with the other members of its cluster, and *is_matched* see to its targets."""
    is_cluster = _is_cluster(source)
    outcome, header = _judged(source, judged_together if is_cluster else judged)
    account = None
    is_wanted = is_matched or is_cluster or _is_foreign(header)
    is_whole = not outcome.fault_count and not outcome.gaps and not outcome.is_partial
    if is_wanted and source.is_rereadable and is_whole:
        account = accounted(source.lines())
    return Report(outcome, header, source.chain, account)


def _judged(source: Source, judge: Callable[[Iterator[bytes]], Outcome]) -> tuple[Outcome, Header]:
    """The outcome and the header. That is caught on its way to the judge, who keeps it to himself."""
    firsts: list[bytes] = []

    def overheard() -> Iterator[bytes]:
        lines = source.lines()
        for line in lines:
            yield line
            if line.strip():
                firsts.append(line)
                break
        yield from lines

    outcome = judge(overheard())
    return outcome, header_of(1, firsts[0].removeprefix(_BYTE_ORDER_MARK))


def _is_printed(report: Report, *, as_json: bool) -> bool:
    """Print the report. Whether that was possible."""
    try:
        if as_json:
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


def _painted(line: Line) -> str:
    pieces = ((printable(piece.text), _STYLES.get(piece.role)) for piece in line)
    return "".join(click.style(text, **style) if style else text for text, style in pieces)


def _files(stack: ExitStack, names: tuple[str, ...], *, is_read_twice: bool) -> Files:
    files, members = [], []
    for name in names:
        file = _opened(stack, name)
        header = _header_at(file)
        if is_read_twice or _is_foreign(header):
            file = _rereadable(stack, file)
        files.append((name, file))
        members.append(header.member if header is not None else None)
    # The parts of each member stand together, in the order given.
    order = sorted(range(len(files)), key=lambda index: members.index(members[index]))
    files, members = [files[index] for index in order], [members[index] for index in order]
    total = sum(_size(file) for _, file in files)
    if total < _PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        return Files(files, members=tuple(members))
    bar = stack.enter_context(click.progressbar(length=total, label="reading", file=sys.stderr))
    return Files(files, advance=bar.update, members=tuple(members))


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
        return header_of(1, head.removeprefix(_BYTE_ORDER_MARK))
    except TraceError:
        return None


def _opened(stack: ExitStack, name: str) -> BufferedReader:
    return _standard_input() if name == "-" else stack.enter_context(Path(name).open("rb"))


def _rereadable(stack: ExitStack, binary: BufferedReader) -> BufferedReader:
    """The file, or a copy of it if it is a pipe."""
    if stat.S_ISREG(os.fstat(binary.fileno()).st_mode):
        return binary
    copy = stack.enter_context(TemporaryFile(buffering=0))  # noqa: SIM115
    copyfileobj(binary, copy)
    copy.seek(0)
    return BufferedReader(copy)


def _standard_input() -> BufferedReader:
    if sys.stdin is None:
        raise OSError(errno.EBADF, "the standard input is closed", "-")
    assert isinstance(sys.stdin.buffer, BufferedReader)
    return sys.stdin.buffer


def _size(file: BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size


def _tables(traces: tuple[str, ...], tasks: str, options: dict[str, str | None], *, as_json: bool) -> Tables:
    zone = options["--tz"]
    if zone is None:
        raise _refused(
            "missing_option", "--csv-tasks needs --tz, such as --tz Europe/Berlin", as_json=as_json
        )
    if len(traces) != 1:
        raise _refused(
            "too_many_files", "with --csv-tasks give one CSV of runs; put the rows together", as_json=as_json
        )
    return Tables(Path(traces[0]), Path(tasks), zone, options["--from"], options["--until"])


def _refuse_half_a_cluster(files: Files, *, as_json: bool) -> None:
    """Traces of members go with those of members."""
    if not files.is_cluster:
        return
    if "" in files.members:
        name = files.files[files.members.index("")][0]
        message = f'"{name}" is not of a member of a cluster, and another file is; verify them apart'
        raise _refused("mixed_traces", message, as_json=as_json)
    if not all(file.seekable() for _, file in files.files):
        message = "the traces of a cluster are read twice; give files, not a pipe"
        raise _refused("unreadable", message, as_json=as_json)


def _refuse_empty(files: Files, *, as_json: bool) -> None:
    """No recorder leaves an empty file, so what was in it is lost, whatever the others say."""
    for name, file in files.files:
        if not file.peek(1):
            message = f'"{name}" is empty; a trace begins with a Header'
            raise _refused("not_a_trace", message, as_json=as_json)


def _refuse_without_tables(options: dict[str, str | None], *, as_json: bool) -> None:
    """A trace says its zone and its times itself."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        message = f"{given[0]} is for CSV only: give --csv-tasks too, or leave it out"
        raise _refused("unused_option", message, as_json=as_json)


def _refuse_overwriting(html: str | None, inputs: tuple[str, ...], *, as_json: bool) -> None:
    """A page must not be written over what it tells of, nor fail after minutes of reading."""
    if html is None:
        return
    target = Path(html)
    if target.exists() and any(os.path.exists(name) and target.samefile(name) for name in inputs):  # noqa: PTH110 ("-")
        message = f'--html would overwrite "{html}", which is to be read; choose another name'
        raise _refused("would_overwrite", message, as_json=as_json)
    if target.is_dir() or not target.parent.is_dir():
        message = f'--html cannot write "{html}": choose a file in a folder that exists'
        raise _refused("unwritable", message, as_json=as_json)


@dataclass(slots=True)
class _Reading:
    """What is being read, for those who have to complain about it."""

    source: Source | None = None

    @property
    def name(self) -> str:
        """The file that was read last."""
        names = self.source.chain.names if self.source else []
        return f'"{names[-1]}"' if names else "the input"

    def words(self, line: int) -> str:
        """Where a line stands."""
        if self.source is None or not self.source.chain.names:
            return f"line {line}"
        place = self.source.chain.place(line)
        return f'"{place.file}", line {place.line}'


@contextmanager
def _refusals(*, as_json: bool) -> Iterator[_Reading]:
    """Whatever is wrong with the input becomes a refusal that says what."""
    reading = _Reading()
    try:
        yield reading
    except TraceError as error:
        message = f"{reading.words(error.line)}: {error.reason}"
        raise _refused("not_a_trace", message, as_json=as_json, line=error.line) from error
    except CsvError as error:
        raise _refused("bad_table", str(error), as_json=as_json, line=error.line) from error
    except (EOFError, zlib.error, BadGzipFile) as error:
        message = f"{reading.name} is packed with gzip and cannot be unpacked to its end: {error}"
        raise _refused("unreadable", message, as_json=as_json) from error
    except OSError as error:
        about = f'"{error.filename}": ' if error.filename is not None else ""
        raise _refused("unreadable", f"{about}{error.strerror or error}", as_json=as_json) from error


def _refused(code: str, message: str, *, as_json: bool, **facts: Any) -> Refusal:
    return Refusal(code, message, facts=facts, lines=[], as_json=as_json)
