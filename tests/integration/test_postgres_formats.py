"""Boards that an older duly has made are brought up to date by the first member that opens them."""

import asyncio

import pytest

from duly.core.record import record_of
from duly.core.task import started
from duly.errors import StoreError
from duly.instant import SECOND_US
from duly.store.board import SHARDS, Change, Hold, Reply, Request, Row, TimerRow, Waiting, shard_of
from duly.store.postgres import PostgresBoard
from duly.store.postgres.scripts import migrations
from duly.testing.conformance import NOW_US, sample_task
from tests.postgres import PostgresServer

TTL_US = 60 * SECOND_US
TASK = sample_task(1)
SHARD = shard_of(TASK.name, SHARDS)
BEGUN = Row(started(TASK, NOW_US, is_retry=False), 1)
TIMER = TimerRow(SHARD, (1, "timer", "{}"), None)
FORMAT = "SELECT duly_format FROM duly.meta"


UNDONE = {
    2: ["DROP TABLE duly.timer"],
    3: [
        "DROP TABLE duly.request",
        "ALTER TABLE duly.meta DROP COLUMN started_up_us",
        "ALTER TABLE duly.meta DROP COLUMN opened_us",
    ],
    4: [
        "DROP FUNCTION duly.is_open()",
        "DROP TABLE duly.server",
        "ALTER TABLE duly.member DROP COLUMN ttl_us",
    ],
}
"""What takes back the step to a format."""


async def older_board(
    postgres: PostgresServer, database: str, url: str, version: int
) -> tuple[PostgresBoard, Hold]:
    """A board of format *version*, in which member 1 holds a shard and runs a task."""
    assert max(UNDONE) == len(migrations())
    board = PostgresBoard(url)
    assert await board.open("older") == "older"
    await board.join(1, "host", ttl_us=TTL_US)
    await board.publish(1, "list", lambda *_: Change([Row(TASK)], ()))
    (hold,) = (await board.take(1, [SHARD])).holds
    await board.write(1, {hold: 1}, rows=[BEGUN])
    if version > 1:
        await board.write_timers(1, hold, 2, put=[TIMER], removed=())
    for number in range(len(migrations()), version, -1):
        for statement in UNDONE[number]:
            postgres.rows(statement, database=database)
    postgres.rows(f"UPDATE duly.meta SET duly_format = {version}", database=database)
    return board, hold


async def test_format_one_becomes_the_present_one(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """A board without timers gets them when it is opened, by several at once; its members notice nothing."""
    older, hold = await older_board(postgres, postgres_database, postgres_url, 1)
    assert postgres.value(FORMAT, database=postgres_database) == 1
    assert postgres.value("SELECT to_regclass('duly.timer')", database=postgres_database) is None
    several = [PostgresBoard(postgres_url) for _ in range(4)]
    assert await asyncio.gather(*(board.open("new") for board in several)) == ["older"] * 4
    assert postgres.value(FORMAT, database=postgres_database) == len(migrations())
    await older.write(1, {hold: 2}, rows=[Row(TASK)])
    await older.write(1, {hold: 3}, rows=[BEGUN])
    board = several[0]
    await board.write_timers(1, hold, 4, put=[TIMER], removed=())
    assert await board.timers() == [TIMER]
    await older.leave(1)
    await board.join(2, "host", ttl_us=TTL_US)
    (stored,) = (await board.take(2, [SHARD])).stored
    assert (tuple(stored.record), stored.run_by) == (record_of(BEGUN.task), 1)
    assert (await board.view()).edition == 1
    await asyncio.gather(*(board.close() for board in (older, *several)))


async def test_format_two_gets_requests(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """A board without requests gets them, and keeps its timers; who holds a shard there is asked."""
    older, hold = await older_board(postgres, postgres_database, postgres_url, 2)
    assert postgres.value("SELECT to_regclass('duly.request')", database=postgres_database) is None
    board = PostgresBoard(postgres_url)
    assert await board.open("new") == "older"
    assert postgres.value(FORMAT, database=postgres_database) == len(migrations())
    assert await board.timers() == [TIMER]
    now_us = (await board.view()).now_us
    asked = Request(7, SHARD, "timer", "trigger", "host", now_us + TTL_US)
    await board.ask(asked)
    assert (await older.beat(1, ttl_us=TTL_US)).requested == [Waiting(7, SHARD)]
    assert await older.take_requests(1, [hold]) == [asked]
    await older.answer(1, 7, "done")
    assert await board.reply(7) == Reply(1, "done")
    await asyncio.gather(older.close(), board.close())


async def test_onlooker_changes_no_format(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """Who only looks at an older board is told that it is older, and leaves it so."""
    older, _ = await older_board(postgres, postgres_database, postgres_url, 1)
    with pytest.raises(StoreError, match="is of an older duly; start a scheduler on it first"):
        await PostgresBoard(postgres_url).open("")
    assert postgres.value(FORMAT, database=postgres_database) == 1
    await older.close()


async def test_no_right_to_make_the_table(
    postgres: PostgresServer, postgres_database: str, postgres_url: str
) -> None:
    """A role that may use an older board but not change it is told the right it lacks; nothing is done."""
    older, _ = await older_board(postgres, postgres_database, postgres_url, 1)
    role = f"user_of_{postgres_database}"
    for statement in (
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
        f"GRANT USAGE ON SCHEMA duly TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA duly TO {role}",
    ):
        postgres.rows(statement, database=postgres_database)
    url = f"postgresql://{role}:x@{postgres_url.rpartition('@')[2]}"
    with pytest.raises(StoreError, match=r"lacks a right \(permission denied for schema duly\)"):
        await PostgresBoard(url).open("new")
    assert postgres.value(FORMAT, database=postgres_database) == 1
    await older.close()
    await older.open("new")
    await older.close()
    tables = [f"SELECT on table duly.{table}" for table in ("server", "timer", "request")]
    lacking = f"the role '{role}' needs {', '.join(tables)}"
    with pytest.raises(StoreError, match=lacking):
        await PostgresBoard(url).open("new")
