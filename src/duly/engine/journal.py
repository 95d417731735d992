"""The journal: writes what has changed, and when the store fails, keeps it and asks again later.

Whole records are written, so an attempt of which nobody knows whether it succeeded is simply made again; and
after any fault all of them, since nobody knows what else befell the store meanwhile. A fault is told once,
and so is its passing; in between the store is asked after pauses that grow to a limit.
"""

from collections.abc import Callable
from typing import Generic

from duly.engine.book import Book
from duly.engine.rules import T
from duly.events import Announcer, described
from duly.instant import SECOND_US, Instant
from duly.marks import mark
from duly.store.protocol import Shelf

_FIRST_PAUSE_US = SECOND_US
_LONGEST_PAUSE_US = 16 * SECOND_US


class Journal(Generic[T]):
    """The way from the book to the store."""

    def __init__(
        self, book: Book[T], store: Shelf[T], announcer: Announcer, now_us: Callable[[], Instant]
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
        """Begin anew with a store that has just been opened."""
        self._fault, self._pause_us = None, 0

    def shift(self, by_us: int) -> None:
        """Account for a step of the wall clock: a pause is a length of time."""
        self._resume_us += by_us

    def hasten(self) -> None:
        """Ask the store again at once: what was wrong has been seen to."""
        self._resume_us = min(self._resume_us, self._now_us())

    async def flush(self) -> None:
        """Write what is not yet written, now. Raises what the store raises."""
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
            self.note_fault(error)
        return self._fault is None

    async def write(self, started: list[T]) -> bool:
        """Make the unsaved ends and the new starts durable in one transaction. False if that failed."""
        book = self._book
        changes = book.unsaved | {task.id: task for task in started}
        if not changes and self._fault is None:
            return True
        ended, book.unsaved = book.unsaved, {}
        try:
            if self._fault is not None:
                mark("written whole")
                changes = {entry.task.id: entry.task for entry in book.entries.values()} | changes
                await self._store.replace(put=list(changes.values()), removed=[])
            else:
                await self._store.save(list(changes.values()))
        except BaseException as error:
            book.unsaved = ended | book.unsaved
            if not isinstance(error, Exception):
                raise  # whoever waited was cancelled; the outcome is unknown, so it stays unsaved
            mark("write failed")
            self.note_fault(error)
            return False
        if self._fault is not None:
            self._announce("StoreRecovered", error=described(self._fault))
        self.forget_faults()
        return True

    def note_fault(self, error: Exception) -> None:
        """Tell of *error*, unless it was told already, and pause before the next attempt."""
        is_new = self._fault is None or described(self._fault) != described(error)
        self._fault = error
        self._pause_us = min(max(self._pause_us * 2, _FIRST_PAUSE_US), _LONGEST_PAUSE_US)
        self._resume_us = self._now_us() + self._pause_us
        if is_new:
            self._announce("StoreFault", error=described(error))
