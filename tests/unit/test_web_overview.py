"""The overview of many services: who gets a lane, and what is counted how often."""

import random
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path

import msgspec
import pytest

from duly.config.schema import Config, Service, Settings, Timer
from duly.daemon import views
from duly.instant import Instant
from duly.store.history import History, MissRow, RunRow
from duly.web import timeline
from duly.web.formatting import Moment
from duly.web.overview import DaemonOverview, DayCounts, OverviewHistory, tiles
from tests.worlds.daemons import NOW_US, FakeDaemon, us
from tests.worlds.histories import LooseHistory

WINDOW = timeline.Window(Moment(NOW_US, UTC))
HOUR_US = timeline.HOUR_US
RESULTS = ("success", "exit", None)


def _picture(rng: random.Random) -> DaemonOverview:
    """Some services, of which a few ran, missed something, are tried again, or only come."""
    count = rng.choice([3, 14, 15, 40])
    names = [f"job-{number:02}" for number in range(count)]
    runs: list[RunRow] = []
    misses, snapshots = [], {}
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
            snapshots[name] = views.TimerSnapshot(next_us=next_us, retry_at_us=retry_us)
    config = Config(
        Path("duly.toml"),
        Settings(timers=True),
        services=tuple(Service(name, ("true",), type="oneshot") for name in names),
        timers=tuple(Timer(name, name, on_unit_active_sec=60) for name in names),
    )
    return DaemonOverview(
        daemon_status=FakeDaemon(config).daemon_status(),
        config=config,
        services=(),
        timers=snapshots,
        window=WINDOW,
        history=OverviewHistory(
            runs=[*runs, RunRow(id=999, service="gone", reason="boot", started_us=NOW_US - 5)],
            misses=misses,
        ),
    )


def _drawn_one_by_one(picture: DaemonOverview) -> timeline.TimelineView:
    """The same, from a matter for each service."""
    matters = [timeline.Matter(service.id) for service in picture.config.services]
    for matter in matters:
        history = picture.history
        matter.runs = [row for row in history.runs if row.service == matter.id]
        matter.misses = [row for row in history.misses if row.timer == matter.id and WINDOW.holds(row.at_us)]
        snapshot = (picture.timers or {}).get(matter.id, views.TimerSnapshot())
        retry_us, next_us = snapshot.retry_at_us, snapshot.next_us
        if next_us is not None and next_us != retry_us and WINDOW.holds(next_us):
            matter.slots = [next_us]
        if retry_us is not None and WINDOW.holds(retry_us):
            matter.retries = [retry_us]
    own, rest = timeline.pick_lanes(matters)
    return timeline.timeline_of(own, rest, WINDOW)


@pytest.mark.parametrize("seed", range(60))
def test_lanes(seed: int) -> None:
    """However many services only come and have nothing else to tell, the picture is that of all of them."""
    picture = _picture(random.Random(seed))
    assert picture.lanes() == _drawn_one_by_one(picture)


# --- numbers worth a glance ---


def test_tiles_hide_timers_while_the_switch_is_closed() -> None:
    """With the switch closed no number speaks of timers."""
    counts = {"services": 1, "services_running": 1, "services_failed": 0, "invalid": 0}
    labels = [tile.label for tile in tiles(counts, OverviewHistory(), has_timers=False)]
    assert labels == ["services running", "services failed", "runs in 24 h"]


@pytest.mark.parametrize(
    ("results", "note"),
    [
        ({}, ""),
        ({"success": 2}, "all successful"),
        ({None: 1}, "1 still running"),
        ({None: 1, "success": 2}, "1 still running"),
        ({None: 1, "success": 2, "exit": 1}, "1 not successful"),
    ],
)
def test_runs_under_way_are_not_yet_successful(results: dict[str | None, int], note: str) -> None:
    """Only what has ended counts as a success."""
    counts = {"services": 1, "services_running": 1, "services_failed": 0, "invalid": 0}
    assert tiles(counts, OverviewHistory(counts=results), has_timers=False)[2].note == note


# --- how the runs of a day ended ---


class CountingHistory(LooseHistory):
    """A history that notes from when on runs were counted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Instant] = []
        self.slips_in: RunRow | None = None
        """A run that begins as soon as somebody has counted."""

    async def counts(self, since_us: Instant) -> dict[str | None, int]:
        """How many runs that started since then ended how."""
        self.asked.append(since_us)
        found = await super().counts(since_us)
        if self.slips_in is not None:
            await self.put([self.slips_in], [])
            self.slips_in = None
        return found


class Day(FakeDaemon):
    """A daemon whose services are known by their runs."""

    def __init__(self) -> None:
        super().__init__()
        self.history: CountingHistory = CountingHistory()
        self.live: dict[int, RunRow] = {}

    def services(self) -> list[views.ServiceSnapshot]:
        """How its services are."""
        return [
            views.ServiceSnapshot(id=row.service, state="running", last_run=row) for row in self.live.values()
        ]

    async def has(self, run_id: int, started: str, result: str | None) -> None:
        """A run began, or ended."""
        row = _row(run_id, started, result)
        self.live[run_id] = row
        await self.history.put([row], [])

    async def counted(self, by: DayCounts, day: timeline.Window = WINDOW) -> Mapping[str | None, int]:
        """How its runs ended, and that this is so."""
        found = await by.of(self, day)
        assert found == await History.counts(self.history, day.from_us)
        return found


def _row(run_id: int, started: str, result: str | None) -> RunRow:
    started_us = us(started)
    ended_us = None if result is None else started_us + 1
    row = RunRow(id=run_id, service=f"job-{run_id}", reason="manual", started_us=started_us)
    return msgspec.structs.replace(row, ended_us=ended_us, result=result)


async def test_a_day_is_counted_once_a_minute() -> None:
    """What began before this minute is counted once; what begins and ends in it is in every answer."""
    daemon, by = Day(), DayCounts()
    await daemon.has(1, "09:00", "success")
    assert await daemon.counted(by) == {"success": 1}
    daemon.history.asked.clear()
    await daemon.has(2, "12:00:05", None)
    assert await daemon.counted(by) == {"success": 1, None: 1}
    await daemon.has(2, "12:00:05", "exit")
    assert await daemon.counted(by) == {"success": 1, "exit": 1}
    assert daemon.history.asked == [NOW_US] * 2
    await daemon.counted(by, timeline.Window(Moment(NOW_US + 60_000_000, UTC)))
    assert WINDOW.from_us + 60_000_000 in daemon.history.asked


async def test_a_long_run_ends() -> None:
    """When a run ends that began before this minute, all are counted anew."""
    daemon, by = Day(), DayCounts()
    await daemon.has(1, "09:00", None)
    assert await daemon.counted(by) == {None: 1}
    await daemon.has(1, "09:00", "exit")
    assert await daemon.counted(by) == {"exit": 1}


async def test_a_run_begins_between_two_counts() -> None:
    """A run that is in one count and not in the other is not counted twice, or never, from then on."""
    daemon, by = Day(), DayCounts()
    await daemon.has(1, "09:00", "success")
    daemon.history.slips_in = _row(2, "12:00:05", "success")
    await by.of(daemon, WINDOW)
    assert await daemon.counted(by) == {"success": 2}
