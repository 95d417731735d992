"""Timers in a real store: kept over restarts, damaged rows left alone (spec/timers.md 6.2)."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from duly.errors import StoreError
from duly.store.sqlite import SQLiteStore, SQLiteTimerRepository
from duly.timers.record import COLUMNS, record_of
from duly.timers.requests import TimerError, TimerRefusal
from duly.timers.timer import TimerState
from tests.worlds.timers import EXIT, HOURLY, MINUTE, TimerWorld, timer


class Disk:
    """A store on disk, opened and closed as a supervisor would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = SQLiteStore(path)

    async def open(self) -> "SQLiteTimerRepository[TimerState]":
        """Open the store; its timers."""
        self.store = SQLiteStore(self.path)
        contents = await self.store.open("id")
        return SQLiteTimerRepository(self.store, contents.scheduler_id, record_of)

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Do something to the file behind everybody's back."""
        connection = apsw.Connection(str(self.path))
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()


async def test_the_columns_are_those_of_the_table(tmp_path: Path) -> None:
    """The record of a timer has the columns of the table, in order."""
    disk = Disk(tmp_path / "s.db")
    await disk.open()
    await disk.close()
    assert tuple(row[1] for row in disk.sql("PRAGMA table_info(timer)")) == COLUMNS


async def test_state_is_kept_over_a_restart(tmp_path: Path) -> None:
    """Everything that is to be kept comes back from the file as it was."""
    disk = Disk(tmp_path / "s.db")
    world = TimerWorld("12:59:00", repository=await disk.open())
    world.targets.ends["job"] = [EXIT]
    definition = timer(on_calendar=HOURLY)
    timers = await world.begin(definition, timer("off", on_startup_sec=9999))
    await timers.disable("off")
    await world.until("13:30:00")
    before = [record_of(item) for item in timers.all()]
    await world.stop()
    await disk.close()
    world.repository = await disk.open()
    timers = await world.begin(definition, timer("off", on_startup_sec=9999))
    assert [record_of(item) for item in timers.all()] == before
    await world.stop()
    await disk.close()


async def test_a_crash_during_a_run_is_seen_in_the_file(tmp_path: Path) -> None:
    """A run that a kill -9 cut off is in the file, and is caught up with."""
    disk = Disk(tmp_path / "s.db")
    world = TimerWorld("12:59:00", repository=await disk.open())
    world.targets.lasts["job"] = 10 * MINUTE
    definition = timer(on_calendar=HOURLY)
    await world.begin(definition)
    await world.until("13:05:00")
    await world.crash()
    await disk.store.drop()
    world.repository = await disk.open()
    await world.begin(definition)
    assert world.runs() == [("01 13:00:00", "schedule"), ("01 13:05:00", "catch-up")]
    await world.stop()
    await disk.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("answered_us", 2**62),
        ("last_result", "glorious"),
        ("last_miss_reason", "laziness"),
        ("enabled", 7),
        ("running_run", 5),
        ("last_run_us", -(2**62)),
    ],
)
async def test_a_damaged_row_is_left_alone(tmp_path: Path, column: str, value: object) -> None:
    """Fault: corrupt state overwritten. A timer whose row is damaged does not run, by name; others do."""
    disk = Disk(tmp_path / "s.db")
    world = TimerWorld("12:59:00", repository=await disk.open())
    definitions = timer("bad", on_calendar=HOURLY), timer("good", "other", on_calendar=HOURLY)
    await world.begin(*definitions)
    await world.stop()
    await disk.close()
    disk.sql(f"UPDATE timer SET {column} = ? WHERE name = 'bad'", value)
    damaged = disk.sql("SELECT * FROM timer WHERE name = 'bad'")
    world.repository = await disk.open()
    timers = await world.begin(*definitions)
    error = timers.unreadable["bad"]
    assert '"bad"' in error.message
    assert column in error.message
    with pytest.raises(TimerError) as refused:
        await timers.trigger("bad")
    assert refused.value.kind is TimerRefusal.UNREADABLE
    await timers.reload(list(definitions))
    await world.until("13:30:00")
    assert world.runs("other") == [("01 13:00:00", "schedule")]
    assert world.runs() == []
    assert disk.sql("SELECT * FROM timer WHERE name = 'bad'") == damaged
    await timers.reload([definitions[1]])
    assert disk.sql("SELECT name FROM timer") == [("good",)]
    await timers.reload(list(definitions))
    assert timers.unreadable == {}
    await world.until("14:00:00")
    assert world.runs() == [("01 14:00:00", "schedule")]
    await world.stop()
    await disk.close()


async def test_a_damaged_row_of_nobody(tmp_path: Path) -> None:
    """A damaged row of a timer that is not declared is in nobody's way, and goes with the next reload."""
    disk = Disk(tmp_path / "s.db")
    world = TimerWorld("12:59:00", repository=await disk.open())
    await world.begin(timer("bad", on_calendar=HOURLY))
    await world.stop()
    await disk.close()
    disk.sql("UPDATE timer SET enabled = 9")
    world.repository = await disk.open()
    timers = await world.begin(timer(on_calendar=HOURLY))
    assert timers.unreadable == {}
    await world.until("13:00:00")
    assert len(world.runs()) == 1
    await timers.reload([timer(on_calendar=HOURLY)])
    assert disk.sql("SELECT name FROM timer") == [("t",)]
    await world.stop()
    await disk.close()


async def test_newer_state_is_not_overwritten(tmp_path: Path) -> None:
    """Fault: newer state overwritten. A file of a newer format is refused, and stays as it is."""
    disk = Disk(tmp_path / "s.db")
    world = TimerWorld("12:59:00", repository=await disk.open())
    await world.begin(timer(on_calendar=HOURLY))
    await world.stop()
    await disk.close()
    disk.sql("PRAGMA user_version = 99")
    before = disk.path.read_bytes()
    with pytest.raises(StoreError):
        await disk.open()
    assert disk.path.read_bytes() == before
