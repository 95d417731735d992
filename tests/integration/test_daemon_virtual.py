"""The whole daemon in virtual time: real store and configuration file, fake processes, years in seconds."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly import Event
from duly.config.loading import load
from duly.daemon.daemon import Daemon
from duly.daemon.operations import OPERATIONS, params_for
from duly.daemon.protocol import OperationError
from duly.instant import datetime_at
from duly.store.history import RunRow
from duly.testing import VirtualClock
from tests.worlds.fake_processes import FakeProcesses

BERLIN = ZoneInfo("Europe/Berlin")
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


class DaemonWorld:
    """A configuration, a store, a clock; and one daemon after the other."""

    def __init__(self, path: Path, text: str, start: datetime = MIDNIGHT) -> None:
        self.config = path / "duly.toml"
        self.config.write_text(text)
        self.clock = VirtualClock(start)
        self.processes = FakeProcesses(self.clock)
        self.events: list[Event] = []
        self.daemon: Daemon

    @asynccontextmanager
    async def life(self, *, timers: bool | None = None) -> AsyncIterator[Daemon]:
        """A daemon from its start to its end."""
        self.daemon = Daemon(
            load(self.config), self.processes, clock=self.clock, listeners=[self.events.append], timers=timers
        )
        running = asyncio.create_task(self.daemon.run())
        await self.after()
        try:
            yield self.daemon
        finally:
            self.daemon.shut_down()
            while not running.done():
                await self.after(seconds=1)
            await running

    async def after(self, **duration: float) -> None:
        """Let time pass."""
        await self.clock.advance(timedelta(**duration))

    async def until(self, text: str, zone: Any = UTC) -> None:
        """Let time pass until a civil time."""
        await self.clock.advance_to(datetime.fromisoformat(text).replace(tzinfo=zone))

    async def do(self, op: str, **params: Any) -> Any:
        """What the daemon answers a client; time does not pass."""
        operation = OPERATIONS[op]
        asked = asyncio.ensure_future(operation.function(self.daemon, params_for(operation, params), "test"))
        await self.after()
        assert asked.done(), f"{op} waits"
        return asked.result()

    async def reload(self, text: str) -> Any:
        """Change the file, and have it read."""
        self.config.write_text(text)
        return await self.do("reload")

    async def runs(self, service: str | None = None) -> list[RunRow]:
        """The history, oldest first."""
        return list(reversed(await self.daemon.history.runs(service=service, limit=1000)))

    async def told(self, service: str, zone: Any = UTC) -> list[tuple[str, str, str | None]]:
        """When a service ran, why, and how that ended."""
        return [
            (datetime_at(row.started_us, zone).strftime("%d %H:%M:%S"), row.reason, row.result)
            for row in await self.runs(service)
        ]

    def names(self, prefix: str = "") -> list[str]:
        """The names of events so far."""
        return [event.name for event in self.events if event.name.startswith(prefix)]


HEAD = '[supervisor]\ntimers = true\ntimezone = "{}"\n'
WEB = '[[service]]\nid = "web"\ncommand = ["web"]\n'
JOB = '[[service]]\nid = "job"\ntype = "oneshot"\ncommand = ["job"]\n'


def timer(name: str = "t", target: str = "job", **options: object) -> str:
    lines = [f"{key} = {value}" for key, value in options.items()]
    return "\n".join(["[[timer]]", f'id = "{name}"', f'target = "{target}"', *lines, ""])


def world_of(path: Path, text: str, start: datetime = MIDNIGHT, zone: str = "UTC") -> DaemonWorld:
    """A world in which `web` stays up and `job` takes five seconds."""
    world = DaemonWorld(path, HEAD.format(zone) + text, start)
    world.processes.script("web")
    world.processes.script("job", lasts=timedelta(seconds=5))
    return world


HOURLY = timer(on_calendar="{minute = 0}", retry_intervals_sec="[]")


async def test_start_up_then_timers(tmp_path: Path) -> None:
    """Timers begin when all stages are done, start-up triggers count from there, their jobs do not boot."""
    slow = '[[service]]\nid = "slow"\ntype = "oneshot"\nstage = 1\ncommand = ["slow"]\n'
    world = world_of(tmp_path, slow + WEB + JOB + timer(on_startup_sec=10))
    world.processes.script("slow", lasts=timedelta(seconds=60))
    async with world.life() as daemon:
        assert daemon.daemon_status().state == "starting"
        assert daemon.timers() is None
        await world.after(seconds=60)
        assert daemon.daemon_status().state == "running"
        await world.after(seconds=30)
        assert await world.told("job") == [("01 00:01:10", "startup", "success")]
    assert came_in_order(world.names(), "SupervisorStarted", "TimersEnabled", "TimerFired")


def came_in_order(names: list[str], *wanted: str) -> bool:
    """Whether these came in this order."""
    places = [names.index(name) for name in wanted]
    return places == sorted(places)


async def test_calendar_at_civil_time(tmp_path: Path) -> None:
    """A daily timer fires at its hour of the zone, in winter and in summer."""
    daily = timer(on_calendar="{minute = 30, hour = 3}")
    world = world_of(tmp_path, JOB + daily, datetime(2026, 3, 27, 12, tzinfo=UTC), "Europe/Berlin")
    async with world.life():
        await world.until("2026-03-30T12:00")
        told = await world.told("job")
    assert [when for when, _, _ in told] == ["28 02:30:00", "29 01:30:00", "30 01:30:00"]


async def test_night_of_the_gap(tmp_path: Path) -> None:
    """02:30 does not exist on the night of the change to summer time: no run, and none is owed for it."""
    world = world_of(
        tmp_path,
        JOB + timer(on_calendar="{minute = 30, hour = 2}"),
        datetime(2026, 3, 28, 12, tzinfo=UTC),
        "Europe/Berlin",
    )
    async with world.life():
        await world.until("2026-03-30T12:00")
        assert await world.told("job", BERLIN) == [("30 02:30:00", "schedule", "success")]


async def test_night_of_the_repeated_hour(tmp_path: Path) -> None:
    """02:30 comes twice on the night of the change to winter time, and the job runs once."""
    world = world_of(
        tmp_path,
        JOB + timer(on_calendar="{minute = 30, hour = 2}"),
        datetime(2026, 10, 24, 12, tzinfo=UTC),
        "Europe/Berlin",
    )
    async with world.life():
        await world.until("2026-10-26T12:00")
        told = [when for when, _, _ in await world.told("job")]
    assert told == ["25 00:30:00", "26 01:30:00"]


async def test_suspend_is_caught_up_once(tmp_path: Path) -> None:
    """After three days of sleep one run makes up for all missed slots, and the schedule goes on."""
    world = world_of(tmp_path, JOB + HOURLY, datetime(2026, 1, 1, 0, 30, tzinfo=UTC))
    async with world.life():
        await world.until("2026-01-01T01:30")
        world.clock.step(timedelta(days=3))
        await world.until("2026-01-04T02:10")
        told = await world.told("job")
    assert told == [
        ("01 01:00:00", "schedule", "success"),
        ("04 01:30:00", "catch-up", "success"),
        ("04 02:00:00", "schedule", "success"),
    ]


async def test_time_off_is_caught_up_once(tmp_path: Path) -> None:
    """A daemon that was down for days catches up with one run at its next start."""
    world = world_of(tmp_path, JOB + HOURLY, datetime(2026, 1, 1, 0, 30, tzinfo=UTC))
    async with world.life():
        await world.until("2026-01-01T01:30")
    await world.until("2026-01-04T05:45")
    async with world.life():
        await world.until("2026-01-04T06:10")
        told = await world.told("job")
    assert told[1:] == [("04 05:45:00", "catch-up", "success"), ("04 06:00:00", "schedule", "success")]


async def test_shutdown_interrupts_and_the_next_life_catches_up(tmp_path: Path) -> None:
    """A run that the shutdown cuts off is interrupted, and made up for by one run of the next life."""
    world = world_of(tmp_path, JOB + HOURLY, datetime(2026, 1, 1, 0, 59, tzinfo=UTC))
    world.processes.script("job", lasts=timedelta(minutes=10))
    async with world.life():
        await world.until("2026-01-01T01:02")
    async with world.life():
        await world.until("2026-01-01T01:30")
        told = await world.told("job")
    assert [row[1:] for row in told] == [("schedule", "interrupted"), ("catch-up", "success")]


async def test_crash_leaves_an_interrupted_run_that_is_caught_up(tmp_path: Path) -> None:
    """A daemon that vanishes with a run in flight finds it at its next start, and catches up once."""
    world = world_of(tmp_path, JOB + HOURLY, datetime(2026, 1, 1, 0, 59, tzinfo=UTC))
    world.processes.script("job", lasts=timedelta(minutes=10))
    async with world.life():
        await world.until("2026-01-01T01:02")
        # What a kill leaves: the files as they are at this moment.
        left = tmp_path / "left"
        left.mkdir()
        for name in ("duly.toml", "duly.db", "duly.db-wal"):
            shutil.copy(tmp_path / name, left / name)
    after = DaemonWorld(left, world.config.read_text(), world.clock.now())
    after.processes.script("job", lasts=timedelta(minutes=10))
    async with after.life():
        await after.until("2026-01-01T01:30")
        told = await after.told("job")
    assert [row[1:] for row in told] == [("schedule", "interrupted"), ("catch-up", "success")]


async def test_interval_survives_a_restart(tmp_path: Path) -> None:
    """An interval counts from the last end of its target, also across a restart."""
    text = JOB + timer(on_startup_sec=1, on_unit_active_sec=3600, retry_intervals_sec="[]")
    world = world_of(tmp_path, text)
    async with world.life():
        await world.after(minutes=30)
    without = JOB + timer(on_unit_active_sec=3600, retry_intervals_sec="[]")
    world.config.write_text(HEAD.format("UTC") + without)
    async with world.life():
        await world.until("2026-01-01T02:10")
        told = [when for when, _, _ in await world.told("job")]
    assert told == ["01 00:00:01", "01 01:00:06", "01 02:00:11"]


# --- reloads ---


async def test_reload_that_changes_nothing(tmp_path: Path) -> None:
    """The same file again: no restart, no start-up trigger, no event but that it was reloaded."""
    text = WEB + JOB + timer(on_startup_sec=1) + timer("h", on_calendar="{minute = 0}")
    world = world_of(tmp_path, text)
    async with world.life():
        await world.after(minutes=1)
        seen = len(world.events)
        done = await world.reload(HEAD.format("UTC") + text)
        await world.after(minutes=1)
        assert (done.added, done.changed, done.removed, done.unchanged) == ([], [], [], 4)
        assert [event.name for event in world.events[seen:]] == ["OperatorAction", "ConfigurationReloaded"]
        assert len(world.processes.started) == 2


async def test_reload_matrix(tmp_path: Path) -> None:
    """What is added starts, what changed restarts or is rescheduled, what is removed ends, the rest stays."""
    old = '[[service]]\nid = "old"\ncommand = ["web", "old"]\n'
    turned = '[[service]]\nid = "turned"\ncommand = ["web", "{}"]\n'
    world = world_of(
        tmp_path, WEB + old + turned.format("a") + JOB + HOURLY + timer("gone", on_startup_sec=9999)
    )
    async with world.life():
        kept = {process.command.argv: process.identity.pid for process in world.processes.living}
        new = '[[service]]\nid = "new"\ncommand = ["web", "new"]\n'
        quarter = timer(on_calendar="{minute = 15}", retry_intervals_sec="[]")
        text = WEB + new + turned.format("b") + JOB + quarter + timer("fresh", on_startup_sec=9999)
        done = await world.reload(HEAD.format("UTC") + text)
        assert done.added == ["service new", "timer fresh"]
        assert done.changed == ["service turned", "timer t"]
        assert done.removed == ["service old", "timer gone"]
        now = {process.command.argv: process.identity.pid for process in world.processes.living}
        assert set(now) == {("web",), ("web", "new"), ("web", "b")}
        assert now["web",] == kept["web",]
        await world.after(hours=1)
        assert [when for when, _, _ in await world.told("job")] == ["01 00:15:00"]


async def test_reload_keeps_what_became_invalid(tmp_path: Path) -> None:
    """A timer that became invalid goes on as it was, with its state; its target may not leave under it."""
    world = world_of(tmp_path, JOB + HOURLY)
    async with world.life():
        done = await world.reload(HEAD.format("UTC") + JOB + timer(on_calendar="{minute = 99}"))
        assert [bad.id for bad in done.invalid] == ["t"]
        await world.after(hours=1)
        assert [when for when, _, _ in await world.told("job")] == ["01 01:00:00"]


async def test_reload_of_a_broken_file(tmp_path: Path) -> None:
    """A file that cannot be used is refused, all goes on, and the fault is shown until a reload succeeds."""
    world = world_of(tmp_path, WEB + JOB + HOURLY)
    async with world.life() as daemon:
        with pytest.raises(OperationError, match="is not TOML"):
            await world.reload("[[service")
        assert len(daemon.daemon_status().faults) == 1
        await world.after(hours=1)
        assert len(await world.told("job")) == 1
        await world.reload(HEAD.format("UTC") + WEB + JOB + HOURLY)
        assert daemon.daemon_status().faults == ()


# --- the timer switch ---


async def test_switch_closed_with_a_run_in_flight(tmp_path: Path) -> None:
    """The run in flight when the switch closes ends as a service's run: no event, no retry after that."""
    world = world_of(tmp_path, JOB + timer(on_calendar="{minute = 0}", catch_up_window_sec=0))
    world.processes.script("job", lasts=timedelta(minutes=10), code=3)
    async with world.life():
        await world.until("2026-01-01T01:02")
        await world.do("gate", on=False)
        seen = len(world.events)
        await world.until("2026-01-01T04:30")
        assert [event.name for event in world.events[seen:] if event.name.startswith("Timer")] == []
        assert [row[1:] for row in await world.told("job")] == [("schedule", "exit")]
        await world.do("gate", on=True)
        [shown] = (await world.do("timers")).timers
        assert (shown.running, shown.retry_next_at) == (False, None)


async def test_switch_reopened_catches_up_once(tmp_path: Path) -> None:
    """Slots that passed while the switch was closed are caught up with by one run when it opens."""
    world = world_of(tmp_path, JOB + HOURLY, datetime(2026, 1, 1, 0, 30, tzinfo=UTC))
    async with world.life():
        await world.until("2026-01-01T01:30")
        await world.do("gate", on=False)
        await world.until("2026-01-01T05:30")
        await world.do("gate", on=True)
        await world.until("2026-01-01T06:30")
        told = [row[:2] for row in await world.told("job")]
    assert told == [("01 01:00:00", "schedule"), ("01 05:30:00", "catch-up"), ("01 06:00:00", "schedule")]


async def test_switch_used_while_services_come_up(tmp_path: Path) -> None:
    """A switch during start-up takes effect when that is complete, and the last one holds."""
    slow = '[[service]]\nid = "slow"\ntype = "oneshot"\nstage = 1\ncommand = ["slow"]\n'
    world = world_of(tmp_path, slow + JOB + HOURLY)
    world.processes.script("slow", lasts=timedelta(seconds=60))
    async with world.life(timers=False) as daemon:
        await world.do("gate", on=True)
        assert daemon.timers() is None
        await world.do("gate", on=False)
        await world.do("gate", on=True)
        await world.after(seconds=61)
        assert daemon.timers() is not None


async def test_closed_switch_stays_closed_through_a_reload(tmp_path: Path) -> None:
    """What an operator switched off stays off when the file is read again and says nothing new of it."""
    world = world_of(tmp_path, JOB + HOURLY)
    async with world.life() as daemon:
        await world.do("gate", on=False)
        await world.reload(HEAD.format("UTC") + JOB + HOURLY + timer("u", on_calendar="{minute = 5}"))
        assert daemon.timers() is None
        await world.after(hours=2)
        assert await world.told("job") == []


async def test_disabled_timer_outlasts_a_restart(tmp_path: Path) -> None:
    """A timer disabled by hand stays so in the next life; enabled again, missed slots are not made up for."""
    world = world_of(tmp_path, JOB + HOURLY)
    async with world.life():
        await world.do("disable", id="t")
        await world.after(hours=2)
    async with world.life():
        await world.after(hours=2)
        assert await world.told("job") == []
        await world.do("enable", id="t")
        await world.after(hours=1)
        assert len(await world.told("job")) == 1


async def test_shutdown_at_the_very_instant_of_a_due(tmp_path: Path) -> None:
    """What comes due while the daemon ends is not begun, and is made up for by the next life."""
    world = world_of(tmp_path, WEB + JOB + HOURLY)
    world.processes.script("web", ignores_term=True)
    async with world.life() as daemon:
        await world.until("2026-01-01T00:59:55")
        daemon.shut_down()
        await world.until("2026-01-01T01:02")
    missed = [event.fields["reason"] for event in world.events if event.name == "TimerMissed"]
    assert missed == ["shutdown"]
    assert await world_runs_after(world) == [("catch-up", "success")]


async def world_runs_after(world: DaemonWorld) -> list[tuple[str, str | None]]:
    """What the next life does at once."""
    async with world.life():
        await world.after(minutes=1)
        return [row[1:] for row in await world.told("job")]
