"""What all tests share: async test functions, and the stores that scheduler tests run on."""

import asyncio
import gc
import inspect
import os
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from duly.store import MemoryStore, SQLiteStore
from tests.worlds.postgres import (  # noqa: F401 - fixtures
    lease_s,
    own_postgres,
    pgbouncer,
    pgbouncer_url,
    postgres,
    postgres_database,
    postgres_servers,
    postgres_url,
)
from tests.worlds.stores import StoreFactory, same_schema  # noqa: F401 - a fixture

# Where CI is set the examples of Hypothesis stay the same, so a red run is the fault of the change. Elsewhere
# they are new in every run. A busy machine draws and runs them slowly; that is no fault.
settings.register_profile(
    "duly",
    derandomize="CI" in os.environ,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("duly")


def pytest_configure() -> None:
    """Let programs that tests start receive SIGINT; a shell makes its background jobs ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests come and stay: the garbage collector need not walk through them, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run an async test on an event loop of its own; debug mode makes forgotten awaits loud."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True)
def no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make quick` runs starts no process."""
    is_light = request.path.parent.name in {"unit", "property"}
    if is_light and request.node.get_closest_marker("heavy") is None:
        monkeypatch.setattr(subprocess, "Popen", _refuse_process)


def _refuse_process(command: Any, *_: Any, **__: Any) -> NoReturn:
    pytest.fail(f"this test starts a process, so it must be marked heavy: {command}")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def same_store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    """Make a store on one and the same place, as often as a test restarts its scheduler."""
    if request.param == "postgres":
        if (marker := request.node.get_closest_marker("sqlite_only")) is not None:
            pytest.skip(marker.args[0])
        factory: StoreFactory = request.getfixturevalue("same_schema")
        return factory
    if request.param == "sqlite":
        return lambda: SQLiteStore(tmp_path / "state.db")
    memory = MemoryStore()
    return lambda: memory
