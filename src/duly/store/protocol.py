"""What a store is (the package has the design note)."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from duly.core.record import Record
from duly.core.task import Task


class Contents(NamedTuple):
    scheduler_id: str
    """Made when the store was first opened, the same ever since."""
    records: Sequence[Record]


T_contra = TypeVar("T_contra", contravariant=True)


class Repository(Protocol[T_contra]):
    """The part of a store that the engine writes to: items of one kind, each a whole record."""

    async def replace(self, *, put: Sequence[T_contra], removed: Sequence[int]) -> None:
        """Write the items *put* whole, new or not, and forget those with the ids *removed*."""
        ...

    async def save(self, items: Sequence[T_contra], /) -> None:
        """Write what running changed in *items*.

        Without items nothing is written: it raises if what was written before is lost or damaged.
        """
        ...


@runtime_checkable
class Store(Repository[Task], Protocol):
    """Where tasks are kept between runs of the program.

    `save` raises TaskListMismatchError if a task is not there.
    """

    @property
    def name(self) -> str:
        """What to call this store in a message: a file name, an address without secrets."""
        ...

    async def open(self, new_id: str, /) -> Contents:
        """Take hold of the store and read it; *new_id* becomes its scheduler identifier if it has none.

        Raises StoreInUseError when another live scheduler holds it, StoreError when it cannot be used.
        """
        ...

    async def close(self) -> None: ...

    async def drop(self) -> None:
        """Let go of the store as a crash of the process would: nothing more is written."""
        ...
