"""A plan for a cluster: hosts with clocks of their own, lists, and everything that will befall them.

Plain values, as for a single program. Times are microseconds of the world's time since the beginning. Hosts
and lists are named by their numbers, so that a plan can be printed and shortened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from duly.instant import MINUTE_US, SECOND_US, Instant
from duly.testing.simulation.plan import Behaviour, Items


@dataclass(frozen=True, slots=True)
class Host:
    """A machine: how wrong its clocks are."""

    offset_us: int = 0
    """How far its wall clock is off. It must not matter."""
    drift_ppm: int = 0
    """How much faster its steady clock runs, in millionths."""
    boots_us: int = 0
    """When its program is first started."""
    items: int = 0
    """Which list its program is first started with."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The program dies, after so many more turns of its loop, and is started again later."""

    at_us: int
    host: int
    after: int = 0
    downtime_us: int = 20 * SECOND_US
    items: int | None = None
    """The list of the program that comes back; None for the same."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The program stops, and is started again later, perhaps with another list: a deploy."""

    at_us: int
    host: int
    downtime_us: int = SECOND_US
    items: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The program calls `initialize` with another list."""

    at_us: int
    host: int
    items: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The program gets no time for a while (SIGSTOP); its steady clock goes on."""

    at_us: int
    host: int
    for_us: int


@dataclass(frozen=True, slots=True)
class Step:
    """The wall clock of a host is set."""

    at_us: int
    host: int
    by_us: int


@dataclass(frozen=True, slots=True)
class Part:
    """A host and the board cannot reach each other; requests are lost, or arrive when it is over."""

    at_us: int
    host: int
    for_us: int
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """Messages of a host take long."""

    at_us: int
    host: int
    for_us: int
    request_us: int = 0
    answer_us: int = 0


@dataclass(frozen=True, slots=True)
class Lossy:
    """Some of the messages of a host are lost, requests and answers alike."""

    at_us: int
    host: int
    for_us: int
    percent: int = 30


@dataclass(frozen=True, slots=True)
class Away:
    """The board cannot be reached by anybody: connections are refused, or nothing answers."""

    at_us: int
    for_us: int
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class Forget:
    """The board is away for a moment and comes back as it was so long before: a promoted standby."""

    at_us: int
    back_us: int
    for_us: int = SECOND_US


class Fate(StrEnum):
    """What may befall one message."""

    REQUEST_LOST = "request-lost"
    ANSWER_LOST = "answer-lost"
    REQUEST_LATE = "request-late"
    """It arrives when the sender has given it up and, most likely, repeated it."""
    ANSWER_LATE = "answer-late"
    CRASH_BEFORE = "crash-before"
    """The sender dies; the request never leaves."""
    CRASH_SENT = "crash-sent"
    """The sender dies; the request is on its way."""
    CRASH_DONE = "crash-done"
    """The sender dies when the board has done it."""


@dataclass(frozen=True, slots=True)
class Harm:
    """What befalls the message with this number among those of a host."""

    host: int
    number: int
    fate: Fate
    late_us: int = 0
    at_us: int = 0


Action = Crash | Leave | Change | Pause | Step | Part | Slow | Lossy | Away | Forget | Harm


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The life of a cluster, before it is lived."""

    seed: int
    start_us: Instant
    duration_us: int
    hosts: tuple[Host, ...]
    lists: tuple[Items, ...]
    actions: tuple[Action, ...] = ()
    behaviours: Mapping[str, tuple[Behaviour, ...]] = field(default_factory=dict)
    ttl_us: int = 6 * SECOND_US
    shards: int = 8
    run_timeout_us: int | None = None
    settle_us: int = 3 * MINUTE_US
    tick_us: int | None = SECOND_US
    """After how long a silence the recorders of the programs write a tick; None for never."""

    @property
    def patience_us(self) -> int:
        """How long a program waits for an answer: half of a lease, as the PostgreSQL board does."""
        return self.ttl_us // 2

    @property
    def beat_us(self) -> int:
        """The time between two renewals."""
        return self.ttl_us // 3
