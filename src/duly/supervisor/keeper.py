"""The keeper of one service: its state, its run in flight, and its coming back after an end.

A service has at most one run at a time, and this is where that holds: a run begins only through `begin`, and
only when none is in flight. What a start or an end means is decided in `services`; here it is done.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from duly.config.schema import Service
from duly.events import Announcer, described, tell_operator
from duly.instant import SECOND_US, Instant
from duly.store.history import RunRow
from duly.supervisor import services
from duly.supervisor.ended import Ended, Reason
from duly.supervisor.execution import Cut, Execution, Means, Tether
from duly.supervisor.process import Process, stopped
from duly.supervisor.services import Phase, ServiceState

_DYING_S = 5
"""How long a killed process may take to be gone before nobody waits for it any longer."""
_LOOK_S = 0.05


class Keeper:
    """Looks after one service."""

    def __init__(
        self,
        service: Service,
        means: Means,
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
        self._means = means
        self._announcer = announcer
        self._new_id = new_id
        self._is_closed = is_closed
        self.state: ServiceState = services.idle(self._now_us(), _idle_reason(service))
        self._coming_back: asyncio.Task[None] | None = None
        self._left: list[Process] = []
        """Processes of runs that have ended, which started others that may live on outside their group."""
        self._ending: set[asyncio.Future[Any]] = set()

    def _now_us(self) -> Instant:
        return self._means.pauses.now_us()

    @property
    def is_active(self) -> bool:
        """Whether a run is in flight."""
        return self.execution is not None

    @property
    def is_up(self) -> bool:
        """Whether a run is in flight, or will be soon."""
        return self.is_active or self._coming_back is not None

    @property
    def has_strays(self) -> bool:
        """Whether something lives on that a run of it started and left behind."""
        self._left = [process for process in self._left if process.has_strays()]
        return bool(self._left)

    def redefine(self, service: Service) -> None:
        """Have *service* hold from the next run on."""
        before, self.service = self.service, service
        self.is_leaving = False
        if before.enabled != service.enabled and not self.is_up:
            self.state = services.stopped(self.state, self._now_us(), _idle_reason(service))

    # --- starting ---

    def wait(self) -> None:
        """Let it wait for its turn."""
        if not self.is_active:
            self._stay_away()
            self.state = services.waiting(self.state, self._now_us())

    def skip(self, reason: str) -> None:
        """Leave it, because of what it requires."""
        self.state = services.skipped(self.state, self._now_us(), reason)
        self._announcer.announce("ServiceStartSkipped", service=self.service.id, reason=reason)

    def begin(
        self,
        reason: str,
        *,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,
        is_return: bool = False,
        leash: Tether | None = None,
    ) -> Execution:
        """Begin a run; its process is being made when this returns."""
        assert self.execution is None
        self._stay_away()
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
        self.execution = Execution(
            self.service,
            row,
            self._means,
            on_spawned=self._on_spawned,
            on_ended=self._on_ended,
            leash=leash,
        )
        return self.execution

    def _on_spawned(self, _: Execution) -> None:
        self.state = services.running(self.state, self._now_us())

    # --- ending ---

    def ask_down(self, why: Cut) -> None:
        """Have it end and stay down; nothing is waited for."""
        if self.execution is not None:
            self.execution.ask(why)
            self.state = services.stopping(self.state, "stopping")
        elif self._coming_back is not None or self.state.phase is Phase.WAITING:
            self._stay_away()
            self.state = services.stopped(self.state, self._now_us(), f"stopped ({why.value})")

    async def down(self, why: Cut) -> bool:
        """Have it end and stay down; whether it did, which a process that cannot be killed does not."""
        self.ask_down(why)
        ending: list[asyncio.Future[Any]] = [] if self.execution is None else [self.execution.ended]
        if self.has_strays:
            ending += [self._stray_stopped(process) for process in self._left]
        if not ending:
            return True
        patience_s = self._means.settings.kill_grace_sec + _DYING_S
        return await self._means.pauses.within(patience_s, asyncio.wait(ending))

    def _stray_stopped(self, process: Process) -> "asyncio.Future[Any]":
        clock, grace_s = self._means.pauses.clock, self._means.settings.kill_grace_sec
        ending = asyncio.ensure_future(stopped(process, clock, grace_s=grace_s, with_strays=True))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    def kill(self) -> None:
        """End what still runs of it at once."""
        if self.execution is not None:
            self.execution.kill()
        for process in self._left:
            process.signal_strays(signal.SIGKILL)

    async def gone(self) -> None:
        """Return once nothing of it lives."""
        if self.execution is not None:
            await asyncio.wait([self.execution.ended])
        while self.has_strays:
            await self._means.pauses.wait(_LOOK_S)  # nobody tells

    def _on_ended(self, execution: Execution, end: Ended) -> None:
        self.execution = None
        if (process := execution.strays) is not None:
            self._left = [*(each for each in self._left if each.has_strays()), process]
        is_wanted = execution.cut in {None, Cut.TIMEOUT} and not self._is_closed()
        self.state = services.ended(self.state, self.service, end, self._now_us(), is_wanted=is_wanted)
        if self.state.restart_at_us is not None:
            pause_us = self.state.restart_at_us - self.state.since_us
            self._coming_back = asyncio.get_running_loop().create_task(
                self._come_back(pause_us, execution.row.id, end), name=f"duly restart of {self.service.id}"
            )

    # --- coming back ---

    async def _come_back(self, pause_us: int, run_id: int, end: Ended) -> None:
        try:
            self._announcer.announce(
                "ServiceRestarting",
                service=self.service.id,
                runId=run_id,
                result=end.result.value,
                delayMs=pause_us // 1000,
                restarts=self.state.restarts + 1,
            )
            await self._means.pauses.wait(pause_us / SECOND_US)
            self._coming_back = None
            if self._is_closed():
                return
            self.begin(Reason.RESTART.value, is_return=True)
        except Exception as error:
            self._coming_back = None
            said = described(error)
            self.state = services.failed(self.state, self._now_us(), f"could not be restarted: {said}")
            tell_operator(f"duly: {self.service.id} could not be restarted: {said}")

    def _stay_away(self) -> None:
        if self._coming_back is not None:
            self._coming_back.cancel()
            self._coming_back = None

    def shift(self, by_us: int) -> None:
        """Account for a step of the wall clock."""
        self.state = services.shifted(self.state, by_us)
        if self.execution is not None:
            self.execution.shift(by_us)


def _idle_reason(service: Service) -> str:
    return "" if service.enabled else "disabled"
