"""The supervisor: starts services in order, keeps them up, stops them in order, and answers for each run.

Start, reload and the adoption of what a dead daemon left are done one at a time, in the order in which they
were asked for. They are carried out even if the caller gives up waiting. A stop waits for none of them: it
interrupts them, and from the moment it is asked for nothing starts any more. One service's trouble is never
another's, and no exception of one ends the supervisor. It knows nothing of timers.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from duly.background import retrieve_outcome
from duly.clock import Watchable
from duly.config.plan import ConfigPlan, Defined, changes
from duly.config.schema import Service, Settings
from duly.core.causes import Reason
from duly.events import Announcer
from duly.instant import Instant, milliseconds
from duly.processes.pauses import Pauses
from duly.processes.process import Processes
from duly.processes.procfs import identity_of
from duly.processes.tokens import RunTokens
from duly.processes.watchdog import Watchdog
from duly.store.history import History, HistoryReader, Result
from duly.store.past import known_services
from duly.supervisor.adoption import BlockingRun, adopt_runs
from duly.supervisor.controller import ServiceController
from duly.supervisor.execution import CutReason, Execution, RunContext
from duly.supervisor.results import Refused, RunResult, ServiceError, SupervisorStoppingError, TargetState
from duly.supervisor.run_registry import RunRegistry
from duly.supervisor.services import ReloadAction, RunsKnown, ServiceView, Sources, reload_action, view_of
from duly.supervisor.stages import Startup, shut_down, take_down

T = TypeVar("T")


class Supervisor:
    """Looks after services."""

    def __init__(
        self,
        processes: Processes,
        history: History,
        clock: Watchable,
        announcer: Announcer,
        *,
        scheduler_id: str = "",
        settings: Settings,
    ) -> None:
        self._history = history
        self._announcer = announcer
        self._pauses = Pauses(clock, self._on_step)
        self._registry = registry = RunRegistry(history, announcer)
        self.on_run_started = registry.on_run_started
        """Called with the row of each run whose process was made, or could not be."""
        self.on_run_ended = registry.on_run_ended
        self.outcome = registry.outcome
        self.output_of = registry.output_of
        self.last_end_us = registry.last_end_us
        self.new_run_id = history.new_id
        self._context = RunContext(processes, registry, self._pauses, self._tokens(scheduler_id), settings)
        self._controllers: dict[str, ServiceController] = {}
        self._viewed: dict[str, tuple[Sources, ServiceView]] = {}
        self._removed: list[ServiceController] = []
        """Controllers of removed services whose processes could not be killed."""
        # Held by adoption, start and reload, never by `run` or `stop`: a stop interrupts who has it.
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._startup: Startup | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._blocked: dict[str, BlockingRun] = {}
        """Services that an earlier daemon's process blocks, because it cannot be killed."""
        self.started_up_us: Instant | None = None
        """When start-up was complete; moved along when the wall clock is set."""

    def identify(self, scheduler_id: str) -> None:
        """Make the tokens of runs for this scheduler; its history is open by now, and has their key."""
        self._context.tokens = self._tokens(scheduler_id)

    def _tokens(self, scheduler_id: str) -> RunTokens:
        return RunTokens(self._history.key, scheduler_id, identity_of(os.getpid()).started)

    @property
    def settings(self) -> Settings:
        """What holds for all services; may be replaced at any time, and then holds for what follows."""
        return self._context.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._context.settings = settings

    def add_variables(self, variables: Callable[[int, str], Mapping[str, str]]) -> None:
        """Have *variables* say what to add to the environment of each run, by its id and its service."""
        self._context.variables = variables

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was asked for; it stays so."""
        return self._stopping is not None

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

    async def reload(self, services: Sequence[Service], boot_ids: Collection[str]) -> ConfigPlan:
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
        for controller in (*self._controllers.values(), *self._removed):
            if self.is_stopping and controller.execution is not None:
                controller.execution.ask(CutReason.SHUTDOWN)  # also those whose turn to go has not come
            controller.kill()

    def cut_off(self, watchdog: Watchdog) -> None:
        """Kill at once the runs that *watchdog* watches: another node may start the same in a moment."""
        watchdog.extend(0)  # first: it also kills what left its group, and a run ends with its group
        for execution in self._executions():
            if execution.watchdog is watchdog:
                execution.ask(CutReason.LEASE)
                execution.kill()

    def signal(self, number: int) -> None:
        for execution in self._executions():
            execution.signal(number)

    def _executions(self) -> list[Execution]:
        controllers = (*self._controllers.values(), *self._removed)
        return [controller.execution for controller in controllers if controller.execution is not None]

    async def _in_turn(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do one thing after the other; a caller who is cancelled leaves it to be done."""
        if self.is_stopping:
            raise SupervisorStoppingError
        self._pauses.begin()
        task = asyncio.get_running_loop().create_task(self._with_turn(call))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(retrieve_outcome)  # the caller may have gone
        await asyncio.wait([task])
        if task.cancelled():
            raise SupervisorStoppingError
        return task.result()

    async def _with_turn(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        # In a task of its own (`_in_turn`): a caller that is cancelled does not end the work half-way.
        async with self._turn:
            return await call()

    async def _adopt(self) -> None:
        self._registry.load(await self._history.ask(known_services))
        adoption = await adopt_runs(
            await self._history.ask(HistoryReader.open_runs),
            self._pauses.clock,
            self._announcer,
            self._context.tokens,
            last_id=await self._history.ask(HistoryReader.last_id),
            grace_s=self.settings.kill_grace_sec,
        )
        for row in adoption.ended:
            self._registry.close(row)
        # Before any run begins: a number that a living process carries is not given out again.
        self._history.pass_over(adoption.last_id)
        self._blocked = adoption.blocked

    async def _bring_up_all(self, services: Sequence[Service], boot_ids: Collection[str]) -> None:
        begun_us = self._pauses.now_us()
        self._controllers = {service.id: self._redefined(service) for service in services}
        await self._bring_up([s for s in services if s.id in boot_ids and s.enabled])
        self.started_up_us = self._pauses.now_us()
        duration = milliseconds(max(self.started_up_us - begun_us, 0))
        self._announcer.announce("SupervisorStarted", services=len(services), duration=duration)

    async def _bring_up(self, chosen: Sequence[Service], returning: Collection[str] = ()) -> None:
        able = [service for service in chosen if not self._is_blocked(service.id)]
        self._startup = Startup(able, self._controllers, self._pauses, self._announcer, returning=returning)
        for service in chosen:
            if (blocking := self._blocked.get(service.id)) is not None:
                self._controllers[service.id].skip(blocking.reason)
        try:
            await self._startup.perform()
        finally:
            self._startup = None

    async def _reload(self, services: Sequence[Service], boot_ids: Collection[str]) -> ConfigPlan:
        before = [controller.service for controller in self._controllers.values()]
        after = {service.id: service for service in services}
        actions = {
            name: self._reload_action(name, after.get(name), boot_ids)
            for name in {**self._controllers, **after}
        }
        leaving = [controller for name, controller in self._controllers.items() if actions[name].is_stopped]
        returning = {controller.service.id for controller in leaving if controller.is_up}
        # All of them before the first wait: nobody may start one that is about to go.
        for controller in leaving:
            controller.is_leaving = True
        await take_down(leaving, CutReason.BY_HAND)
        # From here to the first start nothing is awaited: others see the old list or the new one.
        gone = [controller for name, controller in self._controllers.items() if name not in after]
        self._removed += [controller for controller in gone if controller.is_active or controller.has_orphans]
        self._controllers = {service.id: self._redefined(service) for service in services}
        starting = [service for service in services if actions[service.id].is_started]
        # Somebody may have stopped one by hand while it was going down.
        await self._bring_up([s for s in starting if not self._controllers[s.id].is_held_down], returning)
        return changes(Defined(before), Defined(services))

    def _reload_action(self, name: str, after: Service | None, boot_ids: Collection[str]) -> ReloadAction:
        controller = self._controllers.get(name)
        return reload_action(
            None if controller is None else controller.service,
            after,
            is_boot=name in boot_ids,
            is_up=controller is not None and controller.is_up,
            is_held_down=controller is not None and controller.is_held_down,
        )

    def _redefined(self, service: Service) -> ServiceController:
        """The controller of a service, with this definition."""
        controller = self._controllers.get(service.id)
        if controller is not None:
            controller.redefine(service)
            return controller
        new_id = self._history.new_id
        return ServiceController(
            service, self._context, self._announcer, new_id=new_id, is_closed=lambda: self.is_stopping
        )

    async def _stop(self) -> None:
        begun_us, calls = self._pauses.now_us(), list(self._calls)
        # Before anything is taken down: a start or a reload under way must not bring it up again.
        for call in calls:
            call.cancel()
        for controller in self._controllers.values():
            if not controller.is_active:
                # What waits to start waits no longer, whatever its stage.
                controller.ask_down(CutReason.SHUTDOWN)
        self._pauses.begin()
        left = await shut_down(
            list(self._controllers.values()), self._removed, self._pauses, self.settings.shutdown_timeout_sec
        )
        self._pauses.end()
        duration = milliseconds(max(self._pauses.now_us() - begun_us, 0))
        self._announcer.announce("SupervisorStopped", duration=duration, **({"left": left} if left else {}))

    def _on_step(self, by_us: int) -> None:
        for controller in (*self._controllers.values(), *self._removed):
            controller.shift(by_us)
        if self.started_up_us is not None:
            self.started_up_us += by_us

    # --- one service ---

    async def run(
        self,
        service_id: str,
        *,
        reason: str,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,
        watchdog: Watchdog | None = None,
    ) -> RunResult:
        """Run a oneshot to its end, which does not depend on whether the caller goes on waiting.

        The *watchdog* watches it, if there is one. While stopping the answer is `interrupted`, and nothing
        was run. Raises ServiceError.
        """
        if self.is_stopping:
            if run_id is not None:
                self._registry.refuse(run_id, timer)
            return RunResult(Result.INTERRUPTED, message="shutdown")
        controller = self._startable(service_id)
        if controller.service.type != "oneshot":
            raise ServiceError(Refused.NOT_ONESHOT, service_id)
        execution = controller.begin(
            str(reason), timer=timer, scheduled_us=scheduled_us, run_id=run_id, watchdog=watchdog
        )
        # Not awaited itself: a caller that is cancelled must not cancel the end of the run.
        await asyncio.wait([execution.ended])
        return execution.ended.result()

    async def start_service(self, service_id: str) -> int:
        """Start a service by hand, whatever it requires; the id of its run, once its process was made.

        If that could not be made the run has ended, and `outcome` says so. Raises ServiceError.
        """
        if self.is_stopping:
            raise ServiceError(Refused.STOPPING, service_id)
        # Nothing is awaited between the look and the start: two callers cannot both find it idle.
        execution = self._startable(service_id).begin(Reason.MANUAL.value)
        await asyncio.wait([execution.settled])
        return execution.row.id

    async def stop_service(self, service_id: str) -> None:
        """Stop a service by hand: it stays down until it is started again. Raises ServiceError."""
        controller = self._known(service_id)
        if self.is_stopping:
            raise ServiceError(Refused.STOPPING, service_id)
        # Before it goes down: neither its own end nor a reload that comes meanwhile brings it back.
        controller.is_held_down = True
        if not await controller.down(CutReason.BY_HAND):
            raise ServiceError(Refused.UNKILLABLE, service_id)

    def replace_run(self, service_id: str) -> None:
        """Have the run of a service end, if there is one: the next is due."""
        controller = self._controllers.get(service_id)
        if controller is not None and controller.execution is not None:
            controller.execution.ask(CutReason.REPLACED)

    def _known(self, service_id: str) -> ServiceController:
        controller = self._controllers.get(service_id)
        if controller is None:
            raise ServiceError(Refused.UNKNOWN, service_id)
        return controller

    def _startable(self, service_id: str) -> ServiceController:
        controller = self._known(service_id)
        if controller.is_leaving:
            raise ServiceError(Refused.RELOADING, service_id)
        if not controller.service.enabled:
            raise ServiceError(Refused.DISABLED, service_id)
        if controller.is_active:
            raise ServiceError(Refused.ACTIVE, service_id)
        if controller.lock_holder is not None:
            raise ServiceError(Refused.LOCKED, service_id)
        if self._is_blocked(service_id):
            is_remote = self._blocked[service_id].daemon
            raise ServiceError(Refused.ELSEWHERE if is_remote else Refused.UNKILLABLE, service_id)
        return controller

    def _is_blocked(self, service_id: str) -> bool:
        blocking = self._blocked.get(service_id)
        if blocking is None or not blocking.is_gone:
            return blocking is not None
        del self._blocked[service_id]
        self._registry.close(blocking.ended(self._pauses.now_us()))
        return False

    # --- what is known ---

    def target_state(self, service_id: str) -> TargetState:
        """Whether a service could be run now."""
        controller = self._controllers.get(service_id)
        if controller is None:
            return "missing"
        is_busy = controller.is_active or controller.lock_holder is not None
        if is_busy or controller.is_leaving or self._is_blocked(service_id):
            return "active"
        return "idle" if controller.service.enabled else "disabled"

    def view(self, service_id: str) -> ServiceView | None:
        """One service, without who holds it up."""
        controller = self._controllers.get(service_id)
        return None if controller is None else self._viewed_of(controller, (), None)[1]

    def views(self) -> list[ServiceView]:
        held_up = {} if self._startup is None else self._startup.held_up()
        known, self._viewed = self._viewed, {}
        for name, controller in self._controllers.items():
            self._viewed[name] = self._viewed_of(controller, held_up.get(name, ()), known.get(name))
        return [view for _, view in self._viewed.values()]

    def _viewed_of(
        self,
        controller: ServiceController,
        held_up_by: tuple[str, ...],
        before: tuple[Sources, ServiceView] | None,
    ) -> tuple[Sources, ServiceView]:
        """A view and what it is made of; of thousands hardly any has changed since somebody last looked."""
        service, state = controller.service, controller.state
        known = self._registry
        runs = RunsKnown(known.row_of(state.run_id), known.last_of(service.id), known.past_of(service.id))
        sources = (service, state, runs, held_up_by)
        return before if before is not None and before[0] == sources else (sources, view_of(*sources))


class WatchedServices:
    """The services of *supervisor*; every run that starts here is watched by *watchdog*."""

    def __init__(self, supervisor: Supervisor, watchdog: Watchdog) -> None:
        self._supervisor = supervisor
        self.run = partial(supervisor.run, watchdog=watchdog)
        self.cut_off = partial(supervisor.cut_off, watchdog)
        self.target_state = supervisor.target_state
        self.replace_run = supervisor.replace_run
        self.new_run_id = supervisor.new_run_id
        self.last_end_us = supervisor.last_end_us
        self.outcome = supervisor.outcome

    @property
    def is_stopping(self) -> bool:
        return self._supervisor.is_stopping
