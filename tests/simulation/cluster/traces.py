"""The traces of a simulated cluster: every process records one, and `duly verify` judges them together.

They are what a user's programs would leave. The recorder stands around the scheduler and its callbacks. A
process that dies writes nothing more. The judge knows nothing of this simulation, and nothing that
the oracle saw.
"""

from datetime import UTC, timedelta
from itertools import chain

from msgspec.structs import replace

from duly.instant import milliseconds
from duly.verify.cluster import judged_together
from duly.verify.emitter import NodeName
from duly.verify.recorder import Recorder
from duly.verify.trace import ClockStep, TraceEvent
from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.host import encoded

_TICK = timedelta(seconds=5)


class Traces:
    """What all processes of one life recorded."""

    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self._tapes: list[tuple[Recorder, list[TraceEvent]]] = []
        self._setbacks: list[list[int]] = []
        """How many events each process had recorded when the clock of the database was set back."""

    def recorder(self, name: str) -> Recorder:
        """A recorder for a new process."""
        events: list[TraceEvent] = []
        recorder = Recorder(
            None,
            listeners=[events.append],
            timezone=UTC,
            proc=name,
            store="unknown" if self._tapes else "fresh",
            tick=_TICK,
            node=NodeName(name, self._plan.allowance_us),
        )
        self._tapes.append((recorder, events))
        return recorder

    def on_set_back(self) -> None:
        """The clock of the database is set back."""
        self._setbacks.append([len(events) for _, events in self._tapes])

    @property
    def is_telling(self) -> bool:
        """Whether the order of events can be told: for each time the clock was set back somebody saw it."""
        return all(
            any(
                isinstance(event, ClockStep)
                for (_, events), number in zip(self._tapes, numbers, strict=False)
                for event in events[number:]
            )
            for numbers in self._setbacks
        )

    @property
    def files(self) -> list[list[bytes]]:
        """What each process has recorded."""
        late_ms = milliseconds(self._plan.stale_us)
        return [
            [*encoded(replace(tape.header, delta_ms=tape.header.delta_ms + late_ms), events)]
            for tape, events in self._tapes
        ]

    def faults(self) -> list[str]:
        """What `duly verify` objects to."""
        if not self.is_telling:
            return []
        outcome = judged_together(chain(*self.files))
        faults = [f"trace: line {fault.line}: {fault.reason}" for fault in outcome.faults]
        return faults + [f"trace: {each.property}: {each.reason}" for each in outcome.violations]
