"""The properties of MODEL.md by name, and what can be said of each after a trace has been read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from duly.verify.trace import Fault, Header, Position, micros


class Verdict(StrEnum):
    """What a finite trace says of a property."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"


PROPERTIES: Mapping[str, str] = {
    "S1a": "starts only between a successful initialize and the next stop, crash or failed initialize",
    "S1b": "starts only of tasks in the latest successful list",
    "S1c": "no start of a task that is running",
    "S1d": "every start has a cause that no earlier start has used up",
    "S3": "stop returns only when no callback is running",
    "S4": "an invalid list never takes effect",
    "S5": "stop waits for an initialize in progress",
    "L1": "what is owed starts in time",
    "L2": "initialize returns in time",
    "L3": "stop returns in time once nothing is running",
    "T1": "nothing starts after a crash or a stop until a successful initialize",
    "T2": "no two runs of a task overlap",
    "T3": "between two starts of a task there is a due, a fresh registration, a failure or a crash",
    "T4": "at most one successful run per due period",
    "T5": "nothing ends after a stop has returned, without a new start",
    "T6": "a run that a crash cut off starts again after the next initialize that has its task",
    "T7": "an identical initialize changes no obligation",
    "T8": "no run that a crash cut off ends after it",
}
"""In the order of the report. S and L are the model's own; T are theorems that follow, as a second line."""

CLUSTER_PROPERTIES: Mapping[str, str] = {
    "C1": "no shard has two holders in one term",
    "C2": "the terms of a shard grow",
    "C3": "a member starts only tasks of shards that it holds",
    "C4": "no start of a task while a run of it is in flight at another member",
    "C5": "a shard without a living holder is taken in time, if any member can",
    "C6": "no start of a task as a list had it that a newer list has changed",
}
"""What the members of a cluster must keep beyond that, taken together."""

LIVENESS = frozenset({"L1", "L2", "L3", "T6", "C5"})


class Gap(NamedTuple):
    """From when to when nothing was recorded; None where that is not known."""

    from_us: int | None
    to_us: int | None


def gaps_before(header: Header) -> list[Gap]:
    """The gap after which a recording with this header begins, if there is one."""
    if header.gap is None:
        return []
    return [Gap(*(None if at is None else micros(at) for at in header.gap))]


class Violation(NamedTuple):
    """One objection: which property, whom it concerns, when, why, and the few events that show it."""

    property: str
    task: str | None
    at_us: int
    reason: str
    """One plain sentence."""
    evidence: tuple[Position, ...]
    line: int
    """The line at which it became certain."""


@dataclass(slots=True)
class Tally:
    """What is known of one property."""

    checked: int = 0
    """How often it was put to the test."""
    violated: int = 0
    open: int = 0
    """Deadlines that lie beyond the end of the trace."""
    doubtful: int = 0
    """Objections after a fault of the trace itself: not held against the scheduler."""
    unknown: int = 0
    """Questions that the traces of a cluster cannot answer, however long they are."""


MOST_KEPT = 100
"""Violations of one property that are kept with their evidence; the rest are counted."""


@dataclass(slots=True)
class Outcome:
    """Everything that a trace says."""

    properties: Mapping[str, str] = field(default_factory=lambda: PROPERTIES)
    """What it was asked about, in the order of the report."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    fault_count: int = 0
    gaps: list[Gap] = field(default_factory=list)
    events: int = 0
    starts: int = 0
    crashes: int = 0
    torn_line: int | None = None
    """The last line, if a crash has torn it; it was left out."""
    first_us: int | None = None
    last_us: int | None = None
    terms_missing: int = 0
    """How many tenures of shards are in none of the traces of a cluster."""
    is_partial: bool = False
    """Whether members are missing whose traces would be needed to know what was owed."""
    servers: int = 1
    """How many servers of its database answered a cluster: each but the first may have forgotten commits."""

    def __post_init__(self) -> None:
        for name in self.properties:
            self.tallies.setdefault(name, Tally())

    def add(self, later: "Outcome") -> None:
        """Add what a later recording of the same trace says."""
        for name, theirs in later.tallies.items():
            ours = self.tallies[name]
            for count in ("checked", "violated", "open", "doubtful", "unknown"):
                setattr(ours, count, getattr(ours, count) + getattr(theirs, count))
        for count in ("fault_count", "events", "starts", "crashes"):
            setattr(self, count, getattr(self, count) + getattr(later, count))
        self.violations += later.violations
        self.faults += later.faults
        self.gaps += later.gaps
        self.torn_line = later.torn_line or self.torn_line
        self.first_us = later.first_us if self.first_us is None else self.first_us
        self.last_us = self.last_us if later.last_us is None else later.last_us

    def verdict(self, name: str) -> Verdict:
        """What the trace says of property *name*."""
        tally = self.tallies[name]
        if tally.violated:
            return Verdict.VIOLATED
        if self.fault_count or self.gaps or tally.open or tally.unknown or not self.events:
            return Verdict.INCONCLUSIVE
        return Verdict.HOLDS

    @property
    def overall(self) -> Verdict:
        """The worst of all."""
        verdicts = {self.verdict(name) for name in self.properties}
        for verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE):
            if verdict in verdicts:
                return verdict
        return Verdict.HOLDS
