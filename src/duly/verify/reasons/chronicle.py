"""The chronicle of one task: which dues came, in what circumstances, and what became of them.

What the task may be at any time (docs/decisions/0011) is asked of a judge, which sees this task alone and
whose verdict is not used. Dues are never kept one by one: those that came in the same circumstances are one
`Arrivals`, those that wait for the same answer one `PendingDues`, and only as many are kept as were asked
for.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from msgspec.structs import replace

from duly.instant import MINUTE_US
from duly.verify import trace
from duly.verify.dues import NEVER_US, AnchoredDues, Dues
from duly.verify.judge import Judge
from duly.verify.tasks import TraceLists
from duly.verify.trace import Fault, Header, Position, Trace, TraceEvent, micros, zone_of
from duly.verify.worlds import UNREGISTERED, World, Worlds

MOST_COUNTED = 1000
"""Dues that one start answers are counted up to here; beyond it they are "more than"."""
_FIRST_LOOK_BACK_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class DueQuery:
    """What is to be kept: one minute, or the latest *count* dues up to *until_us*.

    Runs are kept of that minute, or of that of the latest due of all.
    """

    minute_us: int | None = None
    until_us: int = NEVER_US
    count: int = 1


class CauseKind(StrEnum):
    DUE = "due"
    REGISTRATION = "registration"
    RETRY = "retry"
    REQUEST = "request"
    INTERRUPTED = "interrupted"
    BEFORE = "before_the_trace"


@dataclass(frozen=True, slots=True)
class StartCause:
    """One cause of a start: *at_us* is the first due, the failure, or the crash."""

    kind: CauseKind
    at_us: int
    last_us: int
    count: int = 1
    is_perhaps: bool = False


class Ending(StrEnum):
    OK = "ok"
    FAILED = "failed"
    CUT_OFF = "cut off"
    RUNNING = "still running"
    UNKNOWN = "not known"


@dataclass(slots=True)
class TracedRun:
    started_us: int
    number: int | None = None
    causes: tuple[StartCause, ...] = ()
    ending: Ending = Ending.RUNNING
    ended_us: int | None = None
    is_from_before: bool = False
    """It was in flight when the trace began, which does not say since when."""


@dataclass(slots=True)
class Downtime:
    """A time in which the scheduler started nothing: *reason* says what began it."""

    since_us: int
    reason: str
    until_us: int | None = None
    is_inferred: bool = False
    """It began with a crash that only the next process shows: *since_us* is the last event before."""


@dataclass(slots=True)
class PendingDues:
    """Dues that wait together: for a start, or until the registration that they belong to is gone."""

    count: int = 0
    last_us: int = 0
    first_us: int = NEVER_US
    is_registration: bool = False
    """It began with the minute in which the task was registered."""
    run: TracedRun | None = None
    cleared_us: int | None = None
    is_removed: bool = False
    is_too_old: bool = False
    perhaps_cleared_us: int | None = None
    is_doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The dues from *first_us* to *to_us*, which came in the same circumstances."""

    dues: AnchoredDues
    first_us: int
    to_us: int
    certain_us: int
    """Whether a due before this one counted, the trace leaves open."""
    pending: PendingDues
    down: Downtime | None
    run: TracedRun | None
    """The run that was in flight."""
    jump: tuple[int, int] | None
    """The step of the clock that went over them."""
    init: tuple[int, int] | None
    """The `initialize` that registered the task in their minute."""
    rest: str
    """"paused" or "disabled", if it was."""


@dataclass(slots=True)
class Tenure:
    """From when on the task was registered with a cron text. Several if that is not certain; None: not."""

    crons: tuple[str | None, ...]
    since_us: int
    until_us: int = NEVER_US


def latest(dues: Dues | AnchoredDues, from_us: int, to_us: int, count: int = 1) -> list[int]:
    """The last *count* dues in from_us < due <= to_us, found without walking all of them."""
    width_us = _FIRST_LOOK_BACK_US
    while True:
        since_us = max(from_us, to_us - width_us)
        found = deque(dues.between(since_us, to_us), maxlen=count)
        if len(found) == count or since_us == from_us:
            return list(found)
        width_us *= 8


class Chronicle:
    """Follows one trace. Afterwards: `arrivals`, `runs` of the asked minute, `tenures`, `down`."""

    def __init__(self, header: Header, task_id: str, asked: DueQuery) -> None:
        self.zone = zone_of(header.tz)
        self.task_id = task_id
        self._asked = asked
        self.arrivals: deque[Arrivals] = deque(maxlen=asked.count)
        self.runs: list[TracedRun] = []
        self.tenures: list[Tenure] = []
        self.down: Downtime | None = None
        self.first_us: int | None = None
        self.now_us = 0
        self.is_known = False
        self.names: list[str] = []
        """The names in the latest list, as long as the task was in none."""
        self.in_flight: dict[int, TracedRun] = {}
        header = replace(header, running=[item for item in header.running if item[0] == task_id])
        self._header = header
        self._judge = Judge(header)
        self._lists = TraceLists(self.zone)
        self.worlds: Worlds = (UNREGISTERED,)
        self._window_us = asked.minute_us
        self._pending = PendingDues()
        self._coming: dict[AnchoredDues, int] = {}
        """The next due of each cron text that the task may have."""
        self._soonest_us = NEVER_US
        self._is_past_unknown = False
        self._inits: dict[int, int] = {}
        """When the outstanding calls of `initialize` were made."""
        self._controls_of_others: set[int] = set()
        self._others: set[tuple[str, int | None]] = set()
        """The runs of other tasks in flight: a process that leaves them behind has crashed."""
        self._failed_us = self._asked_us = 0
        self._crashed_us: int | None = None
        self._faults = self._runs_begun = 0
        self._proc: str | None = None

    def follow(self, items: Trace) -> None:
        for item in items:
            self.take(item)
        self._pending.is_doubtful = self._is_doubtful()

    @property
    def has_faults(self) -> bool:
        """Whether the trace itself is at fault, as far as it concerns this task."""
        return self._faults + self._judge.outcome.fault_count > 0

    # --- events ---

    def take(self, item: Position | Fault) -> None:  # noqa: PLR0912 (a branch for each event)
        if isinstance(item, Fault):
            self._faults += 1
            return
        if self.first_us is None:
            self._begin(item.at_us)
        self._notice_process(item.event.proc)
        event = item.event
        if type(event) is trace.ClockStep:
            self._step(item, max(micros(event.origin), self.now_us))
            return
        if item.at_us < self.now_us:
            self._faults += 1
            item = item._replace(at_us=self.now_us)
        self._reach(item.at_us)
        match event:
            case trace.RunStart(id=self.task_id):
                self._run_begins(item, event)
            case trace.RunEnd(id=self.task_id):
                self._run_ends(item, event)
            case trace.Missed(id=self.task_id):
                self._run_is_given_up(item, event)
            case trace.RunStart():
                self._others.add((event.id, event.run))
            case trace.RunEnd() | trace.Missed():
                self._others.discard((event.id, event.run))
            case trace.InitStart():
                self._init_begins(item, event)
            case trace.InitEnd():
                self._init_ends(item, event)
            case trace.Crash():
                self._crash(item)
            case trace.ControlStart():
                self._on_control(item, event)
            case trace.ControlEnd() if event.call in self._controls_of_others:
                self._controls_of_others.discard(event.call)
            case trace.StopStart() | trace.StopEnd() | trace.ControlEnd():
                self._feed(item)

    def _on_control(self, item: Position, event: trace.ControlStart) -> None:
        if event.id != self.task_id:
            self._controls_of_others.add(event.call)
            return
        if event.control == "run":
            self._asked_us = item.at_us
        self._feed(item)

    @property
    def rest(self) -> str:
        """Why nothing starts the task although the scheduler is up: "paused", "disabled" or nothing."""
        known = [world for world in self.worlds if world.config is not None]
        if known and all(world.paused for world in known):
            return "paused"
        return "disabled" if known and not any(map(_is_enabled, known)) else ""

    def _feed(self, item: Position) -> None:
        """Let the judge know, and learn what follows."""
        self._judge.take(item)
        self._learn(item.event)

    def _learn(self, event: TraceEvent) -> None:
        task = self._judge.tasks.get(self.task_id)
        self.worlds = task.worlds if task is not None else (UNREGISTERED,)
        self._on_activity(event)
        self._look_ahead()

    def _begin(self, at_us: int) -> None:
        self.first_us = self.now_us = at_us
        self.down = Downtime(at_us, "not initialized")
        self._begin_tenure()
        for _, number in self._header.running:
            self.is_known = True
            self.in_flight[number] = TracedRun(at_us, number, is_from_before=True)

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
        coming: dict[AnchoredDues, int] = {}
        for world in self.worlds:
            if has_known_dues(world):
                dues = _dues_of(world)
                first_us = world.next_us if world.next_us > self.now_us else dues.after(self.now_us)
                if world.slack_us and first_us < NEVER_US:
                    first_us = dues.after(first_us - 1)  # the earliest that it may be is no due of these
                coming[dues] = min(first_us, coming.get(dues, NEVER_US))
        self._coming = coming
        self._soonest_us = min(coming.values(), default=NEVER_US)

    def _come(
        self,
        dues: AnchoredDues,
        first_us: int,
        to_us: int,
        *,
        jump: tuple[int, int] | None = None,
        init: tuple[int, int] | None = None,
    ) -> None:
        """Dues came, in the circumstances of this moment."""
        pending, is_one = self._pending, dues.after(first_us) > to_us
        pending.is_registration |= pending.count == 0 and init is not None
        pending.count += 1 if is_one else _count_of(dues.between(first_us - 1, to_us))
        pending.first_us = min(pending.first_us, first_us)
        pending.last_us = first_us if is_one else latest(dues, first_us - 1, to_us)[-1]
        arrivals = Arrivals(
            dues,
            first_us,
            to_us,
            self._certain_us(dues),
            pending,
            None if init else self.down,
            next(iter(self.in_flight.values()), None),
            jump,
            init,
            self.rest,
        )
        if self._is_asked_for(arrivals):
            self.arrivals.append(arrivals)
            if self._asked.minute_us is None:
                self._window_us, self.runs = pending.last_us, []

    def _certain_us(self, dues: AnchoredDues) -> int:
        return max(
            world.next_us if has_known_dues(world) and _dues_of(world) == dues else NEVER_US
            for world in self.worlds
        )

    def _is_asked_for(self, arrivals: Arrivals) -> bool:
        minute_us = self._asked.minute_us
        if minute_us is not None:
            due_us = arrivals.dues.after(max(minute_us, arrivals.first_us) - 1)
            return due_us < minute_us + MINUTE_US and due_us <= arrivals.to_us
        return arrivals.first_us <= self._asked.until_us

    def _step(self, item: Position, before_us: int) -> None:
        event = item.event
        assert isinstance(event, trace.ClockStep)
        if micros(event.origin) < before_us:
            self._faults += 1
            item = item._replace(event=replace(event, origin=before_us / 1000))
        self._reach(before_us)
        if item.at_us >= before_us:
            self._reach(item.at_us, jump=(before_us, item.at_us))
        self.now_us = item.at_us
        self._feed(item)

    # --- lists ---

    def _init_begins(self, item: Position, event: trace.InitStart) -> None:
        self._inits[event.call] = item.at_us
        configs = self._lists.read(event.regs).configs
        if configs is not None:
            self.is_known |= self.task_id in configs
            self.names = [] if self.is_known else list(configs)
            # Of a valid list only this task matters; the judge sees what is wrong with another one.
            options = {task: each for task, each in event.options.items() if task == self.task_id}
            mine = [reg for reg in event.regs if reg[0] == self.task_id]
            event = replace(event, regs=mine, options=options)
        self._feed(item._replace(event=event))

    def _init_ends(self, item: Position, event: trace.InitEnd) -> None:
        init, position = (self._inits.pop(event.call, item.at_us), item.at_us), self._judge.at
        is_first = self._header.store == "unknown" and all(tenure.crons == (None,) for tenure in self.tenures)
        self._feed(item)
        self._is_past_unknown |= is_first and any(world.config is not None for world in self.worlds)
        self._relist(position, init)

    def _relist(self, position: int, init: tuple[int, int]) -> None:
        """After *position* a list took effect, perhaps: dues may go, and those of this minute come."""
        fresh = [world for world in self.worlds if world.config is not None and world.fresh_at > position]
        self._clear_pending(fresh)
        firsts: dict[AnchoredDues, int] = {}
        for world in filter(has_known_dues, fresh):
            dues = _dues_of(world)
            firsts[dues] = min(world.next_us, firsts.get(dues, NEVER_US))
        for dues, first_us in firsts.items():
            if first_us <= self.now_us:
                self._come(dues, first_us, self.now_us, init=init)
        self._begin_tenure()

    def _clear_pending(self, fresh: list[World]) -> None:
        """Dues do not outlast the registration that they belong to."""
        kept = [world for world in self.worlds if self._is_pending(world) and world not in fresh]
        if self._pending.count and not kept:
            self._pending.cleared_us = self.now_us
            self._pending.is_removed = all(world.config is None for world in self.worlds)
            self._pending = PendingDues()
        elif self._pending.count and len(kept) < len(self.worlds):
            self._pending.perhaps_cleared_us = self.now_us

    def _is_pending(self, world: World) -> bool:
        if world.config is None:
            return False
        # Interrupted: at worst its start was written and answered the due, but the callback was not called.
        return world.stands or world.interrupted or world.next_us <= self.now_us

    def _is_doubtful(self) -> bool:
        return not all(map(self._is_pending, self.worlds))

    def _begin_tenure(self) -> None:
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

    def _on_activity(self, event: TraceEvent) -> None:
        """Note if the scheduler has just become active, or is no longer."""
        is_active = self._judge.is_active
        if is_active and self.down is not None:
            self.down.until_us = self.now_us
            self.down = None
        elif not is_active and self.down is None:
            reasons: dict[type[TraceEvent], str] = {
                trace.Crash: "crashed",
                trace.InitEnd: "initialize failed",
            }
            self.down = Downtime(self.now_us, reasons.get(type(event), "stopped"))

    def _notice_process(self, proc: str | None) -> None:
        """Find out whether a process that another follows died, at its last event: the judge knows."""
        if proc is None or proc == self._proc:
            return
        before, self._proc = self._proc, proc
        crashes, was_up = self._judge.outcome.crashes, self.down is None
        t = self.now_us / 1000
        self._judge.take(Position(0, self.now_us, trace.Tick(t=t, proc=before)))
        if self._others:
            name, number = self._others.pop()
            self._judge.take(Position(0, self.now_us, trace.RunStart(t=t, proc=before, id=name, run=number)))
        position = self._judge.at
        self._judge.take(Position(0, self.now_us, trace.Tick(t=t, proc=proc)))
        if self._judge.outcome.crashes > crashes:
            self._fall(trace.Crash(t=t), position)
            if was_up and self.down is not None:
                self.down.is_inferred = True

    def _crash(self, item: Position) -> None:
        position = self._judge.at
        self._judge.take(item)
        self._fall(item.event, position)

    def _fall(self, event: TraceEvent, position: int) -> None:
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

    def _run_begins(self, item: Position, event: trace.RunStart) -> None:
        self.is_known = True
        self._runs_begun += 1
        run = TracedRun(item.at_us, event.run, tuple(self._causes(item.at_us)))
        self._pending.is_doubtful = self._is_doubtful()
        self._pending.run = run
        self._pending = PendingDues()
        self._is_past_unknown = False
        # A run without a number gets one that no recorder gives.
        self.in_flight[-self._runs_begun if event.run is None else event.run] = run
        if self._window_us is not None and self._window_us <= item.at_us < self._window_us + MINUTE_US:
            self.runs.append(run)
        self._feed(item)

    def _causes(self, at_us: int) -> Iterator[StartCause]:
        pending, count = self._pending, len(self.worlds)
        if pending.count:
            is_new = pending.is_registration and pending.count == 1
            kind = CauseKind.REGISTRATION if is_new else CauseKind.DUE
            yield StartCause(kind, pending.first_us, pending.last_us, pending.count, self._is_doubtful())
        if retrying := sum(world.retry_us <= at_us for world in self.worlds):
            yield StartCause(CauseKind.RETRY, self._failed_us, self._failed_us, is_perhaps=retrying < count)
        if asked := sum(world.requested for world in self.worlds):
            yield StartCause(CauseKind.REQUEST, self._asked_us, self._asked_us, is_perhaps=asked < count)
        cut = sum(world.interrupted for world in self.worlds)
        if cut and self._crashed_us is not None:
            yield StartCause(
                CauseKind.INTERRUPTED, self._crashed_us, self._crashed_us, is_perhaps=cut < count
            )
        if self._is_past_unknown:
            yield StartCause(CauseKind.BEFORE, self.first_us or 0, self.first_us or 0, is_perhaps=True)

    def _run_ends(self, item: Position, event: trace.RunEnd) -> None:
        number = next(iter(self.in_flight), None) if event.run is None else event.run
        run = self.in_flight.pop(number, None) if number is not None else None
        if run is not None:
            run.ending, run.ended_us = Ending.OK if event.ok else Ending.FAILED, item.at_us
            if not event.ok:
                self._failed_us = item.at_us
        self._feed(item)
        if self._pending.count and not any(map(self._is_pending, self.worlds)):
            # A fixed delay counts from this end: what had come while the task was running is no due.
            kept = [each for each in self.arrivals if each.pending is not self._pending]
            self.arrivals, self._pending = deque(kept, maxlen=self._asked.count), PendingDues()

    def _run_is_given_up(self, item: Position, event: trace.Missed) -> None:
        """A due did not run; a start that was recorded for it was never called."""
        run = self.in_flight.pop(event.run, None) if event.run is not None else None
        self.runs = [each for each in self.runs if each is not run]
        self._feed(item)
        if run is None and self._pending.count and not any(map(self._is_pending, self.worlds)):
            self._pending.cleared_us, self._pending.is_too_old = self.now_us, True
            self._pending = PendingDues()


def has_known_dues(world: World) -> bool:
    """Whether its dues can be named: an interval from before the trace may have any phase."""
    config = world.config
    return config is not None and not (config.dues.is_from_anchor and world.slack_us >= config.dues.length_us)


def _dues_of(world: World) -> AnchoredDues:
    assert world.config is not None
    dues = world.config.dues
    return AnchoredDues(dues, world.anchor_us if dues.is_from_anchor else 0)


def _is_enabled(world: World) -> bool:
    return world.config is not None and world.config.options.enabled


def _count_of(dues: Iterator[int]) -> int:
    return sum(1 for _ in islice(dues, MOST_COUNTED + 1))
