"""The recorder: what happens at the boundary is in the trace, and nothing else changes."""

import asyncio
import functools
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from zoneinfo import ZoneInfo

import pytest

from duly import Event, InvalidRegistrationError, Scheduler, StoreError, in_thread
from duly.events import CUT_OFF
from duly.instant import instant_of
from duly.store import MemoryStore, Store
from duly.testing import FaultyStore, VirtualClock, crash
from duly.verify import Monitor, Recorder, Verdict, judged
from duly.verify.cluster import judged_together
from duly.verify.emitter import NodeName
from duly.verify.trace import StoreKnown, Trace

NOON = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


async def nothing() -> None:
    """A callback."""


def task(name: str, callback: Any = nothing, cron: str = "* * * * *") -> tuple[Any, ...]:
    """A registration."""
    return name, cron, callback, MINUTE


def kinds(path: Path) -> list[str]:
    """The names of the events in a trace file, without ticks."""
    with path.open("rb") as file:
        return [type(item.event).__name__ for item in Trace(file) if not hasattr(item, "reason")]


def older_parts(path: Path) -> list[Path]:
    """The parts that were put aside, oldest first."""
    return sorted(path.parent.glob(f"{path.name}.*"), key=lambda part: -int(part.suffix[1:]))


def verdict(path: Path) -> Verdict:
    """What the checker says of a trace file."""
    with path.open("rb") as file:
        outcome = judged(file)
    assert outcome.violations == []
    return outcome.overall


def recorded(
    path: Path | None, place: Store, clock: VirtualClock, *, store: StoreKnown = "fresh", **options: Any
) -> tuple[Scheduler, Recorder]:
    """A scheduler with a recorder around it, and the recorder."""
    recorder = Recorder(path, store=store, **options)
    return recorder.wrap(Scheduler(place, clock=clock, timezone=UTC)), recorder


async def test_life_is_recorded_and_verified(tmp_path: Path) -> None:
    """Calls, runs, ends and a step of the clock are written down, and the checker is content."""
    path, clock = tmp_path / "trace.jsonl", VirtualClock(NOON)
    scheduler, recorder = recorded(path, MemoryStore(), clock)
    await scheduler.initialize([task("a")])
    await clock.advance(MINUTE)
    clock.step(timedelta(hours=1))
    await clock.advance(timedelta(0))
    await scheduler.stop()
    recorder.close()
    run = ["RunStart", "RunEnd"]
    assert kinds(path) == [
        *("InitStart", "InitEnd", *run, *run),
        *("ClockStep", *run, "StopStart", "StopEnd", "End"),
    ]
    assert verdict(path) is Verdict.HOLDS


async def test_crashes_are_inferred(tmp_path: Path) -> None:
    """A new process after one that never stopped means a crash; what it cut off may start again."""
    path, clock, store = tmp_path / "trace.jsonl", VirtualClock(NOON), MemoryStore()

    async def lasting() -> None:
        await clock.sleep_until(clock.now() + timedelta(hours=1))

    for _ in range(3):
        scheduler, _ = recorded(path, store, clock)
        await scheduler.initialize([task("a", lasting, "0,1 12 * * *")])
        await clock.advance(MINUTE)
        await crash(scheduler)
    with path.open("rb") as file:
        outcome = judged(file)
    assert (outcome.violations, outcome.crashes, outcome.starts) == ([], 2, 3)


async def test_clock_set_back_between_processes_is_written_down(tmp_path: Path) -> None:
    """A process that begins before the last one ended says so, so that time goes back in good order."""
    path, clock, store = tmp_path / "trace.jsonl", VirtualClock(NOON), MemoryStore()
    scheduler, _ = recorded(path, store, clock)
    await scheduler.initialize([task("a")])
    await clock.advance(MINUTE)
    await scheduler.stop()
    clock.step(-timedelta(hours=2))
    scheduler, _ = recorded(path, store, clock)
    await scheduler.initialize([task("a")])
    await clock.advance(MINUTE)
    await scheduler.stop()
    assert "ClockStep" in kinds(path)
    assert verdict(path) is Verdict.HOLDS


async def test_stop_inside_a_callback_ends_with_its_run(tmp_path: Path) -> None:
    """A stop by a callback is over when that callback is, for nothing may run when a stop has returned."""
    path, clock = tmp_path / "trace.jsonl", VirtualClock(NOON)

    async def stopper() -> None:
        await scheduler.stop()

    scheduler, _ = recorded(path, MemoryStore(), clock)
    await scheduler.initialize([task("a", stopper)])
    await clock.advance(MINUTE)
    assert kinds(path)[-3:] == ["StopStart", "RunEnd", "StopEnd"]
    assert verdict(path) is Verdict.HOLDS


async def test_stop_that_does_not_wait_is_found_out(tmp_path: Path) -> None:
    """A stop that returns while a callback runs is written when it returns, and that is S3."""
    path, clock = tmp_path / "trace.jsonl", VirtualClock(NOON)

    class Hasty:
        """A scheduler whose stop waits for nothing."""

        async def initialize(self, registrations: Sequence[Sequence[Any]]) -> None:
            asyncio.get_running_loop().call_soon(self.begin, registrations[0][2])

        def begin(self, callback: Any) -> None:
            self.run = asyncio.ensure_future(callback())

        async def stop(self) -> None:
            return

    async def lasting() -> None:
        await clock.sleep_until(clock.now() + MINUTE)

    scheduler = Recorder(path, clock=clock, timezone=UTC, store="fresh").wrap(Hasty())
    await scheduler.initialize([task("a", lasting)])
    await clock.advance(timedelta(0))
    await scheduler.stop()
    await clock.advance(MINUTE)
    with path.open("rb") as file:
        assert [violation.property for violation in judged(file).violations] == ["S3", "T5"]


async def test_failed_stop_inside_a_callback_says_so(tmp_path: Path) -> None:
    """A stop from inside a run whose last write fails is recorded as failed; the restart is then right."""
    path, clock, inner = tmp_path / "trace.jsonl", VirtualClock(NOON), MemoryStore()
    store = FaultyStore(inner)

    async def stopper() -> None:
        store.fail(StoreError(store="x", reason="is broken"))
        await scheduler.stop()

    scheduler, _ = recorded(path, store, clock, persist_window=MINUTE)
    await scheduler.initialize([task("a", stopper, "0 12 * * *")])
    await clock.advance(timedelta(seconds=10))
    assert b'"StopEnd","call":2,"ok":false' in path.read_bytes()
    store.heal()
    scheduler, _ = recorded(path, store, clock, persist_window=MINUTE)
    await scheduler.initialize([task("a", cron="0 12 * * *")])
    await clock.advance(timedelta(seconds=10))
    await scheduler.stop()
    assert verdict(path) is Verdict.HOLDS


async def test_trace_that_can_be_written_later_begins_anew(tmp_path: Path) -> None:
    """A folder that comes late gets a trace that says what it does not know; that decides nothing."""
    path, clock = tmp_path / "late" / "trace.jsonl", VirtualClock(NOON)
    scheduler, _ = recorded(path, MemoryStore(), clock)
    await scheduler.initialize([task("a")])
    await clock.advance(MINUTE)
    path.parent.mkdir()
    await clock.advance(3 * MINUTE)
    await scheduler.stop()
    assert kinds(path).count("RunStart") == 3
    assert verdict(path) is Verdict.INCONCLUSIVE
    with path.open("rb") as file:
        gaps = [(gap.from_us, gap.to_us) for gap in judged(file).gaps]
    assert gaps == [(instant_of(NOON), instant_of(NOON + timedelta(seconds=90)))]


async def test_stop_given_up_in_its_turn_ends_with_the_runs(tmp_path: Path) -> None:
    """A stop that its caller gives up goes on, and is over when nothing runs any more."""
    path, clock = tmp_path / "trace.jsonl", VirtualClock(NOON)

    async def lasting() -> None:
        await clock.sleep_until(clock.now() + MINUTE)

    scheduler, _ = recorded(path, MemoryStore(), clock)
    await scheduler.initialize([task("a", lasting)])
    await clock.advance(timedelta(0))
    stopping = asyncio.create_task(scheduler.stop())
    await clock.advance(timedelta(seconds=1))
    stopping.cancel()
    await clock.advance(MINUTE)
    assert kinds(path)[-3:] == ["StopStart", "RunEnd", "StopEnd"]
    await scheduler.initialize([task("a")])
    await clock.advance(MINUTE)
    await scheduler.stop()
    assert verdict(path) is Verdict.HOLDS


async def test_initialize_given_up_before_its_turn_is_void(tmp_path: Path) -> None:
    """An initialize that is given up while it waits for another changes nothing, in the trace neither."""
    path, clock = tmp_path / "trace.jsonl", VirtualClock(NOON)
    scheduler, _ = recorded(path, MemoryStore(), clock)
    first = asyncio.create_task(scheduler.initialize([task("a")]))
    second = asyncio.create_task(scheduler.initialize([task("b")]))
    await asyncio.sleep(0)  # noqa: TID251 (lets both begin)
    second.cancel()
    await first
    await clock.advance(MINUTE)
    await scheduler.stop()
    assert b'"void":true' in path.read_bytes()
    assert verdict(path) is Verdict.HOLDS


async def test_initialize_given_up_in_its_turn_takes_effect(tmp_path: Path) -> None:
    """An initialize that is given up half-way takes effect all the same, and the trace says so."""
    path, clock = tmp_path / "trace.jsonl", VirtualClock(NOON)
    scheduler, _ = recorded(path, _SlowStore(clock), clock)
    call = asyncio.create_task(scheduler.initialize([task("a")]))
    await clock.advance(timedelta(milliseconds=500))
    call.cancel()
    await clock.advance(MINUTE)
    assert call.cancelled()
    await scheduler.stop()
    assert kinds(path)[:3] == ["InitStart", "InitEnd", "RunStart"]
    assert verdict(path) is Verdict.HOLDS


class _SlowStore(MemoryStore):
    """A store that takes a second to open."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    async def open(self, new_id: str) -> Any:
        """Open, a second later."""
        await self._clock.sleep_until(self._clock.now() + timedelta(seconds=1))
        return await super().open(new_id)


async def test_bad_list_leaves_no_trace(tmp_path: Path) -> None:
    """What the scheduler refuses at the call is refused all the same, and is not recorded."""
    path = tmp_path / "trace.jsonl"
    scheduler, _ = recorded(path, MemoryStore(), VirtualClock(NOON))
    bad: Sequence[Any] = [task("a", lambda: None), task("a", lambda _x: None), ("a",), 5]
    for item in bad:
        with pytest.raises(Exception, match=r"[Ii]nvalid|async"):
            await scheduler.initialize([item])
    with pytest.raises(InvalidRegistrationError, match="in_thread"):
        await scheduler.initialize([task("a", print)])
    assert not path.exists()


async def test_every_kind_of_callback_is_recorded(tmp_path: Path) -> None:
    """Functions, partials, objects, methods, mocks and functions in threads are called as they would be."""
    path, clock, called = tmp_path / "trace.jsonl", VirtualClock(NOON), []

    async def with_argument(name: str) -> None:
        called.append(name)

    class Callable:
        async def __call__(self) -> None:
            called.append("object")

        async def method(self) -> None:
            called.append("method")

    mock = AsyncMock()
    scheduler, _ = recorded(path, MemoryStore(), clock)
    callbacks = [
        functools.partial(with_argument, "partial"),
        Callable(),
        Callable().method,
        mock,
        in_thread(lambda: called.append("thread")),
    ]
    await scheduler.initialize([task(str(index), callback) for index, callback in enumerate(callbacks)])
    await clock.advance(timedelta(0))
    assert sorted(called) == ["method", "object", "partial", "thread"]
    mock.assert_awaited_once()
    await scheduler.stop()
    assert kinds(path).count("RunStart") == kinds(path).count("RunEnd") == 5


async def test_unwritable_trace_harms_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no trace can be written the scheduler runs on, and one line on stderr says what is missing."""
    path, clock = tmp_path / "no" / "such" / "folder" / "trace.jsonl", VirtualClock(NOON)
    scheduler, _ = recorded(path, MemoryStore(), clock)
    calls: list[None] = []

    async def callback() -> None:
        calls.append(None)

    await scheduler.initialize([task("a", callback)])
    await clock.advance(2 * MINUTE)
    await scheduler.stop()
    assert len(calls) == 3
    assert capsys.readouterr().err.count("trace cannot be") == 1


async def test_listener_that_raises_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """A listener of the trace that raises is told of, and everything goes on."""
    clock = VirtualClock(NOON)

    def broken(_event: object) -> None:
        raise ValueError("no")

    scheduler, _ = recorded(None, MemoryStore(), clock, listeners=[broken])
    await scheduler.initialize([task("a")])
    await scheduler.stop()
    assert "ValueError: no" in capsys.readouterr().err


async def test_rotated_parts_verify_together_and_alone(tmp_path: Path) -> None:
    """A trace in many parts holds when read as a chain, and the last part holds by itself."""
    path, clock = tmp_path / "trace.jsonl", VirtualClock(NOON)

    async def lasting() -> None:
        await clock.sleep_until(clock.now() + timedelta(seconds=90))

    scheduler, _ = recorded(path, MemoryStore(), clock, rotate_bytes=1_500, keep=50)
    await scheduler.initialize([task("a"), task("b", lasting)])
    await clock.advance(20 * MINUTE)
    stopping = asyncio.create_task(scheduler.stop())
    await clock.advance(2 * MINUTE)
    await stopping
    parts = older_parts(path)
    assert len(parts) > 2
    chain = b"".join(part.read_bytes() for part in [*parts, path]).splitlines(keepends=True)
    assert judged(chain).overall is Verdict.HOLDS
    for part in [*parts[1:], path]:
        outcome = judged(part.read_bytes().splitlines(keepends=True))
        assert (outcome.violations, outcome.faults) == ([], [])


async def test_monitor_tells_of_a_violation(tmp_path: Path) -> None:
    """A scheduler that starts what it must not is caught in the act: an event tells listeners and the log."""
    seen: list[Event] = []
    clock = VirtualClock(NOON)

    class Eager:
        """A scheduler that calls everything twice, at once."""

        async def initialize(self, registrations: Sequence[Sequence[Any]]) -> None:
            self.callbacks = [item[2] for item in registrations]

        async def stop(self) -> None:
            for callback in self.callbacks * 2:
                await callback()

    monitor = Monitor([seen.append])
    recorder = Recorder(tmp_path / "trace.jsonl", clock=clock, timezone=UTC, store="fresh", monitor=monitor)
    scheduler = recorder.wrap(Eager())
    await scheduler.initialize([task("a", cron="0 3 * * *")])
    await scheduler.stop()
    properties = [event.fields["property"] for event in seen]
    assert {event.name for event in seen} == {"PropertyViolated"}
    assert {"S1a", "S1d", "T1"} <= set(properties)
    assert seen[0].fields["taskName"] == "a"
    assert monitor.outcome.overall is Verdict.VIOLATED


async def test_monitor_that_begins_late_blames_nobody_for_the_past(tmp_path: Path) -> None:
    """In a second process the monitor knows nothing of the first, and objects to nothing it explains."""
    path, clock, store = tmp_path / "trace.jsonl", VirtualClock(NOON), MemoryStore()
    for _ in range(2):
        monitor = Monitor()
        scheduler, _ = recorded(path, store, clock, monitor=monitor)
        await scheduler.initialize([task("a", cron="0 * * * *")])
        await clock.advance(timedelta(hours=1))
        await crash(scheduler)
        await clock.advance(timedelta(hours=1))
        assert monitor.outcome.violations == []


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        (UTC, "UTC"),
        (ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
        (timezone(timedelta(hours=2)), "Etc/GMT-2"),
        (timezone(timedelta(hours=-11)), "Etc/GMT+11"),
    ],
)
def test_zone_is_named_as_a_reader_finds_it(zone: tzinfo, name: str) -> None:
    """The header names the zone by the name under which any reader finds the same one."""
    recorder = Recorder(None)
    recorder.wrap(Scheduler(":memory:", timezone=zone))
    assert recorder.header.tz == name


def test_zone_without_a_name_is_refused() -> None:
    """A zone that no reader could find again is refused, with what to write instead."""
    with pytest.raises(ValueError, match=r"ZoneInfo\('Europe/Berlin'\)"):
        Recorder(None).wrap(Scheduler(":memory:", timezone=timezone(timedelta(minutes=30))))


def test_recorder_has_one_scheduler() -> None:
    """A trace tells of one scheduler; a second one needs a recorder of its own."""
    recorder = Recorder(None)
    recorder.wrap(Scheduler(":memory:", timezone=UTC))
    with pytest.raises(RuntimeError, match="one only"):
        recorder.wrap(Scheduler(":memory:", timezone=UTC))


def test_closing_after_the_loop_has_ended(tmp_path: Path) -> None:
    """A recorder can be closed where no event loop runs any more, and writes its end."""
    path, clock = tmp_path / "trace.jsonl", VirtualClock(NOON)
    scheduler, recorder = recorded(path, MemoryStore(), clock)

    async def life() -> None:
        await scheduler.initialize([task("a")])
        await clock.advance(MINUTE)
        await scheduler.stop()

    asyncio.run(life())
    recorder.close()
    assert kinds(path)[-1] == "End"


def events_of(path: Path, *kinds_: str) -> list[dict[str, Any]]:
    """The events of these kinds, without who wrote them and when."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in {"t", "m", "proc"}}
        for line in lines
        if line["ev"] in kinds_
    ]


async def test_a_node_of_a_cluster_is_recorded(tmp_path: Path) -> None:
    """What happens to a node stands in its trace, and each start has the token and the id of its run."""
    path, clock = tmp_path / "a.jsonl", VirtualClock(NOON)
    scheduler = Scheduler(MemoryStore(), clock=clock, timezone=UTC)
    announce = scheduler._announcer.announce
    recorder = Recorder(path, tick=timedelta(seconds=30), node=NodeName("a", 10_000_000))
    wrapped = recorder.wrap(scheduler)
    announce("TaskRunStarted", taskName="x", token=7, runId="r")  # as a cluster would just before the call
    await wrapped.initialize([task("x", cron="1 * * * *")])
    announce("NodeJoined", node=1, name="a", namespace="default", leaseMs=6000)
    announce("ListReconciled", generation=3, added=1, overridden=0, orphaned=0)
    announce("StoreFault", error="gone")
    announce("StoreFault", error="still gone")
    announce("StoreRecovered")
    announce("TrustLost", runs=["y"])
    announce("NodeReturned", node=2, before=1, kept=0, released=1)
    announce("NodeFenced", node=3, name="b", runs=2)
    announce("ServerChanged", server="two", forgot=True)
    announce("TaskInterruptedAgain", taskName="x", interruptions=3, retryAt="2026-01-01T12:01:00+00:00")
    await clock.advance(MINUTE)
    await wrapped.stop()
    head, *lines = (json.loads(line) for line in path.read_bytes().splitlines())
    assert (head["node"], head["failover_ms"], head["tick_ms"]) == ("a", 10_000, 30_000)
    calls = {"Tick", "InitStart", "InitEnd", "StopStart", "StopEnd"}
    seen = events_of(path, *({line["ev"] for line in lines} - calls))
    assert sorted(seen, key=lambda each: each["ev"]) == [
        {"ev": "ListReconciled", "generation": 3},
        {"ev": "NodeFenced", "node": 3, "name": "b"},
        {"ev": "NodeJoined", "node": 1, "namespace": "default", "lease_ms": 6000},
        {"ev": "NodeReturned", "node": 2},
        {"ev": "Reachable"},
        {"ev": "RunEnd", "id": "x", "ok": True, "run": 1},
        {"ev": "RunStart", "id": "x", "run": 1, "token": 7, "run_id": "r"},
        {"ev": "ServerChanged", "server": "two", "forgot": True},
        {"ev": "TaskInterruptedAgain", "id": "x", "retry": 1767268860000},
        {"ev": "TrustLost", "runs": ["y"]},
        {"ev": "Unreachable"},
    ]


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_run_that_is_cut_off_has_no_end(tmp_path: Path, *, is_cancelled: bool) -> None:
    """A run that is cancelled with the trust of its node has no end; one that goes on has."""
    path, clock = tmp_path / "a.jsonl", VirtualClock(NOON)
    scheduler = Scheduler(MemoryStore(), clock=clock, timezone=UTC)
    recorder = Recorder(path, node=NodeName("a", 10_000_000))
    wrapped = recorder.wrap(scheduler)

    async def cut() -> None:
        scheduler._announcer.announce("TrustLost", runs=["x"])
        if is_cancelled:
            current = asyncio.current_task()
            assert current is not None
            current.cancel(CUT_OFF)
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)

    await wrapped.initialize([("x", "1 * * * *", cut, 60 * MINUTE)])
    await clock.advance(MINUTE)
    await wrapped.stop()
    seen = [event["ev"] for event in events_of(path, "RunStart", "TrustLost", "RunEnd")]
    assert seen == ["RunStart", "TrustLost", *([] if is_cancelled else ["RunEnd"])]
    outcome = judged(path.read_bytes().splitlines(keepends=True))
    assert {each.property for each in outcome.violations} == (set() if is_cancelled else {"T8"})


async def test_parts_of_a_node_s_trace(tmp_path: Path) -> None:
    """The parts of a node's trace verify as a chain, and the last of them alone."""
    path, clock = tmp_path / "a.jsonl", VirtualClock(NOON)
    scheduler = Scheduler(MemoryStore(), clock=clock, timezone=UTC)
    recorder = Recorder(path, store="fresh", node=NodeName("a", 10_000_000), rotate_bytes=1_500, keep=50)
    wrapped = recorder.wrap(scheduler)
    await wrapped.initialize([task("x")])
    await clock.advance(20 * MINUTE)
    await wrapped.stop()
    parts = older_parts(path)
    assert len(parts) > 2
    chain = b"".join(part.read_bytes() for part in [*parts, path]).splitlines(keepends=True)
    outcome = judged_together(chain)
    assert (outcome.violations, outcome.faults, outcome.starts) == ([], [], 21)
    assert judged_together(path.read_bytes().splitlines(keepends=True)).violations == []
