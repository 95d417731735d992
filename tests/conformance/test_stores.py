"""Every store of ours passes the suite."""

from pathlib import Path

import pytest

from duly.store import MemoryStore, SQLiteStore
from duly.testing import FaultyStore
from duly.testing.conformance import Reopened, StoreConformance


class TestMemoryStore(StoreConformance):
    """A MemoryStore is one place for as long as the object lives."""

    @pytest.fixture
    def reopened(self) -> Reopened:
        """The same object each time."""
        store = MemoryStore()
        return lambda: store


class TestSQLiteStore(StoreConformance):
    """A SQLiteStore is a file."""

    @pytest.fixture
    def reopened(self, tmp_path: Path) -> Reopened:
        """A new object on the same path."""
        return lambda: SQLiteStore(tmp_path / "state.db")


class TestFaultyStore(StoreConformance):
    """A faulty store with no fault is as good as the store inside."""

    @pytest.fixture
    def reopened(self, tmp_path: Path) -> Reopened:
        """A new wrapper around a new object on the same path."""
        return lambda: FaultyStore(SQLiteStore(tmp_path / "state.db"))
