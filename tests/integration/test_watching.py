"""Who watches a daemon: all of it in virtual time, with metrics, pings and the monitor of its timers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duly import Event
from duly.config.loading import load
from duly.daemon.daemon import Daemon
from duly.daemon.operations import OPERATIONS, Nothing
from duly.daemon.watching import Watch
from duly.instant import instant_of
from duly.testing import VirtualClock
from duly.testing.processes import FakeProcesses
from tests.unit.test_metrics import samples_in

TEXT = """
[supervisor]
timers = true
timezone = "UTC"

[[service]]
id = "job"
type = "oneshot"
command = ["job"]

[[timer]]
id = "t"
target = "job"
on_calendar = { minute = 0 }
on_unit_active_sec = 1200
"""


class WatchedDaemon:
    """A daemon and its watch, on one virtual clock."""

    def __init__(self, path: Path, text: str = TEXT) -> None:
        self.config = path / "duly.toml"
        self.config.write_text(text)
        self.clock = VirtualClock(datetime(2026, 1, 1, 11, 59, tzinfo=UTC))
        self.processes = FakeProcesses(self.clock)
        self.processes.script("job", lasts=timedelta(seconds=5))
        self.told: list[Event] = []

    @asynccontextmanager
    async def life(self) -> AsyncIterator[Watch]:
        """From the start to the end of a daemon."""
        config = load(self.config)
        watch = Watch(config, clock=self.clock, steady_us=lambda: instant_of(self.clock.now()))
        watch.told.append(self.told.append)
        daemon = Daemon(config, self.processes, clock=self.clock, listeners=watch.listeners)
        watch.attach(daemon)
        running = asyncio.create_task(daemon.run())
        await self.clock.advance(timedelta(0))
        try:
            yield watch
        finally:
            daemon.shut_down()
            while not running.done():
                await self.clock.advance(timedelta(seconds=1))
            await running
            await watch.close()


def numbers(watch: Watch) -> dict[str, float]:
    assert watch.metrics is not None
    return samples_in(watch.metrics.exposition())


async def test_a_day_is_counted_and_verified(tmp_path: Path) -> None:
    """Runs, lags, dues and writes of a real daemon are told, and its timers keep their properties."""
    world = WatchedDaemon(tmp_path)
    async with world.life() as watch:
        await world.clock.advance(timedelta(hours=5))
        told, verdicts = numbers(watch), watch.verification()
    runs = "duly_runs_total{{kind=service,name=job,reason={},result=success,timer=t}}"
    assert told[runs.format("schedule")] == 5
    assert told[runs.format("interval")] == 10
    assert told["duly_start_lag_seconds_count{kind=timer,name=t}"] == 15
    assert 0 < told["duly_seconds_until_next_due{kind=timer,name=t}"] <= 1200
    assert told["duly_store_write_seconds_count{}"] > 15
    assert verdicts is not None
    assert {one.property: one.verdict for one in verdicts} == {
        "V1": "holds",
        "V2": "holds",
        "V3": "holds",
        "V4": "holds",
        "V5": "unknown",
    }


async def test_a_violation_is_no_good_health(tmp_path: Path) -> None:
    """What the monitor objects to is a reason of bad health; without timers it is not."""
    world = WatchedDaemon(tmp_path)
    async with world.life() as watch:
        assert watch._daemon is not None
        await world.clock.advance(timedelta(minutes=2))
        status = await OPERATIONS["status"].function(watch._daemon, Nothing(), "test")
        assert status.health.ok
        fields = {"timer": "t", "target": "job", "reason": "nonsense", "scheduledTime": None, "runId": 9}
        watch.monitor.listener(Event("TimerFired", 20, world.clock.now(), fields))
        status = await OPERATIONS["status"].function(watch._daemon, Nothing(), "test")
        await watch._daemon.switch_gate(is_open=False)
        without = await OPERATIONS["status"].function(watch._daemon, Nothing(), "test")
    [reason] = status.health.reasons
    assert reason.startswith("V2 is violated: every firing answers a slot")
    assert without.health.ok


async def test_a_failed_ping_is_told_without_its_url(tmp_path: Path) -> None:
    """What the switch finds out reaches the dashboard, with the host alone."""
    url = 'command = ["job"]\nping_url = "http://127.0.0.1:1/s3cret"'
    world = WatchedDaemon(tmp_path, TEXT.replace('command = ["job"]', url))
    async with world.life():
        await world.clock.advance(timedelta(minutes=2))
    [event] = world.told
    assert (event.name, event.fields["service"], event.fields["host"]) == (
        "DeadManPingFailed",
        "job",
        "127.0.0.1:1",
    )
    assert "s3cret" not in str(event)


async def test_successes_outlive_the_daemon(tmp_path: Path) -> None:
    """After a new start it is known how long ago a service last succeeded."""
    world = WatchedDaemon(tmp_path)
    async with world.life():
        await world.clock.advance(timedelta(minutes=2))
    world.config.write_text(TEXT.replace("timers = true", "timers = false"))
    await world.clock.advance(timedelta(hours=3))
    async with world.life() as watch:
        passed_s = numbers(watch)["duly_seconds_since_last_success{kind=service,name=job}"]
        assert watch.verification() is None, "without timers there is nothing to say of them"
    assert 3 * 3600 < passed_s < 3 * 3600 + 300


async def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without prometheus-client a daemon runs, and has no numbers."""
    missing: Any = None
    monkeypatch.delitem(sys.modules, "duly.observe.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", missing)
    async with WatchedDaemon(tmp_path).life() as watch:
        assert watch.metrics is None
