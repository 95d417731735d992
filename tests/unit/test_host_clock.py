"""The host's clock: sleeping in slices, and noticing that the wall clock jumped."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from duly.clock import HostClock, Step, WatchedClock, watchable
from duly.instant import instant_of
from duly.testing import VirtualClock

START = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
START_US = 1_767_268_830_000_000
SECOND_US = 1_000_000


class FakeHost(HostClock):
    """A host whose wall clock and steady clock a test moves apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.wall, self.steady_s, self.slept_s = START, 0.0, list[float]()
        monkeypatch.setattr("duly.clock.time.monotonic_ns", lambda: round(self.steady_s * 1e9))
        monkeypatch.setattr("duly.clock.asyncio.sleep", self.sleep)

    def read_us(self) -> int:
        """The wall clock."""
        return instant_of(self.wall)

    async def sleep(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.slept_s.append(seconds)
        self.passes(seconds)

    def passes(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.wall += timedelta(seconds=seconds)
        self.steady_s += seconds


async def test_sleeps_in_slices_of_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long sleep looks at the wall clock as each minute begins, so that it ends when that says so."""
    host = FakeHost(monkeypatch)
    await host.sleep_until(START + timedelta(minutes=3, seconds=10))
    first_s = 60.0 - START.second
    assert host.slept_s == [first_s, 60.0, 60.0, 70.0 - first_s]


async def looked(host: FakeHost, *, passed_s: float, jumped_s: float) -> list[Step]:
    steps: list[Step] = []
    unwatch = host.watch(steps.append)
    host.passes(passed_s)
    host.wall += timedelta(seconds=jumped_s)
    host.now()
    unwatch()
    host.wall += timedelta(hours=5)
    host.now()
    return steps


@pytest.mark.parametrize("jumped_s", [3600.0, -3600.0, 2.0, -2.0])
async def test_jump_is_reported(monkeypatch: pytest.MonkeyPatch, jumped_s: float) -> None:
    """Anyone who asks for the time after a jump has the watchers told first; it is dated at the last look."""
    (step,) = await looked(FakeHost(monkeypatch), passed_s=30, jumped_s=jumped_s)
    assert step == Step(START_US, START_US + round(jumped_s * SECOND_US))


@pytest.mark.parametrize("passed_s", [0.0, 60.0, 86_400.0])
async def test_time_that_passed_is_no_jump(monkeypatch: pytest.MonkeyPatch, passed_s: float) -> None:
    """A busy loop that looks late, or a clock that is disciplined a little, has not jumped."""
    assert await looked(FakeHost(monkeypatch), passed_s=passed_s, jumped_s=0.4) == []


async def test_watch_looks_at_each_minute_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch looks again and again, and no more once it has ended."""
    looks: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noting(delay: float, look: Callable[[], None]) -> asyncio.TimerHandle:
        looks.append((delay, look, call_later(3600, look)))
        return looks[-1][2]

    monkeypatch.setattr(loop, "call_later", noting)
    host, steps = FakeHost(monkeypatch), list[Step]()
    unwatch = host.watch(steps.append)
    host.passes(30.0)
    host.wall += timedelta(hours=1)
    looks[0][1]()
    assert [delay for delay, _, _ in looks] == [30.0, 60.0]
    assert len(steps) == 1
    unwatch()
    assert looks[1][2].cancelled()
    host.wall += timedelta(hours=1)
    host.now()
    assert len(steps) == 1


async def test_a_new_watcher_hears_no_old_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that nobody has noticed yet is told to those who watched, and not to one who begins now."""
    host, before, after = FakeHost(monkeypatch), list[Step](), list[Step]()
    ends = [host.watch(before.append)]
    host.wall += timedelta(hours=1)
    ends.append(host.watch(after.append))
    host.now()
    assert (len(before), len(after)) == (1, 0)
    for end in ends:
        end()


def test_which_clock_is_used() -> None:
    """No clock means the host's; a clock that watches itself is used as it is; another is watched."""
    virtual = VirtualClock(START)

    class Plain:
        now = virtual.now
        sleep_until = virtual.sleep_until

    assert isinstance(watchable(None), HostClock)
    assert watchable(virtual) is virtual
    assert isinstance(watchable(Plain()), WatchedClock)


async def test_watched_clock_reports_steps_back() -> None:
    """A user's clock that reads earlier than a minute ago was set back."""
    inner, steps = VirtualClock(START), list[Step]()

    class Plain:
        """Sleeps for as long as it seemed when the sleep began, as a host does."""

        def __init__(self) -> None:
            self.ahead = timedelta(0)

        def now(self) -> datetime:
            return inner.now() + self.ahead

        async def sleep_until(self, moment: datetime) -> None:
            await inner.sleep_until(moment - self.ahead)

    plain = Plain()
    unwatch = WatchedClock(plain).watch(steps.append)
    await inner.advance(timedelta(minutes=2))
    assert steps == []
    plain.ahead = timedelta(hours=-1)
    await inner.advance(timedelta(minutes=1))
    assert [round((step.before_us - step.after_us) / SECOND_US) for step in steps] == [3540]
    unwatch()
