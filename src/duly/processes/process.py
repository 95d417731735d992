"""Processes of the host: started off the loop, their exits taken one by one, their groups ended as a whole.

Each process leads a session and a process group of its own. Its exit is learned from its pidfd, or by a
thread that waits for this one pid. It is never guessed from SIGCHLD, and never taken by a wait for any child.
A group is signalled only while it is certain whose it is: the number of a dead process may be given again.
What left the group, and was left to us, is ended with it if the run is cut off (`orphans`).
"""

import asyncio
import math
import os
import signal
import time
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Protocol

from duly.clock import Clock, watchable
from duly.events import warn_operator
from duly.instant import back_off
from duly.processes.children import Children, OrphanProcesses
from duly.processes.output import Pipe, Tail
from duly.processes.pauses import Pauses
from duly.processes.procfs import Identity, stats
from duly.processes.spawn import (
    ProcessCommand,
    Spawned,
    SpawnError,
    environment_of,
    handle_ignored_signals,
    kept_of,
    spawn,
)
from duly.threads import in_thread

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

    def exited(self) -> Awaitable[int]:
        """Its return code, once it has ended; negative for a signal. Anybody may ask, at any time."""
        ...

    def signal(self, number: int, /) -> None:
        """Send a signal to the whole group; to nobody when it is gone."""
        ...

    def is_group_alive(self) -> bool:
        """Whether it, or anything that it started in its group, still lives."""
        ...

    def has_orphans(self) -> bool:
        """Whether somebody lives that it started, that left its group, and that was left to us."""
        ...

    def signal_orphans(self, number: int, /) -> None: ...

    def close(self) -> None: ...


class Processes(Protocol):
    """What starts processes."""

    async def start(self, command: ProcessCommand, *, token: str, output: Tail) -> Process:
        """Start *command* as the run *token*. Raises SpawnError.

        A start given up while the process is being made is undone: it is killed as soon as it is there.
        """
        ...


class HostProcesses:
    """Starts processes on this host, a few at a time; in a thread what may have to wait."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, umask: int = -1) -> None:
        # Once: to read `os.environ` costs as much as to make a process.
        self._environment = kept_of(os.environ if environment is None else environment)
        self._umask = umask
        self._spawns = asyncio.Semaphore(_AT_ONCE)
        self._kills: set[asyncio.Future[None]] = set()
        """Processes whose start was given up, being killed."""
        self.children = Children()
        """Our children, for the reaper."""
        handle_ignored_signals()

    async def start(self, command: ProcessCommand, *, token: str, output: Tail) -> "HostProcess":
        await self._spawns.acquire()
        if not command.may_wait:
            # A few in each turn of the loop: a thousand at once must leave room for everybody else.
            try:
                await asyncio.sleep(0)  # noqa: TID251 (yields, does not sleep)
            finally:
                self._spawns.release()
            # On the loop, as the reaper: it cannot look before the child is known.
            child = self._spawned(command, token)
            self.children.pids.add(child.identity.pid)
            return HostProcess(child, token, output, self.children)
        starting = asyncio.ensure_future(self._start(command, token, output))
        # In the callback of the spawn, not of its caller: a thread that makes a process outlives a caller who
        # gave up.
        starting.add_done_callback(lambda _: self._spawns.release())
        try:
            # A spawn in a thread cannot be stopped. What it has made is undone when it is there.
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._undo)
            raise

    async def _start(self, command: ProcessCommand, token: str, output: Tail) -> "HostProcess":
        # From before the spawn: until `born` the reaper cannot tell this child from an orphan.
        with self.children.spawning() as born:
            try:
                child = await in_thread(partial(self._spawned, command, token))()
            except RuntimeError as error:
                raise SpawnError(f'Command "{command.argv[0]}" cannot be started: {error}') from error
            assert isinstance(child, Spawned)
            born(child.identity.pid)
        return HostProcess(child, token, output, self.children)

    def _spawned(self, command: ProcessCommand, token: str) -> Spawned:
        return spawn(command, environment_of(command, self._environment, token), self._umask)

    def _undo(self, starting: "asyncio.Future[HostProcess]") -> None:
        if not starting.cancelled() and starting.exception() is None:
            kill = asyncio.ensure_future(starting.result().destroy())
            self._kills.add(kill)
            kill.add_done_callback(self._kills.discard)


class HostProcess:
    """One process of this host; see `Process`."""

    def __init__(self, child: Spawned, token: str, output: Tail, children: Children) -> None:
        self.identity = child.identity
        self.output = output
        self._children = children
        self._orphans = OrphanProcesses(token, child.identity, children)
        self._pipe = Pipe(child.pipe, output)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = child.pidfd
        self._is_group_gone = False
        self._ended_s = math.inf
        self._waiting: asyncio.Task[None] | None = None
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._take_exit)
        else:
            self._waiting = self._loop.create_task(self._wait_in_thread())

    def exited(self) -> Awaitable[int]:
        # Many may ask. One that gives up must not take the answer from the others.
        return asyncio.shield(self._exit)

    def signal(self, number: int) -> None:
        if not self.is_group_alive():
            return
        try:
            os.killpg(self.identity.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            warn_operator(
                f"duly: process {self.identity.pid} runs as another user and cannot be sent signal {number}"
            )

    def is_group_alive(self) -> bool:
        # Until its exit is taken its number cannot be given again, and so neither can that of its group. What
        # became another user's and can no longer be signalled counts as gone: waiting for it would never end.
        if not self._exit.done():
            return True
        if not self._is_group_gone:
            self._is_group_gone = not _has_living(self.identity)
        return not self._is_group_gone

    def has_orphans(self) -> bool:
        return self._orphans.may_live(self._ended_s) and bool(self._orphans.living())

    def signal_orphans(self, number: int) -> None:
        self._orphans.signal(number)

    def close(self) -> None:
        # A grandchild in a group of its own may hold the other end; it writes to nobody from now on.
        self._pipe.close()

    async def destroy(self) -> None:
        self.signal(signal.SIGKILL)
        await self.exited()
        # Only now: what it had started becomes ours when it is gone.
        self.signal_orphans(signal.SIGKILL)
        self.close()

    def _take_exit(self) -> None:
        """Take the exit, which the pidfd says is there."""
        try:
            pid, status = os.waitpid(self.identity.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = self.identity.pid, None
        if pid == 0:
            return
        # Before the close: the next file that is opened may get the same number.
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._end(status)

    async def _wait_in_thread(self) -> None:
        taken = await in_thread(partial(_exit_of, self.identity.pid))()
        assert taken is None or isinstance(taken, int)
        self._end(taken)

    def _end(self, status: int | None) -> None:
        if status is None:
            warn_operator(f"duly: the exit of process {self.identity.pid} was taken by somebody else")
        self._ended_s = time.monotonic()
        self._exit.set_result(LOST_EXIT if status is None else os.waitstatus_to_exitcode(status))
        self._children.forget(self.identity.pid)


def _exit_of(pid: int) -> int | None:
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return None


def _has_living(leader: Identity) -> bool:
    """Whether the group of *leader*, whose exit was taken, has a living process."""
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


async def stop_process(process: Process, clock: Clock, *, grace_s: float, with_orphans: bool = False) -> int:
    """End *process* and its group: TERM, *grace_s* of time, KILL. The answer is its return code.

    Returns when the process has exited and nothing lives in its group. Called after the process has ended by
    itself, it does the same to what is left of the group: what a service started dies with it, or the next
    run would meet the remains of the last one, on the same port and the same files. Nothing is sent to
    a group that is gone. The same goes for what left the group, if *with_orphans*.
    """
    pauses = Pauses(watchable(clock))
    pauses.begin()
    gone = asyncio.ensure_future(_wait_until_gone(process, pauses, with_orphans=with_orphans))
    try:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a stopped process does not react to TERM
        if with_orphans:
            process.signal_orphans(signal.SIGTERM)
        is_gone = await pauses.within(grace_s, gone)
        # Again until nothing is left: a group may fork while it is killed, and orphans turn up one after the
        # other.
        while not is_gone:
            process.signal(signal.SIGKILL)
            if with_orphans:
                process.signal_orphans(signal.SIGKILL)
            is_gone = await pauses.within(_KILL_AGAIN_S, gone)
        return await gone
    finally:
        gone.cancel()
        pauses.end()


async def _wait_until_gone(process: Process, pauses: Pauses, *, with_orphans: bool) -> int:
    """The return code, once the process has exited and its group is empty."""
    returncode = await process.exited()
    pause_s = _SHORTEST_LOOK_S
    while process.is_group_alive() or (with_orphans and process.has_orphans()):
        if with_orphans:
            process.signal_orphans(signal.SIGTERM)  # some become orphans only when those before them are gone
        await pauses.wait(pause_s)  # nothing reports that a group is empty
        pause_s = back_off(pause_s, _LONGEST_LOOK_S)
    return returncode


_AT_ONCE = 4
"""More threads than this start no more processes in a second."""
_KILL_AGAIN_S = 1.0
_SHORTEST_LOOK_S = 0.005
_LONGEST_LOOK_S = 0.25
