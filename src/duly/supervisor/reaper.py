"""The reaper: buries the orphans that a PID 1 or a subreaper inherits, and never a child of our own.

On SIGCHLD it looks, without taking, which exit is next. One that is ours, or may be, is left to its own
watcher, and the reaper looks again when that has taken it; any other is taken and counted. Everything in this
program that starts children must therefore do so through the brood that the reaper was given.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable

from duly.supervisor.children import Brood

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Ask to inherit the orphans among our descendants; whether that is so now. Only Linux knows this."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


class Reaper:
    """Reaps whatever is not of *brood*, from `begin` to `end`."""

    def __init__(self, brood: Brood) -> None:
        self._brood = brood
        self._unwatch: Callable[[], None] | None = None
        self.reaped = 0
        """How many were reaped."""

    def begin(self) -> None:
        """Reap from now on. Call it on the event loop, in the main thread."""
        if not hasattr(os, "waitid") or self._unwatch is not None:
            return
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.look)
        self._unwatch = self._brood.watch(self.look)
        self.look()

    def end(self) -> None:
        """Reap no more."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def look(self) -> None:
        """Reap what is there to be reaped, up to the first exit that may be ours."""
        while (pid := _next_exit()) is not None and not self._brood.may_hold(pid):
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
            self.reaped += 1


def _next_exit() -> int | None:
    """The pid of a child whose exit nobody has taken yet; it stays untaken."""
    try:
        seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if seen is None else seen.si_pid
