"""A checker of another kind: targets with windows, and runs to match them; every one must be explained.

It knows nothing of causes, worlds or tokens, and shares with the judge nothing but the reading of schedules
(`dues`). From the lists it works out when each task should start: the targets. From the starts and ends it
takes the runs. Then every target is matched by a run in its window or excused for a reason, and every run is
accounted for: by a due, by a failure before it, or by an interruption. What is left over on either side is
wrong.

Targets are counted and not listed: a silence of a year has half a million of them and is one line of
a trace. Between two runs of a task, what becomes of a target depends on when it is due only by which troubles
lie around it. So the time between two runs is divided where troubles begin and end, and all the targets of
such a piece have one answer, which is worked out once. Work is bounded by the size of the input (decision
0023).
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from duly.formatting import counted
from duly.verify import trace
from duly.verify.dues import Dues, ScheduleTextError, face_at, minute_start_us
from duly.verify.trace import Header, Regs, TraceError, TraceEvent, header_of, micros, zone_of

SKEW_MS = 500.0
"""By how much the clocks of nodes may differ."""
FOREVER_MS = float("inf")
_LONGEST_MS = 1e12
_MOST_SHOWN = 10
_MOST_KEPT = 100
"""Missed targets that are kept as sentences; the rest are counted."""
_NONE, _MATCHED, _END, _AGAIN = "", "matched", "end of the trace", "after an interruption"
_DECLARED = "the scheduler itself says that it did not run"
_TOO_OLD = "too old to be made up for"
_DEFAULT = trace.OptionsDeclared()
_LEASES = 3
"""A failover takes so many leases at most."""
_FREE_DAYS, _DAYS_AN_EVENT = 200_000, 50
"""How many days of how many registrations may be counted, and how many more for each event."""
MINUTE_MS = 60_000
_DAY_MS = 86_400_000
_YEAR_MS = 365.2425 * _DAY_MS

# --- what happened ---


class QuietTime(NamedTuple):
    """A time in which nothing could be expected, and why."""

    from_ms: float
    to_ms: float
    why: str


@dataclass(slots=True, eq=False)
class TargetRun:
    task: str
    life: "ProcessLife"
    start_ms: float
    number: int | None
    end_ms: float | None = None
    is_ok: bool = False
    cut_ms: float | None = None
    is_taken_back: bool = False
    """Whether its callback was never called."""

    @property
    def over_ms(self) -> float:
        """When it ended, or was cut off."""
        if self.cut_ms is not None:
            return self.cut_ms
        return self.end_ms if self.end_ms is not None else FOREVER_MS


@dataclass(slots=True, eq=False)
class ProcessLife:
    """One process: when it gave signs, when it was up, when it was in trouble."""

    header: Header
    signs_ms: list[float] = field(default_factory=list)
    flying: dict[str, list[TargetRun]] = field(default_factory=dict)
    """Its runs in flight, by task."""
    up: list[list[float]] = field(default_factory=list)
    regs: list[Regs] = field(default_factory=list)
    """The list that it had in each of these times."""
    away: list[list[float]] = field(default_factory=list)
    losses_ms: list[float] = field(default_factory=list)
    is_over: bool = False
    """Stopped, or its recording ended."""

    def go_up(self, at_ms: float, regs: Regs) -> None:
        _open(self.up, at_ms)
        self.regs[len(self.up) - 1 :] = [regs]

    def trouble(self, failover_ms: float) -> Iterator[QuietTime]:
        """The times in which others had to find out that it was gone, or could not find out."""
        tick_ms = self.header.tick_ms
        last_ms = self.signs_ms[-1]
        if not self.is_over:
            yield QuietTime(last_ms, last_ms + tick_ms + failover_ms, "failover")
        for at_ms in self.losses_ms:
            yield QuietTime(at_ms, at_ms + failover_ms, "failover")
        for from_ms, to_ms in self.away:
            yield QuietTime(from_ms, to_ms + failover_ms, "database away")
        if tick_ms:
            for before_ms, after_ms in zip(self.signs_ms, self.signs_ms[1:], strict=False):
                if after_ms - before_ms > tick_ms + SKEW_MS:
                    yield QuietTime(before_ms, after_ms + failover_ms, "failover")

    def is_lost_sight_of(self, at_ms: float) -> bool:
        """Whether others could think that it is dead."""
        if self.signs_ms[-1] <= at_ms:
            return not self.is_over
        awake_ms = self.signs_ms[bisect_right(self.signs_ms, at_ms)]
        return self.is_away(at_ms, at_ms) or self.is_loss_within(at_ms, awake_ms + SKEW_MS)

    def is_away(self, from_ms: float, to_ms: float) -> bool:
        at = bisect_right(self.away, to_ms, key=lambda span: span[0]) - 1
        return at >= 0 and self.away[at][1] >= from_ms

    def is_loss_within(self, from_ms: float, to_ms: float) -> bool:
        """Whether it lost something, or stopped, from *from_ms* to *to_ms*."""
        at = bisect_left(self.losses_ms, from_ms)
        return at < len(self.losses_ms) and self.losses_ms[at] <= to_ms


class TargetHistory:
    def __init__(self) -> None:
        self.headers: list[Header] = []
        self.lives: list[ProcessLife] = []
        self.events = 0
        self.runs: dict[str, list[TargetRun]] = defaultdict(list)
        self.begun_before: dict[str, list[TargetRun]] = defaultdict(list)
        """Runs that were in flight where the trace begins."""
        self.declared_ms: dict[str, dict[float, float]] = defaultdict(dict)
        """The dues of each task that did not run, as the scheduler itself says, and when it said so."""
        self.asked_ms: dict[str, list[float]] = defaultdict(list)
        """When runs of each task were asked for."""
        self.paused: dict[str, list[list[float]]] = defaultdict(list)
        self.disabled: dict[str, list[list[float]]] = defaultdict(list)
        """The times in which each task was paused or disabled, at most."""
        self.window_ms: dict[str, float] = {}
        """How old a due of each task may become, under the strictest of its options."""
        self.longest_ms: dict[str, float] = {}
        """Which delay no retry of each task exceeds, likewise."""
        self._controls: dict[int, trace.ControlStart] = {}
        self.reconciled: list[tuple[float, Regs]] = []
        """The lists that became the list of the cluster, as a node said."""
        self.lists: list[tuple[float, Regs]] = []
        self.is_clock_set = self.is_forgotten = False
        self.is_list_unknown = False
        """Whether a node died in a call, and its list may have become that of the cluster."""
        self.lease_ms = 0.0
        self.back_offs: list[QuietTime] = []
        self._running: list[tuple[str, int]] = []
        self._life: ProcessLife | None = None
        self._proc: str | None = None
        self._inits: dict[int, tuple[float, Regs]] = {}

    def begin(self, header: Header) -> None:
        """Take a header: another file begins."""
        if header.follows and self.headers and self.headers[-1].node == header.node:
            return
        self._end_life(is_dead=False)
        self.headers.append(header)
        self._running = header.running

    def take(self, event: TraceEvent) -> None:
        self.events += 1
        proc = event.proc if event.proc is not None else self._proc
        if self._life is None or proc != self._proc:
            self._end_life(is_dead=True)
            self._life, self._proc = ProcessLife(self.headers[-1]), proc
            self.lives.append(self._life)
            self._take_over(self._life)
        self._life.signs_ms.append(event.t)
        self._on_event(self._life, event)

    def _take_over(self, life: ProcessLife) -> None:
        """What was in flight where a trace begins is run by its first process."""
        for task, number in self._running:
            run = TargetRun(task, life, -FOREVER_MS, number)
            life.flying.setdefault(task, []).append(run)
            self.begun_before[task].append(run)
        self._running = []

    def close(self) -> None:
        self._end_life(is_dead=False)

    def refusal(self) -> str:
        """Why nothing can be matched; empty if something can."""
        if not self.headers:
            return "there is no trace"
        if self.is_clock_set:
            return "the clock was set, and this check knows one clock only"
        if self.is_list_unknown:
            return "a call did not return, and nobody knows whether its list took effect"
        return "the database forgot commits, so runs may come twice" if self.is_forgotten else ""

    def _end_life(self, *, is_dead: bool) -> None:
        life = self._life
        if life is not None:
            last_ms = life.signs_ms[-1]
            if is_dead:
                for runs in life.flying.values():
                    for run in runs:
                        run.cut_ms = last_ms if run.cut_ms is None else run.cut_ms
            for spans in (life.up, life.away):
                if spans and spans[-1][1] == FOREVER_MS:
                    spans[-1][1] = last_ms
            # A clock that is set back by less than the skew leaves these a little out of order.
            life.losses_ms.sort()
            self.is_list_unknown |= bool(self._inits and life.header.node)
        self._life, self._proc = None, None
        self._inits.clear()

    def _on_event(self, life: ProcessLife, event: TraceEvent) -> None:
        at_ms = event.t
        match event:
            case trace.RunStart() | trace.RunEnd() | trace.Missed():  # nearly all events are these
                self._on_run(life, event)
            case trace.InitStart():
                self._inits[event.call] = (at_ms, event.regs)
                self._on_options(event)
            case trace.ControlStart() | trace.ControlEnd():
                self._on_control(event)
            case trace.InitEnd() if event.ok:
                life.is_over = False
                if event.call in self._inits:
                    self.lists.append(self._inits.pop(event.call))
                _shut(life.up, at_ms)
                life.go_up(at_ms, self.lists[-1][1] if self.lists else [])
            case trace.StopStart():
                _shut(life.up, at_ms)
                life.losses_ms.append(at_ms)
            case trace.StopEnd():
                if event.void:
                    life.go_up(at_ms, life.regs[-1] if life.regs else [])
                life.is_over = not event.void
            case trace.End():
                life.is_over = True
            case trace.Crash():
                self._end_life(is_dead=True)
            case trace.ClockStep():
                self.is_clock_set |= abs(event.origin - at_ms) > SKEW_MS
            case _:
                self._on_cluster_event(life, event)

    def _on_options(self, event: trace.InitStart) -> None:
        for task, options in event.options.items():
            _lower(self.window_ms, task, options.catch_up_ms)
            _lower(self.longest_ms, task, options.max_delay_ms)
        for task, _, _ in event.regs:
            if not event.options.get(task, _DEFAULT).enabled:
                _open(self.disabled[task], event.t)
            elif task in self.disabled:
                _shut(self.disabled[task], event.t)

    def _on_control(self, event: trace.ControlStart | trace.ControlEnd) -> None:
        """A pause counts from its call on, a resume from its return on, a request at both."""
        begun = self._controls.pop(event.call, None) if isinstance(event, trace.ControlEnd) else event
        if isinstance(event, trace.ControlStart):
            self._controls[event.call] = event
        match begun:
            case trace.ControlStart(control="run"):
                self.asked_ms[begun.id].append(event.t)
            case trace.ControlStart(control="pause") if begun is event:
                _open(self.paused[begun.id], event.t)
            case trace.ControlStart(control="resume") if begun is not event:
                _shut(self.paused[begun.id], event.t)

    def _on_cluster_event(self, life: ProcessLife, event: TraceEvent) -> None:
        match event:
            case trace.NodeJoined():
                self.lease_ms = max(self.lease_ms, min(event.lease_ms, _LONGEST_MS))
            case trace.ListReconciled():
                known = next(iter(self._inits.values()), None) or (self.lists[-1] if self.lists else None)
                if known is not None:
                    self.reconciled.append((event.t, known[1]))
            case trace.ServerChanged():
                self.is_forgotten |= event.forgot
                life.losses_ms.append(event.t)
            case trace.NodeReturned():
                life.losses_ms.append(event.t)
            case trace.TaskInterruptedAgain():
                self.back_offs.append(QuietTime(event.t, event.retry, "back-off"))
            case trace.Unreachable():
                _open(life.away, event.t)
            case trace.Reachable():
                _shut(life.away, event.t)
            case trace.TrustLost():
                life.losses_ms.append(event.t)
                for run in [run for task in event.runs for run in life.flying.get(task, ())]:
                    run.cut_ms = event.t if run.cut_ms is None else run.cut_ms
            case _:
                pass

    def _on_run(self, life: ProcessLife, event: trace.RunStart | trace.RunEnd | trace.Missed) -> None:
        match event:
            case trace.RunStart():
                run = TargetRun(event.id, life, event.t, event.run)
                life.flying.setdefault(event.id, []).append(run)
                self.runs[event.id].append(run)
            case trace.RunEnd():
                ended = _take_run(life, event.id, event.run)
                if ended is not None and ended.cut_ms is None:
                    ended.end_ms, ended.is_ok = event.t, event.ok
            case trace.Missed():
                self.declared_ms[event.id][event.due] = event.t
                given_up = _take_run(life, event.id, event.run) if event.run is not None else None
                if given_up is not None:
                    given_up.is_taken_back = True


def _take_run(life: ProcessLife, task: str, number: int | None) -> TargetRun | None:
    """The run of *task* with *number* that is in flight, taken out; the oldest if it has none."""
    runs = life.flying.get(task, [])
    for index, run in enumerate(runs):
        if number is None or run.number == number:
            del runs[index]
            if not runs:
                del life.flying[task]
            return run
    return None


def _lower(lengths_ms: dict[str, float], task: str, length_ms: float | None) -> None:
    if length_ms is not None:
        lengths_ms[task] = min(length_ms, lengths_ms.get(task, FOREVER_MS))


def _open(spans: list[list[float]], at_ms: float) -> None:
    if not spans or spans[-1][1] != FOREVER_MS:
        spans.append([at_ms, FOREVER_MS])


def _shut(spans: list[list[float]], at_ms: float) -> None:
    if spans and spans[-1][1] == FOREVER_MS:
        spans[-1][1] = at_ms


@dataclass(frozen=True, slots=True)
class TargetDues:
    """The dues of one registration, in milliseconds."""

    dues: Dues
    anchor_us: int

    def count(self, from_ms: float, to_ms: float) -> int:
        """How many dues there are from *from_ms* up to, and not at, *to_ms*."""
        return self.dues.count(self._first_us(from_ms), micros(to_ms), self.anchor_us)

    def first(self, from_ms: float, to_ms: float) -> float | None:
        """The first due from *from_ms* up to, and not at, *to_ms*."""
        due_us = self.dues.after(self._first_us(from_ms) - 1, self.anchor_us)
        return due_us / 1000 if due_us < micros(to_ms) else None

    def _first_us(self, from_ms: float) -> int:
        # What counts from the registration comes after it, and never with it.
        return micros(from_ms) if self.dues.is_by_minute else max(micros(from_ms), self.anchor_us + 1)


# --- the matching ---


class _Period(NamedTuple):
    """A registration and when it was in effect."""

    from_ms: float
    to_ms: float
    cron: str
    delay_ms: float


@dataclass(slots=True)
class Account:
    targets: int = 0
    matched: int = 0
    excused: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    """A sentence for each of the first; *lost* counts them all."""
    runs: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    unaccounted: list[str] = field(default_factory=list)
    refused: str = ""
    """Why nothing can be said, if so."""
    ran: int = 0
    lost: int = 0
    cut_off: int = 0
    """Dues whose run, or whose time to start, was cut off by a crash or by the end of the recording."""

    @property
    def is_right(self) -> bool:
        """Whether nothing is left over."""
        return not self.missed and not self.unaccounted

    @property
    def dues(self) -> int:
        """All that were owed a run; those that are excused were not."""
        return self.ran + self.lost + self.cut_off

    def headline(self) -> str:
        return f"{counted(self.dues, 'due')}, {self.ran:,} ran, {self.lost:,} lost, {self.cut_off:,} cut off"

    def as_dict(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.__slots__}, "dues": self.dues}

    def sentences(self) -> list[str]:
        if self.refused:
            return [f"targets: {self.refused}"]
        reasons = ", ".join(f"{why} {count:,}" for why, count in sorted(self.excused.items()))
        excused = f"{self.excused.total():,} excused" + (f" ({reasons})" if reasons else "")
        causes = ", ".join(f"{count:,} {why}" for why, count in sorted(self.causes.items()))
        sentences = [
            f"targets {self.targets:,}: {self.matched:,} matched, {excused}, {self.lost:,} missed",
            f"runs {self.runs:,}: {causes + ', ' if causes else ''}{len(self.unaccounted):,} unaccounted for",
        ]
        for found, count in ((self.missed, self.lost), (self.unaccounted, len(self.unaccounted))):
            sentences += found[:_MOST_SHOWN]
            if count > _MOST_SHOWN:
                sentences.append(f"and {count - _MOST_SHOWN:,} more")
        return sentences


class _Span(NamedTuple):
    """Targets of one registration from *from_ms* up to, and not at, *to_ms*.

    With *onset_ms* it is the one of the minute in which the registration came; its window begins there.
    """

    period: _Period
    schedule: TargetDues
    from_ms: float
    to_ms: float
    onset_ms: float | None = None


class _Troubles:
    """The times in which nothing could be expected."""

    def __init__(self, stretches: Iterator[QuietTime], delta_ms: float) -> None:
        merged: list[QuietTime] = []
        for each in sorted(stretches):
            last = merged[-1] if merged else None
            # What comes within the window of the trouble before is excused by both.
            if last is not None and last.why == each.why and each.from_ms <= last.to_ms + delta_ms:
                merged[-1] = last._replace(to_ms=max(last.to_ms, each.to_ms))
            else:
                merged.append(each)
        self._froms_ms = [each.from_ms for each in merged]
        self._longest = list(accumulate(merged, _longer))
        self._edges_ms = sorted({edge for each in merged for edge in (each.from_ms - delta_ms, each.to_ms)})

    def longest(self, by_ms: float) -> QuietTime | None:
        """The one that lasts longest, of those that begin by then."""
        at = bisect_right(self._froms_ms, by_ms)
        return self._longest[at - 1] if at else None

    def edges_ms(self, from_ms: float, to_ms: float) -> list[float]:
        """Where, between two times, the answer for a target may change."""
        return self._edges_ms[bisect_right(self._edges_ms, from_ms) : bisect_left(self._edges_ms, to_ms)]


def _longer(one: QuietTime, other: QuietTime) -> QuietTime:
    return other if other.to_ms > one.to_ms else one


class Matching:
    def __init__(self, history: TargetHistory) -> None:
        self.history = history
        self.account = Account()
        headers = history.headers
        self.account.refused = history.refusal()
        if self.account.refused:
            return
        self._zone = zone_of(headers[0].tz)
        self._schedules: dict[str, Dues | None] = {}
        self.failover_ms = max(_LEASES * history.lease_ms, *(header.failover_ms for header in headers), 0)
        self.persist_ms = max(header.persist_window_ms for header in headers)
        self.is_past_unknown = all(header.store == "unknown" for header in headers)
        self._is_first_after = any(header.first_due == "after" for header in headers)
        periods = self._periods()
        per_task_ms = max(header.delta_per_task_ms for header in headers)
        self.delta_ms = max(header.delta_ms for header in headers) + per_task_ms * len(periods)
        self.horizon_ms = max((life.signs_ms[-1] for life in history.lives), default=0)
        if any(header.node for header in headers):
            self.delta_ms += SKEW_MS
            self.horizon_ms += SKEW_MS
        self.troubles = _Troubles(self._trouble(), self.delta_ms)
        self.account.refused = self._too_long(periods)
        if not self.account.refused:
            for task in dict.fromkeys((*periods, *history.runs)):
                _Task(self, task, periods.get(task, [])).match()

    def _too_long(self, periods: dict[str, list[_Period]]) -> str:
        """Why this cannot be counted in a time that befits its length; empty if it can."""
        known = [period for each in periods.values() for period in each]
        spans_ms = [min(period.to_ms, self.horizon_ms) - period.from_ms for period in known]
        most = _FREE_DAYS + _DAYS_AN_EVENT * self.history.events
        if sum(max(span_ms, 0) for span_ms in spans_ms) / _DAY_MS <= most:
            return ""
        years = max(spans_ms) / _YEAR_MS
        return f"{self.history.events:,} events over {years:,.0f} years are too few to count dues by"

    def schedule(self, cron: str) -> Dues | None:
        """The schedule that a text means; None if it means none."""
        if cron not in self._schedules:
            try:
                self._schedules[cron] = Dues(cron, self._zone)
            except ScheduleTextError:
                self._schedules[cron] = None
        return self._schedules[cron]

    def _is_valid(self, regs: Regs) -> bool:
        """Whether a list can have taken effect. If one did that cannot, the judge objects to that."""
        is_read = all(delay_ms >= 0 and self.schedule(cron) is not None for _, cron, delay_ms in regs)
        return is_read and len({task for task, _, _ in regs}) == len(regs)

    def _periods(self) -> dict[str, list[_Period]]:
        """When each task was registered, and how."""
        history = self.history
        reported = {tuple(regs) for _, regs in history.reconciled}
        lists = [*history.reconciled, *(each for each in history.lists if tuple(each[1]) not in reported)]
        periods: dict[str, list[_Period]] = defaultdict(list)
        present: dict[str, tuple[str, float]] = {}
        for at_ms, regs in sorted(lists, key=lambda each: each[0]):
            if not self._is_valid(regs):
                continue
            listed = {task: (cron, delay_ms) for task, cron, delay_ms in regs}
            for task in [task for task, known in present.items() if listed.get(task) != known]:
                periods[task][-1] = periods[task][-1]._replace(to_ms=at_ms)
                del present[task]
            for task, (cron, delay_ms) in listed.items():
                if task not in present:
                    periods[task].append(_Period(at_ms, FOREVER_MS, cron, delay_ms))
                    present[task] = cron, delay_ms
        return periods

    def _trouble(self) -> Iterator[QuietTime]:
        history = self.history
        for life in history.lives:
            yield from life.trouble(self.failover_ms)
        yield from history.back_offs
        for at_ms, _ in history.reconciled:
            yield QuietTime(at_ms, at_ms + self.failover_ms, "failover")
        up = sorted(
            (from_ms, min(to_ms, self._superseded_ms(from_ms, regs)))
            for life in history.lives
            for (from_ms, to_ms), regs in zip(life.up, life.regs, strict=True)
        )
        free_ms = -FOREVER_MS
        for from_ms, to_ms in [*up, (FOREVER_MS, FOREVER_MS)]:
            if from_ms > free_ms:
                yield QuietTime(free_ms, from_ms + self.failover_ms, "nobody was up")
            free_ms = max(free_ms, to_ms)

    def _superseded_ms(self, from_ms: float, regs: Regs) -> float:
        """Until when *regs* was the list of the cluster: who has an older one leaves alone what changed."""
        lists = self.history.reconciled
        return min((at for at, newer in lists if at > from_ms and newer != regs), default=FOREVER_MS)

    def is_minute_unknown(self, period: _Period) -> bool:
        """Whether by another clock the registration came in another minute."""
        is_late = period.from_ms % MINUTE_MS + SKEW_MS >= MINUTE_MS
        return is_late and any(header.node for header in self.history.headers)

    def first_due_ms(self, period: _Period, *, is_by_minute: bool) -> float:
        """From when on the dues of a registration count: from its own minute, or only after it."""
        if self._is_first_after:
            return float(int(period.from_ms // 1) + 1)  # dues are whole milliseconds
        if not is_by_minute:
            return period.from_ms
        return minute_start_us(micros(period.from_ms), self._zone) / 1000

    def time(self, at_ms: float) -> str:
        """An instant as the clocks of the zone show it."""
        return face_at(micros(at_ms), self._zone).isoformat(sep=" ", timespec="milliseconds")


class _Task:
    def __init__(self, matching: Matching, task: str, periods: Sequence[_Period]) -> None:
        self._matching = matching
        self._account = matching.account
        self._delta_ms, self._horizon_ms = matching.delta_ms, matching.horizon_ms
        self._task = task
        self._periods = periods
        self._fresh: set[_Period] = set()
        """The registrations that have a due in the minute in which they came."""
        self._spans = deque(self._all_spans())
        history = matching.history
        self._runs = [run for run in history.runs.get(task, ()) if not run.is_taken_back]
        self._runs.sort(key=lambda run: run.start_ms)
        self._declared_ms = sorted(history.declared_ms.get(task, ()))
        self._said_ms = history.declared_ms.get(task, {})
        self._asked_ms = history.asked_ms.get(task, [])
        self._resting = [*history.paused.get(task, ()), *history.disabled.get(task, ())]
        self._window_ms = history.window_ms.get(task, FOREVER_MS)
        self._longest_ms = history.longest_ms.get(task, FOREVER_MS)
        self._busy_ms = max((run.over_ms for run in history.begun_before.get(task, ())), default=-FOREVER_MS)
        """Up to when, at the latest, a run went on that has started so far."""
        self._answered_ms = -FOREVER_MS
        """Up to when the run before may have answered dues."""
        self._is_waiting = False
        """Whether it was interrupted so often that nobody can say when it should start."""

    def match(self) -> None:
        """Settle every target, and explain every run."""
        self._account.runs += len(self._runs)
        is_past_known = not self._matching.is_past_unknown
        answers: list[tuple[bool, str | None]] = []
        before: TargetRun | None = None
        for run in self._runs:
            is_for_due, answered = self._answer(run, before)
            is_unexplained = not is_for_due and (before is None or self._again(run, before) is None)
            if is_unexplained and run.life.header.node:
                run.start_ms += SKEW_MS  # the clock of its node may be behind
                is_for_due, answered = self._answer(run, before)
            is_past_known |= is_for_due
            why = self._explain(run, before, is_for_due=is_for_due, is_past_known=is_past_known)
            answers.append((answered, why))
            self._busy_ms = max(self._busy_ms, run.over_ms)
            # By the clock of another node it may have been a moment later.
            self._answered_ms = run.start_ms + SKEW_MS if run.life.header.node else -FOREVER_MS
            # One that is interrupted again may have to wait for others like it.
            is_cut = run.end_ms is None and run.life.header.node != ""
            self._is_waiting = is_cut and before is not None and before.end_ms is None
            before = run
        for span in self._come_by(FOREVER_MS):
            self._settle(span, None)
        self._count(answers)

    # --- targets ---

    def _all_spans(self) -> Iterator[_Span]:
        for period in self._periods:
            dues = self._matching.schedule(period.cron)
            assert dues is not None, "lists with others are left out"
            # Nobody knows when a run to come will end, nor over an old store since when an interval counts.
            if dues.is_from_end or (not dues.is_by_minute and self._matching.is_past_unknown):
                continue
            schedule = TargetDues(dues, micros(period.from_ms))
            to_ms = min(period.to_ms, math.floor(self._horizon_ms) + 1)  # the last event may answer its due
            first_ms = self._matching.first_due_ms(period, is_by_minute=dues.is_by_minute)
            due_ms = schedule.first(first_ms, min(period.from_ms, to_ms))
            if due_ms is not None:
                self._fresh.add(period)
            if due_ms is not None and not self._matching.is_minute_unknown(period):
                yield _Span(period, schedule, due_ms, due_ms + 1, period.from_ms)
            yield _Span(period, schedule, max(first_ms, period.from_ms), to_ms)

    def _come_by(self, at_ms: float) -> Iterator[_Span]:
        """The targets that a start at *at_ms* answers, as far as none did before."""
        while self._spans:
            span = self._spans[0]
            if span.onset_ms is not None:
                if span.onset_ms - SKEW_MS > at_ms:
                    return
                yield self._spans.popleft()
                continue
            until_ms = span.to_ms if at_ms >= span.to_ms else math.floor(at_ms) + 1
            yield span._replace(to_ms=until_ms)
            self._spans[0] = span._replace(from_ms=max(span.from_ms, until_ms))
            # A list that comes next may have been dated by a clock that is a little ahead.
            if at_ms < span.to_ms - SKEW_MS or span.schedule.count(until_ms, span.to_ms):
                return
            self._spans.popleft()

    def _answer(self, run: TargetRun, before: TargetRun | None) -> tuple[bool, bool]:
        """Whether *run* is for a due, and whether the last of its dues counts as one that ran."""
        is_for_due, is_kept = self._is_first_of_fresh(run, before), False
        for span in self._come_by(run.start_ms):
            is_in_effect = run.start_ms <= span.period.to_ms + SKEW_MS
            last = self._settle(span, run.start_ms if is_in_effect else None)
            if is_in_effect and last is not _NONE:
                is_for_due, is_kept = True, last is not None
        return is_for_due, is_kept

    def _settle(self, span: _Span, start_ms: float | None) -> str | None:
        """Say what became of the targets of *span*: the start that answered them, or None.

        Answers what the last one came to, `_NONE` if there are none.
        """
        count = span.schedule.count(span.from_ms, span.to_ms)
        self._account.targets += count
        fate: str | None = _NONE if not count else None
        for piece, onset_ms, number in self._pieces(span, count, start_ms):
            fate = self._fate(piece.period, onset_ms, start_ms)
            if fate is None:
                when = "it did not start" if start_ms is None else f"it started at {self._time(start_ms)}"
                self._miss(piece, number, when)
            elif fate == _MATCHED:
                self._account.matched += number
            else:
                self._account.excused[fate] += number
                self._account.cut_off += number if fate == _END else 0
        return fate

    def _pieces(self, span: _Span, count: int, start_ms: float | None) -> Iterator[tuple[_Span, float, int]]:
        """Parts of *span* whose targets all have one answer, that of its onset, and how many these are."""
        declared_ms = self._declared_misses(span)
        for due_ms in declared_ms:
            if self._said_ms[due_ms] - due_ms > self._window_ms:
                self._account.excused[_TOO_OLD] += 1
            else:
                self._miss(span._replace(from_ms=due_ms, to_ms=due_ms + 1), 1, _DECLARED)
        count -= len(declared_ms)
        if not count:
            return
        if span.onset_ms is not None:
            yield span, span.onset_ms, count
            return
        limit_ms = min(self._horizon_ms if start_ms is None else start_ms, span.period.to_ms)
        edges_ms = [limit_ms - self._delta_ms, self._busy_ms]
        edges_ms += [] if start_ms is None else [start_ms - self._delta_ms]
        edges_ms += [self._answered_ms]
        edges_ms += self._matching.troubles.edges_ms(span.from_ms, span.to_ms)
        for rest_ms, awake_ms in self._resting:
            edges_ms += [rest_ms - self._delta_ms, awake_ms, awake_ms - self._window_ms]
        if start_ms is not None and self._window_ms < FOREVER_MS:
            edges_ms += [start_ms - self._window_ms]
        within = {edge_ms for edge_ms in edges_ms if span.from_ms < edge_ms < span.to_ms}
        for from_ms, to_ms in pairwise([span.from_ms, *sorted(within), span.to_ms]):
            number = span.schedule.count(from_ms, to_ms) if within else count
            number -= sum(from_ms <= due_ms < to_ms for due_ms in declared_ms) if within else 0
            if number:
                yield span._replace(from_ms=from_ms, to_ms=to_ms), from_ms, number

    def _declared_misses(self, span: _Span) -> list[float]:
        """The targets of *span* that did not run, as the scheduler itself says."""
        first = bisect_left(self._declared_ms, span.from_ms)
        last = bisect_left(self._declared_ms, span.to_ms)
        declared_ms = self._declared_ms[first:last]
        return [due_ms for due_ms in declared_ms if span.schedule.first(due_ms, due_ms + 1) == due_ms]

    def _miss(self, piece: _Span, number: int, when: str) -> None:
        """So many targets of *piece* are lost."""
        account, due_ms = self._account, piece.from_ms
        account.lost += number
        for _ in range(min(number, _MOST_KEPT - len(account.missed))):
            found_ms = piece.schedule.first(due_ms, piece.to_ms)
            assert found_ms is not None
            account.missed.append(f"{self._task!r} was due at {self._time(found_ms)}, and {when}")
            due_ms = found_ms + 1

    def _fate(self, period: _Period, onset_ms: float, start_ms: float | None) -> str | None:
        """What a target comes to: matched, an excuse, or None if it is missed."""
        if start_ms is not None and start_ms <= onset_ms + self._delta_ms:
            return _MATCHED
        if onset_ms < self._answered_ms:
            return "clocks differ"
        limit_ms = min(self._horizon_ms if start_ms is None else start_ms, period.to_ms)
        excuse = self._excuse(onset_ms, limit_ms)
        if excuse is None and start_ms is None and limit_ms <= onset_ms + self._delta_ms:
            return "changed or removed" if period.to_ms <= self._horizon_ms else _END
        return excuse

    def _excuse(self, onset_ms: float, limit_ms: float) -> str | None:
        """Why a start may have come only at *limit_ms*, or not yet by then."""
        if self._is_waiting:
            return "interrupted again"
        busy = QuietTime(-FOREVER_MS, min(self._busy_ms, self._horizon_ms), "running")
        due_ms, why = onset_ms, None
        while limit_ms > onset_ms + self._delta_ms:
            by_ms = onset_ms + self._delta_ms
            trouble = self._matching.troubles.longest(by_ms)
            last = busy if trouble is None or busy.to_ms >= trouble.to_ms else trouble
            for rest_ms, awake_ms in self._resting:
                if rest_ms <= by_ms and awake_ms > last.to_ms:
                    last = QuietTime(rest_ms, awake_ms, "paused or disabled")
            if last.to_ms <= onset_ms:
                return None
            onset_ms, why = last.to_ms, last.why
            if onset_ms - due_ms > self._window_ms - SKEW_MS:
                return _TOO_OLD
        return why

    # --- runs ---

    def _is_first_of_fresh(self, run: TargetRun, before: TargetRun | None) -> bool:
        """Whether a list that came within a due minute explains *run*, whichever clock dated the list."""
        period = self._period_at(run.start_ms)
        if period is None or period not in self._fresh or run.start_ms > period.to_ms:
            return False
        return before is None or before.start_ms < period.from_ms

    def _period_at(self, at_ms: float) -> _Period | None:
        """The latest registration by then."""
        at = bisect_right(self._periods, at_ms, key=lambda period: period.from_ms)
        return self._periods[at - 1] if at else None

    def _explain(
        self, run: TargetRun, before: TargetRun | None, *, is_for_due: bool, is_past_known: bool
    ) -> str | None:
        """Say why *run* started; None if nobody knows."""
        why: str | None = "for a due" if is_for_due else None
        if before is not None and not self._is_over(before, run.start_ms):
            why = None
        elif why is None and before is not None:
            why = self._again(run, before)
        if why is None:
            why = self._other_cause(run, before)
        if why is None and not is_past_known and before is None:
            why = "of before the trace"
        if why is None:
            sentence = f"{run.task!r} started at {self._time(run.start_ms)} for no reason that can be seen"
            if before is not None and not self._is_over(before, run.start_ms):
                began = self._time(before.start_ms)
                sentence = (
                    f"{run.task!r} started at {self._time(run.start_ms)} while its run of {began} went on"
                )
            self._account.unaccounted.append(sentence)
        else:
            self._account.causes[why] += 1
        return why

    def _other_cause(self, run: TargetRun, before: TargetRun | None) -> str | None:
        """Whether *run* was asked for, or follows the end of another one, or an interval of unknown phase."""
        since_ms = -FOREVER_MS if before is None else before.start_ms - SKEW_MS
        if any(since_ms <= asked_ms <= run.start_ms + SKEW_MS for asked_ms in self._asked_ms):
            return "asked for"
        period = self._period_at(run.start_ms)
        if period is None or "@" not in period.cron:
            return None
        if "@after" in period.cron:
            anchor_ms = period.from_ms if before is None else max(before.over_ms, period.from_ms)
            delay_ms = float(period.cron.rpartition(" ")[2][:-1]) * 1000
            return "after an end" if run.start_ms + SKEW_MS >= anchor_ms + delay_ms else None
        return "of an interval from before the trace" if self._matching.is_past_unknown else None

    def _is_over(self, run: TargetRun, at_ms: float) -> bool:
        return run.over_ms <= at_ms + SKEW_MS or run.life.is_lost_sight_of(at_ms)

    def _again(self, run: TargetRun, before: TargetRun) -> str | None:
        if before.end_ms is None:
            return _AGAIN
        period = self._period_at(before.start_ms)
        if not before.is_ok and period is not None and before.start_ms < period.to_ms:
            delay_ms = min(period.delay_ms, self._longest_ms)
            is_waited_for = run.start_ms + SKEW_MS >= before.end_ms + delay_ms
            if is_waited_for and run.start_ms <= period.to_ms + SKEW_MS:
                return "after a failure"
        life, window_ms = before.life, self._matching.persist_ms + SKEW_MS
        # Its process died before the end was on disk. The trace of a killed node just stops.
        is_dead = life is not run.life and not life.is_over
        if is_dead and life.signs_ms[-1] - before.end_ms <= window_ms:
            return _AGAIN
        window_ms += self._matching.failover_ms
        is_lost = life.is_loss_within(before.end_ms - window_ms, before.end_ms + window_ms)
        return _AGAIN if is_lost or life.is_away(before.end_ms, before.end_ms + window_ms) else None

    def _count(self, answers: Sequence[tuple[bool, str | None]]) -> None:
        """Count the dues that ran to an end, one for a run. What was cut off may have been repeated."""
        is_ended = is_repeated = False
        for run, (answered, why) in zip(reversed(self._runs), reversed(answers), strict=True):
            is_ended = run.end_ms is not None or (is_repeated and is_ended)
            is_repeated = why == _AGAIN
            if is_ended:
                self._account.ran += answered
            else:
                self._account.cut_off += answered

    def _time(self, at_ms: float) -> str:
        return self._matching.time(at_ms)


def account_of(lines: Iterable[bytes]) -> Account:
    """Match the targets and the runs of one trace, or of those of all nodes one after the other.

    The lines are those of traces without faults.
    """
    history = TargetHistory()
    for line in lines:
        try:
            history.take(trace.event_in(line))
        except trace.UNREADABLE:
            header = _header_in(line)
            if header is not None:
                history.begin(header)
    history.close()
    return Matching(history).account


def _header_in(line: bytes) -> Header | None:
    """The header in *line*; None if a crash has torn it, or it is empty. All else the judge has refused."""
    try:
        return header_of(1, line)
    except TraceError:
        return None
