"""The journal: writes what has changed, and when the store fails, keeps it and asks again later.

Whole records are written, so an attempt with an unknown outcome is simply made again. After a fault all
records are written, because nobody knows what else happened to the store meanwhile. A fault is announced
once, and so is its end. In between the store is asked after growing pauses (spec/scheduler.md 5.4).
"""

from collections.abc import Callable, Sequence
from typing import Generic

from duly.engine.book import Book
from duly.engine.rules import T
from duly.events import Announcer, described
from duly.instant import SECOND_US, Instant, back_off
from duly.marks import mark
from duly.store.protocol import Repository

_FIRST_PAUSE_US = SECOND_US
_LONGEST_PAUSE_US = 16 * SECOND_US


class Journal(Generic[T]):
    """The way from the book to the store."""

    def __init__(
        self, book: Book[T], store: Repository[T], announcer: Announcer, now_us: Callable[[], Instant]
    ) -> None:
        self._book = book
        self._store = store
        self._announce = announcer.announce
        self._now_us = now_us
        self._fault: BaseException | None = None
        self._pause_us = 0
        self._resume_us = 0

    @property
    def resume_us(self) -> Instant | None:
        """When the store will be asked again; None while it works."""
        return None if self._fault is None else self._resume_us

    def forget_faults(self) -> None:
        """Start over with a store that has just been opened."""
        self._fault, self._pause_us = None, 0

    def shift(self, by_us: int) -> None:
        """Account for a step of the wall clock: a pause is a length of time."""
        self._resume_us += by_us

    async def flush(self) -> None:
        """Write what is not yet written, and check that the store has it. Raises what the store raises."""
        # Twice: some faults, such as a file that was moved away, are over once they have been noticed.
        for _ in range(2):
            if await self.write([]) and await self._is_kept():
                return
        assert self._fault is not None
        raise self._fault

    async def _is_kept(self) -> bool:
        """Whether the store still has what was written to it."""
        try:
            await self._store.save([])
        except Exception as error:
            self.emit_fault(error)
        return self._fault is None

    async def write(self, started: list[T]) -> bool:
        """Make the unsaved ends and the new starts durable in one transaction. False if that failed."""
        book = self._book
        # A start wins over the unsaved end of the same task: its record has that end in it.
        changes = book.unsaved | {task.id: task for task in started}
        if not changes and self._fault is None:
            return True
        # Runs end while we wait for the store: what they change is collected again, and wins if this fails.
        ended, book.unsaved = book.unsaved, {}
        try:
            if self._fault is not None:
                mark("written whole")
                # The changes last: the book does not know the starts of this claim yet.
                changes = {entry.task.id: entry.task for entry in book.entries.values()} | changes
                await self._store.replace(put=list(changes.values()), removed=[])
            else:
                await self._store.save(list(changes.values()))
        except BaseException as error:
            book.unsaved = ended | book.unsaved
            if not isinstance(error, Exception):
                raise  # the caller was cancelled; the outcome is unknown, so the changes stay unsaved
            mark("write failed")
            self.emit_fault(error)
            return False
        if self._fault is not None:
            self._announce("StoreRecovered", error=described(self._fault))
        self.forget_faults()
        return True

    async def replace(self, put: Sequence[T], removed: Sequence[int]) -> None:
        """Write these whole, and forget those with the ids *removed*. Raises what the store raises."""
        # Twice, as in `flush`. That the log is whole is for `flush` to see: it takes a look at all of it.
        if not await self._has_replaced(put, removed) and not await self._has_replaced(put, removed):
            assert self._fault is not None
            raise self._fault

    async def _has_replaced(self, put: Sequence[T], removed: Sequence[int]) -> bool:
        if self._fault is not None and not await self.write([]):
            return False  # rows may be lost, and are written first
        try:
            await self._store.replace(put=put, removed=removed)
        except Exception as error:
            self.emit_fault(error)
            return False
        return True

    def emit_fault(self, error: Exception) -> None:
        """Emit *error*, unless it is the one that stands, and pause before the next attempt."""
        is_new = self._fault is None or described(self._fault) != described(error)
        self._fault = error
        self._pause_us = back_off(self._pause_us, _LONGEST_PAUSE_US) or _FIRST_PAUSE_US
        self._resume_us = self._now_us() + self._pause_us
        if is_new:
            self._announce("StoreFault", error=described(error))
