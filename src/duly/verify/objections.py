"""Objections: where everything that speaks against a scheduler, or against its trace, is brought together.

Once the trace itself is at fault, nothing that follows is held against the scheduler: it is only counted.
"""

from collections.abc import Callable, Iterable

from duly.verify.properties import MOST_KEPT, Outcome, Violation
from duly.verify.trace import Fault, Position


class Objections:
    """Keeps the outcome of one trace."""

    def __init__(
        self, on_violation: Callable[[Violation], None] | None = None, outcome: Outcome | None = None
    ) -> None:
        self.outcome = outcome if outcome is not None else Outcome()
        self._on_violation = on_violation
        self._is_doubtful = False

    def object_to(
        self,
        name: str,
        task_id: str | None,
        at_us: int,
        reason: str,
        evidence: Iterable[Position | None],
        *,
        line: int,
    ) -> None:
        """Note that property *name* is violated."""
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

    def fault(self, fault: Fault) -> None:
        """Note that the trace itself is not as it should be."""
        self.outcome.fault_count += 1
        if len(self.outcome.faults) < MOST_KEPT:
            self.outcome.faults.append(fault)
        self._is_doubtful |= not fault.is_unknown_event
