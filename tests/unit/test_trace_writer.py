"""The trace file: appended, torn, rotated, refused."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duly.verify.trace import Header, InitEnd, InitStart, RunEnd, RunStart, Tick, Trace
from duly.verify.writer import Carried, TraceWriter

HEADER = Header(v=1, tz="UTC", store="fresh")
REGS = [("a", "* * * * *", 0.0)]


def ticks(path: Path) -> list[float]:
    """The times of the events in a file."""
    with path.open("rb") as file:
        return [item.event.t for item in Trace(file) if not hasattr(item, "reason")]


def written(path: Path, *times: int, header: Header = HEADER, **options: Any) -> TraceWriter:
    """A writer that has written some ticks."""
    writer = TraceWriter(path, header, **options)
    for time in times:
        writer.write(Tick(t=time))
    return writer


def test_later_processes_append(tmp_path: Path) -> None:
    """A second process goes on where the first ended, under the same header."""
    path = tmp_path / "trace.jsonl"
    written(path, 1, 2).close()
    later = TraceWriter(path, HEADER)
    later.open()
    assert later.last_us == 2_000
    later.write(Tick(t=3))
    assert ticks(path) == [1, 2, 3]


def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    """Every line is with the operating system before the next event happens: nothing waits in a buffer."""
    path = tmp_path / "trace.jsonl"
    writer = written(path, 1)
    assert ticks(path) == [1]
    writer.close()


def test_torn_line_is_cut_off(tmp_path: Path) -> None:
    """A line that a crash tore is removed before anything is appended to it."""
    path = tmp_path / "trace.jsonl"
    written(path, 1).close()
    with path.open("ab") as file:
        file.write(b'{"ev":"Tick","t":')
    written(path, 2).close()
    assert ticks(path) == [1, 2]


@pytest.mark.parametrize(
    "found",
    [
        b"",
        b"not a trace\n",
        b'{"ev":"Header","v":2,"tz":"UTC"}\n',
        msgspec.json.encode(Header(v=1, tz="Europe/Berlin")) + b"\n",
        msgspec.json.encode(Header(v=1, tz="UTC", boot="another start of the host")) + b"\n",
    ],
    ids=["empty", "other", "version", "zone", "boot"],
)
def test_file_of_another_making_is_put_aside(tmp_path: Path, found: bytes) -> None:
    """What cannot be gone on with is kept under another name, and a new trace begins."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(found)
    written(path, 1).close()
    assert ticks(path) == [1]
    assert (tmp_path / "trace.jsonl.1").read_bytes() == found
    with path.open("rb") as file:
        assert Trace(file).header.store == "unknown"  # though we were told that it is fresh


def test_long_torn_line_is_cut_off(tmp_path: Path) -> None:
    """A long line that a crash tore is removed whole, and the time of the line before it is known."""
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, HEADER)
    regs = [(f"task {number}", "* * * * *", 0.0) for number in range(10_000)]
    writer.write(InitStart(t=5, call=1, regs=regs))
    writer.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[-200_000:-1])
    later = TraceWriter(path, HEADER)
    later.open()
    later.close()
    assert (later.last_us, path.read_bytes()) == (5_000, whole)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second recorder on the same file is refused while the first has it, and harms nothing of it."""
    path = tmp_path / "trace.jsonl"
    first, second = written(path, 1), TraceWriter(path, HEADER)
    with pytest.raises(OSError, match="another recorder"):
        second.write(Tick(t=2))
    first.write(Tick(t=3))
    first.close()
    assert ticks(path) == [1, 3]


def test_large_files_are_put_aside(tmp_path: Path) -> None:
    """Each part can be read alone: it begins with the list in effect and the runs in flight."""
    path = tmp_path / "trace.jsonl"
    carried = Carried((InitStart(t=0, call=0, regs=REGS), InitEnd(t=0, call=0, ok=True)), [("a", 7)])
    writer = TraceWriter(path, HEADER, rotate_bytes=400, keep=2, carried=lambda: carried)
    for run in range(30):
        writer.write(RunStart(t=run, id="a", run=run))
        writer.write(RunEnd(t=run, id="a", run=run, ok=True))
    writer.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "trace.jsonl",
        "trace.jsonl.1",
        "trace.jsonl.2",
    ]
    with (tmp_path / "trace.jsonl.1").open("rb") as file:
        trace = Trace(file)
        kinds = [type(item.event).__name__ for item in trace if not hasattr(item, "reason")]
    assert (trace.header.store, trace.header.running) == ("unknown", [("a", 7)])
    assert kinds[:2] == ["InitStart", "InitEnd"]


def test_no_rotation_while_nothing_can_be_carried(tmp_path: Path) -> None:
    """While a call is outstanding a file grows on: a part that begins there could not be read alone."""
    path = tmp_path / "trace.jsonl"
    written(path, *range(50), rotate_bytes=100).close()
    assert len(ticks(path)) == 50
    assert not (tmp_path / "trace.jsonl.1").exists()


class Full:
    """`os.write` on a disk with little room left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write = os.write
        monkeypatch.setattr("duly.verify.writer.os.write", self)

    def __call__(self, descriptor: int, line: bytes) -> int:
        """Write what there is room for."""
        if self.room is None:
            return self._write(descriptor, line)
        if not self.room:
            raise OSError(28, "No space left on device")
        done = self._write(descriptor, line[: self.room])
        self.room -= done
        return done


def test_full_disk_leaves_a_gap_that_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a full disk a new part begins that claims no knowledge; the old part ends with a whole line."""
    path = tmp_path / "trace.jsonl"
    carried = Carried((InitStart(t=4, call=0, regs=REGS), InitEnd(t=4, call=0, ok=True)), [])
    disk = Full(monkeypatch)
    writer = written(path, 1, carried=lambda: carried)
    disk.room = 5
    for time in (2, 3):
        with pytest.raises(OSError, match="No space"):
            writer.write(Tick(t=time))
    disk.room = None
    writer.write(Tick(t=4))
    writer.close()
    assert ticks(tmp_path / "trace.jsonl.2") == [1]
    assert ticks(path) == [4, 4, 4]
    with path.open("rb") as file:
        assert Trace(file).header.store == "unknown"
