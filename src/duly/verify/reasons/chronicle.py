"""The chronicle of one task: which dues came, in what circumstances, and what became of them.

What the task may be at any time (docs/decisions/0011) is asked of a judge, who is told of this task alone and
whose verdict nobody hears. Dues are never kept one by one: those that came in the same circumstances are one
`Arrivals`, those that wait for the same answer one `Standing`, and only as many are kept as were asked for.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from duly.verify.dues import NEVER_US, Dues
from duly.verify.judge import Judge
from duly.verify.lists import Lists
from duly.verify.reasons.arrivals import (
    MINUTE_US,
    MOST_COUNTED,
    Arrivals,
    Asked,
    Cause,
    CauseKind,
    Downtime,
    Ending,
    Run,
    Standing,
    Tenure,
    latest,
)
from duly.verify.trace import (
    ClockStep,
    Crash,
    Event,
    Fault,
    Header,
    InitEnd,
    InitStart,
    Missed,
    Position,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
    Tick,
    Trace,
    micros,
    zone_of,
)
from duly.verify.worlds import UNREGISTERED, World, Worlds


class Chronicle:
    """Follows one trace. Afterwards: `arrivals`, `runs` of the asked minute, `tenures`, `down`."""

    def __init__(self, header: Header, task_id: str, asked: Asked) -> None:
        self.zone = zone_of(header.tz)
        self.task_id = task_id
        self._asked = asked
        self.arrivals: deque[Arrivals] = deque(maxlen=asked.count)
        self.runs: list[Run] = []
        self.tenures: list[Tenure] = []
        self.down: Downtime | None = None
        self.first_us: int | None = None
        self.now_us = 0
        self.is_known = False
        self.names: list[str] = []
        """The names in the latest list, as long as the task was in none."""
        self.in_flight: dict[int, Run] = {}
        header = replace(header, running=[item for item in header.running if item[0] == task_id])
        self._header = header
        self._judge = Judge(header)
        self._lists = Lists(self.zone)
        self.worlds: Worlds = (UNREGISTERED,)
        self._window_us = asked.minute_us
        self._standing = Standing()
        self._coming: dict[Dues, int] = {}
        """The next due of each cron text that the task may have."""
        self._soonest_us = NEVER_US
        self._is_past_unknown = False
        self._inits: dict[int, int] = {}
        """When the outstanding calls of `initialize` were made."""
        self._others: set[tuple[str, int | None]] = set()
        """The runs of other tasks in flight: a process that leaves them behind has crashed."""
        self._failed_us = 0
        self._crashed_us: int | None = None
        self._faults = self._runs_begun = 0
        self._proc: str | None = None

    def follow(self, trace: Trace) -> None:
        """Take the whole trace."""
        for item in trace:
            self.take(item)
        self._standing.is_doubtful = self._is_doubtful()

    @property
    def has_faults(self) -> bool:
        """Whether the trace itself is at fault, as far as it concerns this task."""
        return self._faults + self._judge.outcome.fault_count > 0

    # --- events ---

    def take(self, item: Position | Fault) -> None:
        """Take the next item of the trace."""
        if isinstance(item, Fault):
            self._faults += 1
            return
        if self.first_us is None:
            self._begin(item.at_us)
        self._notice_process(item.event.proc)
        event = item.event
        if type(event) is ClockStep:
            self._step(item, max(micros(event.origin), self.now_us))
            return
        if item.at_us < self.now_us:
            self._faults += 1
            item = item._replace(at_us=self.now_us)
        self._reach(item.at_us)
        match event:
            case RunStart() | RunEnd() | Missed():
                self._on_run(item, event)
            case InitStart():
                self._init_begins(item, event)
            case InitEnd():
                self._init_ends(item, event)
            case Crash():
                self._crash(item)
            case StopStart() | StopEnd():
                self._tell(item)

    def _on_run(self, item: Position, event: RunStart | RunEnd | Missed) -> None:
        match event:
            case RunStart(id=self.task_id):
                self._run_begins(item, event)
            case RunEnd(id=self.task_id):
                self._run_ends(item, event)
            case Missed(id=self.task_id):
                self._run_is_given_up(item, event)
            case RunStart():
                self._others.add((event.id, event.run))
            case RunEnd() | Missed():
                self._others.discard((event.id, event.run))

    def _tell(self, item: Position) -> None:
        """Let the judge know, and learn what follows."""
        self._judge.take(item)
        self._learn(item.event)

    def _learn(self, event: Event) -> None:
        task = self._judge.tasks.get(self.task_id)
        self.worlds = task.worlds if task is not None else (UNREGISTERED,)
        self._note_activity(event)
        self._look_ahead()

    def _begin(self, at_us: int) -> None:
        self.first_us = self.now_us = at_us
        self.down = Downtime(at_us, "not initialized")
        self._note_tenure()
        for _, number in self._header.running:
            self.is_known = True
            self.in_flight[number] = Run(at_us, number, is_from_before=True)

    # --- time ---

    def _reach(self, at_us: int, jump: tuple[int, int] | None = None) -> None:
        """Let time pass: the dues up to *at_us* come before what happens then."""
        if self._soonest_us > at_us:
            self.now_us = at_us
            return
        for dues, first_us in self._coming.items():
            if first_us <= at_us:
                self._come(dues, first_us, at_us, jump=jump)
        self.now_us = at_us
        self._look_ahead()

    def _look_ahead(self) -> None:
        coming: dict[Dues, int] = {}
        for world in self.worlds:
            if world.config is not None:
                dues = world.config.dues
                first_us = world.next_us if world.next_us > self.now_us else dues.after(self.now_us)
                coming[dues] = min(first_us, coming.get(dues, NEVER_US))
        self._coming = coming
        self._soonest_us = min(coming.values(), default=NEVER_US)

    def _come(
        self,
        dues: Dues,
        first_us: int,
        to_us: int,
        *,
        jump: tuple[int, int] | None = None,
        init: tuple[int, int] | None = None,
    ) -> None:
        """Dues came, in the circumstances of this moment."""
        standing, is_one = self._standing, dues.after(first_us) > to_us
        standing.is_registration |= standing.count == 0 and init is not None
        standing.count += 1 if is_one else _counted(dues.between(first_us - 1, to_us))
        standing.first_us = min(standing.first_us, first_us)
        standing.last_us = first_us if is_one else latest(dues, first_us - 1, to_us)[-1]
        arrivals = Arrivals(
            dues,
            first_us,
            to_us,
            self._certain_us(dues),
            standing,
            None if init else self.down,
            next(iter(self.in_flight.values()), None),
            jump,
            init,
        )
        if self._is_asked_for(arrivals):
            self.arrivals.append(arrivals)
            if self._asked.minute_us is None:
                self._window_us, self.runs = standing.last_us, []

    def _certain_us(self, dues: Dues) -> int:
        return max(
            world.next_us if world.config is not None and world.config.dues is dues else NEVER_US
            for world in self.worlds
        )

    def _is_asked_for(self, arrivals: Arrivals) -> bool:
        minute_us = self._asked.minute_us
        if minute_us is not None:
            is_there = arrivals.first_us <= minute_us <= arrivals.to_us
            return is_there and arrivals.dues.after(minute_us - 1) == minute_us
        return arrivals.first_us <= self._asked.until_us

    def _step(self, item: Position, before_us: int) -> None:
        event = item.event
        assert isinstance(event, ClockStep)
        if micros(event.origin) < before_us:
            self._faults += 1
            item = item._replace(event=replace(event, origin=before_us / 1000))
        self._reach(before_us)
        if item.at_us >= before_us:
            self._reach(item.at_us, jump=(before_us, item.at_us))
        self.now_us = item.at_us
        self._tell(item)

    # --- lists ---

    def _init_begins(self, item: Position, event: InitStart) -> None:
        self._inits[event.call] = item.at_us
        configs = self._lists.read(event.regs).configs
        if configs is not None:
            self.is_known |= self.task_id in configs
            self.names = [] if self.is_known else list(configs)
            # Of a valid list only this task matters; what is wrong with another one, the judge shall see.
            event = replace(event, regs=[reg for reg in event.regs if reg[0] == self.task_id])
        self._tell(item._replace(event=event))

    def _init_ends(self, item: Position, event: InitEnd) -> None:
        init, position = (self._inits.pop(event.call, item.at_us), item.at_us), self._judge.at
        is_first = self._header.store == "unknown" and all(tenure.crons == (None,) for tenure in self.tenures)
        self._tell(item)
        self._is_past_unknown |= is_first and any(world.config is not None for world in self.worlds)
        self._relist(position, init)

    def _relist(self, position: int, init: tuple[int, int]) -> None:
        """After *position* a list took effect, perhaps: dues may go, and those of this minute come."""
        fresh = [world for world in self.worlds if world.config is not None and world.fresh_at > position]
        self._clear_standing(fresh)
        firsts: dict[Dues, int] = {}
        for world in fresh:
            assert world.config is not None
            firsts[world.config.dues] = min(world.next_us, firsts.get(world.config.dues, NEVER_US))
        for dues, first_us in firsts.items():
            if first_us <= self.now_us:
                self._come(dues, first_us, self.now_us, init=init)
        self._note_tenure()

    def _clear_standing(self, fresh: list[World]) -> None:
        """Dues do not outlast the registration that they belong to."""
        kept = [world for world in self.worlds if self._is_pending(world) and world not in fresh]
        if self._standing.count and not kept:
            self._standing.cleared_us = self.now_us
            self._standing.is_removed = all(world.config is None for world in self.worlds)
            self._standing = Standing()
        elif self._standing.count and len(kept) < len(self.worlds):
            self._standing.perhaps_cleared_us = self.now_us

    def _is_pending(self, world: World) -> bool:
        if world.config is None:
            return False
        # Interrupted: at worst its start was written and answered the due, but the callback was not called.
        return world.stands or world.interrupted or world.next_us <= self.now_us

    def _is_doubtful(self) -> bool:
        return not all(map(self._is_pending, self.worlds))

    def _note_tenure(self) -> None:
        crons = {world.config.cron if world.config else None for world in self.worlds}
        known = tuple(sorted(crons, key=lambda cron: cron or ""))
        if self.tenures and self.tenures[-1].crons == known:
            return
        if self.tenures:
            self.tenures[-1].until_us = self.now_us
        self._forget_tenures()
        self.tenures.append(Tenure(known, self.now_us))

    def _forget_tenures(self) -> None:
        """Keep what was registered in the asked minute, and one before and one after it."""
        minute_us = self._asked.minute_us
        if len(self.tenures) >= 2 and (minute_us is None or self.tenures[-2].until_us <= minute_us):
            del self.tenures[:-1]
        elif len(self.tenures) >= 3 and minute_us is not None and self.tenures[-2].since_us > minute_us:
            del self.tenures[-1]

    # --- stops and crashes ---

    def _note_activity(self, event: Event) -> None:
        """Note if the scheduler has just become active, or is no longer."""
        is_active = self._judge.is_active
        if is_active and self.down is not None:
            self.down.until_us = self.now_us
            self.down = None
        elif not is_active and self.down is None:
            reasons: dict[type[Event], str] = {Crash: "crashed", InitEnd: "initialize failed"}
            self.down = Downtime(self.now_us, reasons.get(type(event), "stopped"))

    def _notice_process(self, proc: str | None) -> None:
        """Find out whether a process that another follows died, at its last event: the judge knows."""
        if proc is None or proc == self._proc:
            return
        before, self._proc = self._proc, proc
        crashes, was_up = self._judge.outcome.crashes, self.down is None
        t = self.now_us / 1000
        self._judge.take(Position(0, self.now_us, Tick(t=t, proc=before)))
        if self._others:
            name, number = self._others.pop()
            self._judge.take(Position(0, self.now_us, RunStart(t=t, proc=before, id=name, run=number)))
        position = self._judge.at
        self._judge.take(Position(0, self.now_us, Tick(t=t, proc=proc)))
        if self._judge.outcome.crashes > crashes:
            self._fall(Crash(t=t), position)
            if was_up and self.down is not None:
                self.down.is_inferred = True

    def _crash(self, item: Position) -> None:
        position = self._judge.at
        self._judge.take(item)
        self._fall(item.event, position)

    def _fall(self, event: Event, position: int) -> None:
        """Note what follows from a crash, which came after *position*."""
        init = (min(self._inits.values(), default=self.now_us), self.now_us)
        self._crashed_us = self.now_us
        for run in self.in_flight.values():
            run.ending, run.ended_us = Ending.CUT_OFF, self.now_us
        self.in_flight.clear()
        self._others.clear()
        self._inits.clear()
        self._learn(event)
        self._relist(position, init)

    # --- runs ---

    def _run_begins(self, item: Position, event: RunStart) -> None:
        self.is_known = True
        self._runs_begun += 1
        run = Run(item.at_us, event.run, tuple(self._causes(item.at_us)))
        self._standing.is_doubtful = self._is_doubtful()
        self._standing.run = run
        self._standing = Standing()
        self._is_past_unknown = False
        # A run without a number gets one that no recorder gives.
        self.in_flight[-self._runs_begun if event.run is None else event.run] = run
        if self._window_us is not None and self._window_us <= item.at_us < self._window_us + MINUTE_US:
            self.runs.append(run)
        self._tell(item)

    def _causes(self, at_us: int) -> Iterator[Cause]:
        """What the start at *at_us* answers."""
        standing, count = self._standing, len(self.worlds)
        if standing.count:
            is_new = standing.is_registration and standing.count == 1
            kind = CauseKind.REGISTRATION if is_new else CauseKind.DUE
            yield Cause(kind, standing.first_us, standing.last_us, standing.count, self._is_doubtful())
        if retrying := sum(world.retry_us <= at_us for world in self.worlds):
            yield Cause(CauseKind.RETRY, self._failed_us, self._failed_us, is_perhaps=retrying < count)
        cut = sum(world.interrupted for world in self.worlds)
        if cut and self._crashed_us is not None:
            yield Cause(CauseKind.INTERRUPTED, self._crashed_us, self._crashed_us, is_perhaps=cut < count)
        if self._is_past_unknown:
            yield Cause(CauseKind.BEFORE, self.first_us or 0, self.first_us or 0, is_perhaps=True)

    def _run_ends(self, item: Position, event: RunEnd) -> None:
        number = next(iter(self.in_flight), None) if event.run is None else event.run
        run = self.in_flight.pop(number, None) if number is not None else None
        if run is not None:
            run.ending, run.ended_us = Ending.OK if event.ok else Ending.FAILED, item.at_us
            if not event.ok:
                self._failed_us = item.at_us
        self._tell(item)

    def _run_is_given_up(self, item: Position, event: Missed) -> None:
        """A due did not run; a start that was recorded for it was never called."""
        run = self.in_flight.pop(event.run, None) if event.run is not None else None
        self.runs = [each for each in self.runs if each is not run]
        self._tell(item)


def _counted(dues: Iterator[int]) -> int:
    return sum(1 for _ in islice(dues, MOST_COUNTED + 1))
