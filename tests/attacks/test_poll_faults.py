"""Exceptions of ours, or of a user's clock, in the middle of scheduling."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duly import Scheduler
from duly.daemon.health import OpenFaults
from duly.store import MemoryStore
from duly.testing import VirtualClock
from duly.web.dashboard import DaemonDashboard
from tests.attacks.test_cancelled_tasks import EventLog
from tests.integration.test_daemon_virtual import DaemonWorld
from tests.worlds.fake_processes import FakeProcesses
from tests.worlds.web_serving import FakeSite

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FlakyClock(VirtualClock):
    """A clock that fails when it is told to: it cannot tell the time, or it cannot sleep."""

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self.now_fails = self.sleep_fails = False

    def now(self) -> datetime:
        """The time, or TypeError."""
        if self.now_fails:
            raise TypeError("what time is it?")
        return super().now()

    async def sleep_until(self, moment: datetime) -> None:
        """Sleep, or OSError."""
        if self.sleep_fails:
            raise OSError("no sleep")
        await super().sleep_until(moment)


class Running:
    """A scheduler on a clock that can fail."""

    def __init__(self) -> None:
        self.clock = FlakyClock(NOON)
        self.received = EventLog()
        self.faults = OpenFaults()
        self.calls: list[str] = []
        self.scheduler = Scheduler(
            MemoryStore(),
            clock=self.clock,
            timezone=UTC,
            listeners=[self.faults.listener, self.received],
        )

    async def begin(self) -> None:
        """Start, with one task that is due every minute."""
        await self.scheduler.initialize([("a", "* * * * *", self._callback, MINUTE)])
        await self.clock.advance(timedelta(0))

    async def _callback(self) -> None:
        self.calls.append(f"{self.clock.now():%H:%M}")

    def told(self) -> list[str]:
        """The faults and recoveries that were told, by name."""
        return [
            event.name
            for event in self.received.events
            if event.name.endswith(("Fault", "Failed", "Recovered"))
        ]


def fail_now(clock: FlakyClock, *, is_broken: bool) -> None:
    clock.now_fails = is_broken


def fail_sleep(clock: FlakyClock, *, is_broken: bool) -> None:
    clock.sleep_fails = is_broken


@pytest.mark.parametrize(
    ("breaks", "error", "place"),
    [
        (fail_now, "TypeError: what time is it?", "FlakyClock.now"),
        (fail_sleep, "OSError: no sleep", "sleep_until"),
    ],
)
async def test_exception_in_a_cycle_is_not_the_stores(
    breaks: Callable[..., None], error: str, place: str
) -> None:
    """An exception inside the poller is told as what it is and where, stands as a fault, and passes."""
    running = Running()
    await running.begin()
    breaks(running.clock, is_broken=True)
    running.scheduler._poller.wake()
    await running.clock.advance(MINUTE)
    failed = await running.received.until("PollFailed")
    assert (failed.level, failed.fields["error"]) == (40, error)
    assert place in failed.fields["where"]
    assert str(Path(__file__).parent) not in failed.fields["where"]
    assert list(running.faults.sentences) == [error]
    breaks(running.clock, is_broken=False)
    recovered = await running.received.until("PollRecovered")
    assert (recovered.level, recovered.fields) == (20, {"error": error})
    assert list(running.faults.sentences) == []
    await running.clock.advance(2 * MINUTE)
    assert running.calls == ["12:00", "12:01", "12:02", "12:03"]
    assert running.told() == ["PollFailed", "PollRecovered"]
    await running.scheduler.stop()


async def test_fault_of_the_poller_shows_in_the_health_of_a_daemon(tmp_path: Path) -> None:
    """`duly status` and the readiness of the dashboard name a fault of the poller until it has passed."""
    world = DaemonWorld(
        tmp_path,
        "[supervisor]\ntimers = true\n[[service]]\nid = 'job'\ntype = 'oneshot'\ncommand = ['job']\n"
        "[[timer]]\nid = 't'\ntarget = 'job'\non_calendar = {minute = 30}\n",
    )
    world.clock = clock = FlakyClock(NOON)
    world.processes = FakeProcesses(clock)
    received = EventLog()
    async with world.life() as daemon:
        site = DaemonDashboard(daemon.config, {})
        site.attach(daemon, FakeSite())
        daemon._announcer.listen(site.listener, ["PollFailed", "PollRecovered"])
        daemon._announcer.listen(received, ["PollFailed", "PollRecovered"])
        await world.after(minutes=1)
        assert (daemon.daemon_status().faults, site.unready()) == ((), None)
        clock.sleep_fails = True
        await world.after(minutes=30)
        await received.until("PollFailed")
        assert daemon.daemon_status().faults == ("OSError: no sleep",)
        assert site.unready() == "scheduling fails: OSError: no sleep"
        clock.sleep_fails = False
        await received.until("PollRecovered")
        assert (daemon.daemon_status().faults, site.unready()) == ((), None)
