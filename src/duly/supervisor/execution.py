"""One run of a service, from the row that announces it to the end of the last process of its group.

Whatever happens ends as a result: a command that cannot be started, a time limit, a shutdown, a fault of
ours. The end is that of this run and no other, because everything about it hangs on this object and its id.
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import msgspec

from duly.config.schema import Service, Settings
from duly.events import described, tell_operator
from duly.instant import Instant
from duly.store.history import RunRow
from duly.supervisor.children import CalledOffError
from duly.supervisor.ended import Ended, Result, ended_of
from duly.supervisor.ledger import Ledger
from duly.supervisor.output import Tail
from duly.supervisor.pauses import Pauses
from duly.supervisor.process import Command, Identity, Process, Processes, SpawnError, stopped
from duly.supervisor.procfs import RUN_ID
from duly.supervisor.tokens import RunTokens


class Tether(Protocol):
    """What keeps runs of timers from outliving this machine's right to them: a `leash`."""

    def expect(self, marker: str, /) -> bool:
        """Announce a run whose process is about to be made; whether it may be."""
        ...

    def allows(self, marker: str, /) -> bool:
        """Whether a run may still begin, or go on. May be asked in any thread."""
        ...

    def hold(self, marker: str, process: Identity, /) -> None:
        """Note which process the run is."""
        ...

    def release(self, marker: str, /) -> None:
        """Let a run go that is over."""
        ...

    def cut(self) -> None:
        """End everything now."""
        ...


@dataclass(slots=True)
class Means:
    """What every run needs."""

    processes: Processes
    ledger: Ledger
    pauses: Pauses
    tokens: RunTokens
    settings: Settings


class Cut(StrEnum):
    """Why a run is made to end."""

    BY_HAND = "by hand"
    SHUTDOWN = "shutdown"
    TIMEOUT = "timeout"
    LEASE = "lease"
    """Another machine may start the same from now on."""


class Execution:
    """A run in flight."""

    def __init__(
        self,
        service: Service,
        row: RunRow,
        means: Means,
        *,
        on_spawned: Callable[["Execution"], None],
        on_ended: Callable[["Execution", Ended], None],
        leash: Tether | None = None,
    ) -> None:
        self.service = service
        self.row = row
        self.leash = leash
        """What it is on, if anything."""
        self.cut: Cut | None = None
        """Why it is made to end; the first who asks gives the reason."""
        loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[None] = loop.create_future()
        """Done when its process was made, or could not be."""
        self.ended: asyncio.Future[Ended] = loop.create_future()
        self._means = means
        self._on_spawned, self._on_ended = on_spawned, on_ended
        self._begun_us = row.started_us
        self._end: tuple[Instant, int] | None = None
        """When its own process ended, and after how long."""
        self._tail = Tail(round(means.settings.output_kib * 1024))
        self._process: Process | None = None
        self._is_killed = False
        self._marker = means.tokens.token_of(row.id)
        self._is_asked: asyncio.Future[None] = loop.create_future()
        means.ledger.open(row, self._tail)
        self._task = loop.create_task(self._perform(), name=f"duly run {row.id} of {row.service}")

    # --- what others do to it ---

    def ask(self, why: Cut) -> None:
        """Have it end: TERM, a grace, KILL."""
        if self.cut is None:
            self.cut = why
            self._is_asked.set_result(None)

    def kill(self) -> None:
        """Have it end now, or as soon as there is a process to kill."""
        self._is_killed = True
        if self._process is not None and not self.ended.done():
            self._process.signal(signal.SIGKILL)
            self._process.signal_strays(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to its processes, if there are any yet."""
        if self._process is not None and not self.ended.done():
            self._process.signal(number)

    @property
    def strays(self) -> Process | None:
        """Its process, if there are some that it started that live outside its group."""
        return self._process if self._process is not None and self._process.has_strays() else None

    def shift(self, by_us: int) -> None:
        """Account for a step of the wall clock: how long a run lasts is a length of time."""
        self._begun_us += by_us

    # --- its life ---

    async def _perform(self) -> None:
        try:
            end = await self._lived()
        except Exception as error:
            end = self._lost(error)
        if self.leash is not None:
            self.leash.release(self._marker)
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
        )
        self._means.ledger.close(self.row)
        self._guarded(lambda: self._on_ended(self, end))
        self._means.ledger.tell_end(self.row, lasted_us)
        self._settle()
        self.ended.set_result(end)

    async def _lived(self) -> Ended:
        await self._means.pauses.within(_RECORDING_S, self._means.ledger.recorded())
        if self.cut is not None:
            self._means.ledger.tell_start(self.row)
            return Ended(Result.INTERRUPTED, message="called off before its process was made")
        try:
            process = await self._spawned()
        except SpawnError as error:
            self._means.ledger.tell_start(self.row)
            result = Result.INTERRUPTED if isinstance(error, CalledOffError) else Result.SPAWN_ERROR
            return Ended(result, message=error.reason)
        self._process = process
        try:
            if self.leash is not None:
                self.leash.hold(self._marker, process.identity)
            self._note(process)
            return await self._watched(process)
        finally:
            process.close()

    async def _spawned(self) -> Process:
        service, means = self.service, self._means
        env = {**service.env, RUN_ID: means.tokens.run_name(self.row.id)}
        command = Command(tuple(service.command), env, service.cwd)
        if self.leash is not None:
            if not self.leash.expect(self._marker):
                raise CalledOffError
            command = replace(command, may_start=partial(self.leash.allows, self._marker))
        try:
            return await means.processes.start(command, marker=self._marker, output=self._tail)
        except SpawnError:
            raise
        except Exception as error:
            raise SpawnError(described(error)) from error

    def _note(self, process: Process) -> None:
        identity, means = process.identity, self._means
        self.row = msgspec.structs.replace(
            self.row, pid=identity.pid, pid_started=identity.started, boot=identity.boot
        )
        means.ledger.open(self.row, self._tail)
        self._guarded(lambda: self._on_spawned(self))
        means.ledger.tell_start(self.row)
        self._settle()

    async def _watched(self, process: Process) -> Ended:
        exited = asyncio.ensure_future(process.exited())
        exited.add_done_callback(self._note_exit)
        try:
            is_cut_off = await self._is_cut_off(exited)
            if is_cut_off:
                if self._is_killed:  # before there was a process
                    process.signal(signal.SIGKILL)
                await self._stopped(process, with_strays=True)
            code = await exited
            # A job may start what is to outlive it, and says so by setsid; a service that comes back may not.
            with_strays = self.service.type == "simple" and process.has_strays()
            if with_strays or process.is_group_alive():
                await self._stopped(process, with_strays=with_strays)
        finally:
            exited.cancel()
        cut = self.cut if is_cut_off else None
        if cut is Cut.LEASE or self._is_unleashed(code):
            return Ended(Result.INTERRUPTED, message="cut off: this machine's lease on the timers ran out")
        return ended_of(code, was_timed_out=cut is Cut.TIMEOUT, was_interrupted=cut is Cut.SHUTDOWN)

    def _is_unleashed(self, code: int) -> bool:
        """Whether it was killed on the leash before we came to do it: we were stopped, or late."""
        if self.leash is None or self.leash.allows(self._marker):
            return False
        return code == -signal.SIGKILL

    async def _stopped(self, process: Process, *, with_strays: bool) -> None:
        clock, grace_s = self._means.pauses.clock, self._means.settings.kill_grace_sec
        await stopped(process, clock, grace_s=grace_s, with_strays=with_strays)

    async def _is_cut_off(self, exited: asyncio.Future[int]) -> bool:
        """Wait for the end of its process; whether that has not come when time is up or somebody asks."""
        waited_for: set[asyncio.Future[Any]] = {exited, self._is_asked}
        limit_s = self.service.timeout_sec if self.service.type == "oneshot" else None
        if limit_s is not None:
            waited_for.add(limit := asyncio.ensure_future(self._means.pauses.wait(limit_s)))
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if limit_s is not None:
                limit.cancel()
        if exited.done():
            return False
        if self.cut is None:
            limit.result()  # a clock that cannot sleep must not look like a long time
            self.cut = Cut.TIMEOUT
        return True

    def _note_exit(self, exited: asyncio.Future[int]) -> None:
        if not exited.cancelled():
            self._end = self._reached()

    def _reached(self) -> tuple[Instant, int]:
        """The present instant, and how long it has lasted."""
        now_us = self._means.pauses.now_us()  # which tells of a step first, and so may shift what follows
        return now_us, max(now_us - self._begun_us, 0)

    def _lost(self, error: Exception) -> Ended:
        """A fault of ours: nobody watches the process any more, so it must not live on."""
        self._guarded(self.kill)
        return Ended(Result.INTERRUPTED, message=f"duly lost track of it: {described(error)}")

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)

    def _guarded(self, told: Callable[[], None]) -> None:
        try:
            told()
        except Exception as error:
            tell_operator(f"duly: run {self.row.id} of {self.row.service}: {described(error)}")


_RECORDING_S = 1.0
"""How long a process waits for the store to know of its run. A disk that hangs keeps nobody from running."""
