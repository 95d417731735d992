"""The daemon: one store, one supervisor, one gate to the timers, one socket, and their order.

The store is held before anything else, so of two daemons on one store the second does nothing at all. What a
dead daemon left running is ended before anything starts. The socket answers from then on, also while services
come up. Timers start when start-up is complete, and end before the services do.
"""

import asyncio
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from datetime import tzinfo
from functools import partial
from itertools import chain
from typing import TypeVar
from zoneinfo import ZoneInfo

import tzlocal

from duly import __version__
from duly.clock import Clock, pause, watchable
from duly.config import Config, Service, socket_path, starts_at_boot, store_path
from duly.config.errors import ConfigError
from duly.config.loading import load_to_run
from duly.config.plan import changes
from duly.daemon import views
from duly.daemon.acceptor import shortage_text
from duly.daemon.backend import Begun, Door, Reloaded
from duly.daemon.faults import Faults, announce_config_faults
from duly.daemon.gate import Gate, answered
from duly.daemon.holding import Holding
from duly.daemon.protocol import BUSY, FAILED, INVALID_CONFIGURATION, OperationError
from duly.daemon.pruner import Pruner
from duly.daemon.reloading import merged, reloaded, settings_that_wait
from duly.daemon.server import Server
from duly.daemon.sharing import Sharing
from duly.errors import StoreError
from duly.events import Announcer, Listener, described
from duly.instant import Instant, instant_of
from duly.store.history import History, RunRow
from duly.store.sqlite import OnWrite, SQLiteStore
from duly.store.tables import SQLiteRows
from duly.supervisor.ended import Result
from duly.supervisor.output import Tail
from duly.supervisor.process import Processes
from duly.supervisor.supervisor import Supervisor
from duly.supervisor.views import ServiceView
from duly.threads import in_thread

T = TypeVar("T")

_FIRST_PAUSE_S = 1
_LONGEST_PAUSE_S = 16


class Daemon:
    """Runs what *config* declares until it is told to end.

    *timers* overrides what the file says of the gate. *sharing* is what it has in common with other machines.
    *loading* is entered while the file is read anew: a Python file may start programs, and their exits are
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
        loading: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.config = config
        self._loading = loading
        self._clock = watchable(clock)
        self._faults = Faults()
        self._announcer = Announcer([self._faults.listener, *listeners], self._clock.now)
        self._announce = self._announcer.announce
        self._store = SQLiteStore(store_path(config))
        self.history = History(SQLiteRows(self._store), self._clock, self._announcer)
        # While timers are off nothing of theirs is written: misses are left alone.
        self._pruner = Pruner(
            self.history,
            self._clock,
            self._announcer,
            lambda: (self.config.settings, self._may_have_timers()),
        )
        self._processes = processes
        self._sharing = sharing
        self._zone = _zone_of(config)
        self._wants_timers = config.settings.timers if timers is None else timers
        self._server = Server(socket_path(config), self, on_shortage=partial(self.note_shortage, "socket"))
        self._supervisor: Supervisor | None = None
        self._gate: Gate | None = None
        self._turn = asyncio.Lock()
        self._over = asyncio.Event()
        self._started_us: Instant | None = None
        self._is_started_up = False
        self._pruning: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self.on_started_up: list[Callable[[], None]] = []
        """Called when start-up, or a reload, is complete."""
        self.on_reloading: list[Callable[[], None]] = []
        self.on_stopping: list[Callable[[], None]] = []
        """Called when the end begins, whoever asked for it."""
        self.on_run_started: list[Callable[[RunRow], None]] = []
        self.on_run_ended: list[Callable[[RunRow], None]] = []
        self.fault_sources: list[Callable[[], Iterable[str]]] = []
        """Asked for what else keeps all from being well, a sentence for each."""
        self.doors: list[Door] = []
        """Opened beside the socket, and closed before it."""
        self._dashboard = ""

    # --- its life ---

    async def run(self) -> None:
        """Start, serve until `shut_down`, stop. Raises StoreError, StoreInUseError, SocketError."""
        self._started_us = self._now_us()
        contents = await self._store.open(uuid.uuid4().hex)  # noqa: TID251 (the id of a new store)
        try:
            await self.history.open()
            if self._sharing is not None and self._may_have_timers():
                await self._sharing.check(unless=self._over)
            if self._over.is_set():
                return
            self._supervisor = self._new_supervisor(contents.scheduler_id)
            self._gate = Gate(
                self._store,
                contents.scheduler_id,
                self._supervisor,
                self.history,
                clock=self._clock,
                announcer=self._announcer,
                sharing=self._sharing,
            )
            async with AsyncExitStack() as opened:
                for door in (self._server, *self.doors):
                    await door.start()
                    opened.push_async_callback(door.close)
                await self._serve(self._supervisor, self._gate)
        finally:
            await self._let_go()

    def _new_supervisor(self, scheduler_id: str) -> Supervisor:
        supervisor = Supervisor(
            self._processes,
            self.history,
            self._clock,
            self._announcer,
            scheduler_id=scheduler_id,
            settings=self.config.settings,
        )
        supervisor.on_run_started.append(self._note_start)
        supervisor.on_run_ended.append(self._note_end)
        return supervisor

    async def _serve(self, supervisor: Supervisor, gate: Gate) -> None:
        announce_config_faults(self.config, self._announce)
        starting = asyncio.create_task(self._start(supervisor), name="duly start-up")
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait([starting, over], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()  # raises what keeps it from starting at all
                await over
        finally:
            over.cancel()
            self._over.set()
            stopping = asyncio.create_task(supervisor.stop())
            # Whoever holds the turn ends early, because the supervisor is stopping.
            await asyncio.wait([starting, stopping])
            await self._shut_gate(gate)
            await stopping

    async def _try_gate(self) -> StoreError | None:
        """Set the gate at start-up; the fault, if the store does not let timers begin now."""
        try:
            await self._set_gate(is_start_up=True)
        except StoreError as error:
            return error
        return None

    async def _open_gate_later(self, fault: StoreError) -> None:
        """Let services run meanwhile: it is only the timers that cannot do without the store."""
        self._announce("StoreFault", error=described(fault))
        pause_s = _FIRST_PAUSE_S
        while True:
            await pause(self._clock, pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            async with self._turn:
                if await self._try_gate() is None:
                    self._announce("StoreRecovered", error=described(fault))
                    return

    async def _shut_gate(self, gate: Gate) -> None:
        if self._opening is not None:
            self._opening.cancel()
        try:
            async with self._turn:
                await gate.shut_down()
        except StoreError as error:
            self._announce("StoreFault", error=described(error))

    async def _start(self, supervisor: Supervisor) -> None:
        async with self._turn:
            await supervisor.adopt()
            self._pruning = asyncio.create_task(self._pruner.run(), name="duly pruner")
            self._declare()
            await supervisor.start(self._services(), self._boot_ids())
            if not self._over.is_set() and (fault := await self._try_gate()) is not None:
                self._opening = asyncio.create_task(self._open_gate_later(fault), name="duly timers wait")
            self._is_started_up = True
            for listener in self.on_started_up:
                listener()

    async def _let_go(self) -> None:
        if self._pruning is not None:
            self._pruning.cancel()
        try:
            await self.history.close()
        except StoreError as error:
            # The rows that could not be written are lost; nothing that decides what runs is among them.
            self._announce("StoreFault", error=described(error))
        finally:
            await self._store.close()

    def shut_down(self) -> None:
        """Begin to end."""
        if not self._over.is_set():
            self._over.set()
            for listener in self.on_stopping:
                listener()

    @property
    def is_over(self) -> bool:
        """Whether the end has begun."""
        return self._over.is_set()

    def hurry(self) -> None:
        """End what still runs at once."""
        if self._supervisor is not None:
            self._supervisor.kill()

    def signal(self, number: int) -> None:
        """Hand a signal on to the services that run."""
        if self._supervisor is not None:
            self._supervisor.signal(number)

    def time_writes(self, told: OnWrite) -> None:
        """Have *told* hear how long each write to the store takes."""
        self._store.on_write = told

    # --- what it runs ---

    def _services(self) -> Sequence[Service]:
        return self.config.services if self.config.settings.enabled else ()

    def _boot_ids(self) -> frozenset[str]:
        targets = self.config.targets
        return frozenset(service.id for service in self._services() if starts_at_boot(service, targets))

    def _declare(self) -> None:
        """Write to the store what is declared, for `duly plan` when there is no daemon to ask."""
        self.history.note_services(
            {service.id: views.definition_text(service) for service in self.config.services}
        )

    async def _set_gate(self, *, is_start_up: bool = False) -> None:
        assert self._gate is not None
        assert self._supervisor is not None
        started_us = self._supervisor.started_up_us
        if not self._may_have_timers() or self._over.is_set():
            await self._gate.close()
        elif started_us is not None:
            await self._gate.open(
                self.config.timers,
                self._zone,
                started_us,
                is_start_up=is_start_up,
                invalid=self._invalid_timers(),
            )

    def _invalid_timers(self) -> set[str]:
        return {bad.id for bad in self.config.invalid if bad.kind == "timer" and bad.id is not None}

    def _may_have_timers(self) -> bool:
        return self._wants_timers and self.config.settings.enabled

    async def switch_gate(self, *, is_open: bool) -> None:
        """Switch the timer subsystem on or off; while services come up, it takes effect when they are."""
        self._wants_timers = is_open
        if not is_open and self._gate is not None:
            await self._gate.close()
        if self._is_started_up:
            async with self._turn:
                try:
                    await answered(self._set_gate())
                except OperationError:
                    self._wants_timers = False
                    raise

    async def reload(self, *, is_patient: bool = False) -> Reloaded:
        """Read the file again and apply it; an unusable one changes nothing. Raises OperationError.

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
                return await answered(self._apply(await self._read()))
            except ConfigError as error:
                self._announce("ConfigurationRefused", error=error.message)
                raise OperationError(INVALID_CONFIGURATION, error.message) from error
            finally:
                if not self._over.is_set():
                    for listener in self.on_started_up:
                        listener()

    async def _read(self) -> Config:
        """The file, read anew. A Python file can hang for ever; that does not keep the daemon from ending."""
        with self._loading():
            reading = asyncio.ensure_future(in_thread(partial(load_to_run, self.config.path))())
            over = asyncio.ensure_future(self._over.wait())
            try:
                await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    raise OperationError(FAILED, "the daemon is stopping; its file was not read to the end")
                read = reading.result()
            finally:
                over.cancel()
                reading.cancel()
        assert isinstance(read, Config)
        return read

    async def _apply(self, read: Config) -> Reloaded:
        assert self._supervisor is not None
        assert self._gate is not None
        before = self.config
        plan = changes(before, read, read.invalid)
        after = merged(before, read, plan)
        if before.settings.timers != after.settings.timers:
            self._wants_timers = after.settings.timers
        self.config = after
        self._supervisor.settings = after.settings
        await self._supervisor.reload(self._services(), self._boot_ids())
        await self._set_gate()
        await self._gate.reload(after.timers, self._invalid_timers())
        self._declare()
        announce_config_faults(after, self._announce)
        told = reloaded(plan, after, waiting=settings_that_wait(before, read))
        self._announce(
            "ConfigurationReloaded",
            added=told.added,
            changed=told.changed,
            removed=told.removed,
            **({"needRestart": told.need_restart} if told.need_restart else {}),
        )
        return told

    # --- what it hears ---

    def _note_start(self, row: RunRow) -> None:
        for listener in self.on_run_started:
            listener(row)

    def _note_end(self, row: RunRow) -> None:
        for listener in self.on_run_ended:
            listener(row)

    # --- what it shows (Backend) ---

    def standing(self) -> views.Standing:
        """How it is, at this moment."""
        damaged = [] if self._gate is None else self._gate.faults()
        return views.Standing(
            source="daemon",
            now_us=self._now_us(),
            zone=self._zone,
            version=__version__,
            state="stopping" if self._over.is_set() else "running" if self._is_started_up else "starting",
            is_gate_open=self._gate is not None and self._gate.is_open,
            pid=os.getpid(),
            started_us=self._started_us,
            faults=(
                *self._faults.sentences,
                *damaged,
                *chain.from_iterable(ask() for ask in self.fault_sources),
            ),
            config=str(self.config.path),
            store=str(store_path(self.config)),
            socket=str(socket_path(self.config)),
            dashboard=self._dashboard,
        )

    def services(self) -> Sequence[ServiceView]:
        """How its services are."""
        return [] if self._supervisor is None else self._supervisor.views()

    def timers(self) -> Mapping[str, views.TimerReading] | None:
        """How its timers are; None while their gate is closed."""
        return None if self._gate is None else self._gate.readings()

    def holding(self) -> Holding | None:
        """The shared timers at work here; None if there are none."""
        return None if self._gate is None else self._gate.holding()

    def output(self, run_id: int) -> Tail | None:
        """The output of a run under way."""
        return None if self._supervisor is None else self._supervisor.output_of(run_id)

    async def ended(self, run_id: int) -> None:
        """Return once a run has ended, at once if it is not under way."""
        supervisor = self._serving()
        ended = asyncio.Event()

        def look(row: RunRow) -> None:
            if row.id == run_id:
                ended.set()

        supervisor.on_run_ended.append(look)
        try:
            if supervisor.outcome(run_id) == "running":
                await ended.wait()
        finally:
            supervisor.on_run_ended.remove(look)

    # --- what it does when asked (Backend) ---

    async def start_service(self, service_id: str) -> int:
        """Start a service; the id of the run. Returns when its process is there."""
        supervisor = self._serving()
        run_id = await answered(supervisor.start_service(service_id))
        if supervisor.outcome(run_id) is Result.SPAWN_ERROR:
            row = await self.history.run(run_id)
            said = "its process could not be made" if row is None else row.message
            raise OperationError(FAILED, f"{service_id} was not started: {said}", run=run_id)
        return run_id

    async def stop_service(self, service_id: str) -> None:
        """Stop a service, and return when it has stopped."""
        await answered(self._serving().stop_service(service_id))

    async def trigger(self, timer_id: str) -> Begun:
        """Fire a timer by hand."""
        return await self._opened_gate().trigger(timer_id)

    async def switch_timer(self, timer_id: str, *, enabled: bool) -> None:
        """Enable or disable a timer at run time."""
        await self._opened_gate().switch(timer_id, enabled=enabled)

    def note_dashboard(self, url: str = "", *, fault: str = "") -> None:
        """Tell where the dashboard is, or why there is none."""
        self._dashboard = url or fault
        if url:
            self._announce("DashboardStarted", url=url)
        else:
            self._announce("DashboardFault", error=fault)

    def note_shortage(self, listener: str, error: OSError | None) -> None:
        """Tell that connections of a *listener* cannot be accepted as they come, or that they can again."""
        if error is None:
            self._announce("ListenerRecovered", listener=listener)
        else:
            self._announce("ListenerFault", listener=listener, error=shortage_text(listener, error))

    def note_action(self, action: str, id: str | None, who: str) -> None:  # noqa: A002 (the word for it)
        """Tell that somebody did something."""
        self._announce("OperatorAction", action=action, id=id, who=who)

    def _serving(self) -> Supervisor:
        if self._supervisor is None:
            raise OperationError(BUSY, "the daemon is only just starting; try again")
        return self._supervisor

    def _opened_gate(self) -> Gate:
        if self._gate is None:
            raise OperationError(BUSY, "the daemon is only just starting; try again")
        return self._gate

    def _now_us(self) -> Instant:
        return instant_of(self._clock.now())


def _zone_of(config: Config) -> tzinfo:
    name = config.settings.timezone
    return tzlocal.get_localzone() if name is None else ZoneInfo(name)
