"""What a scheduler itself says it did not run: each such due violates L1, once.

Its word is needed where starts are not enough: when a minutely task misses one minute and runs the next, the
start of the next comes soon enough to be an answer to both.
"""

from typing import TYPE_CHECKING

from duly.verify.task import Task
from duly.verify.trace import Fault, Missed, Position, micros
from duly.verify.worlds import one_of_each, passed_over

if TYPE_CHECKING:
    from duly.verify.judge import Judge


class Losses:
    """Objects to what one trace declares missed."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge

    def take(self, item: Position) -> None:
        """The scheduler has given up a due, and perhaps a start that it had announced for it."""
        event = item.event
        assert isinstance(event, Missed)
        task = self._judge.tasks.get(event.id)
        if event.run is not None:
            if task is None or event.run not in task.runs:
                reason = f"run {event.run} of {event.id!r} is given up, and had not started"
                self._judge.objections.fault(Fault(item.line, reason))
                return
            self._judge.take_back(task, event.run)
        due_us = micros(event.due)
        if task is not None:
            if _is_due(task, due_us):
                task.worlds = one_of_each(passed_over(world, due_us) for world in task.worlds)
                self._object(task, due_us, item)
            self._judge.settle(task, item)

    def _object(self, task: Task, due_us: int, item: Position) -> None:
        if due_us > task.missed_us:  # else: its deadline has passed already, and was objected to
            task.missed_us = due_us
            self._judge.outcome.tallies["L1"].checked += 1
            reason = self._judge.words.declared(task.id, due_us)
            evidence = (task.started, task.ended, item)
            self._judge.objections.object_to("L1", task.id, due_us, reason, evidence, line=item.line)


def _is_due(task: Task, due_us: int) -> bool:
    """Whether *task* was due then, and registered before: what is older is nobody's loss here."""
    configs = (world.config for world in task.worlds if world.config is not None)
    return task.listed_us < due_us and any(config.dues.after(due_us - 1) == due_us for config in configs)
