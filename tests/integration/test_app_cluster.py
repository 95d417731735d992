"""Apps that share a PostgreSQL, in real time: what is asked of one happens on another."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing

import pytest

from duly import App, NoSuchTaskError, RunCancelledError, crontab, every
from duly.cluster import PostgresStore
from duly.cluster.table import ReadTasks, TaskView
from duly.events import Event
from tests.worlds.postgres import until

pytestmark = pytest.mark.steady


class Nodes:
    """Apps on one database, and what their bodies do."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.running: list[str] = []
        self.most = 0
        self.begun = 0
        self.skipped: list[str] = []
        self.may_end = asyncio.Semaphore(0)
        self._changed = asyncio.Condition()

    def app(self, **options: object) -> App:
        return App(self.url, timezone="UTC", listeners=[self._on_event], **options)  # type: ignore[arg-type]

    def _on_event(self, event: Event) -> None:
        if event.name == "TaskSkipped":
            self.skipped.append(str(event.fields["taskName"]))

    async def work(self, name: str) -> None:
        """Run until somebody says that one may end."""
        self.running.append(name)
        self.begun += 1
        self.most = max(self.most, len(self.running))
        await self._tell()
        try:
            await self.may_end.acquire()
        finally:
            self.running.remove(name)
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(is_so)


@asynccontextmanager
async def running(*apps: App) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        yield


async def test_a_run_is_cancelled_from_another_node(postgres_url: str) -> None:
    """The node that runs a task cancels it when another is asked to; who asked for the run hears of it."""
    nodes = Nodes(postgres_url)
    worker, other = nodes.app(), nodes.app()

    @worker.kind(retry="1d")
    async def job() -> None:
        await nodes.work("job")

    async with running(worker, other):
        await other.add("e", kind="job", schedule=every("365d"))
        assert await other.cancel("e") is False
        handle = await other.run_now("e")
        await nodes.until(lambda: nodes.running == ["job"])
        assert await other.cancel("e") is True
        async with asyncio.timeout(60):
            with pytest.raises(RunCancelledError, match="'e' was cancelled"):
                await handle
        (past,) = await other.history("e")
        assert (past.result, past.error) == ("cancelled", "RunCancelledError")
        assert [task.state for task in await worker.tasks()] == ["waiting"]
        with pytest.raises(NoSuchTaskError):
            await other.cancel("f")


async def test_a_run_on_another_node_can_be_awaited(postgres_url: str) -> None:
    """The handle of a run ends with it, on whatever node that is, and raises what it has raised."""
    nodes = Nodes(postgres_url)
    worker, other = nodes.app(), nodes.app()

    @worker.kind(retry="1d")
    async def job(is_good: bool) -> None:
        await nodes.work("job")
        if not is_good:
            raise LookupError("no such shop")

    async with running(worker, other):
        await other.add("good", kind="job", schedule=every("365d"), args={"is_good": True})
        await other.add("bad", kind="job", schedule=every("365d"), args={"is_good": False})
        await other.add("gone", kind="job", schedule=every("365d"), args={"is_good": True}, enabled=False)
        good, bad = await other.run_now("good"), await other.run_now("bad")
        await other.pause("gone")
        gone = await other.run_now("gone")
        await nodes.until(lambda: len(nodes.running) == 2)
        nodes.may_end.release()
        nodes.may_end.release()
        async with asyncio.timeout(60):
            await good
            with pytest.raises(RuntimeError, match="LookupError: no such shop"):
                await bad
            await other.remove("gone")
            with pytest.raises(NoSuchTaskError, match="'gone'"):
                await gone


async def test_a_limit_holds_on_all_nodes(postgres_url: str) -> None:
    """Of the runs of a named limit no more go on at once than it allows, on all nodes together."""
    nodes, apps, count = Nodes(postgres_url), [], 6
    for _ in range(3):
        app = nodes.app(limits={"db": 2})
        for number in range(count):
            name = f"job-{number}"
            app.declare(nodes.work, every("365d"), name=name, args=(name,), limit="db", enabled=False)
        apps.append(app)
    async with running(*apps):
        for number in range(count):
            await apps[number % 3].run_now(f"job-{number}")
        for number in range(count):
            begun = min(number + 2, count)
            await nodes.until(lambda begun=begun: nodes.begun >= begun)  # type: ignore[misc]
            nodes.may_end.release()
        await nodes.until(lambda: not nodes.running)
    assert (nodes.begun, nodes.most) == (count, 2)
    assert nodes.skipped


async def test_who_waits_for_room_keeps_its_age(postgres_url: str) -> None:
    """A task that finds no room is as long due as before: the node that has room takes the oldest."""
    nodes, store = Nodes(postgres_url), PostgresStore(postgres_url)
    app = nodes.app(limits={"db": 1})
    for name in ("runs", "waits"):
        app.declare(nodes.work, every("365d"), name=name, args=(name,), limit="db", enabled=False)

    def waiting() -> TaskView:
        with closing(store.table()) as table:
            (view,) = table.do(ReadTasks(name="waits"))
        assert isinstance(view, TaskView)
        return view

    async with running(app):
        await app.run_now("runs")
        await nodes.until(lambda: nodes.running == ["runs"])
        await app.run_now("waits")
        await asyncio.to_thread(until, lambda: nodes.skipped, "it was claimed, and found no room")
        await asyncio.to_thread(until, lambda: waiting().run_by is None, "it was given back")
        wake_us = waiting().wake_us
        nodes.may_end.release()
        nodes.may_end.release()
        await nodes.until(lambda: nodes.begun == 2)
    assert wake_us == 0


async def test_a_long_list_blocks_nobody(postgres_url: str) -> None:
    """While an app with many tasks starts, new or known, no turn of the loop works for long."""
    turns_s: list[float] = []

    async def note_turns() -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
            turns_s.append(time.thread_time() - began_s)

    async def nothing() -> None:
        pass

    for _ in range(2):
        app = App(postgres_url, timezone="UTC")
        for number in range(30_000):
            app.task(crontab(f"{number % 60} {number % 24} * * *"), name=f"t{number}")(nothing)
        noting = asyncio.create_task(note_turns())
        async with app:
            noting.cancel()
    assert max(turns_s) < 0.1
