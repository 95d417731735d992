"""The matching: targets worked out from the lists, and runs to answer them.

Between two runs of a task, what becomes of a target depends on when it is due only by which troubles lie
around it. So the time between two runs is divided where troubles begin and end, and all the targets of such
a piece have one answer, which is worked out once.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from duly.verify.targets.history import FOREVER_MS, SKEW_MS, History, Regs, Run, Stretch
from duly.verify.targets.schedule import Days, Schedule, UnreadableError

MOST_TOLD = 10
MOST_KEPT = 100
"""Missed targets that are kept as sentences; the rest are counted."""
_NONE, _MATCHED, _END, _AGAIN = "", "matched", "end of the trace", "after an interruption"
_DECLARED = "the scheduler itself says that it did not run"
_DAY_MS = 86_400_000
_YEAR_MS = 365.2425 * _DAY_MS
_FREE_DAYS, _DAYS_AN_EVENT = 200_000, 50
"""How many days of how many registrations may be counted, and how many more for each event."""


class _Period(NamedTuple):
    """A registration and when it was in effect."""

    from_ms: float
    to_ms: float
    cron: str
    delay_ms: float


@dataclass(slots=True)
class Account:
    """What came out."""

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
        """What became of the dues, in one line."""
        return f"{self.dues:,} dues, {self.ran:,} ran, {self.lost:,} lost, {self.cut_off:,} cut off"

    def as_dict(self) -> dict[str, Any]:
        """All of it for machines."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "dues": self.dues}

    def sentences(self) -> list[str]:
        """All of it in words."""
        if self.refused:
            return [f"targets: {self.refused}"]
        reasons = ", ".join(f"{why} {count:,}" for why, count in sorted(self.excused.items()))
        excused = f"{self.excused.total():,} excused" + (f" ({reasons})" if reasons else "")
        causes = ", ".join(f"{count:,} {why}" for why, count in sorted(self.causes.items()))
        told = [
            f"targets {self.targets:,}: {self.matched:,} matched, {excused}, {self.lost:,} missed",
            f"runs {self.runs:,}: {causes + ', ' if causes else ''}{len(self.unaccounted):,} unaccounted for",
        ]
        for found, count in ((self.missed, self.lost), (self.unaccounted, len(self.unaccounted))):
            told += found[:MOST_TOLD]
            if count > MOST_TOLD:
                told.append(f"and {count - MOST_TOLD:,} more")
        return told


class _Span(NamedTuple):
    """Targets of one registration from *from_ms* up to, and not at, *to_ms*.

    With *onset_ms* it is the one of the minute in which the registration came; its window begins there.
    """

    period: _Period
    schedule: Schedule
    from_ms: float
    to_ms: float
    onset_ms: float | None = None


class _Troubles:
    """The times in which nothing could be expected."""

    def __init__(self, stretches: Iterator[Stretch], delta_ms: float) -> None:
        merged: list[Stretch] = []
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

    def longest(self, by_ms: float) -> Stretch | None:
        """The one that lasts longest, of those that begin by then."""
        at = bisect_right(self._froms_ms, by_ms)
        return self._longest[at - 1] if at else None

    def edges_ms(self, from_ms: float, to_ms: float) -> list[float]:
        """Where, between two times, the answer for a target may change."""
        return self._edges_ms[bisect_right(self._edges_ms, from_ms) : bisect_left(self._edges_ms, to_ms)]


def _longer(one: Stretch, other: Stretch) -> Stretch:
    return other if other.to_ms > one.to_ms else one


class Matching:
    """Matches what a history tells."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.account = Account()
        headers = history.headers
        if not headers or history.is_clock_set:
            self.account.refused = (
                "the clock was set, and this check knows one clock only" if headers else "there is no trace"
            )
            return
        self._days = Days(ZoneInfo(headers[0].tz))
        self._schedules: dict[str, Schedule | None] = {}
        self.failover_ms = max(header.failover_ms for header in headers)
        self.persist_ms = max(header.persist_window_ms for header in headers)
        self.is_past_unknown = all(header.store == "unknown" for header in headers)
        self._is_first_after = any(header.first_due == "after" for header in headers)
        periods = self._periods()
        per_task_ms = max(header.delta_per_task_ms for header in headers)
        self.delta_ms = max(header.delta_ms for header in headers) + per_task_ms * len(periods)
        if any(header.member for header in headers):
            self.delta_ms += SKEW_MS
        self.horizon_ms = max((life.signs_ms[-1] for life in history.lives), default=0)
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

    def schedule(self, cron: str) -> Schedule | None:
        """The dues of a cron text; None if it is none."""
        if cron not in self._schedules:
            try:
                self._schedules[cron] = Schedule(cron, self._days)
            except UnreadableError:
                self._schedules[cron] = None
        return self._schedules[cron]

    def _is_valid(self, regs: Regs) -> bool:
        """Whether a list can have taken effect. If one did that cannot, the judge objects to that."""
        is_read = all(delay_ms >= 0 and self.schedule(cron) is not None for _, cron, delay_ms in regs)
        return is_read and len({task for task, _, _ in regs}) == len(regs)

    def _periods(self) -> dict[str, list[_Period]]:
        """When each task was registered, and how."""
        history = self.history
        told = {tuple(regs) for _, regs in history.editions}
        lists = [*history.editions, *(each for each in history.lists if tuple(each[1]) not in told)]
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

    def _trouble(self) -> Iterator[Stretch]:
        history = self.history
        for life in history.lives:
            yield from life.trouble(self.failover_ms)
        for at_ms, _ in history.editions:
            yield Stretch(at_ms, at_ms + self.failover_ms, "failover")
        up = sorted(span for life in history.lives for span in life.up)
        free_ms = -FOREVER_MS
        for from_ms, to_ms in [*up, [FOREVER_MS, FOREVER_MS]]:
            if from_ms > free_ms:
                yield Stretch(free_ms, from_ms + self.failover_ms, "nobody was up")
            free_ms = max(free_ms, to_ms)

    def first_due_ms(self, period: _Period) -> float:
        """From when on the dues of a registration count: from its own minute, or only after it."""
        if self._is_first_after:
            return float(int(period.from_ms // 1) + 1)  # dues are whole milliseconds
        face = self._days.face(period.from_ms)
        return period.from_ms - face.second * 1000 - face.microsecond / 1000

    def time(self, at_ms: float) -> str:
        """An instant as the clocks of the zone show it."""
        return self._days.face(at_ms).isoformat(sep=" ", timespec="milliseconds")


class _Task:
    """Matches the targets and the runs of one task."""

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
        self._busy_ms = max((run.over_ms for run in history.begun_before.get(task, ())), default=-FOREVER_MS)
        """Up to when, at the latest, a run went on that has started so far."""

    def match(self) -> None:
        """Settle every target, and explain every run."""
        self._account.runs += len(self._runs)
        is_past_known = not self._matching.is_past_unknown
        answers: list[tuple[bool, str | None]] = []
        before: Run | None = None
        for run in self._runs:
            is_for_due, answered = self._answer(run, before)
            is_past_known |= is_for_due
            why = self._explain(run, before, is_for_due=is_for_due, is_past_known=is_past_known)
            answers.append((answered, why))
            self._busy_ms = max(self._busy_ms, run.over_ms)
            before = run
        for span in self._come_by(FOREVER_MS):
            self._settle(span, None)
        self._count(answers)

    # --- targets ---

    def _all_spans(self) -> Iterator[_Span]:
        for period in self._periods:
            schedule = self._matching.schedule(period.cron)
            assert schedule is not None, "lists with others are left out"
            to_ms = min(period.to_ms, math.floor(self._horizon_ms) + 1)  # the last event may answer its due
            first_ms = self._matching.first_due_ms(period)
            due_ms = schedule.first(first_ms, min(period.from_ms, to_ms))
            if due_ms is not None:
                self._fresh.add(period)
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

    def _answer(self, run: Run, before: Run | None) -> tuple[bool, bool]:
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
        declared_ms = self._declared(span)
        for due_ms in declared_ms:
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
        edges_ms += self._matching.troubles.edges_ms(span.from_ms, span.to_ms)
        within = {edge_ms for edge_ms in edges_ms if span.from_ms < edge_ms < span.to_ms}
        for from_ms, to_ms in pairwise([span.from_ms, *sorted(within), span.to_ms]):
            number = span.schedule.count(from_ms, to_ms) if within else count
            number -= sum(from_ms <= due_ms < to_ms for due_ms in declared_ms) if within else 0
            if number:
                yield span._replace(from_ms=from_ms, to_ms=to_ms), from_ms, number

    def _declared(self, span: _Span) -> list[float]:
        """The targets of *span* that did not run, as the scheduler itself says."""
        first = bisect_left(self._declared_ms, span.from_ms)
        last = bisect_left(self._declared_ms, span.to_ms)
        return [due_ms for due_ms in self._declared_ms[first:last] if span.schedule.has(due_ms)]

    def _miss(self, piece: _Span, number: int, when: str) -> None:
        """So many targets of *piece* are lost."""
        account, due_ms = self._account, piece.from_ms
        account.lost += number
        for _ in range(min(number, MOST_KEPT - len(account.missed))):
            found_ms = piece.schedule.first(due_ms, piece.to_ms)
            assert found_ms is not None
            account.missed.append(f"{self._task!r} was due at {self._time(found_ms)}, and {when}")
            due_ms = found_ms + 1

    def _fate(self, period: _Period, onset_ms: float, start_ms: float | None) -> str | None:
        """What a target comes to: matched, an excuse, or None if it is missed."""
        if start_ms is not None and start_ms <= onset_ms + self._delta_ms:
            return _MATCHED
        limit_ms = min(self._horizon_ms if start_ms is None else start_ms, period.to_ms)
        excuse = self._excuse(onset_ms, limit_ms)
        if excuse is None and start_ms is None and limit_ms <= onset_ms + self._delta_ms:
            return "changed or removed" if period.to_ms <= self._horizon_ms else _END
        return excuse

    def _excuse(self, onset_ms: float, limit_ms: float) -> str | None:
        """Why a start may have come only at *limit_ms*, or not yet by then."""
        busy = Stretch(-FOREVER_MS, min(self._busy_ms, self._horizon_ms), "running")
        why = None
        while limit_ms > onset_ms + self._delta_ms:
            trouble = self._matching.troubles.longest(onset_ms + self._delta_ms)
            last = busy if trouble is None or busy.to_ms >= trouble.to_ms else trouble
            if last.to_ms <= onset_ms:
                return None
            onset_ms, why = last.to_ms, last.why
        return why

    # --- runs ---

    def _is_first_of_fresh(self, run: Run, before: Run | None) -> bool:
        """Whether a list that came within a due minute explains *run*, whoever's clock dated the list."""
        period = self._period_at(run.start_ms)
        if period is None or period not in self._fresh or run.start_ms > period.to_ms:
            return False
        return before is None or before.start_ms < period.from_ms

    def _period_at(self, at_ms: float) -> _Period | None:
        """The latest registration by then."""
        at = bisect_right(self._periods, at_ms, key=lambda period: period.from_ms)
        return self._periods[at - 1] if at else None

    def _explain(self, run: Run, before: Run | None, *, is_for_due: bool, is_past_known: bool) -> str | None:
        """Say why *run* started; None if nobody knows."""
        why: str | None = "for a due" if is_for_due else None
        if before is not None and not self._is_over(before, run.start_ms):
            why = None
        elif why is None and before is not None:
            why = self._again(run, before)
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

    def _is_over(self, run: Run, at_ms: float) -> bool:
        return run.over_ms <= at_ms + SKEW_MS or run.life.is_lost_sight_of(at_ms)

    def _again(self, run: Run, before: Run) -> str | None:
        """Whether *run* repeats the one before."""
        if before.end_ms is None:
            return _AGAIN
        period = self._period_at(before.start_ms)
        if not before.is_ok and period is not None and before.start_ms < period.to_ms:
            is_waited_for = run.start_ms + SKEW_MS >= before.end_ms + period.delay_ms
            if is_waited_for and run.start_ms <= period.to_ms + SKEW_MS:
                return "after a failure"
        life, window_ms = before.life, self._matching.persist_ms + SKEW_MS
        if life.is_dead and life.signs_ms[-1] - before.end_ms <= window_ms:
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
