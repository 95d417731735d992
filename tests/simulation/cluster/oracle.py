"""The oracle: sees every call and return of a body and every commit of the database, and says what is wrong.

It shares no code with the scheduler. It knows which minutes are due, counts on nothing but what it saw, and
judges four things:

- No two bodies of one task act at once.
- Every start has a cause: a due that no start has answered, a failure whose delay is over, or a run that was
  cut off, or whose end is not recorded.
- No due, retry or restart is lost: when nothing has been wrong for a while, it has come.
- No end is recorded by a node that is fenced, or over the run of another.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from duly.cluster.table import Claim, ComeBack, Fence, Put, Reconcile, TableRequest
from duly.instant import MINUTE_US, Instant
from tests.simulation.cluster.plan import BodyBehaviour, ClusterPlan, SharedTask

if TYPE_CHECKING:
    from tests.simulation.cluster.program import Program
    from tests.simulation.cluster.world import ClusterWorld, Network

_BEHAVES = (BodyBehaviour(),)
_BACKED_OFF = 3
_COUNTS_AFRESH_US = 5 * MINUTE_US
"""A clock that is set back by more brings minutes a second time."""


@dataclass(slots=True)
class Registered:
    """A task of the stored list."""

    item: SharedTask
    since_us: int
    """By the world."""
    minute_us: Instant
    """The minute in which it was registered, by the database. That counts still."""


@dataclass(eq=False, slots=True)
class BodyCall:
    """One call of a body. Times are the world's, if they are not said to be the database's."""

    name: str
    program: "Program"
    called_us: int
    claimed_us: Instant
    """When it was claimed, by the database: it answers every due up to then."""
    acted_us: int
    """When it last did something."""
    ended_us: int | None = None
    ended_at: Instant = 0
    """The same by the database."""
    is_ok: bool = False
    is_cut: bool = False
    blocked_us: int = 0
    """Until when its loop was blocked before it was cut off or its end was recorded: it was in the way."""
    recorded_us: int | None = None
    """When its end was recorded."""
    task: Registered | None = None
    forgotten_us: int | None = None
    """When the server forgot its end, unless the node that knows it has come back since."""
    is_excused: bool = False
    """The server has forgotten its end, and the node that knew it was not there, or the task is another."""

    @property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return self.ended_us is None and not self.is_cut

    @property
    def is_to_be_restarted(self) -> bool:
        """Whether nobody can know how it ended."""
        return self.is_cut or self.recorded_us is None or self.is_excused


@dataclass(slots=True)
class Demand:
    """There must be a start at *at_us* or later."""

    name: str
    at_us: int
    why: str
    since_us: int
    """A start from then on is one, too: a due that comes before a retry answers both."""
    run: BodyCall | None = None
    """The run whose end was not recorded when its program died. A message on its way may record it yet."""


@dataclass(slots=True)
class Judgement:
    faults: list[str] = field(default_factory=list)
    demands: int = 0


class Oracle:
    def __init__(self, plan: ClusterPlan, world: "ClusterWorld", network: "Network") -> None:
        self._plan = plan
        self._world = world
        self._network = network
        network.oracle = self
        self.is_healed = False
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self.programs: list[Program] = []
        self.runs: dict[str, list[BodyCall]] = {}
        self.registered: dict[str, Registered] = {}
        self._claims: dict[tuple[str, str], tuple[Instant, Registered | None]] = {}
        """When a program has claimed a task that it has not called, and what that was then."""
        self._cut_claims: set[str] = set()
        """Tasks that a fenced node had claimed for a cause and not called. Nobody else knows that."""
        self._numbers: Counter[str] = Counter()
        self._demands: list[Demand] = []
        self._troubles: list[tuple[int, int, str | None]] = []
        """From, until, and of which task."""
        self._served: list[tuple[int, frozenset[str]]] = [(0, frozenset())]
        self._changes: list[tuple[int, str]] = []
        """When tasks were registered, or removed."""
        self._latest_us: Instant = plan.start_us
        self._jumped_us = -plan.duration_us
        self._hash = hashlib.sha256()

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()

    def note(self, who: str, text: str) -> None:
        """Add a line to the story."""
        line = f"{self._world.now_us / 1e6:.6f} {who}: {text}"
        self.log.append(line)
        self._hash.update(line.encode())

    def object(self, text: str) -> None:
        """Say that something must not be."""
        self.faults.append(f"{text} (at {self._world.now_us / 1e6:.6f} s)")
        self.note("oracle", f"FAULT {text}")

    # --- what is going on ---

    def trouble(self, for_us: int = 0, name: str | None = None) -> None:
        """Note that something changes, or is wrong for so long, for one task or for all."""
        self._troubles.append((self._world.now_us, self._world.now_us + for_us, name))

    def note_health(self) -> None:
        """Look which tasks some program can be expected to start."""
        able = [self._plan.lists[program.items] for program in self.programs if program.is_able]
        served = frozenset(
            name for name, task in self.registered.items() if any(task.item in items for items in able)
        )
        self.trouble()
        if served != self._served[-1][1]:
            self._served.append((self._world.now_us, served))

    def on_death(self, program: "Program") -> None:
        """A program is gone, and with it its runs."""
        self.note(program.name, "is dead")
        self.programs = [each for each in self.programs if each is not program]
        for runs in self.runs.values():
            for run in runs:
                run.is_excused |= run.program is program and run.forgotten_us is not None
                if run.program is program and run.is_open:
                    self._cut(run)
                elif run.program is program and run.recorded_us is None and not run.is_cut:
                    self._note_blocked(run)
                    self._demand(run.name, "its end was never recorded", since_us=run.ended_us, run=run)
        self.note_health()

    def pass_time(self) -> None:
        """Demand a start for every task that has come due since the last look."""
        now_us = self._network.now_us()
        for minute in range(self._latest_us // MINUTE_US + 1, now_us // MINUTE_US + 1):
            for name, task in self.registered.items():
                if task.item.is_due(minute):
                    self._demand(name, f"due in minute {minute % 60}")
        self._latest_us = max(self._latest_us, now_us)

    def on_jump(self, by_us: int) -> None:
        """The clock of the database is about to be set. Programs learn it with their next heartbeat."""
        self.pass_time()
        self._jumped_us = self._world.now_us
        if by_us < -_COUNTS_AFRESH_US:
            self._count_afresh(self._network.now_us() + by_us)
            return
        # Until then a minute that has not come may have come for them.
        self._latest_us = max(self._latest_us, self._network.now_us() + self._plan.stale_us)
        self.trouble(max(-by_us, 0))
        for demand in self._demands:
            if demand.at_us > self._world.now_us:
                demand.at_us += max(-by_us, 0)

    def _count_afresh(self, now_us: Instant) -> None:
        """The clock was far ahead by mistake, or is far behind now: minutes from *now_us* on come again."""
        self._latest_us = now_us
        self._demands = [demand for demand in self._demands if demand.at_us <= self._world.now_us]
        self.trouble()
        for task in self.registered.values():
            task.minute_us = min(task.minute_us, now_us)
        for run in (run for runs in self.runs.values() for run in runs):
            run.claimed_us = min(run.claimed_us, now_us)

    def _demand(
        self,
        name: str,
        why: str,
        *,
        after_us: int = 0,
        since_us: int | None = None,
        run: BodyCall | None = None,
    ) -> None:
        now_us = self._world.now_us
        since_us = now_us if since_us is None else since_us
        self._demands.append(Demand(name, now_us + after_us, why, since_us, run))

    # --- bodies ---

    def behaviour(self, name: str) -> BodyBehaviour:
        """How the next run of *name* goes."""
        behaviours = _BEHAVES if self.is_healed else self._plan.behaviours.get(name, _BEHAVES)
        behaviour = behaviours[self._numbers[name] % len(behaviours)]
        self._numbers[name] += 1
        return behaviour

    def on_call(self, program: "Program", name: str) -> BodyCall:
        """A body is called."""
        self.pass_time()
        now_us = self._world.now_us
        claimed_us, task = self._claims.pop((program.name, name), (0, None))
        self.note(program.name, f"calls {name}")
        run = BodyCall(name, program, now_us, claimed_us, now_us, task=task)
        runs = self.runs.setdefault(name, [])
        if not claimed_us:
            self.object(f"{program.name} calls {name}, which it has not claimed")
        elif name not in self._cut_claims and not self._has_cause(claimed_us, runs, task):
            self.object(f"{program.name} calls {name} without a cause")
        self._cut_claims.discard(name)
        runs.append(run)
        self.on_act(run)
        return run

    def on_act(self, run: BodyCall) -> None:
        """A body does something."""
        run.acted_us = self._world.now_us
        for other in self.runs[run.name]:
            if other is not run and other.is_open and other.acted_us >= run.called_us:
                self.object(f"{run.program.name} and {other.program.name} run {run.name} at once")
            if other is not run and other.called_us > run.called_us and run.program is not other.program:
                self.object(
                    f"{run.program.name} acts for {run.name} when {other.program.name} has started it"
                )

    def on_return(self, run: BodyCall, *, is_ok: bool) -> None:
        """A body has come to its end."""
        self.on_act(run)
        run.ended_us, run.ended_at, run.is_ok = self._world.now_us, self._network.now_us(), is_ok
        self.note(run.program.name, f"ends {run.name}{'' if is_ok else ', which failed'}")
        task = self.registered.get(run.name)
        if not is_ok and task is not None and task is run.task:  # else it was claimed before a newer list
            self._demand(run.name, "retry", after_us=task.item.delay_us)

    def on_cut(self, run: BodyCall) -> None:
        """A body is cancelled."""
        if run.is_open and not run.program.is_dead:
            self.note(run.program.name, f"cuts {run.name} off")
            self._cut(run)

    def _cut(self, run: BodyCall) -> None:
        run.is_cut = True
        self._note_blocked(run)
        self.counts["runs cut off"] += 1
        self._demand(run.name, "was cut off", since_us=run.acted_us + 1)

    def _note_blocked(self, run: BodyCall) -> None:
        run.blocked_us = min(run.program.blocked_until_us, self._world.now_us)

    def _has_cause(self, claimed_us: Instant, runs: list[BodyCall], task: Registered | None) -> bool:
        if task is None:
            return False
        since = [each.claimed_us for each in runs if each.task is task]
        answered_us = max([task.minute_us - 1, *since])
        # A clock that is set back undoes no due.
        first, last = answered_us // MINUTE_US + 1, self._latest_us // MINUTE_US
        if any(task.item.is_due(minute) for minute in range(first, last + 1)):
            return True
        if not runs:
            return False
        before = runs[-1]
        # Its node alone knows that it has ended. Nobody waits for that for longer than a lease.
        is_away = before.forgotten_us is not None
        is_away = is_away and self._world.now_us - (before.forgotten_us or 0) >= self._plan.lease_us
        if before.is_to_be_restarted or is_away:
            return True
        # A program's clock may be off by as much as a slow answer takes. One that has heard of a jump and
        # could not claim since then takes a retry for one that had come before the jump.
        waited_us = claimed_us - before.ended_at + self._plan.lease_us // 2
        has_jumped = self._jumped_us >= before.called_us - self._plan.stale_us - self._plan.allowance_us
        return not before.is_ok and (waited_us >= task.item.delay_us or has_jumped)

    # --- the database ---

    @contextmanager
    def commit(self, program: "Program", request: TableRequest[Any]) -> Iterator[Callable[[Any], None]]:
        """See a request carried out: what is called with the outcome."""
        self.pass_time()
        before = len(self._network.table.space.runs)
        yield lambda outcome: self._see(program, request, outcome, before)

    def _see(self, program: "Program", request: TableRequest[Any], outcome: Any, before: int) -> None:
        if isinstance(outcome, Exception):
            return
        space = self._network.table.space
        if isinstance(request, Claim):
            for row in outcome.claimed:
                self._claims[program.name, row.name] = row.started_us, self.registered.get(row.name)
                self.note("database", f"{program.name} claims {row.name}, token {row.token}")
        if isinstance(request, Fence) and outcome is not None:
            self.counts["nodes fenced"] += 1
            taken = [run.name for run in outcome]
            self.note("database", f"{program.name} fences {request.node}: {', '.join(taken) or 'no runs'}")
            self._note_back_off(taken)
            self._note_cut_claims(taken)
        if isinstance(request, ComeBack):
            self.counts["returns"] += 1
            self.note("database", f"{program.name} comes back as {request.node}")
            for run in (run for runs in self.runs.values() for run in runs if run.program is program):
                run.forgotten_us = None
            self.trouble()
        for past in space.runs[before:]:
            if past.run.result != "interrupted":  # else it says that there was no end
                self._record(program, past.name, request)
        if isinstance(request, Reconcile) and not outcome.is_other:
            self._note_list(program, request)

    def _note_cut_claims(self, names: list[str]) -> None:
        """Note what a dead node has claimed and never called: that is started once more, as if it had been.

        A list that came meanwhile may have no due for it.
        """
        for (_program, name), (claimed_us, task) in self._claims.items():
            runs = self.runs.get(name, [])
            if name in names and self._has_cause(claimed_us, runs, task):
                self._cut_claims.add(name)

    def _note_back_off(self, names: list[str]) -> None:
        self.trouble()
        for row in self._network.table.space.rows.values():
            if row.name in names and row.interruptions >= _BACKED_OFF:
                self.counts["back-offs"] += 1
                self.trouble(self._plan.lease_us << (row.interruptions - _BACKED_OFF), row.name)

    def _record(self, program: "Program", name: str, request: TableRequest[Any]) -> None:
        self.note("database", f"the end of {name} by {program.name} is recorded")
        node = getattr(request, "node", None)
        if node in (nodes := self._network.table.space.nodes) and nodes[node].fenced_us is not None:
            self.object(f"{program.name} records the end of {name}, and is fenced")
        mine = [run for run in self.runs.get(name, ()) if run.program is program and run.ended_us is not None]
        if not mine:
            self.object(f"{program.name} records an end of {name}, which it has not run")
            return
        if mine[-1] is not self.runs[name][-1]:
            self.object(f"{program.name} records an end of {name} over the run of another")
        mine[-1].recorded_us = self._world.now_us
        self._note_blocked(mine[-1])
        self._demands = [demand for demand in self._demands if demand.run is not mine[-1]]

    def _note_list(self, program: "Program", request: Reconcile) -> None:
        """See which tasks are stored now."""
        kept = {name: task.item for name, task in self.registered.items() if name not in request.removed}
        items = kept | {put.name: self._item_of(put) for put in request.put}
        now_us = self._network.now_us()
        self.note("database", f"list of {program.name}: {', '.join(items)}")
        minute_us = now_us - now_us % MINUTE_US - MINUTE_US  # the program has read the time a little before
        self._register(
            {
                name: before
                if (before := self.registered.get(name)) is not None and before.item == item
                else Registered(item, self._world.now_us, minute_us)
                for name, item in items.items()
            }
        )

    def _item_of(self, put: Put) -> SharedTask:
        """The item of the plan with this name and definition."""
        cron, delay_us, _zone = json.loads(put.definition)
        items = {item for items in self._plan.lists for item in items}
        return next(i for i in items if (i.name, i.cron, i.delay_us) == (put.name, cron, delay_us))

    def _register(self, tasks: dict[str, Registered]) -> None:
        for name in {*tasks, *self.registered}:
            if tasks.get(name) is not self.registered.get(name):
                self._changes.append((self._world.now_us, name))
        self.registered = tasks
        self.note_health()

    def on_forget(self, kept: "dict[str, Registered]", kept_us: int) -> None:
        """The database is what it was at *kept_us*."""
        self._register(dict(kept))
        self.counts["servers that forgot"] += 1
        for runs in self.runs.values():
            for run in runs[-1:]:
                if run.recorded_us is not None and run.recorded_us >= kept_us:
                    run.forgotten_us = self._world.now_us
                    run.is_excused |= not (self._is_there(run) and self._is_known(run))

    def _is_known(self, run: BodyCall) -> bool:
        task = self.registered.get(run.name)
        return task is not None and run.task is not None and task.item == run.task.item

    def _is_there(self, run: BodyCall) -> bool:
        return run.program.is_running and not run.program.is_stopping

    # --- judging ---

    def judged(self) -> Judgement:
        """What is to be said of all that was seen."""
        judgement = Judgement(list(self.faults))
        for name in {demand.name for demand in self._demands}:
            demands = [demand for demand in self._demands if demand.name == name]
            quiet = _Quiet(self._obstacles(name), self._plan.allowance_us, self._world.now_us)
            calls = [run.called_us for run in self.runs.get(name, ())]
            for demand in demands:
                deadline_us = quiet.deadline_us(demand.at_us)
                if deadline_us is None or self._has_changed(name, demand.since_us, deadline_us):
                    continue
                judgement.demands += 1
                answer_us = next((call for call in calls if call >= demand.since_us), None)
                if answer_us is None or answer_us > deadline_us:
                    at = f"{demand.at_us / 1e6:.3f} s"
                    judgement.faults.append(
                        f"{name} was not started by {deadline_us / 1e6:.3f} s: {demand.why} at {at}"
                    )
        return judgement

    def _has_changed(self, name: str, since_us: int, until_us: int) -> bool:
        return any(of == name and since_us < at_us <= until_us for at_us, of in self._changes)

    def _obstacles(self, name: str) -> list[tuple[int, int]]:
        """When *name* cannot be expected to start."""
        obstacles = [(begin, end) for begin, end, of in self._troubles if of in {None, name}]
        for (begin_us, served), (end_us, _) in zip(
            self._served, [*self._served[1:], (self._world.now_us, frozenset[str]())], strict=True
        ):
            if name not in served:
                obstacles.append((begin_us, end_us))
        for run in self.runs.get(name, ()):
            end_us = self._world.now_us if run.is_open else max(run.ended_us or run.acted_us, run.blocked_us)
            obstacles.append((run.called_us, end_us))
        return sorted(obstacles)


class _Quiet:
    """When nothing is in the way."""

    def __init__(self, obstacles: list[tuple[int, int]], allowance_us: int, end_us: int) -> None:
        self._allowance_us = allowance_us
        self._spans: list[tuple[int, int]] = []
        begin_us = 0
        for obstacle_us, over_us in [*obstacles, (end_us, end_us)]:
            if obstacle_us - begin_us >= allowance_us:
                self._spans.append((begin_us, obstacle_us))
            begin_us = max(begin_us, over_us)

    def deadline_us(self, at_us: int) -> int | None:
        """By when something that is demanded at *at_us* has come; None if there is no time for it."""
        for begin_us, end_us in self._spans:
            deadline_us = max(begin_us, at_us) + self._allowance_us
            if deadline_us <= end_us:
                return deadline_us
        return None
