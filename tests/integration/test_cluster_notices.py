"""Requests for one row are notified: who listens hears of them at once, and nothing depends on it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from socket import socketpair
from typing import Any

import psycopg
import pytest

from duly.cluster import PostgresStore
from duly.cluster.node import Node
from duly.cluster.postgres_table import PostgresTable
from duly.cluster.table import Ask, Join, Put, ReadDigest, Reconcile, SetPaused, Switch, TableRequest
from duly.instant import MINUTE_US
from tests.worlds.postgres import PostgresServer, until

LONG = timedelta(minutes=30)
"""A lease so long that no test waits for the next heartbeat: they are five minutes apart."""


def asking(url: str, namespace: str = "default") -> PostgresTable:
    """A connection to a namespace that has one task."""
    table: PostgresTable = PostgresStore(url, namespace=namespace).table()
    table.do(Join(node=len(namespace), name="n", lease_us=MINUTE_US, version=""))
    put = [Put("a", 1, "", "[]", 0)]
    table.do(Reconcile(node=1, put=put, removed=(), base=table.do(ReadDigest()).generation))
    return table


class Listener:
    """A table that listens."""

    def __init__(self, url: str) -> None:
        self.table: PostgresTable = PostgresStore(url).table()
        self.heard = 0
        self._woken, self._waker = socketpair()
        self.table.listen(self._on_notified)
        self.table.do(ReadDigest())  # it connects

    def _on_notified(self) -> None:
        self.heard += 1
        self._waker.send(b".")

    def wait(self, seconds: float = 60) -> None:
        self.table.wait(seconds, self._woken)

    @property
    def process(self) -> int:
        """The process of the server that it is connected to."""
        connection = self.table._line._connection
        assert connection is not None
        return connection.info.backend_pid

    def close(self) -> None:
        for each in (self.table, self._woken, self._waker):
            each.close()


@pytest.fixture
def table(postgres_url: str) -> Iterator[PostgresTable]:
    """A connection to a namespace that has one task."""
    asyncio.run(PostgresStore(postgres_url).open("id"))
    with closing(asking(postgres_url)) as table:
        yield table


@pytest.fixture
def listener(postgres_url: str, table: PostgresTable) -> Iterator[Listener]:
    with closing(Listener(postgres_url)) as listener:
        yield listener


REQUESTS: list[TableRequest[Any]] = [
    SetPaused(name="a", is_paused=False),
    Switch(name="a", enabled=False),
    Ask(names=["a"], text="look"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_are_heard(table: PostgresTable, listener: Listener, request_: TableRequest[Any]) -> None:
    """A request is heard once, over a connection that goes on."""
    process = listener.process
    table.do(request_)
    listener.wait()
    listener.table.do(ReadDigest())
    assert (listener.heard, listener.process) == (1, process)


def test_other_namespaces_are_not_heard(table: PostgresTable, listener: Listener, postgres_url: str) -> None:
    """What is asked of another namespace, or of no row, wakes nobody."""
    with closing(asking(postgres_url, "other")) as other:
        other.do(SetPaused(name="a", is_paused=True))
    table.do(SetPaused(name="nothing", is_paused=True))
    table.do(SetPaused(name="a", is_paused=True))
    while not listener.heard:
        listener.wait()
    assert listener.heard == 1


def test_listens_again_after_a_break(
    postgres: PostgresServer, postgres_database: str, table: PostgresTable, listener: Listener
) -> None:
    """A connection that the server ends is closed while nobody asks anything; the next one listens too."""
    postgres.rows("SELECT pg_terminate_backend(%s)", listener.process, database=postgres_database)
    while listener.table._line._connection is not None:
        listener.wait(0.01)
    listener.table.do(ReadDigest())
    table.do(SetPaused(name="a", is_paused=True))
    until(lambda: (listener.table.do(ReadDigest()), listener.heard)[1], "it is heard behind an answer, too")


def test_pooler_is_left_alone(table: PostgresTable, pgbouncer_url: str) -> None:
    """Nobody listens behind a pooler: its connections are for everybody."""
    with closing(Listener(pgbouncer_url)) as listener, psycopg.connect(pgbouncer_url) as pooled:
        table.do(SetPaused(name="a", is_paused=True))
        listener.table.do(ReadDigest())
        found = pooled.execute("SELECT pg_listening_channels()").fetchall()
        assert (found, listener.heard) == ([], 0)


def joined(store: PostgresStore, on_change: Callable[[], None]) -> Node:
    """A node of *store*."""
    node = Node(name="n", version="", lease_us=store.lease_us, steady=store.steady, draw=store.draw)
    with closing(store.table()) as table:
        sent_us = store.steady()
        request = Join(node=node.id, name="n", lease_us=node.lease_us, version="")
        node.joined(table.do(request), sent_us)
    node.on_change = on_change
    return node


async def test_node_looks_at_once(postgres_url: str) -> None:
    """A request makes a node send a heartbeat and look, long before the next one is due."""
    changes: list[None] = []
    store = PostgresStore(postgres_url, lease=LONG)
    await store.open("id")
    heartbeats = store.heartbeats(joined(store, lambda: changes.append(None)))
    heartbeats.start()
    with closing(await asyncio.to_thread(asking, postgres_url)) as table:
        await asyncio.to_thread(until, lambda: changes, "a first heartbeat is answered")
        before = len(changes)
        table.do(SetPaused(name="a", is_paused=False))
        await asyncio.to_thread(until, lambda: len(changes) > before, "another one is")
    await heartbeats.stop()
