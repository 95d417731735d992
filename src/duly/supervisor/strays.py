"""Strays: processes of a run that left its group and its session, and whose parents are gone.

The daemon inherits them, as PID 1 or as a subreaper, and so finds them among its own children: by the marker
of their run. As they are our children, their numbers are theirs until we reap them. One whose parent lives is
that parent's business. One that cleared its environment, or became another user's, is not known.
"""

import os
import signal
from contextlib import suppress

from duly.supervisor.children import Brood
from duly.supervisor.procfs import Identity, Stat, children_of, marker_of, stat_of


class Strays:
    """The strays of one run, whose process is or was *leader*; *brood* has our children that are none."""

    def __init__(self, marker: str, leader: Identity, brood: Brood) -> None:
        self._marker = marker
        self._leader = leader
        self._brood = brood
        self._told: set[int] = set()
        """Groups that were sent TERM."""
        self._is_killing = False

    def living(self) -> list[Stat]:
        """Those that live now. Call it where children are reaped: on the event loop."""
        us = os.getpid()
        while True:
            inherited = children_of(us) - self._brood.pids
            found = [stat for pid in inherited if (stat := self._stray(pid)) is not None]
            # One may have died meanwhile, and left us a child of its own.
            if found or not inherited or inherited >= children_of(us) - self._brood.pids:
                return found

    def _stray(self, pid: int) -> Stat | None:
        stat = stat_of(pid)
        if stat is None or stat.is_dead or stat.group == self._leader.pid:
            return None
        return stat if marker_of(pid) == self._marker else None

    def signal(self, number: int) -> None:
        """Send a signal to their groups: TERM once to each, and no longer when KILL was sent to others."""
        self._is_killing = self._is_killing or number == signal.SIGKILL
        # A group of a session that a process of the run began, or a group in it: nobody else's.
        groups = {stat.group for stat in self.living()}
        if self._is_killing:
            number = signal.SIGKILL
        elif number == signal.SIGTERM:
            groups -= self._told
            self._told |= groups
        for group in groups:
            with suppress(ProcessLookupError, PermissionError):  # gone meanwhile, or another user's
                os.killpg(group, number)
                if number == signal.SIGTERM:
                    os.killpg(group, signal.SIGCONT)  # whoever is stopped cannot heed it
