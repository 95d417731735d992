"""The places that the scheduler suite runs on: a memory, a SQLite file, a schema of a real PostgreSQL.

On PostgreSQL a scheduler is the only node of its cluster. It schedules by the test's virtual clock, as it
does on a file. Its heartbeats go by that clock too: the event loop sends them, so that the clock sees when
everything has come to rest. The lease is longer than any test, and `fail_over` fences a node that died.

`hooked` gives any of them faults, and something to do around each write of what running changed.
"""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from datetime import UTC, timedelta
from typing import Any

import apsw
import psycopg
import pytest

from duly.background import Signal
from duly.clock import HostClock, Step, Watchable
from duly.cluster.node import Node
from duly.cluster.postgres import PostgresStore, TableLink
from duly.cluster.store import ClusterStore
from duly.cluster.table import (
    A,
    Ask,
    CancelRun,
    Claim,
    Fence,
    ReadNodes,
    ReadTasks,
    Reconcile,
    SetPaused,
    TableRequest,
    Work,
)
from duly.core.task import Task
from duly.errors import StoreError
from duly.instant import LATEST_US, datetime_at, instant_of
from duly.store import SQLiteStore, Store
from duly.testing import FaultyStore
from tests.worlds.model_table import ModelDatabase, ModelTable
from tests.worlds.postgres import PostgresServer

Place = Store | ClusterStore
StoreFactory = Callable[[], Place]
LEASE = timedelta(days=50 * 365)


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


class HookedLink:
    """A connection whose requests fail, or whose answers are lost, when its store says so."""

    def __init__(self, store: "HookedCluster") -> None:
        self._store = store
        self._link = TableLink(store.inner.table(), "suite")
        self.leave = self._link.leave

    async def do(self, request: TableRequest[A]) -> A:
        """Have a request carried out, between the two if it is a claim."""
        store = self._store
        is_save = isinstance(request, Claim)
        if is_save:
            await store.before_save()
        if store.error is not None and not store.is_done_first:
            store.writes += isinstance(request, Claim | Reconcile)
            raise store.error
        answer = await self._link.do(request)
        if isinstance(request, Claim) and isinstance(answer, Work):
            store.writes += bool(request.ends or answer.claimed)
        store.writes += isinstance(request, Reconcile)
        if store.error is not None:
            raise store.error
        if is_save:
            await store.after_save()
        return answer


class VirtualHeartbeats:
    """The heartbeats of a node, sent by the event loop when the virtual clock says so."""

    def __init__(self, store: "HookedCluster", node: Node) -> None:
        self._store = store
        self._node = node
        self._link = store.connect()
        self._woken = Signal()
        self._is_woken = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._beat_on())

    def wake(self) -> None:
        """Ask the node at once what to send."""
        self._is_woken = True
        self._woken.notify()

    def on_notified(self) -> None:
        """Have the next heartbeat sent soon."""
        self._node.on_notified()
        self.wake()

    async def stop(self) -> None:
        """Send nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._link.leave()

    async def _beat_on(self) -> None:
        while True:
            self._is_woken = False
            request, at_us = self._node.next_request()
            if request is None:
                await self._sleep_until(at_us)
                continue
            sent_us = self._store.steady()
            try:
                answer: Any = await self._link.do(request)
            except StoreError as error:
                self._node.on_error(request, error)
            else:
                self._node.on_answer(request, answer, sent_us)

    async def _sleep_until(self, at_us: int) -> None:
        if self._is_woken:
            return
        waiting: list[Awaitable[None]] = [self._woken.wait(), self._store.stepped.wait()]
        if (moment_us := at_us + self._store.ahead_us) < LATEST_US:
            waiting.append(self._store.clock.sleep_until(datetime_at(moment_us, UTC)))
        tasks = [asyncio.ensure_future(each) for each in waiting]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


class HookedCluster:
    """The same on PostgreSQL: everything can fail, and heartbeats go by the test's clock."""

    def __init__(self, url: str, schema: str) -> None:
        self.inner = PostgresStore(url, schema=schema, lease=LEASE, patience_s=60)
        self.url = url
        self.schema = schema
        self.name = self.inner.name
        self.namespace = self.inner.namespace
        self.lease_us = self.inner.lease_us
        self.replace = True
        self.draw = self.inner.draw
        self.clock: Watchable = HostClock()
        self.ahead_us = 0
        """How far the virtual clock was stepped forward."""
        self.stepped = Signal()
        self.before_save: Callable[[], Awaitable[object]] = nothing
        self.after_save: Callable[[], Awaitable[object]] = nothing
        self.writes = 0
        """How many writes were asked for, failed ones included."""
        self.error: BaseException | None = None
        self.is_done_first = False

    def go_by(self, clock: Watchable) -> None:
        """Let *clock* be the clock of the leases."""
        self.clock = clock
        clock.watch(self._on_step)

    def _on_step(self, step: Step) -> None:
        self.ahead_us += step.after_us - step.before_us
        self.stepped.notify()

    def steady(self) -> int:
        """The virtual clock, without its steps."""
        return instant_of(self.clock.now()) - self.ahead_us

    async def open(self, new_id: str) -> str:
        """Open, and have the database live before all virtual times: what it takes away is due at once."""
        scheduler_id = await self.inner.open(new_id)
        function = "FUNCTION {}.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 0::bigint'"
        self.by_hand(f"CREATE OR REPLACE {function.format(self.schema)}")
        return scheduler_id

    def connect(self) -> "HookedLink | ModelLink":
        """A connection for the loop."""
        return HookedLink(self)

    def heartbeats(self, node: Node) -> VirtualHeartbeats:
        """What sends the requests of *node*."""
        return VirtualHeartbeats(self, node)

    def fail(self, error: BaseException) -> None:
        """Raise *error* instead of doing anything, until `heal`."""
        self.error, self.is_done_first = error, False

    def lose_answers(self, error: BaseException) -> None:
        """Do everything, and raise *error* all the same, until `heal`."""
        self.error, self.is_done_first = error, True

    def heal(self) -> None:
        """Work again."""
        self.error = None

    def fence_all(self) -> None:
        """Declare every node dead that has not left."""
        if not self.by_hand(f"SELECT to_regclass('{self.schema}.node')")[0][0]:
            return  # it died before it made the tables
        with closing(self.inner.table()) as table:
            for node in table.do(ReadNodes())[1]:
                if node.fenced_us is None:
                    table.do(Fence(by="suite", node=node.node, beat=node.beat))

    def by_hand(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement past every scheduler."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class ModelLink:
    """A connection to a model of the database. Nodes are notified as PostgreSQL does it."""

    def __init__(self, table: ModelTable, notify: Callable[[], None]) -> None:
        self._table = table
        self._notify = notify

    async def do(self, request: TableRequest[A]) -> A:
        """Have a request carried out."""
        answer = self._table.do(request)
        if isinstance(request, Ask | CancelRun | SetPaused) or (isinstance(request, Claim) and request.ends):
            self._notify()
        return answer

    def leave(self) -> None:
        """Disconnect: there is nothing to do."""


class ModelCluster(HookedCluster):
    """A cluster on a model of the database, which is not as slow as a real one."""

    def __init__(self, database: ModelDatabase, others: "Sequence[ModelCluster]" = ()) -> None:
        """*others*: the nodes beside this one."""
        super().__init__("postgresql://model/model", "duly")
        self._table = ModelTable(database)
        self._others = others
        self._heartbeats: VirtualHeartbeats | None = None

    async def open(self, new_id: str) -> str:
        """Nothing needs to be made."""
        return "model"

    def connect(self) -> ModelLink:
        """A connection for the loop."""
        return ModelLink(self._table, self._notify_others)

    def heartbeats(self, node: Node) -> VirtualHeartbeats:
        """What sends the requests of *node*."""
        self._heartbeats = super().heartbeats(node)
        return self._heartbeats

    def _notify_others(self) -> None:
        for other in self._others:
            if other is not self and other._heartbeats is not None:
                other._heartbeats.on_notified()

    def fence_all(self) -> None:
        """Declare every node dead that has not left. Their runs start again without a back-off."""
        for node in self._table.space.living():
            self._table.do(Fence(by="suite", node=node.id, beat=node.beat))
        for row in self._table.space.rows.values():
            row.interruptions = 0
            row.wake_us = min(row.wake_us, 0) if row.cut_us is not None else row.wake_us


def hooked(place: Place) -> HookedStore | HookedCluster:
    """The place, to be disturbed."""
    if isinstance(place, HookedStore | HookedCluster):
        return place
    assert isinstance(place, Store)
    return HookedStore(place)


def fail_over(place: Place) -> None:
    """Have the node that died on *place* declared dead, without a wait for its lease."""
    if isinstance(place, HookedCluster):
        place.fence_all()


_schemas = itertools.count(1)


@pytest.fixture
def same_schema(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> StoreFactory:
    """Make a store in one and the same schema of the shared server, which is this test's alone.

    The schema goes with the server. To drop it here would deadlock with a node that the test left running.
    """
    monkeypatch.setattr("duly.cluster.backend._LAST_ENDS_S", 0.3)
    schema = f"suite{next(_schemas)}"
    return lambda: HookedCluster(postgres.url(), schema)


async def records(place: Place) -> dict[str, tuple[Any, ...]]:
    """The records of all tasks by name, when no scheduler is on *place*."""
    if isinstance(place, Store):
        contents = await place.open("reader")
        await place.close()
        return {record[1]: tuple(record) for record in contents.records}
    assert isinstance(place, HookedCluster)
    with closing(place.inner.table()) as table:
        return {
            task.name: (0, task.name, *json.loads(task.definition)[:2], *json.loads(task.state), "")
            for task in table.do(ReadTasks())
        }


def by_hand(place: Place, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement about the table `task` of a database, past its scheduler; the rows it gives."""
    if isinstance(place, SQLiteStore):
        with closing(apsw.Connection(str(place._path))) as connection:
            return connection.execute(statement).fetchall()
    assert isinstance(place, HookedCluster)
    return place.by_hand(statement.replace(" task", f" {place.schema}.task"))
