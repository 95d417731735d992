"""A store that fails while scheduling goes on: nothing lost, nothing doubled (spec/scheduler.md 5.4)."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest

from duly import Scheduler, ScheduleTaskError, StoreError, StoreInUseError
from duly.store import SQLiteStore
from duly.store.reading import records_in
from duly.store.schema import migrate, migrations
from duly.testing import FaultyStore, VirtualClock
from tests.worlds.scheduler import HOUR, MINUTE, World
from tests.worlds.stores import StoreFactory, by_hand, hooked

BROKEN = ValueError("broken")
FULL = StoreError(store="state.db", reason="the disk is full")


@pytest.mark.excused("L1")  # nothing starts while the store cannot write (decision 0008)
async def test_no_callback_without_a_durable_start(same_store: StoreFactory) -> None:
    """While the store cannot write nothing starts; when it can, each task starts once for all it missed."""
    faulty = hooked(same_store())
    world = World(lambda: faulty)
    await world.begin(world.task("a", "1,2,3 * * * *"))
    faulty.fail(FULL)
    await world.until("12:03:30")
    assert world.calls == []
    faulty.heal()
    await world.clock.advance(timedelta(seconds=20))
    assert len(world.calls) == 1
    await world.until("13:01")
    assert len(world.calls) == 2
    await world.scheduler.stop()
    assert [name for name, _ in world.told("StoreFault", "StoreRecovered")] == [
        "StoreFault",
        "StoreRecovered",
    ]
    assert "the disk is full" in world.told("StoreFault")[0][1]["error"]


@pytest.mark.sqlite_only("a node hands over a wave when the one before is under way, and not earlier")
@pytest.mark.excused("L1")  # nothing starts while the store cannot write (decision 0008)
async def test_fault_between_two_waves(tmp_path: Path) -> None:
    """What a burst wrote before a fault has started; the rest starts once, when the fault has passed."""
    store = SQLiteStore(tmp_path / "state.db")
    faulty = FaultyStore(store)
    world = World(lambda: faulty)

    async def failing() -> None:
        world.calls.append(("a", "12:01:00"))
        faulty.fail(FULL)

    names, (_, cron, _, delay) = "abcde", world.task("a", "1 * * * *")
    rest = [world.task(name, cron) for name in names[1:]]
    scheduler = await world.begin(("a", cron, failing, delay), *rest)
    scheduler._poller.wave = 1
    await world.until("12:01:00")
    # When a was called, b had been handed to the store, and its answer was lost.
    running = by_hand(store, "SELECT name FROM task WHERE running_since_us IS NOT NULL")
    assert running == [("a",), ("b",)]
    assert [name for name, _ in world.calls] == ["a"]
    faulty.heal()
    await world.until("12:02:00")
    assert [name for name, _ in world.calls] == list(names)
    await world.scheduler.stop()


async def test_ends_are_kept_until_they_can_be_written(same_store: StoreFactory) -> None:
    """A run that ends during a fault is told at once and recorded when the fault passes."""
    faulty = hooked(same_store())
    world = World(lambda: faulty, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=MINUTE, outcomes=[BROKEN])
    await world.begin(task)
    faulty.fail(FULL)
    await world.until("12:02")
    assert len(world.told("TaskRunFailed")) == 1
    faulty.heal()
    await world.until("12:03")
    await world.crash()
    await world.begin(task)
    assert world.calls_of("a") == ["12:00:00"]  # recorded as ended: not interrupted
    await world.until("12:06")
    assert world.calls_of("a") == ["12:00:00", "12:06:00"]
    await world.stop()


async def test_write_whose_answer_is_lost(same_store: StoreFactory) -> None:
    """A write that happened but seemed to fail is made again, and the task is started once."""
    faulty = hooked(same_store())
    world = World(lambda: faulty)
    await world.begin(world.task("a", "1 * * * *"))
    faulty.lose_answers(FULL)
    await world.until("12:01:10")
    assert world.calls == []
    faulty.heal()
    await world.until("12:02")
    assert len(world.calls) == 1
    await world.clock.advance(timedelta(minutes=30))
    assert len(world.calls) == 1
    await world.scheduler.stop()


async def test_crash_after_a_lost_answer(same_store: StoreFactory) -> None:
    """A start that was written but never carried out is carried out after the crash, once."""
    faulty = hooked(same_store())
    world = World(lambda: faulty)
    task = world.task("a", "1 * * * *")
    await world.begin(task)
    faulty.lose_answers(FULL)
    await world.until("12:01:10")
    await world.crash()
    faulty.heal()
    await world.begin(task)
    await world.until("12:50")
    assert len(world.calls) == 1
    await world.scheduler.stop()


@pytest.mark.excused("L1")  # nothing starts while the store cannot write (decision 0008)
async def test_long_fault_costs_few_attempts(same_store: StoreFactory) -> None:
    """A store that fails for an hour is asked again every now and then, not all the time."""
    faulty = hooked(same_store())
    world = World(lambda: faulty)
    await world.begin(world.task("a"))
    faulty.fail(FULL)
    before = faulty.writes
    await world.clock.advance(HOUR)
    assert faulty.writes - before < 250
    faulty.heal()
    await world.clock.advance(timedelta(seconds=17))
    assert len(world.calls) == 2
    await world.scheduler.stop()


@pytest.mark.sqlite_only("in a cluster the rows are the tasks")
@pytest.mark.parametrize("same_store", ["sqlite"], indirect=True)
async def test_rows_deleted_by_somebody_are_written_again(same_store: StoreFactory) -> None:
    """Rows that vanish under a live scheduler are reported and restored from what it knows."""
    world = World(same_store)
    await world.begin(world.task("a"), world.task("b", "0 3 * * *"))
    by_hand(same_store(), "DELETE FROM task")
    await world.until("12:01:30")
    assert "Stored tasks changed" in world.told("StoreFault")[0][1]["error"]
    assert len(world.told("StoreRecovered")) == 1
    assert by_hand(same_store(), "SELECT name FROM task ORDER BY name") == [("a",), ("b",)]
    assert world.calls_of("a")[0:1] == ["12:00:30"]
    assert len(world.calls_of("a")) == 2
    await world.scheduler.stop()


def scheduler_id_in(path: Path) -> object:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute("SELECT id FROM scheduler").get
    finally:
        connection.close()


@pytest.mark.sqlite_only("these are settings of SQLite")
async def test_every_commit_is_synced(tmp_path: Path) -> None:
    """The database is in WAL mode with full synchronisation, whatever the defaults are."""
    store = SQLiteStore(tmp_path / "state.db")
    await store.open("id")
    assert store._connection is not None
    assert store._connection.execute("PRAGMA synchronous").get == 2
    assert store._connection.execute("PRAGMA journal_mode").get == "wal"
    await store.close()


@pytest.mark.sqlite_only("a file is deleted under its scheduler")
async def test_file_deleted_while_in_use_is_written_anew(tmp_path: Path) -> None:
    """A database deleted under a live scheduler is noticed and written again; nothing is doubled."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path))
    task = world.task("a")
    await world.begin(task)
    identifier = scheduler_id_in(path)
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (tmp_path / name).unlink()
    await world.until("12:02:30")
    assert len(world.told("StoreFault")) >= 1
    assert len(world.told("StoreRecovered")) == 1
    await world.scheduler.stop()
    assert scheduler_id_in(path) == identifier
    calls = len(world.calls)
    await world.begin(task)
    assert len(world.calls) == calls
    await world.scheduler.stop()


@pytest.mark.sqlite_only("only a file is locked as a whole")
@pytest.mark.excused("L1")  # nothing starts while the store cannot write (decision 0008)
async def test_locked_file(tmp_path: Path) -> None:
    """A file locked by another program delays starts until the lock is gone."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path, busy_ms=10))
    await world.begin(world.task("a", "1 * * * *"))
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    await world.until("12:02")
    assert world.calls == []
    assert "locked" in world.told("StoreFault")[0][1]["error"]
    other.execute("ROLLBACK")
    other.close()
    await world.clock.advance(timedelta(seconds=20))
    assert len(world.calls) == 1
    await world.scheduler.stop()


class FullDisk(apsw.VFS):
    """The ordinary file system, with a disk that can be full."""

    def __init__(self) -> None:
        self.is_full = False
        self.name = f"full-{id(self)}"
        super().__init__(self.name, "")

    def xOpen(self, name: "str | apsw.URIFilename | None", flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (SQLite's name)
        """Open a file on the disk."""
        return _FullDiskFile(self, name, flags)


class _FullDiskFile(apsw.VFSFile):
    def __init__(self, disk: FullDisk, name: "str | apsw.URIFilename | None", flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 (SQLite's name)
        if self._disk.is_full:
            raise apsw.FullError
        super().xWrite(data, offset)


@pytest.fixture
def disk() -> Iterator[FullDisk]:
    """A disk that a test can fill."""
    disk = FullDisk()
    yield disk
    disk.unregister()


@pytest.mark.sqlite_only("the disk of a file is full")
@pytest.mark.excused("L1")  # nothing starts while the store cannot write (decision 0008)
async def test_full_disk(tmp_path: Path, disk: FullDisk) -> None:
    """On a full disk nothing starts and nothing is lost; freed, writing resumes by itself."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path, vfs=disk.name), "12:00:00")
    task = world.task("a", "0,1,2 12 * * *", lasts=timedelta(seconds=20))
    await world.begin(task)
    disk.is_full = True
    await world.until("12:02:30")
    assert world.calls_of("a") == ["12:00:00"]
    assert "the disk is full" in world.told("StoreFault")[0][1]["error"]
    assert str(path) in world.told("StoreFault")[0][1]["error"]
    disk.is_full = False
    await world.until("12:03:30")
    assert len(world.calls_of("a")) == 2
    await world.scheduler.stop()
    await world.begin(task)
    assert len(world.calls_of("a")) == 2
    await world.scheduler.stop()


@pytest.mark.sqlite_only("the disk of a file is full")
async def test_full_disk_at_first_initialize(tmp_path: Path, disk: FullDisk) -> None:
    """A store that cannot be written refuses to start, names the file, and works once there is room."""
    path = tmp_path / "state.db"
    disk.is_full = True
    world = World(lambda: SQLiteStore(path, vfs=disk.name))
    with pytest.raises(ScheduleTaskError, match="the disk is full") as raised:
        await world.begin(world.task("a"))
    assert str(path) in raised.value.message
    disk.is_full = False
    await world.begin(world.task("a"))
    assert len(world.calls) == 1
    await world.scheduler.stop()


async def refused(path: Path) -> ScheduleTaskError:
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))

    async def callback() -> None: ...

    scheduler = Scheduler(path, clock=clock, timezone=UTC)
    with pytest.raises(ScheduleTaskError) as raised:
        await scheduler.initialize([("a", "0 3 * * *", callback, MINUTE)])
    assert scheduler.state == "Uninitialized"
    assert str(path) in raised.value.message
    return raised.value


@pytest.mark.sqlite_only("formats of files; those of PostgreSQL are in test_postgres_sentences")
async def test_newer_format_is_refused_untouched(tmp_path: Path) -> None:
    """A store written by a newer version is refused, and not a byte of it is changed."""
    path = tmp_path / "state.db"
    connection = apsw.Connection(str(path))
    migrate(connection, 0, migrations())
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    error = await refused(path)
    assert "format 99" in error.message
    assert path.read_bytes() == before


@pytest.mark.sqlite_only("it is about a file")
async def test_file_that_is_no_database(tmp_path: Path) -> None:
    """A file of another kind is refused, and left alone."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 1000)
    assert "not a SQLite database" in (await refused(path)).message
    assert path.read_text().startswith("not a database")


@pytest.mark.sqlite_only("about a file; tables of others in PostgreSQL are in test_postgres_sentences")
async def test_database_of_another_program(tmp_path: Path) -> None:
    """A SQLite database that is not ours is refused, and left alone."""
    path = tmp_path / "other.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    assert "another program" in (await refused(path)).message
    assert path.read_bytes() == before


@pytest.mark.sqlite_only("a file is damaged")
async def test_damaged_database(tmp_path: Path) -> None:
    """A damaged file is an error that says so, not a fresh start."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path))
    await world.begin(*[world.task(f"t{n}" * 50, "0 3 * * *") for n in range(200)])
    await world.scheduler.stop()
    contents = bytearray(path.read_bytes())
    contents[4096:] = b"\xff" * (len(contents) - 4096)
    path.write_bytes(contents)
    assert "damaged" in (await refused(path)).message


@pytest.mark.sqlite_only("it is about a path")
async def test_missing_folder_and_folder_as_file(tmp_path: Path) -> None:
    """A path that cannot be a file is refused with a hint."""
    assert "is its directory there" in (await refused(tmp_path / "no" / "state.db")).message
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "is it a file" in (await refused(folder)).message


@pytest.mark.sqlite_only("a cluster does not read the rows of a list")
@pytest.mark.parametrize("same_store", ["sqlite"], indirect=True)
async def test_row_edited_by_hand(same_store: StoreFactory) -> None:
    """A task whose row makes no sense fails a list that has it, by name; one that has it not removes it."""
    world = World(same_store)
    await world.begin(world.task("a", "0 3 * * *"), world.task("b", "0 3 * * *"))
    await world.scheduler.stop()
    by_hand(same_store(), "UPDATE task SET cron = 'nonsense' WHERE name = 'a'")
    with pytest.raises(ScheduleTaskError) as raised:
        await world.begin(*(world.task(name, "0 3 * * *") for name in "abc"))
    assert raised.value.details["name"] == "a"
    assert "Invalid value for field 'cron'" in raised.value.message
    await world.begin(world.task("b", "0 3 * * *"))
    assert by_hand(same_store(), "SELECT name FROM task") == [("b",)]
    await world.scheduler.stop()


@pytest.mark.excused("L1")  # nobody can tell what a row means that cannot be read
@pytest.mark.parametrize("same_store", ["postgres"], indirect=True)
async def test_row_edited_by_hand_under_the_same_list(same_store: StoreFactory) -> None:
    """One row that makes no sense does not keep a cluster from its list: told by name, and left as it is."""
    world = World(same_store)
    tasks = [world.task("a", "1 * * * *"), world.task("b", "1 * * * *")]
    await world.begin(*tasks)
    await world.scheduler.stop()
    by_hand(same_store(), "UPDATE task SET state = '[nonsense' WHERE name = 'a'")
    await world.begin(*tasks)
    await world.until("12:05")
    assert (world.calls_of("a"), world.calls_of("b")) == ([], ["12:01:00"])
    [(_, fault)] = world.told("StoreFault")
    assert "the row of task 'a': TaskInvalidStructureError" in fault["error"]
    by_hand(
        same_store(), "UPDATE task SET state = (SELECT state FROM task WHERE name = 'b') WHERE name = 'a'"
    )
    await world.until("13:01:10")
    assert world.calls_of("a") == ["13:01:00"], "mended, it is taken up"
    await world.scheduler.stop()


@pytest.mark.sqlite_only("only a file has a hold; many schedulers share a database")
async def test_two_schedulers_on_one_file(tmp_path: Path) -> None:
    """A second scheduler gets a clear error, also through a link; the first does not notice."""
    path = tmp_path / "state.db"
    link = tmp_path / "link.db"
    world = World(lambda: SQLiteStore(path), "12:00:00")
    await world.begin(world.task("a"))
    link.symlink_to(path)
    for other in (path, link):
        second = Scheduler(other, timezone=UTC)
        with pytest.raises(StoreInUseError) as raised:
            await second.initialize([])
        assert raised.value.details["store"] == str(other)
        assert f"process {os.getpid()}" in raised.value.details["holder"]
    await world.until("12:03")
    assert len(world.calls) == 4
    await world.scheduler.stop()


@pytest.mark.sqlite_only("formats of files; those of PostgreSQL are in test_postgres_sentences")
async def test_older_format_is_migrated(tmp_path: Path) -> None:
    """Each step of a migration is applied once, in one transaction, and the version says so."""
    connection = apsw.Connection(str(tmp_path / "x.db"))
    steps = ["CREATE TABLE a (x)", "ALTER TABLE a ADD COLUMN y", "UPDATE a SET y = 1"]
    migrate(connection, 0, steps[:1])
    connection.execute("INSERT INTO a VALUES (7)")
    migrate(connection, 1, steps)
    assert connection.execute("SELECT x, y FROM a").fetchall() == [(7, 1)]
    assert connection.execute("PRAGMA user_version").get == 3
    migrate(connection, 3, steps)
    with pytest.raises(apsw.SQLError):
        migrate(connection, 3, [*steps, "CREATE TABLE b (x)", "nonsense"])
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'b'").get == 0
    connection.close()


@pytest.mark.sqlite_only("formats of files; those of PostgreSQL are in test_postgres_sentences")
async def test_format_2_learns_origins(tmp_path: Path) -> None:
    """A store of format 2 is read as it is, and brought up to date: its latest run is the origin."""
    path = tmp_path / "old.db"
    connection = apsw.Connection(str(path))
    migrate(connection, 0, migrations()[:2])
    connection.execute("INSERT INTO scheduler VALUES ('me')")
    row = (1, "a", "0 3 * * *", 0, 5, 6, 7, None, None, None, 0, 0, 0, 7, "me")
    connection.execute(f"INSERT INTO task VALUES ({', '.join('?' * 15)})", row)
    connection.close()
    expected = [(*row[:14], 7, 0, None, "me", None)]
    assert records_in(path) == expected
    store = SQLiteStore(path)
    assert list((await store.open("new")).records) == expected
    await store.close()
    assert records_in(path) == expected


@pytest.mark.sqlite_only("only a file has a log beside it")
async def test_many_restarts_keep_the_log_small(tmp_path: Path) -> None:
    """The write-ahead log is folded back while the scheduler runs; it does not grow without end."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path))
    await world.begin(*[world.task(f"t{n}") for n in range(300)])
    for _ in range(60):
        await world.clock.advance(MINUTE)
    assert (tmp_path / "state.db-wal").stat().st_size < 12_000_000
    await world.scheduler.stop()
