"""The board in memory and the board in PostgreSQL do the same, whatever is done to them."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from duly.core.task import failed, started, succeeded
from duly.errors import SchedulerError
from duly.instant import Instant
from duly.store.board import AwayEnd, Board, Change, Hold, Row, Stored, Taken, View, shard_of
from duly.testing.boards import MemoryBoard
from duly.testing.conformance import NOW_US, sample_task
from tests.boards import MemoryTime, PostgresTime, TimedBoard

SHARDS = 3
TTL_US = 10
MEMBERS = (1, 2, 3)
TASKS = [sample_task(number) for number in range(1, 7)]


@pytest.fixture
def time(postgres_url: str) -> Iterator[PostgresTime]:
    """The time of both."""
    time = PostgresTime(postgres_url)
    yield time
    time.close()


class Chance:
    """One random call after another, from what may be known by now and what is long out of date."""

    def __init__(self, seed: int, time: MemoryTime) -> None:
        self._random = random.Random(seed)
        self._time = time
        self._terms = dict.fromkeys(range(SHARDS), 0)
        self._number = 0
        self._starts: list[int] = [NOW_US]
        self.shown: list[Stored] = []
        """What the last one who published was shown."""

    def call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The name of a method of boards, and what to give it."""
        kind = self._random.choices(
            ["join", "beat", "publish", "take", "write", "report", "give", "leave"],
            [3, 8, 8, 8, 14, 5, 3, 1],
        )[0]
        member = self._random.choice(MEMBERS)
        values: tuple[tuple[Any, ...], dict[str, Any]] = getattr(self, f"_{kind}")(member)
        return kind, (member, *values[0]), values[1]

    def note(self, answer: object) -> None:
        """Learn the terms."""
        if isinstance(answer, Taken):
            self._terms.update((hold.shard, hold.term) for hold in answer.holds)

    def _join(self, member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (f"host {member}",), {"ttl_us": TTL_US}

    def _beat(self, _member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"ttl_us": TTL_US, "lag_ms": self._random.randrange(9), "is_leaving": self._is_odd()}

    def _publish(self, member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        put = [self._row(task, member) for task in self._some(TASKS)]
        removed = [task.id for task in self._some(TASKS)]

        def decide(stored: Sequence[Stored], _now_us: Instant, _id: str) -> Change:
            self.shown = [plain(row) for row in stored]
            return Change(put, removed)

        return (self._random.choice("abcdefghijklmnopqrst"), decide), {}

    def _take(self, _member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self._some(range(SHARDS)),), {}

    def _write(self, member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        shards = self._some(range(SHARDS))
        self._number += 1
        holds = {self._hold(shard): self._number - self._random.choice([0, 0, 0, 0, 3]) for shard in shards}
        tasks = [task for task in TASKS if shard_of(task.name, SHARDS) in shards]
        rows = [self._row(task, member) for task in self._some(tasks)]
        return (holds,), {"rows": rows, "is_whole": self._is_odd()}

    def _report(self, _member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        started = self._starts[-3:]
        return (
            [
                AwayEnd(task.id, self._random.choice(started), self._time.now_us, is_failed=self._is_odd())
                for task in self._some(TASKS)
            ],
        ), {}

    def _give(self, _member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ([self._hold(shard) for shard in self._some(range(SHARDS))],), {}

    def _leave(self, _member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {}

    def _hold(self, shard: int) -> Hold:
        return Hold(shard, max(self._terms[shard] - self._random.choice([0, 0, 0, 0, 0, 1]), 0))

    def _row(self, task: Any, member: int) -> Row:
        if self._random.random() < 0.3:
            self._starts.append(self._time.now_us)
        begun = started(task, self._random.choice(self._starts[-2:]), is_retry=self._is_odd())
        ended = self._random.choice([succeeded, failed])(begun, self._time.now_us)
        is_under_way = self._random.random() < 0.7
        return Row(begun, self._random.choice([member, *MEMBERS])) if is_under_way else Row(ended)

    def _some(self, things: Any) -> list[Any]:
        return self._random.sample(list(things), self._random.randint(0, len(things)))

    def _is_odd(self) -> bool:
        return self._random.random() < 0.5


async def outcome(board: Board, kind: str, given: tuple[Any, ...], named: dict[str, Any]) -> object:
    """What a call gives, or how it fails, in values that can be compared."""
    try:
        answer = await getattr(board, kind)(*given, **named)
    except SchedulerError as error:
        return type(error), getattr(error, "shards", None)
    return answer


def compared(answer: object) -> object:
    """An answer with its rows as tuples, and without the server, of which a board in memory has none."""
    if isinstance(answer, View):
        return msgspec.structs.replace(answer, server="")
    if isinstance(answer, Taken):
        return list(answer.holds), [plain(stored) for stored in answer.stored], answer.now_us
    return answer


def plain(stored: Stored) -> Stored:
    """A row whose record is a tuple."""
    return stored._replace(record=tuple(stored.record))


@pytest.mark.parametrize("seed", range(6))
async def test_boards_agree(postgres_url: str, time: PostgresTime, seed: int) -> None:
    """Two hundred random calls by three members have the same answers, and leave the same behind."""
    memory, real = MemoryBoard(lambda: time.now_us), TimedBoard(postgres_url, time)
    for board in (memory, real):
        await board.open("id", shards=SHARDS)
    chance, random_time = Chance(seed, time), random.Random(seed)
    kinds: set[tuple[str, bool]] = set()
    removed = 0
    for step in range(200):
        kind, given, named = chance.call()
        expected = await outcome(memory, kind, given, named)
        shown, chance.shown = chance.shown, []
        actual = await outcome(real, kind, given, named)
        assert chance.shown == shown, f"seed {seed}, step {step}"
        removed += sum(row.is_removed for row in shown)
        chance.shown = []
        assert compared(actual) == compared(expected), f"seed {seed}, step {step}: {kind} {given} {named}"
        chance.note(actual)
        kinds.add((kind, isinstance(actual, tuple) and isinstance(actual[0], type)))
        views = compared(await real.view()), compared(await memory.view())
        assert views[0] == views[1], f"seed {seed}, step {step}: {kind} {given} {named}"
        time.advance(random_time.choice([0, 0, 1, 1, 2, 5]))
    await real.close()
    assert {("write", False), ("write", True), ("take", False), ("publish", False)} <= kinds
    assert removed
