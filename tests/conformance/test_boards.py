"""Every board of ours passes the suite."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from duly.testing.boards import AnotherTimerBoard, MemoryBoard, Table, Time, TimerBoardConformance
from tests.boards import MemoryTime, PostgresTime, TimedBoard
from tests.postgres import PgBouncer, PostgresServer


class TestMemoryBoard(TimerBoardConformance):
    """A table is one place for as long as the object lives."""

    @pytest.fixture
    def time(self) -> Time:
        """A number."""
        return MemoryTime()

    @pytest.fixture
    def another(self, time: MemoryTime) -> AnotherTimerBoard:
        """A new board on the same table."""
        table = Table()
        return lambda: MemoryBoard(lambda: time.now_us, table=table, server=time.server)


DATABASE = "boards"
_schemas = itertools.count(1)


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[str]:
    """A database for all tests of this module: each has a schema of its own, which is quicker made."""
    yield postgres.new_database(DATABASE)
    postgres.drop_database(DATABASE)


class OnPostgres(TimerBoardConformance):
    """A PostgresBoard is a schema of a database."""

    @pytest.fixture
    def time(self, database: str) -> Iterator[Time]:
        """A table beside it."""
        time = PostgresTime(database, schema=f"board{next(_schemas)}")
        yield time
        time.close()

    @pytest.fixture
    def address(self, database: str) -> str:
        """The address by which the boards reach the database."""
        return database

    @pytest.fixture
    def another(self, address: str, time: PostgresTime) -> Iterator[AnotherTimerBoard]:
        """A new object on the same database."""
        made: list[TimedBoard] = []

        def make() -> TimedBoard:
            made.append(TimedBoard(address, time))
            return made[-1]

        yield make

        async def close() -> None:
            await asyncio.gather(*(board.close() for board in made))

        asyncio.run(close())


class TestPostgresBoard(OnPostgres):
    """Straight to the server."""


class TestPostgresBoardBehindPgBouncer(OnPostgres):
    """Through a pooler that gives each transaction another server process."""

    @pytest.fixture
    def address(self, pgbouncer: PgBouncer) -> str:
        """PgBouncer's."""
        return pgbouncer.url(DATABASE)
