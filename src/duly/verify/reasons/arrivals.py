"""What a chronicle of one task is made of: the dues that came together, what they waited for, and the runs.

Plain records. Dues are never kept one by one, so a downtime of ten years is as small as one of a minute.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from duly.verify.dues import NEVER_US, Dues

MINUTE_US = 60_000_000
MOST_COUNTED = 1000
"""Dues that one start answers are counted up to here; beyond it they are "more than"."""
_FIRST_LOOK_BACK_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be kept: one minute, or the latest *count* dues up to *until_us*.

    Runs are kept of that minute, or of that of the latest due of all.
    """

    minute_us: int | None = None
    until_us: int = NEVER_US
    count: int = 1


class CauseKind(StrEnum):
    """Why a run started."""

    DUE = "due"
    REGISTRATION = "registration"
    RETRY = "retry"
    INTERRUPTED = "interrupted"
    BEFORE = "before_the_trace"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of a start: *at_us* is the first due, the failure, or the crash."""

    kind: CauseKind
    at_us: int
    last_us: int
    count: int = 1
    is_perhaps: bool = False


class Ending(StrEnum):
    """What became of a run."""

    OK = "ok"
    FAILED = "failed"
    CUT_OFF = "cut off"
    RUNNING = "still running"
    UNKNOWN = "not known"


@dataclass(slots=True)
class Run:
    """One run of the task."""

    started_us: int
    number: int | None = None
    causes: tuple[Cause, ...] = ()
    ending: Ending = Ending.RUNNING
    ended_us: int | None = None
    is_from_before: bool = False
    """It was in flight when the trace began, which does not say since when."""


@dataclass(slots=True)
class Downtime:
    """A time in which the scheduler started nothing: *reason* says what began it."""

    since_us: int
    reason: str
    until_us: int | None = None
    is_inferred: bool = False
    """It began with a crash that only the next process shows: *since_us* is the last event before."""


@dataclass(slots=True)
class Standing:
    """Dues that wait together: for a start, or until the registration that they belong to is gone."""

    count: int = 0
    last_us: int = 0
    first_us: int = NEVER_US
    is_registration: bool = False
    """It began with the minute in which the task was registered."""
    run: Run | None = None
    cleared_us: int | None = None
    is_removed: bool = False
    perhaps_cleared_us: int | None = None
    is_doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The dues from *first_us* to *to_us*, which came in the same circumstances."""

    dues: Dues
    first_us: int
    to_us: int
    certain_us: int
    """Whether a due before this one counted, the trace leaves open."""
    standing: Standing
    down: Downtime | None
    run: Run | None
    """The run that was in flight."""
    jump: tuple[int, int] | None
    """The step of the clock that went over them."""
    init: tuple[int, int] | None
    """The `initialize` that registered the task in their minute."""


@dataclass(slots=True)
class Tenure:
    """From when on the task was registered with a cron text. Several if that is not certain; None: not."""

    crons: tuple[str | None, ...]
    since_us: int
    until_us: int = NEVER_US


def latest(dues: Dues, from_us: int, to_us: int, count: int = 1) -> list[int]:
    """The last *count* dues in from_us < due <= to_us, found without walking all of them."""
    width_us = _FIRST_LOOK_BACK_US
    while True:
        since_us = max(from_us, to_us - width_us)
        found = deque(dues.between(since_us, to_us), maxlen=count)
        if len(found) == count or since_us == from_us:
            return list(found)
        width_us *= 8
