"""A small daemon for tests of what surrounds it: definitions, states and rows by hand, and a real socket."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from duly.config.schema import Calendar, Config, Invalid, Service, Settings, Timer
from duly.daemon import views
from duly.daemon.backend import Reloaded
from duly.daemon.protocol import FAILED, OperationError
from duly.daemon.server import Server
from duly.instant import SECOND_US, instant_of
from duly.processes.output import Tail
from duly.store.history import History, MissRow, RemoteRun, RunBucket, RunRow, Span, WantedRuns
from duly.web.task_source import counted_runs
from tests.worlds.histories import LooseHistory


def us(text: str) -> int:
    """The instant of a UTC time of 2026-01-01 ("12:34"), or of any day."""
    if len(text) <= len("HH:MM:SS"):
        text = f"2026-01-01 {text}"
    return instant_of(datetime.fromisoformat(text).replace(tzinfo=UTC))


NOW_US = us("12:00")

CONFIG = Config(
    Path("duly.toml"),
    Settings(timers=True, timezone="UTC"),
    services=(
        Service("web", ("serve",), description="The site"),
        Service("backup", ("save", "all"), type="oneshot", env={"TOKEN": "secret"}),
        Service("mail", ("send",), type="oneshot", enabled=False),
    ),
    timers=(
        Timer("backup", "backup", on_calendar=(Calendar(minute=(30,), hour=(3,)),)),
        Timer("poll", "mail", enabled=False, on_unit_active_sec=300, on_startup_sec=5),
    ),
    invalid=(Invalid("timer", "bad", 2, 'target "nope" is no service', 40),),
)

SERVICES = (
    views.ServiceSnapshot(id="web", state="running", since_us=us("11:00"), pid=77, restarts=2),
    views.ServiceSnapshot(
        id="backup",
        state="failed",
        since_us=us("03:31"),
        reason="exited with code 3",
        last_run=RunRow(
            id=4,
            service="backup",
            timer="backup",
            reason="schedule",
            scheduled_us=us("03:30"),
            started_us=us("03:30"),
            ended_us=us("03:31"),
            result="exit",
            exit_code=3,
        ),
    ),
    views.ServiceSnapshot(id="mail", state="stopped"),
)

TIMERS = {
    "backup": views.TimerSnapshot(
        registered_us=us("2025-12-01 00:00"),
        answered_us=us("03:30"),
        next_us=us("2026-01-02 03:30"),
        last_run_us=us("03:30"),
        last_failure_us=us("03:31"),
        last_exit=3,
        last_result="exit",
        retry_attempt=1,
        retry_at_us=us("12:02"),
    ),
    "poll": views.TimerSnapshot(
        registered_us=us("2025-12-01 00:00"),
        answered_us=us("11:58"),
        last_missed_us=us("11:55"),
        last_miss_reason="overlap",
        startup_triggered=True,
    ),
}


class FakeDaemon:
    """What operations need of a daemon (`daemon.backend.Backend`), told by hand."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.config = config
        self.history: History = LooseHistory()
        self.snapshots: Mapping[str, views.TimerSnapshot] | None = TIMERS
        self.did: list[tuple[Any, ...]] = []
        self.outputs: dict[int, Tail] = {}
        self.endings: dict[int, asyncio.Event] = {}
        self.faults: tuple[str, ...] = ()
        self.hold: asyncio.Event | None = None
        """What an action waits for, if it is there."""
        self.is_holding = asyncio.Event()
        self.elsewhere: list[RemoteRun] = []
        """Runs in the database, newest first."""
        self.fault: OperationError | None = None
        """Why those cannot be asked for, if so."""

    def daemon_status(self) -> views.DaemonStatus:
        """How it is."""
        return views.DaemonStatus(
            source="daemon",
            now_us=NOW_US,
            zone=UTC,
            version="9.9",
            state="running",
            is_timer_switch_on=self.snapshots is not None,
            pid=1234,
            started_us=us("08:55"),
            faults=self.faults,
            config=str(self.config.path),
            store="duly.db",
            socket="duly.sock",
        )

    def services(self) -> Sequence[views.ServiceSnapshot]:
        return SERVICES

    def timers(self) -> Mapping[str, views.TimerSnapshot] | None:
        return self.snapshots

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
        """The runs in the database, counted; None if there are none."""
        return counted_runs(self.elsewhere, set(timers), span) if self.elsewhere else None

    async def nodes(self) -> None:
        """Nobody shares its timers."""

    def output(self, run_id: int, /) -> Tail | None:
        """The output of a run under way."""
        return self.outputs.get(run_id)

    async def ended(self, run_id: int, /) -> None:
        """Return once a run has ended."""
        await self.endings.setdefault(run_id, asyncio.Event()).wait()

    async def start_service(self, service_id: str, /) -> int:
        if self.hold is not None:
            self.is_holding.set()
            await self.hold.wait()
        if service_id == "web":
            raise OperationError(FAILED, "web is active already", service="web")
        self.did.append(("start", service_id))
        ended = RunRow(
            id=41,
            service=service_id,
            reason="manual",
            started_us=NOW_US,
            ended_us=NOW_US + 2_000_000,
            result="success",
            exit_code=0,
            output="saved\n",
        )
        await self.history.put([ended], [])
        return 41

    async def stop_service(self, service_id: str, /) -> None:
        self.did.append(("stop", service_id))

    async def trigger(self, timer_id: str, /) -> int:
        """Fire a timer."""
        self.did.append(("trigger", timer_id))
        ended = RunRow(
            id=42,
            service="backup",
            timer=timer_id,
            reason="trigger",
            started_us=NOW_US,
            ended_us=NOW_US,
            result="exit",
            exit_code=5,
            message="exited with code 5",
        )
        await self.history.put([ended], [])
        return 42

    async def switch_timer(self, timer_id: str, /, *, enabled: bool) -> None:
        """Enable or disable a timer."""
        self.did.append(("switch", timer_id, enabled))

    async def set_timer_switch(self, *, is_open: bool) -> None:
        """Switch the timers on or off."""
        self.snapshots = TIMERS if is_open else None

    async def reload(self, *, allow_empty: bool = False) -> Reloaded:
        """Read the file again."""
        self.did.append(("reload",))
        invalid = views.invalid_json(self.config)
        return Reloaded(
            added=["timer new"], changed=[], removed=[], unchanged=4, invalid=invalid, need_restart=["store"]
        )

    def shut_down(self) -> None:
        """Begin to end."""
        self.did.append(("shut down",))

    def emit_action(self, action: str, id: str | None, who: str, /) -> None:  # noqa: A002
        """Tell that somebody did something."""
        self.did.append(("noted", action, id, who.partition(" ")[0]))


def wanted_of(runs: Sequence[RemoteRun], wanted: WantedRuns) -> list[RemoteRun]:
    """Those of the *runs* of all machines, newest first, that a database would answer with."""
    places = {run.shared_id: place for place, run in enumerate(runs, 1)}
    found = runs if wanted.before is None else runs[places.get(wanted.before, len(runs)) :]
    found = [run for run in found if wanted.run in {None, (run.machine, run.id)}]
    found = [run for run in found if wanted.timers is None or run.timer in wanted.timers]
    found = [run for run in found if wanted.before_us is None or run.started_us < wanted.before_us]
    return [run for run in found if run.started_us >= (wanted.since_us or 0)][: wanted.limit]


def elsewhere(number: int, timer: str, at: str, **facts: Any) -> RemoteRun:
    """A run of a minute on another machine, at a time of 2026-01-01."""
    started_us = us(at)
    run = RemoteRun(
        id=number,
        machine="far:9",
        shared_id=number,
        service=timer,
        timer=timer,
        reason="schedule",
        scheduled_us=started_us,
        started_us=started_us,
        ended_us=started_us + 60 * SECOND_US,
        result="success",
        exit_code=0,
    )
    return msgspec.structs.replace(run, **facts)


RUNS = (
    RunRow(
        id=1,
        service="backup",
        timer="backup",
        reason="schedule",
        scheduled_us=us("2025-12-31 03:30"),
        started_us=us("2025-12-31 03:30"),
        ended_us=us("2025-12-31 03:35"),
        result="success",
        exit_code=0,
        output="one\ntwo\nthree\n",
        output_lost=10,
    ),
    RunRow(id=2, service="web", reason="boot", started_us=us("11:00"), pid=77),
    SERVICES[1].last_run,
)
MISSES = (MissRow("poll", us("11:55"), "overlap"),)


@contextmanager
def listening(
    path: Path, daemon: FakeDaemon, prepare: Callable[[FakeDaemon], None] = lambda _: None
) -> Iterator[asyncio.AbstractEventLoop]:
    """A daemon that listens at *path*, in a thread with a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="daemon of a test")
    thread.start()
    server = Server(path, daemon)

    async def begin() -> None:
        await daemon.history.put([row for row in RUNS if row is not None], MISSES)
        prepare(daemon)
        await server.start()

    try:
        asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
        yield loop
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
