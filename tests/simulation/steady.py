"""Steady time and the moments at which a process can die.

Steady time is what no clock step touches: it only ever passes, and in a simulation it passes when somebody
says so. A crash point is a moment between two things a process does; the points are counted as they go by,
and one of them may be fatal. Both belong to the host: a process comes and goes, they stay.
"""

from dataclasses import dataclass, field
from enum import StrEnum

NEVER = 2**62


class Point(StrEnum):
    """The kinds of moments at which a process can die."""

    AWAIT = "await"
    """Between two handles of the loop, so at every await."""
    BEFORE_WRITE = "before-write"
    """The store has been asked and has done nothing yet."""
    UNACKNOWLEDGED = "unacknowledged"
    """The store has done it and nobody has heard."""
    DISK = "disk"
    """Before a write, sync, truncation or deletion reaches the disk."""


@dataclass(slots=True)
class Steady:
    """Steady time, in microseconds since the beginning of the simulation."""

    now_us: int = 0


@dataclass(slots=True)
class CrashPoints:
    """Counts the crash points that go by, and says when a fatal one is reached."""

    passed: dict[Point, int] = field(default_factory=lambda: dict.fromkeys(Point, 0))
    fatal: dict[Point, int] = field(default_factory=lambda: dict.fromkeys(Point, NEVER))
    awaits: int = 0
    """How many AWAIT points went by; apart from the others, because there are so many."""
    fatal_await: int = NEVER

    def arm(self, point: Point, after: int) -> None:
        """Make the point that comes when *after* more of its kind have gone by a fatal one."""
        if point is Point.AWAIT:
            self.fatal_await = self.awaits + after
        else:
            self.fatal[point] = self.passed[point] + after

    def disarm(self) -> None:
        """Let nothing be fatal."""
        self.fatal_await = NEVER
        self.fatal = dict.fromkeys(Point, NEVER)

    def is_fatal(self, point: Point) -> bool:
        """Count one more point, other than AWAIT; whether it is the fatal one."""
        number = self.passed[point]
        self.passed[point] = number + 1
        return number >= self.fatal[point]

    @property
    def counts(self) -> dict[Point, int]:
        """How many points of each kind have gone by."""
        return {**self.passed, Point.AWAIT: self.awaits}
