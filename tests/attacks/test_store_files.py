"""Other programs at the files of a store in use: they replace, overwrite, link, truncate and damage them."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from duly import ScheduleTaskError, StoreError, StoreInUseError
from duly.store import SQLiteStore
from duly.store.files import FileChange, FileState, StoreFiles, change_between
from duly.store.inspection import findings_at
from tests.worlds.scheduler import MINUTE, World

FILES = ("state.db", "state.db-wal", "state.db-shm")
EVERYTHING = pytest.mark.excused("L1")
"""Nothing starts while the store is another's (decision 0008), so dues come late."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "state.db"


def world_on(path: Path, start: str = "12:00:30") -> World:
    return World(lambda: SQLiteStore(path), start)


async def backed_up(path: Path, tasks: int = 1) -> tuple[World, bytes]:
    """A scheduler that runs on a store, and a copy of that store from a minute before."""
    world = world_on(path)
    registrations = [world.task(f"t{number}") for number in range(tasks)]
    await world.begin(*registrations)
    await world.scheduler.stop()
    copy = path.read_bytes()
    await world.begin(*registrations)
    await world.clock.advance(MINUTE)
    return world, copy


def faults(world: World) -> list[str]:
    return [fields["error"] for _, fields in world.told("StoreFault")]


def task_rows(path: Path) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute("SELECT name, answered_us FROM task ORDER BY name").fetchall()
    finally:
        connection.close()


# --- 7: another file in place of the store ---


@EVERYTHING
@pytest.mark.parametrize("tasks", [1, 300])
async def test_backup_moved_over_a_store_in_use(path: Path, tasks: int) -> None:
    """`mv backup.db state.db` under a scheduler: its own log is not replayed over it, and it goes on."""
    world, copy = await backed_up(path, tasks)
    backup = path.with_name("backup.db")
    backup.write_bytes(copy)
    backup.rename(path)
    await world.until("12:05")
    assert (
        "an older copy of it is in its place, in which the last run began at 2026-01-01T12:0"
        in faults(world)[0]
    )
    assert len(world.told("StoreRecovered")) == 1
    assert path.with_name("state.db.replaced-1-wal").stat().st_size > 0
    before = world.calls_of("t0")
    assert before[-1] == "12:05:00"
    await world.crash()
    assert findings_at(path) == []
    await world.begin(*[world.task(f"t{number}") for number in range(tasks)])
    assert world.calls_of("t0") == before  # the restored store knows what was run meanwhile
    await world.scheduler.stop()


@EVERYTHING
async def test_backup_copied_over_a_store_in_use(path: Path) -> None:
    """`cp backup.db state.db` writes the same file in place: that is noticed too."""
    world, copy = await backed_up(path, 300)
    path.write_bytes(copy)
    await world.until("12:05")
    assert "was written by another program while in use" in faults(world)[0]
    assert world.calls_of("t0")[-1] == "12:05:00"
    await world.crash()
    assert findings_at(path) == []
    assert len(task_rows(path)) == 300


async def test_run_in_flight_while_a_backup_is_restored(path: Path) -> None:
    """A run that was in flight goes on, and its end is recorded in the restored store."""
    world = world_on(path, "11:58:30")
    task = world.task("long", "0 12 * * *", lasts=10 * MINUTE)
    await world.begin(task)
    await world.scheduler.stop()
    copy = path.read_bytes()
    await world.begin(task)
    await world.until("12:01")
    path.unlink()
    path.write_bytes(copy)
    await world.until("12:20")
    assert world.calls_of("long") == ["12:00:00"]
    assert len(world.told("TaskRunCompleted")) == 1
    await world.crash()
    await world.begin(task)
    await world.until("12:30")
    assert world.calls_of("long") == ["12:00:00"]  # neither interrupted nor due again
    await world.scheduler.stop()


@EVERYTHING
@pytest.mark.parametrize("kind", ["foreign", "other scheduler", "text", "damaged"])
async def test_file_that_cannot_take_the_place_of_a_store(path: Path, kind: str) -> None:
    """A file that is no intact store of this scheduler is left alone; nothing starts until it is gone."""
    world = world_on(path)
    await world.begin(*[world.task(f"t{number}") for number in range(50)])
    other = path.with_name("other.db")
    await make_other(other, kind, path)
    content = other.read_bytes()
    for name in FILES:
        path.with_name(name).unlink()
    other.rename(path)
    calls = len(world.calls)
    await world.until("12:03:30")
    assert len(world.calls) == calls
    assert (
        "was replaced while in use by a file that cannot take its place. Nothing starts" in faults(world)[-1]
    )
    assert path.read_bytes() == content
    path.unlink()
    await world.until("12:05")
    assert len(world.calls) > calls
    assert len(world.told("StoreRecovered")) == 1
    await world.scheduler.stop()
    assert len(task_rows(path)) == 50


async def make_other(other: Path, kind: str, path: Path) -> None:
    if kind == "foreign":
        connection = apsw.Connection(str(other))
        connection.execute("CREATE TABLE orders (id); INSERT INTO orders VALUES (7)")
        connection.close()
    elif kind == "other scheduler":
        store = SQLiteStore(other)
        await store.open("another")
        await store.close()
    elif kind == "text":
        other.write_text("dear diary, " * 1000)
    else:
        connection = apsw.Connection(str(path))
        connection.execute("VACUUM INTO ?", (str(other),))
        connection.close()
        content = bytearray(other.read_bytes())
        content[2 * 4096 : 4 * 4096] = random.Random(1).randbytes(2 * 4096)
        other.write_bytes(content)


@EVERYTHING
async def test_another_scheduler_on_the_file_in_its_place(path: Path) -> None:
    """If another scheduler runs on the file that came to the path, this one starts nothing."""
    world, copy = await backed_up(path)
    path.unlink()
    path.write_bytes(copy)
    second = SQLiteStore(path)
    await second.open("x")
    calls = len(world.calls)
    await world.until("12:04:30")
    assert len(world.calls) == calls
    assert "in use by another scheduler" in faults(world)[-1]
    await second.close()
    await world.until("12:05:30")
    assert len(world.calls) > calls
    await world.scheduler.stop()


async def test_backup_restored_after_a_crash_beside_the_log_of_before(path: Path) -> None:
    """A backup over which a forgotten log would be replayed is refused with the remedy, which works."""
    world = world_on(path)
    tasks = [world.task(f"t{number}", "0 3 * * *") for number in range(400)]
    await world.begin(*tasks[:10])
    await world.scheduler.stop()
    copy = path.read_bytes()
    await world.begin(*tasks)
    await world.scheduler.stop()
    await world.begin(*tasks)
    await world.scheduler.initialize(tasks[200:])
    await world.crash()
    log = path.with_name("state.db-wal")
    assert log.stat().st_size > 0
    backup = path.with_name("backup.db")
    backup.write_bytes(copy)
    backup.rename(path)
    with pytest.raises(
        ScheduleTaskError, match=r"is damaged .* its log \(state.db-wal\) is another's: remove it"
    ):
        await world.begin(*tasks)
    assert path.read_bytes() == copy
    log.unlink()
    await world.begin(*tasks)
    await world.scheduler.stop()
    assert len(task_rows(path)) == 400


def test_what_happened_to_the_files() -> None:
    """Each change of the files by another program is told apart, and our own writes are none."""
    database, log = FileState(1, 10, 4096, 5, 5), FileState(1, 11, 100, 5, 5)
    noted = StoreFiles(database, log)
    assert change_between(noted, noted) is None
    assert change_between(noted, StoreFiles(database, log._replace(size_bytes=200, modified_ns=9))) is None
    assert change_between(noted, StoreFiles(database._replace(changed_ns=9), log)) is None
    assert change_between(noted, StoreFiles(None, log)) is FileChange.REPLACED
    assert change_between(noted, StoreFiles(database._replace(inode=12), log)) is FileChange.REPLACED
    assert change_between(noted, StoreFiles(database._replace(modified_ns=9), log)) is FileChange.OVERWRITTEN
    assert change_between(noted, StoreFiles(database, None)) is FileChange.LOG_REMOVED
    assert change_between(noted, StoreFiles(database, log._replace(inode=13))) is FileChange.LOG_REMOVED
    assert change_between(noted, StoreFiles(database, log._replace(size_bytes=0))) is FileChange.LOG_DAMAGED


# --- 8: one file, several names ---

HOLDER = """
import asyncio, sys
from duly.store import SQLiteStore
from pathlib import Path

async def main():
    await SQLiteStore(Path(sys.argv[1])).open("x")
    print("open", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


@pytest.fixture
def holder(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has the store open."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


@pytest.mark.parametrize("kind", ["hard link", "symbolic link", "bind mount"])
def test_one_file_under_two_names(path: Path, holder: "subprocess.Popen[str]", kind: str) -> None:
    """Two schedulers on one file are refused under whatever names they know it; the holder is named."""
    other = path.with_name("other") / "state.db"
    other.parent.mkdir()
    if kind == "hard link":
        other.hardlink_to(path)
    elif kind == "symbolic link":
        other.symlink_to(path)
    else:
        other.touch()
        mounted = subprocess.run(["mount", "--bind", path, other], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    try:
        with pytest.raises(StoreInUseError, match=f"process {holder.pid}"):
            asyncio.run(SQLiteStore(other).open("y"))
    finally:
        if kind == "bind mount":
            subprocess.run(["umount", other], check=True)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists the locks of a file")
async def test_second_store_in_one_process_leaves_the_first_its_locks(path: Path) -> None:
    """A refused attempt in the same process does not drop the locks that SQLite has on the file."""
    first, second = SQLiteStore(path), SQLiteStore(path)
    await first.open("x")
    before = locks_on(path)
    assert {kind for kind, _ in before} == {"FLOCK", "POSIX"}
    with pytest.raises(StoreInUseError, match=f"process {os.getpid()}"):
        await second.open("y")
    assert locks_on(path) == before
    await first.close()


def locks_on(path: Path) -> set[tuple[str, str]]:
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {(line[1], line[3]) for line in lines if line[5].endswith(f":{path.stat().st_ino}")}


async def test_lock_ends_with_its_process(path: Path, holder: "subprocess.Popen[str]") -> None:
    """The lock of a killed process is gone with it."""
    holder.kill()
    holder.wait()
    store = SQLiteStore(path)
    await store.open("y")
    await store.close()


# --- 9: nothing beside the store but what SQLite makes ---


async def test_no_file_of_ours_beside_a_store(path: Path) -> None:
    """A scheduler makes no lock file: a user's own file of such a name, or a link there, is not touched."""
    own, target = path.with_name("state.db.hold"), path.with_name("precious")
    target.write_text("precious")
    own.symlink_to(target)
    world = world_on(path)
    await world.begin(world.task("a"))
    assert sorted(entry.name for entry in path.parent.iterdir()) == sorted(
        [*FILES, "precious", "state.db.hold"]
    )
    await world.scheduler.stop()
    assert target.read_text() == "precious"
    own.unlink()
    target.unlink()
    assert [entry.name for entry in path.parent.iterdir()] == ["state.db"]


@pytest.mark.parametrize("kind", ["folder", "fifo"])
async def test_path_that_is_no_file(path: Path, kind: str) -> None:
    """A folder or a pipe given by mistake is refused, and nothing is left beside it."""
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(StoreError, match="file"):
        await SQLiteStore(path).open("x")
    assert list(path.parent.iterdir()) == [path]


# --- 10: a log that is not what was written ---


@EVERYTHING
@pytest.mark.parametrize("attack", ["truncated", "emptied", "zeros", "garbage", "one bit"])
async def test_log_damaged_in_place(path: Path, attack: str) -> None:
    """A damaged log is found before it is copied into the database; all is kept, nothing is run again."""
    world = world_on(path)
    tasks = [world.task(f"t{number}") for number in range(100)]
    await world.begin(*tasks)
    await world.until("12:02:30")
    log = path.with_name("state.db-wal")
    content = log.read_bytes()
    with log.open("r+b") as file:
        damage_in_place(file.fileno(), len(content), attack)
    if attack in {"truncated", "emptied"}:
        await world.until("12:03:30")  # the next write notices
        assert "damaged by another program or by the disk" in faults(world)[0]
    await world.scheduler.stop()
    calls = list(world.calls)
    assert "both are kept as state.db.damaged-1" in faults(world)[0]
    assert path.with_name("state.db.damaged-1").exists()
    assert path.with_name("state.db.damaged-1-wal").exists()
    assert findings_at(path) == []
    await world.begin(*tasks)
    assert world.calls == calls
    await world.scheduler.stop()


def damage_in_place(descriptor: int, size_bytes: int, attack: str) -> None:
    half = size_bytes // 2
    if attack == "truncated":
        os.ftruncate(descriptor, half)
    elif attack == "emptied":
        os.ftruncate(descriptor, 0)
    elif attack == "zeros":
        os.pwrite(descriptor, bytes(half), half)
    elif attack == "garbage":
        os.pwrite(descriptor, random.Random(2).randbytes(size_bytes), 0)
    else:
        byte = os.pread(descriptor, 1, half)[0]
        os.pwrite(descriptor, bytes([byte ^ 4]), half)


async def test_damaged_log_is_not_copied_when_it_has_grown(path: Path) -> None:
    """The copying of a long log into the database, which nobody waits for, looks at it first too."""
    store = SQLiteStore(path)
    await store.open("x")
    await store.write(lambda connection: connection.execute("CREATE TABLE big (content)"))
    before = path.read_bytes()
    log = path.with_name("state.db-wal")

    def fill(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO big VALUES (zeroblob(8000000))")
        with log.open("r+b") as file:
            damage_in_place(file.fileno(), 4000, "one bit")

    await store.write(fill)
    with pytest.raises(StoreError, match="damaged by another program or by the disk"):
        await store.write(lambda connection: connection.execute("INSERT INTO big VALUES (1)"))
    assert path.with_name("state.db.damaged-1").read_bytes() == before
    await store.close()


async def test_log_that_is_in_the_database_already(path: Path) -> None:
    """Pages that were copied before are not undone by the older, still sound part of a damaged log."""
    store = SQLiteStore(path)
    await store.open("x")
    log = path.with_name("state.db-wal")
    fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)"
    for statement in (
        "CREATE TABLE big (id INTEGER PRIMARY KEY, content)",
        f"{fill} INSERT INTO big SELECT i, zeroblob(900) FROM n",
        "UPDATE big SET content = hex(randomblob(450))",
    ):
        await store.write(lambda connection, text=statement: connection.execute(text))  # type: ignore[misc]
    reader = apsw.Connection(str(path))
    reader.execute(
        "BEGIN; SELECT * FROM big"
    )  # while somebody reads, the log goes on instead of starting over
    expected = reader.execute("SELECT * FROM big").fetchall()
    await store._worker.do(store._checkpoint)
    await store.write(lambda connection: connection.execute("CREATE TABLE last (a)"))
    reader.close()
    with log.open("r+b") as file:
        damage_in_place(file.fileno(), log.stat().st_size, "one bit")
    with pytest.raises(StoreError, match="damaged by another program or by the disk"):
        await store.save([])
    assert await store.read(lambda connection: connection.execute("SELECT * FROM big").fetchall()) == expected
    await store.close()
    connection = apsw.Connection(str(path))
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    connection.close()


async def test_log_that_cannot_be_checked_is_left_to_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for the check the log is left as it is: SQLite checks it at the next start."""
    store = SQLiteStore(path)
    await store.open("x")
    monkeypatch.setattr("tempfile.tempdir", str(path.with_name("gone")))
    await store.close()
    assert path.with_name("state.db-wal").stat().st_size > 0
    monkeypatch.undo()
    await store.open("y")
    await store.close()
    assert not path.with_name("state.db-wal").exists()
