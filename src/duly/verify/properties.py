"""The properties of spec/model.md 5 to 7 and 13.3 by name, what a trace says of each, and objections."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from enum import StrEnum
from typing import NamedTuple

from duly.verify.dues import NEVER_US, face_at
from duly.verify.trace import Fault, Header, InitEnd, Position, RunEnd, RunStart, StopStart, micros
from duly.verify.worlds import LONG_AGO_US, Worlds


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
    "S6": "a named limit is never exceeded",
    "L1": "what is owed starts in time",
    "L2": "initialize returns in time",
    "L3": "stop returns in time once nothing is running",
    "T1": "nothing starts after a crash or a stop until a successful initialize",
    "T2": "no two runs of a task overlap",
    "T3": "two starts of a task have a due, request, fresh registration, failure or crash between them",
    "T4": "at most one successful run per due period",
    "T5": "nothing ends after a stop has returned, without a new start",
    "T6": "a run that a crash cut off starts again after the next initialize that has its task",
    "T7": "an identical initialize changes no obligation",
    "T8": "no run that a crash cut off ends after it",
}
"""In the order of the report. S and L are the model's own; T are theorems that follow, as a second line."""

CLUSTER_PROPERTIES: Mapping[str, str] = {
    "C1": "no two starts of a task have the same token",
    "C2": "the tokens of a task grow from start to start",
    "C4": "no start of a task while a run of it is in flight on another node",
    "C6": "no start of a task as a list had it that a newer list has changed",
}
"""What the nodes of a cluster must keep beyond that, taken together."""

LIVENESS = frozenset({"L1", "L2", "L3", "T6"})


class Gap(NamedTuple):
    """From when to when nothing was recorded; None where that is not known."""

    from_us: int | None
    to_us: int | None


def gaps_before(header: Header) -> list[Gap]:
    if header.gap is None:
        return []
    return [Gap(*(None if at is None else micros(at) for at in header.gap))]


class Violation(NamedTuple):
    """One objection: which property, which task, when, why, and the few events that show it."""

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
    is_partial: bool = False
    """Whether traces of nodes are missing that would be needed to know what was owed."""
    forgettings: int = 0
    """How often a server of the database answered that had forgotten commits."""

    def __post_init__(self) -> None:
        for name in self.properties:
            self.tallies.setdefault(name, Tally())

    def add(self, later: "Outcome") -> None:
        """Add what a later recording of the same trace says."""
        self.add_tallies(later, later.tallies)
        self.add_events(later)
        self.crashes += later.crashes
        self.violations += later.violations
        self.torn_line = later.torn_line or self.torn_line
        self.first_us = later.first_us if self.first_us is None else self.first_us
        self.last_us = self.last_us if later.last_us is None else later.last_us

    def add_events(self, other: "Outcome") -> None:
        """Add what *other* says of the trace itself."""
        self.events += other.events
        self.starts += other.starts
        self.faults += other.faults
        self.fault_count += other.fault_count
        self.gaps += other.gaps

    def add_tallies(self, other: "Outcome", names: Iterable[str]) -> None:
        for name in names:
            ours, theirs = self.tallies[name], other.tallies[name]
            for count in ("checked", "violated", "open", "doubtful", "unknown"):
                setattr(ours, count, getattr(ours, count) + getattr(theirs, count))

    def verdict(self, name: str) -> Verdict:
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


class Objections:
    """Collects in an outcome what speaks against a scheduler, or against its trace.

    Once the trace itself is at fault, nothing that follows is held against the scheduler: it is only counted.
    """

    def __init__(
        self, on_violation: Callable[[Violation], None] | None = None, outcome: Outcome | None = None
    ) -> None:
        self.outcome = outcome if outcome is not None else Outcome()
        self._on_violation = on_violation
        self._is_doubtful = False

    def object_at(
        self, item: Position, name: str, task_id: str | None, reason: str, *evidence: Position | None
    ) -> None:
        """Property *name* is violated by the event *item*."""
        self.object_to(name, task_id, item.at_us, reason, *evidence, item, line=item.line)

    def object_to(
        self,
        name: str,
        task_id: str | None,
        at_us: int,
        reason: str,
        *evidence: Position | None,
        line: int,
    ) -> None:
        """Property *name* is violated at *at_us*, which became certain at *line*."""
        tally = self.outcome.tallies[name]
        if self._is_doubtful:
            tally.doubtful += 1
            return
        tally.violated += 1
        shown = sorted({one.line: one for one in evidence if one is not None}.values())
        violation = Violation(name, task_id, at_us, reason, tuple(shown), line)
        if tally.violated <= MOST_KEPT:
            self.outcome.violations.append(violation)
        if self._on_violation is not None:
            self._on_violation(violation)

    def take_back(self, *, since_line: int) -> None:
        """Hold against nobody what was objected to from a line on."""
        kept = [violation for violation in self.outcome.violations if violation.line < since_line]
        for violation in self.outcome.violations[len(kept) :]:
            self.outcome.tallies[violation.property].violated -= 1
            self.outcome.tallies[violation.property].doubtful += 1
        self.outcome.violations[:] = kept

    def fault(self, line: int, reason: str) -> None:
        """The trace itself is not as it should be."""
        self.add_fault(Fault(line, reason))

    def add_fault(self, fault: Fault) -> None:
        self.outcome.fault_count += 1
        if len(self.outcome.faults) < MOST_KEPT:
            self.outcome.faults.append(fault)
        self._is_doubtful |= not fault.is_unknown_event


_NEVER_MEANT_US = 100 * 365 * 86_400_000_000
"""A retry that is due in a hundred years is no retry."""


def instant_text(at_us: int, zone: tzinfo) -> str:
    """An instant as the clocks of *zone* show it, with its offset."""
    if at_us <= LONG_AGO_US:  # a run that was in flight where the trace begins
        return "before the trace"
    precision = (
        "seconds" if at_us % 1_000_000 == 0 else "milliseconds" if at_us % 1000 == 0 else "microseconds"
    )
    return face_at(at_us, zone).isoformat(sep=" ", timespec=precision)


def seconds(duration_us: int) -> str:
    """A length of time in seconds, as short as it can be said."""
    return f"{duration_us / 1e6:g} s"


class Sentences:
    """What the checker says of starts; times as the clocks of the zone show them.

    Shorter sentences stand where the property is checked.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone

    def time(self, at_us: int) -> str:
        return instant_text(at_us, self._zone)

    def start(self, item: Position) -> str:
        assert isinstance(item.event, RunStart | RunEnd)
        return f"{item.event.id!r} started at {self.time(item.at_us)}"

    def not_active(self, item: Position, decisive: Position | None) -> str:
        at = "" if decisive is None else self.time(decisive.at_us)
        match None if decisive is None else decisive.event:
            case None:
                why = "no initialize had succeeded before it"
            case StopStart():
                why = f"stop had been called at {at}"
            case InitEnd(ok=True):
                why = f"a stop was outstanding when initialize returned at {at}"
            case InitEnd():
                why = f"the initialize that ended at {at} had failed"
            case _:
                why = f"the process had died at {at}, and no initialize had succeeded since"
        return f"{self.start(item)}, and {why}"

    def overlap(self, item: Position, runs: Mapping[int, tuple[int, Position]]) -> str:
        _, begun = next(iter(runs.values()))
        return f"{self.start(item)} while its run of {self.time(begun.at_us)} had not ended"

    def no_cause(self, item: Position, begun: Position | None, ended: Position | None, worlds: Worlds) -> str:
        known = [world for world in worlds if world.config is not None]
        if not known:
            return f"{self.start(item)} for no cause: it is not registered"
        parts = [self._last_run(begun, ended)]
        next_us = min(world.next_us for world in known)
        parts.append(
            f"its next due is {self.time(next_us)}" if next_us < NEVER_US else "it has no due to come"
        )
        retry_us = min(world.retry_us for world in known)
        if retry_us < item.at_us + _NEVER_MEANT_US:
            parts.append(f"its retry is due at {self.time(retry_us)}")
        if all(world.paused for world in known):
            parts.append("it is paused")
        return f"{self.start(item)} for no cause: {', '.join(parts)}"

    def _last_run(self, begun: Position | None, ended: Position | None) -> str:
        if begun is None:
            return "it had not run before"
        said = f"its run of {self.time(begun.at_us)} answered everything up to there"
        if ended is None or not isinstance(ended.event, RunEnd) or ended.at_us < begun.at_us:
            return said
        return f"{said} and {'succeeded' if ended.event.ok else 'failed'} at {self.time(ended.at_us)}"

    def not_started(self, task_id: str, worlds: Worlds, onset_us: int, bound_us: int) -> str:
        why = self._cause(worlds, onset_us)
        return (
            f"{task_id!r} was owed a start at {self.time(onset_us)} ({why}) and did not start "
            f"within {seconds(bound_us)}"
        )

    def _cause(self, worlds: Worlds, onset_us: int) -> str:
        world = worlds[0]
        if world.interrupted:
            return "a crash had cut it off"
        if world.requested:
            return "a run had been asked for"
        if world.stands or world.next_us <= onset_us:
            return "a due stood" if world.stands else f"due {self.time(world.next_us)}"
        return f"its retry was due at {self.time(world.retry_us)}"
