"""The history: what is noted is written in groups, in every kind of store, and waits while it cannot be."""

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from duly.errors import StoreError
from duly.events import Announcer, Event
from duly.store.history import (
    SORTS,
    History,
    HistoryReader,
    MissBucket,
    MissGroup,
    MissRow,
    RunRow,
    RunSearch,
    Span,
    length_us,
    list_query,
    run_sql,
)
from duly.store.memory import MemoryDatabase
from duly.store.past import Past, known_services, known_slots
from duly.store.schema import migrate, migrations, sql
from duly.store.sqlite import SQLiteStore, SQLiteTimerRepository
from duly.testing import VirtualClock
from tests.worlds.histories import LooseHistory
from tests.worlds.scheduler import at


@asynccontextmanager
async def in_memory(_path: Path) -> AsyncIterator[LooseHistory]:
    yield LooseHistory()


@asynccontextmanager
async def in_sqlite(path: Path) -> AsyncIterator[LooseHistory]:
    store = SQLiteStore(path / "state.db")
    await store.open("abc")
    try:
        yield LooseHistory(store)
    finally:
        await store.close()


Kind = Callable[[Path], Any]
KINDS = pytest.mark.parametrize("kind", [in_memory, in_sqlite])


def row(number: int, service: str = "backup", **fields: Any) -> RunRow:
    return RunRow(id=number, service=service, reason="manual", started_us=number * 10, **fields)


def ended(number: int, service: str = "backup", **fields: Any) -> RunRow:
    return row(number, service, ended_us=number * 10 + 5, result="success", **fields)


def failed(number: int, service: str) -> RunRow:
    message = "exited with code 3"
    return msgspec.structs.replace(ended(number, service), result="exit", exit_code=3, message=message)


def run(scenario: Callable[[LooseHistory], Any], kind: Kind, path: Path) -> None:
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

    async def scenario(rows: LooseHistory) -> None:
        await rows.put([row(7, "a")], [])
        await rows.put([whole, row(8)], [])
        assert await rows.run(7) == whole
        assert await rows.run(9) is None
        assert await rows.ask(HistoryReader.last_id) == 8
        assert await rows.ask(HistoryReader.open_runs) == [row(8)]
        assert await rows.runs(service="a", limit=9) == [whole]
        assert await rows.runs(timer="t", limit=9) == [whole]
        assert await rows.runs(before=8, limit=9) == [whole]
        assert await rows.ask(HistoryReader.last_ends) == {"a": whole}
        bare = msgspec.structs.replace(whole, output="")
        assert await rows.search(RunSearch(since_us=2, until_us=3)) == [bare]
        assert await rows.called([7, 8, 9]) == [bare, row(8)]

    run(scenario, kind, tmp_path)


@KINDS
def test_listing(kind: Kind, tmp_path: Path) -> None:
    """Runs and misses are listed newest first, by service or timer, page by page."""

    async def scenario(rows: LooseHistory) -> None:
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

    async def scenario(rows: LooseHistory) -> None:
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

    async def scenario(rows: LooseHistory) -> None:
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

    async def scenario(rows: LooseHistory) -> None:
        assert await rows.ask(HistoryReader.last_ends) == {}
        await rows.put([ended(1, "b"), ended(2, "a"), ended(3, "a"), ended(6, "")], [])
        await rows.put([row(4, "a"), row(5, "c")], [])
        assert {name: each.id for name, each in (await rows.ask(HistoryReader.last_ends)).items()} == {
            "a": 3,
            "b": 1,
            "": 6,
        }

    run(scenario, kind, tmp_path)


@KINDS
def test_pasts(kind: Kind, tmp_path: Path) -> None:
    """The past of a service is what its runs, one after the other, make of it."""

    async def scenario(rows: LooseHistory) -> None:
        assert await rows.ask(known_services) == {}
        good = [ended(number, "good", lasted_us=number) for number in range(1, 30)]
        bad = [ended(30, "bad"), *(failed(number, "bad") for number in range(31, 33))]
        worse = [ended(40, "worse"), *(failed(number, "worse") for number in range(41, 99))]
        await rows.put([*good, *bad, *worse, failed(99, "never"), row(100, "good")], [])
        found = await rows.ask(known_services)
        assert {name: known.last.id for name, known in found.items()} == {
            "bad": 32,
            "good": 29,
            "never": 99,
            "worse": 98,
        }
        assert found["good"].past == Past(tuple(range(10, 30)), last_success_us=295)
        assert found["bad"].past == Past((5,), 2, 310, 305, "exited with code 3")
        assert found["worse"].past == Past((5,), 58, 410, 405, "exited with code 3")
        assert found["never"].past == Past((), 1, 990, None, "exited with code 3")

    run(scenario, kind, tmp_path)


@KINDS
def test_outages(kind: Kind, tmp_path: Path) -> None:
    """Outages are kept by whose and of which job they are; None deletes one."""

    async def scenario(rows: LooseHistory) -> None:
        await rows.put_outages([("ops", "a", "{}"), ("ops", "b", "{}"), ("dev", "a", "{}")])
        await rows.put_outages([("ops", "a", '{"x":1}'), ("ops", "b", None), ("dev", "b", None)])
        assert sorted(await rows.outages()) == [("dev", "a", "{}"), ("ops", "a", '{"x":1}')]

    run(scenario, kind, tmp_path)


@KINDS
def test_newest_slots(kind: Kind, tmp_path: Path) -> None:
    """Of a timer that missed a slot the newest slots are found, run or missed, in the order of time."""

    async def scenario(rows: LooseHistory) -> None:
        runs = [
            msgspec.structs.replace(row(number, timer=timer), scheduled_us=at_us, reason=reason)
            for number, (timer, at_us, reason) in enumerate(
                [("t", 10, "schedule"), ("t", 30, "catch-up"), ("t", 30, "retry"), ("fine", 5, "schedule")]
            )
        ]
        await rows.put(runs, [MissRow("t", 20, "overlap"), MissRow("t", 40, "shutdown")])
        expected = [("t", 10, None), ("t", 20, "overlap"), ("t", 30, None), ("t", 40, "shutdown")]
        assert await rows.ask(lambda reader: reader.newest_slots(9)) == expected
        assert await rows.ask(known_slots) == {"t": ".o."}

    run(scenario, kind, tmp_path)


@KINDS
def test_pruning_spares_what_started_after_the_clock_was_set_back(kind: Kind, tmp_path: Path) -> None:
    """A run whose end lies before its start, because the clock was set back, is as old as its start."""

    async def scenario(rows: LooseHistory) -> None:
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

    async def scenario(rows: LooseHistory) -> None:
        await rows.declare({"a": "1", "b": "2"})
        await rows.declare({"b": "3"})
        assert await rows.ask(HistoryReader.services) == {"b": "3"}

    run(scenario, kind, tmp_path)


class Grudging(History):
    """A history that cannot write for a while, and counts what each write holds."""

    def __init__(self, refusals: int, clock: VirtualClock, announcer: Announcer) -> None:
        super().__init__(MemoryDatabase(), clock, announcer)
        self.refusals = refusals
        self.writes: list[int] = []

    async def put(self, runs: Any, misses: Any) -> None:
        """Refuse, or write."""
        if self.refusals:
            self.refusals -= 1
            raise StoreError(store="state.db", reason="the disk is full")
        self.writes.append(len(runs) + len(misses))
        await super().put(runs, misses)


class World:
    """A grudging history in virtual time, and the events it tells."""

    def __init__(self, refusals: int = 0) -> None:
        self.clock = VirtualClock(at("12:00"))
        self.events: list[Event] = []
        announcer = Announcer([self.events.append], self.clock.now)
        self.history = Grudging(refusals, self.clock, announcer)

    async def written(self) -> list[RunRow]:
        """The runs on disk, newest first."""
        return await self.history.ask(lambda reader: reader.runs(limit=9_999))


def test_what_is_noted_together_is_written_together() -> None:
    """A hundred runs that begin in one turn of the loop cost one write."""

    async def scenario() -> None:
        world = World()
        for number in range(100):
            world.history.record_run(row(number))
        await world.history.settled()
        assert world.history.writes == [100]

    asyncio.run(scenario())


def test_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    """After a restart no run gets the number of an earlier one."""

    async def scenario(rows: LooseHistory) -> None:
        clock = VirtualClock(at("12:00"))
        history = History(rows.database, clock, Announcer([], clock.now))
        await history.open()
        assert [history.new_id(), history.new_id()] == [1, 2]
        history.record_run(row(2))
        await history.close()
        again = History(rows.database, clock, Announcer([], clock.now))
        await again.open()
        assert again.new_id() == 3

    run(scenario, in_sqlite, tmp_path)


@KINDS
def test_the_key_stays(kind: Kind, tmp_path: Path) -> None:
    """Every history on one store has the key of the first, so tokens of runs outlive the daemon."""

    async def scenario(rows: LooseHistory) -> None:
        clock = VirtualClock(at("12:00"))
        first, second = (History(rows.database, clock, Announcer([], clock.now)) for _ in range(2))
        assert first.key != second.key
        await first.open()
        await second.open()
        assert first.key == second.key

    run(scenario, kind, tmp_path)


def test_the_key_is_written_into_a_new_file(tmp_path: Path) -> None:
    """If the file was deleted under a daemon, the new one gets the same key: running jobs have its tokens."""

    async def scenario(rows: LooseHistory) -> None:
        await rows.open()
        first = rows.key
        for name in ("", "-wal", "-shm"):
            os.unlink(f"{tmp_path}/state.db{name}")  # noqa: PTH108 (files, not paths, in a coroutine)
        with pytest.raises(StoreError, match="deleted"):
            await rows.put([row(1)], [])
        await rows.put([row(1)], [])
        again = LooseHistory(rows.database)
        await again.open()
        assert again.key == first

    run(scenario, in_sqlite, tmp_path)


def test_rows_wait_until_the_store_can_write() -> None:
    """A fault is told once, the rows are written when it has passed, and the newest row of a run wins."""

    async def scenario() -> None:
        world = World(refusals=3)
        world.history.record_run(row(1))
        world.history.record_miss(MissRow("t", 5, "overlap"))
        await world.clock.advance(timedelta(seconds=2))
        world.history.record_run(ended(1))
        with pytest.raises(StoreError, match="disk is full"):
            await world.history.settled()
        assert await world.history.runs() == [ended(1)]
        await world.clock.advance(timedelta(seconds=30))
        assert await world.written() == [ended(1)]
        misses = await world.history.ask(lambda reader: reader.misses(limit=9))
        assert misses == [MissRow("t", 5, "overlap")]
        assert [event.name for event in world.events] == ["StoreFault", "StoreRecovered"]

    asyncio.run(scenario())


def test_text_that_cannot_be_encoded_harms_no_other_row(tmp_path: Path) -> None:
    """A message with half a character is kept escaped, and the rows noted with it are kept too."""

    async def scenario(rows: LooseHistory) -> None:
        clock = VirtualClock(at("12:00"))
        history = History(rows.database, clock, Announcer([], clock.now))
        history.record_run(row(1, message="no \udcff", output="\ud800\0"))
        history.record_run(row(2))
        await history.close()
        first, second = await rows.run(1), await rows.run(2)
        assert first is not None
        assert (first.message, first.output) == (r"no \udcff", "\\ud800\ufffd")
        assert second == row(2)

    run(scenario, in_sqlite, tmp_path)


def test_waiting_rows_do_not_fill_the_memory() -> None:
    """While the store cannot write, the oldest ended runs beyond a limit go, are counted, and are told."""

    async def scenario() -> None:
        world = World(refusals=1)
        world.history.record_run(row(1))
        with pytest.raises(StoreError):
            await world.history.settled()
        for number in range(2, 3_002):
            world.history.record_run(ended(number))
        assert len(await world.history.runs(limit=9_999)) == 2_000
        await world.history.settled()
        assert [each.id for each in reversed(await world.written())] == [1, *range(1_003, 3_002)]
        assert world.events[-1].fields["lostRuns"] == 1_001

    asyncio.run(scenario())


def test_output_with_nul_is_kept(tmp_path: Path) -> None:
    """Output behind a NUL is not lost: SQLite would end the text there."""

    async def scenario(rows: LooseHistory) -> None:
        clock = VirtualClock(at("12:00"))
        history = History(rows.database, clock, Announcer([], clock.now))
        history.record_run(row(1, output="before\0after"))
        await history.settled()
        found = await rows.run(1)
        assert found is not None
        assert found.output == "before\ufffdafter"

    run(scenario, in_sqlite, tmp_path)


def test_timers_are_written_whole_and_removed(tmp_path: Path) -> None:
    """The repository of timers keeps whole records, which a second writing replaces."""

    def record(number: int, name: str, answered_us: int) -> tuple[object, ...]:
        nothing = (None,) * 7
        return (number, name, "{}", 1, answered_us, *nothing, None, 0, None, None)

    async def scenario() -> None:
        store = SQLiteStore(tmp_path / "state.db")
        contents = await store.open("abc")
        repository: SQLiteTimerRepository[tuple[object, ...]] = SQLiteTimerRepository(
            store, contents.scheduler_id, lambda each: each
        )
        await repository.replace(put=[record(1, "a", 5), record(2, "b", 5)], removed=[])
        await repository.save([record(2, "b", 6)])
        await repository.replace(put=[], removed=[1])
        assert (await repository.open("")).records == [record(2, "b", 6)]
        assert repository.name == store.name
        await store.close()

    asyncio.run(scenario())


@KINDS
def test_next_run_of_a_service(kind: Kind, tmp_path: Path) -> None:
    """The next run of a service is found past those of others, whether it is written yet or not."""

    async def scenario(rows: LooseHistory) -> None:
        await rows.put([ended(1), ended(2, "web"), ended(4), ended(5)], [])
        assert await rows.next_id("backup", 1) == 4
        assert await rows.next_id("backup", 5) is None
        assert await rows.next_id("nobody", 0) is None
        clock = VirtualClock(at("12:00"))
        history = History(rows.database, clock, Announcer([], clock.now))
        history.record_run(row(3))
        history.record_run(row(6, "web"))
        assert await history.next_id("backup", 1) == 3
        assert await history.next_id("backup", 3) == 4
        assert await history.next_id("web", 2) == 6
        await history.close()

    run(scenario, kind, tmp_path)


def _some_run(rng: random.Random, number: int) -> RunRow:
    """A run of one of three services, that may have failed, may run still, may be a retry."""
    service, result = rng.choice(["backup", "web", "Web 2"]), rng.choice(["success", "success", "exit", None])
    timer = rng.choice([None, "t", "u"])
    output = rng.choice(["", "all well", "No Room left"])
    reason = rng.choice(["schedule", "retry"])
    begun = RunRow(id=number, service=service, timer=timer, reason=reason, started_us=rng.randrange(100))
    if result is None:
        return msgspec.structs.replace(begun, output=output)
    lasted_us, message = rng.choice([None, rng.randrange(9)]), rng.choice(["", "no room"])
    return msgspec.structs.replace(
        begun,
        ended_us=begun.started_us + rng.randrange(-2, 40),
        lasted_us=lasted_us,
        result=result,
        output=output,
        message=message,
        scheduled_us=rng.choice([None, begun.started_us - rng.randrange(9)]),
    )


def _some_search(rng: random.Random) -> RunSearch:
    def maybe(value: Any, other: Any = None) -> Any:
        return value if rng.random() < 0.3 else other

    return RunSearch(
        service=maybe("web"),
        services=maybe(["backup", "Web 2"], None),
        timer=maybe("t"),
        name=maybe("WEB", ""),
        results=maybe(("exit", "timeout")),
        is_running=maybe(True, False),
        reason=maybe("retry"),
        text=maybe("no ROOM", ""),
        since_us=maybe(30, 0),
        until_us=maybe(80, 200),
        sort=rng.choice(SORTS),
        is_down=rng.random() < 0.5,
        skip=rng.choice([0, 0, 3]),
        limit=rng.choice([2, 99]),
    )


@pytest.mark.parametrize("seed", range(40))
@KINDS
def test_search(kind: Kind, tmp_path: Path, seed: int) -> None:
    """A search finds what fits, in its order, whether it is written yet or not, and without its output."""
    rng = random.Random(seed)
    known = [_some_run(rng, number) for number in range(1, rng.randint(2, 40))]
    waiting = [each for each in known if rng.random() < rng.choice([0, 0.3])]

    async def scenario(rows: LooseHistory) -> None:
        await rows.put([each for each in known if each not in waiting], [])
        clock = VirtualClock(at("12:00"))
        history = History(rows.database, clock, Announcer([], clock.now))
        for each in waiting:
            history.record_run(each)
        for _ in range(20):
            wanted = _some_search(rng)
            fit = sorted(filter(wanted.has, known), key=wanted.order, reverse=wanted.is_down)
            fit = [msgspec.structs.replace(each, output="") for each in fit]
            assert await history.search(wanted) == fit[wanted.skip :][: wanted.limit], wanted
        await history.close()

    run(scenario, kind, tmp_path)


@pytest.mark.parametrize("seed", range(20))
@KINDS
def test_buckets(kind: Kind, tmp_path: Path, seed: int) -> None:
    """What began in each part of a span is counted by its end; what reaches into the span comes before it."""
    rng = random.Random(seed)
    known = [_some_run(rng, number) for number in range(1, rng.randint(2, 60))]
    span = Span(from_us := rng.randrange(50), from_us + rng.randint(1, 60), rng.randint(1, 20))
    but = rng.choice([(), ("t",)])

    async def scenario(rows: LooseHistory) -> None:
        await rows.put(known, [])
        counted: dict[tuple[str, int, str | None], list[RunRow]] = {}
        for each in known:
            is_told = each.ended_us is None or each.timer not in but
            if each.service != "web" and span.from_us <= each.started_us < span.to_us and is_told:
                part = (each.started_us - span.from_us) // span.width_us
                counted.setdefault((each.service, part, each.result), []).append(each)
        found = await rows.buckets(["backup", "Web 2"], span, but)
        assert {
            bucket[:3]: (bucket.number, bucket.run, bucket.first_us) for bucket in found if bucket.part >= 0
        } == {
            key: (len(those), max(one.id for one in those), min(one.started_us for one in those))
            for key, those in counted.items()
        }
        for bucket in found:
            if bucket.part == -1:
                reaching = await rows.run(bucket.run)
                assert reaching is not None
                assert reaching.started_us < span.from_us
                lasted_us = length_us(reaching)
                assert lasted_us is None or reaching.started_us + lasted_us > span.from_us
        results: dict[str | None, int] = {}
        for each in known:
            if each.started_us >= span.from_us and (each.ended_us is None or each.timer not in but):
                results[each.result] = results.get(each.result, 0) + 1
        assert await rows.counts(span.from_us, but) == results

    run(scenario, kind, tmp_path)


@KINDS
def test_run_that_reaches_into_a_span(kind: Kind, tmp_path: Path) -> None:
    """Of each service the run before the span counts, if it had not ended when the span begins."""

    async def scenario(rows: LooseHistory) -> None:
        await rows.put([row(1, "web"), ended(2, "old"), ended(3, "backup"), row(9, "web")], [])
        found = await rows.buckets(["web", "old", "backup"], Span(32, 95, 10))
        assert [(each.service, each.part, each.run, each.last_us) for each in found] == [
            ("web", 5, 9, None),
            ("web", -1, 1, None),
            ("backup", -1, 3, 35),
        ]

    run(scenario, kind, tmp_path)


@KINDS
def test_misses_are_counted(kind: Kind, tmp_path: Path) -> None:
    """Misses are grouped by timer and reason, the latest first, and counted in the parts of a span."""

    async def scenario(rows: LooseHistory) -> None:
        misses = [MissRow("t", 1, "overlap"), MissRow("u", 2, "disabled"), MissRow("t", 25, "shutdown")]
        await rows.put([], [*misses, MissRow("t", 29, "overlap")])
        assert await rows.miss_groups(0) == [
            MissGroup("t", "overlap", 2, 1, 29),
            MissGroup("t", "shutdown", 1, 25, 25),
            MissGroup("u", "disabled", 1, 2, 2),
        ]
        assert [group.timer for group in await rows.miss_groups(20, 1)] == ["t"]
        found = await rows.ask(lambda reader: reader.miss_buckets(["t"], Span(0, 30, 10)))
        assert found == [MissBucket("t", 0, 1, 1, "overlap"), MissBucket("t", 2, 2, 25, "overlap")]

    run(scenario, kind, tmp_path)


@pytest.mark.parametrize("query", ["run_buckets", "miss_buckets"])
def test_pictures_are_counted_from_an_index_alone(query: str) -> None:
    """However many runs there are, a picture reads the entries of its lanes in one index, and no row."""
    connection = apsw.Connection(":memory:")
    migrate(connection, 0, migrations())
    values = {"services": "[]", "timers": "[]", "but": "[]", "from": 0, "to": 1, "width": 1}
    plan = [str(step[3]) for step in connection.execute(f"EXPLAIN QUERY PLAN {sql(query)}", values)]
    reads = [step for step in plan if "run" in step or "miss" in step]
    assert [step for step in reads if "COVERING INDEX" not in step and "PRIMARY KEY" not in step] == []
    assert any("_span (" in step for step in reads)


@KINDS
def test_counts_by_result(kind: Kind, tmp_path: Path) -> None:
    """Runs since a moment are counted by how they ended; some may be left out."""

    async def scenario(rows: LooseHistory) -> None:
        failed = row(3, ended_us=31, result="exit")
        await rows.put([ended(1), ended(2), failed, ended(4), row(5)], [])
        assert await rows.counts(20) == {"success": 2, "exit": 1, None: 1}
        assert await rows.ask(lambda reader: reader.counts(20, [4, 5])) == {"success": 1, "exit": 1}
        assert await rows.counts(99) == {}

    run(scenario, kind, tmp_path)


@KINDS
def test_lists_without_output(kind: Kind, tmp_path: Path) -> None:
    """A list need not carry the output, whichever way runs are chosen."""

    async def scenario(rows: LooseHistory) -> None:
        await rows.put([ended(1, timer="t", output="x")], [])
        for service, timer in ((None, None), ("backup", None), (None, "t"), ("backup", "t")):
            (bare,) = await rows.runs(service=service, timer=timer, limit=9, with_output=False)
            (whole,) = await rows.runs(service=service, timer=timer, limit=9)
            assert (bare.output, whole.output) == ("", "x")
        assert await rows.runs(service="backup", timer="other", limit=9) == []

    run(scenario, kind, tmp_path)


def test_what_waits_is_seen() -> None:
    """Rows that are not yet written, or being written, count in every view of the history, and once."""

    class Slow(LooseHistory):
        """A history whose next write takes as long as one likes."""

        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go_on = asyncio.Event(), asyncio.Event()

        async def put(self, runs: Any, misses: Any) -> None:
            self.begun.set()
            await self.go_on.wait()
            await super().put(runs, misses)

    async def scenario() -> None:
        history = Slow()

        async def check(*known: RunRow) -> None:
            assert await history.search(RunSearch(until_us=99)) == list(known)
            assert sum((await history.counts(0)).values()) == len(known)
            assert [each.id for each in await history.runs(limit=9)] == [each.id for each in known]
            for each in known:
                assert await history.run(each.id) == each

        history.record_run(row(1))
        await check(row(1))
        await history.begun.wait()
        await check(row(1))
        history.record_run(ended(1))
        history.record_run(row(2))
        await check(row(2), ended(1))
        history.go_on.set()
        await history.settled()
        await check(row(2), ended(1))

    asyncio.run(scenario())


def test_looking_does_not_wait_for_the_writer(tmp_path: Path) -> None:
    """A look into the history is answered while a write is under way, and sees what was written before."""

    async def main() -> None:
        store = SQLiteStore(tmp_path / "state.db")
        await store.open("abc")
        rows = LooseHistory(store)
        await rows.put([ended(1)], [])
        begun, go_on = threading.Event(), threading.Event()

        def change(_connection: Any) -> None:
            begun.set()
            assert go_on.wait(60)

        writing = asyncio.create_task(store.write(change))
        await asyncio.to_thread(begun.wait, 10)
        assert await asyncio.wait_for(rows.search(RunSearch(until_us=99)), 60) == [ended(1)]
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
        name, values = list_query(chosen["service"], chosen["timer"], None, 20)
        query = run_sql(name)
        plan = await store.read(lambda each: each.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall())
        await store.close()
        said = "; ".join(str(step[3]) for step in plan)
        assert index in said
        assert "TEMP B-TREE" not in said

    asyncio.run(main())
