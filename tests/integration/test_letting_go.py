"""Giving up half-way, starting over, and two things at once: found by a hostile reader."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest

from duly import Scheduler, ScheduleTaskError, StopSchedulerError, StoreError, StoreInUseError
from duly.engine.local import LocalBackend
from duly.store import SQLiteStore
from duly.testing import VirtualClock
from duly.threads import Worker
from tests.worlds.scheduler import HOUR, MINUTE, World
from tests.worlds.stores import StoreFactory, hooked

FULL = StoreError(store="state.db", reason="the disk is full")


@pytest.mark.sqlite_only("only a file has a relative path")
async def test_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store given by a relative path stays where it was when the program changes directory."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    store = SQLiteStore(Path("state.db"))
    world = World(lambda: store, "12:00:00")
    await world.begin(world.task("a"))
    monkeypatch.chdir(tmp_path / "there")
    await world.until("12:02")
    await world.scheduler.stop()
    assert world.told("StoreFault") == []
    assert list((tmp_path / "there").iterdir()) == []
    assert store.name == "state.db"


@pytest.mark.parametrize("given_up_after_s", [0, 5, 15])
async def test_stop_given_up_loses_no_end(same_store: StoreFactory, given_up_after_s: int) -> None:
    """A stop cancelled while it waits or writes can be repeated, and every end is recorded."""
    world = World(same_store, "12:00:00")
    slow = hooked(same_store())
    world.same_store = lambda: slow
    task = world.task("a", "0 12 * * *", lasts=timedelta(seconds=10))
    await world.begin(task)
    slow.before_save = lambda: world.clock.sleep_until(world.clock.now() + timedelta(seconds=10))
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.clock.advance(timedelta(seconds=given_up_after_s))
    stopping.cancel()
    await world.rest()
    await world.stop(within=MINUTE)
    assert world.scheduler.state == "Stopped"
    await world.begin(task)
    await world.clock.advance(MINUTE)
    assert world.calls_of("a") == ["12:00:00"]
    await world.stop()


@pytest.mark.parametrize("how", ["wait_for", "create_task", "gather"])
async def test_stop_outside_and_initialize_inside(same_store: StoreFactory, how: str) -> None:
    """A callback that initializes in the instant in which somebody stops does not deadlock with the stop."""
    world = World(same_store, "12:00:00")
    go = asyncio.Event()
    raised: list[BaseException] = []

    async def changes() -> None:
        await go.wait()
        try:
            await world.scheduler.initialize([world.task("b", "0 3 * * *")])
        except ScheduleTaskError as error:
            raised.append(error)

    await world.begin(("a", "0 12 * * *", changes, HOUR))
    go.set()
    if how == "wait_for":
        await asyncio.wait_for(world.scheduler.stop(), 60)
    elif how == "create_task":
        await asyncio.create_task(world.scheduler.stop())
    else:
        await asyncio.gather(world.scheduler.stop())
    assert world.scheduler.state == "Stopped"
    assert len(world.told("TaskRunCompleted")) == 1


async def test_two_calls_of_one_callback_at_once(same_store: StoreFactory) -> None:
    """A callback that initializes and stops at once, while another run is in flight, does not deadlock."""
    world = World(same_store, "12:00:00")

    async def both() -> None:
        await asyncio.gather(
            world.scheduler.initialize([world.task("b", "0 3 * * *")]),
            world.scheduler.stop(),
            return_exceptions=True,
        )

    await world.begin(("a", "0 12 * * *", both, HOUR), world.task("other", "0 12 * * *", lasts=MINUTE))
    await world.clock.advance(MINUTE)
    assert world.scheduler.state == "Stopped"


async def test_step_right_before_a_stop(same_store: StoreFactory) -> None:
    """A step that nobody had time to account for before a stop gives no start without cause after it."""
    world = World(same_store, "14:00:35")
    tasks = [world.task("a", "30 13 * * *"), world.task("b", "0 3 * * *")]
    await world.begin(*tasks)
    world.clock.step(-timedelta(hours=2))
    await world.scheduler.stop()
    await world.begin(*tasks)
    await world.clock.advance(MINUTE)
    assert world.calls == []
    await world.stop()


async def test_same_process_remembers_what_it_could_not_write(same_store: StoreFactory) -> None:
    """A run whose end could not be written at stop is not run again by the scheduler that saw it end."""
    faulty = hooked(same_store())
    world = World(lambda: faulty, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=MINUTE)
    await world.begin(task)
    faulty.fail(FULL)
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.clock.advance(MINUTE)
    with pytest.raises(StopSchedulerError):
        await stopping
    faulty.heal()
    await world.scheduler.initialize([task])
    await world.clock.advance(HOUR)
    assert world.calls_of("a") == ["12:00:00"]
    await world.scheduler.stop()
    await world.begin(task)
    assert world.calls_of("a") == ["12:00:00"]
    await world.scheduler.stop()


def test_one_scheduler_on_two_event_loops(same_store: StoreFactory) -> None:
    """A scheduler that was stopped on one event loop works on another."""
    clock = VirtualClock(datetime(2026, 1, 1, 12, tzinfo=UTC))
    calls: list[str] = []

    async def callback() -> None:
        calls.append(f"{clock.now():%H:%M}")

    scheduler = Scheduler(same_store(), clock=clock, timezone=UTC)

    async def story() -> None:
        await asyncio.gather(
            *(scheduler.initialize([("a", "* * * * *", callback, MINUTE)]) for _ in range(3))
        )
        await clock.advance(MINUTE)
        await asyncio.gather(scheduler.stop(), scheduler.stop())

    asyncio.run(story())
    asyncio.run(story())
    assert calls == ["12:00", "12:01", "12:02"]


async def test_time_limit_holds_without_tasks(same_store: StoreFactory) -> None:
    """The run of a removed task is still cancelled when its time is over, so that stop can return."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a", lasts=timedelta(days=9)), run_timeout=MINUTE)
    await world.scheduler.initialize([])
    await world.clock.advance(MINUTE)
    assert len(world.told("TaskRunFailed")) == 1
    await world.scheduler.stop()


async def test_time_limits_of_many_runs(same_store: StoreFactory) -> None:
    """Limits of runs that ended are forgotten, and those of others still hold."""
    world = World(same_store, "12:00:00")
    quick = [world.task(f"q{n}") for n in range(20)]
    await world.begin(world.task("slow", "0 12 * * *", lasts=timedelta(days=2)), *quick, run_timeout=HOUR)
    for _ in range(30):
        await world.clock.advance(MINUTE)
    assert len(world.scheduler._poller._limits._deadlines) < 100
    await world.clock.advance(30 * MINUTE)
    assert [fields["taskName"] for _, fields in world.told("TaskRunFailed")] == ["slow"]
    await world.scheduler.stop()


@pytest.mark.sqlite_only("a node of a cluster has no agenda")
async def test_agenda_does_not_grow(same_store: StoreFactory) -> None:
    """A task that is retried for hours stays one entry for its far due."""
    world = World(same_store, "12:00:00")
    failing = world.task("a", "0 12 1 1 *", outcomes=[ValueError("x")] * 500, delay=timedelta(seconds=30))
    await world.begin(failing)
    await world.clock.advance(2 * HOUR)
    backend = world.scheduler._poller._backend
    assert isinstance(backend, LocalBackend)
    buckets = backend.book.agenda._buckets.values()
    assert sum(map(len, buckets)) < 5
    await world.scheduler.stop()


@pytest.mark.sqlite_only("a file is replaced under its scheduler")
async def test_older_copy_put_in_place(tmp_path: Path) -> None:
    """A database replaced by an older copy of itself is noticed, and all of it is written again."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path), "12:00:00")
    tasks = [world.task("minutely"), world.task("hourly", "0,1 * * * *")]
    await world.begin(*tasks)
    await world.scheduler.stop()
    copy = path.read_bytes()
    await world.begin(*tasks)
    await world.until("12:01:30")
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (tmp_path / name).unlink()
    path.write_bytes(copy)
    await world.until("12:03")
    await world.crash()
    await world.begin(*tasks)
    assert world.calls_of("hourly") == ["12:00:00", "12:01:00"]
    await world.scheduler.stop()


@pytest.mark.sqlite_only("only a file has a log beside it")
async def test_log_deleted_while_in_use(tmp_path: Path) -> None:
    """A write-ahead log deleted under a live scheduler is noticed, and nothing is run again after a crash."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path), "12:00:00")
    task = world.task("a")
    await world.begin(task)
    (tmp_path / "state.db-wal").unlink()
    await world.until("12:05")
    assert len(world.told("StoreFault")) >= 1
    assert len(world.told("StoreRecovered")) >= 1
    calls = len(world.calls)
    await world.crash()
    await world.begin(task)
    assert len(world.calls) == calls
    await world.scheduler.stop()


@pytest.mark.sqlite_only("a file is deleted under its scheduler")
async def test_file_deleted_right_before_stop(tmp_path: Path) -> None:
    """A database deleted just before the stop is written again by it."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path), "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=MINUTE)
    await world.begin(task)
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (tmp_path / name).unlink()
    await world.stop()
    assert apsw.Connection(str(path)).execute("SELECT name, running_since_us FROM task").fetchall() == [
        ("a", None)
    ]


async def test_crash_during_initialize(same_store: StoreFactory) -> None:
    """A scheduler that dies while it initializes is dead: it calls nothing and holds nothing."""
    world = World(same_store, "12:00:00")
    starting = asyncio.create_task(world.scheduler.initialize([world.task("a")]))
    for _ in range(3):
        await asyncio.sleep(0)  # noqa: TID251 (lets it begin)
    await world.crash()
    await world.clock.advance(HOUR)
    assert world.calls == []
    await asyncio.gather(starting, return_exceptions=True)
    await world.begin(world.task("a"))
    assert len(world.calls) == 1
    await world.scheduler.stop()


@pytest.mark.sqlite_only("only a file is locked")
async def test_refused_open_leaves_no_thread(tmp_path: Path) -> None:
    """An attempt to open a store that is held leaves no thread behind."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path))
    await world.begin()
    for _ in range(5):
        store = SQLiteStore(path)
        with pytest.raises(StoreInUseError):
            await store.open("x")
        assert isinstance(store._worker, Worker)
        assert store._worker._thread is None
    await world.scheduler.stop()


async def test_initialize_after_a_failed_half_stop(same_store: StoreFactory) -> None:
    """After a stop that was given up and then failed, initialize starts over."""
    faulty = hooked(same_store())
    world = World(lambda: faulty, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=MINUTE))
    stopping = asyncio.create_task(world.scheduler.stop())
    await world.rest()
    stopping.cancel()
    faulty.fail(FULL)
    starting = asyncio.create_task(world.scheduler.initialize([world.task("a", "0 12 * * *", lasts=MINUTE)]))
    await world.clock.advance(MINUTE)
    faulty.heal()
    await asyncio.gather(starting, return_exceptions=True)
    await world.scheduler.initialize([world.task("b", "1 12 * * *")])
    await world.rest()
    assert len(world.calls_of("b")) == 1
    await world.stop()


async def test_clock_that_cannot_sleep_is_asked_again(same_store: StoreFactory) -> None:
    """A clock whose sleep fails once does not put the scheduler to sleep for ever."""
    inner = VirtualClock(datetime(2026, 1, 1, 12, tzinfo=UTC))
    failures = [OSError("no sleep")]
    calls: list[str] = []

    class Flaky:
        now = inner.now
        watch = inner.watch

        async def sleep_until(self, moment: datetime) -> None:
            if failures:
                raise failures.pop()
            await inner.sleep_until(moment)

    async def callback() -> None:
        calls.append(f"{inner.now():%H:%M}")

    scheduler = Scheduler(same_store(), clock=Flaky(), timezone=UTC)
    await scheduler.initialize([("a", "1 * * * *", callback, MINUTE)])
    while failures or len(inner._sleepers) < 1:  # noqa: ASYNC110 (the fall-back sleeps in real time)
        await asyncio.sleep(0.01)  # noqa: TID251
    await inner.advance(2 * MINUTE)
    assert calls == ["12:01"]
    await scheduler.stop()


async def test_start_written_and_never_called_is_no_interruption(same_store: StoreFactory) -> None:
    """A start that reached the disk and was not carried out is still owed, to the scheduler that knows."""
    faulty = hooked(same_store())
    world = World(lambda: faulty)
    task = world.task("a", "1 12 * * *")
    await world.begin(task)
    faulty.lose_answers(FULL)
    await world.until("12:01")
    faulty.fail(FULL)
    with suppress(StopSchedulerError):  # a node of a cluster has nothing to write, and does not raise
        await world.scheduler.stop()
    faulty.heal()
    await world.scheduler.initialize([task])
    await world.rest()
    assert [fields["cause"] for _, fields in world.told("TaskRunStarted")] == ["cron"]
    await world.scheduler.stop()


async def test_run_that_outlives_its_failed_initialize(same_store: StoreFactory) -> None:
    """A callback whose initialize failed ends after the store was let go; its end is remembered."""
    faulty = hooked(same_store())
    world = World(lambda: faulty, "12:00:00")

    async def changes() -> None:
        faulty.fail(FULL)
        with pytest.raises(ScheduleTaskError):
            await world.scheduler.initialize([world.task("b", "0 3 * * *")])
        faulty.heal()

    task = ("a", "0 12 * * *", changes, HOUR)
    await world.begin(task)
    assert world.scheduler.state == "Uninitialized"
    await world.scheduler.initialize([task])
    await world.clock.advance(MINUTE)
    assert [fields["cause"] for _, fields in world.told("TaskRunStarted")] == ["startup"]
    await world.scheduler.stop()
