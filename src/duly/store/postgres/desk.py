"""A desk: a line to a database, the one thread that uses it, and the board that was found at its other end.

What is handed over is done in order. Connecting cannot be interrupted, so whoever does not want to wait for
it any more leaves the desk to itself, with whatever is still under way at it, and takes another.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from duly.errors import StoreError
from duly.store.postgres.address import Address
from duly.store.postgres.founding import Identity
from duly.store.postgres.line import Line
from duly.threads import Worker

T = TypeVar("T")


class Desk:
    """A desk for the database at *address*; *name* is that of its thread."""

    def __init__(self, name: str, address: Address, *, patience_s: float) -> None:
        self.line = Line(address, patience_s=patience_s)
        self.identity: Identity | None = None
        """Of the board; None while it is not open."""
        self._store = address.name
        self._worker = Worker(f"{name} {address.name}")

    async def open(self, found: Callable[[], Identity], *, times_patience: int) -> Identity:
        """Open the board that *found* finds on the line. Raises StoreError; then nothing is connected."""
        return await self._worker.do(partial(self._open, found, times_patience))

    async def do(self, work: Callable[[], T], *, times_patience: int = 1, at: "Desk | None" = None) -> T:
        """Do *work* on the line, if the board is open: at this desk, or *at* another. Raises StoreError."""
        return await self._worker.do(partial(self._called, work, times_patience, at or self))

    async def close(self) -> None:
        """Disconnect, behind everything that was handed over."""
        await self._worker.do(self._close)
        self._worker.end()

    def end(self) -> None:
        """Let the thread end; nothing is connected."""
        self._worker.end()

    def leave(self) -> None:
        """Disconnect, behind everything that was handed over, and do not wait for it."""
        self._worker.post(self._close)
        self._worker.end()

    # --- in the thread ---

    def _open(self, found: Callable[[], Identity], times_patience: int) -> Identity:
        try:
            identity = self.line.call(found, times_patience=times_patience)
        except BaseException:
            self.line.close()
            raise
        self.identity = identity
        return identity

    def _called(self, work: Callable[[], T], times_patience: int, opened: "Desk") -> T:
        if opened.identity is None:
            raise StoreError(store=self._store, reason="is not open")
        return self.line.call(work, times_patience=times_patience)

    def _close(self) -> None:
        self.identity = None
        self.line.close()
