"""Processes in virtual time: they start, write, last, ignore signals and end as a test says, without threads.

They pass the same tests as the host's processes, as far as those have anything in common, so that what is
shown of a supervisor in virtual time holds on a host.
"""

import asyncio
import signal
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

from duly.clock import Clock, watchable
from duly.instant import SECOND_US, instant_of
from duly.processes.output import Tail
from duly.processes.pauses import Pauses
from duly.processes.procfs import Identity
from duly.processes.spawn import CalledOffError, ProcessCommand, SpawnError

BOOT = "virtual"
"""The boot of fake processes: no real process is ever taken for one."""

_HARMLESS = frozenset({0, signal.SIGCONT, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH})
_STOPPING = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


@dataclass(frozen=True, slots=True)
class Script:
    """What the processes of one program do."""

    lasts: timedelta | None = None
    """How long one runs; None: until it is told to end."""
    code: int = 0
    """Its return code; negative: the signal it ends by."""
    ignores_term: bool = False
    spawn_error: str | None = None
    outputs: bytes = b""
    """What it writes at once."""
    leaves_behind: bool = False
    """It leaves somebody in its group who lives until a KILL."""
    leaves_orphan: bool = False
    """It leaves somebody outside its group, who lives until a TERM."""
    spawn_takes: timedelta = timedelta(0)


class FakeProcess:
    """A process that follows a script."""

    def __init__(
        self, identity: Identity, command: ProcessCommand, token: str, output: Tail, script: Script
    ) -> None:
        self.identity = identity
        self.command = command
        self.token = token
        self.output = output
        self.signals: list[int] = []
        """The signals it was sent while something lived in its group."""
        self.is_closed = False
        self._script = script
        self._is_stopped = False
        self._pending: list[int] = []
        self._has_remains = script.leaves_behind
        self._has_orphan = script.leaves_orphan
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        """Whether the process itself has not ended yet."""
        return not self._exit.done()

    def exited(self) -> Awaitable[int]:
        """Its return code, once it has ended."""
        return asyncio.shield(self._exit)

    def signal(self, number: int) -> None:
        """Do what the script and the habits of signals say."""
        if not self.is_group_alive():
            return
        self.signals.append(number)
        if number == signal.SIGKILL:
            self._has_remains = False
            self.end(-signal.SIGKILL)
        elif number == signal.SIGCONT:
            self._is_stopped = False
            pending, self._pending = self._pending, []
            for each in pending:
                self._on_signal(each)
        elif number in _STOPPING:
            self._is_stopped = True
        elif self._is_stopped:
            self._pending.append(number)
        else:
            self._on_signal(number)

    def is_group_alive(self) -> bool:
        """Whether it, or what it left behind, still lives."""
        return self.is_alive or self._has_remains

    def has_orphans(self) -> bool:
        """Whether what it left outside its group lives; while it lives itself, that is not ours."""
        return self._has_orphan and not self.is_alive

    def signal_orphans(self, number: int) -> None:
        """End what it left outside its group."""
        if self.has_orphans() and number in {signal.SIGTERM, signal.SIGKILL}:
            self._has_orphan = False

    def close(self) -> None:
        """Nothing is left in a pipe that is not there."""
        self.is_closed = True

    def end(self, code: int) -> None:
        """End with *code* now, if it has not ended yet."""
        if not self._exit.done():
            self._exit.set_result(code)

    def write(self, chunk: bytes) -> None:
        """Write *chunk* to its output."""
        self.output.write(chunk)

    def _on_signal(self, number: int) -> None:
        if number in _HARMLESS or (number == signal.SIGTERM and self._script.ignores_term):
            return
        self.end(-number)


class FakeProcesses:
    """Starts fake processes. A program without a script is not found."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scripts: dict[str, Script] = {}
        self._pids = count(100_001)
        self._lives: set[asyncio.Task[None]] = set()
        self.started: list[FakeProcess] = []
        """Every process ever started, in order."""

    def script(self, argv0: str, **what: Any) -> None:
        """Say what the processes of the program *argv0* do, from the next one on: fields of `Script`."""
        self._scripts[argv0] = Script(**what)

    @property
    def living(self) -> list[FakeProcess]:
        """The processes in whose group something lives, or that left somebody outside it."""
        return [each for each in self.started if each.is_group_alive() or each.has_orphans()]

    async def start(self, command: ProcessCommand, *, token: str, output: Tail) -> FakeProcess:
        """Start *command* as the run *token*. Raises SpawnError."""
        name = command.argv[0] if command.argv else ""
        script = self._scripts.get(name)
        if script is None:
            raise SpawnError(f'Command "{name}" is not found in PATH (it has no script)')
        if script.spawn_takes:
            await self._clock.sleep_until(self._clock.now() + script.spawn_takes)
        if command.may_start is not None and not command.may_start():
            raise CalledOffError
        if script.spawn_error is not None:
            raise SpawnError(script.spawn_error)
        started = instant_of(self._clock.now()) * _TICKS_PER_SECOND // SECOND_US
        process = FakeProcess(Identity(next(self._pids), started, BOOT), command, token, output, script)
        self.started.append(process)
        process.write(script.outputs)
        if script.lasts is not None:
            life = asyncio.get_running_loop().create_task(self._live(process, script.lasts, script.code))
            self._lives.add(life)
            life.add_done_callback(self._lives.discard)
        return process

    async def _live(self, process: FakeProcess, lasts: timedelta, code: int) -> None:
        pauses = Pauses(watchable(self._clock))
        pauses.begin()
        ending = asyncio.ensure_future(process.exited())
        try:
            await pauses.within(lasts.total_seconds(), ending)
        finally:
            ending.cancel()
            pauses.end()
        process.end(code)


_TICKS_PER_SECOND = 100
