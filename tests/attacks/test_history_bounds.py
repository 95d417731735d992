"""A history stays within its bounds while the daemon runs, however few runs end."""

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw

from duly.clock import pause
from duly.instant import instant_of
from tests.integration.test_daemon_virtual import JOB, MIDNIGHT, timer, world_of

BOUNDS = "history_runs = 5\nhistory_days = 1\n"


async def test_misses_of_disabled_timers_are_bounded(tmp_path: Path) -> None:
    """Of disabled timers that miss every minute the newest misses are kept, and those of ten minutes more."""
    timers = [timer(f"t{number}", enabled="false", on_calendar="{}") for number in range(20)]
    world = world_of(tmp_path, BOUNDS + JOB + "".join(timers))
    async with world.life() as daemon:
        await world.after(hours=1, minutes=1)
        for number in range(20):
            kept = await daemon.history.misses(timer=f"t{number}", limit=1_000)
            assert 5 <= len(kept) <= 5 + 11
            assert kept[0].at_us == instant_of(MIDNIGHT + timedelta(hours=1, minutes=1))


async def test_runs_are_bounded_before_many_have_ended(tmp_path: Path) -> None:
    """Of a service that runs every minute the newest runs are kept, and those of ten minutes more."""
    world = world_of(tmp_path, BOUNDS + JOB + timer(on_calendar="{}"))
    async with world.life() as daemon:
        await world.after(hours=1, minutes=1)
        assert 5 <= len(await daemon.history.runs(service="job", limit=1_000)) <= 5 + 11


async def test_old_rows_go_though_nothing_happens(tmp_path: Path) -> None:
    """Runs and misses go when they are too old, also while no run ends; the last run of a service stays."""
    on = timer(on_calendar="{hour = 0, minute = [1, 2, 3], day_of_month = 1}")
    off = timer("off", enabled="false", on_calendar="{hour = 0, minute = 5, day_of_month = 1}")
    world = world_of(tmp_path, BOUNDS + JOB + on + off)
    async with world.life() as daemon:
        await world.after(minutes=10)
        assert len(await daemon.history.runs(service="job")) == 3
        assert len(await daemon.history.misses(timer="off")) == 1
        await world.after(days=1, minutes=10)
        assert len(await daemon.history.runs(service="job")) == 1
        assert await daemon.history.misses(timer="off") == []


async def test_a_store_that_cannot_be_pruned_recovers(tmp_path: Path) -> None:
    """A pruning that fails is a fault until one succeeds: health is not spoilt for good."""
    world = world_of(tmp_path, BOUNDS + JOB)
    async with world.life() as daemon:
        await world.after(seconds=10)  # it runs at boot
        await daemon.start_service("job")
        await world.after(seconds=10)
        with closing(apsw.Connection(str(tmp_path / "duly.db"))) as other:
            other.execute("BEGIN IMMEDIATE")
            await world.after(days=1, minutes=10)
            while not daemon.daemon_status().faults:
                await world.after(seconds=1)
            assert "locked" in daemon.daemon_status().faults[0]
            other.execute("ROLLBACK")
        while daemon.daemon_status().faults:
            await world.after(seconds=1)
        assert world.names("Store") == ["StoreFault", "StoreRecovered"]
        assert len(await daemon.history.runs(service="job")) == 1


class StuckClock:
    """A clock that was set back so far that no moment to sleep until ever comes."""

    def now(self) -> datetime:
        """Always the same."""
        return datetime(2026, 1, 1, tzinfo=UTC)

    async def sleep_until(self, _moment: datetime) -> None:
        """Never return."""
        await asyncio.Event().wait()


async def test_a_clock_set_back_does_not_end_the_pruning() -> None:
    """A pause ends after its length of loop time, whatever the clock says."""
    await asyncio.wait_for(pause(StuckClock(), 0.01), 60)
