"""The history: what is noted is written in groups, in every kind of store, and waits while it cannot be."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duly.errors import StoreError
from duly.events import Announcer, Event
from duly.store.history import History, MemoryRows, MissRow, Rows, RunRow
from duly.store.sqlite import SQLiteStore
from duly.store.tables import SQLiteRows, TimerShelf, list_query
from duly.testing import VirtualClock
from tests.world import at


@asynccontextmanager
async def in_memory(_path: Path) -> AsyncIterator[Rows]:
    yield MemoryRows()


@asynccontextmanager
async def in_sqlite(path: Path) -> AsyncIterator[Rows]:
    store = SQLiteStore(path / "state.db")
    await store.open("abc")
    try:
        yield SQLiteRows(store)
    finally:
        await store.close()


Kind = Callable[[Path], Any]
KINDS = pytest.mark.parametrize("kind", [in_memory, in_sqlite])


def row(number: int, service: str = "backup", **fields: Any) -> RunRow:
    return RunRow(id=number, service=service, reason="manual", started_us=number * 10, **fields)


def ended(number: int, service: str = "backup", **fields: Any) -> RunRow:
    return row(number, service, ended_us=number * 10 + 5, result="success", **fields)


def run(scenario: Callable[[Rows], Any], kind: Kind, path: Path) -> None:
    async def main() -> None:
        async with kind(path) as rows:
            await scenario(rows)

    asyncio.run(main())


@KINDS
def test_rows_come_back_as_they_were(kind: Kind, tmp_path: Path) -> None:
    """Every field of a run survives, and a row that is put again takes the place of the first."""
    whole = RunRow(
        id=7,
        service="a",
        timer="t",
        reason="catch-up",
        scheduled_us=1,
        started_us=2,
        ended_us=3,
        lasted_us=9,
        result="exit",
        exit_code=4,
        signal=None,
        message="no such file",
        pid=5,
        pid_started=6,
        boot="b",
        output="café\n",
        output_lost=8,
    )

    async def scenario(rows: Rows) -> None:
        await rows.put([row(7, "a")], [])
        await rows.put([whole, row(8)], [])
        assert await rows.run(7) == whole
        assert await rows.run(9) is None
        assert await rows.last_id() == 8
        assert await rows.open_runs() == [row(8)]
        assert await rows.last_ends() == {"a": whole}
        assert await rows.runs(service="a", limit=9) == [whole]
        assert await rows.runs(timer="t", limit=9) == [whole]
        assert await rows.runs(before=8, limit=9) == [whole]
        bare = msgspec.structs.replace(whole, output="")
        assert await rows.trend("a", limit=9) == [bare]
        assert await rows.runs_between(2, 3, limit=9) == [bare]

    run(scenario, kind, tmp_path)


@KINDS
def test_listing(kind: Kind, tmp_path: Path) -> None:
    """Runs and misses are listed newest first, by service or timer, page by page."""

    async def scenario(rows: Rows) -> None:
        await rows.put([row(1), row(2, "other", timer="t"), row(3), row(4)], [])
        assert [each.id for each in await rows.runs(limit=3)] == [4, 3, 2]
        assert [each.id for each in await rows.runs(limit=3, before=3)] == [2, 1]
        assert [each.id for each in await rows.runs(service="backup", limit=9)] == [4, 3, 1]
        assert [each.id for each in await rows.runs(timer="t", limit=9)] == [2]
        misses = [MissRow("t", 1, "overlap"), MissRow("u", 2, "disabled"), MissRow("t", 3, "shutdown")]
        await rows.put([], misses)
        assert await rows.misses(limit=2) == [misses[2], misses[1]]
        assert await rows.misses(timer="t", limit=9) == [misses[2], misses[0]]

    run(scenario, kind, tmp_path)


@KINDS
def test_pruning(kind: Kind, tmp_path: Path) -> None:
    """Old and superfluous runs go; the last of each service that ended stays, and what has not ended."""

    async def scenario(rows: Rows) -> None:
        await rows.put([row(1), ended(2), ended(3), ended(4), ended(5, "rare")], [])
        await rows.put([], [MissRow("t", 10, "overlap"), MissRow("t", 90, "overlap")])
        await rows.prune(oldest_us=36, runs=100)
        assert [each.id for each in await rows.runs(limit=9)] == [5, 4, 1]
        assert await rows.misses(limit=9) == [MissRow("t", 90, "overlap")]
        await rows.put([ended(6), ended(7)], [])
        await rows.prune(oldest_us=0, runs=2)
        assert [each.id for each in await rows.runs(limit=9)] == [7, 6, 5, 1]
        await rows.prune(oldest_us=1000, runs=2)
        assert [each.id for each in await rows.runs(limit=9)] == [7, 5, 1]

    run(scenario, kind, tmp_path)


@KINDS
def test_pruning_misses(kind: Kind, tmp_path: Path) -> None:
    """Old misses go, and all but the newest of each timer; without leave to touch them, none."""

    async def scenario(rows: Rows) -> None:
        misses = [MissRow(timer, at_us, "disabled") for at_us in (50, 40, 60, 70) for timer in ("", "a", "b")]
        await rows.put([], [MissRow("rare", 10, "overlap"), *misses])
        await rows.prune(oldest_us=45, runs=2, misses=False)
        assert len(await rows.misses(limit=99)) == 13
        await rows.prune(oldest_us=45, runs=9)
        assert [each.at_us for each in await rows.misses(limit=99)] == [70] * 3 + [60] * 3 + [50] * 3
        await rows.prune(oldest_us=0, runs=2)
        assert [(each.timer, each.at_us) for each in await rows.misses(limit=99)] == [
            (timer, at_us) for at_us in (70, 60) for timer in ("b", "a", "")
        ]

    run(scenario, kind, tmp_path)


@KINDS
def test_last_ends_of_many(kind: Kind, tmp_path: Path) -> None:
    """Of every service the newest run that ended is found, also behind newer ones that have not."""

    async def scenario(rows: Rows) -> None:
        assert await rows.last_ends() == {}
        await rows.put([ended(1, "b"), ended(2, "a"), ended(3, "a"), ended(6, "")], [])
        await rows.put([row(4, "a"), row(5, "c")], [])
        assert {name: each.id for name, each in (await rows.last_ends()).items()} == {"a": 3, "b": 1, "": 6}

    run(scenario, kind, tmp_path)


@KINDS
def test_pruning_spares_what_started_after_the_clock_was_set_back(kind: Kind, tmp_path: Path) -> None:
    """A run whose end lies before its start, because the clock was set back, is as old as its start."""

    async def scenario(rows: Rows) -> None:
        set_back = RunRow(
            id=2, service="backup", reason="manual", started_us=500, ended_us=10, result="success"
        )
        await rows.put([set_back, ended(3), ended(4)], [])
        await rows.prune(oldest_us=100, runs=100)
        assert [each.id for each in await rows.runs(limit=9)] == [4, 2]

    run(scenario, kind, tmp_path)


@KINDS
def test_services_are_declared_anew(kind: Kind, tmp_path: Path) -> None:
    """A declaration takes the place of the one before it."""

    async def scenario(rows: Rows) -> None:
        await rows.declare({"a": "1", "b": "2"})
        await rows.declare({"b": "3"})
        assert await rows.declared() == {"b": "3"}

    run(scenario, kind, tmp_path)


class Grudging(MemoryRows):
    """Rows that refuse to be written for a while, and count the writes that they take."""

    def __init__(self, refusals: int = 0) -> None:
        super().__init__()
        self.refusals = refusals
        self.writes: list[int] = []

    async def put(self, runs: Any, misses: Any) -> None:
        """Refuse, or write."""
        if self.refusals:
            self.refusals -= 1
            raise StoreError(store="state.db", reason="the disk is full")
        self.writes.append(len(runs) + len(misses))
        await super().put(runs, misses)


class Desk:
    """A history over grudging rows in virtual time, and the events it tells."""

    def __init__(self, refusals: int = 0) -> None:
        self.clock = VirtualClock(at("12:00"))
        self.events: list[Event] = []
        self.rows = Grudging(refusals)
        self.history = History(self.rows, self.clock, Announcer([self.events.append], self.clock.now))


def test_what_is_noted_together_is_written_together() -> None:
    """A hundred runs that begin in one turn of the loop cost one write."""

    async def scenario() -> None:
        desk = Desk()
        for number in range(100):
            desk.history.note(row(number))
        await desk.history.settled()
        assert desk.rows.writes == [100]

    asyncio.run(scenario())


def test_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    """After a restart no run gets the number of an earlier one."""

    async def scenario(rows: Rows) -> None:
        clock = VirtualClock(at("12:00"))
        history = History(rows, clock, Announcer([], clock.now))
        await history.open()
        assert [history.new_id(), history.new_id()] == [1, 2]
        history.note(row(2))
        await history.close()
        again = History(rows, clock, Announcer([], clock.now))
        await again.open()
        assert again.new_id() == 3

    run(scenario, in_sqlite, tmp_path)


@KINDS
def test_the_key_stays(kind: Kind, tmp_path: Path) -> None:
    """Every history on one store has the key of the first, so tokens of runs outlive the daemon."""

    async def scenario(rows: Rows) -> None:
        clock = VirtualClock(at("12:00"))
        first, second = (History(rows, clock, Announcer([], clock.now)) for _ in range(2))
        assert first.key != second.key
        await first.open()
        await second.open()
        assert first.key == second.key

    run(scenario, kind, tmp_path)


def test_the_key_is_written_into_a_new_file(tmp_path: Path) -> None:
    """If the file was deleted under a daemon, the new one gets the same key: running jobs have its tokens."""

    async def scenario(rows: Rows) -> None:
        await rows.key(b"the first")
        for name in ("", "-wal", "-shm"):
            os.unlink(f"{tmp_path}/state.db{name}")  # noqa: PTH108 (files, not paths, in a coroutine)
        with pytest.raises(StoreError, match="deleted"):
            await rows.put([row(1)], [])
        await rows.put([row(1)], [])
        assert await rows.key(b"another") == b"the first"

    run(scenario, in_sqlite, tmp_path)


def test_rows_wait_until_the_store_can_write() -> None:
    """A fault is told once, the rows are written when it has passed, and the newest row of a run wins."""

    async def scenario() -> None:
        desk = Desk(refusals=3)
        desk.history.note(row(1))
        desk.history.note_miss(MissRow("t", 5, "overlap"))
        await desk.clock.advance(timedelta(seconds=2))
        desk.history.note(ended(1))
        with pytest.raises(StoreError, match="disk is full"):
            await desk.history.settled()
        assert await desk.history.runs() == [ended(1)]
        await desk.clock.advance(timedelta(seconds=30))
        assert await desk.rows.runs(limit=9) == [ended(1)]
        assert await desk.rows.misses(limit=9) == [MissRow("t", 5, "overlap")]
        assert [event.name for event in desk.events] == ["StoreFault", "StoreRecovered"]

    asyncio.run(scenario())


def test_text_that_cannot_be_encoded_harms_no_other_row(tmp_path: Path) -> None:
    """A message with half a character is kept escaped, and the rows noted with it are kept too."""

    async def scenario(rows: Rows) -> None:
        clock = VirtualClock(at("12:00"))
        history = History(rows, clock, Announcer([], clock.now))
        history.note(row(1, message="no \udcff", output="\ud800\0"))
        history.note(row(2))
        await history.close()
        first, second = await rows.run(1), await rows.run(2)
        assert first is not None
        assert (first.message, first.output) == (r"no \udcff", "\\ud800\ufffd")
        assert second == row(2)

    run(scenario, in_sqlite, tmp_path)


def test_waiting_rows_do_not_fill_the_memory() -> None:
    """While the store cannot write, the oldest ended runs beyond a limit go, are counted, and are told."""

    async def scenario() -> None:
        desk = Desk(refusals=1)
        desk.history.note(row(1))
        with pytest.raises(StoreError):
            await desk.history.settled()
        for number in range(2, 3_002):
            desk.history.note(ended(number))
        assert len(await desk.history.runs(limit=9_999)) == 2_000
        await desk.history.settled()
        assert [each.id for each in reversed(await desk.rows.runs(limit=9_999))] == [1, *range(1_003, 3_002)]
        assert desk.events[-1].fields["lostRuns"] == 1_001

    asyncio.run(scenario())


def test_output_with_nul_is_kept(tmp_path: Path) -> None:
    """Output behind a NUL is not lost: SQLite would end the text there."""

    async def scenario(rows: Rows) -> None:
        clock = VirtualClock(at("12:00"))
        history = History(rows, clock, Announcer([], clock.now))
        history.note(row(1, output="before\0after"))
        await history.settled()
        found = await rows.run(1)
        assert found is not None
        assert found.output == "before\ufffdafter"

    run(scenario, in_sqlite, tmp_path)


def test_timers_are_written_whole_and_removed(tmp_path: Path) -> None:
    """The shelf of timers keeps whole records, which a second writing replaces."""

    def record(number: int, name: str, answered_us: int) -> tuple[object, ...]:
        nothing = (None,) * 7
        return (number, name, "{}", 1, answered_us, *nothing, None, 0, None, None)

    async def scenario() -> None:
        store = SQLiteStore(tmp_path / "state.db")
        contents = await store.open("abc")
        shelf: TimerShelf[tuple[object, ...]] = TimerShelf(store, contents.scheduler_id, lambda each: each)
        await shelf.replace(put=[record(1, "a", 5), record(2, "b", 5)], removed=[])
        await shelf.save([record(2, "b", 6)])
        await shelf.replace(put=[], removed=[1])
        assert (await shelf.open("")).records == [record(2, "b", 6)]
        assert shelf.name == store.name
        await store.close()

    asyncio.run(scenario())


@KINDS
def test_next_run_of_a_service(kind: Kind, tmp_path: Path) -> None:
    """The next run of a service is found past those of others, whether it is written yet or not."""

    async def scenario(rows: Rows) -> None:
        await rows.put([ended(1), ended(2, "web"), ended(4), ended(5)], [])
        assert await rows.next_id("backup", 1) == 4
        assert await rows.next_id("backup", 5) is None
        assert await rows.next_id("nobody", 0) is None
        clock = VirtualClock(at("12:00"))
        history = History(rows, clock, Announcer([], clock.now))
        history.note(row(3))
        history.note(row(6, "web"))
        assert await history.next_id("backup", 1) == 3
        assert await history.next_id("backup", 3) == 4
        assert await history.next_id("web", 2) == 6
        await history.close()

    run(scenario, kind, tmp_path)


@KINDS
def test_runs_of_a_span_of_time(kind: Kind, tmp_path: Path) -> None:
    """Runs that started in a span are found newest first, with those that run since before; no output."""

    async def scenario(rows: Rows) -> None:
        known = [ended(1), row(2, "web"), ended(3, output="x"), ended(4), ended(5), row(6)]
        await rows.put(known, [])
        found = await rows.runs_between(30, 60, 9)
        assert found == [ended(5), ended(4), ended(3), row(2, "web")]
        assert [each.id for each in await rows.runs_between(30, 60, 2)] == [5, 4]
        assert await rows.runs_between(61, 90, 9) == [row(6), row(2, "web")]
        assert await rows.runs_between(0, 10, 9) == []

    run(scenario, kind, tmp_path)


@KINDS
def test_trend_of_a_service(kind: Kind, tmp_path: Path) -> None:
    """The newest runs of one service that have ended, newest first, without their output."""

    async def scenario(rows: Rows) -> None:
        await rows.put([ended(1), ended(2, "web"), ended(3, output="x"), ended(4), row(5)], [])
        assert await rows.trend("backup", limit=2) == [ended(4), ended(3)]
        assert await rows.trend("nobody", limit=2) == []

    run(scenario, kind, tmp_path)


@KINDS
def test_counts_by_result(kind: Kind, tmp_path: Path) -> None:
    """Runs since a moment are counted by how they ended; some may be left out."""

    async def scenario(rows: Rows) -> None:
        failed = row(3, ended_us=31, result="exit")
        await rows.put([ended(1), ended(2), failed, ended(4), row(5)], [])
        assert await rows.counts(20) == {"success": 2, "exit": 1, None: 1}
        assert await rows.counts(20, [4, 5]) == {"success": 1, "exit": 1}
        assert await rows.counts(99) == {}

    run(scenario, kind, tmp_path)


@KINDS
def test_lists_without_output(kind: Kind, tmp_path: Path) -> None:
    """A list need not carry the output, whichever way runs are chosen."""

    async def scenario(rows: Rows) -> None:
        await rows.put([ended(1, timer="t", output="x")], [])
        for service, timer in ((None, None), ("backup", None), (None, "t"), ("backup", "t")):
            (bare,) = await rows.runs(service=service, timer=timer, limit=9, with_output=False)
            (whole,) = await rows.runs(service=service, timer=timer, limit=9)
            assert (bare.output, whole.output) == ("", "x")
        assert await rows.runs(service="backup", timer="other", limit=9) == []

    run(scenario, kind, tmp_path)


def test_what_waits_is_seen() -> None:
    """Rows that are not yet written, or being written, count in every view of the history, and once."""

    class Slow(MemoryRows):
        """Rows whose next write takes as long as one likes."""

        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go_on = asyncio.Event(), asyncio.Event()

        async def put(self, runs: Any, misses: Any) -> None:
            self.begun.set()
            await self.go_on.wait()
            await super().put(runs, misses)

    async def scenario() -> None:
        clock = VirtualClock(at("12:00"))
        rows = Slow()
        history = History(rows, clock, Announcer([], clock.now))

        async def check(*known: RunRow) -> None:
            assert await history.runs_between(0, 99, 9) == list(known)
            assert await history.trend("backup", limit=9) == [each for each in known if each.ended_us]
            assert sum((await history.counts(0)).values()) == len(known)
            assert [each.id for each in await history.runs(limit=9)] == [each.id for each in known]
            for each in known:
                assert await history.run(each.id) == each

        history.note(row(1))
        await check(row(1))
        await rows.begun.wait()
        await check(row(1))
        history.note(ended(1))
        history.note(row(2))
        await check(row(2), ended(1))
        rows.go_on.set()
        await history.settled()
        await check(row(2), ended(1))

    asyncio.run(scenario())


def test_looking_does_not_wait_for_the_writer(tmp_path: Path) -> None:
    """A look into the history is answered while a write is under way, and sees what was written before."""

    async def main() -> None:
        store = SQLiteStore(tmp_path / "state.db")
        await store.open("abc")
        rows = SQLiteRows(store)
        await rows.put([ended(1)], [])
        begun, go_on = threading.Event(), threading.Event()

        def change(_connection: Any) -> None:
            begun.set()
            assert go_on.wait(10)

        writing = asyncio.create_task(store.write(change))
        await asyncio.to_thread(begun.wait, 10)
        assert await asyncio.wait_for(rows.runs_between(0, 99, 9), 10) == [ended(1)]
        assert not writing.done()
        go_on.set()
        await writing
        await rows.put([ended(2)], [])
        assert await rows.counts(0) == {"success": 2}
        await store.close()
        assert not (tmp_path / "state.db-wal").exists()
        with pytest.raises(StoreError):
            await rows.counts(0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("chosen", "index"),
    [
        ({"service": "a", "timer": None}, "run_of_service"),
        ({"service": "a", "timer": "t"}, "run_of_service"),
        ({"service": None, "timer": "t"}, "run_of_timer"),
        ({"service": None, "timer": None}, "PRIMARY KEY"),
    ],
)
def test_lists_are_found_by_index(chosen: dict[str, str | None], index: str, tmp_path: Path) -> None:
    """No list of runs looks at all of a million runs: each is found by an index, in its order."""

    async def main() -> None:
        store = SQLiteStore(tmp_path / "state.db")
        await store.open("abc")
        query, values = list_query(chosen["service"], chosen["timer"], None, 20)
        plan = await store.read(lambda each: each.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall())
        await store.close()
        said = "; ".join(str(step[3]) for step in plan)
        assert index in said
        assert "TEMP B-TREE" not in said

    asyncio.run(main())
