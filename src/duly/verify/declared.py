"""What the monitor of timers is told of each when they are put to work: how it is declared, and some facts.

The first two are from the timer's row in the store: up to where its slots were answered, and what it missed
last. A monitor has not seen what came before it, and after the clock was set back that comes a second time.
They say what was written, not what is to be done about it. The others tell of timers that machines share.
"""

from collections.abc import Sequence
from datetime import tzinfo
from typing import NamedTuple, Protocol

from duly.verify.slots import CalendarLike

STEP_BACK_US = 5 * 60 * 1_000_000
"""A clock set back further than this makes slots count from the new time."""


class TimerLike(Protocol):
    """A timer as declared."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def target(self) -> str: ...  # noqa: D102
    @property
    def persistent(self) -> bool: ...  # noqa: D102
    @property
    def on_calendar(self) -> Sequence[CalendarLike]: ...  # noqa: D102
    @property
    def on_startup_sec(self) -> float | None: ...  # noqa: D102
    @property
    def on_unit_active_sec(self) -> float | None: ...  # noqa: D102
    @property
    def retry_intervals_sec(self) -> Sequence[float]: ...  # noqa: D102
    @property
    def catch_up_window_sec(self) -> float: ...  # noqa: D102


class Stint(NamedTuple):
    """How a timer is at work that other machines may hold as well."""

    number: int = 0
    """Another one whenever it was let go of meanwhile."""
    turns: int = 0
    """Another one whenever it was kept from firing meanwhile."""
    is_able: bool = True
    """Whether it can fire at this moment."""


class Declared(NamedTuple):
    """A timer and the zone of its calendar."""

    timer: TimerLike
    zone: tzinfo
    answered_us: int | None = None
    """Every slot up to here was fired for, missed, or came before the timer was declared; None: unknown."""
    missed_us: int | None = None
    """The last that was told as missed; None: nothing, or unknown."""
    stint: Stint = Stint()
    is_under_way: bool = False
    """A run of it, or the wait for a retry, has begun before it was looked at."""


def answered_before(declared: Declared, now_us: int) -> int:
    """Up to where nothing is asked of a timer that is put to work now.

    After a small step back that lies ahead if a session before answered it: such a minute does not come
    again. What was written under a clock further ahead counts for nothing, for slots then count afresh.
    """
    told_us = declared.answered_us
    is_told = told_us is not None and told_us <= now_us + STEP_BACK_US
    return max(now_us, told_us or now_us) if is_told else now_us
