"""Attacks on the recorder: full disks, files that vanish, callbacks that raise what nobody catches."""

import asyncio
import gc
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duly import Event, Scheduler
from duly.cli.verify import verify as verify_command
from duly.daemon.operations import OPERATIONS, Nothing
from duly.events import Listener
from duly.store import MemoryStore, Store
from duly.testing import VirtualClock, crash
from duly.verify import Monitor, Recorder, Verdict, judged
from duly.verify.cluster import judged_together
from duly.verify.emitter import NodeName
from duly.verify.trace import RunStart
from tests.integration.test_watching import WatchedDaemon

NOON = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


async def nothing() -> None:
    """A callback."""


def task(name: str, callback: Any = nothing, cron: str = "* * * * *") -> tuple[Any, ...]:
    """A registration."""
    return name, cron, callback, MINUTE


class World:
    """A scheduler that is recorded, its clock, and the events that it emitted."""

    def __init__(self, path: Path, *, place: Store | None = None, clock: VirtualClock | None = None) -> None:
        self.path = path
        self.clock = clock or VirtualClock(NOON)
        self.place = place or MemoryStore()
        self.events: list[Event] = []

    def recorded(self, *, listeners: tuple[Listener, ...] = (), **options: Any) -> Scheduler:
        """A scheduler, as the next process would make it."""
        scheduler = Scheduler(
            self.place, clock=self.clock, timezone=UTC, listeners=[self.events.append, *listeners]
        )
        self.recorder = Recorder(self.path, **{"store": "fresh", **options})
        return self.recorder.wrap(scheduler)

    def reports(self) -> list[str]:
        """What was said about the recorder, by events."""
        return [event.name for event in self.events if event.name.startswith("Recorder")]

    def lines(self, path: Path | None = None) -> list[dict[str, Any]]:
        """The lines of the trace."""
        return [json.loads(line) for line in (path or self.path).read_bytes().splitlines()]


def verified(*paths: Path, options: tuple[str, ...] = ()) -> tuple[int, str]:
    """What `duly verify` exits with and prints."""
    result = CliRunner().invoke(verify_command, [*map(str, paths), *options])
    return result.exit_code, result.output


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, and what is in it."""
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of two mebibytes."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    tried = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a file system may not be mounted: {tried.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no room on the disk of a folder."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


# --- full disks ---


async def test_full_disk_costs_nothing_that_was_recorded(small_disk: Path) -> None:
    """While no event can be written, no file is created, renamed, dropped or changed."""
    world = World(small_disk / "trace.jsonl")
    scheduler = world.recorded(rotate_bytes=4_000, keep=3)
    await scheduler.initialize([task("a"), task("b")])
    await world.clock.advance(120 * MINUTE)
    filler = fill(small_disk)
    await world.clock.advance(60 * MINUTE)  # what still fits into the last page of the file is written
    before = contents(small_disk)
    assert len(before) == 5
    await world.clock.advance(300 * MINUTE)
    assert contents(small_disk) == before
    assert world.reports() == ["RecorderFault"]
    filler.unlink()
    await world.clock.advance(5 * MINUTE)
    await scheduler.stop()
    assert world.reports() == ["RecorderFault", "RecorderRecovered"]
    kept = [before[name] for name in ("trace.jsonl.1", "trace.jsonl")]
    assert all(any(now.startswith(text) for now in contents(small_disk).values()) for text in kept)


async def test_full_disk_leaves_a_gap_and_blames_nobody(small_disk: Path) -> None:
    """The runs of a full disk are in no trace, and the verdict names that time instead of a culprit."""
    world = World(small_disk / "trace.jsonl")
    scheduler = world.recorded()
    await scheduler.initialize([task("a")])
    await world.clock.advance(5 * MINUTE)
    filler = fill(small_disk)
    await world.clock.advance(120 * MINUTE)
    code, said = verified(world.path)
    assert code == 2
    assert "inconclusive: nothing was recorded from" in said
    assert "to the end" in said
    filler.unlink()
    await world.clock.advance(5 * MINUTE)
    await scheduler.stop()
    [header] = [line for line in world.lines()[1:] if line["ev"] == "Header"]
    begin, end = (datetime.fromtimestamp(at / 1000, UTC) for at in header["gap"])
    assert timedelta(minutes=60) < end - begin < timedelta(minutes=121)
    for options in ((), ("--targets",), ("--html", str(small_disk / "page.html"))):
        code, said = verified(world.path, options=options)
        assert (code, " violated  " in said) == (2, False)
        seen = f"inconclusive: nothing was recorded from {begin.isoformat(sep=' ')[:16]}"
        assert seen in said
        assert "to the end" not in said
    recovered = next(event for event in world.events if event.name == "RecorderRecovered")
    assert [recovered.fields["from"], recovered.fields["to"]] == [begin.isoformat(), end.isoformat()]


async def test_violation_after_a_gap_is_still_found(small_disk: Path) -> None:
    """A gap excuses what it hides, and nothing that comes later."""
    world = World(small_disk / "trace.jsonl")
    scheduler = world.recorded()
    await scheduler.initialize([task("a")])
    filler = fill(small_disk)
    await world.clock.advance(120 * MINUTE)
    filler.unlink()
    await world.clock.advance(5 * MINUTE)
    await scheduler.stop()
    with world.path.open("ab") as file:  # a scheduler that starts something after its stop
        start = {"ev": "RunStart", "t": world.lines()[-1]["t"] + 1000, "id": "a", "run": 999}
        file.write(json.dumps(start).encode() + b"\n")
    code, said = verified(world.path)
    assert (code, "Nothing was recorded from" in said) == (1, True)


async def test_process_that_dies_on_a_full_disk_is_not_blamed(small_disk: Path) -> None:
    """A recorder that dies before it can record its gap leaves a mark, and the next one records it."""
    world = World(small_disk / "trace.jsonl")
    scheduler = world.recorded()
    await scheduler.initialize([task("a")])
    await world.clock.advance(5 * MINUTE)
    filler = fill(small_disk)
    await world.clock.advance(120 * MINUTE)
    await crash(scheduler)
    filler.unlink()
    assert verified(world.path)[0] == 2
    await world.clock.advance(10 * MINUTE)
    scheduler = world.recorded(store="unknown")
    await scheduler.initialize([task("a")])
    await world.clock.advance(5 * MINUTE)
    await scheduler.stop()
    code, said = verified(world.path)
    assert (code, " violated  " in said) == (2, False)
    assert "inconclusive: nothing was recorded from" in said
    assert not world.path.stat().st_mode & stat.S_ISVTX


async def test_disk_that_is_full_from_the_start(small_disk: Path) -> None:
    """Where not even the first file can be made, none is left behind, and recording begins with the room."""
    filler = fill(small_disk)
    world = World(small_disk / "trace.jsonl")
    scheduler = world.recorded()
    await scheduler.initialize([task("a")])
    await world.clock.advance(10 * MINUTE)
    assert list(contents(small_disk)) == ["filler"]
    filler.unlink()
    await world.clock.advance(3 * MINUTE)
    await scheduler.stop()
    assert verified(world.path)[0] == 2
    assert world.reports() == ["RecorderFault", "RecorderRecovered"]


async def test_stop_and_start_on_a_full_disk(small_disk: Path) -> None:
    """A gap in which a stop and another list are lost ends with what is in effect then."""
    world = World(small_disk / "trace.jsonl")
    scheduler = world.recorded()
    await scheduler.initialize([task("a")])
    filler = fill(small_disk)
    await world.clock.advance(60 * MINUTE)
    await scheduler.stop()
    await world.clock.advance(10 * MINUTE)
    filler.unlink()
    await scheduler.initialize([task("b")])
    await world.clock.advance(3 * MINUTE)
    await scheduler.stop()
    code, said = verified(world.path)
    assert (code, " violated  " in said) == (2, False)
    assert [line["id"] for line in world.lines()[-8:] if line["ev"] == "RunStart"] == ["b", "b", "b"]


def test_empty_files_are_no_evidence(tmp_path: Path) -> None:
    """What is empty, or has no event, never holds: alone, among others, or with a header only."""
    empty, good, bare = tmp_path / "empty", tmp_path / "good", tmp_path / "bare"
    empty.write_bytes(b"")
    bare.write_bytes(b'{"ev":"Header","v":1,"tz":"UTC"}\n')
    good.write_bytes(bare.read_bytes() + b'{"ev":"Tick","t":1}\n')
    assert verified(good)[0] == 0
    for paths in ([empty], [empty, empty], [good, empty], [empty, good], [bare], [good, empty, bare]):
        code, said = verified(*paths)
        assert code == 2, (paths, said)
        assert ": holds" not in said


# --- files that vanish ---


def _delete(path: Path) -> None:
    path.unlink()


def _move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"something else\n")
    other.replace(path)


def _truncate(path: Path) -> None:
    os.truncate(path, 0)


def _delete_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()
    path.parent.mkdir()


@pytest.mark.parametrize("harm", [_delete, _move, _replace, _truncate, _delete_folder])
@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
async def test_file_that_is_taken_away_is_noticed(
    tmp_path: Path, harm: Callable[[Path], None], is_stopped: bool
) -> None:
    """A new file begins where the old one was, says what is missing, and an event reports it."""
    folder = tmp_path / "traces"
    folder.mkdir()
    world = World(folder / "trace.jsonl")
    scheduler = world.recorded()
    await scheduler.initialize([task("a")])
    await world.clock.advance(5 * MINUTE)
    if is_stopped:
        await scheduler.stop()
    harm(world.path)
    await world.clock.advance(MINUTE)
    if is_stopped:
        await scheduler.initialize([task("a")])
    await world.clock.advance(4 * MINUTE)
    await scheduler.stop()
    header, *events = world.lines()
    runs = sum(event["ev"] == "RunStart" for event in events)
    assert runs == 5
    assert header["gap"][0] == NOON.timestamp() * 1000  # all that was in the lost file is missing
    assert world.reports() == ["RecorderFault", "RecorderRecovered"]
    [fault] = [event for event in world.events if event.name == "RecorderFault"]
    assert str(world.path) in fault.fields["error"]
    code, said = verified(world.path)
    assert code == 2
    assert "inconclusive: nothing was recorded from 2026-01-01 12:00:30" in said


async def test_file_moved_away_on_a_full_disk(small_disk: Path) -> None:
    """Where a new file cannot be made either, none is left half made, and it begins once there is room."""
    world = World(small_disk / "trace.jsonl")
    scheduler = world.recorded()
    await scheduler.initialize([task(f"task {number}") for number in range(200)])
    await world.clock.advance(3 * MINUTE)
    filler = fill(small_disk)
    _move(world.path)
    await world.clock.advance(10 * MINUTE)
    assert sorted(contents(small_disk)) == ["filler", "moved"]
    assert world.reports() == ["RecorderFault"]
    filler.unlink()
    await world.clock.advance(3 * MINUTE)
    await scheduler.stop()
    assert verified(world.path)[0] == 2
    assert world.reports() == ["RecorderFault", "RecorderRecovered"]


# --- what callbacks raise ---


async def raise_from_a_future() -> None:
    """Raise GeneratorExit as something awaited that is no coroutine does."""
    future = asyncio.get_running_loop().create_future()
    future.set_exception(GeneratorExit())
    await future


def raising(error: BaseException) -> Callable[[], Any]:
    """A callback that raises."""

    async def callback() -> None:
        await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
        raise error

    return callback


@pytest.mark.parametrize(
    "bad",
    [
        raising(GeneratorExit()),
        raise_from_a_future,
        raising(KeyboardInterrupt()),
        raising(SystemExit(3)),
        raising(asyncio.CancelledError()),
        raising(StopIteration()),
        raising(StopAsyncIteration()),
        raising(MemoryError()),
        raising(BaseExceptionGroup("several", [GeneratorExit(), KeyboardInterrupt()])),
    ],
    ids=["exit", "future", "interrupt", "system", "cancelled", "stop", "async stop", "memory", "group"],
)
async def test_whatever_a_callback_raises_ends_one_run(tmp_path: Path, bad: Callable[[], Any]) -> None:
    """A callback may raise anything: its run has failed, and every other run is recorded as before."""
    world = World(tmp_path / "trace.jsonl")
    calls = 0

    async def good() -> None:
        nonlocal calls
        calls += 1

    scheduler = world.recorded()
    await scheduler.initialize([task("good", good), task("bad", bad)])
    await world.clock.advance(30 * MINUTE)
    await scheduler.stop()
    runs = [line for line in world.lines() if line["ev"] == "RunEnd"]
    assert sum(line["id"] == "good" and line["ok"] for line in runs) == calls == 31
    failures = [line["ok"] for line in runs if line["id"] == "bad"]
    assert len(failures) >= 31
    assert not any(failures)
    assert sum(event.name == "TaskRunFailed" for event in world.events) == len(failures)
    code, said = verified(world.path)
    assert (code, "0 crashes" in said, said.rstrip().endswith("holds")) == (0, True, True)


async def test_run_that_is_closed_in_a_living_loop_has_failed(tmp_path: Path) -> None:
    """A run whose coroutine somebody closes has failed, and recording goes on."""
    world = World(tmp_path / "trace.jsonl")

    async def lasting() -> None:
        await asyncio.get_running_loop().create_future()

    scheduler = world.recorded()
    await scheduler.initialize([task("lasting", lasting, "1 12 * * *"), task("other")])
    await world.clock.advance(MINUTE)
    [run] = [each for each in asyncio.all_tasks() if each.get_name() == "lasting"]
    coroutine = run.get_coro()
    assert coroutine is not None
    coroutine.close()
    run.cancel()
    await world.clock.advance(3 * MINUTE)
    ends = [line for line in world.lines() if line["ev"] == "RunEnd"]
    assert [line["ok"] for line in ends if line["id"] == "lasting"] == [False]
    assert sum(line["id"] == "other" for line in ends) == 5
    await crash(scheduler)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the engine has no loop left
def test_loop_that_is_dropped_leaves_a_trace_as_a_death_does(tmp_path: Path) -> None:
    """Coroutines that are closed because their loop is gone have no end that anybody saw."""
    world = World(tmp_path / "trace.jsonl")
    closed: list[None] = []

    async def lasting() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append(None)

    async def life() -> None:
        await world.recorded().initialize([task("a", lasting)])
        await world.clock.advance(MINUTE)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(life())
    for left in asyncio.all_tasks(loop):
        left._log_destroy_pending = False  # type: ignore[attr-defined]  # that they are left is the point
    loop.close()
    del loop, left, world.recorder
    world.clock = VirtualClock(NOON)
    gc.collect()
    assert closed
    assert [line["ev"] for line in world.lines()[1:]] == ["InitStart", "InitEnd", "RunStart"]
    assert world.reports() == []


async def test_call_that_is_closed_stops_the_recorder_and_says_so(tmp_path: Path) -> None:
    """Nobody knows what became of a call that was closed, so the recorder stops, and all say so."""
    world = World(tmp_path / "trace.jsonl")
    scheduler = world.recorded()
    await scheduler.initialize([task("a")])
    await world.clock.advance(MINUTE)
    call = scheduler.initialize([task("b")])
    call.send(None)
    call.close()
    await world.clock.advance(5 * MINUTE)
    assert world.reports() == ["RecorderFault"]
    code, said = verified(world.path)
    assert (code, " violated  " in said) == (2, False)
    assert "inconclusive: nothing was recorded from" in said


# --- monitors and clusters ---


def test_monitor_that_fails_says_so() -> None:
    """A monitor that cannot go on reports it once, and nothing holds any more."""
    seen: list[Event] = []
    monitor = Monitor([seen.append])
    recorder = Recorder(None, monitor=monitor, store="fresh", clock=VirtualClock(NOON), timezone=UTC)
    recorder.wrap(Scheduler(MemoryStore(), clock=VirtualClock(NOON), timezone=UTC))
    monitor.begin(recorder.header)
    for _ in range(3):
        monitor(RunStart(t=1.0, id=["not a name"]))  # type: ignore[arg-type]
    assert [event.name for event in seen] == ["MonitorFault"]
    assert monitor.outcome.overall is Verdict.INCONCLUSIVE


async def test_gap_of_a_node_blames_no_node(small_disk: Path) -> None:
    """Where a node of a cluster could not record, nothing from there on is held against any."""
    world = World(small_disk / "a.jsonl")
    scheduler = world.recorded(node=NodeName("a", 10_000_000), tick=timedelta(seconds=30))
    await scheduler.initialize([task("x")])
    await world.clock.advance(3 * MINUTE)
    filler = fill(small_disk)
    await world.clock.advance(120 * MINUTE)
    code, said = verified(world.path)
    assert (code, " violated  " in said) == (2, False)
    filler.unlink()
    await world.clock.advance(3 * MINUTE)
    await scheduler.stop()
    outcome = judged_together(world.path.read_bytes().splitlines(keepends=True))
    assert (outcome.violations, len(outcome.gaps), outcome.overall) == ([], 1, Verdict.INCONCLUSIVE)
    assert verified(world.path)[0] == 2


# --- a real process ---

PROGRAM = """
import asyncio, sys
from datetime import timedelta
from duly import Scheduler
from duly.verify import Recorder

async def main():
    scheduler = Recorder(sys.argv[1], tick=timedelta(seconds=0.01)).wrap(Scheduler(":memory:"))
    await scheduler.initialize([])
    print("recording", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await scheduler.stop()

asyncio.run(main())
"""


def test_process_that_is_killed_on_a_full_disk(small_disk: Path) -> None:
    """A recorder that is killed while its disk is full leaves a trace that is not taken for complete."""
    path = small_disk / "trace.jsonl"
    command = [sys.executable, "-c", PROGRAM, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "recording\n"
        fill(small_disk)
        assert "RecorderFault" in process.stderr.readline()
        process.kill()
    with path.open("rb") as file:
        assert judged(file).fault_count == 0
    code, said = verified(path)
    assert (code, "to the end" in said) == (2, True)


class BrokenDaemon(WatchedDaemon):
    """A daemon whose monitor cannot tell the time any more."""

    is_broken = False

    def steady_us(self) -> int:
        """Time that no step changes, while that can be told."""
        if self.is_broken:
            raise OSError("no time left")
        return super().steady_us()


async def test_monitor_of_a_daemon_that_fails_is_reported(tmp_path: Path) -> None:
    """A monitor of timers that fails is in the health of its daemon, in the log, and vouches for nothing."""
    world = BrokenDaemon(tmp_path)
    async with world.life() as watch:
        await world.clock.advance(90 * MINUTE)
        assert [one.verdict for one in watch.verification() or ()].count("holds") > 0
        world.is_broken = True
        await world.clock.advance(90 * MINUTE)
        assert [event.name for event in world.told].count("MonitorFault") == 1
        assert not watch.is_looking
        assert [one.verdict for one in watch.verification() or ()].count("holds") == 0
        assert watch._daemon is not None
        status = await OPERATIONS["status"].function(watch._daemon, Nothing(), "test")
        [reason] = status.health.reasons
        assert reason == "the monitor of the timers failed and watches no more: OSError: no time left"
