"""Stores: where a scheduler keeps what it must remember.

The design in one paragraph. A store is a set of records, one per task, and does no thinking: every decision
is made in `core`, and a store writes the outcome. It is *held* by at most one live scheduler at a time. It
has two writes, each one durable transaction that happens whole or not at all: `replace` (registrations
changed) and `save` (runs began or ended). Both carry whole records, not differences, so writing the same
thing twice is safe, and a write of which nobody knows whether it succeeded is simply made again. A store that
cannot write raises StoreError and keeps its hold; the scheduler asks again later. `drop` lets go the way a
crash would, without another byte written.

`duly.testing.conformance` is the suite that every store passes.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from duly.core.record import Record
from duly.core.task import Task


class Contents(NamedTuple):
    """What a store held when it was opened."""

    scheduler_id: str
    """Made when the store was first opened, the same ever since."""
    records: Sequence[Record]


T_contra = TypeVar("T_contra", contravariant=True)


class Shelf(Protocol[T_contra]):
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
class Store(Protocol):
    """Where tasks are kept between runs of the program."""

    @property
    def name(self) -> str:
        """What to call this store in a message: a file name, an address without secrets."""
        ...

    async def open(self, new_id: str, /) -> Contents:
        """Take hold of the store and read it; *new_id* becomes its scheduler identifier if it has none.

        Raises StoreInUseError when another live scheduler holds it, StoreError when it cannot be used.
        """
        ...

    async def replace(self, *, put: Sequence[Task], removed: Sequence[int]) -> None:
        """Write the tasks *put* whole, new or not, and forget those with the ids *removed*."""
        ...

    async def save(self, tasks: Sequence[Task], /) -> None:
        """Write what running changed in *tasks*. Raises TaskListMismatchError if one is not there."""
        ...

    async def close(self) -> None:
        """Let go of the store."""
        ...

    async def drop(self) -> None:
        """Let go of the store as a crash of the process would: nothing more is written."""
        ...
