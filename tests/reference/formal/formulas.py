"""The properties of spec/model.md 5 to 7, evaluated as formulas: slow, and meant to be obviously right.

What the trace leaves open is evaluated once for every course that events may have taken (decision 0011): a
start is wrong if it is so in all of them, and owed if it is so in all of them. The monitor that users run
(`judge.py`) is another program, and shares nothing with this one but the reading of lines and of cron texts;
the two are compared on random traces.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import and_

from duly.verify.properties import PROPERTIES, Outcome, Violation, gaps_before
from duly.verify.trace import micros, recordings_in
from tests.reference.formal.expansion import Call, Expansion, answered, expanded
from tests.reference.formal.interpretations import next_loss
from tests.reference.formal.macros import Story, ended
from tests.reference.formal.model import S, TraceModel, Truths, Y


@dataclass(frozen=True, slots=True)
class Deadline:
    """Something owed: since which moment, and whether it was late."""

    onset: int
    missed: int | None
    """The moment at which it is certain that it did not come in time."""
    is_open: bool


def deadlines(
    model: TraceModel,
    owed: Truths,
    *,
    met: Truths,
    anew: Truths,
    again: Truths,
    bound_us: Callable[[int], int],
) -> Iterator[Deadline]:
    """What was *owed*, when. It must be *met* within its bound; *anew* opens it afresh, from there.

    What was late is told once; it is then considered discharged, until something begins it *again*.
    """
    onset: int | None = None
    is_told = False
    for index, moment in enumerate(model.moments):
        shown_us = moment.before_us if moment.name == "Step" else moment.at_us
        if onset is not None and shown_us > model.moments[onset].at_us + bound_us(onset):
            yield Deadline(onset, index, is_open=False)
            onset, is_told = None, True
        if onset is not None and met[index]:
            yield Deadline(onset, None, is_open=False)
            onset = None
        if onset is not None and anew[index]:
            onset = index
        is_told = is_told and not again[index]
        if owed[index] and onset is None and not is_told:
            onset = index
    if onset is not None:
        yield Deadline(onset, None, is_open=True)


def rise(p: Truths) -> Truths:
    """Where p begins to hold."""
    return p & ~Y(p)


def evaluated(lines: Iterable[bytes]) -> Outcome:
    """What a small trace says, by the formulas. Raises TraceError if it is none, ValueError if not small."""
    outcome = Outcome()
    for trace in recordings_in(lines):
        outcome.add(_evaluated(expanded(trace)))
    return outcome


def _evaluated(expansion: Expansion) -> Outcome:
    model = TraceModel(expansion)
    report = _Report(model)
    for task in expansion.tasks:
        story = Story(model, task)
        _judge_starts(report, story)
        _judge_theorems(report, story)
        _judge_deadlines(report, story)
    _judge_calls(report)
    return report.outcome


class _Report:
    """What has been found so far."""

    def __init__(self, model: TraceModel) -> None:
        expansion = model.expansion
        self.model = model
        self.outcome = Outcome(faults=expansion.faults, fault_count=len(expansion.faults))
        self.outcome.gaps += gaps_before(expansion.header)
        self.outcome.events = expansion.events
        self.outcome.crashes = sum(model.crash)
        self.outcome.starts = sum(run.begun >= 0 for run in expansion.runs)
        self.outcome.first_us = expansion.first_us
        self.outcome.last_us = model.moments[-1].at_us if model.moments else None

    def require(self, name: str, task: str | None, checked: Truths, holds: Truths) -> None:
        """Wherever *checked* is, *holds* must be."""
        for index in _where(checked):
            self.outcome.tallies[name].checked += 1
            if not holds[index]:
                self._object(name, task, index, index, self.model.expansion.doubtful_from <= index)

    def demand(self, name: str, task: str | None, found: Iterable[Deadline]) -> None:
        """Nothing is late."""
        for deadline in found:
            tally = self.outcome.tallies[name]
            tally.checked += not deadline.is_open
            tally.open += deadline.is_open
            if deadline.missed is not None:
                is_doubtful = self.model.expansion.doubtful_from < deadline.missed
                self._object(name, task, deadline.onset, deadline.missed, is_doubtful)

    def _object(self, name: str, task: str | None, index: int, certain: int, is_doubtful: bool) -> None:
        tally = self.outcome.tallies[name]
        if is_doubtful:
            tally.doubtful += 1
            return
        tally.violated += 1
        moment, seen = self.model.moments[index], self.model.moments[certain]
        evidence = tuple(each.position for each in (moment, seen) if each.position is not None)
        self.outcome.violations.append(
            Violation(
                name, task, moment.at_us, f"This does not hold: {PROPERTIES[name]}.", evidence, seen.line
            )
        )


def _judge_starts(report: _Report, story: Story) -> None:
    """S1: RS -> Y ..., where what is open must be so in some course."""
    model, task, start = story.model, story.task, story.start
    report.require("S1a", task, start, Y(model.active))
    report.require("S1b", task, start, Y(model.some(world.reg for world in story.worlds)))
    report.require("S1c", task, start, ~Y(story.running))
    report.require("S1d", task, start, Y(model.some(world.cause for world in story.worlds)))
    report.require("S6", task, start, ~Y(model.at(_full(model, task))))


def _full(model: TraceModel, task: str) -> Iterator[int]:
    """Where as many tasks are running as the limit of this one allows, by the latest list."""
    expansion = model.expansion
    lists = sorted((call for call in expansion.inits if call.took_effect), key=answered)
    for call, next_ in pairwise([*lists, None]):
        limit = call.limits.get(task) if call is not None else None
        if call is None or limit not in call.most:
            continue
        mine = [run for run in expansion.runs if call.limits.get(run.task) == limit]
        running = [
            model.some(model.running_run(run) for run in mine if run.task == name)
            for name in {run.task for run in mine}
        ]
        last = len(model.moments) if next_ is None else answered(next_)
        for index in range(answered(call), last):
            if sum(each[index] for each in running) >= call.most[limit]:
                yield index


def _judge_deadlines(report: _Report, story: Story) -> None:
    """L1 and T6: Obligation(x) -> within d(n): RS(x), or SS, Crash, IE, where it is owed in every course."""
    model = story.model

    def bound_us(index: int) -> int:
        return model.bound_us(model.registered_count(index))

    met = story.start | model.stop_start | model.crash | model.init_end
    anew = model.step
    owed = reduce(and_, (world.obligation for world in story.worlds))
    again = rise(owed) | model.init_end | model.step
    found = deadlines(model, owed, met=met | ~owed, anew=anew, again=again, bound_us=bound_us)
    report.demand("L1", story.task, found)
    recovery = reduce(and_, (world.recovery for world in story.worlds))
    again = rise(reduce(and_, (world.interrupted for world in story.worlds)))
    found = deadlines(model, recovery, met=met | ~recovery, anew=anew, again=again, bound_us=bound_us)
    report.demand("T6", story.task, found)


def _judge_theorems(report: _Report, story: Story) -> None:
    """What follows from the rest, each by its own formula; what excuses in some course excuses."""
    model, task, start = story.model, story.task, story.start
    # A task that a list leaves out is forgotten, with its starts.
    due_or_fresh = model.some(world.due | world.fresh | world.removed for world in story.worlds)
    excuse = due_or_fresh | story.failure | model.loss
    identical = model.at(_identical(model.expansion))

    report.require("T1", task, start, ~Y(S(~model.ok, model.stop_start | model.crash) | model.given_up))
    report.require("T2", task, start, ~Y(story.running))
    nothing_between = Y(S(~excuse, start))
    report.require("T3", task, start, ~nothing_between)
    report.require("T7", task, start, ~(nothing_between & Y(S(~start, identical))))
    success = model.at(run.ended for run in story.runs if run.ok)
    report.require("T4", task, success, ~_second_successes(story, due_or_fresh))
    ends = model.at(run.ended for run in story.runs)
    report.require("T5", task, ends, ~model.at(_ends_after_stop(story)))
    late = model.at(run.ended_late for run in story.runs)
    report.require("T8", task, late, ~late)


def _second_successes(story: Story, due_or_fresh: Truths) -> Truths:
    """Ends of successful runs that no due and no fresh registration sets apart from the success before."""
    model = story.model
    # Of a run that began before the trace nobody knows what came after its start.
    succeeded = sorted((run for run in story.runs if run.ok and run.begun >= 0), key=ended)
    seconds = []
    for k, second in enumerate(succeeded[1:], 1):
        first = max(succeeded[:k], key=lambda run: run.begun)
        earlier, later = sorted((first.begun, second.begun))
        is_apart = any(due_or_fresh[earlier + 1 : later + 1])
        loss = next_loss(model.expansion, ended(first))
        is_first_lost = loss is not None and loss < second.begun
        if not is_apart and not is_first_lost:
            seconds.append(second.ended)
    return model.at(seconds)


def _ends_after_stop(story: Story) -> Iterator[int]:
    """Ends of runs that began before a stop returned."""
    stop_end = story.model.stop_end
    for run in story.runs:
        if run.ended is not None and any(stop_end[run.begun + 1 : run.ended]):
            yield run.ended


def _identical(expansion: Expansion) -> Iterator[int]:
    """Where `initialize` returned with the very list that was in force."""
    lists = sorted((call for call in expansion.inits if call.took_effect), key=answered)
    for before, call in pairwise(lists):
        if before.configs == call.configs:
            yield answered(call)


def _judge_calls(report: _Report) -> None:
    """S3, S4, S5, L2, L3: what concerns no single task."""
    model, expansion = report.model, report.model.expansion
    report.require("S3", None, model.stop_end, ~Y(model.anything_running))
    returned = model.at(call.answered for call in expansion.inits if call.ok)
    report.require("S4", None, returned, model.ok)
    for stop in (stop for stop in expansion.stops if not stop.is_void):
        report.require("S5", None, model.at([stop.answered]), ~Y(model.init_at_stop(stop)))
    for call in expansion.inits:
        # IS(R) -> within d(|R|): IE or Crash
        report.demand("L2", None, _answer_deadlines(model, call))
    # Stopping, nothing Running, not Initing -> within 60 s: SE or Crash
    free = model.stopping & ~model.anything_running & ~model.initing
    delta_us = micros(expansion.header.delta_stop_ms)
    met = model.at(call.answered for call in expansion.stops) | model.crash
    found = deadlines(
        model, free, met=met, anew=model.step, again=rise(free) | met, bound_us=lambda _: delta_us
    )
    report.demand("L3", None, found)


def _answer_deadlines(model: TraceModel, call: Call) -> Iterator[Deadline]:
    delta_us = model.bound_us(len(call.regs))
    outstanding = model.outstanding(call)
    return deadlines(
        model, outstanding, met=~outstanding, anew=model.step, again=model.at(()), bound_us=lambda _: delta_us
    )


def _where(signal: Truths) -> Iterator[int]:
    return (index for index, holds in enumerate(signal) if holds)
