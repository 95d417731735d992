"""A plan for a cluster: hosts with clocks of their own, lists, and everything that will happen to them.

Plain values. Times are microseconds of the world's time since the beginning. Hosts and lists are named by
their numbers, so that a plan can be printed and shortened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from duly.instant import SECOND_US, Instant


@dataclass(frozen=True, slots=True)
class SharedTask:
    """One registration. It is due when the minute of the hour is *first*, and every so many minutes after."""

    name: str
    every: int = 1
    first: int = 0
    delay_us: int = 0

    @property
    def cron(self) -> str:
        """The same as a cron expression."""
        minutes = ",".join(map(str, range(self.first, 60, self.every)))
        return f"{'*' if self.every == 1 else minutes} * * * *"

    def is_due(self, minute: int) -> bool:
        """Whether it is due in that minute since 1970."""
        return minute % 60 in range(self.first, 60, self.every)


Items = tuple[SharedTask, ...]


class BodyEnding(StrEnum):
    RETURN = "return"
    RAISE = "raise"
    EXIT = "exit"
    """It ends its process."""
    BLOCK = "block"
    """It blocks its event loop all the time."""


@dataclass(frozen=True, slots=True)
class BodyBehaviour:
    """How one run goes: it lasts so long, and then does this."""

    how: BodyEnding = BodyEnding.RETURN
    lasts_us: int = 0


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """A machine."""

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
    """The program gets no time for a while (SIGSTOP). Its steady clock goes on."""

    at_us: int
    host: int
    for_us: int


@dataclass(frozen=True, slots=True)
class Part:
    """A host and the database cannot reach each other; requests are lost, or arrive when it is over."""

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
class Restart:
    """The server goes away, and comes back with all that it had acknowledged."""

    at_us: int
    for_us: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The server goes away, and a standby takes over that has what the server had so long before."""

    at_us: int
    back_us: int
    for_us: int = SECOND_US


@dataclass(frozen=True, slots=True)
class Jump:
    """The clock of the database is set."""

    at_us: int
    by_us: int


class Fate(StrEnum):
    """What may happen to one message."""

    REQUEST_LOST = "request-lost"
    ANSWER_LOST = "answer-lost"
    REQUEST_LATE = "request-late"
    """It arrives when the sender has given it up."""
    ANSWER_LATE = "answer-late"
    CRASH_SENT = "crash-sent"
    """The sender dies while the request is on its way."""
    CRASH_DONE = "crash-done"
    """The sender dies when the request has been carried out."""


@dataclass(frozen=True, slots=True)
class Harm:
    """What happens to the message with this number among those of a host."""

    host: int
    number: int
    fate: Fate
    late_us: int = 0
    at_us: int = 0


_ISOLATING = Pause | Part | Slow | Lossy | Restart | Forget
Action = Crash | Leave | Change | Pause | Part | Slow | Lossy | Restart | Forget | Jump | Harm


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The life of a cluster, before it is lived."""

    seed: int
    start_us: Instant
    duration_us: int
    hosts: tuple[PlannedHost, ...]
    lists: tuple[Items, ...]
    actions: tuple[Action, ...] = ()
    behaviours: Mapping[str, tuple[BodyBehaviour, ...]] = field(default_factory=dict)
    lease_us: int = 6 * SECOND_US
    settle_us: int = 150 * SECOND_US
    """How long everything must go well at the end."""

    @property
    def allowance_us(self) -> int:
        """How late a start may be after the last trouble: fences, returns and a new timeline take leases."""
        return 4 * self.lease_us + 5 * SECOND_US

    @property
    def stale_us(self) -> int:
        """How old a program's knowledge of the database's time may be: it is paused, blocked or alone."""
        runs = [
            run.lasts_us for runs in self.behaviours.values() for run in runs if run.how is BodyEnding.BLOCK
        ]
        pauses = [action.for_us for action in self.actions if isinstance(action, _ISOLATING)]
        return self.lease_us + max(runs + pauses, default=0)
