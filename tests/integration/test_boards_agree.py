"""The board in memory and the board in PostgreSQL do the same, whatever is done to them."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from duly.core.task import failed, started, succeeded
from duly.errors import SchedulerError
from duly.instant import Instant
from duly.store.board import (
    AwayEnd,
    Board,
    Change,
    Hold,
    Published,
    Request,
    Row,
    ShardsLostError,
    Stored,
    SupersededError,
    Taken,
    TimerRow,
    View,
    shard_of,
)
from duly.testing.boards import MemoryBoard
from duly.testing.conformance import NOW_US, sample_task
from tests.boards import MemoryTime, PostgresTime, TimedBoard

SHARDS = 3
TTL_US = 10
MEMBERS = (1, 2, 3)
TIMERS = range(5)
TASKS = [sample_task(number) for number in range(1, 7)]


@pytest.fixture
def time(postgres_url: str) -> Iterator[PostgresTime]:
    """The time of both."""
    time = PostgresTime(postgres_url)
    yield time
    time.close()


class Mix(NamedTuple):
    """Which calls are made, and how often."""

    weights: Mapping[str, int]
    displacing: float
    """How many of the lists take the shards from their holders."""
    pauses_us: Sequence[int]
    """Between two calls, one of these passes."""
    outcomes: Sequence[tuple[str, type[Exception] | None]]
    """What happens, whatever the seed."""


OF_TASKS = Mix(
    {"join": 3, "beat": 8, "publish": 8, "take": 8, "write": 14, "report": 5, "give": 3, "leave": 1},
    displacing=0.8,
    pauses_us=[0, 0, 1, 1, 2, 5],
    outcomes=[("write", None), ("write", ShardsLostError), ("take", None), ("publish", None)],
)
OF_TIMERS = Mix(
    {"join": 5, "beat": 20, "publish": 8, "take": 16, "write": 3, "write_timers": 40, "give": 2, "leave": 1},
    displacing=0.1,
    pauses_us=[0, 0, 0, 1, 1, 2],
    outcomes=[("write_timers", refusal) for refusal in (None, ShardsLostError, SupersededError)],
)
OF_REQUESTS = Mix(
    {
        "join": 4,
        "beat": 20,
        "take": 12,
        "ask": 24,
        "take_requests": 24,
        "answer": 16,
        "reply": 24,
        "give": 2,
        "leave": 1,
    },
    displacing=0,
    pauses_us=[0, 0, 0, 1, 1, 2],
    outcomes=[(kind, None) for kind in ("ask", "take_requests", "answer", "reply")],
)
OF_HOLDERS = {"write_timers", "take_requests", "answer"}
NOT_OF_MEMBERS = {"ask", "reply"}


class Chance:
    """One random call after another, from what may be known by now and what is long out of date."""

    def __init__(self, seed: int, time: MemoryTime, mix: "Mix") -> None:
        self._mix = mix
        self._random, self._random_displacing = random.Random(seed), random.Random(seed)
        self._time = time
        self._terms = dict.fromkeys(range(SHARDS), 0)
        self._number = 0
        self._edition = 0
        self._requests = 3
        self._given: dict[int, list[int]] = {member: [] for member in MEMBERS}
        """By member, the requests that it was given."""
        self._holders: dict[int, int] = {}
        self._starts: list[int] = [NOW_US]
        self.shown: list[Stored] = []
        """What the last one who published was shown."""

    def call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The name of a method of boards, and what to give it."""
        kind = self._random.choices(list(self._mix.weights), list(self._mix.weights.values()))[0]
        holders = [*self._holders.values()] if kind in OF_HOLDERS else []
        member = self._random.choice([*MEMBERS, *holders * 4])
        values: tuple[tuple[Any, ...], dict[str, Any]] = getattr(self, f"_{kind}")(member)
        return kind, (*([] if kind in NOT_OF_MEMBERS else [member]), *values[0]), values[1]

    def note(self, member: int, answer: object) -> None:
        """Learn the holders, the terms and the editions."""
        if isinstance(answer, Taken):
            self._holders.update((hold.shard, member) for hold in answer.holds)
            self._terms.update((hold.shard, hold.term) for hold in answer.holds)
        if isinstance(answer, list):
            self._given[member] += [request.id for request in answer]
        if isinstance(answer, Published):
            self._edition = max(self._edition, answer.edition)

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

        return (self._random.choice("abcdefghijklmnopqrst"), decide), {
            "displaces": self._random_displacing.random() < self._mix.displacing
        }

    def _take(self, _member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self._some(range(SHARDS)),), {}

    def _write(self, member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        shards = self._some(range(SHARDS))
        self._number += 1
        holds = {self._hold(shard): self._number - self._random.choice([0, 0, 0, 0, 3]) for shard in shards}
        tasks = [task for task in TASKS if shard_of(task.name, SHARDS) in shards]
        rows = [self._row(task, member) for task in self._some(tasks)]
        return (holds,), {"rows": rows, "is_whole": self._is_odd()}

    def _write_timers(self, member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        held = [shard for shard, holder in self._holders.items() if holder == member]
        shard = self._random.choice([*range(SHARDS), *held * 4])
        self._number += 1
        number = self._number - self._random.choice([0, 0, 0, 0, 3])
        put = [
            TimerRow(shard, (at, f"timer {at}", None, self._number), self._random.choice([None, *MEMBERS]))
            for at in self._some(TIMERS)
        ]
        edition = self._random.choice([None, self._edition, self._edition, self._edition - 1])
        return (self._hold(shard), number), {
            "put": put,
            "removed": self._some(TIMERS),
            "edition": edition,
        }

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

    def _ask(self, _member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._requests += self._random.random() < 0.8
        shard, until_us = self._random.randrange(SHARDS), self._time.now_us + self._random.randrange(30)
        return (Request(self._request(), shard, "timer", "trigger", "host", until_us),), {}

    def _take_requests(self, _member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return ([self._hold(shard) for shard in self._some(range(SHARDS))],), {}

    def _answer(self, member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._number += 1
        request_id = self._random.choice([self._request(), *self._given[member][-2:]])
        return (request_id, f"answer {self._number} of {member}"), {}

    def _reply(self, _member: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = [each[-1] for each in self._given.values() if each]
        return (self._random.choice([self._request(), *given]),), {"withdraws": self._random.random() < 0.2}

    def _request(self) -> int:
        """One of the latest."""
        return self._requests - self._random.choice([0, 0, 0, 0, 1, 2])

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
        return type(error), getattr(error, "shards", None), getattr(error, "newest", None)
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


@pytest.mark.parametrize("mix", [OF_TASKS, OF_TIMERS, OF_REQUESTS], ids=["tasks", "timers", "requests"])
@pytest.mark.parametrize("seed", range(6))
async def test_boards_agree(postgres_url: str, time: PostgresTime, seed: int, mix: Mix) -> None:
    """Two hundred random calls by three members have the same answers, and leave the same behind."""
    memory, real = MemoryBoard(lambda: time.now_us), TimedBoard(postgres_url, time)
    for board in (memory, real):
        await board.open("id", shards=SHARDS)
    chance, random_time = Chance(seed, time, mix), random.Random(seed)
    kinds: set[tuple[str, type | None]] = set()
    removed = timers = given_requests = 0
    for step in range(200):
        kind, given, named = chance.call()
        expected = await outcome(memory, kind, given, named)
        shown, chance.shown = chance.shown, []
        actual = await outcome(real, kind, given, named)
        assert chance.shown == shown, f"seed {seed}, step {step}"
        removed += sum(row.is_removed for row in shown)
        chance.shown = []
        assert compared(actual) == compared(expected), f"seed {seed}, step {step}: {kind} {given} {named}"
        chance.note(given[0], actual)
        kinds.add((kind, actual[0] if isinstance(actual, tuple) and isinstance(actual[0], type) else None))
        views = compared(await real.view()), compared(await memory.view())
        assert views[0] == views[1], f"seed {seed}, step {step}: {kind} {given} {named}"
        rows = await real.timers()
        assert rows == await memory.timers(), f"seed {seed}, step {step}: {kind} {given} {named}"
        timers = max(timers, len(rows))
        given_requests += len(actual) if isinstance(actual, list) else 0
        time.advance(random_time.choice(mix.pauses_us))
    await real.close()
    assert set(mix.outcomes) <= set(kinds)
    assert removed if mix is OF_TASKS else timers > 1 if mix is OF_TIMERS else given_requests
