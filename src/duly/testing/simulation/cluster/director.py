"""Lives a cluster's plan: starts, stops, kills, pauses and parts its programs, heals everything, and judges.

As for a single program the director acts from outside, at the times the plan says. A program that is gone is
started again by whatever starts programs on its host, with the list that is installed there by then.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from duly import marks
from duly.core.record import COLUMNS
from duly.instant import SECOND_US
from duly.testing.simulation.cluster import plan as planned
from duly.testing.simulation.cluster.plan import ClusterPlan
from duly.testing.simulation.cluster.program import Program
from duly.testing.simulation.cluster.reckoning import Reckoning, allowance_us, reckoned
from duly.testing.simulation.cluster.sea import Sea
from duly.testing.simulation.cluster.traces import Traces, objected
from duly.testing.simulation.cluster.witness import Witness, item_of
from duly.testing.simulation.cluster.world import World
from duly.testing.simulation.life import UnsoundLifeError
from duly.testing.simulation.loop import StandstillError
from duly.testing.simulation.steady import Point
from duly.verify.properties import Outcome

_STOP_PATIENCE_US = 45 * SECOND_US
"""How long whoever stops a program waits before killing it."""
_SINCE, _SUCCESS, _FAILURE = (
    COLUMNS.index(name) for name in ("running_since_us", "last_success_us", "last_failure_us")
)
_NAME, _REGISTERED = COLUMNS.index("name"), COLUMNS.index("registered_us")


@dataclass(slots=True)
class ClusterLife:
    """The life of a cluster, and what is to be said of it."""

    plan: ClusterPlan
    faults: list[str]
    hash: str
    log: list[str]
    reckoning: Reckoning
    counts: Counter[str]
    marks: Counter[str] = field(default_factory=Counter)
    sent: list[int] = field(default_factory=list)
    """How many messages each host had sent before everything was healed."""
    turns: list[int] = field(default_factory=list)
    """How many turns of their loops the first programs of each host took until then."""
    world_us: int = 0
    member_us: int = 0
    """How long all programs together lived."""
    slowest_failover_us: int = 0
    outcome: Outcome = field(default_factory=Outcome)
    """What `duly verify` says of the traces of all programs."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    def check(self) -> None:
        """Raise an AssertionError that says what is wrong, if anything is."""
        if not self.is_sound:
            raise UnsoundLifeError(self.plan.seed, self.faults)


def cluster_lived(plan: ClusterPlan, wire: Callable[[Program], None] = lambda _program: None) -> ClusterLife:
    """Live *plan*. *wire* may change every new program, for simulations of what is broken."""
    with _silent(), marks.counted() as passed:
        life = _Director(plan, wire).life()
        life.marks = passed
        return life


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the logger of the simulated schedulers quiet: what they have to say is in the story."""
    logger = logging.getLogger("duly")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


class _Director:
    def __init__(self, plan: ClusterPlan, wire: Callable[[Program], None]) -> None:
        self._plan = plan
        self._wire = wire
        self._world = World()
        self._sea = Sea(plan, self._world)
        self._witness = Witness(plan, self._world, self._sea)
        self._traces = Traces(plan)
        self._programs: list[Program | None] = [None] * len(plan.hosts)
        self._installed = [host.items for host in plan.hosts]
        self._begun = [0] * len(plan.hosts)
        self._first: list[Program | None] = [None] * len(plan.hosts)
        self._offsets: list[int] = [host.offset_us for host in plan.hosts]
        self._downtimes: dict[int, int] = {}
        self._is_healed = False
        self._member_us = 0
        self._born_us: dict[Program, int] = {}

    def life(self) -> ClusterLife:
        """Live the plan and judge it."""
        for number, host in enumerate(self._plan.hosts):
            self._world.at(host.boots_us, self._starter(number))
        for action in self._plan.actions:
            if isinstance(action, planned.Forget):
                self._world.at(max(action.at_us - action.back_us, 0), self._keeper(action))
            if not isinstance(action, planned.Harm):
                self._world.at(action.at_us, self._performer(action))
        sent, turns = [0] * len(self._plan.hosts), [0] * len(self._plan.hosts)
        objections = self._witness.objections
        try:
            self._world.run_until(self._plan.duration_us)
            sent = [weather.sent for weather in self._sea.weather]
            turns = [0 if first is None else first.points.awaits for first in self._first]
            self._heal()
        except StandstillError as error:
            objections.append(str(error))
        end_us = self._sea.now_us()
        reckoning = reckoned(self._plan, self._witness.history, end_us)
        faults = [*objections, *reckoning.faults, *self._disagreements(), *self._left_open()]
        self._end()
        outcome = self._traces.judged()
        faults += objected(outcome)
        return ClusterLife(
            self._plan,
            faults,
            self._witness.hash,
            self._witness.log,
            reckoning,
            self._witness.counts + self._sea.counts,
            sent=sent,
            turns=turns,
            world_us=self._world.now_us,
            member_us=self._member_us,
            slowest_failover_us=self._witness.slowest_failover_us,
            outcome=outcome,
        )

    # --- programs ---

    def _starter(self, host: int) -> Callable[[], None]:
        return lambda: self._start(host)

    def _start(self, host: int) -> None:
        if self._programs[host] is not None:
            return
        self._begun[host] += 1
        program = Program(
            self._plan,
            self._world,
            self._sea,
            self._witness,
            self._traces,
            host=host,
            number=self._begun[host],
            items=self._installed[host],
            offset_us=self._offsets[host],
        )
        program.on_death = lambda: self._on_death(program)
        self._wire(program)
        self._first[host] = self._first[host] or program
        self._programs[host] = program
        self._born_us[program] = self._world.now_us
        self._witness.programs.append(program)
        self._witness.trouble()
        self._witness.note(program, f"starts with list {program.items}")
        program.initialize(self._installed[host])

    def _on_death(self, program: Program) -> None:
        self._programs[program.host] = None
        self._member_us += self._world.now_us - self._born_us.pop(program)
        downtime_us = self._downtimes.pop(program.host, 10 * SECOND_US)
        if self._is_healed:  # whoever stopped it for long had to kill it, and that after all was well again
            downtime_us = min(downtime_us, 10 * SECOND_US)
        # Not at once: it is in the middle of something.
        self._world.at(self._world.now_us, program.bury)
        self._world.after(downtime_us, self._starter(program.host))

    def _kill(self, program: Program) -> None:
        if self._programs[program.host] is program:
            program.fall()

    # --- actions ---

    def _performer(self, action: planned.Action) -> Callable[[], None]:
        return lambda: self._perform(action)

    def _keeper(self, forget: planned.Forget) -> Callable[[], None]:
        return lambda: self._sea.keep(forget)

    def _perform(self, action: planned.Action) -> None:
        if self._is_healed:
            return
        self._witness.counts[type(action).__name__.lower()] += 1
        self._witness.note(None, f"{action}")
        match action:
            case planned.Away():
                self._go_away(action.for_us, is_silent=action.is_silent)
            case planned.Forget():
                self._sea.forget(action)
                self._witness.note_forgotten()
                self._go_away(action.for_us, is_silent=False)
            case planned.Step():
                self._offsets[action.host] += action.by_us
            case planned.Part() | planned.Slow() | planned.Lossy():
                self._storm(action, is_over=False)
                self._world.after(action.for_us, lambda: self._storm(action, is_over=True))
            case _:
                if not isinstance(action, planned.Harm):
                    self._meddle(action)

    def _meddle(self, action: planned.Crash | planned.Leave | planned.Change | planned.Pause) -> None:
        if not isinstance(action, planned.Pause) and action.items is not None:
            self._installed[action.host] = action.items
        program = self._programs[action.host]
        if program is None or program.is_paused:
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
                self._world.after(_STOP_PATIENCE_US, lambda: self._kill(program))
            case planned.Change():
                program.initialize(action.items)
            case planned.Pause():
                program.pause()
                self._witness.note_health()
                self._world.after(self._plan.ttl_us + self._plan.beat_us, lambda: self._look_at(program))
                self._world.after(action.for_us, lambda: self._resume(program))

    def _look_at(self, program: Program) -> None:
        if program.is_paused and not program.is_dead:
            self._witness.note_dormant(program)

    def _resume(self, program: Program) -> None:
        if program.is_paused and not program.is_dead:
            self._witness.note(program, "goes on")
            program.resume()
            self._witness.note_health()

    def _go_away(self, for_us: int, *, is_silent: bool) -> None:
        self._sea.sever()
        self._sea.away += 1
        self._sea.silent += is_silent
        self._witness.trouble(for_us)
        self._world.after(for_us, lambda: self._come_back(is_silent=is_silent))

    def _come_back(self, *, is_silent: bool) -> None:
        if not self._is_healed:
            self._sea.away -= 1
            self._sea.silent -= is_silent

    def _storm(self, action: planned.Part | planned.Slow | planned.Lossy, *, is_over: bool) -> None:
        if self._is_healed:
            return
        weather, sign = self._sea.weather[action.host], -1 if is_over else 1
        match action:
            case planned.Part():
                weather.parted += sign
                weather.late += sign * action.is_late
                if is_over and not weather.parted:
                    self._sea.release(weather)
            case planned.Slow():
                weather.request_us += sign * action.request_us
                weather.answer_us += sign * action.answer_us
            case planned.Lossy():
                weather.percent_lost += sign * action.percent
        if not isinstance(action, planned.Part) and not is_over:
            # It may keep its lease, and be of little use.
            self._witness.trouble(action.for_us)
        self._witness.note_health()

    # --- the end ---

    def _heal(self) -> None:
        """Let nothing be wrong any more, and give every obligation the time to be met."""
        self._is_healed = self._witness.is_healed = True
        self._witness.note(None, "healed")
        self._sea.calm()
        for host, program in enumerate(self._programs):
            if program is None:
                self._world.at(self._world.now_us, self._starter(host))
                continue
            program.points.disarm()
            self._resume(program)
        self._witness.note_health()
        self._world.run_until(self._world.now_us + allowance_us(self._plan) + self._plan.settle_us)

    def _disagreements(self) -> list[str]:
        """Where the rows of the board say something else than what was seen of the last runs."""
        faults = []
        for entry in self._sea.table.entries.values():
            record, run = entry.record, self._witness.last_run(entry.record[_NAME])
            if item_of(record) not in (self._witness.served or ()):
                continue  # by a list that nobody has any more
            since_us = record[_SINCE]
            latest_us = max(since_us or 0, (run and run.ended_us) or 0)
            if latest_us > self._sea.now_us() - SECOND_US:
                continue  # the world ended in the middle of it
            if run is None or run.is_cut:
                is_right = since_us is None
            elif run.ended_us is None:
                is_right = (since_us, entry.run_by) == (run.started_us, run.member)
            else:
                is_older = record[_REGISTERED] > run.started_us
                is_right = since_us is None and (
                    is_older or record[_SUCCESS if run.ok else _FAILURE] == run.ended_us
                )
            if not is_right:
                faults.append(
                    f"the row of {record[_NAME]} says {record}, run by {entry.run_by}, and was seen {run}"
                )
        return faults

    def _left_open(self) -> list[str]:
        """What is not as it should be when all is well: programs that are down, shards that are nobody's."""
        faults = []
        for program in self._programs:
            if program is None:
                faults.append("a program is down after everything was healed")
            elif not program.is_up and not program.is_stopping:
                faults.append(f"{program.name} does not schedule after everything was healed")
            elif program.loop.complaints:
                faults.append(f"{program.name} complains: {program.loop.complaints[0]}")
        living = {program.link.member for program in self._programs if program is not None}
        faults += [
            f"shard {number} is held by {shard.holder}, and nobody is that"
            for number, shard in enumerate(self._sea.table.shards)
            if shard.holder not in living
        ]
        return faults

    def _end(self) -> None:
        for program in [program for program in self._programs if program is not None]:
            program.on_death = lambda: None
            program.close()
            self._member_us += self._world.now_us - self._born_us[program]
            program.fall()
            program.bury()
