"""A cluster store in a PostgreSQL database, for `Scheduler` (`pip install 'duly[postgres]'`)."""

import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from socket import socketpair
from typing import Any
from urllib.parse import unquote

from duly.clock import Steady, steady_us
from duly.cluster.address import address_of
from duly.cluster.messages import waited_for
from duly.cluster.node import Health, Node
from duly.cluster.postgres_table import PostgresTable
from duly.cluster.statements import Statements
from duly.cluster.store import OnWait
from duly.cluster.table import (
    A,
    ClusterTable,
    Prune,
    PruneEach,
    ReadOldestXmin,
    ReadTasks,
    RemoveOne,
    SetPaused,
    TableRequest,
    TaskView,
    row_name,
    run_request,
)
from duly.errors import StoreError, TaskNotFoundError
from duly.events import described, warn_operator
from duly.forks import end_if_forked, process_id
from duly.formatting import close_names
from duly.instant import MINUTE_US, SECOND_US, duration_us
from duly.threads import Worker

LEASE = timedelta(seconds=6)
HISTORY = timedelta(days=7)
_SHORTEST_LEASE = timedelta(milliseconds=500)
_IDLE_S = 0.25
"""So often the heartbeat thread looks whether the event loop turns."""
_PRUNED_AT_ONCE = 2_000
"""So many runs are forgotten in one message, because it must not keep a heartbeat waiting."""


class PostgresStore:
    """The tasks of one *namespace* in a PostgreSQL database, for as many schedulers as you like.

    *lease* is how long a node may be silent before others take over what it runs. The tables are made in
    *schema*. Opening waits up to *wait* for a database that cannot be reached yet, and calls *on_wait* after
    each try. *replace* lets a list take the place of all tasks of other living nodes. Runs are remembered for
    *history*.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str | None = None,
        lease: timedelta = LEASE,
        schema: str = "duly",
        wait: timedelta = timedelta(0),
        on_wait: OnWait | None = None,
        replace: bool = False,
        history: timedelta | None = None,
        patience_s: float | None = None,
    ) -> None:
        url, named = _without_namespace(url)
        self._address = address_of(url)
        if lease < _SHORTEST_LEASE:
            raise ValueError(f"a lease must be a timedelta of at least half a second, not {lease!r}")
        if wait < timedelta(0):
            raise ValueError(f"to wait for a database takes a timedelta of zero or more, not {wait!r}")
        if history is not None and history <= timedelta(0):
            raise ValueError(f"runs are remembered for a timedelta of more than zero, not {history!r}")
        if namespace is not None and named is not None and namespace != named:
            raise ValueError(f"two namespaces: {namespace!r}, and {named!r} in the address")
        self.namespace = namespace or named or "default"
        self.name = self._address.name
        self.lease_us = duration_us(lease)
        self.replace = replace
        self.steady: Steady = steady_us
        self._statements = Statements(schema)
        self._wait_s = wait.total_seconds()
        self._on_wait = on_wait
        self._history_us = None if history is None else duration_us(history)
        self._node: Node | None = None
        self._patience_s = lease.total_seconds() / 2 if patience_s is None else patience_s

    def draw(self) -> int:
        """An id for a node: 62 random bits."""
        return uuid.uuid4().int >> 66  # noqa: TID251 (who this is)

    def table(self, *, patience_s: float | None = None, is_reader: bool = False) -> PostgresTable:
        """A connection of its own. A reader makes no tables, and needs no right to write."""
        patience_s = self._patience_s if patience_s is None else patience_s
        return PostgresTable(
            self._address, self._statements, self.namespace, patience_s=patience_s, is_reader=is_reader
        )

    async def open(self, new_id: str) -> str:
        """Make the tables if there are none; the id of the scheduler that they belong to."""
        worker, table = Worker(f"duly open {self.name}"), self.table()
        work = partial(table.open, self.name, new_id)
        try:
            return await waited_for(lambda: worker.do(work), wait_s=self._wait_s, on_wait=self._on_wait)
        finally:
            worker.post(table.close)
            worker.end()

    def connect(self) -> "TableLink":
        return TableLink(self.table(), f"duly {self.name}")

    def heartbeats(self, node: Node) -> "HeartbeatThread":
        """The thread that sends the requests of *node*. Each waits no longer than two heartbeats."""
        self._node = node
        patience_s = 2 * node.beat_us / SECOND_US
        return HeartbeatThread(node, self.table(patience_s=patience_s), self.name, self._history_us)

    # --- requests for one task, from any process ---

    async def pause(self, name: str) -> None:
        """Have no node start the task; a run of it goes on. Raises TaskNotFoundError, StoreError."""
        await self._carry_out(name, SetPaused(name=row_name(name), is_paused=True))

    async def resume(self, name: str) -> None:
        """Let a paused task go on. Raises TaskNotFoundError, StoreError."""
        await self._carry_out(name, SetPaused(name=row_name(name), is_paused=False))

    async def run_now(self, name: str) -> None:
        """Have the task run as soon as a node can. Raises TaskNotFoundError, StoreError."""
        await self._carry_out(name, run_request(name, self.draw()))

    async def remove(self, name: str) -> None:
        """Remove the task until a node starts with it in its list; a run of it goes on.

        Raises TaskNotFoundError, StoreError.
        """
        await self._carry_out(name, RemoveOne(name=row_name(name)))

    async def _carry_out(self, name: str, request: TableRequest[bool]) -> None:
        link = self.connect()
        try:
            if not await link.do(request):
                raise self.not_found(name, await link.do(ReadTasks()))
        finally:
            link.leave()

    def not_found(self, name: str, some: Sequence[TaskView]) -> TaskNotFoundError:
        """The error for a task that is not there; *some* of those that are may be close."""
        close = close_names(name, [task.name for task in some])
        return TaskNotFoundError(name=name, store=self.name, namespace=self.namespace, close=close)

    def health(self) -> Health | None:
        """How the node of this store is; None while there is none. For `Metrics(node=...)`."""
        return None if self._node is None else self._node.health()


def _without_namespace(url: str) -> tuple[str, str | None]:
    """The address without `namespace=...`, which libpq does not know, and that namespace."""
    head, mark, query = url.partition("?")
    if not mark:
        return url, None
    parts = query.split("&")
    named = [part for part in parts if part.startswith("namespace=")]
    if not named:
        return url, None
    rest = "&".join(part for part in parts if part not in named)
    return f"{head}?{rest}" if rest else head, unquote(named[-1].partition("=")[2])


class TableLink:
    """A table in a thread of its own, for the event loop."""

    def __init__(self, table: PostgresTable, name: str) -> None:
        self._table = table
        self._worker = Worker(name)

    async def do(self, request: TableRequest[A]) -> A:
        return await self._worker.do(partial(self._table.do, request))

    def leave(self) -> None:
        """Disconnect, and wait for nothing."""
        self._worker.post(self._table.close)
        self._worker.end()


class HeartbeatThread:
    """A thread with a connection of its own: neither a blocked loop nor a slow claim costs the lease."""

    def __init__(self, node: Node, table: PostgresTable, name: str, history_us: int | None) -> None:
        self._node = node
        self._table = table
        self._upkeep = Upkeep(node, table, history_us)
        self._name = name
        self._pid = 0
        self._woken, self._waker = socketpair()
        for end in (self._woken, self._waker):
            # Else the default timeout of the program holds for them. Celery's beat sets 30 s: so long a read
            # would wait, and no heartbeat would be sent meanwhile.
            end.setblocking(False)
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._worker = Worker(f"duly heartbeats {name} end")
        table.listen(self._on_notified)

    def start(self) -> None:
        self._pid = process_id()
        self._thread = threading.Thread(
            target=self._beat_on, name=f"duly heartbeats {self._name}", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Ask the node at once what to send."""
        with suppress(OSError):  # it is full of such wishes, or the thread has ended
            self._waker.send(b".")

    def _on_notified(self) -> None:
        self._node.on_notified()
        self.wake()

    async def stop(self) -> None:
        self._is_over = True
        self.wake()
        if self._thread is not None:
            await self._worker.do(self._thread.join)
            self._worker.end()

    def _beat_on(self) -> None:
        while not self._is_over:
            end_if_forked(self._pid, "duly heartbeats")
            try:
                self._beat()
            except Exception as error:  # nothing of ours should raise; without heartbeats the node would die
                warn_operator(f"duly: heartbeats failed: {described(error)}")
                self._wait(1.0)
        self._table.close()
        self._woken.close()
        self._waker.close()

    def _beat(self) -> None:
        request, at_us = self._node.next_request()
        if request is None:
            self._upkeep.carry_out(steady_us())
            self._node.on_idle()
            self._wait(min(max(at_us - steady_us(), 0) / SECOND_US, _IDLE_S))
        else:
            self._send(request)

    def _send(self, request: TableRequest[Any]) -> None:
        sent_us = steady_us()
        try:
            answer: Any = self._table.do(request)
        except StoreError as error:
            self._node.on_error(request, error)
        else:
            self._node.on_answer(request, answer, sent_us)

    def _wait(self, seconds: float) -> None:
        self._table.wait(seconds, self._woken)
        with suppress(BlockingIOError):  # nobody woke it
            self._woken.recv(4_096)


class Upkeep:
    """What is done once a minute, between heartbeats and over their connection.

    Every node asks for the oldest xmin, for its metrics. The node with the smallest id also forgets runs that
    are older than *history_us*, or than its program says, or of which their task has too many later ones. If
    there is much to do it goes on after the next heartbeat.
    """

    def __init__(self, node: Node, table: ClusterTable, history_us: int | None) -> None:
        self._node = node
        self._table = table
        self._history_us = history_us
        self._next_us = 0
        self._after = ""
        """The task whose runs were counted last."""

    def carry_out(self, now_us: int) -> None:
        """Do what is to be done at *now_us* by the steady clock."""
        node, pulse = self._node, self._node.pulse
        if pulse is None or now_us < self._next_us:
            return
        self._next_us = now_us + MINUTE_US
        try:
            node.oldest_xmin_age = self._table.do(ReadOldestXmin())
            if all(node.id < peer.node for peer in pulse.peers):
                history_us = self._history_us or node.kept_us or duration_us(HISTORY)
                prune = Prune(before_us=pulse.now_us - history_us, limit=_PRUNED_AT_ONCE)
                if self._table.do(prune) == _PRUNED_AT_ONCE:
                    self._next_us = now_us + node.beat_us
                if node.kept_runs is not None:
                    self._after = self._table.do(PruneEach(keep=node.kept_runs, after=self._after)) or ""
                    self._next_us = now_us + node.beat_us if self._after else self._next_us
        except StoreError as error:  # heartbeats find out whether the database is there at all
            warn_operator(f"duly: old runs are not forgotten: {described(error)}")
