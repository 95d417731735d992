"""Lives the plan of a cluster: starts, stops, kills, pauses and parts its programs, heals all, and judges.

The director acts from outside, at the times that the plan says. A program that is gone is started again by
whatever starts programs on its host, with the list that is installed there by then.
"""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from duly import marks
from duly.instant import SECOND_US
from tests.simulation.cluster import plan as planned
from tests.simulation.cluster.oracle import Oracle, Registered
from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.cluster.program import Program
from tests.simulation.cluster.traces import Traces
from tests.simulation.cluster.world import ClusterWorld, Network
from tests.simulation.life import Judged, unheard
from tests.simulation.loop import StandstillError
from tests.simulation.steady import Point

_STOP_PATIENCE_US = 45 * SECOND_US
"""So long a program that is stopped has to end, before it is killed."""
_SOON_US = 10 * SECOND_US
"""After how long a program is started again that died by itself."""


@dataclass(slots=True)
class ClusterLife(Judged):
    """The life of a cluster, and what is to be said of it."""

    plan: ClusterPlan
    faults: list[str]
    hash: str
    log: list[str]
    starts: int
    demands: int
    """How many starts were demanded, and had come in time."""
    counts: Counter[str]
    steady_us: int
    marks: Counter[str] = field(default_factory=Counter)
    sent: list[int] = field(default_factory=list)
    """How many messages each host had sent before everything was healed."""
    files: list[list[bytes]] = field(default_factory=list)
    """The traces of its processes."""

    @property
    def kind(self) -> str:
        """What is wrong first, without the particulars."""
        words = [word for word in self.faults[0].split() if word.isalpha()] if self.faults else []
        return " ".join(words[:6])


def cluster_lived(plan: ClusterPlan) -> ClusterLife:
    """Live *plan*. It is judged by an oracle, and by `duly verify` from what its programs recorded."""
    with unheard(), marks.counted() as passed:
        life = _ClusterDirector(plan).life()
        life.marks = passed
        return life


def cluster_recorded(plan: ClusterPlan) -> list[list[dict[str, Any]]]:
    """What the processes of a sound life have recorded, line by line."""
    life = cluster_lived(plan)
    life.check()
    return [[msgspec.json.decode(line) for line in lines] for lines in life.files]


class _ClusterDirector:
    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self._traces = Traces(plan)
        self._world = ClusterWorld()
        self._network = Network(plan, self._world)
        self._oracle = Oracle(plan, self._world, self._network)
        self._programs: list[Program | None] = [None] * len(plan.hosts)
        self._installed = [host.items for host in plan.hosts]
        self._begun = [0] * len(plan.hosts)
        self._downtimes: dict[int, int] = {}
        self._kept: dict[planned.Forget, tuple[int, dict[str, Registered]]] = {}
        self._is_healed = False

    def life(self) -> ClusterLife:
        for number, host in enumerate(self._plan.hosts):
            self._world.at(host.boots_us, self._starter(number))
        for action in self._plan.actions:
            if isinstance(action, planned.Forget):
                self._world.at(max(action.at_us - action.back_us, 0), self._forgetting(action))
            if not isinstance(action, planned.Harm):
                self._world.at(action.at_us, self._performer(action))
        sent = [0] * len(self._plan.hosts)
        try:
            self._live_until(self._plan.duration_us)
            sent = [line.sent for line in self._network.lines]
            self._heal()
        except StandstillError as error:
            self._oracle.object(str(error))
        judgement = self._oracle.judged()
        faults = [*judgement.faults, *self._left_open()]
        self._end()
        faults += self._traces.faults()
        return ClusterLife(
            self._plan,
            faults,
            self._oracle.hash,
            self._oracle.log,
            sum(map(len, self._oracle.runs.values())),
            judgement.demands,
            self._oracle.counts + self._network.counts,
            self._world.now_us,
            sent=sent,
            files=self._traces.files,
        )

    def _live_until(self, until_us: int) -> None:
        while self._world.now_us < until_us:
            self._world.run_until(min(self._world.now_us + SECOND_US, until_us))
            self._oracle.pass_time()

    # --- programs ---

    def _starter(self, host: int) -> Callable[[], None]:
        return lambda: self._start(host)

    def _start(self, host: int) -> None:
        if self._programs[host] is not None:
            return
        self._begun[host] += 1
        number, items = self._begun[host], self._installed[host]
        program = Program(
            *(self._plan, self._world, self._network, self._oracle, self._traces),
            host=host,
            number=number,
            items=items,
        )
        program.on_death = lambda: self._on_death(program)
        self._programs[host] = program
        self._oracle.programs.append(program)
        self._oracle.note(program.name, f"starts with list {items}")
        program.initialize(items)

    def _on_death(self, program: Program) -> None:
        self._programs[program.host] = None
        downtime_us = self._downtimes.pop(program.host, _SOON_US)
        if self._is_healed:
            downtime_us = min(downtime_us, _SOON_US)
        self._world.at(self._world.now_us, program.bury)  # not at once: it is in the middle of something
        self._world.after(downtime_us, self._starter(program.host))

    # --- actions ---

    def _performer(self, action: planned.Action) -> Callable[[], None]:
        return lambda: None if self._is_healed else self._perform(action)

    def _forgetting(self, forget: planned.Forget) -> Callable[[], None]:
        def keep() -> None:
            self._network.keep(forget)
            self._kept[forget] = self._world.now_us, copy.copy(self._oracle.registered)

        return keep

    def _perform(self, action: planned.Action) -> None:
        self._oracle.counts[type(action).__name__.lower()] += 1
        self._oracle.note("world", f"{action}")
        match action:
            case planned.Restart() | planned.Forget():
                self._network.fall()
                self._oracle.trouble(action.for_us)
                self._world.after(action.for_us, lambda: self._rise(action))
            case planned.Jump():
                self._oracle.on_jump(action.by_us)
                self._network.jump(action.by_us)
                if action.by_us < 0:
                    self._traces.on_set_back()
            case planned.Part() | planned.Slow() | planned.Lossy():
                self._change_line(action, is_over=False)
                self._world.after(action.for_us, lambda: self._change_line(action, is_over=True))
            case planned.Harm():
                pass
            case _:
                self._meddle(action)

    def _rise(self, action: planned.Restart | planned.Forget) -> None:
        if self._is_healed:
            return
        forget = action if isinstance(action, planned.Forget) else None
        self._network.rise(forget)
        if forget is not None:
            kept_us, registered = self._kept.pop(forget)
            self._oracle.on_forget(registered, kept_us)
        self._oracle.trouble()

    def _meddle(self, action: planned.Crash | planned.Leave | planned.Change | planned.Pause) -> None:
        if not isinstance(action, planned.Pause) and action.items is not None:
            self._installed[action.host] = action.items
        program = self._programs[action.host]
        if program is None or program.is_paused or program.is_stopping:
            return
        match action:
            case planned.Crash():
                self._downtimes[action.host] = action.downtime_us
                if action.after:
                    program.points.arm(Point.AWAIT, action.after)
                else:
                    program.fall()
            case planned.Leave():
                self._downtimes[action.host] = action.downtime_us
                program.stop()
                self._world.after(_STOP_PATIENCE_US, program.fall)
            case planned.Change():
                program.initialize(action.items)
            case planned.Pause():
                program.pause()
                self._world.after(action.for_us, program.resume)

    def _change_line(self, action: planned.Part | planned.Slow | planned.Lossy, *, is_over: bool) -> None:
        if self._is_healed:
            return
        line, sign = self._network.lines[action.host], -1 if is_over else 1
        match action:
            case planned.Part():
                line.cuts += sign
                line.late += sign * action.is_late
                if is_over and not line.cuts:
                    self._network.release(line)
            case planned.Slow():
                line.request_us += sign * action.request_us
                line.answer_us += sign * action.answer_us
            case planned.Lossy():
                line.percent_lost += sign * action.percent
        if not isinstance(action, planned.Part) and not is_over:
            self._oracle.trouble(action.for_us)  # it may keep its lease, and be of little use
        self._oracle.note_health()

    # --- the end ---

    def _heal(self) -> None:
        """Let nothing be wrong any more, and give every demand the time to be met."""
        while self._network.away:  # servers come back as planned
            self._live_until(self._world.now_us + SECOND_US)
        self._is_healed = self._oracle.is_healed = True
        self._oracle.note("world", "healed")
        self._network.heal()
        for host, program in enumerate(self._programs):
            if program is None:
                self._world.at(self._world.now_us, self._starter(host))
            else:
                program.points.disarm()
                program.resume()
        self._oracle.note_health()
        self._live_until(self._world.now_us + 2 * self._plan.allowance_us + self._plan.settle_us)

    def _left_open(self) -> list[str]:
        """What is not as it should be when all is well."""
        faults = []
        for program in self._programs:
            if program is None:
                faults.append("a program is down after everything was healed")
            elif not program.is_able and not program.is_stopping:
                faults.append(f"{program.name} does not schedule after everything was healed")
            elif program.loop.complaints:
                faults.append(f"{program.name} complains: {program.loop.complaints[0]}")
        living = {program.node.id for program in self._programs if program is not None and program.node}
        return faults + [
            f"{row.name} is run by node {row.run_by}, and nobody is that"
            for row in self._network.table.space.rows.values()
            if row.run_by is not None and row.run_by not in living
        ]

    def _end(self) -> None:
        for program in [program for program in self._programs if program is not None]:
            program.on_death = lambda: None
            program.close()
            program.fall()
            program.bury()
