"""A site for tests of the dashboard: services, timers and runs by hand, behind a real server in a thread."""

import asyncio
import queue
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from duly import App, Scheduler, every
from duly.clock import HostClock
from duly.cluster.table import Nodes, NodeView
from duly.config.schema import Calendar, Config, Invalid, Service, Settings, Timer, Warned
from duly.daemon import views
from duly.daemon.backend import PropertyVerdict, Reloaded
from duly.daemon.protocol import FAILED, OperationError
from duly.processes.output import Tail
from duly.store.history import History, MissRow, RemoteRun, RunBucket, RunRow, Span, WantedRuns
from duly.store.past import Past
from duly.verify import Recorder
from duly.web.dashboard import store_site
from duly.web.live import Live
from duly.web.server import WebServer
from duly.web.settings import WebSettings
from duly.web.task_source import counted_runs
from duly.web.task_store import TaskStore
from tests.worlds.daemons import wanted_of
from tests.worlds.histories import LooseHistory

T = TypeVar("T")

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
EVIL = '"><script>alert(1)</script>'
TURNED = "gnp.\u202etxt\u2066"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m <b>bold</b> \x00 \u202egnp.exe\u2069 end\n"


def now_us() -> int:
    """The time of the machine: a browser reckons from that too."""
    return time.time_ns() // 1000  # noqa: TID251 (a browser's clock is the machine's)


def _services(count: int) -> Iterator[Service]:
    yield Service(
        "web", ("/usr/bin/serve", "--port", "8080"), description="The public site", env={"TOKEN": "hunter2"}
    )
    yield Service("database", ("/usr/bin/db",), stage=1, description="Where everything is kept")
    yield Service("queue", ("/usr/bin/queue",), stage=2, after=("database",), requires=("database",))
    yield Service(
        "backup",
        ("/usr/bin/save", "all of it"),
        type="oneshot",
        timeout_sec=3600,
        description="To the other house",
    )
    yield Service("report", ("/usr/bin/report",), type="oneshot")
    yield Service("poll", ("/usr/bin/poll",), type="oneshot", description="Fetches the mail")
    yield Service("certificates", ("/usr/bin/renew",), type="oneshot")
    yield Service("mail", ("/usr/bin/mail",), enabled=False, description="Switched off for now")
    yield Service(EVIL, ("/bin/true",), type="oneshot", description=f"{EVIL} {ESCAPES}")
    yield Service(TURNED, ("/bin/true",), type="oneshot")
    for number in range(count):
        yield Service(
            f"job-{number:04}",
            ("/bin/job", str(number)),
            type="oneshot",
            description=f"Customer {number % 97}",
        )


def _timers(count: int) -> Iterator[Timer]:
    yield Timer(
        "backup", "backup", on_calendar=(Calendar(minute=(30,), hour=(3, 15)),), description="Twice a day"
    )
    yield Timer("report", "report", on_calendar=(Calendar(minute=(0,)),))
    yield Timer("poll", "poll", on_calendar=(Calendar(minute=tuple(range(0, 60, 5))),))
    yield Timer(
        "certificates", "certificates", on_calendar=(Calendar(minute=(0,), hour=(4,), day_of_week=(1,)),)
    )
    yield Timer("digest", "report", enabled=False, on_unit_active_sec=300)
    yield Timer(EVIL, EVIL, on_calendar=(Calendar(minute=(7,), hour=(7,)),), description=EVIL)
    for number in range(count):
        yield Timer(
            f"job-{number:04}",
            f"job-{number:04}",
            on_calendar=(Calendar(minute=(number % 60,), hour=(number % 24,)),),
        )


def config_of(jobs: int = 0, *, timers: bool = True) -> Config:
    """The configuration of the world, with that many more services, each with a timer."""
    return Config(
        Path("duly.toml"),
        Settings(timers=timers, timezone="Europe/Berlin"),
        services=tuple(_services(jobs)),
        timers=tuple(_timers(jobs)),
        invalid=(
            Invalid("timer", "nightly", 5, 'target "nightli" is no service; did you mean nightly?', 41),
            Invalid("service", EVIL, 9, f"command is empty {EVIL}", 80),
        ),
        warnings=(Warned("timer", "report", 1, "fires within the hour that summer time skips", 22),),
    )


class World:
    """A daemon's face (`daemon.backend.Backend`) and a site over it, told by hand."""

    is_read_only = False
    tasks = None
    metrics = None

    def __init__(self, jobs: int = 0, *, boot: str = "world") -> None:
        self.name = "workshop"
        self.config = config_of(jobs)
        self.history: History = LooseHistory()
        self.live = Live(boot)
        self.is_timer_switch_on = True
        self.faults: tuple[str, ...] = ()
        self.state = "running"
        self.began_us = now_us() - 30 * HOUR_US
        self.states: dict[str, views.ServiceSnapshot] = {}
        self.snapshots: dict[str, views.TimerSnapshot] = {}
        self.outputs: dict[int, Tail] = {}
        self.did: list[tuple[Any, ...]] = []
        self.violations = 0
        self.unwatched = ""
        self.elsewhere: list[RemoteRun] = []
        """Runs in the database, newest first."""
        self.machines: Nodes | None = None
        self.fault: OperationError | None = None
        """Why those cannot be asked for, if so."""
        self._last_id = 0

    @property
    def backend(self) -> "World":
        """Itself."""
        return self

    @property
    def observed(self) -> "World":
        """Itself."""
        return self

    def verification(self) -> Sequence[PropertyVerdict] | None:
        """What the monitor says."""
        return [
            PropertyVerdict("V1", "holds", 0, "every slot of an enabled timer is answered within a minute"),
            PropertyVerdict("V2", "holds", 0, "a firing answers something"),
            PropertyVerdict(
                "V3", "violated" if self.violations else "holds", self.violations, "no slot is answered twice"
            ),
            PropertyVerdict("V4", "unknown", 0, "runs of one target never overlap"),
        ]

    def unready(self) -> str | None:
        """It always is."""
        return None

    # --- what it shows ---

    def daemon_status(self) -> views.DaemonStatus:
        """How it is."""
        return views.DaemonStatus(
            source="daemon",
            now_us=now_us(),
            zone=ZoneInfo("Europe/Berlin"),
            version="9.9",
            state=self.state,
            is_timer_switch_on=self.is_timer_switch_on,
            pid=1234,
            started_us=self.began_us,
            faults=self.faults,
            config="duly.toml",
            store="duly.db",
            socket="duly.sock",
        )

    def services(self) -> Sequence[views.ServiceSnapshot]:
        return list(self.states.values())

    def timers(self) -> Mapping[str, views.TimerSnapshot] | None:
        return dict(self.snapshots) if self.is_timer_switch_on else None

    async def refresh(self) -> None:
        """Nothing: all is known, unless the database is away."""
        if self.fault is not None:
            raise self.fault

    async def past_runs(self, wanted: WantedRuns, /) -> list[RemoteRun]:
        """The runs in the database that fit."""
        if self.fault is not None:
            raise self.fault
        return wanted_of(self.elsewhere, wanted)

    async def past_buckets(self, timers: Sequence[str], span: Span, /) -> list[RunBucket] | None:
        """The runs in the database, counted; it has those of this machine, too."""
        if self.fault is not None:
            raise self.fault
        if not self.elsewhere:
            return None
        ended = [row for row in await self.history.runs(limit=99_999) if row.ended_us is not None]
        copies = [msgspec.structs.replace(row, service=row.timer or "") for row in ended]
        return counted_runs([*self.elsewhere, *copies], set(timers), span)

    async def nodes(self) -> Nodes | None:
        """The machines that share its timers."""
        if self.fault is not None:
            raise self.fault
        return self.machines

    def output(self, run_id: int, /) -> Tail | None:
        """The output of a run under way."""
        return self.outputs.get(run_id)

    async def ended(self, run_id: int, /) -> None:
        """Nobody waits here."""

    # --- what it does ---

    async def start_service(self, service_id: str, /) -> int:
        if service_id == "queue":
            raise OperationError(FAILED, f"{service_id} was not started: it is cursed")
        self.did.append(("start", service_id))
        return await self.run_began(service_id, "manual")

    async def stop_service(self, service_id: str, /) -> None:
        self.did.append(("stop", service_id))
        self.states[service_id] = views.ServiceSnapshot(id=service_id, state="stopped", since_us=now_us())
        self.emit("ServiceRunEnded", service=service_id)

    async def trigger(self, timer_id: str, /) -> int:
        """Fire a timer."""
        self.did.append(("trigger", timer_id))
        target = next(timer.target for timer in self.config.timers if timer.id == timer_id)
        return await self.run_began(target, "trigger", timer=timer_id)

    async def switch_timer(self, timer_id: str, /, *, enabled: bool) -> None:
        """Enable or disable a timer."""
        self.did.append(("switch", timer_id, enabled))
        self.snapshots[timer_id] = msgspec.structs.replace(self.snapshots[timer_id], enabled_override=enabled)
        self.emit("TimerOverridden", timer=timer_id)

    async def set_timer_switch(self, *, is_open: bool) -> None:
        """Switch the timers on or off."""
        self.is_timer_switch_on = is_open

    async def reload(self, *, allow_empty: bool = False) -> Reloaded:
        """Nothing changes."""
        return Reloaded(added=[], changed=[], removed=[], unchanged=0, invalid=[], need_restart=[])

    def shut_down(self) -> None:
        """Never asked here."""
        self.did.append(("shut down",))

    def emit_action(self, action: str, id: str | None, who: str, /) -> None:  # noqa: A002
        """Tell that somebody did something."""
        self.did.append(("noted", action, id))
        self.emit("OperatorAction", action=action, id=id, who=who)

    # --- what happens to it ---

    def emit(self, name: str, **fields: Any) -> None:
        """Announce an event."""
        self.live.publish(name, datetime.now(UTC).isoformat(), fields)  # noqa: TID251 (as above)

    async def run_began(self, service: str, reason: str, *, timer: str | None = None) -> int:
        """A run begins."""
        self._last_id += 1
        row = RunRow(
            id=self._last_id,
            service=service,
            timer=timer,
            reason=reason,
            scheduled_us=now_us() - 40_000 if timer else None,
            started_us=now_us(),
            pid=4000 + self._last_id,
        )
        self.outputs[row.id] = Tail(64 * 1024)
        self.states[service] = views.ServiceSnapshot(
            id=service, state="running", since_us=row.started_us, pid=row.pid, last_run=row
        )
        await self.history.put([row], [])
        self.emit("ServiceRunStarted", service=service, runId=row.id)
        return row.id

    async def run_ended(self, run_id: int, result: str = "success", exit_code: int | None = 0) -> None:
        row = await self.history.run(run_id)
        assert row is not None
        output = self.outputs.pop(run_id)
        row = msgspec.structs.replace(
            row,
            ended_us=now_us(),
            result=result,
            exit_code=exit_code,
            output=output.text(),
            output_lost=output.lost_bytes,
        )
        state = "done" if result == "success" else "failed"
        self.states[row.service] = views.ServiceSnapshot(
            id=row.service,
            state=state,
            since_us=row.ended_us,
            last_run=row,
            reason="" if state == "done" else "exited with code 3",
        )
        await self.history.put([row], [])
        self.emit("ServiceRunEnded", service=row.service, runId=run_id, result=result)

    async def fill(self) -> None:
        """Give it a past and a present."""
        runs = sorted(_past(self.began_us, now_us()), key=lambda row: row.started_us)
        runs = [msgspec.structs.replace(row, id=number) for number, row in enumerate(runs, 1)]
        self._last_id = len(runs)
        await self.history.put(runs, _missed(now_us()))
        last, past = {row.service: row for row in runs}, dict[str, Past]()
        for row in runs:
            past[row.service] = past.get(row.service, Past()).after(row)
        for service in self.config.services:
            self.states[service.id] = _state(service, last.get(service.id), past.get(service.id, Past()))
        self.states["queue"] = views.ServiceSnapshot(
            id="queue",
            state="failed",
            since_us=now_us() - 3 * HOUR_US,
            restarts=5,
            reason="exited with code 1, five times in a minute",
            last_run=last["queue"],
            past=past["queue"],
        )
        for row in runs:
            if row.ended_us is None:
                self.outputs[row.id] = Tail(64 * 1024)
                self.outputs[row.id].write(b"listening on port 8080\nGET / 200\nGET /style.css 200\n")
        for number, timer in enumerate(self.config.timers):
            self.snapshots[timer.id] = _snapshot(timer, last.get(timer.target), number)


def far_run(world: World, number: int, timer: str = "poll", **facts: Any) -> RemoteRun:
    """Give a world a run of a shared timer on another machine, a minute ago."""
    started_us = now_us() - MINUTE_US
    run = RemoteRun(
        id=number,
        machine="far:9",
        shared_id=number,
        service=timer,
        timer=timer,
        reason="schedule",
        scheduled_us=started_us - 250_000,
        started_us=started_us,
        ended_us=started_us + 1_000_000,
        result="exit",
        message="exited with code 3",
        output="far away\n",
    )
    world.elsewhere = [msgspec.structs.replace(run, **facts)]
    return world.elsewhere[0]


def nodes(far: str) -> Nodes:
    """A machine, another one that runs something, a silent one, and one that was fenced."""
    at_us = now_us()
    here = NodeView(
        node=1,
        name="workshop:1",
        beat=9,
        lease_us=12_000_000,
        version="9.9",
        lag_us=4_000,
        joined_us=at_us - 30 * HOUR_US,
        seen_us=at_us - 1_000_000,
        fenced_us=None,
        fenced_by=None,
        runs=[],
    )
    silent = here._replace(node=3, name="attic:3", seen_us=at_us - 20_000_000, runs=["backup"])
    fenced = here._replace(
        node=4, name="cellar:4", fenced_us=at_us - HOUR_US, fenced_by="workshop:1", runs=["certificates"]
    )
    return Nodes(at_us, [here, here._replace(node=2, name=far, runs=["poll", EVIL]), silent, fenced])


def _past(began_us: int, until_us: int) -> Iterator[RunRow]:
    """What ran in the last day, in no order."""
    for service in ("web", "database"):
        yield RunRow(id=0, service=service, reason="boot", started_us=began_us, pid=77)
    yield RunRow(
        id=0,
        service="queue",
        reason="boot",
        started_us=began_us,
        ended_us=until_us - 3 * HOUR_US,
        result="exit",
        exit_code=1,
        output="panic: no room\n",
    )
    midnight_us = until_us - until_us % DAY_US - 8 * DAY_US
    for number, at_us in enumerate(range(midnight_us, until_us, 12 * HOUR_US)):
        began = at_us + 3 * HOUR_US + 30 * MINUTE_US
        if began < until_us:
            yield _run("backup", began, 24 * MINUTE_US + number % 5 * 3 * MINUTE_US, late_us=120_000)
    for number, at_us in enumerate(range(until_us - until_us % HOUR_US - 40 * HOUR_US, until_us, HOUR_US)):
        is_bad = number % 9 == 4
        yield _run(
            "report",
            at_us,
            40_000_000 + number % 7 * 5_000_000,
            result="exit" if is_bad else "success",
            code=3 if is_bad else 0,
        )
        if is_bad:
            yield _run("report", at_us + 2 * MINUTE_US, 35_000_000, reason="retry")
    for number, at_us in enumerate(
        range(until_us - until_us % (5 * MINUTE_US) - DAY_US, until_us, 5 * MINUTE_US)
    ):
        yield _run(
            "poll",
            at_us,
            300_000 + number % 11 * 40_000,
            result="timeout" if number % 97 == 50 else "success",
            code=0,
        )
    yield _run(EVIL, until_us - 5 * HOUR_US, 2_000_000, output=ESCAPES * 3)
    yield _run(TURNED, until_us - 6 * HOUR_US, 10 * MINUTE_US, result="interrupted", code=None)


def _run(
    service: str,
    at_us: int,
    lasts_us: int,
    *,
    result: str = "success",
    code: int | None = 0,
    reason: str = "schedule",
    late_us: int = 8_000,
    output: str = "12 things done\nall of them well\n",
) -> RunRow:
    return RunRow(
        id=0,
        service=service,
        timer=service,
        reason=reason,
        scheduled_us=at_us if reason == "schedule" else None,
        started_us=at_us + late_us,
        ended_us=at_us + late_us + lasts_us,
        result=result,
        exit_code=code if result in {"success", "exit"} else None,
        message="exited with code 3" if code == 3 else "",
        output=output,
    )


def _missed(until_us: int) -> list[MissRow]:
    hour_us = until_us - until_us % HOUR_US
    return [
        MissRow("report", hour_us - 30 * HOUR_US, "shutdown"),
        MissRow("backup", hour_us - 9 * HOUR_US - 30 * MINUTE_US, "overlap"),
        MissRow("certificates", hour_us - 7 * HOUR_US, "disabled-target"),
    ]


def _state(service: Service, last: RunRow | None, past: Past) -> views.ServiceSnapshot:
    if last is None:
        return views.ServiceSnapshot(id=service.id, state="stopped")
    is_running = last.ended_us is None
    state = "running" if is_running else "done" if last.result == "success" else "failed"
    since_us = last.started_us if is_running else last.ended_us
    return views.ServiceSnapshot(
        id=service.id,
        state=state,
        since_us=since_us,
        pid=last.pid if is_running else None,
        last_run=last,
        past=past,
    )


def _snapshot(timer: Timer, last: RunRow | None, number: int) -> views.TimerSnapshot:
    base_us = now_us()
    return views.TimerSnapshot(
        registered_us=base_us - 20 * DAY_US,
        answered_us=base_us,
        next_us=base_us + (number % 50 + 1) * 7 * MINUTE_US if timer.enabled else None,
        last_run_us=None if last is None else last.started_us,
        last_success_us=None if last is None else last.ended_us,
        last_result=None if last is None else last.result,
        last_exit=None if last is None else last.exit_code,
        last_missed_us=base_us - 9 * HOUR_US if timer.id == "backup" else None,
        last_miss_reason="overlap" if timer.id == "backup" else None,
        retry_attempt=1 if timer.id == "certificates" else 0,
        retry_at_us=base_us + 5 * HOUR_US if timer.id == "certificates" else None,
    )


class Served:
    """A world behind a real server; its loop runs in another thread."""

    def __init__(self, world: Any, loop: asyncio.AbstractEventLoop, settings: WebSettings) -> None:
        self.world = world
        self.settings = settings
        self._loop = loop
        self._server: WebServer | None = None
        self.url = ""

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Have the loop do something, and wait for it."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(60)

    def call(self, what: Callable[[], T]) -> T:
        """Have the loop call something, and wait for it."""

        async def called() -> T:
            return what()

        return self.do(called())

    def start(self) -> None:
        """Begin to serve; at the same place as before, if it was somewhere."""

        async def begun() -> WebServer:
            server = WebServer(self.world, self.settings)
            await server.start()
            return server

        self._server = self.do(begun())
        self.url = self._server.url.rstrip("/")
        self.settings = replace(self.settings, listen=self.url.removeprefix("http://"))

    def stop(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self.do(self._server.close())
            self._server = None


@contextmanager
def served(world: Any, settings: WebSettings | None = None) -> Iterator[Served]:
    """A world behind a real server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server of a test")
    thread.start()
    found = Served(world, loop, settings or WebSettings(listen="127.0.0.1:0"))
    try:
        if isinstance(world, World):
            found.do(world.fill())
        found.start()
        yield found
    finally:
        found.stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def library(store: Path, trace: Path | None = None) -> None:
    """Leave the store, and the trace, of a scheduler of the library: two tasks ran, one of them failed."""
    done = asyncio.Event()

    async def works() -> None:
        done.set()

    async def fails() -> None:
        await done.wait()
        raise RuntimeError("no")

    scheduler = Scheduler(str(store))
    if trace is not None:
        scheduler = Recorder(trace).wrap(scheduler)
    tasks: list[Any] = [
        ("works", "* * * * *", works, timedelta(minutes=5)),
        ("fails", "* * * * *", fails, timedelta(minutes=5)),
        (EVIL, "0 4 1 1 *", works, timedelta(0)),
        ("..", "30 3 * * 1-5", works, timedelta(0)),
    ]
    await scheduler.initialize(tasks)
    await done.wait()
    await scheduler.stop()


@contextmanager
def served_library(folder: Path, *, with_trace: bool = True) -> Iterator[Served]:
    """The store of a scheduler of the library behind a real server."""
    store, trace = folder / "state.db", folder / "trace.jsonl" if with_trace else None
    asyncio.run(library(store, trace))
    with served_store(store, trace) as found:
        yield found


@contextmanager
def served_store(store: Path, trace: Path | None = None) -> Iterator[Served]:
    """The store of a program behind a real server."""
    tasks = TaskStore(
        store,
        Live("library"),
        zone=ZoneInfo("Europe/Berlin"),
        clock=HostClock(),
        trace=trace,
        answers=lambda task, _now_us, _at: [("answered", f'"{task.name}" was due, and a run answered it.')],
    )
    with served(store_site(store.name, tasks)) as found:
        watching = found.call(lambda: asyncio.get_running_loop().create_task(tasks.watch()))
        yield found

        async def over() -> None:
            watching.cancel()
            await asyncio.wait([watching])
            await tasks.close()

        found.do(over())


class Mounted:
    """An App in a program of its own loop, whose server has the dashboard at /jobs."""

    def __init__(self, store: Path) -> None:
        self._app = App(str(store), timezone="Europe/Berlin")
        for name, body, options in (
            ("send_mail", self._succeeds, {"tags": ["mail"]}),
            ("import_prices", self._fails, {}),
            ("old_report", self._succeeds, {"enabled": False}),
        ):
            self._app.declare(body, "0 4 1 1 *", name=name, **options)
        self._app.kind(name="letter")(self._letter)
        self.url = ""

    async def _succeeds(self) -> None:
        return

    async def _fails(self) -> None:
        raise ConnectionError("no such shop")

    async def _letter(self, to: str) -> None:
        assert to

    async def serve(self, listening: socket.socket, started: "queue.Queue[Callable[[], None]]") -> None:
        """Serve until what is put into *started* is called."""
        async with self._app as app:
            for name in ("send_mail", "import_prices", "import_prices"):
                with suppress(ConnectionError):
                    await (await app.run_now(name))
            await app.add("letter-7", kind="letter", schedule=every("1h"), args={"to": "Ada"})
        async with self._app:  # what ran is in the file now
            api = Starlette(routes=[Mount("/jobs", self._app.dashboard())])
            server = uvicorn.Server(uvicorn.Config(api, log_config=None, lifespan="off"))
            started.put(partial(setattr, server, "should_exit", True))
            await server.serve([listening])


@contextmanager
def served_app(folder: Path) -> Iterator[Mounted]:
    """An App whose dashboard another program has mounted."""
    found, started = Mounted(folder / "shop.db"), queue.Queue[Callable[[], None]]()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found.url = f"http://127.0.0.1:{listening.getsockname()[1]}/jobs"
        thread = threading.Thread(target=asyncio.run, args=(found.serve(listening, started),))
        thread.start()
        end = started.get(timeout=60)
        try:
            yield found
        finally:
            end()
            thread.join(60)
