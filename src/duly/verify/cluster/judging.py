"""The verdict on a cluster: each task by the judge of single traces, calls by node, and the cluster's own.

From a node's own trace comes what concerns its calls; from the merged trace of each task what concerns its
dues and runs; from `Checks` what concerns tokens and nodes. After a fault of any node's trace nothing that
happened later is held against anybody.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise

from duly.verify.cluster.history import ClusterHistory
from duly.verify.cluster.merging import ListChange, Merged, changes_of, merged, parts_of
from duly.verify.cluster.nodes import TOLERANCE_US, NodeRun, Recording, covers, recordings
from duly.verify.judge import Judge
from duly.verify.properties import (
    CLUSTER_PROPERTIES,
    MOST_KEPT,
    PROPERTIES,
    Objections,
    Outcome,
    Sentences,
    Violation,
)
from duly.verify.tasks import TraceLists
from duly.verify.trace import Header, Position, RunStart, zone_of
from duly.verify.worlds import LONG_AGO_US, allowed_us, one_of_each

_BY_NODE = ("S1a", "S1c", "S3", "S4", "S5", "L2", "L3", "T1", "T2", "T5", "T8")
"""What a node's own trace can tell."""
_BY_TASK = ("S1b", "S1d", "L1", "T3", "T4", "T6")
"""What only the traces of all nodes can tell."""

_BY_LIST = ("S1b", "S1d", "T3", "T4", "C6")
"""What depends on the list in effect."""


def judged_together(lines: Iterable[bytes]) -> Outcome:
    """What the traces of all nodes, one after the other, say. Raises TraceError if one is none."""
    return _TaskVerdict(
        ClusterHistory(recordings(lines)), {**PROPERTIES, **CLUSTER_PROPERTIES}, _BY_TASK
    ).outcome


class ClusterVerdict:
    """Puts an outcome together. *of_all* are the properties that only the traces of all nodes can tell."""

    def __init__(self, history: ClusterHistory, properties: Mapping[str, str], of_all: Sequence[str]) -> None:
        self._history = history
        self.outcome = Outcome(properties=properties)
        self._found: list[Violation] = []
        self._zone = zone_of(history.recordings[0].header.tz)
        for recording in history.recordings:
            self._add_node(recording)
        self._judge()
        own = Outcome(properties=properties)
        if "C4" in properties:  # a machine by itself is no cluster
            Checks(history, Objections(self._found.append, own), Sentences(self._zone)).run()
            self.outcome.add_tallies(own, properties)
        self.outcome.is_partial = history.is_partial
        self.outcome.forgettings = len(history.forgettings_us)
        self.outcome.crashes = sum(node.is_gone(history.horizon_us) for node in history.nodes)
        if history.steps_us or history.is_cut_short:
            for name in (*of_all, *(each for each in CLUSTER_PROPERTIES if each in properties)):
                self.outcome.tallies[name].unknown += 1
        self._settle()

    def _judge(self) -> None:
        """Add what is to be said of the runs."""
        raise NotImplementedError

    def _add_node(self, recording: Recording) -> None:
        outcome, ours = recording.judge.finish(), self.outcome
        ours.add_events(outcome)
        ours.torn_line = ours.torn_line or recording.torn_line
        times = [at for at in (ours.first_us, outcome.first_us) if at is not None]
        ours.first_us = min(times, default=None)
        times = [at for at in (ours.last_us, outcome.last_us) if at is not None]
        ours.last_us = max(times, default=None)

    def _settle(self) -> None:
        """Keep the first violations, and hold against nobody what came after a fault."""
        faults = [each.fault_us for each in self._history.recordings if each.fault_us is not None]
        doubtful_us = min((*faults, *self._history.steps_us), default=None)
        kept: Counter[str] = Counter()
        for violation in sorted(self._found, key=lambda each: (each.at_us, each.line)):
            tally = self.outcome.tallies[violation.property]
            if doubtful_us is not None and violation.at_us >= doubtful_us:
                tally.violated -= 1
                tally.doubtful += 1
            elif violation.property in _BY_LIST and covers(self._history.gaps, violation.at_us):
                tally.violated -= 1
                tally.unknown += 1
            elif kept[violation.property] < MOST_KEPT:
                kept[violation.property] += 1
                self.outcome.violations.append(violation)
        del self.outcome.faults[MOST_KEPT:]


class _TaskVerdict(ClusterVerdict):
    def _judge(self) -> None:
        self._lists = TraceLists(self._zone)
        for task in self._history.tasks:
            self._add_task(task)

    def _add_node(self, recording: Recording) -> None:
        super()._add_node(recording)
        self.outcome.add_tallies(recording.judge.outcome, _BY_NODE)
        node = recording.header.node
        for violation in recording.judge.outcome.violations:
            if violation.property in _BY_NODE:
                self._found.append(violation._replace(reason=f"{violation.reason} (node {node!r})"))

    def _add_task(self, task: str) -> None:
        trace = merged(self._history, task)
        outcome = self._outcome_of(trace.header, trace.positions)
        if outcome.violations and self._history.breaks_us:
            outcome = self._after_breaks(trace, outcome)
        if self._history.is_partial or self._may_be_explained(task, trace):
            # What nodes whose traces are not here could explain is held against nobody.
            for tally in outcome.tallies.values():
                tally.unknown, tally.violated = tally.unknown + tally.violated, 0
            outcome.violations.clear()
        outcome.tallies["L1"].unknown += trace.is_waiting
        self.outcome.add_tallies(outcome, _BY_TASK)
        self.outcome.faults += outcome.faults
        self.outcome.fault_count += outcome.fault_count
        for violation in outcome.violations:
            if violation.property in _BY_TASK:
                shown = tuple(trace.sources.get(one.line, one) for one in violation.evidence)
                # The merged trace has moved starts among lists; what counts is when they were recorded.
                source = trace.sources.get(violation.line)
                at_us = violation.at_us if source is None else max(violation.at_us, source.at_us)
                self._found.append(violation._replace(evidence=shown, at_us=at_us))

    def _may_be_explained(self, task: str, trace: Merged) -> bool:
        """Whether options or controls may explain anything: of some of them no trace says enough."""
        history = self._history
        if task in history.entries or len(history.options[task]) > 1:
            return True  # another node may have added it, or runs it by other options
        return bool(history.controls[task]) and (trace.header.store != "fresh" or bool(history.breaks_us))

    def _outcome_of(self, header: Header, positions: Iterable[Position]) -> Outcome:
        """The outcome of one trace. By the clock of its node a start may be a moment before its due."""
        judge = Judge(header, lists=self._lists)
        now_us = LONG_AGO_US
        for line, at_us, event in positions:
            now_us = max(now_us, at_us)
            task = judge.tasks.get(event.id) if isinstance(event, RunStart) else None
            worlds = task.worlds if task is not None else ()
            if worlds and 0 < allowed_us(worlds, now_us) - now_us <= TOLERANCE_US:
                now_us = allowed_us(worlds, now_us)
            judge.take(Position(line, now_us, event))
            if task is not None and task.worlds != worlds:
                is_alone = len(task.runs) == 1
                later = (each.after_start(now_us + TOLERANCE_US, is_alone=is_alone) for each in worlds)
                task.worlds = one_of_each((*task.worlds, *chain.from_iterable(later)))
        return judge.finish()

    def _after_breaks(self, trace: Merged, outcome: Outcome) -> Outcome:
        """What is wrong whatever happened at the breaks; all else that *outcome* objects to is unknown."""
        known = Outcome()
        for header, positions in parts_of(trace, self._history.breaks_us):
            known.add(self._outcome_of(header, positions))
        for name, tally in outcome.tallies.items():
            tally.unknown += max(tally.violated - known.tallies[name].violated, 0)
            tally.violated = known.tallies[name].violated
        outcome.violations = known.violations
        return outcome


class Checks:
    """What only a cluster can do wrong: tokens, runs of two nodes at once, starts by a list that is gone.

    Each check is its own sentence (spec/model.md 13.3) and uses no more than it needs. None of them knows the
    dues of a task.
    """

    def __init__(self, history: ClusterHistory, objections: Objections, words: Sentences) -> None:
        self._history = history
        self._words = words
        self._objections = objections
        self._tallies = objections.outcome.tallies

    def run(self) -> None:
        by_target: dict[str, list[NodeRun]] = defaultdict(list)
        for task, runs in self._history.runs.items():
            self._look_at_tokens(runs)
            self._look_at_dues(runs)
            self._look_at_retries(runs)
            for run in runs:
                by_target[run.target].append(run)
            changes = changes_of(self._history, task)
            for run in runs:
                if not run.is_from_before and changes:
                    self._look_at_list(run, changes)
        for runs in by_target.values():
            if any(run.task != runs[0].task for run in runs):
                runs.sort(key=lambda run: run.start.at_us)
            self._look_at_overlaps(runs)
        self._look_at_limits()

    # --- S6: limits ---

    def _look_at_limits(self) -> None:
        """A limit holds for the runs of all nodes, at its size as the node of each start has it."""
        flying: dict[str, list[NodeRun]] = defaultdict(list)
        runs = [run for runs in self._history.runs.values() for run in runs if run.limit is not None]
        for run in sorted(runs, key=lambda each: each.start.at_us):
            assert run.limit is not None
            (name, most), at_us = run.limit, run.start.at_us
            self._tallies["S6"].checked += 1
            flying[name] = [other for other in flying[name] if other.over_us(at_us) is None]
            before_us = at_us - TOLERANCE_US
            sure = [it for it in flying[name] if it.start.at_us < before_us or it.node is run.node]
            if len(sure) >= most:
                reason = f"while {len(sure)} runs were in flight; the limit {name!r} is {most}"
                self._object_unless_forgotten("S6", sure[0], run, reason)
            flying[name].append(run)

    def _object(self, name: str, run: NodeRun, reason: str, *others: Position) -> None:
        started = f"{run.task!r} was started by {run.node.name!r} at {self._words.time(run.start.at_us)}"
        self._objections.object_at(run.start, name, run.task, f"{started}, {reason}", *others)

    def _started(self, run: NodeRun) -> str:
        return f"its start by {run.node.name!r} at {self._words.time(run.start.at_us)}"

    # --- C1, C2: tokens ---

    def _look_at_tokens(self, runs: Sequence[NodeRun]) -> None:
        known: dict[int, NodeRun] = {}
        claimed = [run for run in runs if run.token is not None]
        for run in claimed:
            assert run.token is not None
            self._tallies["C1"].checked += 1
            other = known.setdefault(run.token, run)
            if other is not run:
                self._object_unless_forgotten(
                    "C1", other, run, f"with token {run.token}, as {self._started(other)}"
                )
        for before, run in pairwise(claimed):
            self._tallies["C2"].checked += 1
            if before.token is not None and run.token is not None and before.token > run.token:
                tokens = f"with token {run.token}, and {self._started(before)} had token {before.token}"
                self._object_unless_forgotten("C2", before, run, tokens)

    def _object_unless_forgotten(self, name: str, before: NodeRun, run: NodeRun, reason: str) -> None:
        if self._history.is_forgotten_between(before.start.at_us, run.start.at_us):
            self._tallies[name].unknown += 1
        else:
            self._object(name, run, reason, before.start)

    # --- V3, V5: timers ---

    def _look_at_dues(self, runs: Sequence[NodeRun]) -> None:
        """A run that was cut off is made up for the instant it began at, so no due has two runs."""
        answered: dict[int, NodeRun] = {}
        for run in runs:
            if run.due_us is not None and run.reason in {"schedule", "catch-up"}:
                self._tallies["V3"].checked += 1
                before = answered.setdefault(run.due_us, run)
                if before.node is not run.node:
                    reason = f"for what was due at {self._words.time(run.due_us)}, as {self._started(before)}"
                    self._object_unless_forgotten("V3", before, run, reason)

    def _look_at_retries(self, runs: Sequence[NodeRun]) -> None:
        for before, run in pairwise(runs):
            if run.reason != "retry" or run.token is None:
                continue
            self._tallies["V5"].checked += 1
            delays = run.declared.retry_intervals_sec if run.declared is not None else []
            at_us = run.start.at_us + TOLERANCE_US
            if before.end is None or before.result != "exit":
                reason = f"as a retry, and {self._started(before)} ended with {before.result or 'nothing'}"
            elif at_us - before.end.at_us < min(delays, default=0) * 1_000_000:
                reason = f"as a retry, too soon after {self._started(before)}"
            else:
                continue
            if self._history.is_partial:
                self._tallies["V5"].unknown += 1
            else:
                self._object_unless_forgotten("V5", before, run, reason)

    # --- C4: overlaps ---

    def _look_at_overlaps(self, runs: Sequence[NodeRun]) -> None:
        flying: list[NodeRun] = []
        for run in runs:
            self._tallies["C4"].checked += 1
            flying = [other for other in flying if other.over_us(run.start.at_us) is None]
            other = next((each for each in flying if _is_beside(each, run)), None)
            if other is not None:
                reason = f"while the run of {self._started(other)} was in flight there"
                self._object("C4", run, reason, other.start)
            flying.append(run)

    # --- C6: lists ---

    def _look_at_list(self, run: NodeRun, changes: Sequence[ListChange]) -> None:
        """A task may start for a while as it was before a list: it was claimed before."""
        self._tallies["C6"].checked += 1
        at_us = run.start.at_us
        settled = [change for change in changes if change.reported_us + self._history.failover_us < at_us]
        if not settled:
            return
        later = (change for change in changes[len(settled) :] if change.called_us <= at_us)
        if run.configs.isdisjoint(change.config for change in (settled[-1], *later)):
            became = "removed" if settled[-1].config is None else "changed"
            when = self._words.time(settled[-1].source.at_us)
            reason = f"as an older list had it; a newer list {became} it at {when}"
            self._object("C6", run, reason, settled[-1].source)


def _is_beside(other: NodeRun, run: NodeRun) -> bool:
    """Whether *run* began on another node while *other* was in flight, which began before.

    Of the runs of two timers no token says which began first, if clocks cannot.
    """
    is_close = run.start.at_us - other.start.at_us <= TOLERANCE_US
    is_first = other.task != run.task and is_close and run.over_us(other.start.at_us) is not None
    return other.node is not run.node and not is_first
