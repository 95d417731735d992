"""Our children, the orphans that we inherit, and the reaper that takes their exits.

`Children` lists the processes that this program started. Everything else that exits under us is an orphan:
its parent is gone, and a PID 1 or a subreaper inherits it. The `Reaper` takes the exits of orphans and never
that of a child, which its own watcher takes. So everything in this program that starts a process must do so
through the `Children` that the reaper was given.

`OrphanProcesses` are those orphans that belong to one run: processes that left its group and its session, and
whose parents are gone. They are found among our own children, by the token of their run. Their pids are
theirs until we reap them. A process whose parent lives is that parent's business. One that cleared its
environment, or became another user's, is not known.
"""

import asyncio
import ctypes
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from duly.processes.procfs import Identity, Stat, inherited_by, stat_of, token_of_pid

_PR_SET_CHILD_SUBREAPER = 36


class Children:
    """Our own children, from before their birth until their exit was taken.

    While a spawn is under way in a thread nobody can tell whether an unknown pid is the child that it makes.
    Until it is over every exit counts as ours.
    """

    def __init__(self) -> None:
        self._unborn = 0
        self.pids: set[int] = set()
        """The children that are known to be ours."""
        self._others: frozenset[int] = frozenset()
        self._others_s = 0.0
        """The other children, and when they were read."""
        self._watchers: list[Callable[[], None]] = []

    @contextmanager
    def spawning(self) -> Iterator[Callable[[int], None]]:
        """Announce a spawn; call the answer with the pid it made, if the child is to be ours after it too."""
        self._unborn += 1
        try:
            yield self.pids.add
        finally:
            self._unborn -= 1
            # Exits that came during the spawn were left alone: they are looked at now.
            self._changed()

    def may_hold(self, pid: int) -> bool:
        """Whether *pid* is ours, or may turn out to be."""
        return self._unborn > 0 or pid in self.pids

    def forget(self, pid: int) -> None:
        """Note that the exit of *pid* was taken: the number may mean somebody else from now on."""
        self.pids.discard(pid)
        self._changed()

    def others(self, since_s: float) -> frozenset[int]:
        """The children that are none of ours, as they were at some time after *since_s* (monotonic).

        The kernel lists all our children each time. Hundreds of runs that end together share one list.
        """
        if self._others_s <= since_s:
            self._others_s = time.monotonic()
            self._others = inherited_by(os.getpid()) - self.pids
        return self._others

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call *watcher* after every birth in a thread and every exit; the answer ends that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def _changed(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()


class OrphanProcesses:
    """The orphan processes of the run of *leader*; *children* has our children that are none."""

    def __init__(self, token: str, leader: Identity, children: Children) -> None:
        self._token = token
        self._leader = leader
        self._children = children
        self._signalled: set[int] = set()
        """Groups that were sent TERM."""
        self._is_killing = False

    def living(self) -> list[Stat]:
        """Those that live now. Call it where children are reaped: on the event loop."""
        while True:
            inherited = self._children.others(math.inf)
            found = [stat for pid in inherited if (stat := self._orphan(pid)) is not None]
            # One may have died meanwhile, and left us a child of its own.
            if found or not inherited or inherited >= self._children.others(math.inf):
                return found

    def may_live(self, ended_s: float) -> bool:
        """Whether there may be any, once the process of the run has ended: those left were inherited then."""
        return bool(self._children.others(ended_s))

    def _orphan(self, pid: int) -> Stat | None:
        stat = stat_of(pid)
        if stat is None or stat.is_dead or stat.group == self._leader.pid:
            return None
        return stat if token_of_pid(pid) == self._token else None

    def signal(self, number: int) -> None:
        """Send a signal to their groups: TERM once to each, and no longer when KILL was sent to others."""
        self._is_killing = self._is_killing or number == signal.SIGKILL
        # A group of a session that a process of the run began, or a group in it: nobody else's.
        groups = {stat.group for stat in self.living()}
        if self._is_killing:
            number = signal.SIGKILL
        elif number == signal.SIGTERM:
            groups -= self._signalled
            self._signalled |= groups
        for group in groups:
            with suppress(ProcessLookupError, PermissionError):  # gone meanwhile, or another user's
                os.killpg(group, number)
                if number == signal.SIGTERM:
                    os.killpg(group, signal.SIGCONT)  # a stopped process does not react to TERM


def become_subreaper() -> bool:
    """Ask to inherit the orphans among our descendants; whether that is so now. Only Linux knows this."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


class Reaper:
    """Reaps whatever is not in *children*, from `begin` to `end`."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._unwatch: Callable[[], None] | None = None
        self.reaped = 0
        """How many were reaped."""

    def begin(self) -> None:
        """Reap from now on. Call it on the event loop, in the main thread."""
        if not hasattr(os, "waitid") or self._unwatch is not None:
            return
        # First the handler, then a look: an exit in between is seen by one of the two.
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.look)
        self._unwatch = self._children.watch(self.look)
        self.look()

    def end(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def look(self) -> None:
        """Reap what is there to be reaped, up to the first exit that may be ours."""
        # `waitid` shows the same exit until it is taken. Ours is taken by its watcher, whose `forget` has us
        # look again.
        while (pid := _next_exit()) is not None and not self._children.may_hold(pid):
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
            self.reaped += 1


def _next_exit() -> int | None:
    """The pid of a child whose exit nobody has taken yet; it stays untaken."""
    try:
        # WNOWAIT: only looked at. The exit of a child is needed by its own watcher.
        seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if seen is None else seen.si_pid
