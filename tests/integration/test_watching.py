"""Who watches a daemon: all of it in virtual time, with metrics, pings and the monitor of its timers."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from duly import Event
from duly.clock import Step, steady_us
from duly.config.loading import load
from duly.daemon.daemon import Daemon
from duly.daemon.operations import OPERATIONS, Nothing
from duly.daemon.sharing import Sharing
from duly.daemon.watching import Watch
from duly.events import Listener
from duly.instant import instant_of
from duly.processes.children import Children
from duly.testing import VirtualClock
from duly.verify.cluster import judged_timers
from duly.verify.properties import Verdict
from tests.unit.test_metrics import samples_in
from tests.worlds.fake_processes import FakeProcesses
from tests.worlds.model_table import ModelDatabase
from tests.worlds.shared_timers import Cable

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
        self,
        *,
        sharing: Sharing | None = None,
        listeners: Sequence[Listener] = (),
        trace: Path | None = None,
    ) -> AsyncIterator[Watch]:
        """From the start to the end of a daemon."""
        config = load(self.config)
        path = None if trace is None else str(trace)
        watch = Watch(config, clock=self.clock, steady_us=self.steady_us, sharing=sharing, trace=path)
        watch.event_listeners.append(self.told.append)
        all_listeners = [*watch.listeners, *listeners]
        daemon = Daemon(config, self.processes, clock=self.clock, listeners=all_listeners, sharing=sharing)
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
        seen, verdicts = numbers(watch), watch.verification()
    runs = "duly_runs_total{{kind=service,name=job,reason={},result=success,timer=t}}"
    assert seen[runs.format("schedule")] == 5
    assert seen[runs.format("interval")] == 10
    assert seen["duly_start_lag_seconds_count{kind=timer,name=t}"] == 15
    assert 0 < seen["duly_seconds_until_next_due{kind=timer,name=t}"] <= 1200
    assert seen["duly_store_write_seconds_count{}"] > 15
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
        await watch._daemon.set_timer_switch(is_open=False)
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
        await watch._daemon.set_timer_switch(is_open=False)
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


# --- traces ---


async def test_a_trace_says_what_the_monitor_says(tmp_path: Path) -> None:
    """The trace of a daemon, over two of its lives and a reload, holds in all that the monitor checks."""
    world, trace = WatchedDaemon(tmp_path), tmp_path / "trace.jsonl"
    async with world.life(trace=trace):
        await world.clock.advance(timedelta(hours=3))
    world.clock.step(timedelta(minutes=2))
    async with world.life(trace=trace) as watch:
        world.config.write_text(TEXT.replace("minute = 0", "minute = 30"))
        assert watch._daemon is not None
        reloading = asyncio.create_task(watch._daemon.reload(is_patient=True))
        await world.clock.advance(timedelta(hours=2))
        await reloading
    with trace.open("rb") as lines:
        outcome = judged_timers(lines)
    assert outcome.overall is Verdict.HOLDS, outcome
    assert outcome.starts == len([line for line in trace.read_text().splitlines() if '"TimerFired"' in line])
    assert all(outcome.tallies[name].checked for name in ("V1", "V2", "V3", "V4"))


def violated(header: dict[str, Any], *events: list[dict[str, Any]]) -> set[str]:
    """What the judge of traces objects to."""
    lines = [header, *sorted(chain(*events), key=lambda line: line["t"])]
    return {one.property for one in judged_timers(json.dumps(line).encode() for line in lines).violations}


async def test_a_trace_without_an_answer_is_objected_to(tmp_path: Path) -> None:
    """A trace in which a slot is neither fired for nor missed violates V1."""
    world, trace = WatchedDaemon(tmp_path), tmp_path / "trace.jsonl"
    async with world.life(trace=trace):
        await world.clock.advance(timedelta(hours=2))
    header, *seen = [json.loads(line) for line in trace.read_text().splitlines()]
    minutes = range(round(seen[0]["t"]), round(seen[-1]["t"]), 60_000)
    ticks = [{"ev": "Tick", "t": t, "proc": seen[0]["proc"]} for t in minutes]  # the host's time is not ours
    assert violated(header, seen, ticks) == set()
    fired = {"reason": "schedule", "runId": 1}
    kept = [line for line in seen if not fired.items() & line.get("fields", {}).items()]
    assert violated(header, kept, ticks) == {"V1"}


# --- where machines share timers ---


async def test_shared_timers_are_watched(tmp_path: Path) -> None:
    """A daemon that shares its timers objects to what its machine must not do, and says what it misses."""
    world = WatchedDaemon(tmp_path)
    cable = Cable(ModelDatabase(), lambda: instant_of(world.clock.now()), steady_us)
    sharing = Sharing(lambda _waits: cable, children=Children(), name="a")
    async with world.life(sharing=sharing) as watch:
        assert not watch.is_looking
        assert "only what this machine does" in watch.unwatched
        assert [one.property for one in watch.monitor.findings()] == ["V2", "V3", "V4", "V5"]
        assert watch._daemon is not None
        while not watch._daemon.daemon_status().is_timer_switch_on:
            await world.clock.advance(timedelta(0))
        assert world.violations() == []
        for run in (1, 2):
            fields = {"service": "job", "runId": run, "reason": "trigger", "timer": "t", "pid": run}
            watch.monitor.listener(Event("ServiceRunStarted", 0, world.clock.now(), fields))
    assert [one["property"] for one in world.violations()] == ["V4"]


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
