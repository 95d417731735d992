"""Processes of the host: started off the loop, their exits taken one by one, their groups ended as a whole.

Each process leads a session and a process group of its own. Its exit is learned from its pidfd (or by a
thread that waits for this one pid), never guessed from SIGCHLD and never taken by waiting for just any child.
A group is signalled only while it is certain whose it is: the number of a dead process may be given again.
What left the group, and was left to us, is ended with it if the run is cut off (`strays`).
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from duly.clock import Clock, watchable
from duly.events import tell_operator
from duly.supervisor.children import (
    Brood,
    Command,
    Spawned,
    SpawnError,
    environment_of,
    heed_ignored_signals,
    spawned,
)
from duly.supervisor.output import Pipe, Tail
from duly.supervisor.pauses import Pauses
from duly.supervisor.procfs import Identity, stats
from duly.supervisor.strays import Strays
from duly.threads import in_thread

__all__ = [
    "Command",
    "HostProcess",
    "HostProcesses",
    "Identity",
    "Process",
    "Processes",
    "SpawnError",
    "stopped",
]

LOST_EXIT = 255
"""The code of an exit that somebody else in this program took: not a success, and nothing better is known."""


class Process(Protocol):
    """One process that was started, and its group."""

    @property
    def identity(self) -> Identity:
        """Which process this is, also after its end."""
        ...

    @property
    def output(self) -> Tail:
        """What it writes."""
        ...

    async def exited(self) -> int:
        """Its return code, once it has ended; negative for a signal. Anybody may ask, at any time."""
        ...

    def signal(self, number: int, /) -> None:
        """Send a signal to the whole group; to nobody when it is gone."""
        ...

    def is_group_alive(self) -> bool:
        """Whether it, or anything that it started in its group, still lives."""
        ...

    def has_strays(self) -> bool:
        """Whether somebody lives that it started, that left its group, and that was left to us."""
        ...

    def signal_strays(self, number: int, /) -> None:
        """Send a signal to those; TERM once to each, however often it is called."""
        ...

    def close(self) -> None:
        """After its end: take what is left in its pipe without waiting, and close that."""
        ...


class Processes(Protocol):
    """What starts processes."""

    async def start(self, command: Command, *, marker: str, output: Tail) -> Process:
        """Start *command* as the run *marker*. Raises SpawnError."""
        ...


class HostProcesses:
    """Starts processes on this host, a few at a time, each in a thread."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, umask: int = -1) -> None:
        self._environment = os.environ if environment is None else environment
        self._umask = umask
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._burials: set[asyncio.Future[None]] = set()
        self.brood = Brood()
        """Our children, for the reaper."""
        heed_ignored_signals()

    async def start(self, command: Command, *, marker: str, output: Tail) -> "HostProcess":
        """Start *command* as the run *marker*. Raises SpawnError.

        A start given up while the process is being made is undone: it is killed as soon as it is there.
        """
        await self._places.acquire()
        starting = asyncio.ensure_future(self._start(command, marker, output))
        starting.add_done_callback(self._leave_place)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._undo)
            raise

    async def _start(self, command: Command, marker: str, output: Tail) -> "HostProcess":
        environment = environment_of(command, self._environment, marker)
        with self.brood.spawning() as born:
            try:
                child = await in_thread(partial(spawned, command, environment, self._umask))()
            except RuntimeError as error:
                raise SpawnError(f'Command "{command.argv[0]}" cannot be started: {error}') from error
            assert isinstance(child, Spawned)
            born(child.identity.pid)
        return HostProcess(child, output, self.brood, Strays(marker, child.identity, self.brood))

    def _leave_place(self, _: "asyncio.Future[HostProcess]") -> None:
        self._places.release()

    def _undo(self, starting: "asyncio.Future[HostProcess]") -> None:
        if not starting.cancelled() and starting.exception() is None:
            burial = asyncio.ensure_future(starting.result().destroyed())
            self._burials.add(burial)
            burial.add_done_callback(self._burials.discard)


class HostProcess:
    """One process of this host."""

    def __init__(self, child: Spawned, output: Tail, brood: Brood, strays: Strays) -> None:
        self._identity = child.identity
        self._output = output
        self._brood = brood
        self._strays = strays
        self._pipe = Pipe(child.pipe, output)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = child.pidfd
        self._is_group_gone = False
        self._waiting: asyncio.Task[None] | None = None
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._look)
        else:
            self._waiting = self._loop.create_task(self._wait())

    @property
    def identity(self) -> Identity:
        """Which process this is, also after its end."""
        return self._identity

    @property
    def output(self) -> Tail:
        """What it writes."""
        return self._output

    async def exited(self) -> int:
        """Its return code, once it has ended; negative for a signal. Anybody may ask, at any time."""
        return await asyncio.shield(self._exit)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group; to nobody when it is gone."""
        if not self.is_group_alive():
            return
        try:
            os.killpg(self._identity.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            tell_operator(
                f"duly: process {self._identity.pid} runs as another user and cannot be sent signal {number}"
            )

    def is_group_alive(self) -> bool:
        """Whether it, or anything that it started in its group, still lives.

        Until its exit is taken its number cannot be given again, and so neither can that of its group. What
        became another user's and can no longer be signalled counts as gone: waiting for it would never end.
        """
        if not self._exit.done():
            return True
        if not self._is_group_gone:
            self._is_group_gone = not _has_living(self._identity)
        return not self._is_group_gone

    def has_strays(self) -> bool:
        """Whether somebody lives that it started, that left its group, and that was left to us."""
        return bool(self._strays.living())

    def signal_strays(self, number: int) -> None:
        """Send a signal to those; TERM once to each, however often it is called."""
        self._strays.signal(number)

    def close(self) -> None:
        """After its end: take what is left in its pipe without waiting, and close that.

        A grandchild that moved to a group of its own may hold the other end; it writes to nobody from now on.
        """
        self._pipe.close()

    async def destroyed(self) -> None:
        """Kill it, and return when that is done."""
        self.signal(signal.SIGKILL)
        await self.exited()
        self.signal_strays(signal.SIGKILL)
        self.close()

    def _look(self) -> None:
        """Take the exit, which the pidfd says is there."""
        try:
            pid, status = os.waitpid(self._identity.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self._identity.pid, None
        if pid == 0:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._end(status)

    async def _wait(self) -> None:
        """Have a thread wait for the exit."""
        taken = await in_thread(partial(_waited, self._identity.pid))()
        assert taken is None or isinstance(taken, int)
        self._end(taken)

    def _end(self, status: int | None) -> None:
        if status is None:
            tell_operator(f"duly: the exit of process {self._identity.pid} was taken by somebody else")
        self._exit.set_result(LOST_EXIT if status is None else os.waitstatus_to_exitcode(status))
        self._brood.taken(self._identity.pid)


def _waited(pid: int) -> int | None:
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return None


def _has_living(leader: Identity) -> bool:
    """Whether the group of *leader*, whose exit was taken, has a living member."""
    try:
        os.killpg(leader.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    found = list(stats())
    if not found:
        return True  # no /proc to ask
    if any(stat.pid == leader.pid and stat.started != leader.started for stat in found):
        return False  # the number was given again: the group is somebody else's
    # The dead that nobody reaps stay in their group; a container whose init does not care is full of them.
    return any(stat.group == leader.pid and not stat.is_dead for stat in found)


async def stopped(process: Process, clock: Clock, *, grace_s: float, with_strays: bool = False) -> int:
    """End *process* and its group: TERM, *grace_s* of time, KILL. The answer is its return code.

    Returns when the process has exited and nothing lives in its group. Called after the process has ended by
    itself, it does the same to what is left of the group: what a service started dies with it, or the next
    run would meet the remains of the last one, on the same port and the same files. Nothing is sent to
    a group that is gone. The same goes for what left the group, if *with_strays*.
    """
    pauses = Pauses(watchable(clock))
    pauses.begin()
    gone = asyncio.ensure_future(_gone(process, pauses, with_strays=with_strays))
    try:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # whoever is stopped cannot heed the TERM
        if with_strays:
            process.signal_strays(signal.SIGTERM)
        is_gone = await pauses.within(grace_s, gone)
        while not is_gone:
            process.signal(signal.SIGKILL)
            if with_strays:
                process.signal_strays(signal.SIGKILL)
            is_gone = await pauses.within(_KILL_AGAIN_S, gone)
        return await gone
    finally:
        gone.cancel()
        pauses.end()


async def _gone(process: Process, pauses: Pauses, *, with_strays: bool) -> int:
    """The return code, once the process has exited and its group is empty."""
    returncode = await process.exited()
    pause_s = _SHORTEST_LOOK_S
    while process.is_group_alive() or (with_strays and process.has_strays()):
        if with_strays:
            process.signal_strays(signal.SIGTERM)  # some become strays only when those before them are gone
        await pauses.wait(pause_s)  # nobody tells when a group becomes empty
        pause_s = min(2 * pause_s, _LONGEST_LOOK_S)
    return returncode


_AT_ONCE = 4
"""More threads than this start no more processes in a second."""
_KILL_AGAIN_S = 1.0
_SHORTEST_LOOK_S = 0.005
_LONGEST_LOOK_S = 0.25
