"""A plan: everything that will befall a simulated program, written down before it begins.

A plan is plain values and nothing else, so it can be printed, compared, shortened and carried to another
process; the same plan always gives the same life. Times are microseconds of steady time since the
beginning. What chance still has to say while the plan is carried out, such as which sectors a power cut
tears, it says from the seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from duly.engine.poller import WAVE
from duly.instant import MINUTE_US, SECOND_US, Instant
from tests.simulation.disk import Cut, DiskFault
from tests.simulation.steady import Point


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One registration, without its callback."""

    name: str
    cron: str
    delay_us: int


Items = tuple[PlannedTask, ...]


class How(StrEnum):
    """What a callback does."""

    RETURN = "return"
    RAISE = "raise"
    EXIT = "exit"
    INTERRUPT = "interrupt"
    CANCEL = "cancel"
    HANG = "hang"
    STOP = "stop"
    INITIALIZE = "initialize"
    WAIT = "wait"
    """Until the plan says how it ends."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one run goes: it lasts so long, and then does this."""

    how: How = How.RETURN
    lasts_us: int = 0


@dataclass(frozen=True, slots=True)
class Initialize:
    """The program calls `initialize`; with None, with the list it has."""

    at_us: int
    items: Items | None = None
    patience: int | None = None
    """After how many turns of the loop the program gives the call up."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """The program calls `initialize` with a list that is not valid."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The program calls `stop`."""

    at_us: int
    patience: int | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """The process dies, *after* so many more points of a kind, and comes back, perhaps with another list."""

    at_us: int
    point: Point = Point.AWAIT
    after: int = 0
    cut: Cut = Cut.KILL
    downtime_us: int = SECOND_US
    items: Items | None = None
    damaged: str = ""
    """A task whose row somebody damages meanwhile."""
    then: "Crash | None" = None
    """How the process that comes back dies in its turn; its points are counted from its beginning."""


@dataclass(frozen=True, slots=True)
class Step:
    """The wall clock is set, or, forward, the host was suspended."""

    at_us: int
    by_us: int


@dataclass(frozen=True, slots=True)
class Stall:
    """Time passes and the process does nothing."""

    at_us: int
    for_us: int


@dataclass(frozen=True, slots=True)
class Break:
    """The disk is faulty for a while."""

    at_us: int
    for_us: int
    fault: DiskFault = DiskFault.FULL
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Lock:
    """Another program holds a lock on the database for a while."""

    at_us: int
    for_us: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The store fails for a while."""

    at_us: int
    for_us: int


@dataclass(frozen=True, slots=True)
class Lose:
    """The store works for a while and its acknowledgements get lost."""

    at_us: int
    for_us: int


@dataclass(frozen=True, slots=True)
class Lag:
    """The store is slow for a while."""

    at_us: int
    for_us: int
    lag_us: int = SECOND_US


@dataclass(frozen=True, slots=True)
class Finish:
    """Runs of a task that wait to be told, end."""

    at_us: int
    name: str
    ok: bool = True


Action = Initialize | Mistake | Stop | Crash | Step | Stall | Break | Lock | Refuse | Lose | Lag | Finish
Trouble = Break | Lock | Refuse | Lose | Lag
"""What keeps the store from writing at once."""

LONGEST_PAUSE_US = 17 * SECOND_US
"""A store that has failed is asked again after 16 seconds at the latest."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A life, before it is lived."""

    seed: int
    zone: str
    start_us: Instant
    duration_us: int
    items: Items
    actions: tuple[Action, ...] = ()
    behaviours: Mapping[str, tuple[Behaviour, ...]] = field(default_factory=dict)
    is_durable: bool = True
    """Whether the store is the SQLite store on the simulated disk, or the one in memory."""
    run_timeout_us: int | None = None
    wave: int = WAVE
    """So many runs the scheduler starts with one write."""
    heal_us: int = 5 * MINUTE_US

    @property
    def troubled_us(self) -> int:
        """The longest stretch for which the store may be unable to write."""
        longest_us = until_us = begun_us = 0
        for trouble in sorted(self._troubles(), key=lambda each: each.at_us):
            if trouble.at_us > until_us + LONGEST_PAUSE_US:
                begun_us = trouble.at_us
            until_us = max(until_us, trouble.at_us + trouble.for_us)
            longest_us = max(longest_us, until_us - begun_us + LONGEST_PAUSE_US)
        return longest_us

    @property
    def slack_us(self) -> int:
        """How much later things may happen through no fault of the scheduler's: lags, locks, stalls."""
        stalls_us = sum(action.for_us for action in self.actions if isinstance(action, Stall))
        lags_us = max((action.lag_us for action in self.actions if isinstance(action, Lag)), default=0)
        locks_us = 5 * SECOND_US if any(isinstance(action, Lock) for action in self.actions) else 0
        return stalls_us + 6 * lags_us + locks_us

    @property
    def persist_window_us(self) -> int:
        """The smallest persist window that is true."""
        return max(self.troubled_us + self.slack_us, 1_000)

    def _troubles(self) -> list[Trouble]:
        return [action for action in self.actions if isinstance(action, Break | Lock | Refuse | Lose | Lag)]
