"""What the checker knows of one task id: its possible worlds and its runs in flight."""

from duly.verify.dues import NEVER_US
from duly.verify.trace import Position
from duly.verify.worlds import LONG_AGO_US, UNREGISTERED, Worlds


class Task:
    """What is known of one task id."""

    __slots__ = (
        "ended",
        "ended_at",
        "id",
        "idle_us",
        "listed_us",
        "missed_us",
        "runs",
        "started",
        "started_at",
        "version",
        "worlds",
    )

    def __init__(self, task_id: str) -> None:
        self.id = task_id
        self.worlds: Worlds = (UNREGISTERED,)
        self.runs: dict[int, tuple[int, Position]] = {}
        """Runs in flight by number: the position and event of their start."""
        self.idle_us = LONG_AGO_US
        """Since when nothing of it is running."""
        self.listed_us = NEVER_US
        """When a list with it first took effect."""
        self.missed_us = LONG_AGO_US
        """Up to when everything that was owed and did not start has been objected to."""
        self.version = 0
        """Which of its deadlines counts: every start and end makes the older ones void."""
        self.started_at = 0
        self.started: Position | None = None
        self.ended: Position | None = None
        self.ended_at = 0
