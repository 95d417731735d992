"""The world of a simulated cluster: its time, one database, and a network that loses and delays messages.

Every program has a loop of its own and a steady clock that may drift. A message is a request that reaches the
database after a while, is carried out there in one transaction, and an answer that reaches the program after
a while. Each part may be lost or late. A caller that waits too long gets an error, as from a connection.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from duly.cluster.table import TableRequest
from duly.errors import StoreError
from duly.instant import Instant
from tests.simulation.cluster.plan import ClusterPlan, Fate, Forget, Harm
from tests.worlds.model_table import ModelDatabase, ModelTable, Namespace

if TYPE_CHECKING:
    from tests.simulation.cluster.oracle import Oracle
    from tests.simulation.cluster.program import Program

_MILLION = 1_000_000
_USUAL_US = (200, 500, 2_000, 20_000)
OnOutcome = Callable[[Any], None]
"""Is called with the answer, or with a StoreError."""


class Drift:
    def __init__(self, ppm: int, base_us: int) -> None:
        self._ppm = ppm
        self._base_us = base_us

    def local_us(self, world_us: int) -> int:
        """What it shows at that time of the world."""
        return self._base_us + world_us + world_us * self._ppm // _MILLION

    def world_us(self, local_us: int) -> int:
        """The first microsecond of the world at which it shows at least that."""
        passed_us = local_us - self._base_us
        return -(-passed_us * _MILLION // (_MILLION + self._ppm))  # rounded up


class ClusterWorld:
    """Time, and what is to happen when. Loops of programs run in between."""

    def __init__(self) -> None:
        self.now_us = 0
        self.programs: list[Program] = []
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, at_us: int, act: Callable[[], None]) -> None:
        heappush(self._agenda, (max(at_us, self.now_us), next(self._order), act))

    def after(self, delay_us: int, act: Callable[[], None]) -> None:
        self.at(self.now_us + delay_us, act)

    def run_until(self, until_us: int) -> None:
        while (next_us := self._next_us()) is not None and next_us <= until_us:
            self._reach(next_us)
            while self._agenda and self._agenda[0][0] <= next_us:
                heappop(self._agenda)[2]()
            for program in tuple(self.programs):
                if program.is_running and program in self.programs:
                    program.loop.run_until(program.steady.now_us)
        self._reach(until_us)

    def _reach(self, now_us: int) -> None:
        self.now_us = now_us
        for program in self.programs:
            program.steady.now_us = program.drift.local_us(now_us)

    def _next_us(self) -> int | None:
        times = [
            max(program.drift.world_us(local_us), self.now_us)
            for program in self.programs
            if program.is_running and (local_us := program.loop.next_us()) is not None
        ]
        return min([*times, self._agenda[0][0]] if self._agenda else times, default=None)


@dataclass(slots=True)
class Line:
    """How messages of a host fare."""

    cuts: int = 0
    late: int = 0
    request_us: int = 0
    answer_us: int = 0
    percent_lost: int = 0
    sent: int = 0
    harms: dict[int, Harm] = field(default_factory=dict)
    held: list[Callable[[], None]] = field(default_factory=list)
    """Requests that wait for the end of a partition."""

    @property
    def is_fair(self) -> bool:
        """Whether messages arrive soon."""
        return not (self.cuts or self.percent_lost or self.request_us or self.answer_us)


class Network:
    """The database, and the ways to it."""

    def __init__(self, plan: ClusterPlan, world: ClusterWorld) -> None:
        self.rng = random.Random(f"network {plan.seed}")
        self._world = world
        self.database = ModelDatabase(plan.start_us)
        self.table = ModelTable(self.database)
        self._ahead_us = plan.start_us
        self.lines = [Line() for _ in plan.hosts]
        self.away = 0
        self._connections = 0
        """Grows when all connections break."""
        self._kept: dict[Forget, dict[str, Namespace]] = {}
        self.counts: Counter[str] = Counter()
        self.oracle: Oracle
        for action in plan.actions:
            if isinstance(action, Harm):
                self.lines[action.host].harms[action.number] = action

    def now_us(self) -> Instant:
        self.database.now_us = self._world.now_us + self._ahead_us
        return self.database.now_us

    def jump(self, by_us: int) -> None:
        self._ahead_us += by_us

    # --- the server ---

    def keep(self, forget: Forget) -> None:
        """Have a standby with all that is committed now."""
        self._kept[forget] = self.database.snapshot()

    def fall(self) -> None:
        """Let the server be gone: connections break."""
        self.away += 1
        self._connections += 1

    def rise(self, forget: Forget | None) -> None:
        """Let a server answer: the same after a restart, or a standby."""
        self.away -= 1
        if forget is None:
            self.database.restart()
        else:
            self.database.forget(self._kept.pop(forget))

    def heal(self) -> None:
        """Let everything be well."""
        self.away = 0
        for line in self.lines:
            line.cuts = line.late = line.request_us = line.answer_us = line.percent_lost = 0
            line.harms.clear()
            self.release(line)

    def release(self, line: Line) -> None:
        """Let the requests go on that waited for the end of a partition."""
        held, line.held = line.held, []
        for go_on in held:
            go_on()

    # --- messages ---

    def send(
        self, program: "Program", request: TableRequest[Any], patience_us: int, on_outcome: OnOutcome
    ) -> None:
        """Send *request*, and call *on_outcome* once."""
        _Message(self, self._world, program, request, on_outcome).go(patience_us)

    def connections(self) -> int:
        """Another number whenever all connections have broken."""
        return self._connections

    def is_lost(self, line: Line) -> bool:
        """Whether chance has a message lost."""
        return line.percent_lost > 0 and self.rng.randrange(100) < line.percent_lost

    def delay_us(self) -> int:
        """How long a message takes usually."""
        return self.rng.choice(_USUAL_US) + self.rng.randrange(200)


class _Message:
    def __init__(
        self,
        network: Network,
        world: ClusterWorld,
        program: "Program",
        request: TableRequest[Any],
        on_outcome: OnOutcome,
    ) -> None:
        self._network = network
        self._world = world
        self._program = program
        self._request = request
        self._on_outcome: OnOutcome | None = on_outcome
        self._line = network.lines[program.host]
        self._harm = self._line.harms.get(self._line.sent)
        self._fate = None if self._harm is None else self._harm.fate
        self._line.sent += 1
        self._connection = network.connections()

    def go(self, patience_us: int) -> None:
        """Leave the program."""
        network, line = self._network, self._line
        if self._fate is not None:
            network.counts[str(self._fate)] += 1
        if network.away:
            self._world.after(network.delay_us(), lambda: self._fail("connection refused", is_undone=True))
            return
        self._world.after(patience_us, lambda: self._fail("no answer in time"))
        delay_us = network.delay_us() + line.request_us
        if self._fate is Fate.REQUEST_LATE and self._harm is not None:
            delay_us += patience_us + self._harm.late_us
        if self._fate is Fate.CRASH_SENT:
            self._world.at(self._world.now_us, self._program.fall)
        if self._fate is not Fate.REQUEST_LOST and not network.is_lost(line):
            self._world.after(delay_us, self._arrive)

    def _arrive(self) -> None:
        line = self._line
        if line.cuts:
            if line.late:
                line.held.append(self._arrive)
        elif self._network.away or self._connection != self._network.connections():
            self._fail("connection lost")
        else:
            self._carry_out()

    def _carry_out(self) -> None:
        network = self._network
        network.now_us()
        outcome: Any
        with network.oracle.commit(self._program, self._request) as note:
            try:
                outcome = network.table.do(self._request)
            except StoreError as error:
                outcome = error
            note(outcome)
        if self._fate is Fate.CRASH_DONE:
            self._program.fall()
        if self._fate is Fate.ANSWER_LOST or network.is_lost(self._line):
            return
        delay_us = network.delay_us() + self._line.answer_us
        if self._fate is Fate.ANSWER_LATE and self._harm is not None:
            delay_us += self._harm.late_us
        self._world.after(delay_us, lambda: self._answer(outcome))

    def _answer(self, outcome: Any) -> None:
        if self._connection != self._network.connections():
            self._fail("connection lost")
        elif not self._line.cuts:
            self._settle(outcome)
        elif self._line.late:
            self._line.held.append(lambda: self._answer(outcome))

    def _fail(self, reason: str, *, is_undone: bool = False) -> None:
        error = StoreError(store="model", reason=reason)
        error.is_undone = is_undone
        self._settle(error)

    def _settle(self, outcome: Any) -> None:
        on_outcome, self._on_outcome = self._on_outcome, None
        if on_outcome is not None:
            self._program.hear(lambda: on_outcome(outcome))
