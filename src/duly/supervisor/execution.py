"""One run of a service, from the row that announces it to the end of the last process of its group.

Whatever happens ends as a result: a command that cannot be started, a time limit, a shutdown, a fault of
ours. The end is that of this run and no other, because everything about it hangs on this object and its id.
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec

from duly.config.schema import Service, Settings
from duly.events import described, warn_operator
from duly.instant import Instant
from duly.processes.options import options_of
from duly.processes.output import Tail
from duly.processes.pauses import Pauses
from duly.processes.process import Process, Processes, stop_process
from duly.processes.procfs import RUN_ID, age_us
from duly.processes.spawn import CalledOffError, ProcessCommand, SpawnError
from duly.processes.tokens import RunTokens
from duly.processes.watchdog import Watchdog
from duly.store.history import Result, RunRow, times_text
from duly.supervisor.results import RunResult, run_result_of
from duly.supervisor.run_registry import RunRegistry


@dataclass(slots=True)
class RunContext:
    processes: Processes
    registry: RunRegistry
    pauses: Pauses
    tokens: RunTokens
    settings: Settings
    variables: Callable[[int, str], Mapping[str, str]] = lambda _run_id, _service: {}
    """What to add to the environment of a run that begins now, by its id and its service."""
    locks: dict[str, "Execution"] = field(default_factory=dict)
    """The locks that are held, each with the run that holds it."""
    recording: asyncio.Future[bool] | None = None
    """The wait for the rows of runs that begin now: one for all of them."""

    async def recorded(self) -> None:
        """Wait until all rows are on disk, for a second at most: a disk that hangs holds up nobody."""
        # A wait that is joined goes on until nothing is unwritten, also for those that joined late.
        if self.recording is None or self.recording.done():
            self.recording = asyncio.ensure_future(self.pauses.within(_RECORDING_S, self.registry.recorded()))
        await asyncio.shield(self.recording)


class CutReason(StrEnum):
    """Why a run is made to end."""

    BY_HAND = "by hand"
    SHUTDOWN = "shutdown"
    TIMEOUT = "timeout"
    REPLACED = "replaced"
    """Its timer is due again, and has the old run make room (overlap = "replace")."""
    LEASE = "lease"
    """Another machine may start the same from now on."""


class Execution:
    def __init__(
        self,
        service: Service,
        row: RunRow,
        context: RunContext,
        *,
        on_spawned: Callable[["Execution"], None],
        on_ended: Callable[["Execution", RunResult], None],
        watchdog: Watchdog | None = None,
    ) -> None:
        self.service = service
        self.row = row
        self.watchdog = watchdog
        self.cut: CutReason | None = None
        """Why it is made to end; the first who asks gives the reason."""
        loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[None] = loop.create_future()
        """Done when its process was made, or could not be."""
        self.ended: asyncio.Future[RunResult] = loop.create_future()
        self._context = context
        self._on_spawned, self._on_ended = on_spawned, on_ended
        self._begun_us = row.started_us
        self._end: tuple[Instant, int] | None = None
        """When its own process ended, and after how long."""
        begun_s = loop.time()
        self._tail = Tail(round(context.settings.output_kib * 1024), lambda: loop.time() - begun_s)
        self._process: Process | None = None
        self._is_killed = False
        self._token = context.tokens.token_of(row.id)
        self._is_asked: asyncio.Future[None] = loop.create_future()
        context.registry.open(row, self._tail)
        self._task = loop.create_task(self._perform(), name=f"duly run {row.id} of {row.service}")

    # --- what others do to it ---

    def ask(self, why: CutReason) -> None:
        """Have it end: TERM, a grace, KILL."""
        if self.cut is None:
            self.cut = why
            self._is_asked.set_result(None)

    def kill(self) -> None:
        """Have it end now, or as soon as there is a process to kill."""
        self._is_killed = True
        if self._process is not None and not self.ended.done():
            self._process.signal(signal.SIGKILL)
            self._process.signal_orphans(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to its processes, if there are any yet."""
        if self._process is not None and not self.ended.done():
            self._process.signal(number)

    @property
    def orphans(self) -> Process | None:
        """Its process, if there are some that it started that live outside its group."""
        return self._process if self._process is not None and self._process.has_orphans() else None

    def shift(self, by_us: int) -> None:
        """Account for a step of the wall clock: how long a run lasts is a length of time."""
        self._begun_us += by_us

    # --- its life ---

    async def _perform(self) -> None:
        try:
            end = await self._run_to_end()
        except Exception as error:
            end = self._lost_track(error)
        # Only now: until its processes are gone, the watchdog must know of them.
        if self.watchdog is not None:
            self.watchdog.forget(self._token)
        # What was left of its group may have taken a while to go; the run ended with its own process.
        ended_us, lasted_us = self._end or self._reached()
        self.row = msgspec.structs.replace(
            self.row,
            ended_us=ended_us,
            lasted_us=lasted_us,
            result=end.result.value,
            exit_code=end.exit_code,
            signal=end.signal,
            message=end.message,
            output=self._tail.text(),
            output_lost=self._tail.lost_bytes,
            output_times=times_text(self._tail.times()),
        )
        # Before the end is announced: listeners ask the registry what became of the run.
        self._context.registry.close(self.row)
        self._guarded(lambda: self._on_ended(self, end))
        self._context.registry.emit_end(self.row, lasted_us, is_meant=self.cut is CutReason.BY_HAND)
        self._settle()
        # Last: who waits for the end finds all of it done.
        self.ended.set_result(end)

    async def _run_to_end(self) -> RunResult:
        # The row before the process: if we die in between, the next daemon knows what to look for.
        await self._context.recorded()
        if self.cut is not None:
            self._context.registry.emit_start(self.row)
            return RunResult(Result.INTERRUPTED, message="called off before its process was made")
        try:
            process = await self._spawned()
        except SpawnError as error:
            self._context.registry.emit_start(self.row)
            result = Result.INTERRUPTED if isinstance(error, CalledOffError) else Result.SPAWN_ERROR
            return RunResult(result, message=error.reason)
        self._process = process
        try:
            if self.watchdog is not None:
                self.watchdog.watch(self._token, process.identity)
            self._note(process)
            return await self._watched(process)
        finally:
            process.close()

    async def _spawned(self) -> Process:
        service, context = self.service, self._context
        more = context.variables(self.row.id, service.id)
        env = {**more, **service.env, RUN_ID: context.tokens.run_name(self.row.id)}
        command = ProcessCommand(service.command, env, service.cwd, options_of(service))
        if self.watchdog is not None:
            # Before the process is made: one that is forked unwatched could outlive the lease.
            if not self.watchdog.watch(self._token):
                raise CalledOffError
            command = replace(command, may_start=partial(self.watchdog.allows, self._token))
        try:
            return await context.processes.start(command, token=self._token, output=self._tail)
        except SpawnError:
            raise
        except Exception as error:
            raise SpawnError(described(error)) from error

    def _note(self, process: Process) -> None:
        identity, context = process.identity, self._context
        self.row = msgspec.structs.replace(
            self.row, pid=identity.pid, pid_started=identity.started, boot=identity.boot
        )
        context.registry.open(self.row, self._tail)
        self._guarded(lambda: self._on_spawned(self))
        context.registry.emit_start(self.row, age_us(identity))
        self._settle()

    async def _watched(self, process: Process) -> RunResult:
        exited = asyncio.ensure_future(process.exited())
        exited.add_done_callback(self._on_exit)
        try:
            is_cut_off = await self._is_cut_off(exited)
            if is_cut_off:
                if self._is_killed:  # before there was a process
                    process.signal(signal.SIGKILL)
                await self._stopped(process, with_orphans=True)
            code = await exited
            # A job may start what is to outlive it, and says so by setsid; a service that comes back may not.
            with_orphans = self.service.type == "simple" and process.has_orphans()
            if with_orphans or process.is_group_alive():
                await self._stopped(process, with_orphans=with_orphans)
        finally:
            exited.cancel()
        cut = self.cut if is_cut_off else None
        if cut is CutReason.LEASE or self._is_expired(code):
            return RunResult(
                Result.INTERRUPTED, message="cut off: this machine's lease on the timers ran out"
            )
        if cut is CutReason.REPLACED:
            return RunResult(
                Result.INTERRUPTED, message='ended to make room for the next run (overlap = "replace")'
            )
        # One that is killed before its turn to be asked has not ended by itself.
        was_interrupted = cut is CutReason.SHUTDOWN or (self._is_killed and code == -signal.SIGKILL)
        return run_result_of(code, was_timed_out=cut is CutReason.TIMEOUT, was_interrupted=was_interrupted)

    def _is_expired(self, code: int) -> bool:
        """Whether the watchdog has killed it before we did: we were stopped, or late."""
        if self.watchdog is None or self.watchdog.allows(self._token):
            return False
        return code == -signal.SIGKILL

    async def _stopped(self, process: Process, *, with_orphans: bool) -> None:
        clock, grace_s = self._context.pauses.clock, self._context.settings.kill_grace_sec
        await stop_process(process, clock, grace_s=grace_s, with_orphans=with_orphans)

    async def _is_cut_off(self, exited: asyncio.Future[int]) -> bool:
        """Wait for exit, timeout or a stop request. True if the process must be stopped."""
        waited_for: set[asyncio.Future[Any]] = {exited, self._is_asked}
        limit_s = self.service.timeout_sec if self.service.type == "oneshot" else None
        if limit_s is not None:
            waited_for.add(limit := asyncio.ensure_future(self._context.pauses.wait(limit_s)))
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if limit_s is not None:
                limit.cancel()
        # Its own end wins over a wish or a limit that came in the same turn of the loop.
        if exited.done():
            return False
        if self.cut is None:
            limit.result()  # a clock that cannot sleep must not look like a long time
            self.cut = CutReason.TIMEOUT
        return True

    def _on_exit(self, exited: asyncio.Future[int]) -> None:
        if not exited.cancelled():
            self._end = self._reached()

    def _reached(self) -> tuple[Instant, int]:
        """The present instant, and how long it has lasted."""
        now_us = self._context.pauses.now_us()  # which reports a step first, and so may shift what follows
        return now_us, max(now_us - self._begun_us, 0)

    def _lost_track(self, error: Exception) -> RunResult:
        """A fault of ours: nobody watches the process any more, so it must not live on."""
        self._guarded(self.kill)
        return RunResult(Result.INTERRUPTED, message=f"duly lost track of it: {described(error)}")

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            warn_operator(f"duly: run {self.row.id} of {self.row.service}: {described(error)}")


_RECORDING_S = 1.0
"""How long a process waits for the store to know of its run. A disk that hangs keeps nobody from running."""
