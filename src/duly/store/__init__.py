"""Where a scheduler keeps what it must remember: what a store is, and the stores there are."""

import os
from pathlib import Path

from duly.store.board import Board
from duly.store.memory import MemoryStore
from duly.store.protocol import Contents, Store
from duly.store.sqlite import SQLiteStore

__all__ = ["Board", "Contents", "MemoryStore", "SQLiteStore", "Store", "store_for"]


def store_for(place: object) -> "Store | Board":
    """The store that *place* means: a path, ":memory:", an address, or a store itself."""
    if isinstance(place, str | os.PathLike) and os.fspath(place) == ":memory:":
        return MemoryStore()
    if isinstance(place, str):
        if place.startswith(("postgresql://", "postgres://")):
            from duly.store.postgres import PostgresBoard  # noqa: PLC0415 (not every user has psycopg)

            return PostgresBoard(place)
        if "://" in place:
            scheme = place.split("://", 1)[0]
            raise ValueError(f"no store is known for {scheme}:// addresses; use a path to a SQLite file")
        if not place or "\0" in place:
            raise ValueError("a store needs a path, such as 'state.db', or ':memory:'")
        return SQLiteStore(Path(place))
    if isinstance(place, os.PathLike):
        return SQLiteStore(Path(place))
    if isinstance(place, Store | Board):
        return place
    raise TypeError(f"a store is a path, ':memory:' or a Store, not {type(place).__name__}")
