"""The files of a trace, as commands get them: several parts, pipes, what is packed, the nodes of a cluster.

Reading is streaming: a trace of any length passes through without being kept. What can be read only once (a
pipe), and has to be read twice, is kept in a temporary file.
"""

import errno
import json
import os
import stat
import sys
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

import click
import msgspec

from duly.cli.output import CommandError, unreadable
from duly.verify.reporting.report import Chain
from duly.verify.trace import Header, TraceError, header_of

_LONGEST_LINE_BYTES = 1 << 26
_PROGRESS_FROM_BYTES = 20_000_000
_PROGRESS_EVERY_LINES = 20_000
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(slots=True)
class TraceFiles:
    """The files of one trace, read in order; *chain* learns which line stands in which of them."""

    files: list[tuple[str, BufferedReader]]
    advance: Callable[[int], object] = lambda _: None
    chain: Chain = field(default_factory=Chain)
    nodes: tuple[str | None, ...] = ()
    """The node of a cluster that wrote each file: empty if none did, None if the header cannot be read."""
    kind: str = "tasks"
    """What the first is about. If another is about something else, the judge says so."""
    is_foreign: bool = False
    """Whether it is of another scheduler than ours: its dues are matched without being asked for."""
    is_of_tables: bool = False
    """Whether it was made of CSV tables: then its lines are called events, and stand in no file."""
    head: bytes = b""
    """The first line of all that is not blank: known when it has been read."""
    _was_read: bool = False

    @property
    def is_cluster(self) -> bool:
        return any(self.nodes)

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


def trace_files(stack: ExitStack, names: tuple[str, ...], *, is_read_twice: bool) -> TraceFiles:
    files, nodes, kinds, is_foreign = [], [], [], False
    for name in names:
        file = open_input(stack, name)
        if not file.peek(1):  # no recorder leaves an empty file, so what was in it is lost
            raise CommandError("not_a_trace", f'"{name}" is empty; a trace begins with a Header')
        header = _header_at(file)
        is_foreign |= header is not None and header.first_due == "after"
        if is_read_twice or is_foreign or (header is not None and header.node):
            file = _rereadable(stack, file)
        files.append((name, file))
        nodes.append(header.node if header is not None else None)
        kinds.append(header.kind if header is not None else "tasks")
    # The parts of each node stand together, in the order given.
    order = sorted(range(len(files)), key=lambda index: nodes.index(nodes[index]))
    files, nodes = [files[index] for index in order], [nodes[index] for index in order]
    found = TraceFiles(files, nodes=tuple(nodes), kind=kinds[0], is_foreign=is_foreign)
    total = sum(os.fstat(file.fileno()).st_size for _, file in files)
    if total >= _PROGRESS_FROM_BYTES and sys.stderr.isatty():
        bar = stack.enter_context(click.progressbar(length=total, label="reading", file=sys.stderr))
        found.advance = bar.update
    return found


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


@contextmanager
def input_errors(files: TraceFiles | None = None) -> Iterator[None]:
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
    except (EOFError, zlib.error, BadGzipFile) as error:
        name = f'"{files.chain.names[-1]}"' if files is not None and files.chain.names else "the input"
        message = f"{name} is packed with gzip and cannot be unpacked to its end: {error}"
        raise CommandError("unreadable", message) from error
    except OSError as error:
        raise unreadable(error) from error
