"""The supervisor: starts services in order, keeps them up, stops them in order, and answers for each run.

Starting, reloading and taking over what a dead daemon left are done one at a time, in the order in which they
were asked for, and are carried out even if whoever asked gives up waiting. A stop waits for none of them: it
interrupts them, and from the moment it is asked for nothing starts any more. One service's trouble is never
another's, and no exception of one ends the supervisor. It knows nothing of timers.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

from duly.clock import Watchable
from duly.config.plan import Defined, Plan, changes
from duly.config.schema import Service, Settings
from duly.events import Announcer
from duly.instant import Instant, milliseconds
from duly.store.history import History
from duly.supervisor.adoption import Ghost, adopted
from duly.supervisor.ended import Ended, Reason, Result
from duly.supervisor.errors import Refused, ServiceError, SupervisorStoppingError
from duly.supervisor.execution import Cut, Execution, Means, Tether
from duly.supervisor.keeper import Keeper
from duly.supervisor.ledger import Hook, Ledger
from duly.supervisor.output import Tail
from duly.supervisor.pauses import Pauses
from duly.supervisor.process import Processes
from duly.supervisor.procfs import identity_of
from duly.supervisor.reloading import Turn, turn_of
from duly.supervisor.shutdown import Shutdown, take_down
from duly.supervisor.startup import Startup
from duly.supervisor.tokens import RunTokens
from duly.supervisor.views import ServiceView, Sources, view_of

T = TypeVar("T")

TargetState = Literal["idle", "active", "disabled", "missing"]


class Supervisor:
    """Looks after services."""

    def __init__(
        self,
        processes: Processes,
        history: History,
        clock: Watchable,
        announcer: Announcer,
        *,
        scheduler_id: str,
        settings: Settings,
    ) -> None:
        self._history = history
        self._announcer = announcer
        self._pauses = Pauses(clock, self._on_step)
        self._ledger = Ledger(history, announcer)
        tokens = RunTokens(history.key, scheduler_id, identity_of(os.getpid()).started)
        self._means = Means(processes, self._ledger, self._pauses, tokens, settings)
        self._keepers: dict[str, Keeper] = {}
        self._viewed: dict[str, tuple[Sources, ServiceView]] = {}
        self._departed: list[Keeper] = []
        """Keepers of removed services whose processes could not be killed."""
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._startup: Startup | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._haunted: dict[str, Ghost] = {}
        """Services of which an earlier daemon's process lives on and cannot be killed."""
        self.started_up_us: Instant | None = None
        """When start-up was complete; moved along when the wall clock is set."""

    @property
    def settings(self) -> Settings:
        """What holds for all services; may be replaced at any time, and then holds for what follows."""
        return self._means.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._means.settings = settings

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was asked for; it stays so."""
        return self._stopping is not None

    @property
    def on_run_started(self) -> list[Hook]:
        """Called with the row of each run whose process was made, or could not be."""
        return self._ledger.on_run_started

    @property
    def on_run_ended(self) -> list[Hook]:
        """Called with the row of each run that ended."""
        return self._ledger.on_run_ended

    # --- the life of the supervisor ---

    async def adopt(self) -> None:
        """Learn what was before, and end what a dead daemon left behind, so that nothing runs twice at once.

        Returns early if a stop comes. Raises StoreError if the history cannot be read.
        """
        with suppress(SupervisorStoppingError):
            await self._in_turn(self._adopt)

    async def start(self, services: Sequence[Service], boot_ids: Collection[str]) -> None:
        """Bring services up; returns when start-up is complete, or was interrupted by a stop."""
        with suppress(SupervisorStoppingError):
            await self._in_turn(lambda: self._bring_up_all(services, boot_ids))

    async def reload(self, services: Sequence[Service], boot_ids: Collection[str]) -> Plan:
        """Have other definitions hold. Raises SupervisorStoppingError if a stop comes before it is done."""
        return await self._in_turn(lambda: self._reload(services, boot_ids))

    async def stop(self) -> None:
        """Take everything down, in reverse order, within the deadline. All who ask wait for the same stop."""
        if self._stopping is None:
            self._announcer.announce("SupervisorStopping")
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name="duly shutdown")
        await asyncio.shield(self._stopping)

    def kill(self) -> None:
        """End what still runs at once, without a grace."""
        for keeper in (*self._keepers.values(), *self._departed):
            if self.is_stopping and keeper.execution is not None:
                keeper.execution.ask(Cut.SHUTDOWN)  # also those whose turn to go has not come
            keeper.kill()

    def cut_off(self, leash: Tether) -> None:
        """End at once what is on *leash*: another machine may start the same in a moment."""
        leash.cut()  # first: also what has left its group, whose run ends with the group
        for execution in self._executions():
            if execution.leash is leash:
                execution.ask(Cut.LEASE)
                execution.kill()

    def signal(self, number: int) -> None:
        """Hand a signal on to everything that runs."""
        for execution in self._executions():
            execution.signal(number)

    def _executions(self) -> list[Execution]:
        keepers = (*self._keepers.values(), *self._departed)
        return [keeper.execution for keeper in keepers if keeper.execution is not None]

    async def _in_turn(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do one thing after the other; a caller who is cancelled leaves it to be done."""
        if self.is_stopping:
            raise SupervisorStoppingError
        self._pauses.begin()
        task = asyncio.get_running_loop().create_task(self._with_turn(call))
        self._calls.add(task)
        task.add_done_callback(self._forget_call)
        await asyncio.wait([task])
        if task.cancelled():
            raise SupervisorStoppingError
        return task.result()

    async def _with_turn(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._turn:
            return await call()

    def _forget_call(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # for whoever waits; if nobody does any more, there is nobody to tell

    async def _adopt(self) -> None:
        last = await self._history.last_ends()
        self._ledger.recall(sorted(last.values(), key=lambda row: row.id))
        adoption = await adopted(
            await self._history.open_runs(),
            self._pauses.clock,
            self._announcer,
            self._means.tokens,
            last_id=await self._history.last_id(),
            grace_s=self.settings.kill_grace_sec,
        )
        for row in adoption.ended:
            self._ledger.close(row)
        self._history.pass_over(adoption.last_id)
        self._haunted = adoption.haunted

    async def _bring_up_all(self, services: Sequence[Service], boot_ids: Collection[str]) -> None:
        begun_us = self._pauses.now_us()
        self._keepers = {service.id: self._redefined(service) for service in services}
        await self._bring_up([s for s in services if s.id in boot_ids and s.enabled])
        self.started_up_us = self._pauses.now_us()
        duration = milliseconds(max(self.started_up_us - begun_us, 0))
        self._announcer.announce("SupervisorStarted", services=len(services), duration=duration)

    async def _bring_up(self, chosen: Sequence[Service], returning: Collection[str] = ()) -> None:
        able = [service for service in chosen if not self._is_haunted(service.id)]
        self._startup = Startup(able, self._keepers, self._pauses, self._announcer, returning=returning)
        for service in chosen:
            if (ghost := self._haunted.get(service.id)) is not None:
                self._keepers[service.id].skip(ghost.reason)
        try:
            await self._startup.perform()
        finally:
            self._startup = None

    async def _reload(self, services: Sequence[Service], boot_ids: Collection[str]) -> Plan:
        before = [keeper.service for keeper in self._keepers.values()]
        after = {service.id: service for service in services}
        turns = {name: self._turn_of(name, after.get(name), boot_ids) for name in {**self._keepers, **after}}
        leaving = [keeper for name, keeper in self._keepers.items() if turns[name].is_stopped]
        returning = {keeper.service.id for keeper in leaving if keeper.is_up}
        for keeper in leaving:
            keeper.is_leaving = True
        await take_down(leaving, Cut.BY_HAND)
        # From here to the first start nothing is awaited: others see the old list or the new one.
        gone = [keeper for name, keeper in self._keepers.items() if name not in after]
        self._departed += [keeper for keeper in gone if keeper.is_active or keeper.has_strays]
        self._keepers = {service.id: self._redefined(service) for service in services}
        starting = [service for service in services if turns[service.id].is_started]
        # Somebody may have stopped one by hand while it was going down.
        await self._bring_up([s for s in starting if not self._keepers[s.id].is_held_down], returning)
        return changes(Defined(before), Defined(services))

    def _turn_of(self, name: str, after: Service | None, boot_ids: Collection[str]) -> Turn:
        keeper = self._keepers.get(name)
        return turn_of(
            None if keeper is None else keeper.service,
            after,
            is_boot=name in boot_ids,
            is_up=keeper is not None and keeper.is_up,
            is_held_down=keeper is not None and keeper.is_held_down,
        )

    def _redefined(self, service: Service) -> Keeper:
        """The keeper of a service, with this definition."""
        keeper = self._keepers.get(service.id)
        if keeper is not None:
            keeper.redefine(service)
            return keeper
        new_id = self._history.new_id
        return Keeper(
            service, self._means, self._announcer, new_id=new_id, is_closed=lambda: self.is_stopping
        )

    async def _stop(self) -> None:
        begun_us, calls = self._pauses.now_us(), list(self._calls)
        for call in calls:
            call.cancel()
        for keeper in self._keepers.values():
            if not keeper.is_active:
                keeper.ask_down(Cut.SHUTDOWN)  # what waits to start waits no longer, whatever its stage
        self._pauses.begin()
        shutdown = Shutdown(list(self._keepers.values()), self._departed, self._pauses)
        left = await shutdown.perform(self.settings.shutdown_timeout_sec)
        self._pauses.end()
        duration = milliseconds(max(self._pauses.now_us() - begun_us, 0))
        self._announcer.announce("SupervisorStopped", duration=duration, **({"left": left} if left else {}))

    def _on_step(self, by_us: int) -> None:
        for keeper in (*self._keepers.values(), *self._departed):
            keeper.shift(by_us)
        if self.started_up_us is not None:
            self.started_up_us += by_us

    # --- one service ---

    def new_run_id(self) -> int:
        """A number for a run that will be asked for with it."""
        return self._history.new_id()

    async def run(
        self,
        service_id: str,
        *,
        reason: str,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,
        leash: Tether | None = None,
    ) -> Ended:
        """Run a oneshot to its end, which does not depend on whether the caller goes on waiting.

        It is on the *leash*, if there is one. While stopping the answer is `interrupted`, and nothing was
        run. Raises ServiceError.
        """
        if self.is_stopping:
            if run_id is not None:
                self._ledger.refuse(run_id, timer)
            return Ended(Result.INTERRUPTED, message="shutdown")
        keeper = self._startable(service_id)
        if keeper.service.type != "oneshot":
            raise ServiceError(Refused.NOT_ONESHOT, service_id)
        execution = keeper.begin(
            str(reason), timer=timer, scheduled_us=scheduled_us, run_id=run_id, leash=leash
        )
        await asyncio.wait([execution.ended])
        return execution.ended.result()

    async def start_service(self, service_id: str) -> int:
        """Start a service by hand, whatever it requires; the id of its run, once its process was made.

        If that could not be made the run has ended, and `outcome` says so. Raises ServiceError.
        """
        if self.is_stopping:
            raise ServiceError(Refused.STOPPING, service_id)
        execution = self._startable(service_id).begin(Reason.MANUAL.value)
        await asyncio.wait([execution.settled])
        return execution.row.id

    async def stop_service(self, service_id: str) -> None:
        """Stop a service by hand: it stays down until it is started again. Raises ServiceError."""
        keeper = self._known(service_id)
        if self.is_stopping:
            raise ServiceError(Refused.STOPPING, service_id)
        keeper.is_held_down = True
        if not await keeper.down(Cut.BY_HAND):
            raise ServiceError(Refused.UNKILLABLE, service_id)

    def _known(self, service_id: str) -> Keeper:
        keeper = self._keepers.get(service_id)
        if keeper is None:
            raise ServiceError(Refused.UNKNOWN, service_id)
        return keeper

    def _startable(self, service_id: str) -> Keeper:
        keeper = self._known(service_id)
        if keeper.is_leaving:
            raise ServiceError(Refused.RELOADING, service_id)
        if not keeper.service.enabled:
            raise ServiceError(Refused.DISABLED, service_id)
        if keeper.is_active:
            raise ServiceError(Refused.ACTIVE, service_id)
        if self._is_haunted(service_id):
            is_elsewhere = self._haunted[service_id].daemon
            raise ServiceError(Refused.ELSEWHERE if is_elsewhere else Refused.UNKILLABLE, service_id)
        return keeper

    def _is_haunted(self, service_id: str) -> bool:
        ghost = self._haunted.get(service_id)
        if ghost is None or not ghost.is_gone:
            return ghost is not None
        del self._haunted[service_id]
        self._ledger.close(ghost.ended(self._pauses.now_us()))
        return False

    # --- what is known ---

    def target_state(self, service_id: str) -> TargetState:
        """Whether a service could be run now."""
        keeper = self._keepers.get(service_id)
        if keeper is None:
            return "missing"
        if keeper.is_active or keeper.is_leaving or self._is_haunted(service_id):
            return "active"
        return "idle" if keeper.service.enabled else "disabled"

    def last_end_us(self, service_id: str) -> Instant | None:
        """When its last run ended, however that was started, also before this supervisor began."""
        return self._ledger.last_end_us(service_id)

    def outcome(self, run_id: int, timer: str | None = None) -> Literal["running"] | Result | None:
        """What became of a run; None if nothing is known of it (only the newest thousands are)."""
        return self._ledger.outcome(run_id, timer)

    def output_of(self, run_id: int) -> Tail | None:
        """The output of a run in flight, as it comes."""
        return self._ledger.output_of(run_id)

    def views(self) -> list[ServiceView]:
        """Every service, in the order of declaration."""
        held_up = {} if self._startup is None else self._startup.held_up()
        known, self._viewed = self._viewed, {}
        for name, keeper in self._keepers.items():
            self._viewed[name] = self._viewed_of(keeper, held_up.get(name, ()), known.get(name))
        return [view for _, view in self._viewed.values()]

    def _viewed_of(
        self, keeper: Keeper, held_up_by: tuple[str, ...], before: tuple[Sources, ServiceView] | None
    ) -> tuple[Sources, ServiceView]:
        """A view and what it is made of; of thousands hardly any has changed since somebody last looked."""
        service, state = keeper.service, keeper.state
        live, last = self._ledger.row_of(state.run_id), self._ledger.last_of(service.id)
        sources = (service, state, live, last, held_up_by)
        return before if before is not None and before[0] == sources else (sources, view_of(*sources))
