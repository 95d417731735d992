"""The daemon: one store, one supervisor, one timer switch, one socket, and their order.

The store is held before anything else, so of two daemons on one store the second does nothing at all. What a
dead daemon left running is ended before anything starts. The socket answers from then on, also while services
come up. Timers start when start-up is complete, and end before the services do.
"""

import asyncio
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import partial
from itertools import chain
from typing import TypeVar

from duly import __version__
from duly.background import first_done
from duly.clock import Clock, pause, watchable
from duly.cluster.table import Nodes
from duly.config import Config, Service
from duly.config.loading import load_to_run
from duly.config.plan import changes, merged_config, settings_that_wait
from duly.config.schema import (
    ConfigError,
    FileFault,
    config_zone,
    socket_path,
    starts_at_boot,
    store_path,
)
from duly.daemon import views
from duly.daemon.acceptor import shortage_text
from duly.daemon.backend import DashboardServer, Reloaded
from duly.daemon.file_watch import FileWatch
from duly.daemon.health import OpenFaults
from duly.daemon.notifications import Notifications
from duly.daemon.protocol import BUSY, FAILED, INVALID_CONFIGURATION, OperationError
from duly.daemon.pruner import Pruner
from duly.daemon.server import Server
from duly.daemon.sharing import Sharing
from duly.daemon.timer_switch import TimerSwitch, as_operation
from duly.errors import StoreError
from duly.events import Announcer, Listener, described
from duly.instant import Instant, back_off, instant_of
from duly.processes.output import Tail
from duly.processes.process import Processes
from duly.store.history import History, RemoteRun, Result, RunBucket, RunRow, Span, WantedRuns
from duly.store.sqlite import OnWrite, SQLiteStore
from duly.supervisor.services import ServiceView
from duly.supervisor.supervisor import Supervisor
from duly.threads import in_thread

T = TypeVar("T")

_FIRST_PAUSE_S = 1
_LONGEST_PAUSE_S = 16
_EMPTY = "defines no service any more; if everything is to end: duly reload --allow-empty"


class Daemon:
    """Runs what *config* declares until it is told to end.

    *timers* overrides what the file says of the timer switch. *sharing* is what it has in common with other
    machines. *load* brings the configuration of a reload; by default that of the file.
    *loading* is entered while the file is read again: a Python file may start programs, and their exits are
    its own to take.
    """

    def __init__(
        self,
        config: Config,
        processes: Processes,
        *,
        clock: Clock | None = None,
        listeners: Iterable[Listener] = (),
        timers: bool | None = None,
        sharing: Sharing | None = None,
        load: Callable[[], Config] | None = None,
        loading: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.config = config
        self._load = load or partial(load_to_run, config.path)
        self._loading = loading
        self._clock = watchable(clock)
        self._faults = OpenFaults()
        self._announcer = Announcer([self._faults.listener, *listeners], self._clock.now)
        self._announce = self._announcer.announce
        self._store = SQLiteStore(store_path(config))
        self.history = History(self._store, self._clock, self._announcer)
        # While timers are off nothing of theirs is written: misses are left alone.
        self._pruner = Pruner(
            self.history,
            self._clock,
            self._announcer,
            lambda: (self.config.settings, self._may_have_timers()),
        )
        self._sharing = sharing
        self._zone = config_zone(config)
        self._wants_timers = config.settings.timers if timers is None else timers
        self._server = Server(socket_path(config), self, on_shortage=partial(self.emit_shortage, "socket"))
        self._supervisor = supervisor = Supervisor(
            processes, self.history, self._clock, self._announcer, settings=config.settings
        )
        self._timer_switch = TimerSwitch(
            self._store,
            supervisor,
            self.history,
            clock=self._clock,
            announcer=self._announcer,
            sharing=sharing,
        )
        self._notifications = Notifications(
            self, supervisor.view, self._clock, self._announcer, zone=self._zone, loading=loading
        )
        # Held by start-up, reloads and the switching of timers: each sees the lists that the one before left.
        self._turn = asyncio.Lock()
        self._over = asyncio.Event()
        self._started_us: Instant | None = None
        self._is_started_up = False
        self._pruning: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self.on_started_up: list[Callable[[], None]] = []
        """Called when start-up, or a reload, is complete."""
        self.on_reloading: list[Callable[[], None]] = []
        self.on_stopping: list[Callable[[], None]] = []
        """Called when the end begins: a signal or a client asked for it."""
        self.on_run_started, self.on_run_ended = supervisor.on_run_started, supervisor.on_run_ended
        """Called for each run."""
        self.fault_sources: list[Callable[[], Iterable[str]]] = []
        """Asked for what else keeps all from being well, a sentence for each."""
        self.dashboards: list[DashboardServer] = []
        """Opened beside the socket, and closed before it."""
        self._dashboard = ""

    # --- its life ---

    async def run(self) -> None:
        """Start, serve until `shut_down`, stop. Raises StoreError, StoreInUseError, SocketError."""
        self._started_us = self._now_us()
        contents = await self._store.open(uuid.uuid4().hex)  # noqa: TID251 (the id of a new store)
        try:
            await self.history.open()
            await self._notifications.open()
            if self._sharing is not None and self._may_have_timers():
                await self._sharing.check(unless=self._over)
            if self._over.is_set():
                return
            self._supervisor.identify(contents.scheduler_id)
            async with AsyncExitStack() as opened:
                await self._server.start()
                opened.push_async_callback(self._server.close)
                for dashboard in self.dashboards:
                    await dashboard.start()
                    opened.push_async_callback(dashboard.close)
                await self._serve()
        finally:
            await self._let_go()

    async def _serve(self) -> None:
        self._announce_faults(self.config)
        starting = asyncio.create_task(self._start(), name="duly start-up")
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait([starting, over], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()  # raises what keeps it from starting at all
                await over
        finally:
            over.cancel()
            self._over.set()
            stopping = asyncio.create_task(self._supervisor.stop())
            # A call that holds the turn ends early, because the supervisor is stopping.
            await asyncio.wait([starting, stopping])
            # While the stop is under way: the timers wait for the runs that it cuts off, and write their
            # ends.
            await self._shut_timer_switch()
            await stopping

    async def _try_timer_switch(self) -> StoreError | None:
        """Set the timer switch at start-up; the fault, if the store does not let timers begin now."""
        try:
            await self._set_timer_switch(is_start_up=True)
        except StoreError as error:
            return error
        return None

    async def _switch_timers_on_later(self, fault: StoreError) -> None:
        """Let services run meanwhile: it is only the timers that cannot do without the store."""
        self._announce("StoreFault", error=described(fault))
        pause_s = _FIRST_PAUSE_S
        while True:
            await pause(self._clock, pause_s)
            pause_s = back_off(pause_s, _LONGEST_PAUSE_S)
            # A reload may be changing the timers at this moment.
            async with self._turn:
                if await self._try_timer_switch() is None:
                    self._announce("StoreRecovered", error=described(fault))
                    return

    async def _shut_timer_switch(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        try:
            async with self._turn:
                # In turn: a start-up or reload that holds it gives up, because the supervisor is stopping.
                await self._timer_switch.shut_down()
        except StoreError as error:
            self._announce("StoreFault", error=described(error))

    async def _start(self) -> None:
        async with self._turn:
            await self._supervisor.adopt()
            self._pruning = asyncio.create_task(self._pruner.run(), name="duly pruner")
            await self._watch_files()
            self._declare()
            await self._supervisor.start(self._services(), self._boot_ids())
            if not self._over.is_set() and (fault := await self._try_timer_switch()) is not None:
                self._opening = asyncio.create_task(
                    self._switch_timers_on_later(fault), name="duly timers wait"
                )
            self._is_started_up = True
            self._notifications.start()
            for listener in self.on_started_up:
                listener()

    async def _watch_files(self) -> None:
        """Begin to watch the files, if that is wanted and has not begun; it ends by itself."""
        if self.config.settings.watch and (self._watching is None or self._watching.done()):
            watch = FileWatch(lambda: self.config, partial(self.reload, is_patient=True), self._clock)
            await watch.begin()  # waited for: a change right after the start must not count as known
            self._watching = asyncio.create_task(watch.run(), name="duly file watch")

    async def _let_go(self) -> None:
        for task in (self._pruning, self._watching):
            if task is not None:
                task.cancel()
        await self._notifications.close()
        try:
            # Before the store, through which it writes.
            await self.history.close()
        except StoreError as error:
            # The rows that could not be written are lost; nothing that decides what runs is among them.
            self._announce("StoreFault", error=described(error))
        finally:
            await self._store.close()

    def shut_down(self) -> None:
        if not self._over.is_set():
            self._over.set()
            for listener in self.on_stopping:
                listener()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def hurry(self) -> None:
        """End what still runs at once."""
        self._supervisor.kill()

    def signal(self, number: int) -> None:
        self._supervisor.signal(number)

    def time_writes(self, on_write: OnWrite) -> None:
        self._store.on_write = on_write

    def add_variables(self, variables: Callable[[int, str], Mapping[str, str]]) -> None:
        """Have *variables* say what to add to the environment of each run, by its id and its service."""
        self._supervisor.add_variables(variables)

    # --- what it runs ---

    def _services(self) -> Sequence[Service]:
        return self.config.services if self.config.settings.enabled else ()

    def _boot_ids(self) -> frozenset[str]:
        targets = self.config.targets
        return frozenset(service.id for service in self._services() if starts_at_boot(service, targets))

    def _declare(self) -> None:
        """Write to the store what is declared, for `duly plan` when there is no daemon to ask."""
        self.history.record_services(
            {service.id: views.definition_text(service) for service in self.config.services}
        )

    async def _set_timer_switch(self, *, is_start_up: bool = False) -> None:
        started_us = self._supervisor.started_up_us
        if not self._may_have_timers() or self._over.is_set():
            await self._timer_switch.close()
        elif started_us is not None:
            await self._timer_switch.open(
                self.config.timers,
                self._zone,
                started_us,
                is_start_up=is_start_up,
                invalid=self._invalid_timers(),
            )

    def _invalid_timers(self) -> set[str]:
        return {bad.id for bad in self.config.invalid if bad.is_of("timer") and bad.id is not None}

    def _may_have_timers(self) -> bool:
        return self._wants_timers and self.config.settings.enabled

    def _announce_faults(self, config: Config) -> None:
        """Report what is wrong with a configuration that is run nevertheless."""
        for bad in config.invalid:
            file = {} if bad.file is None else {"file": bad.file}
            self._announce("EntryInvalid", kind=bad.kind, id=bad.id, reason=bad.reason, line=bad.line, **file)
        if config.exposed:
            self._announce("ConfigurationExposed", reason=config.exposed)

    async def set_timer_switch(self, *, is_open: bool) -> None:
        """Switch the timer subsystem on or off; while services come up, it takes effect when they are."""
        self._wants_timers = is_open
        # At once and without the turn, which a start-up that hangs may hold.
        if not is_open:
            await self._timer_switch.close()
        if self._is_started_up:
            async with self._turn:
                try:
                    await as_operation(self._set_timer_switch())
                except OperationError:
                    self._wants_timers = False
                    raise

    async def reload(self, *, allow_empty: bool = False, is_patient: bool = False) -> Reloaded:
        """Read the file again and apply it; an unusable one changes nothing. Raises OperationError.

        Unless *allow_empty*, one that defines nothing any more is unusable, too: perhaps it is being written.
        While services come up it has to wait for them, and one may hang; only who *is_patient* does.
        """
        if not self._is_started_up and not is_patient:
            waiting = [view.id for view in self.services() if view.state in {"starting", "running"}]
            named = f" ({', '.join(waiting[:5])})" if waiting else ""
            message = f"services are still coming up{named}; try again, or `duly stop ID` what hangs"
            raise OperationError(BUSY, message)
        async with self._turn:
            for listener in self.on_reloading:
                listener()
            try:
                return await as_operation(self._apply(await self._read(allow_empty=allow_empty)))
            except ConfigError as error:
                self._announce("ConfigurationRefused", error=error.message)
                raise OperationError(INVALID_CONFIGURATION, error.message) from error
            finally:
                # Also after a refusal: systemd knows that we are reloading and waits for the opposite
                # (sd_notify(3)).
                if not self._over.is_set():
                    for listener in self.on_started_up:
                        listener()

    async def _read(self, *, allow_empty: bool) -> Config:
        """Read the file again. A Python file can hang for ever; the daemon can end all the same."""
        with self._loading():
            reading = asyncio.ensure_future(in_thread(self._load)())
            # A thread cannot be killed: one whose file hangs is left behind, and the daemon ends without it.
            if reading not in await first_done(reading, asyncio.ensure_future(self._over.wait())):
                raise OperationError(FAILED, "the daemon is stopping; its file was not read to the end")
        read = reading.result()
        assert isinstance(read, Config)
        if self.config.services and not (read.services or read.invalid or allow_empty):
            raise ConfigError(read.path, [FileFault(_EMPTY)])
        return read

    async def _apply(self, read: Config) -> Reloaded:
        before = self.config
        plan = changes(before, read, read.invalid)
        after = merged_config(before, read, plan)
        if before.settings.timers != after.settings.timers:
            self._wants_timers = after.settings.timers
        self.config = after
        await self._watch_files()
        self._supervisor.settings = after.settings
        # Services before timers: the target of a new timer must be there when it fires.
        await self._supervisor.reload(self._services(), self._boot_ids())
        await self._set_timer_switch()
        await self._timer_switch.reload(after.timers, self._invalid_timers())
        self._declare()
        self._announce_faults(after)
        reload = Reloaded(
            added=list(map(str, plan.added)),
            changed=list(map(str, plan.changed)),
            removed=list(map(str, plan.removed)),
            unchanged=len(plan.unchanged),
            invalid=views.invalid_json(after),
            need_restart=settings_that_wait(before, read),
        )
        self._announce(
            "ConfigurationReloaded",
            added=reload.added,
            changed=reload.changed,
            removed=reload.removed,
            **({"needRestart": reload.need_restart} if reload.need_restart else {}),
        )
        return reload

    # --- what it shows (Backend) ---

    def daemon_status(self) -> views.DaemonStatus:
        return views.DaemonStatus(
            source="daemon",
            now_us=self._now_us(),
            zone=self._zone,
            version=__version__,
            state="stopping" if self._over.is_set() else "running" if self._is_started_up else "starting",
            is_timer_switch_on=self._timer_switch.is_open,
            pid=os.getpid(),
            started_us=self._started_us,
            faults=(
                *self._faults.sentences,
                *self._timer_switch.faults(),
                *self._notifications.faults(),
                *chain.from_iterable(ask() for ask in self.fault_sources),
            ),
            config=str(self.config.path),
            store=str(store_path(self.config)),
            socket=str(socket_path(self.config)),
            dashboard=self._dashboard,
        )

    def services(self) -> Sequence[ServiceView]:
        return self._supervisor.views()

    def timers(self) -> Mapping[str, views.TimerSnapshot] | None:
        return self._timer_switch.snapshots()

    async def refresh(self) -> None:
        await self._timer_switch.refresh()

    async def past_runs(self, wanted: WantedRuns) -> list[RemoteRun]:
        return await self._timer_switch.past_runs(wanted)

    async def past_buckets(self, timers: Sequence[str], span: Span) -> list[RunBucket] | None:
        return await self._timer_switch.past_buckets(timers, span)

    async def nodes(self) -> Nodes | None:
        return await self._timer_switch.nodes()

    def output(self, run_id: int) -> Tail | None:
        return self._supervisor.output_of(run_id)

    async def ended(self, run_id: int) -> None:
        ended = asyncio.Event()

        def look(row: RunRow) -> None:
            if row.id == run_id:
                ended.set()

        # Before it asks: a run that ends in between would never be seen.
        self.on_run_ended.append(look)
        try:
            if self._supervisor.outcome(run_id) == "running":
                await ended.wait()
        finally:
            self.on_run_ended.remove(look)

    # --- what it does when asked (Backend) ---

    async def start_service(self, service_id: str) -> int:
        run_id = await as_operation(self._supervisor.start_service(service_id))
        if self._supervisor.outcome(run_id) is Result.SPAWN_ERROR:
            row = await self.history.run(run_id)
            said = "its process could not be made" if row is None else row.message
            raise OperationError(FAILED, f"{service_id} was not started: {said}", run=run_id)
        return run_id

    async def stop_service(self, service_id: str) -> None:
        await as_operation(self._supervisor.stop_service(service_id))

    async def trigger(self, timer_id: str) -> int:
        return await self._timer_switch.trigger(timer_id)

    async def switch_timer(self, timer_id: str, *, enabled: bool) -> None:
        await self._timer_switch.switch(timer_id, enabled=enabled)

    def set_dashboard(self, url: str = "", *, fault: str = "") -> None:
        self._dashboard = url or fault
        if url:
            self._announce("DashboardStarted", url=url)
        else:
            self._announce("DashboardFault", error=fault)

    def emit_shortage(self, listener: str, error: OSError | None) -> None:
        if error is None:
            self._announce("ListenerRecovered", listener=listener)
        else:
            self._announce("ListenerFault", listener=listener, error=shortage_text(listener, error))

    def emit_action(self, action: str, id: str | None, who: str) -> None:  # noqa: A002 (the word for it)
        self._announce("OperatorAction", action=action, id=id, who=who)

    def _now_us(self) -> Instant:
        return instant_of(self._clock.now())
