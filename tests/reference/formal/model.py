"""Past-time temporal logic over the positions of a trace, and the macros that concern no task.

A formula is the list of its truths, one at each position (`Truths`). `TraceModel` has the events by their
short names and what all tasks share. Each macro is its line in spec/model.md 3, to be read beside it.
"""

from collections.abc import Callable, Iterable
from functools import cached_property, reduce
from operator import and_, not_, or_

from duly.verify.trace import micros
from tests.reference.formal.expansion import Call, Expansion, FormalMoment, FormalRun, answered
from tests.reference.formal.interpretations import is_loss


class Truths(tuple[bool, ...]):
    """Whether something holds, at every position."""

    __slots__ = ()

    def __and__(self, other: "Truths") -> "Truths":
        assert len(self) == len(other)
        return Truths(map(and_, self, other))

    def __or__(self, other: "Truths") -> "Truths":
        assert len(self) == len(other)
        return Truths(map(or_, self, other))

    def __invert__(self) -> "Truths":
        return Truths(map(not_, self))


def yesterday(p: Truths) -> Truths:
    """`Y p`: p held at the previous position."""
    return Truths((False, *p[:-1]) if p else ())


def since(p: Truths, q: Truths) -> Truths:
    """`p S q`: q held at some position up to now, and p at every position after it."""
    held = False
    truths = []
    for p_now, q_now in zip(p, q, strict=True):
        held = q_now or (held and p_now)
        truths.append(held)
    return Truths(truths)


Y, S = yesterday, since


class TraceModel:
    """What all tasks share: the events by their short names, and the macros that concern no task."""

    def __init__(self, expansion: Expansion) -> None:
        self.expansion = expansion
        self.moments = expansion.moments
        self.crash = self.where(lambda moment: moment.name == "Crash")
        self.minute_start = self.where(lambda moment: moment.name == "MS")
        self.step = self.where(lambda moment: moment.name == "Step")
        self.loss = self.where(is_loss)
        # A call that was given up before it began is none of these.
        self.stop_start = self.at(call.begun for call in expansion.stops if not call.is_void)
        self.stop_end = self.at(call.answered for call in expansion.stops if not call.is_void)
        self.init_end = self.at(call.answered for call in expansion.inits if not call.is_void)
        self.ok = self.at(call.answered for call in expansion.inits if call.took_effect)
        # One that raised for an invalid list changes nothing.
        failed = (call for call in expansion.inits if call.is_valid and not call.ok and not call.is_void)
        self.init_failed = self.at(call.answered for call in failed)

    def where(self, holds: Callable[[FormalMoment], bool]) -> Truths:
        """Whether *holds* at each moment."""
        return Truths(map(holds, self.moments))

    @cached_property
    def always(self) -> Truths:
        """What holds everywhere."""
        return ~self.at(())

    def at(self, indices: Iterable[int | None]) -> Truths:
        """What holds at *indices* and nowhere else; None is no index."""
        return Truths(map(set(indices).__contains__, range(len(self.moments))))

    def some(self, signals: Iterable[Truths]) -> Truths:
        """What holds where any of *signals* does."""
        return reduce(or_, signals, self.at(()))

    # Calls may overlap: these hold while any such call is outstanding.

    def outstanding(self, call: Call) -> Truths:
        """not(its end or Crash) S its start."""
        return S(~(self.at([call.answered]) | self.crash), self.at([call.begun]))

    @cached_property
    def stopping(self) -> Truths:
        """Stopping := not(SE or Crash) S SS."""
        return self.some(self.outstanding(call) for call in self.expansion.stops)

    @cached_property
    def initing(self) -> Truths:
        """Initing := not(IE or Crash) S IS."""
        return self.some(self.outstanding(call) for call in self.expansion.inits)

    def init_at_stop(self, stop: Call) -> Truths:
        """InitAtStop := not(IE or Crash) S (SS and Y Initing), for one stop call."""
        stop_start = self.at([stop.begun])
        return self.some(
            S(~(self.at([init.answered]) | self.crash), stop_start & Y(self.outstanding(init)))
            for init in self.expansion.inits
        )

    @cached_property
    def active(self) -> Truths:
        """Active := not(SS or Crash or IEf) S (ok and not Y Stopping).

        Nor does anything start while a stop waits for its turn that is given up in the end.
        """
        stops = self.expansion.stops
        stopping = self.some(self.outstanding(call) for call in stops if not call.is_void)
        active = S(~(self.stop_start | self.crash | self.init_failed), self.ok & ~Y(stopping))
        return active & ~self.some(self.outstanding(call) for call in stops if call.is_void)

    @cached_property
    def initialized(self) -> Truths:
        """not(SE or Crash or IEf) S ok: a list is in force, and the store is open."""
        return S(~(self.stop_end | self.crash | self.init_failed), self.ok)

    @cached_property
    def was_active(self) -> Truths:
        """Active, or a stop from there has not returned."""
        return S(~(self.stop_end | self.crash | self.init_failed), self.active)

    @cached_property
    def given_up(self) -> Truths:
        """Whether a stop waits for its turn that is given up in the end, and no list has come since."""
        calls = [call for call in self.expansion.stops if call.is_void]
        return self.some(S(~(self.at([call.answered]) | self.ok), self.at([call.begun])) for call in calls)

    def running_run(self, run: FormalRun) -> Truths:
        start = self.at([max(run.begun, 0)])  # a run of the file before this one runs from the first position
        return S(~(self.at([run.ended]) | self.crash), start)

    @cached_property
    def anything_running(self) -> Truths:
        """Whether any run of any task is running."""
        return self.some(map(self.running_run, self.expansion.runs))

    def registered_count(self, index: int) -> int:
        """n, the number of registered tasks: the length of the latest successful list."""
        lists = [call for call in self.expansion.inits if call.took_effect and answered(call) <= index]
        return len(max(lists, key=answered).configs) if lists else 0

    def bound_us(self, tasks: int) -> int:
        """d(n)."""
        header = self.expansion.header
        return micros(header.delta_ms) + tasks * micros(header.delta_per_task_ms)
