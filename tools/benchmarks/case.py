"""What a benchmark is made of: cases to measure, numbers that come back, rows to show.

A benchmark module offers `cases`, `measure` and `rows`. `run.py` gives every case a process of its own, so
that no contestant inherits the heap, the caches or the garbage of another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

Numbers = dict[str, float]
"""What one measurement of one case found, by name."""


class Case(NamedTuple):
    """One thing to measure: who, how many tasks, and which way of doing it."""

    contestant: str
    n: int = 0
    variant: str = ""
    rounds: int = 1

    def __str__(self) -> str:
        return " ".join(
            part for part in (self.contestant, f"{self.n:,}" if self.n else "", self.variant) if part
        )

    @property
    def key(self) -> tuple[str, int, str]:
        """What identifies this case."""
        return self.contestant, self.n, self.variant


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report."""

    what: str
    unit: str
    duly: float | None
    goal: str = ""
    is_met: bool | None = None
    peers: Mapping[str, float | None] = field(default_factory=dict)


class Results:
    """Every measurement of every case of one benchmark."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int, str], list[Numbers]] = {}

    def add(self, case: Case, numbers: Numbers) -> None:
        """Note one measurement."""
        self._numbers.setdefault(case.key, []).append(numbers)

    def best(self, name: str, contestant: str, n: int = 0, variant: str = "") -> float | None:
        """The smallest of a number over all rounds: noise only ever adds."""
        found = [
            numbers[name] for numbers in self._numbers.get((contestant, n, variant), ()) if name in numbers
        ]
        return min(found, default=None)

    def as_records(self) -> list[dict[str, object]]:
        """Everything, for a file."""
        return [
            {"contestant": contestant, "n": n, "variant": variant, "rounds": rounds}
            for (contestant, n, variant), rounds in self._numbers.items()
        ]


class Benchmark(Protocol):
    """What a benchmark module offers."""

    WORKERS: int
    """How many cases may be measured at once."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        """What to measure."""
        ...

    def measure(self, case: Case) -> Numbers:
        """Measure one case, in a process of its own."""
        ...

    def rows(self, results: Results) -> Sequence[Row]:
        """What to show."""
        ...


def at_most(value: float | None, limit: float) -> bool | None:
    """Whether a goal is met; None when there is no number."""
    return None if value is None else value <= limit


def scaled(value: float | None, factor: float) -> float | None:
    """A number in another unit."""
    return None if value is None else value * factor
