"""The simulated disk: what a loss of power takes, and what it leaves."""

import random
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.simulation.disk import SECTOR_BYTES, Cut, DiskFault, SimDisk
from tests.simulation.steady import CrashPoints, Point


@pytest.fixture
def points() -> CrashPoints:
    return CrashPoints()


@pytest.fixture
def disk(tmp_path: Path, points: CrashPoints) -> Iterator[SimDisk]:
    disk = SimDisk(tmp_path / "disk", points, random.Random(1))
    yield disk
    disk.unregister()


def opened(disk: SimDisk) -> apsw.Connection:
    connection = apsw.Connection(str(disk.path), vfs=disk.name)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS word (text TEXT)")
    return connection


def cut(disk: SimDisk, connection: apsw.Connection, how: Cut) -> list[str]:
    """Kill the process, perhaps with the power, and read what the next one finds."""
    disk.kill()
    connection.close(force=True)
    disk.come_back(how)
    return words(disk)


def words(disk: SimDisk) -> list[str]:
    connection = apsw.Connection(str(disk.path), vfs=disk.name)
    try:
        assert connection.execute("PRAGMA integrity_check").get == "ok"
        return [text for (text,) in connection.execute("SELECT text FROM word")]
    finally:
        connection.close()


@pytest.mark.parametrize("how", list(Cut))
def test_synced_writes_survive(disk: SimDisk, how: Cut) -> None:
    """What was committed with a sync is there after every kind of crash."""
    connection = opened(disk)
    connection.execute("INSERT INTO word VALUES ('kept')")
    assert cut(disk, connection, how) == ["kept"]


@pytest.mark.parametrize(("how", "expected"), [(Cut.KILL, ["kept", "new"]), (Cut.LOSE, ["kept"])])
def test_unsynced_writes_depend_on_the_power(disk: SimDisk, how: Cut, expected: list[str]) -> None:
    """What was written without a sync outlives the process, and not the power."""
    connection = opened(disk)
    connection.execute("INSERT INTO word VALUES ('kept')")
    connection.execute("PRAGMA synchronous = NORMAL")  # in WAL mode a commit then syncs nothing
    connection.execute("INSERT INTO word VALUES ('new')")
    assert cut(disk, connection, how) == expected


def test_torn_writes_end_at_a_sector(disk: SimDisk) -> None:
    """A torn write reaches its first sectors whole, and the rest not at all."""
    sizes = {len(disk._torn((0, bytes(4096)))[1] or b"") for _ in range(50)}
    assert sizes == {number * SECTOR_BYTES for number in range(8)}


@pytest.mark.parametrize("seed", range(30))
def test_torn_logs_are_recovered(tmp_path: Path, seed: int) -> None:
    """Whatever a power cut keeps, drops or tears, the database is sound and holds a prefix of the commits."""
    disk = SimDisk(tmp_path / "disk", CrashPoints(), random.Random(seed))
    connection = opened(disk)
    connection.execute("PRAGMA synchronous = NORMAL")
    for number in range(6):
        connection.execute("INSERT INTO word VALUES (?)", (f"{number}" * 700,))
    left = cut(disk, connection, Cut.PREFIX if seed % 2 else Cut.ANY)
    assert left == [f"{number}" * 700 for number in range(len(left))]
    disk.unregister()


def test_every_operation_is_a_crash_point(disk: SimDisk, points: CrashPoints) -> None:
    """A process killed at its n-th operation leaves what the operations before that made of the file."""
    connection = opened(disk)
    before = points.passed[Point.DISK]
    connection.execute("INSERT INTO word VALUES ('first')")
    per_commit = points.passed[Point.DISK] - before
    assert per_commit >= 3  # a frame's head, its page, a sync
    points.arm(Point.DISK, per_commit - 1)
    fallen = []
    disk.on_fatal = lambda: fallen.append(True)
    connection.execute("INSERT INTO word VALUES ('second')")
    assert fallen
    connection.execute("INSERT INTO word VALUES ('never')")
    points.disarm()
    assert cut(disk, connection, Cut.LOSE) == ["first"]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (DiskFault.FULL, apsw.FullError),
        (DiskFault.WRITE_ERROR, apsw.IOError),
        (DiskFault.SYNC_ERROR, apsw.IOError),
    ],
)
def test_faults_pass(disk: SimDisk, fault: DiskFault, error: type[Exception]) -> None:
    """A faulty disk fails a write; healed, it writes again."""
    connection = opened(disk)
    disk.fault = fault
    with pytest.raises(error):
        connection.execute("INSERT INTO word VALUES ('lost')")
    disk.fault = None
    connection.execute("INSERT INTO word VALUES ('written')")
    assert "written" in cut(disk, connection, Cut.LOSE)


def test_unreadable_disk(disk: SimDisk) -> None:
    """A disk that cannot be read fails anyone who opens a database on it."""
    opened(disk).close()
    disk.fault = DiskFault.READ_ERROR
    with pytest.raises(apsw.IOError):
        opened(disk)


def test_locks_are_waited_for_in_virtual_time(disk: SimDisk) -> None:
    """Two seconds of waiting for a lock are counted, and not waited."""
    connection, other = opened(disk), opened(disk)
    connection.set_busy_timeout(2_000)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(apsw.BusyError):
        connection.execute("INSERT INTO word VALUES ('blocked')")
    assert 1_500_000 <= disk.slept_us <= 2_500_000
    other.close(force=True)
    connection.close(force=True)
