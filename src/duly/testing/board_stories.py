"""What the stories about boards are told with: a clock that is moved, members, and tasks in chosen shards."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any, Protocol, TypeVar

from duly.core.task import Task
from duly.instant import SECOND_US, Instant
from duly.store.board import (
    Board,
    Change,
    Decide,
    Hold,
    Place,
    Row,
    Seat,
    Stored,
    Taken,
    TimerBoard,
    shard_of,
)
from duly.testing.conformance import NOW_US, sample_task

SHARDS = 4
TTL_US = 10 * SECOND_US
ALL = range(SHARDS)

Another = Callable[[], Board]
AnotherTimerBoard = Callable[[], TimerBoard]

B = TypeVar("B", bound=Board)


class Time(Protocol):
    """The board's clock, which begins at `duly.testing.conformance.NOW_US` and stands still."""

    now_us: Instant

    def advance(self, by_us: int, /) -> None:
        """Let time pass."""
        ...

    def change_server(self) -> None:
        """Have another server of the board answer from now on; of itself it has forgotten nothing."""
        ...


def story(tell: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs on an event loop of its own."""

    @functools.wraps(tell)
    def told(*args: Any, **kwargs: Any) -> None:
        asyncio.run(tell(*args, **kwargs))

    return told


async def opened(another: Callable[[], B]) -> B:
    """A board, open, with few shards."""
    board = another()
    await board.open("first", shards=SHARDS)
    return board


async def joined(another: Callable[[], B], *members: int) -> list[B]:
    """For each of *members* a board of its own, on which it has joined."""
    boards = [await opened(another) for _ in members]
    for board, member in zip(boards, members, strict=True):
        await board.join(member, f"host:{member}", ttl_us=TTL_US)
    return boards


async def beaten(board: Board, *members: int) -> None:
    """Renew the leases of *members*."""
    for member in members:
        await board.beat(member, ttl_us=TTL_US)


async def listed(board: Board, member: int, *rows: Row, fingerprint: str = "list") -> None:
    """Publish a new list whose tasks are *rows*."""
    published = await board.publish(member, fingerprint, putting(*rows))
    assert published.is_new


async def held(board: Board, member: int, *shards: int) -> dict[int, Hold]:
    """Take *shards* (or all), of which every one is to be had."""
    taken = await board.take(member, shards or ALL)
    assert [hold.shard for hold in taken.holds] == list(shards or ALL)
    return {hold.shard: hold for hold in taken.holds}


async def rows_of(board: Board) -> dict[int, Stored]:
    """Every row, as somebody is shown it who brings a new list and then does not."""
    seen: list[Stored] = []

    def look(stored: Sequence[Stored], _now_us: Instant, _id: str) -> Change:
        seen.extend(stored)
        raise LookedError

    onlooker = 2**61
    await board.join(onlooker, "onlooker", ttl_us=TTL_US)
    try:
        await board.publish(onlooker, "a list that nobody has", look)
    except LookedError:
        await board.leave(onlooker)
    return {stored.record[0]: stored for stored in seen}


async def removed_from(board: Board) -> list[int]:
    """The removed rows, by id."""
    return [number for number, stored in (await rows_of(board)).items() if stored.is_removed]


class LookedError(Exception):
    """Somebody has seen enough, and wants nothing changed."""


def putting(*rows: Row) -> Decide:
    """What decides that *rows* are put and nothing is removed."""
    return lambda _stored, _now_us, _id: Change(rows, ())


def never(*_: object) -> Change:
    """What must not be asked."""
    raise AssertionError


def task_in(shard: int, task_id: int) -> Task:
    """A task that belongs into *shard*."""
    names = (f"task {number}" for number in count(task_id * 1_000))
    return sample_task(task_id, next(name for name in names if shard_of(name, SHARDS) == shard))


async def place(board: Board, shard: int) -> Place:
    """How a shard stands."""
    return (await board.view()).places[shard]


async def seat(board: Board, member: int) -> Seat | None:
    """How a member stands."""
    return next((seat for seat in (await board.view()).seats if seat.member == member), None)


def ids_of(taken: Taken) -> list[int]:
    """The tasks that were taken over."""
    return [stored.record[0] for stored in taken.stored]


__all__ = [
    "ALL",
    "NOW_US",
    "SHARDS",
    "TTL_US",
    "Another",
    "AnotherTimerBoard",
    "Time",
    "beaten",
    "held",
    "ids_of",
    "joined",
    "listed",
    "never",
    "opened",
    "place",
    "putting",
    "removed_from",
    "rows_of",
    "seat",
    "story",
    "task_in",
]
