"""What all tests share: async test functions, and the stores that scheduler tests run on."""

import asyncio
import inspect
from pathlib import Path

import pytest

from duly.store import MemoryStore, SQLiteStore
from tests.places import StoreFactory, same_schema  # noqa: F401 - a fixture
from tests.postgres import (  # noqa: F401 - fixtures
    own_postgres,
    pgbouncer,
    pgbouncer_url,
    postgres,
    postgres_database,
    postgres_servers,
    postgres_url,
)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run an async test on an event loop of its own; debug mode makes forgotten awaits loud."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def same_store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    """Make a store on one and the same place, as often as a test restarts its scheduler."""
    if request.param == "postgres":
        factory: StoreFactory = request.getfixturevalue("same_schema")
        return factory
    if request.param == "sqlite":
        return lambda: SQLiteStore(tmp_path / "state.db")
    memory = MemoryStore()
    return lambda: memory
