"""The places that the scheduler suite runs on: a memory, a SQLite file, a schema of a real PostgreSQL.

On PostgreSQL a scheduler is the only member of its cluster. It schedules by the test's virtual clock, as it
does on a file; its lease counts in another time, which stands still until `fail_over` or `take_over` lets it
pass, for the board and for the member alike. So no lease runs out because the machine is slow, and who dies
is known to be dead without anybody's waiting for it.

`hooked` gives any of them faults, and something to do around each write of what running changed.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import apsw
import pytest

from duly import Scheduler
from duly.cluster.identity import drawn
from duly.cluster.member import Member
from duly.core.task import Task
from duly.store import Board, SQLiteStore, Store
from duly.store.board import AwayEnd, Decide, Hold, Published, Row
from duly.testing import FaultyStore
from tests.boards import PostgresTime, TimedBoard
from tests.postgres import PostgresServer

Place = Store | Board
StoreFactory = Callable[[], Place]
SLICES = 4
"""In so many parts a lease passes, so that a living member can renew its own."""


async def nothing() -> None:
    """Do nothing."""


class HookedStore(FaultyStore):
    """A store with faults, and something to do around each save."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.before_save: Callable[[], Awaitable[object]] = nothing
        self.after_save: Callable[[], Awaitable[object]] = nothing

    async def save(self, tasks: Sequence[Task]) -> None:
        """Save, between the two."""
        await self.before_save()
        await super().save(tasks)
        await self.after_save()


class HookedBoard(TimedBoard):
    """The same on a board: its writes of tasks, of lists and of ends can fail; leases are renewed always."""

    def __init__(self, url: str, time: PostgresTime) -> None:
        super().__init__(url, time)
        self.url = url
        self.time = time
        self.before_save: Callable[[], Awaitable[object]] = nothing
        self.after_save: Callable[[], Awaitable[object]] = nothing
        self.writes = 0
        """How many writes were asked for, failed ones included, but not a list that was in effect already."""
        self._error: BaseException | None = None
        self._is_done_first = False

    def fail(self, error: BaseException) -> None:
        """Raise *error* instead of writing, until `heal`."""
        self._error, self._is_done_first = error, False

    def lose_answers(self, error: BaseException) -> None:
        """Write, and raise *error* all the same, until `heal`."""
        self._error, self._is_done_first = error, True

    def heal(self) -> None:
        """Work again."""
        self._error = None

    async def publish(
        self, member: int, fingerprint: str, decide: Decide, /, *, displaces: bool = True
    ) -> Published:
        """Publish, or fail."""
        self._begin_write()
        published = await super().publish(member, fingerprint, decide, displaces=displaces)
        self.writes -= not published.is_new
        self._end_write()
        return published

    async def write(
        self, member: int, holds: Mapping[Hold, int], /, *, rows: Sequence[Row], is_whole: bool = False
    ) -> None:
        """Write, or fail, between the two."""
        await self.before_save()
        self._begin_write()
        await super().write(member, holds, rows=rows, is_whole=is_whole)
        self._end_write()
        await self.after_save()

    async def report(self, member: int, ends: Sequence[AwayEnd], /) -> None:
        """Report, or fail."""
        self._begin_write()
        await super().report(member, ends)
        self._end_write()

    def _begin_write(self) -> None:
        self.writes += 1
        if self._error is not None and not self._is_done_first:
            raise self._error

    def _end_write(self) -> None:
        if self._error is not None:
            raise self._error


def hooked(place: Place) -> HookedStore | HookedBoard:
    """The place, to be disturbed."""
    if isinstance(place, HookedStore | HookedBoard):
        return place
    assert isinstance(place, Store)
    return HookedStore(place)


def fail_over(place: Place) -> None:
    """Let the lease of whoever died on *place* run out."""
    if isinstance(place, HookedBoard):
        place.time.advance(place.ttl_us)


async def take_over(place: Place, scheduler: Scheduler, rest: Callable[[], Awaitable[None]]) -> None:
    """Have *scheduler* take what a dead member of *place* held, which it does when a lease has passed."""
    if not isinstance(place, HookedBoard):
        return
    member = scheduler._custody
    assert isinstance(member, Member)
    for _ in range(SLICES):
        place.time.advance(place.ttl_us // SLICES)
        member.tenancy.nudge()
        await rest()


_schemas = itertools.count(1)


@pytest.fixture
def same_schema(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreFactory]:
    """Make a board in one and the same schema of the shared server, which is this test's alone."""
    time = PostgresTime(postgres.url(), schema=f"suite{next(_schemas)}")
    monkeypatch.setattr("duly.cluster.custody.steady_us", lambda: time.now_us)
    yield lambda: HookedBoard(postgres.url(), time)
    time.forget()


async def records(place: Place) -> dict[str, tuple[Any, ...]]:
    """The records of all tasks by name, when no scheduler is on *place*."""
    if isinstance(place, Store):
        contents = await place.open("reader")
        await place.close()
        return {record[1]: tuple(record) for record in contents.records}
    member = drawn()
    await place.open("reader")
    await place.join(member, "reader", ttl_us=place.ttl_us)
    taken = await place.take(member, range(len((await place.view()).places)))
    await place.leave(member)
    await place.close()
    return {stored.record[1]: tuple(stored.record) for stored in taken.stored}


def by_hand(place: Place, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement about the table `task` of a database, past its scheduler; the rows it gives."""
    if isinstance(place, SQLiteStore):
        with closing(apsw.Connection(str(place._path))) as connection:
            return connection.execute(statement).fetchall()
    assert isinstance(place, HookedBoard)
    cursor = place.time.connection.execute(statement.replace(" task", f" {place.time.schema}.task").encode())
    return cursor.fetchall() if cursor.description else []
