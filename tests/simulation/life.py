"""A life that was lived: the trace, what the checker says of it, and what else is to be said."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from duly.verify.properties import Outcome
from tests.simulation.plan import Plan
from tests.simulation.steady import Point

_MOST_TOLD = 5


class UnsoundLifeError(AssertionError):
    """A simulated scheduler did what it must not, or failed to do what it must."""

    def __init__(self, seed: int, faults: list[str]) -> None:
        more = f"\n... and {len(faults) - _MOST_TOLD} more" if len(faults) > _MOST_TOLD else ""
        super().__init__("\n".join(faults[:_MOST_TOLD]) + more + f"\nreproduce with seed {seed}")
        self.seed = seed
        self.faults = faults


class Judged:
    """A life of any kind of plan that has been judged."""

    __slots__ = ()
    plan: Any
    faults: Any

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    def check(self) -> None:
        """Raise an AssertionError that says what is wrong, if anything is, and how to see it again."""
        if not self.is_sound:
            raise UnsoundLifeError(self.plan.seed, self.faults)


@contextmanager
def unheard() -> Iterator[None]:
    """Keep warnings of a simulated scheduler off the terminal, unless somebody has set up logging."""
    handler, logger = logging.NullHandler(), logging.getLogger("duly")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@dataclass(slots=True)
class Life(Judged):
    """A life that was lived, and what is to be said of it."""

    plan: Plan
    trace_lines: list[bytes]
    outcome: Outcome
    objections: list[str]
    """What the store, or asyncio, has against it; the outcome has the rest."""
    points: dict[Point, int]
    """How many crash points went by before everything was healed."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often what happened, faults and rare situations by name."""
    marks: Counter[str] = field(default_factory=Counter)
    """Which rare paths of the scheduler were taken, and how often (`duly.marks`)."""
    steady_us: int = 0
    last_us: int = 0

    @property
    def hash(self) -> str:
        """The hash of the trace: the same plan, the same hash, on every machine."""
        return hashlib.sha256(b"".join(self.trace_lines)).hexdigest()

    @property
    def log(self) -> list[str]:
        """The trace, to be read."""
        return [line.decode().rstrip() for line in self.trace_lines]

    @property
    def kind(self) -> str:
        """What is wrong first, without the particulars."""
        return self.faults[0].split(":")[0] if self.faults else ""

    @property
    def starts(self) -> int:
        """How many runs were started, and checked."""
        return self.outcome.starts

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong, a line each."""
        return [
            *(f"{each.property}: {each.reason}" for each in self.outcome.violations),
            *(f"line {each.line} of the trace: {each.reason}" for each in self.outcome.faults),
            *self.objections,
        ]
