"""A small trace spelled out: every position of spec/model.md 1, one after the other, in one list.

Between the recorded events stand the minute starts, the dues of every cron text that the trace names, the
moments at which a retry could be due, and the crashes that a change of process reveals. A list takes effect
when its call returns; if a crash cut the call off, it may have done so just before ("Slot"). Nothing is
judged here, and nothing is left out to save time: this is for traces of minutes or hours.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple
from zoneinfo import ZoneInfo

from duly.verify.dues import Dues, ScheduleTextError, minute_start_us
from duly.verify.trace import (
    ClockStep,
    Crash,
    Fault,
    Header,
    InitEnd,
    InitStart,
    Position,
    RunEnd,
    RunStart,
    StopEnd,
    StopStart,
    Trace,
    micros,
    zone_of,
)

MINUTE_US = 60_000_000
TOLERATED_US = 5 * MINUTE_US
"""A step back of up to this brings no minute a second time."""
MOST_MOMENTS = 500_000


class FormalConfig(NamedTuple):
    """c = (cron text, retry delay)."""

    cron: str
    delay_us: int


@dataclass(slots=True, eq=False)
class Call:
    """One call of `initialize` or `stop`; indices are those of moments, None where it did not come to it."""

    begun: int
    number: int
    regs: list[tuple[str, str, float]] = field(default_factory=list)
    is_valid: bool = True
    configs: dict[str, FormalConfig] = field(default_factory=dict)
    """The list, by task; of no meaning unless it is valid."""
    limits: dict[str, str] = field(default_factory=dict)
    """The named limit of each task that has one."""
    most: dict[str, int] = field(default_factory=dict)
    """How many runs each named limit allows."""
    answered: int | None = None
    ok: bool = False
    is_void: bool = False
    """Given up before it began: it changed nothing."""
    died: int | None = None
    """The crash it was outstanding at."""
    slot: int | None = None
    """Just before the crash: where its list could have taken effect."""

    @property
    def is_outstanding(self) -> bool:
        """Neither answered nor cut off by a crash, so far."""
        return self.answered is None and self.died is None

    @property
    def took_effect(self) -> bool:
        """`ok`: it returned, and its list was valid."""
        return self.answered is not None and self.ok and self.is_valid


@dataclass(slots=True, eq=False)
class FormalRun:
    """One run of a task; indices are those of moments. A run of the file before this one began at -1."""

    task: str
    number: int | None
    begun: int
    ended: int | None = None
    ok: bool = False
    died: int | None = None
    """The crash that cut it off."""
    ended_late: int | None = None
    """An end that was recorded after that crash."""

    @property
    def is_running(self) -> bool:
        """Neither ended nor cut off, so far."""
        return self.ended is None and self.died is None


@dataclass(frozen=True, slots=True)
class FormalMoment:
    """One position: its short name in spec/model.md 2, when, and whom it concerns."""

    name: str
    """MS, Due, RD, IS, IE, SS, SE, RS, RE, Crash, Step, Slot; what says nothing is "-"."""
    at_us: int
    line: int
    """Of the event itself, or of the event that shows that time has come so far."""
    steady_us: int
    """Time that has really passed, whatever the clock was set to."""
    position: Position | None = None
    task: str | None = None
    cron: str | None = None
    due_us: int = 0
    """Of a due: the minute it is about, which a jump of the clock may have left behind."""
    before_us: int = 0
    """Of a step: what the clock showed before."""
    call: Call | None = None
    run: FormalRun | None = None


@dataclass(slots=True)
class Expansion:
    """The trace, spelled out."""

    header: Header
    zone: ZoneInfo
    moments: list[FormalMoment] = field(default_factory=list)
    inits: list[Call] = field(default_factory=list)
    stops: list[Call] = field(default_factory=list)
    runs: list[FormalRun] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    doubtful_from: float = inf
    """The index of the first moment at fault; half-way before it if already its line was."""
    events: int = 0
    first_us: int | None = None

    @property
    def tasks(self) -> list[str]:
        """Every task that the trace names."""
        named = {task for call in self.inits for task in call.configs}
        return sorted(named | {run.task for run in self.runs})

    def configs(self, task: str) -> list[FormalConfig]:
        """Every configuration that some valid list has for *task*."""
        return sorted({call.configs[task] for call in self.inits if call.is_valid and task in call.configs})


def answered(call: Call) -> int:
    """Where a call was answered that was."""
    assert call.answered is not None
    return call.answered


def expanded(trace: Trace) -> Expansion:
    """The whole trace as positions. Raises ValueError if it is not small."""
    items = list(trace)
    unfolding = _Unfolding(trace.header, [item for item in items if isinstance(item, Position)])
    for item in items:
        unfolding.take(item)
    return unfolding.expansion


class _Unfolding:
    """A trace on its way to becoming an Expansion: where the clock stands, who is speaking."""

    def __init__(self, header: Header, positions: list[Position]) -> None:
        self.expansion = Expansion(header, zone_of(header.tz))
        self._moments = self.expansion.moments
        lists = [_configs(event.regs) for _, _, event in positions if isinstance(event, InitStart)]
        named = [each for each in lists if each is not None]
        zone = self.expansion.zone
        self._dues = {config.cron: Dues(config.cron, zone) for each in named for config in each.values()}
        self._delays = {(task, config.delay_us) for each in named for task, config in each.items()}
        self._retries: set[tuple[int, str]] = set()
        """Every (instant, task) at which a retry could be due, in one world or another."""
        self._clock_us = minute_start_us(_shown_us(positions[0]), zone) - 1 if positions else 0
        self._steady_us = 0
        self._proc: str | None = None
        self._old_procs: set[str] = set()
        self._crashed = -1
        self._inferred: float | None = None
        """Just before the latest crash that was inferred."""
        self.expansion.runs += [FormalRun(task, number, -1) for task, number in header.running]

    def take(self, item: Position | Fault) -> None:
        """Go on to the next line."""
        if isinstance(item, Fault):
            self._blame(item, len(self._moments) - 0.5)
            return
        self.expansion.events += 1
        if self.expansion.first_us is None:
            self.expansion.first_us = _shown_us(item)
        self._follow_process(item)
        if isinstance(item.event, ClockStep):
            self._step(item)
            return
        self._pass(item.at_us, item.line)
        self._record(item)

    # Time.

    def _pass(self, to_us: int, line: int) -> None:
        """Let the clock go on to *to_us*, through everything that comes on the way."""
        if to_us < self._clock_us:
            self._blame(Fault(line, "the time goes back, and no ClockStep says so"))
            return
        came = sorted(self._coming(self._clock_us, to_us))
        for at_us, name, task, cron in came:
            self._steady_us += at_us - self._clock_us
            self._clock_us = at_us
            self._add(name, line, task=task, cron=cron, due_us=at_us)
        self._steady_us += to_us - self._clock_us
        self._clock_us = to_us

    def _step(self, item: Position) -> None:
        """The clock jumps: what was jumped over comes at once; what is shown again is shown again."""
        self._pass(_shown_us(item), item.line)
        before_us = self._clock_us
        after_us = self._clock_us = item.at_us
        self._add("Step", item.line, item, before_us=before_us)
        if after_us < before_us:  # even a small one may be taken for a large one
            self._retries |= {(after_us + delay_us, task) for task, delay_us in self._delays}
        from_us = before_us
        if after_us < before_us:
            from_us = minute_start_us(after_us, self.expansion.zone) - 1
        for due_us, name, task, cron in sorted(self._coming(from_us, after_us)):
            self._add(name, item.line, task=task, cron=cron, due_us=due_us)

    def _coming(self, from_us: int, to_us: int) -> Iterator[tuple[int, str, str | None, str | None]]:
        """What comes in from_us < instant <= to_us. By its name sorted: "1 MS", "2 Due", "3 RD"."""
        start_us = minute_start_us(from_us, self.expansion.zone) + MINUTE_US
        while start_us <= to_us:
            yield start_us, "1 MS", "", ""
            start_us = minute_start_us(start_us, self.expansion.zone) + MINUTE_US
        for cron, dues in self._dues.items():
            for due_us in dues.between(from_us, to_us):
                yield due_us, "2 Due", "", cron
        for at_us, task in self._retries:
            if from_us < at_us <= to_us:
                yield at_us, "3 RD", task, ""

    # Events.

    def _record(self, item: Position) -> None:
        event = item.event
        match event:
            case InitStart():
                self._begin_initialize(item, event)
            case InitEnd():
                self._answer(self.expansion.inits, "IE", item, event)
            case StopStart():
                call = Call(len(self._moments), event.call)
                self._begin_call(call, self.expansion.stops, item.line)
                self._add("SS", item.line, item, call=call)
            case StopEnd():
                self._answer(self.expansion.stops, "SE", item, event)
            case RunStart():
                self._begin_run(item, event)
            case RunEnd():
                self._end_run(item, event)
            case Crash():
                self._crash(item.line, item)
            case _:
                self._add("-", item.line, item)

    def _begin_initialize(self, item: Position, event: InitStart) -> None:
        configs = _configs(event.regs)
        call = Call(len(self._moments), event.call, event.regs, configs is not None, configs or {})
        call.limits = {task: each.limit for task, each in event.options.items() if each.limit is not None}
        call.most = event.limits
        self._begin_call(call, self.expansion.inits, item.line)
        self._add("IS", item.line, item, call=call)

    def _begin_call(self, call: Call, calls: list[Call], line: int) -> None:
        others = (*self.expansion.inits, *self.expansion.stops)
        if any(other.number == call.number and other.is_outstanding for other in others):
            self._blame(Fault(line, f"call {call.number} begins, and is outstanding already"))
        calls.append(call)

    def _answer(self, calls: list[Call], name: str, item: Position, event: InitEnd | StopEnd) -> None:
        for call in calls:
            if call.number == event.call and call.is_outstanding:
                call.answered = len(self._moments)
                call.ok, call.is_void = event.ok and not event.void, event.void
                self._add(name, item.line, item, call=call)
                if call.took_effect:
                    self._bring_retries_nearer([call], item.line)
                return
        self._blame(Fault(item.line, f"an answer to call {event.call}, which is not outstanding"))
        self._add("-", item.line, item)

    def _begin_run(self, item: Position, event: RunStart) -> None:
        running = {(run.task, run.number) for run in self.expansion.runs if run.is_running}
        if event.run is not None and (event.id, event.run) in running:
            self._blame(Fault(item.line, f"run {event.run} starts, and is running already"))
        run = FormalRun(event.id, event.run, len(self._moments))
        self.expansion.runs.append(run)
        self._add("RS", item.line, item, task=event.id, run=run)

    def _end_run(self, item: Position, event: RunEnd) -> None:
        mine = [
            run for run in self.expansion.runs if run.task == event.id and event.run in {None, run.number}
        ]
        running = next((run for run in mine if run.is_running), None)
        dead = (run for run in mine if run.died is not None and run.ended_late is None)
        cut_off = next(dead, None) if event.run is not None else None
        if running is not None:
            running.ended, running.ok = len(self._moments), event.ok
        elif cut_off is not None:
            cut_off.ended_late = len(self._moments)
        else:
            self._blame(Fault(item.line, f'an end of task "{event.id}", of which no such run is running'))
        run = running or cut_off
        self._add("RE" if running else "-", item.line, item, task=event.id, run=run)
        if running is not None and not event.ok:
            self._await_retry(event.id, item)

    def _await_retry(self, task: str, item: Position) -> None:
        for _, delay_us in {each for each in self._delays if each[0] == task}:
            self._retries.add((self._clock_us + delay_us, task))
            if delay_us == 0:  # it comes right after its own failure
                self._add("RD", item.line, task=task, due_us=self._clock_us)

    def _bring_retries_nearer(self, calls: list[Call], line: int) -> None:
        """A list that finds a store far ahead lets no retry wait longer than its delay from then on."""
        instants = {self._moments[call.begun].at_us for call in calls} | {self._clock_us}
        came = {
            (at_us + delay_us, task)
            for call in calls
            for task, config in call.configs.items()
            for delay_us in (config.delay_us,)
            for at_us in instants
        }
        self._retries |= came
        for at_us, task in sorted(each for each in came if each[0] <= self._clock_us):
            self._add("RD", line, task=task, due_us=at_us)

    def _crash(self, line: int, item: Position | None = None) -> None:
        """Everything outstanding is cut off; any list may just have taken effect."""
        cut_off = [call for call in self.expansion.inits if call.is_outstanding and call.is_valid]
        for call in cut_off:
            call.slot = len(self._moments)
            self._add("Slot", line, call=call)
        index = len(self._moments)
        self._add("Crash", line, item)
        for call in (*self.expansion.inits, *self.expansion.stops):
            if call.is_outstanding:
                call.died = index
        for run in self.expansion.runs:
            if run.is_running:
                run.died = index
        self._crashed = index
        self._bring_retries_nearer(cut_off, line)

    def _follow_process(self, item: Position) -> None:
        """Infer the crash of the old process where a new one appears."""
        proc = item.event.proc
        if proc is None or proc == self._proc or isinstance(item.event, Crash):
            return
        if proc in self._old_procs:
            fault = Fault(item.line, f'process "{proc}" is back; two processes are interleaved')
            # If no process has died, what rests on its death is not certain either.
            self._blame(fault, len(self._moments) - 0.5 if self._inferred is None else self._inferred)
        elif self._proc is not None and not self._is_stopped():
            self._inferred = len(self._moments) - 0.5
            self._crash(item.line)
        if self._proc is not None:
            self._old_procs.add(self._proc)
        self._proc = proc

    def _is_stopped(self) -> bool:
        """Whether the last call, if any, was a stop that returned, and nothing is running or outstanding.

        Calls that were given up were never made.
        """
        inits, stops = self._since_crash(self.expansion.inits), self._since_crash(self.expansion.stops)
        if any(run.is_running for run in self.expansion.runs) or any(
            call.is_outstanding for call in (*inits, *stops)
        ):
            return False
        return not inits or any(
            all(init.begun < stop.begun and answered(init) < answered(stop) for init in inits)
            for stop in stops
        )

    def _since_crash(self, calls: list[Call]) -> list[Call]:
        return [call for call in calls if call.begun > self._crashed and not call.is_void]

    def _blame(self, fault: Fault, index: float | None = None) -> None:
        self.expansion.faults.append(fault)
        if not fault.is_unknown_event:
            index = len(self._moments) if index is None else index
            self.expansion.doubtful_from = min(self.expansion.doubtful_from, index)

    def _add(
        self,
        name: str,
        line: int,
        position: Position | None = None,
        *,
        task: str | None = None,
        cron: str | None = None,
        due_us: int = 0,
        before_us: int = 0,
        call: Call | None = None,
        run: FormalRun | None = None,
    ) -> None:
        if len(self._moments) >= MOST_MOMENTS:
            raise ValueError("the trace is too long to be spelled out; use the monitor")
        self._moments.append(
            FormalMoment(
                name.lstrip("123 "),
                self._clock_us,
                line,
                self._steady_us,
                position,
                task or None,
                cron or None,
                due_us,
                before_us,
                call,
                run,
            )
        )


def _shown_us(position: Position) -> int:
    """What the clock showed when the event came: a step begins at the old time."""
    event = position.event
    return micros(event.origin) if isinstance(event, ClockStep) else position.at_us


def _configs(regs: list[tuple[str, str, float]]) -> dict[str, FormalConfig] | None:
    """The list by task, or None if it is invalid: duplicates, bad cron, negative delay."""
    configs = {task: FormalConfig(cron, micros(delay)) for task, cron, delay in regs}
    if len(configs) < len(regs) or any(config.delay_us < 0 for config in configs.values()):
        return None
    return configs if all(_is_cron(config.cron) for config in configs.values()) else None


def _is_cron(text: str) -> bool:
    try:
        Dues(text, ZoneInfo("UTC"))
    except ScheduleTextError:
        return False
    return True
