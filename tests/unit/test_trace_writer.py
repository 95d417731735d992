"""The trace file: appended, torn, rotated, refused."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duly.verify.trace import Header, InitEnd, InitStart, RunEnd, RunStart, Tick, Trace
from duly.verify.writer import Carried, TraceWriter, is_due_again

HEADER = Header(v=1, tz="UTC", store="fresh")
REGS = [("a", "* * * * *", 0.0)]
ONE_EVENT_BYTES = len(msgspec.json.encode(HEADER)) + 10
"""The size of a file that has room for one event."""


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
    """After a full disk the file goes on with a header that records the gap, and no half line is left."""
    path = tmp_path / "trace.jsonl"
    carried = Carried((InitStart(t=4000, call=0, regs=REGS), InitEnd(t=4000, call=0, ok=True)), [])
    disk = Full(monkeypatch)
    writer = written(path, 1, carried=lambda: carried)
    before = path.read_bytes()
    disk.room = 5
    for time in (2, 3000):
        with pytest.raises(OSError, match="No space"):
            writer.write(Tick(t=time))
        assert path.read_bytes() == before
    disk.room = None
    assert writer.write(Tick(t=4000))
    writer.close()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    again = path.read_bytes().removeprefix(before).splitlines()
    header = msgspec.json.decode(again[0], type=Header)
    assert (header.gap, header.store, header.follows) == ((1, 4000), "unknown", False)
    assert ticks(path) == [1, 4000, 4000, 4000]


def test_failed_write_is_tried_again_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two attempts events are passed over; time counts on whichever clock goes on."""
    path = tmp_path / "trace.jsonl"
    disk = Full(monkeypatch)
    writer = written(path, 1)
    disk.room = 0
    with pytest.raises(OSError, match="No space"):
        writer.write(Tick(t=1000, m=0))
    assert not writer.write(Tick(t=1999, m=999))
    tried = Tick(t=1000, m=0)
    assert not is_due_again(tried, Tick(t=1999, m=999), 1000)
    assert is_due_again(tried, Tick(t=2000, m=0), 1000)
    assert is_due_again(tried, Tick(t=0, m=0), 1000)
    assert is_due_again(tried, Tick(t=1000, m=1000), 1000)
    assert not is_due_again(tried, Tick(t=1000), 1000)


def test_rotation_that_fails_drops_nothing(tmp_path: Path) -> None:
    """Where no new file can be made the old one goes on, and every older one stays."""
    path, in_the_way = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.new"
    carried = Carried((InitStart(t=0, call=0, regs=REGS), InitEnd(t=0, call=0, ok=True)), [])
    older = [tmp_path / f"trace.jsonl.{number}" for number in (1, 2)]
    for file in older:
        file.write_bytes(file.name.encode())
    writer = written(path, 1, rotate_bytes=ONE_EVENT_BYTES, keep=2, carried=lambda: carried)
    assert older[0].read_bytes() == b"trace.jsonl.1"
    in_the_way.write_bytes(b"notes")
    with pytest.raises(FileExistsError):
        writer.write(Tick(t=2))
    assert not writer.write(Tick(t=3))  # all is not well, and it is not tried again at once
    assert ticks(path) == [1, 2, 3]
    assert [file.read_bytes() for file in older] == [b"trace.jsonl.1", b"trace.jsonl.2"]
    in_the_way.unlink()
    assert writer.write(Tick(t=60_002))
    assert ticks(path) == [0, 0, 60_002]
    assert ticks(older[0]) == [1, 2, 3]


def test_rotation_fills_a_free_number_first(tmp_path: Path) -> None:
    """Older files move up only as far as the first number that is free, so that none is dropped early."""
    path = tmp_path / "trace.jsonl"
    carried = Carried((InitStart(t=0, call=0, regs=REGS), InitEnd(t=0, call=0, ok=True)), [])
    for number in (1, 3):
        (tmp_path / f"trace.jsonl.{number}").write_text(str(number))
    writer = written(path, 1, rotate_bytes=ONE_EVENT_BYTES, keep=3, carried=lambda: carried)
    writer.write(Tick(t=2))
    assert (tmp_path / "trace.jsonl.2").read_text() == "1"
    assert (tmp_path / "trace.jsonl.3").read_text() == "3"


def test_half_a_new_file_of_a_dead_recorder_is_removed(tmp_path: Path) -> None:
    """A recorder that died while it began a file does not keep the next from beginning one."""
    path = tmp_path / "trace.jsonl"
    (tmp_path / "trace.jsonl.new").write_bytes(b'{"ev":"Hea')
    written(path, 1).close()
    assert ticks(path) == [1]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_file_of_somebody_else_is_never_overwritten(tmp_path: Path) -> None:
    """A file of a user that has the name which a new file needs stays as it is, and the recorder says so."""
    mine = tmp_path / "trace.jsonl.new"
    mine.write_bytes(b"notes")
    with pytest.raises(FileExistsError):
        written(tmp_path / "trace.jsonl", 1)
    assert mine.read_bytes() == b"notes"


def test_process_that_died_while_it_rotated_is_not_the_first(tmp_path: Path) -> None:
    """Where only older files are left, the new one does not claim that nothing came before."""
    path = tmp_path / "trace.jsonl"
    (tmp_path / "trace.jsonl.1").write_bytes(b"older")
    written(path, 1).close()
    with path.open("rb") as file:
        assert Trace(file).header.store == "unknown"
