"""Boards whose time a test moves: in memory, and in a real PostgreSQL whose `now_us()` reads a table."""

import psycopg

from duly.store.board import SHARDS
from duly.store.postgres import PostgresBoard
from duly.testing.conformance import NOW_US


class MemoryTime:
    """A time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_us = NOW_US
        self._server = 1

    def server(self) -> str:
        """Which server answers."""
        return f"server {self._server}"

    def change_server(self) -> None:
        """Have another one answer."""
        self._server += 1

    def advance(self, by_us: int) -> None:
        """Let time pass."""
        self.now_us += by_us


class PostgresTime(MemoryTime):
    """The same, in a table of the database at *url*, for the board in *schema*."""

    def __init__(self, url: str, *, schema: str = "duly") -> None:
        super().__init__()
        self.schema = schema
        self._table = f"public.time_of_{schema}"
        self.connection = psycopg.connect(url, autocommit=True)
        self._do(f"CREATE TABLE {self._table} AS SELECT %s::bigint AS now_us", self.now_us)

    def advance(self, by_us: int) -> None:
        """Let time pass, for the database too."""
        super().advance(by_us)
        self._do(f"UPDATE {self._table} SET now_us = %s", self.now_us)

    def change_server(self) -> None:
        """Have the board believe that the one which answered until now was another."""
        self._do(f"UPDATE {self.schema}.server SET name = 'before'")

    def rule(self) -> None:
        """Make the board in the schema live in this time."""
        self._do(
            f"CREATE OR REPLACE FUNCTION {self.schema}.now_us() RETURNS bigint LANGUAGE sql VOLATILE "
            f"AS 'SELECT now_us FROM {self._table}'"
        )
        self._do(f"UPDATE {self.schema}.shard SET taken_us = %s WHERE term = 0", self.now_us)

    def close(self) -> None:
        """Let go of the database."""
        self.connection.close()

    def forget(self) -> None:
        """Remove the board with its time, and let go of the database."""
        self._do("SET lock_timeout = '20s'")  # a board that was left in the middle of something is told of
        self._do(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
        self._do(f"DROP TABLE {self._table}")
        self.close()

    def _do(self, statement: str, *values: object) -> None:
        self.connection.execute(statement.encode(), values or None)


class TimedBoard(PostgresBoard):
    """A board in PostgreSQL that lives in a time of ours from its first opening on."""

    def __init__(self, url: str, time: PostgresTime) -> None:
        super().__init__(url, schema=time.schema, patience_s=20.0)
        self._time = time

    async def open(self, new_id: str, /, *, shards: int = SHARDS) -> str:
        """Open, and change the time."""
        scheduler_id = await super().open(new_id, shards=shards)
        self._time.rule()
        return scheduler_id
