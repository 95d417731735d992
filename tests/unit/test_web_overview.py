"""The overview of many services: who gets a lane, and what is counted how often."""

import random
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path

import msgspec
import pytest

from duly.config.schema import Calendar, Config, Service, Settings, Timer
from duly.daemon import views
from duly.instant import Instant
from duly.store.history import MemoryRows, MissRow, RunRow
from duly.web import timeline
from duly.web.overview import Counted, Picture
from tests.daemons import NOW_US, FakeDaemon, us

WINDOW = timeline.Window(NOW_US)
HOUR_US = timeline.HOUR_US
RESULTS = ("success", "exit", None)


def _picture(rng: random.Random) -> Picture:
    """Some services, of which a few ran, missed something, are tried again, or only come."""
    count = rng.choice([3, 14, 15, 40])
    names = [f"job-{number:02}" for number in range(count)]
    runs: list[RunRow] = []
    misses, readings = [], {}
    for name in names:
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            result, started_us = rng.choice(RESULTS), NOW_US - rng.randrange(30 * HOUR_US)
            ended_us = None if result is None else started_us + 1
            row = RunRow(id=len(runs) + 1, service=name, reason="schedule", started_us=started_us)
            runs.append(msgspec.structs.replace(row, ended_us=ended_us, result=result))
        if rng.random() < 0.1:
            misses.append(MissRow(name, NOW_US - rng.randrange(30 * HOUR_US), "overlap"))
        if rng.random() < 0.8:
            next_us = rng.choice([None, NOW_US + rng.randrange(30 * HOUR_US)])
            retry_us = rng.choice([None, None, None, NOW_US + HOUR_US, next_us])
            readings[name] = views.TimerReading(next_us=next_us, retry_at_us=retry_us)
    config = Config(
        Path("duly.toml"),
        Settings(timers=True),
        services=tuple(Service(name, ("true",), type="oneshot") for name in names),
        timers=tuple(Timer(name, name, on_calendar=(Calendar(),)) for name in names),
    )
    return Picture(
        standing=FakeDaemon(config).standing(),
        config=config,
        services=(),
        timers=readings,
        window=WINDOW,
        runs=[*runs, RunRow(id=999, service="gone", reason="boot", started_us=NOW_US - 5)],
        latest=(),
        misses=misses,
        counts={},
        left_out=False,
        shelf=None,
    )


def _drawn_one_by_one(picture: Picture) -> timeline.Timeline:
    """The same, from a matter for each service."""
    matters = [timeline.Matter(service.id) for service in picture.config.services]
    for matter in matters:
        matter.runs = [row for row in picture.runs if row.service == matter.id]
        matter.misses = [row for row in picture.misses if row.timer == matter.id and WINDOW.holds(row.at_us)]
        reading = (picture.timers or {}).get(matter.id, views.TimerReading())
        retry_us, next_us = reading.retry_at_us, reading.next_us
        if next_us is not None and next_us != retry_us and WINDOW.holds(next_us):
            matter.slots = [next_us]
        if retry_us is not None and WINDOW.holds(retry_us):
            matter.retries = [retry_us]
    own, rest = timeline.chosen(matters)
    return timeline.drawn(own, rest, WINDOW, UTC)


@pytest.mark.parametrize("seed", range(60))
def test_lanes(seed: int) -> None:
    """However many services only come and have nothing else to tell, the picture is that of all of them."""
    picture = _picture(random.Random(seed))
    assert picture.lanes() == _drawn_one_by_one(picture)


# --- how the runs of a day ended ---


class CountingRows(MemoryRows):
    """A history that notes from when on runs were counted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Instant] = []
        self.slips_in: RunRow | None = None
        """A run that begins as soon as somebody has counted."""

    async def counts(self, since_us: Instant, besides: Sequence[int] = ()) -> dict[str | None, int]:
        """How many runs that started since then ended how."""
        self.asked.append(since_us)
        found = await super().counts(since_us, besides)
        if self.slips_in is not None:
            await self.put([self.slips_in], [])
            self.slips_in = None
        return found


class Day(FakeDaemon):
    """A daemon whose services are known by their runs."""

    def __init__(self) -> None:
        super().__init__()
        self.history: CountingRows = CountingRows()
        self.live: dict[int, RunRow] = {}

    def services(self) -> list[views.StoredService]:
        """How its services are."""
        return [
            views.StoredService(id=row.service, state="running", last_run=row) for row in self.live.values()
        ]

    async def has(self, run_id: int, started: str, result: str | None) -> None:
        """A run began, or ended."""
        row = _row(run_id, started, result)
        self.live[run_id] = row
        await self.history.put([row], [])

    async def counted(self, by: Counted, day: timeline.Window = WINDOW) -> Mapping[str | None, int]:
        """How its runs ended, and that this is so."""
        found = await by.of(self, day)
        assert found == await MemoryRows.counts(self.history, day.from_us)
        return found


def _row(run_id: int, started: str, result: str | None) -> RunRow:
    started_us = us(started)
    ended_us = None if result is None else started_us + 1
    row = RunRow(id=run_id, service=f"job-{run_id}", reason="manual", started_us=started_us)
    return msgspec.structs.replace(row, ended_us=ended_us, result=result)


async def test_a_day_is_counted_once_a_minute() -> None:
    """What began before this minute is counted once; what begins and ends in it is in every answer."""
    daemon, by = Day(), Counted()
    await daemon.has(1, "09:00", "success")
    assert await daemon.counted(by) == {"success": 1}
    daemon.history.asked.clear()
    await daemon.has(2, "12:00:05", None)
    assert await daemon.counted(by) == {"success": 1, None: 1}
    await daemon.has(2, "12:00:05", "exit")
    assert await daemon.counted(by) == {"success": 1, "exit": 1}
    assert daemon.history.asked == [NOW_US] * 2
    await daemon.counted(by, timeline.Window(NOW_US + 60_000_000))
    assert WINDOW.from_us + 60_000_000 in daemon.history.asked


async def test_a_long_run_ends() -> None:
    """When a run ends that began before this minute, all are counted anew."""
    daemon, by = Day(), Counted()
    await daemon.has(1, "09:00", None)
    assert await daemon.counted(by) == {None: 1}
    await daemon.has(1, "09:00", "exit")
    assert await daemon.counted(by) == {"exit": 1}


async def test_a_run_begins_between_two_counts() -> None:
    """A run that is in one count and not in the other is not counted twice, or never, from then on."""
    daemon, by = Day(), Counted()
    await daemon.has(1, "09:00", "success")
    daemon.history.slips_in = _row(2, "12:00:05", "success")
    await by.of(daemon, WINDOW)
    assert await daemon.counted(by) == {"success": 2}
