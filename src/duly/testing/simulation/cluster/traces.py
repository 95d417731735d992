"""The traces of a simulated cluster: every process records one, and all are judged together.

They are what a user's programs would leave: the recorder stands around the scheduler and its callbacks, and
the board's clock dates what it writes. A process that dies writes nothing more; its trace ends where it was.
Whoever judges them knows nothing of this simulation, and nothing that the witness saw.
"""

from dataclasses import dataclass, field
from datetime import UTC, timedelta

from msgspec.structs import replace

from duly.instant import milliseconds
from duly.testing.simulation.cluster.plan import ClusterPlan, Pause
from duly.testing.simulation.host import encoded
from duly.verify.cluster import judged_together
from duly.verify.membership import Membership
from duly.verify.properties import Outcome
from duly.verify.recorder import Recorder
from duly.verify.trace import Event


@dataclass(slots=True)
class _Tape:
    recorder: Recorder
    events: list[Event] = field(default_factory=list)


class Traces:
    """What all processes of one life recorded."""

    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self._tapes: list[_Tape] = []

    def recorder(self, name: str, failover_us: int, *, is_first: bool) -> Recorder:
        """A recorder for a new process; *is_first* if there is nothing on the board yet."""
        tick_us, events = self._plan.tick_us, list[Event]()
        recorder = Recorder(
            None,
            listeners=[events.append],
            timezone=UTC,
            proc=name,
            store="fresh" if is_first else "unknown",
            tick=None if tick_us is None else timedelta(microseconds=tick_us),
            membership=Membership(name, self._plan.shards, failover_us),
        )
        self._tapes.append(_Tape(recorder, events))
        return recorder

    def lines(self) -> list[bytes]:
        """All of them, one after the other."""
        late_ms = milliseconds(_longest_pause_us(self._plan))
        lines: list[bytes] = []
        for tape in self._tapes:
            header = tape.recorder.header
            slow = replace(header, delta_ms=header.delta_ms + late_ms)
            lines += encoded(slow, tape.events)
        return lines

    def judged(self) -> Outcome:
        """What `duly verify` says of them."""
        return judged_together(self.lines())


def _longest_pause_us(plan: ClusterPlan) -> int:
    """How long at most a program gets no time: what it does may be late by as much."""
    return max(
        sum(each.for_us for each in plan.actions if isinstance(each, Pause) and each.host == host)
        for host in range(len(plan.hosts))
    )


def objected(outcome: Outcome) -> list[str]:
    """What is wrong by that outcome: violations, and traces that cannot be read."""
    faults = [f"trace: line {fault.line}: {fault.reason}" for fault in outcome.faults]
    return faults + [f"trace: {each.property}: {each.reason}" for each in outcome.violations]
