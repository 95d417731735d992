"""Where a scheduler keeps what it must remember: what a store is, and the stores there are."""

import os
from pathlib import Path

from duly.places import Kind, kind_of
from duly.store.board import Board
from duly.store.memory import MemoryStore
from duly.store.protocol import Contents, Store
from duly.store.sqlite import SQLiteStore

__all__ = ["Board", "Contents", "MemoryStore", "SQLiteStore", "Store", "store_for"]


def store_for(place: object) -> "Store | Board":
    """The store that *place* means: a path, ":memory:", an address, or a store itself. Raises ValueError."""
    if not isinstance(place, str | os.PathLike):
        if isinstance(place, Store | Board):
            return place
        raise TypeError(f"a store is a path, ':memory:' or a Store, not {type(place).__name__}")
    text = os.fsdecode(place)
    kind = kind_of(text)
    if kind is Kind.MEMORY:
        return MemoryStore()
    if kind is Kind.DATABASE:
        from duly.store.postgres import PostgresBoard  # noqa: PLC0415 (not every user has psycopg)

        return PostgresBoard(text)
    return SQLiteStore(Path(text))
