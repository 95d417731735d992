"""Every table of ours passes the suite."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from duly.cluster.postgres import PostgresStore
from duly.cluster.postgres_table import PostgresTable
from tests.conformance.table_suite import NOW_US, TableConformance, World
from tests.worlds.model_table import ModelDatabase
from tests.worlds.postgres import PgBouncer, PostgresServer

DATABASE = "tables"
TABLES = ("namespace", "node", "task", "run")
_schemas = itertools.count(1)


class PostgresWorld:
    """A schema of a real database. Its functions for the time and the server read a table of the test."""

    def __init__(self, url: str, address: str) -> None:
        self._schema = f"table{next(_schemas)}"
        self._address = address
        self._tables: list[PostgresTable] = []
        self._connection = psycopg.connect(url, autocommit=True)
        self.now_us = NOW_US
        asyncio.run(self._store("default").open("id"))
        self._do(
            "CREATE TABLE {s}.world AS SELECT %s::bigint AS now_us, 1 AS server, '00000001' AS timeline",
            NOW_US,
        )
        for name, kind in (("now_us", "bigint"), ("server", "text"), ("timeline", "text")):
            self._do(
                f"CREATE OR REPLACE FUNCTION {{s}}.{name}() RETURNS {kind} LANGUAGE sql VOLATILE "
                f"AS 'SELECT {name}::{kind} FROM {{s}}.world'"
            )

    def table(self, namespace: str = "default") -> PostgresTable:
        self._tables.append(self._store(namespace).table())
        return self._tables[-1]

    def advance(self, by_us: int) -> None:
        self.now_us += by_us
        self._do("UPDATE {s}.world SET now_us = %s", self.now_us)

    def restart(self) -> None:
        """Have another server answer that has forgotten nothing."""
        self._do("UPDATE {s}.world SET server = server + 1")

    def snapshot(self) -> Any:
        return {
            name: self._connection.execute(f"SELECT * FROM {self._schema}.{name}").fetchall()
            for name in TABLES
        }

    def forget(self, snapshot: Any) -> None:
        """Have only these rows, on another server and timeline."""
        for name in TABLES:
            self._do(f"TRUNCATE {{s}}.{name}")
            for row in snapshot[name]:
                places = ", ".join(["%s"] * len(row))
                self._do(f"INSERT INTO {{s}}.{name} OVERRIDING SYSTEM VALUE VALUES ({places})", *row)
        self._do(
            "UPDATE {s}.world SET server = server + 1, timeline = lpad((timeline::int + 1)::text, 8, '0')"
        )

    def close(self) -> None:
        for table in self._tables:
            table.close()
        self._connection.close()

    def _store(self, namespace: str) -> PostgresStore:
        return PostgresStore(self._address, namespace=namespace, schema=self._schema, patience_s=60)

    def _do(self, statement: str, *values: object) -> None:
        self._connection.execute(statement.replace("{s}", self._schema).encode(), values or None)


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[str]:
    """A database for all tests of this module: each has a schema of its own, which is quicker made."""
    yield postgres.new_database(DATABASE)
    postgres.drop_database(DATABASE)


class TestModelTable(TableConformance):
    """The model of the simulation."""

    @pytest.fixture
    def world(self) -> World:
        return ModelDatabase(NOW_US)


class TestPostgresTable(TableConformance):
    """Straight to the server."""

    @pytest.fixture
    def address(self, database: str) -> str:
        """The address by which the tables reach the database."""
        return database

    @pytest.fixture
    def world(self, database: str, address: str) -> Iterator[World]:
        world = PostgresWorld(database, address)
        yield world
        world.close()


class TestPostgresTableBehindPgBouncer(TestPostgresTable):
    """Through a pooler that gives each transaction another server process."""

    @pytest.fixture
    def address(self, pgbouncer: PgBouncer, database: str) -> str:
        return pgbouncer.url(DATABASE)
