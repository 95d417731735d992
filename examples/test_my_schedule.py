"""How to test your own schedule: a whole year, and a crash in mid-run.

Run it with pytest; the `virtual_clock` fixture comes with duly.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from duly import Scheduler
from duly.store import MemoryStore
from duly.testing import VirtualClock, crash

BERLIN = ZoneInfo("Europe/Berlin")


def test_year_of_reports(virtual_clock: VirtualClock) -> None:
    """The report of 02:30 is written once a day, but not in the night that has no 02:30."""
    days: list[str] = []

    async def write_report() -> None:
        days.append(f"{virtual_clock.now().astimezone(BERLIN):%m-%d}")

    async def story() -> None:
        scheduler = Scheduler(MemoryStore(), clock=virtual_clock, timezone=BERLIN)
        await scheduler.initialize([("report", "30 2 * * *", write_report, timedelta(minutes=10))])
        await virtual_clock.advance_to(datetime(2027, 1, 1, tzinfo=UTC))
        await scheduler.stop()

    asyncio.run(story())
    assert len(days) == len(set(days)) == 364
    assert "03-29" not in days  # the clocks went from 02:00 to 03:00
    assert "10-25" in days  # the clocks showed 02:30 twice


def test_crash_in_mid_run(virtual_clock: VirtualClock) -> None:
    """A backup that was running when the machine died starts again as soon as the program is back."""
    begun: list[datetime] = []
    store = MemoryStore()

    async def back_up() -> None:
        begun.append(virtual_clock.now())
        await virtual_clock.sleep_until(virtual_clock.now() + timedelta(hours=2))

    async def story() -> None:
        tasks = [("backup", "0 3 * * *", back_up, timedelta(minutes=10))]
        scheduler = Scheduler(store, clock=virtual_clock, timezone=UTC)
        await scheduler.initialize(tasks)
        await virtual_clock.advance_to(datetime(2026, 1, 1, 3, 30, tzinfo=UTC))
        await crash(scheduler)
        await virtual_clock.advance(timedelta(hours=6))
        scheduler = Scheduler(store, clock=virtual_clock, timezone=UTC)
        await scheduler.initialize(tasks)
        await virtual_clock.advance(timedelta(hours=3))
        await scheduler.stop()

    asyncio.run(story())
    assert [f"{moment:%H:%M}" for moment in begun] == ["03:00", "09:30"]
