"""Standby: an app that waits for the store, and its controls, which the holder carries out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from duly import App, HolderAwayError, NoSuchTaskError, StoreInUseError, every
from duly.events import Event
from duly.testing import crash

Body = Callable[[], object]


class Pair:
    """Two apps on one file: the first holds it, the second stands by."""

    def __init__(self, folder: Path, body: Body = lambda: None) -> None:
        self.events: list[list[Event]] = [[], []]
        self.apps = [
            App(folder / "state.db", standby=True, timezone="Europe/Berlin", listeners=[events.append])
            for events in self.events
        ]
        self.holder, self.standby = self.apps
        self.taken_over = asyncio.Event()
        self.apps[1]._scheduler._announcer.listen(
            lambda _event: self.taken_over.set(), ["SchedulerInitializationCompleted"]
        )
        for app in self.apps:
            app.declare(body, every("365d"), name="job", retry="365d")
            app.kind(name="parcel")(self.send)

    def send(self, to: str) -> None:
        """What entries do."""

    def told(self, number: int) -> list[str]:
        """The names of the events of one of them."""
        return [event.name for event in self.events[number]]


@asynccontextmanager
async def pair(folder: Path, body: Body = lambda: None) -> AsyncIterator[Pair]:
    """Both are started."""
    both = Pair(folder, body)
    async with both.holder, both.standby:
        yield both


async def test_a_standby_is_silent(tmp_path: Path) -> None:
    """To wait for a store is no fault: the standby tells nothing until it takes over."""
    async with pair(tmp_path) as both:
        await both.standby.tasks()
        assert both.told(1) == []
        await both.holder.stop()
        await both.taken_over.wait()
        assert both.told(1)[0] == "SchedulerInitializationStarted"
        assert "SchedulerInitializationFailed" not in both.told(1)
        assert [task.name for task in await both.standby.tasks()] == ["job"]


async def test_controls_of_a_standby(tmp_path: Path) -> None:
    """Controls of a standby are those of the holder, and their answers are as if they were its own."""
    async with pair(tmp_path) as both:
        here, there = both.standby, both.holder
        await here.pause("job")
        (status,) = await here.tasks()
        assert status == (await there.tasks())[0]
        assert status.state == "paused"
        assert status.next_due is not None
        assert status.next_due.tzinfo == ZoneInfo("Europe/Berlin")
        await here.resume("job")
        assert await here.cancel("job") is False
        handle = await here.run_now("job")
        await handle
        assert handle.task == "job"
        since = datetime(2026, 1, 1, tzinfo=UTC)
        assert await here.history("job", result="success", since=since) == await there.history("job")
        assert len(await here.history()) == 1
        await here.add("to Bob", kind="parcel", schedule=every("1h"), args={"to": "Bob"})
        added = {task.name: task for task in await there.tasks()}["to Bob"]
        assert (added.kind, added.args) == ("parcel", {"to": "Bob"})
        assert await here.tasks() == await there.tasks()
        await here.remove("to Bob")
        assert [task.name for task in await there.tasks()] == ["job"]
        assert both.told(1) == []


async def test_errors_of_a_standby(tmp_path: Path) -> None:
    """What a control raises at the holder it raises at the standby: our errors, Python's, and a task's."""

    def fail() -> None:
        raise LookupError("not there")

    async with pair(tmp_path, fail) as both:
        with pytest.raises(NoSuchTaskError, match="did you mean job") as caught:
            await both.standby.pause("jobs")
        assert caught.value.details == {"name": "jobs", "close": ["job"]}
        with pytest.raises(ValueError, match="bad"):
            await both.standby.history(result="bad")  # type: ignore[arg-type]
        handle = await both.standby.run_now("job")
        with pytest.raises(RuntimeError, match="LookupError: not there"):
            await handle


async def test_a_holder_that_dies_is_not_asked_twice(tmp_path: Path) -> None:
    """Who waits for a run of a holder that dies hears of it; the next control is the standby's own."""
    release = asyncio.Event()
    async with pair(tmp_path, release.wait) as both:
        handle = await both.standby.run_now("job")
        await crash(both.holder)
        assert both.holder._server is not None
        both.holder._server.close()  # as the kernel does
        with pytest.raises(HolderAwayError, match="may have done it"):
            await handle
        assert [task.name for task in await both.standby.tasks()] == ["job"], "it has taken over"
        release.set()


async def test_a_holder_without_controls(tmp_path: Path) -> None:
    """A holder that allows no standby has no socket, and a control says so."""
    both = Pair(tmp_path)
    async with App(tmp_path / "state.db"), both.standby:
        with pytest.raises(HolderAwayError, match="is it an App with standby=True"):
            await both.standby.tasks()


async def test_without_standby(tmp_path: Path) -> None:
    """The second of two apps without standby is refused, and told of the option."""
    async with App(tmp_path / "state.db"):
        with pytest.raises(StoreInUseError) as caught:
            await App(tmp_path / "state.db").start()
    assert "standby=True" in caught.value.__notes__[0]


async def test_a_blocking_standby(tmp_path: Path) -> None:
    """The blocking controls of a standby work as well, with a limit for a run."""
    begun, release = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        begun.set()
        await release.wait()

    both = Pair(tmp_path, body)
    async with both.holder:
        await both.holder.run_now("job")
        await begun.wait()

        def block() -> list[str]:
            with both.standby.background() as controls:
                with pytest.raises(TimeoutError):
                    controls.run_now("job", timeout=timedelta(milliseconds=10))
                assert controls.cancel("job") is True
                return [task.name for task in controls.tasks()]

        try:
            assert await asyncio.to_thread(block) == ["job"]
        finally:
            release.set()


async def test_the_socket_goes_with_the_holder(tmp_path: Path) -> None:
    """Only the user of the holder may open its socket, and a stop removes it."""
    socket = tmp_path / "state.db.sock"
    async with pair(tmp_path):
        assert socket.stat().st_mode & 0o777 == 0o600
    assert not socket.exists()
