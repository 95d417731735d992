"""Who watches a daemon: all of it in virtual time, with metrics, pings and the monitor of its timers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duly import Event
from duly.clock import Step
from duly.cluster.clock import BoardClock
from duly.config.loading import load
from duly.daemon.daemon import Daemon
from duly.daemon.operations import OPERATIONS, Nothing
from duly.daemon.sharing import Sharing
from duly.daemon.watching import Watch
from duly.events import Listener
from duly.instant import instant_of
from duly.supervisor.children import Brood
from duly.testing import VirtualClock
from duly.testing.memory_board import MemoryBoard
from duly.testing.memory_table import Table
from duly.testing.processes import FakeProcesses
from duly.verify.properties import Verdict
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
        self._shift_us = 0
        self.clock.watch(self._note_step)

    def _note_step(self, step: Step) -> None:
        self._shift_us += step.after_us - step.before_us

    def steady_us(self) -> int:
        """Time that no step changes."""
        return instant_of(self.clock.now()) - self._shift_us

    def violations(self) -> list[dict[str, Any]]:
        """What the monitor objected to."""
        return [event.fields for event in self.told if event.name == "PropertyViolated"]

    async def watched(self, watch: Watch, minutes: int) -> None:
        """Let time pass, with a look each minute: what looks by itself does so in the host's time."""
        for _ in range(minutes):
            await self.clock.advance(timedelta(minutes=1))
            watch.monitor.look(self.clock.now())

    @asynccontextmanager
    async def life(
        self, *, sharing: Sharing | None = None, listeners: Sequence[Listener] = ()
    ) -> AsyncIterator[Watch]:
        """From the start to the end of a daemon."""
        config = load(self.config)
        watch = Watch(config, clock=self.clock, steady_us=self.steady_us, sharing=sharing)
        watch.told.append(self.told.append)
        heard = [*watch.listeners, *listeners]
        daemon = Daemon(config, self.processes, clock=self.clock, listeners=heard, sharing=sharing)
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


@pytest.mark.parametrize(
    ("gone", "is_looking"),
    [
        ("", True),
        ("on_calendar = { minute = 0 }\n", False),
        (TEXT[TEXT.index("[[timer]]") :], False),
    ],
    ids=["calendar", "interval", "services"],
)
async def test_nobody_looks_for_what_cannot_be(tmp_path: Path, gone: str, is_looking: bool) -> None:
    """The monitor wakes the daemon only while there is a slot that could go without an answer."""
    world = WatchedDaemon(tmp_path, TEXT.replace(gone, "") if gone else TEXT)
    async with world.life() as watch:
        await world.clock.advance(timedelta(seconds=10))
        assert watch.is_looking is is_looking
        assert watch._daemon is not None
        await watch._daemon.switch_gate(is_open=False)
        assert not watch.is_looking
    assert not watch.is_looking


async def test_a_mended_timer_is_watched(tmp_path: Path) -> None:
    """A timer whose invalid definition is mended by a reload is watched from then on."""
    world = WatchedDaemon(tmp_path)
    async with world.life():
        pass
    world.config.write_text(TEXT.replace('target = "job"', 'target = "nope"'))
    async with world.life() as watch:
        await world.clock.advance(timedelta(seconds=10))
        world.config.write_text(TEXT)
        assert watch._daemon is not None
        reloading = asyncio.create_task(watch._daemon.reload())
        while not reloading.done():
            await world.clock.advance(timedelta(0))
        assert watch.monitor.verdict("V1") is Verdict.INCONCLUSIVE
        await world.watched(watch, 5)
        assert watch.monitor.verdict("V1") is Verdict.HOLDS


async def test_a_minute_that_comes_again_after_a_restart(tmp_path: Path) -> None:
    """A slot answered before a small step back and a restart is not fired again, and not asked for."""
    world = WatchedDaemon(tmp_path, TEXT.replace("on_unit_active_sec = 1200\n", ""))
    async with world.life():
        await world.clock.advance(timedelta(minutes=2))
        world.clock.step(timedelta(minutes=-3))
        await world.clock.advance(timedelta(seconds=10))
    async with world.life() as watch:
        await world.watched(watch, 30)
        assert watch.monitor.verdict("V1") is Verdict.INCONCLUSIVE, "no slot was asked for"
        await world.watched(watch, 40)
        assert watch.monitor.verdict("V1") is Verdict.HOLDS
    assert len(world.processes.started) == 2
    assert world.violations() == []


async def test_a_miss_that_was_told_before_a_restart(tmp_path: Path) -> None:
    """A miss on record is not told again when the clock is set back and forth over it, nor asked for."""
    world = WatchedDaemon(tmp_path, TEXT.replace("on_unit_active_sec = 1200", "enabled = false"))
    async with world.life():
        await world.clock.advance(timedelta(minutes=2))
    async with world.life() as watch:
        world.clock.step(timedelta(hours=-2))
        await world.watched(watch, 5)
        world.clock.step(timedelta(hours=2))
        await world.watched(watch, 30)
    assert world.violations() == []


# --- where machines share timers ---

SHARED = """
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
on_startup_sec = 0.01
on_unit_active_sec = 0.01
"""


class SharedTimersSeen:
    """A daemon whose board is in memory, in the time of the host, an age away from the daemon's own clock."""

    def __init__(self, path: Path) -> None:
        self.world = WatchedDaemon(path, SHARED)
        self.world.processes.script("job", lasts=timedelta(0))
        self.table = Table()
        clock = BoardClock()
        board = partial(MemoryBoard, clock.now_us, table=self.table)
        self.sharing = Sharing(board, brood=Brood(), clock=clock, name="a")
        self._ended = 0
        self._is_enough = asyncio.Event()

    def listener(self, event: Event) -> None:
        """Count the runs."""
        self._ended += event.name == "TimerRunEnded"
        if self._ended >= 3:
            self._is_enough.set()

    async def until_run(self) -> None:
        """Wait until its timer has run some times."""
        async with asyncio.timeout(30):
            await self._is_enough.wait()


async def test_shared_timers_are_watched(tmp_path: Path) -> None:
    """A daemon judges the shared timers that it holds, by the board's time, and says what it does not see."""
    seen = SharedTimersSeen(tmp_path)
    async with seen.world.life(sharing=seen.sharing, listeners=[seen.listener]) as watch:
        await seen.until_run()
        verdicts = {one.property: one for one in watch.verification() or ()}
        assert watch.is_looking
        assert watch._daemon is not None
        await watch._daemon.switch_gate(is_open=False)
        assert (watch.is_looking, watch.verification()) == (False, None)
    assert {name: one.verdict for name, one in verdicts.items()} == {
        "V1": "unknown",
        "V2": "holds",
        "V3": "unknown",
        "V4": "holds",
        "V5": "unknown",
    }
    assert verdicts["V4"].words == "no two runs of one target overlap on this machine"
    assert "those that it holds" in watch.unwatched
    assert seen.world.violations() == []


async def test_a_violation_of_shared_timers(tmp_path: Path) -> None:
    """What the monitor of shared timers objects to is told, and is a reason of bad health."""
    seen = SharedTimersSeen(tmp_path)
    async with seen.world.life(sharing=seen.sharing, listeners=[seen.listener]) as watch:
        await seen.until_run()
        assert watch._daemon is not None
        fields = {"timer": "t", "target": "job", "reason": "nonsense", "scheduledTime": None, "runId": 999}
        watch._heed_timers(Event("TimerFired", 20, seen.world.clock.now(), fields))
        status = await OPERATIONS["status"].function(watch._daemon, Nothing(), "test")
    assert [one["property"] for one in seen.world.violations()] == ["V2"]
    assert any(reason.startswith("V2 is violated: every firing here") for reason in status.health.reasons)


async def test_one_machine_has_nothing_unwatched(tmp_path: Path) -> None:
    """Where timers are not shared there is nothing that the monitor does not see."""
    async with WatchedDaemon(tmp_path).life() as watch:
        assert watch.unwatched == ""


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
