"""Where a cluster keeps its tasks, and how a node talks to it: a connection for the loop, one for heartbeats.

`duly.cluster.postgres` has the store that users give to a `Scheduler`. The simulation has one of its own,
whose connections lose and delay messages in virtual time.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from duly.cluster.node import Node
from duly.cluster.table import A, ReadTasks, TableRequest, TaskView

_PAGE = 1_000
"""So many rows are read at once."""

OnWait = Callable[[str, float], None]
"""Called after each try that failed: why, and how many seconds have been waited in all."""


class Link(Protocol):
    """A connection for the event loop."""

    async def do(self, request: TableRequest[A], /) -> A:
        """Have *request* carried out. Raises StoreError when nobody knows whether it was."""
        ...

    def leave(self) -> None:
        """Disconnect, and wait for nothing."""
        ...


async def stored_rows(link: Link) -> dict[str, TaskView]:
    """All rows of a namespace by name, in the order of their names. Raises StoreError."""
    rows: dict[str, TaskView] = {}
    request: ReadTasks | None = ReadTasks(limit=_PAGE)
    while request is not None:
        page = await link.do(request)
        rows |= {row.name: row for row in page}
        request = ReadTasks(limit=_PAGE, after=page[-1].name) if len(page) == _PAGE else None
    return rows


class Heartbeats(Protocol):
    """What sends the requests of a node beside everything else."""

    def start(self) -> None: ...

    def wake(self) -> None:
        """Ask the node at once what to send."""
        ...

    async def stop(self) -> None:
        """Send nothing more. What is under way may still be carried out."""
        ...


@runtime_checkable
class ClusterStore(Protocol):
    """A place where the tasks of several schedulers are kept."""

    name: str
    lease_us: int
    """How long a node may be silent."""
    namespace: str
    """Whose tasks these are: applications with different namespaces share a database."""
    replace: bool
    """Whether a list may take the place of all tasks of other living nodes."""

    def steady(self) -> int:
        """The clock that leases are counted on."""
        ...

    def draw(self) -> int:
        """An id for a node that nobody has had."""
        ...

    async def open(self, new_id: str, /) -> str:
        """Make the tables if there are none; the id of the scheduler that they belong to."""
        ...

    def connect(self) -> Link: ...

    def heartbeats(self, node: Node, /) -> Heartbeats: ...
