"""Stores: where a scheduler keeps what it must remember.

A store is a set of records, one per task, and decides nothing: every decision is made in `core`, and a store
writes the outcome. It is *held* by at most one live scheduler at a time.

- **Writes.** There are two, each a durable transaction that happens whole or not at all: `replace`
  (registrations changed) and `save` (runs began or ended). Both carry whole records, not differences. So
  writing the same thing twice is safe, and a write of unknown outcome is made again.
- **Faults.** A store that cannot write raises StoreError and stays held; the scheduler asks again later. If
  rows may be lost (the file was replaced), the next connection first writes what is known (`restorers`).
- **End.** `close` releases the store. `drop` releases it as a crash would, without another byte written.

    protocol                  what a scheduler asks of a store; `memory` is one, `sqlite` another
    sqlite.SQLiteStore        one writer thread, one connection
      schema                  statements, formats and migrations
      lock.FileLock           flock on the file: one live scheduler
      files                   what other programs do to the files; whether the log is sound
      readonly.SideReader     a second connection and thread, for long looks
      history.History         runs and misses: written soon, never in the way of a start
    reading, inspection, repair   a store from outside: what is in it, what is wrong, and mending it

Lock order: the file lock is taken before the first connection and released after the last. The lock of a
history is taken alone. `duly.testing.conformance` is the suite that every store passes.
"""

import os
from pathlib import Path

from duly.places import StoreKind, kind_of
from duly.store.memory import MemoryStore
from duly.store.protocol import Contents, Store
from duly.store.sqlite import SQLiteStore

__all__ = ["Contents", "MemoryStore", "SQLiteStore", "Store", "store_for"]


def store_for(place: object) -> Store:
    """The store that *place* means: a path, ":memory:", or a store itself. Raises ValueError."""
    if not isinstance(place, str | os.PathLike):
        if isinstance(place, Store):
            return place
        raise TypeError(f"a store is a path, ':memory:' or a Store, not {type(place).__name__}")
    text = os.fsdecode(place)
    kind = kind_of(text)
    if kind is StoreKind.MEMORY:
        return MemoryStore()
    return SQLiteStore(Path(text))
