"""Lists: how a node brings its list to the cluster, and what it makes of newer lists of others.

A list is compared by its digest, which takes no lock. Only if it differs the rows are read, and what differs
is reconciled in one request. Each change makes a new generation. A node claims rows of its own generation and
older. When a heartbeat shows a newer one, the node compares the changed rows with its list: those that it has
too it goes on claiming, and if that is all of them, it moves on to the new generation.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from duly.background import cancel, in_slices
from duly.cluster.backend import RowBackend
from duly.cluster.store import ClusterStore
from duly.cluster.table import Digest, ListOutcome, Pulse, Put, ReadDigest, ReadList, Reconcile
from duly.errors import ListRefusedError, StoreError
from duly.events import Announcer, described
from duly.marks import mark

_ATTEMPTS = 10


class RowList(Protocol):
    """A list, by the names of its rows."""

    hashes: int
    """The sum of all hashes."""

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...

    def hash_of(self, name: str, /) -> int | None:
        """None if it is not in the list."""
        ...


L = TypeVar("L", bound=RowList)


class Lists(Generic[L]):
    """The list of one node.

    *puts* makes the rows of some names of a list; *take_over* is called when a list has taken effect.
    """

    def __init__(
        self,
        store: ClusterStore,
        backend: RowBackend[Any],
        announcer: Announcer,
        *,
        empty: L,
        puts: Callable[[L, Sequence[str], Digest], Coroutine[Any, Any, Sequence[Put]]],
        take_over: Callable[[L], None],
    ) -> None:
        self.listed = empty
        self._store = store
        self._backend = backend
        self._announcer = announcer
        self._puts = puts
        self._take_over = take_over
        self._compared = 0
        """The newest generation that the list was compared with."""
        self._comparing: asyncio.Task[None] | None = None
        self._kept: Sequence[str] = ()

    def renew(self) -> None:
        """Start over, with a list that is yet to be brought."""
        self._compared = 0

    @property
    def is_behind(self) -> bool:
        """Whether others have brought a newer list that differs from this one."""
        return 0 < self._backend.node.generation < self._compared

    async def bring(self, listed: L, *, kept: Sequence[str] = (), replace: bool = False) -> ListOutcome:
        """Make *listed* the list of the cluster; the rows *kept* stay as they are.

        Raises StoreError or ListRefusedError, and then the list before it stays in effect here.
        """
        # Without a lock: the reconciliation names the generation that it was made from (`base`), and is
        # answered with `is_other` if another list came between. Then everything is read again.
        for _ in range(_ATTEMPTS):
            digest = await self._backend.link.do(ReadDigest())
            if (digest.rows, digest.hashes) == (len(listed), listed.hashes):
                outcome = ListOutcome(digest.generation, (), (), ())
            else:
                outcome = await self._reconciled(listed, kept, digest, replace=replace)
            if not outcome.is_other:
                self._kept = kept
                self._on_brought(listed, outcome)
                return outcome
        raise StoreError(store=self._store.name, reason="gets new lists faster than this one can be compared")

    async def _reconciled(
        self, listed: L, kept: Sequence[str], digest: Digest, *, replace: bool
    ) -> ListOutcome:
        link = self._backend.link
        stored = {row.name: row.hash for row in await link.do(ReadList())}
        changed: list[str] = []
        async for names in in_slices(listed):
            changed += [name for name in names if name not in stored or stored[name] != listed.hash_of(name)]
        staying = {*listed, *kept}
        removed = [name for name in stored if name not in staying]
        if not changed and not removed:
            return ListOutcome(digest.generation, (), (), ())
        request = Reconcile(
            node=self._backend.node.id,
            put=await self._puts(listed, changed, digest),
            removed=removed,
            base=digest.generation,
            replace=replace or self._store.replace,
        )
        outcome = await link.do(request)
        if outcome.refused_for:
            nodes = list(outcome.refused_for)
            raise ListRefusedError(store=self._store.name, namespace=self._store.namespace, nodes=nodes)
        return outcome

    def _on_brought(self, listed: L, outcome: ListOutcome) -> None:
        self.listed = listed
        self._take_over(listed)
        self._backend.count = len(listed) + len(self._backend.node.kinds)
        self._backend.supersede(listed.hash_of)
        node = self._backend.node
        with node.lock:
            # Under the lock: the heartbeat thread sends the generation.
            node.generation, node.also = outcome.generation, []
        self._compared = outcome.generation
        if outcome.added or outcome.overridden or outcome.orphaned:
            self._announcer.announce(
                "ListReconciled",
                generation=outcome.generation,
                added=len(outcome.added),
                overridden=len(outcome.overridden),
                orphaned=len(outcome.orphaned),
            )

    # --- newer lists of others ---

    def on_pulse(self, pulse: Pulse) -> None:
        """Note what a heartbeat shows."""
        is_forgotten = self._backend.node.generation == 0
        if self._compared == 0 or self._comparing is not None:
            return  # the list is yet to be brought, or is being compared
        if pulse.generation != self._compared or is_forgotten:
            self._comparing = asyncio.get_running_loop().create_task(self._compare(pulse.generation))
            self._comparing.add_done_callback(self._on_compared)

    def _on_compared(self, task: "asyncio.Task[None]") -> None:
        self._comparing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._announcer.announce("StoreFault", error=described(error))

    async def end(self) -> None:
        # Before anything is awaited: no heartbeat begins a comparison after this.
        self._compared = 0
        if self._comparing is not None and cancel(self._comparing):
            await asyncio.wait([self._comparing])

    async def _compare(self, generation: int) -> None:
        """Find out which rows of a newer list this node has, too."""
        node = self._backend.node
        # No claim may be under way: its rows are decided by the list that is here when it returns.
        async with self._backend.writing:
            if node.generation == 0 or generation < node.generation:
                mark("list brought again")  # the server has forgotten it
                await self.bring(self.listed, kept=self._kept)
                return
            changed = await self._backend.link.do(ReadList(after=node.generation))
            mine = [row.id for row in changed if self.listed.hash_of(row.name) == row.hash]
            # Under the lock: the heartbeat thread sets the generation to 0 when a server has forgotten the
            # list.
            with node.lock:
                if len(mine) == len(changed):
                    newest = max([generation, *(row.gen for row in changed)])
                    node.generation, node.also = newest, []
                else:
                    mark("newer list")
                    node.also = mine
            self._compared = generation
            self._backend.poller.wake()
