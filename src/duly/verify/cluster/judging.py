"""The verdict on a cluster: each task by the judge of single traces, calls by member, and the cluster's own.

From a member's own trace comes what concerns its calls; from the merged trace of each task what concerns its
dues and runs; from `checks` what concerns holds and terms. After a fault of any member's trace nothing that
happened later is held against anybody.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from duly.verify.cluster.checks import Checks
from duly.verify.cluster.lives import Recording, Tenure, shard_of
from duly.verify.cluster.merging import Merged, merged
from duly.verify.cluster.reading import recordings
from duly.verify.cluster.whole import Whole
from duly.verify.judge import Judge
from duly.verify.lists import Lists
from duly.verify.objections import Objections
from duly.verify.properties import CLUSTER_PROPERTIES, LIVENESS, MOST_KEPT, PROPERTIES, Outcome, Violation
from duly.verify.trace import Position, TraceError, zone_of

_BY_MEMBER = ("S1a", "S3", "S4", "S5", "L2", "L3", "T1", "T5", "T8")
"""What a member's own trace can tell."""
_BY_TASK = ("S1a", "S1b", "S1c", "S1d", "L1", "T1", "T2", "T3", "T4", "T6", "T7")
"""What can be told only of all members together."""


def judged_together(lines: Iterable[bytes]) -> Outcome:
    """What the traces of all members, one after the other, say. Raises TraceError if one is none."""
    read = recordings(lines)
    if not read:
        raise TraceError(1, "the file is empty; a trace begins with a Header")
    return _Verdict(Whole(read)).outcome


class _Verdict:
    """Puts an outcome together."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self.outcome = Outcome(properties={**PROPERTIES, **CLUSTER_PROPERTIES})
        self._found: list[Violation] = []
        self._lists = Lists(zone_of(whole.tz))
        faults = [each.fault_us for each in whole.recordings if each.fault_us is not None]
        self._doubtful_us = min(faults, default=None)
        for recording in whole.recordings:
            self._add_member(recording)
        for task in whole.tasks:
            for trace in merged(whole, task):
                self._add_task(task, trace)
        objections = Objections(
            on_violation=self._found.append, outcome=Outcome(properties=CLUSTER_PROPERTIES)
        )
        Checks(whole, objections).run()
        self._add_tallies(objections.outcome, tuple(CLUSTER_PROPERTIES))
        self.outcome.is_partial, self.outcome.servers = whole.is_partial, whole.reigns
        self.outcome.terms_missing = sum(whole.gaps.values())
        self.outcome.crashes = len(whole.dead)
        self._settle()

    def _add_member(self, recording: Recording) -> None:
        outcome = recording.judge.finish()
        self._add_tallies(outcome, _BY_MEMBER)
        ours, member = self.outcome, recording.header.member
        for violation in outcome.violations:
            if violation.property in _BY_MEMBER:
                self._found.append(violation._replace(reason=f"{violation.reason} (member {member!r})"))
        ours.events += outcome.events
        ours.starts += outcome.starts
        ours.faults += outcome.faults
        ours.fault_count += outcome.fault_count
        ours.gaps += outcome.gaps
        ours.torn_line = ours.torn_line or recording.torn_line
        times = [at for at in (ours.first_us, outcome.first_us) if at is not None]
        ours.first_us = min(times, default=None)
        times = [at for at in (ours.last_us, outcome.last_us) if at is not None]
        ours.last_us = max(times, default=None)

    def _add_task(self, task: str, trace: Merged) -> None:
        outcome = self._judged(trace, trace.positions)
        if self._whole.is_partial:
            _take_back_liveness(outcome)
        if trace.is_doubtful:
            self.outcome.tallies["L1"].unknown += 1
        if trace.is_forgotten:
            for tally in outcome.tallies.values():
                tally.open, tally.unknown = 0, tally.open
        if trace.forgotten:
            known = [each for at, each in enumerate(trace.positions) if at not in trace.forgotten]
            without_cause = self._judged(trace, known).tallies["S1d"].violated
            outcome.tallies["S1d"].unknown += max(without_cause - outcome.tallies["S1d"].violated, 0)
        self._add_tallies(outcome, _BY_TASK)
        self.outcome.faults += outcome.faults
        self.outcome.fault_count += outcome.fault_count
        tenures = self._whole.tenures.get(shard_of(task, self._whole.shards), [])
        for violation in outcome.violations:
            if violation.property in _BY_TASK:
                shown = tuple(trace.sources.get(one.line, one) for one in violation.evidence)
                reason = f"{violation.reason} ({_holder(tenures, violation.at_us)})"
                self._found.append(violation._replace(reason=reason, evidence=shown))

    def _judged(self, trace: Merged, positions: Iterable[Position]) -> Outcome:
        judge = Judge(trace.header, lists=self._lists)
        for position in positions:
            judge.take(position)
        return judge.finish()

    def _add_tallies(self, outcome: Outcome, names: Iterable[str]) -> None:
        for name in names:
            ours, theirs = self.outcome.tallies[name], outcome.tallies[name]
            ours.checked += theirs.checked
            ours.open += theirs.open
            ours.doubtful += theirs.doubtful
            ours.unknown += theirs.unknown
            ours.violated += theirs.violated

    def _settle(self) -> None:
        """Keep the first violations, and hold against nobody what came after a fault."""
        kept: Counter[str] = Counter()
        for violation in sorted(self._found, key=lambda each: (each.at_us, each.line)):
            tally = self.outcome.tallies[violation.property]
            if self._doubtful_us is not None and violation.at_us >= self._doubtful_us:
                tally.violated -= 1
                tally.doubtful += 1
            elif kept[violation.property] < MOST_KEPT:
                kept[violation.property] += 1
                self.outcome.violations.append(violation)
        del self.outcome.faults[MOST_KEPT:]


def _take_back_liveness(outcome: Outcome) -> None:
    """What is owed cannot be known: a run that nobody here has seen may have been in flight."""
    for name in LIVENESS & outcome.tallies.keys():
        tally = outcome.tallies[name]
        tally.doubtful, tally.violated = tally.doubtful + tally.violated, 0
    outcome.violations[:] = [each for each in outcome.violations if each.property not in LIVENESS]


def _holder(tenures: list[Tenure], at_us: int) -> str:
    """Who held the shard at that time."""
    if not tenures:
        return "its shard was never held"
    index = bisect_right([tenure.taken.at_us for tenure in tenures], at_us)
    tenure = tenures[max(index - 1, 0)]
    ended_us = tenure.cut_us if tenure.cut_us is not None else tenure.ended and tenure.ended.at_us
    verb = (
        "held"
        if index and (ended_us is None or ended_us >= at_us)
        else "last held"
        if index
        else "first held"
    )
    return f"shard {tenure.shard}, {verb} by {tenure.life.member!r} for term {tenure.term}"
