"""What the monitor of timers keeps: of each timer, of each slot that has come, of each target.

A handful of values for each, however long they run. Instants of the steady clock and of the wall clock are
both counted in microseconds; each field says which it is.
"""

from dataclasses import dataclass
from typing import NamedTuple

from duly.verify.declared import Declared
from duly.verify.dues import NEVER_US
from duly.verify.slots import Slots


@dataclass(slots=True)
class Watched:
    """What is kept of one timer."""

    declared: Declared
    slots: Slots
    answered_us: int
    """Every slot up to here was answered, or is not asked for."""
    slot_us: int = NEVER_US
    """The next one."""
    noticed_us: int | None = None
    """Since when, on the steady clock, that slot is known to have come."""
    last_slot_us: int | None = None
    """The latest slot that was fired for or missed."""
    told_us: int | None = None
    """What a session before told last as missed, until there is a miss in this."""
    firing_run: int | None = None
    firing_slot_us: int | None = None
    has_begun: bool = False
    """Whether the run of the last firing got a process."""
    fired_at_us: int | None = None
    result: str | None = None
    """How its last run ended; None while it is under way, and before the first."""
    ended_us: int = 0
    """When, on the steady clock."""
    retries: int = 0
    is_retried_unseen: bool = False
    """What its next retry is for was not seen."""
    has_started_up: bool = False


class Come(NamedTuple):
    """A slot that has come, and is to be answered in time."""

    noticed_us: int
    slot_us: int
    name: str


@dataclass(slots=True)
class Target:
    """What is kept of one service that timers start."""

    run: int | None = None
    begun_us: int = 0
    ended_us: int | None = None
    """The end of its last run, on the steady clock."""
