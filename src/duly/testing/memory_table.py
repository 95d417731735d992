"""What is on a board in memory: plain data, which tests may look at and damage, and a simulation copies."""

import msgspec

from duly.core.record import Record
from duly.instant import Instant
from duly.store.board import Request, StartUp, TimerRow


class SeatRow(msgspec.Struct):
    """One member."""

    name: str
    joined_us: Instant
    beaten_us: Instant
    lease_us: Instant
    ttl_us: int
    edition: int = 0
    lag_ms: int = 0
    is_leaving: bool = False


class ShardRow(msgspec.Struct):
    """One shard."""

    taken_us: Instant
    holder: int | None = None
    term: int = 0
    number: int = 0
    lost_by: int | None = None
    lost_us: Instant | None = None


class TaskRow(msgspec.Struct):
    """One task, or one that a list has removed."""

    record: Record
    shard: int
    run_by: int | None
    started_us: Instant | None
    ended_us: Instant | None = None
    is_failed: bool = False


class RequestRow(msgspec.Struct):
    """What somebody asks."""

    request: Request
    taken_by: int | None = None
    answer: str | None = None


class Table:
    """What is on a board, for as many MemoryBoards as share it. Tests may look, and may damage."""

    def __init__(self) -> None:
        self.scheduler_id = ""
        self.server = ""
        """Which server answered last."""
        self.since_us: Instant = 0
        self.open_us: Instant = 0
        """Since when, and until when, it is closed: another server had come to answer."""
        self.members: dict[int, SeatRow] = {}
        self.shards: list[ShardRow] = []
        self.entries: dict[int, TaskRow] = {}
        self.removed: dict[int, TaskRow] = {}
        """What a list has removed while its run went on."""
        self.timers: dict[tuple[int, int], TimerRow] = {}
        """By shard and id."""
        self.requests: dict[int, RequestRow] = {}
        self.start_up: StartUp | None = None
        self.editions: list[str] = []
        """The fingerprints, in order: the first is of edition 1."""
