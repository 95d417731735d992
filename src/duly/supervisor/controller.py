"""The controller of one service: its state, its run in flight, and its coming back after an end.

A service has at most one run at a time, and this is where that holds: a run begins only through `begin`, and
only when none is in flight. What a start or an end means is decided in `services`; here it is done.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import msgspec

from duly.config.schema import Service
from duly.core.causes import Reason
from duly.events import Announcer, described, warn_operator
from duly.instant import SECOND_US, Instant
from duly.processes.process import Process, stop_process
from duly.processes.watchdog import Watchdog
from duly.store.history import RunRow
from duly.supervisor import services
from duly.supervisor.execution import CutReason, Execution, RunContext
from duly.supervisor.results import RunResult
from duly.supervisor.services import Phase, ServiceState

_DYING_S = 5
"""How long a killed process may take to be gone before nobody waits for it any longer."""
_LOOK_S = 0.05


class ServiceController:
    def __init__(
        self,
        service: Service,
        context: RunContext,
        announcer: Announcer,
        *,
        new_id: Callable[[], int],
        is_closed: Callable[[], bool],
    ) -> None:
        self.service = service
        self.execution: Execution | None = None
        self.is_held_down = False
        """Somebody stopped it by hand: it stays down until somebody starts it."""
        self.is_leaving = False
        """A reload is taking it down, to remove it or to let it come back changed."""
        self._context = context
        self._announcer = announcer
        self._new_id = new_id
        self._is_closed = is_closed
        self.state: ServiceState = services.idle(self._now_us(), _idle_reason(service))
        self._restarting: asyncio.Task[None] | None = None
        self._left: list[Process] = []
        """Processes of runs that have ended, which started others that may live on outside their group."""
        self._ending: set[asyncio.Future[Any]] = set()

    def _now_us(self) -> Instant:
        return self._context.pauses.now_us()

    @property
    def is_active(self) -> bool:
        return self.execution is not None

    @property
    def lock_holder(self) -> Execution | None:
        """The run of a service that has the same lock, if there is one now."""
        return self._context.locks.get(self.service.lock or "")

    @property
    def is_up(self) -> bool:
        """Whether a run is in flight, or will be soon."""
        return self.is_active or self._restarting is not None

    @property
    def has_orphans(self) -> bool:
        """Whether something lives on that a run of it started and left behind."""
        self._left = [process for process in self._left if process.has_orphans()]
        return bool(self._left)

    def redefine(self, service: Service) -> None:
        """Have *service* hold from the next run on."""
        before, self.service = self.service, service
        self.is_leaving = False
        if before.enabled != service.enabled and not self.is_up:
            self.state = services.in_phase(
                self.state, Phase.STOPPED, self._now_us(), reason=_idle_reason(service)
            )

    # --- starting ---

    def wait(self) -> None:
        if not self.is_active:
            self._cancel_restart()
            self.state = services.in_phase(self.state, Phase.WAITING, self._now_us())

    def skip(self, reason: str) -> None:
        self.state = services.in_phase(self.state, Phase.SKIPPED, self._now_us(), reason=reason)
        self._announcer.announce("ServiceStartSkipped", service=self.service.id, reason=reason)

    def begin(
        self,
        reason: str,
        *,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,
        is_return: bool = False,
        watchdog: Watchdog | None = None,
    ) -> Execution:
        """Begin a run; its process is being made when this returns."""
        assert self.execution is None
        self._cancel_restart()
        self.is_held_down = False
        now_us = self._now_us()
        row = RunRow(
            id=self._new_id() if run_id is None else run_id,
            service=self.service.id,
            timer=timer,
            reason=reason,
            scheduled_us=scheduled_us,
            started_us=now_us,
        )
        self.state = services.starting(self.state, row.id, now_us, is_restart=is_return)
        # Before anything is awaited: from here on `is_active` refuses a second run.
        self.execution = Execution(
            self.service,
            row,
            self._context,
            on_spawned=self._on_spawned,
            on_ended=self._on_ended,
            watchdog=watchdog,
        )
        if self.service.lock is not None:
            self._context.locks[self.service.lock] = self.execution
        return self.execution

    def _on_spawned(self, _: Execution) -> None:
        self.state = services.running(self.state, self._now_us())

    # --- ending ---

    def ask_down(self, why: CutReason) -> None:
        """Have it end and stay down; nothing is waited for."""
        if self.execution is not None:
            self.execution.ask(why)
            self.state = msgspec.structs.replace(self.state, reason="stopping")
        elif self._restarting is not None or self.state.phase is Phase.WAITING:
            self._cancel_restart()
            self.state = services.in_phase(
                self.state, Phase.STOPPED, self._now_us(), reason=f"stopped ({why.value})"
            )

    async def down(self, why: CutReason) -> bool:
        """Have it end and stay down. False if a process of it cannot be killed."""
        self.ask_down(why)
        ending: list[asyncio.Future[Any]] = [] if self.execution is None else [self.execution.ended]
        if self.has_orphans:
            ending += [self._orphan_stopped(process) for process in self._left]
        if not ending:
            return True
        # The grace and a while for what KILL ends. What waits for a disk is not waited for without end.
        patience_s = self._context.settings.kill_grace_sec + _DYING_S
        return await self._context.pauses.within(patience_s, asyncio.wait(ending))

    def _orphan_stopped(self, process: Process) -> "asyncio.Future[Any]":
        clock, grace_s = self._context.pauses.clock, self._context.settings.kill_grace_sec
        ending = asyncio.ensure_future(stop_process(process, clock, grace_s=grace_s, with_orphans=True))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    def kill(self) -> None:
        if self.execution is not None:
            self.execution.kill()
        for process in self._left:
            process.signal_orphans(signal.SIGKILL)

    async def wait_gone(self) -> None:
        if self.execution is not None:
            await asyncio.wait([self.execution.ended])
        while self.has_orphans:
            await self._context.pauses.wait(_LOOK_S)  # nothing reports it

    def _on_ended(self, execution: Execution, end: RunResult) -> None:
        # First: what follows may ask whether a run is in flight.
        self.execution = None
        lock = execution.service.lock or ""
        if self._context.locks.get(lock) is execution:
            del self._context.locks[lock]
        if (process := execution.orphans) is not None:
            self._left = [*(each for each in self._left if each.has_orphans()), process]
        # A run that was over its time was not stopped on purpose: its service is wanted back.
        is_wanted = execution.cut in {None, CutReason.TIMEOUT} and not self._is_closed()
        self.state = services.after_end(self.state, self.service, end, self._now_us(), is_wanted=is_wanted)
        if self.state.restart_at_us is not None:
            pause_us = self.state.restart_at_us - self.state.since_us
            self._restarting = asyncio.get_running_loop().create_task(
                self._restart_after(pause_us, execution.row.id, end),
                name=f"duly restart of {self.service.id}",
            )

    # --- coming back ---

    async def _restart_after(self, pause_us: int, run_id: int, end: RunResult) -> None:
        try:
            self._announcer.announce(
                "ServiceRestarting",
                service=self.service.id,
                runId=run_id,
                result=end.result.value,
                delayMs=pause_us // 1000,
                restarts=self.state.restarts + 1,
            )
            await self._context.pauses.wait(pause_us / SECOND_US)
            # Before `begin`, which cancels a restart that is pending: it would cancel this very task.
            self._restarting = None
            if self._is_closed():
                return
            self.begin(Reason.RESTART.value, is_return=True)
        except Exception as error:
            self._restarting = None
            said = described(error)
            self.state = services.in_phase(
                self.state, Phase.FAILED, self._now_us(), reason=f"could not be restarted: {said}"
            )
            warn_operator(f"duly: {self.service.id} could not be restarted: {said}")

    def _cancel_restart(self) -> None:
        if self._restarting is not None:
            self._restarting.cancel()
            self._restarting = None

    def shift(self, by_us: int) -> None:
        self.state = services.shifted(self.state, by_us)
        if self.execution is not None:
            self.execution.shift(by_us)


def _idle_reason(service: Service) -> str:
    return "" if service.enabled else "disabled"
