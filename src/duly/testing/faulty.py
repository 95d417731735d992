"""A store that fails on demand, around one that works."""

from collections.abc import Sequence

from duly.core.task import Task
from duly.store.protocol import Contents, Store


class FaultyStore:
    """Passes everything on to *store*, until `fail` says otherwise.

    With `lose_answers` a write happens and then seems to fail, as when a connection breaks between the commit
    and its acknowledgement.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._error: BaseException | None = None
        self._is_done_first = False
        self.writes = 0
        """How many writes were asked for, failed ones included."""

    @property
    def name(self) -> str:
        return self._store.name

    def fail(self, error: BaseException) -> None:
        """Raise *error* instead of writing, until `heal`."""
        self._error, self._is_done_first = error, False

    def lose_answers(self, error: BaseException) -> None:
        """Write, and raise *error* all the same, until `heal`."""
        self._error, self._is_done_first = error, True

    def heal(self) -> None:
        self._error = None

    async def open(self, new_id: str) -> Contents:
        return await self._store.open(new_id)

    async def replace(self, *, put: Sequence[Task], removed: Sequence[int]) -> None:
        if self._is_passed_on():
            await self._store.replace(put=put, removed=removed)
        self._raise()

    async def save(self, tasks: Sequence[Task]) -> None:
        if self._is_passed_on():
            await self._store.save(tasks)
        self._raise()

    async def close(self) -> None:
        await self._store.close()

    async def drop(self) -> None:
        await self._store.drop()

    def _is_passed_on(self) -> bool:
        self.writes += 1
        return self._error is None or self._is_done_first

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
