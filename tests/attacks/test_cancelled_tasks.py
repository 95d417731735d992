"""A program that cancels every task of its event loop, ours included."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from duly import Event, Scheduler, ScheduleTaskError, StoreError
from duly.store import MemoryStore, SQLiteStore
from duly.testing import VirtualClock
from tests.worlds.scheduler import HOUR, MINUTE, World, at
from tests.worlds.stores import StoreFactory, hooked

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


def cancel_all_tasks() -> None:
    """Cancel every task of the loop but the caller's."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


class EventLog:
    """A listener that can be waited on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._has_news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        """Hear an event."""
        self.events.append(event)
        self._has_news.set()

    async def until(self, name: str) -> Event:
        """The first event of that name, once it is there."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = [event for event in self.events if event.name == name]
                if found:
                    return found[0]
                self._has_news.clear()
                await self._has_news.wait()


async def until_there(name: str) -> None:
    """Return once the loop has a task of that name that nobody has cancelled."""
    async with asyncio.timeout(PATIENCE_S):
        while not any(  # noqa: ASYNC110 (no event)
            task.get_name() == name and not task.cancelling() for task in asyncio.all_tasks()
        ):
            await asyncio.sleep(0.01)  # noqa: TID251 (restarts are paced in loop time)


async def begun(world: World, *tasks: tuple[str, str, object, timedelta], **options: object) -> EventLog:
    """A scheduler of *world* that is running, and what it tells."""
    received = EventLog()
    await world.begin(*tasks, listeners=[world.events.append, received], **options)
    return received


def judged(world: World) -> None:
    """Fail if what was recorded violates the model."""
    outcome = world.record.judged()
    assert (outcome.faults, outcome.violations) == ([], [])


async def in_the_open() -> None:
    cancel_all_tasks()


async def from_a_handle() -> None:
    asyncio.get_running_loop().call_soon(cancel_all_tasks)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()


@pytest.mark.parametrize("sweep", [in_the_open, from_a_handle])
async def test_poller_is_restarted(same_store: StoreFactory, sweep: Callable[[], Awaitable[None]]) -> None:
    """A scheduler whose tasks were all cancelled says so, goes on, and misses no minute."""
    world = World(same_store, "12:00:00")
    received = await begun(world, world.task("a"))
    await sweep()
    restarted = await received.until("PollerRestarted")
    assert (restarted.level, restarted.fields) == (40, {"error": "CancelledError: something cancelled it"})
    assert world.scheduler.state == "Running"
    await world.until("12:03")
    assert world.calls_of("a") == ["12:00:00", "12:01:00", "12:02:00", "12:03:00"]
    await world.scheduler.stop()
    assert world.scheduler.state == "Stopped"
    judged(world)


async def test_poller_is_restarted_again_and_again(same_store: StoreFactory) -> None:
    """However often the tasks are cancelled, polling begins again."""
    world = World(same_store, "12:00:00")
    received = await begun(world, world.task("a"))
    for minute in range(1, 3):
        cancel_all_tasks()
        await received.until("PollerRestarted")
        received.events.clear()
        await world.until(f"12:0{minute}")
    assert world.calls_of("a") == ["12:00:00", "12:01:00", "12:02:00"]
    await world.scheduler.stop()


@pytest.mark.parametrize("moment", ["before_save", "after_save"])
async def test_cancelled_while_a_start_is_written(same_store: StoreFactory, moment: str) -> None:
    """A start whose writing was cancelled, before or after it reached the disk, is carried out once."""
    place = hooked(same_store())
    world = World(lambda: place)
    received = await begun(world, world.task("a", "1 12 * * *"))

    async def sweep_once() -> None:
        setattr(place, moment, nothing)
        for task in asyncio.all_tasks():
            if task.get_name() == "duly poller":
                task.cancel()
        await asyncio.sleep(0)  # noqa: TID251 (the cancellation arrives here)

    async def nothing() -> None: ...

    setattr(place, moment, sweep_once)
    await world.until("12:01")
    assert world.calls == []
    await received.until("PollerRestarted")
    await world.until("12:05")
    assert len(world.calls) == 1
    await world.scheduler.stop()
    await world.begin(world.task("a", "1 12 * * *"))
    assert len(world.calls) == 1, "nothing is owed after that"
    await world.scheduler.stop()
    judged(world)


async def test_cancelled_run_fails_and_is_recorded(same_store: StoreFactory) -> None:
    """A run that the program cancels fails like any other, and its failure is on disk."""
    world = World(same_store, "12:00:00")
    task = world.task("a", "0 12 * * *", lasts=HOUR, delay=timedelta(minutes=5))
    received = await begun(world, task)
    cancel_all_tasks()
    await received.until("PollerRestarted")
    await world.until("12:01")
    [(_, failed)] = world.told("TaskRunFailed")
    assert failed["error"].startswith("CancelledError")
    await world.crash()
    await world.begin(task)
    assert world.calls_of("a") == ["12:00:00"], "not interrupted: its end is known"
    await world.until("12:06")
    assert len(world.calls_of("a")) == 2
    await world.stop()


async def test_run_cancelled_before_its_first_step(same_store: StoreFactory) -> None:
    """A callback that cancels the other runs of its minute before they are called loses none of them."""
    world = World(same_store, "12:00:00")
    is_first = [True]

    async def sweeper() -> None:
        if is_first.pop():
            for task in asyncio.all_tasks():
                if task.get_name() in {"b", "duly poller"}:
                    task.cancel()

    received = await begun(world, ("a", "0 12 * * *", sweeper, HOUR), world.task("b", "0 12 * * *"))
    await received.until("PollerRestarted")
    await world.until("12:02")
    assert len(world.calls_of("b")) == 1
    await world.scheduler.stop()
    judged(world)


async def test_only_the_sleep_is_cancelled(same_store: StoreFactory) -> None:
    """A poller whose sleep alone is cancelled sleeps again."""
    world = World(same_store, "12:00:00")
    await world.begin(world.task("a"))
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        if task.get_name() not in {"duly poller", "duly member"}:
            task.cancel()
    await world.until("12:02")
    assert world.calls_of("a") == ["12:00:00", "12:01:00", "12:02:00"]
    await world.scheduler.stop()


async def test_time_limits_survive() -> None:
    """A run that ignores the cancellation is still cancelled when its time is over."""
    world = World(MemoryStore, "12:00:00")

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    await begun(world, ("a", "0 12 * * *", stubborn, HOUR), run_timeout=MINUTE)
    cancel_all_tasks()
    await until_there("duly limits")
    await world.clock.advance(MINUTE)
    [(_, failed)] = world.told("TaskRunFailed")
    assert "run_timeout" in failed["error"]
    await world.scheduler.stop()


class PlainClock:
    """A clock that tells the time and sleeps, and nothing else."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        """The time."""
        return self._clock.now()

    async def sleep_until(self, moment: datetime) -> None:
        await self._clock.sleep_until(moment)


async def test_steps_of_a_plain_clock_are_still_noticed() -> None:
    """The watch over a clock that cannot report its steps is restarted, and knows what it saw last."""
    clock, received = VirtualClock(at("12:00:30")), EventLog()

    async def callback() -> None: ...

    scheduler = Scheduler(":memory:", clock=PlainClock(clock), listeners=[received])
    await scheduler.initialize([("a", "0 3 * * *", callback, MINUTE)])
    cancel_all_tasks()
    clock.step(-HOUR)  # while nobody watches
    await until_there("duly clock")
    stepped = await received.until("ClockStepped")
    assert stepped.fields["before"].startswith("2026-01-01T12:00:30")
    await scheduler.stop()


class SlowStore(MemoryStore):
    """A store that takes its time to close, once."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = asyncio.Event()
        self.closes = 0

    async def close(self) -> None:
        """Close, the second time."""
        self.closes += 1
        self.closing.set()
        if self.closes == 1:
            await asyncio.Event().wait()
        await super().close()


async def test_stop_survives_when_its_own_task_does() -> None:
    """A stop that nobody cancelled does not raise CancelledError because its helper was cancelled."""
    store = SlowStore()
    world = World(lambda: store)
    await world.begin(world.task("a"))
    stopping = asyncio.create_task(world.scheduler.stop())
    await store.closing.wait()
    for task in asyncio.all_tasks() - {asyncio.current_task(), stopping}:
        task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await stopping
    assert (world.scheduler.state, store.closes) == ("Stopped", 2)


async def test_stop_inside_a_callback_survives() -> None:
    """A stop that a callback has asked for is completed although its task was cancelled."""
    world = World(MemoryStore, "12:00:00")
    go_on = asyncio.Event()

    async def stopper() -> None:
        await world.scheduler.stop()
        await go_on.wait()

    received = await begun(world, ("a", "0 12 * * *", stopper, HOUR), world.task("b"))
    task = next(task for task in asyncio.all_tasks() if task.get_name() == "a")
    for other in asyncio.all_tasks() - {asyncio.current_task(), task}:
        other.cancel()
    await world.until("12:05")
    assert world.calls_of("b") == []
    go_on.set()
    await received.until("SchedulerStopped")
    assert (world.scheduler.state, world.calls_of("b")) == ("Stopped", [])


async def test_stop_after_a_failed_initialize_and_a_sweep() -> None:
    """A stop does not raise CancelledError for background work of a failed initialize that was cancelled."""
    place = hooked(MemoryStore())
    world = World(lambda: place, "12:00:00")
    await world.begin(world.task("a", "0 12 * * *", lasts=MINUTE))
    place.fail(StoreError(store="x", reason="is broken"))
    with pytest.raises(ScheduleTaskError):
        await world.scheduler.initialize([world.task("b")])
    place.heal()
    cancel_all_tasks()
    await asyncio.sleep(0)  # noqa: TID251 (the cancellation arrives)
    async with asyncio.timeout(PATIENCE_S):
        await world.scheduler.stop()
    await world.begin(world.task("a", "0 12 * * *"))  # the store was released
    await world.scheduler.stop()


async def test_initialize_cancelled_from_within(tmp_path: Path) -> None:
    """An initialize whose inner task was cancelled raises, tells so, and releases the store."""
    path = tmp_path / "state.db"
    world = World(lambda: SQLiteStore(path), "12:00:00")
    starting = asyncio.create_task(world.scheduler.initialize([world.task("a")]))
    for _ in range(4):
        await asyncio.sleep(0)  # noqa: TID251 (lets it begin)
    cancel_all_tasks()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert world.scheduler.state == "Uninitialized"
    assert len(world.told("SchedulerInitializationFailed")) == 1
    await world.begin(world.task("a"))
    assert world.calls_of("a") == ["12:00:00"]
    await world.scheduler.stop()


# --- the shutdown of the loop, which cancels every task too ---

PROGRAM = """
import asyncio, sys
from datetime import timedelta
from duly import Scheduler

async def callback():
    print("called", flush=True)
    await asyncio.Event().wait()

def tell(event):
    if event.level >= 30:
        print(event.name, flush=True)
    if event.name == "PollerRestarted":
        restarted.set()

async def slow_to_end():
    try:
        await asyncio.Event().wait()
    finally:
        if "slow" in sys.argv:
            await restarted.wait()

async def main():
    global restarted, slow  # the loop itself would not keep the task from the garbage collector
    restarted = asyncio.Event()
    await scheduler.initialize([("a", "* * * * *", callback, timedelta(minutes=1))])
    slow = asyncio.create_task(slow_to_end())
    while not called():
        await asyncio.sleep(0)
    if "interrupted" in sys.argv:
        print("ready", flush=True)
        await asyncio.Event().wait()

def called():
    return len(scheduler._poller.runs)

scheduler = Scheduler(sys.argv[1], listeners=[tell])
try:
    asyncio.run(main(), debug=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(scheduler.state, flush=True)
"""


def run_program(tmp_path: Path, *words: str) -> tuple[list[str], str, int]:
    """What the program prints, what it complains of, and how it ends."""
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", PROGRAM, str(tmp_path / "state.db"), *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        check=False,
    )
    return ended.stdout.split("\n"), ended.stderr, ended.returncode


COMPLAINTS = ("never awaited", "was destroyed", "never retrieved", "Traceback", "ResourceWarning")


@pytest.mark.parametrize("how", ["quick", "slow"])
def test_loop_that_is_shut_down_ends_quietly(tmp_path: Path, how: str) -> None:
    """A program that forgets `stop` ends at once and without warnings; the scheduler says it was aborted.

    Also when something else keeps the loop alive for so long that the poller is restarted meanwhile.
    """
    said, complaints, code = run_program(tmp_path, how)
    restarted = ["PollerRestarted"] if how == "slow" else []
    assert [line for line in said if line not in {"called", "", "TaskRunFailed"}] == [
        *restarted,
        "SchedulerAborted",
        "Stopped",
    ]
    assert code == 0
    assert [text for text in COMPLAINTS if text in complaints] == [], complaints


def test_ctrl_c_ends_quietly(tmp_path: Path) -> None:
    """A program that is interrupted from the keyboard ends without a warning from us or asyncio."""
    command = [sys.executable, "-W", "always", "-c", PROGRAM, str(tmp_path / "state.db"), "interrupted"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as running:
        assert running.stdout is not None
        assert "ready\n" in iter(running.stdout.readline, ""), "it ended before it was ready"
        running.send_signal(2)
        said, complaints = running.communicate(timeout=PATIENCE_S)
    assert said.split("\n")[-3:] == ["interrupted", "Stopped", ""]
    assert running.returncode == 0
    assert [text for text in COMPLAINTS if text in complaints] == [], complaints
