"""The history of an app: every run that has ended, on every store, in virtual time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest

from duly import App, Retry, Run, Scheduler, every
from duly.app import TaskRun
from duly.engine.task_runs import traceback_of
from duly.errors import StoreError
from duly.events import Event
from duly.store import MemoryStore, SQLiteStore
from duly.store.history import WantedTaskRuns
from duly.store.reading import Reader, read
from duly.testing import VirtualClock, crash
from tests.worlds.stores import StoreFactory, fail_over

START = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)


def after(seconds: float) -> datetime:
    """A moment of the tests."""
    return START + timedelta(seconds=seconds)


def texts(runs: list[TaskRun]) -> list[str]:
    """What matters of each run, in a word or two."""
    return [f"{run.task} {run.cause} {run.attempt} {run.result}" for run in runs]


async def test_every_run_is_there(same_store: StoreFactory) -> None:
    """A run has its due, start, end, cause, attempt, node, result and error, and the id that its body saw."""
    clock = VirtualClock(START)
    ids: list[UUID] = []

    def program() -> App:
        app = App(same_store(), clock=clock, timezone="UTC")

        @app.task(every("60s"), retry=Retry("5s", attempts=3))
        async def job(run: Run) -> None:
            ids.append(run.id)
            await clock.sleep_until(clock.now() + timedelta(seconds=2))
            if len(ids) == 1:
                raise KeyError("missing: it")

        @app.task(every("70s"), timeout="3s", retry=Retry("1h"))
        async def slow() -> None:
            await clock.sleep_until(clock.now() + timedelta(seconds=30))

        return app

    async with program() as app:
        await clock.advance(timedelta(seconds=80))
        runs = await app.history()
        assert texts(runs) == ["slow cron 1 timeout", "job retry 2 success", "job cron 1 failure"]
        failure = runs[2]
        assert (failure.due, failure.started, failure.ended) == (after(60), after(60), after(62))
        assert (failure.error, failure.message) == ("KeyError", "'missing: it'")
        assert 'raise KeyError("missing: it")' in failure.traceback
        assert failure.node
        assert [run.id for run in reversed(runs) if run.task == "job"] == ids
        assert runs[0].error == "TimeoutError"
        assert "sleep_until" in runs[0].traceback, "it says what the run was waiting for"
        success = runs[1]
        assert (success.error, success.message, success.traceback) == (None, "", "")
        assert success.due == after(67)
    async with program() as app:
        assert await app.history() == runs, "another life has the same"


async def test_filters(same_store: StoreFactory) -> None:
    """Runs are found by task, result and start; a wrong filter is refused."""
    clock = VirtualClock(START)
    app = App(same_store(), clock=clock, timezone="UTC")

    @app.task(every("10s"))
    async def good() -> None: ...

    @app.task(every("20s"), retry=Retry("1h"))
    async def bad() -> None:
        raise ValueError

    async with app:
        await clock.advance(timedelta(seconds=41))

        async def found(**filters: Any) -> list[str]:
            return [f"{run.task} {(run.started - START).seconds}" for run in await app.history(**filters)]

        assert await found(name="bad") == ["bad 40", "bad 20"]
        assert await found(result="failure", limit=1) == ["bad 40"]
        assert await found(name="good", result="failure") == []
        assert await found(since=after(40), result="success") == ["good 40"]
        assert await found(until=after(30), since=after(20), name="good") == ["good 20"]
        with pytest.raises(ValueError, match="success, failure, timeout, cancelled, interrupted"):
            await app.history(result="failed")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="needs a datetime with a time zone"):
            await app.history(since=datetime(2026, 1, 1))  # noqa: DTZ001 (that is the point)
        with pytest.raises(ValueError, match="needs a datetime with a time zone, not '2026-01-01'"):
            await app.history(since="2026-01-01")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"history\(limit=...\) needs a whole number, not 'all'"):
            await app.history(limit="all")  # type: ignore[arg-type]


async def test_interrupted(same_store: StoreFactory) -> None:
    """A run that a crash cut off is in the history as interrupted, once."""
    clock = VirtualClock(START)
    runs: list[Run] = []

    def program() -> App:
        app = App(same_store(), clock=clock, timezone="UTC")

        @app.task(every("60s"))
        async def job(run: Run) -> None:
            runs.append(run)
            await clock.sleep_until(clock.now() + timedelta(seconds=10))

        return app

    app = program()
    await app.start()
    await clock.advance(timedelta(seconds=65))
    await crash(app)
    fail_over(same_store())
    async with program() as app:
        await clock.advance(timedelta(seconds=20))
        history = await app.history("job")
    assert [run.result for run in history] == ["success", "interrupted"]
    assert history[1].started == after(60)
    assert history[1].id in {None, runs[0].id}
    assert history[0].id == runs[0].id == runs[1].id
    async with program() as app:
        assert await app.history("job") == history


async def test_rows_are_written_together(tmp_path: Path) -> None:
    """The runs of a burst cost no commit of their own, and a reader from outside finds them soon."""
    clock, store = VirtualClock(START), SQLiteStore(tmp_path / "state.db")
    app = App(store, clock=clock, timezone="UTC")
    for number in range(20):
        app.declare(lambda: None, every("60s"), name=f"job {number}")
    writes: list[float] = []
    async with app:
        store.on_write = lambda seconds, *, is_written: writes.extend([seconds] * is_written)
        await clock.advance(timedelta(seconds=60))
        before = len(writes)
        assert len(await app.history()) == 20
        await clock.advance(timedelta(seconds=1))
        assert len(writes) == before + 1
        rows = read(tmp_path / "state.db", lambda reader: reader.task_runs(WantedTaskRuns()))
    assert len(rows) == 20


async def test_old_runs_are_forgotten(tmp_path: Path) -> None:
    """Of each task the newest runs are kept, and no run for longer than it may be."""
    clock = VirtualClock(START)
    app = App(tmp_path / "state.db", clock=clock, timezone="UTC", history_age="40h", history_count=5)
    app.declare(lambda: None, every("1h"), name="often")
    app.declare(lambda: None, every("23h"), name="rare")
    async with app:
        await clock.advance(timedelta(hours=50))
        often, rare = len(await app.history("often")), len(await app.history("rare"))
    assert 5 <= often < 5 + 25, "they are looked for once a day"
    assert rare == 2
    async with App(tmp_path / "state.db", clock=clock, timezone="UTC") as app:
        assert len(await app.history("often")) == often, (
            "the runs of a task that is gone stay until they are old"
        )


def test_limits_are_checked() -> None:
    """A history of nothing is refused, and so is an age that is no length."""
    with pytest.raises(ValueError, match="history_count"):
        App(":memory:", history_count=0)
    with pytest.raises((ValueError, TypeError), match="history_age"):
        App(":memory:", history_age="a week")


async def test_a_store_that_cannot_keep_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history that cannot be written keeps no task from running, and is written when it can be."""
    clock, events = VirtualClock(START), list[Event]()
    store = SQLiteStore(tmp_path / "state.db")
    app = App(store, clock=clock, timezone="UTC", listeners=[events.append])
    app.declare(lambda: None, every("60s"), name="job")
    write, is_broken = store.write, False

    async def faulty(change: Callable[[apsw.Connection], object]) -> None:
        if is_broken:
            raise StoreError(store="state.db", reason="has no room for a history")
        await write(change)

    monkeypatch.setattr(store, "write", faulty)
    async with app:
        is_broken = True
        await clock.advance(timedelta(seconds=301))
        seen = [event.name for event in events]
        assert seen.count("TaskRunCompleted") == 5
        assert seen.count("StoreFault") == 1
        assert len(await app.history("job")) == 5
        is_broken = False
        await clock.advance(timedelta(seconds=30))
        assert "StoreRecovered" in [event.name for event in events]
    assert len(read(tmp_path / "state.db", lambda reader: reader.task_runs(WantedTaskRuns()))) == 5


async def test_a_scheduler_keeps_none(tmp_path: Path) -> None:
    """A history is something of apps: `Scheduler` writes what the contract says and no more."""
    clock = VirtualClock(START)
    scheduler = Scheduler(tmp_path / "state.db", clock=clock, timezone=UTC)

    async def job() -> None: ...

    await scheduler.initialize([("job", "* * * * *", job, timedelta())])
    await clock.advance(timedelta(seconds=121))
    await scheduler.stop()
    assert read(tmp_path / "state.db", lambda reader: reader.task_runs(WantedTaskRuns())) == []
    assert len(read(tmp_path / "state.db", Reader.tasks)) == 1


def test_long_tracebacks() -> None:
    """A traceback keeps its beginning and its end, and says what is left out; a broken one says that."""
    with pytest.raises(ValueError, match="the end") as caught:
        raise ValueError("é" * 100_000 + "the end")
    text = traceback_of(caught.value)
    assert len(text.encode()) <= 16 * 1024
    assert text.startswith("Traceback")
    assert "the middle is left out; the whole has 200," in text
    assert text.endswith("the end\n")

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "BrokenError" in traceback_of(BrokenError())
    assert traceback_of(None) == ""


async def test_a_memory_store_remembers(tmp_path: Path) -> None:
    """The history in a memory lasts as long as the store object."""
    clock, store = VirtualClock(START), MemoryStore()
    for count in (1, 2):
        app = App(store, clock=clock, timezone="UTC")
        app.declare(lambda: None, every("60s"), name="job")
        async with app:
            await clock.advance(timedelta(seconds=60))
            assert len(await app.history()) == count
