"""A daemon whose store is restored from a backup, deleted or damaged while jobs run."""

from pathlib import Path

import apsw
import pytest

from duly.store.inspection import findings_at
from tests.integration.test_daemon_virtual import JOB, WEB, DaemonWorld, timer, world_of

HOURLY = timer(on_calendar="{minute = 0}", retry_intervals_sec="[]")


def restore(path: Path, backup: bytes) -> None:
    other = path.with_name("backup.db")
    other.write_bytes(backup)
    other.rename(path)


def delete(path: Path, _backup: bytes) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()


def damage(path: Path, _backup: bytes) -> None:
    log = Path(f"{path}-wal")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size // 4)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


async def world_with_a_backup(folder: Path) -> tuple[DaemonWorld, Path, bytes]:
    world, path = world_of(folder, WEB + JOB + HOURLY), folder / "duly.db"
    async with world.life():
        await world.after(hours=3, minutes=30)
    return world, path, path.read_bytes()


@pytest.mark.parametrize("attack", [restore, delete, damage], ids=lambda attack: attack.__name__)
async def test_jobs_in_flight_when_the_store_is_lost(tmp_path: Path, attack: object) -> None:
    """Jobs go on, their ends are recorded, timers fire on, and a crash would find the processes of now."""
    assert callable(attack)
    world, path, backup = await world_with_a_backup(tmp_path)
    async with world.life():
        await world.until("2026-01-01 05:00:02")
        attack(path, backup)
        await world.until("2026-01-01 05:00:40")  # the end of the job, at 05:00:05, notices it
        assert "StoreFault" in world.names("Store")
        # What a daemon that starts after a crash goes by: the open run of the service, and the declared ones.
        assert rows(path, "SELECT service FROM run WHERE ended_us IS NULL") == [("web",)]
        assert rows(path, "SELECT name FROM service ORDER BY name") == [("job",), ("web",)]
        await world.until("2026-01-01 07:30")
    ended = rows(path, "SELECT result FROM run WHERE service = 'job' AND started_us >= 1767243600000000")
    assert ended == [("success",)] * 3  # of 05:00, 06:00 and 07:00
    assert findings_at(path) == []
    assert "StoreRecovered" in world.names("Store")


async def test_fault_while_services_are_declared_passes(tmp_path: Path) -> None:
    """A store that is locked during a reload is a fault that is over when the lock is."""
    world, path, _ = await world_with_a_backup(tmp_path)
    async with world.life() as daemon:
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        more = '[[service]]\nid = "more"\ntype = "oneshot"\ncommand = ["job"]\nenabled = false\n'
        await world.reload(world.config.read_text() + more)
        while not daemon.daemon_status().faults:  # SQLite waits for the lock in real time
            await world.after(seconds=1)
        assert "is locked" in daemon.daemon_status().faults[0]
        other.execute("ROLLBACK")
        other.close()
        while daemon.daemon_status().faults:  # it is asked again after pauses that end
            await world.after(seconds=1)
        assert ("more",) in rows(path, "SELECT name FROM service")
