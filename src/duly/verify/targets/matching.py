"""The matching: targets worked out from the lists, minute by minute, and runs to answer them."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from duly.verify.targets.history import FOREVER_MS, SKEW_MS, History, Run, Stretch

MINUTE_MS = 60_000
MOST_TOLD = 10


class _Period(NamedTuple):
    """A registration and when it was in effect."""

    from_ms: float
    to_ms: float
    cron: str
    delay_ms: float


class _Target(NamedTuple):
    """A due of a task; its window begins with the registration, if that came later in the same minute."""

    due_ms: float
    onset_ms: float
    period: _Period

    def is_come(self, at_ms: float) -> bool:
        """Whether a start at that time answers it."""
        return self.onset_ms - (SKEW_MS if self.onset_ms > self.due_ms else 0) <= at_ms


@dataclass(slots=True)
class Account:
    """What came out."""

    targets: int = 0
    matched: int = 0
    excused: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    """A sentence for each."""
    runs: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    unaccounted: list[str] = field(default_factory=list)
    refused: str = ""
    """Why nothing can be said, if so."""

    @property
    def is_right(self) -> bool:
        """Whether nothing is left over."""
        return not self.missed and not self.unaccounted

    def as_dict(self) -> dict[str, Any]:
        """All of it for machines."""
        return {name: getattr(self, name) for name in self.__slots__}

    def sentences(self) -> list[str]:
        """All of it in words."""
        if self.refused:
            return [f"targets: {self.refused}"]
        reasons = ", ".join(f"{why} {count:,}" for why, count in sorted(self.excused.items()))
        excused = f"{self.excused.total():,} excused" + (f" ({reasons})" if reasons else "")
        causes = ", ".join(f"{count:,} {why}" for why, count in sorted(self.causes.items()))
        told = [
            f"targets {self.targets:,}: {self.matched:,} matched, {excused}, {len(self.missed):,} missed",
            f"runs {self.runs:,}: {causes + ', ' if causes else ''}{len(self.unaccounted):,} unaccounted for",
        ]
        for found in (self.missed, self.unaccounted):
            told += found[:MOST_TOLD]
            if len(found) > MOST_TOLD:
                told.append(f"and {len(found) - MOST_TOLD:,} more")
        return told


class Matching:
    """Matches what a history tells."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.account = Account()
        headers = history.headers
        if not headers or history.is_clock_set:
            self.account.refused = (
                "the clock was set, and this check knows one clock only" if headers else "there is no trace"
            )
            return
        self._zone = ZoneInfo(headers[0]["tz"])
        self._failover_ms = max(header.get("failover_ms", 0) for header in headers)
        self._persist_ms = max(header.get("persist_window_ms", 0) for header in headers)
        self._is_past_unknown = all(header.get("store", "fresh") == "unknown" for header in headers)
        periods = self._periods()
        per_task_ms = max(header.get("delta_per_task_ms", 6) for header in headers)
        delta_ms = max(header.get("delta_ms", 60_000) for header in headers)
        self._delta_ms = delta_ms + per_task_ms * len(periods)
        if any(header.get("member") for header in headers):
            self._delta_ms += SKEW_MS
        self._horizon_ms = max((life.signs_ms[-1] for life in history.lives), default=0)
        self._troubles = sorted(self._trouble())
        self._dues: dict[str, list[float]] = {}
        for task in dict.fromkeys((*periods, *history.runs)):
            self._match(task, periods.get(task, []))

    def _periods(self) -> dict[str, list[_Period]]:
        """When each task was registered, and how."""
        history = self._history
        told = [regs for _, regs in history.editions]
        lists = [*history.editions, *(each for each in history.lists if each[1] not in told)]
        periods: dict[str, list[_Period]] = defaultdict(list)
        for at_ms, regs in sorted(lists, key=lambda each: each[0]):
            listed = {task: (cron, delay_ms) for task, cron, delay_ms in regs}
            for task, known in periods.items():
                if known[-1].to_ms == FOREVER_MS and listed.get(task) != known[-1][2:]:
                    known[-1] = known[-1]._replace(to_ms=at_ms)
            for task, (cron, delay_ms) in listed.items():
                if not periods[task] or periods[task][-1].to_ms < FOREVER_MS:
                    periods[task].append(_Period(at_ms, FOREVER_MS, cron, delay_ms))
        return periods

    def _trouble(self) -> Iterator[Stretch]:
        history = self._history
        for life in history.lives:
            yield from life.trouble(self._failover_ms)
        for at_ms, _ in history.editions:
            yield Stretch(at_ms, at_ms + self._failover_ms, "failover")
        up = sorted(span for life in history.lives for span in life.up)
        free_ms = -FOREVER_MS
        for from_ms, to_ms in [*up, [FOREVER_MS, FOREVER_MS]]:
            if from_ms > free_ms:
                yield Stretch(free_ms, from_ms + self._failover_ms, "nobody was up")
            free_ms = max(free_ms, to_ms)

    # --- one task ---

    def _match(self, task: str, periods: Sequence[_Period]) -> None:
        runs = sorted(self._history.runs.get(task, []), key=lambda run: run.start_ms)
        self.account.runs += len(runs)
        targets = [
            _Target(due_ms, max(due_ms, period.from_ms), period)
            for period in periods
            for due_ms in self._due_in(period)
        ]
        self.account.targets += len(targets)
        is_past_known = not self._is_past_unknown
        index = 0
        for number, run in enumerate(runs):
            before = runs[number - 1] if number else None
            is_for_due = self._is_first_of_fresh(run, before, targets)
            while index < len(targets) and targets[index].is_come(run.start_ms):
                target = targets[index]
                is_in_effect = run.start_ms <= target.period.to_ms + SKEW_MS
                is_for_due |= is_in_effect
                self._settle(task, target, run.start_ms if is_in_effect else None, runs[:number])
                index += 1
            is_past_known |= is_for_due
            self._explain(run, before, periods, is_for_due=is_for_due, is_past_known=is_past_known)
        for target in targets[index:]:
            self._settle(task, target, None, runs)

    def _is_first_of_fresh(self, run: Run, before: Run | None, targets: Sequence[_Target]) -> bool:
        """Whether a list that came within a due minute explains *run*, whoever's clock dated the list."""
        since_ms = before.start_ms if before is not None else -FOREVER_MS
        at = bisect_right(targets, run.start_ms, key=lambda target: target.onset_ms) - 1
        if at < 0:
            return False
        target = targets[at]
        is_fresh = target.due_ms < target.onset_ms
        return is_fresh and since_ms < target.onset_ms and run.start_ms <= target.period.to_ms

    def _due_in(self, period: _Period) -> list[float]:
        """The dues of a registration, that of the minute in which it came included."""
        dues = self._dues.get(period.cron)
        if dues is None:
            dues = self._dues[period.cron] = list(self._every_due(period.cron))
        begin_ms = period.from_ms - period.from_ms % MINUTE_MS
        return dues[bisect_left(dues, begin_ms) : bisect_left(dues, min(period.to_ms, self._horizon_ms))]

    def _every_due(self, cron: str) -> Iterator[float]:
        """Every due between the first sign and the last, by looking at each minute there is."""
        first_ms = min(life.signs_ms[0] for life in self._history.lives)
        minute = datetime.fromtimestamp(first_ms // MINUTE_MS * 60, UTC)
        sets = [_numbers(word) for word in cron.split()]
        is_either = "*" not in (cron.split()[2], cron.split()[4])
        while minute.timestamp() * 1000 <= self._horizon_ms:
            face = minute.astimezone(self._zone)
            shown = (face.minute, face.hour, face.day, face.month, face.isoweekday() % 7)
            fits = [numbers is None or value in numbers for value, numbers in zip(shown, sets, strict=True)]
            is_day = (fits[2] or fits[4]) if is_either else (fits[2] and fits[4])
            if face.fold == 0 and fits[0] and fits[1] and fits[3] and is_day:
                yield minute.timestamp() * 1000
            minute += timedelta(minutes=1)

    def _settle(self, task: str, target: _Target, start_ms: float | None, before: Sequence[Run]) -> None:
        """Say what became of a target: the start that answered it, or None."""
        due_ms, onset_ms, period = target
        if start_ms is not None and start_ms <= onset_ms + self._delta_ms:
            self.account.matched += 1
            return
        limit_ms = min(self._horizon_ms if start_ms is None else start_ms, period.to_ms)
        excuse = self._excuse(onset_ms, limit_ms, before)
        if excuse is None and start_ms is None and limit_ms <= onset_ms + self._delta_ms:
            is_removed = period.to_ms <= self._horizon_ms
            excuse = "changed or removed" if is_removed else "end of the trace"
        if excuse is not None:
            self.account.excused[excuse] += 1
            return
        when = "it did not start" if start_ms is None else f"it started at {self._time(start_ms)}"
        self.account.missed.append(f"{task!r} was due at {self._time(due_ms)}, and {when}")

    def _excuse(self, onset_ms: float, limit_ms: float, before: Sequence[Run]) -> str | None:
        """Why a start may have come only at *limit_ms*, or not yet by then."""
        busy = [
            Stretch(run.start_ms, min(run.over_ms, self._horizon_ms), "running")
            for run in before
            if run.over_ms >= onset_ms
        ]
        why = None
        while limit_ms > onset_ms + self._delta_ms:
            deadline_ms = onset_ms + self._delta_ms
            later = [
                each
                for each in (*busy, *self._troubles[: self._troubles_up_to(deadline_ms)])
                if each.from_ms <= deadline_ms and each.to_ms > onset_ms
            ]
            if not later:
                return None
            last = max(later, key=lambda each: each.to_ms)
            onset_ms, why = last.to_ms, last.why
        return why

    def _troubles_up_to(self, at_ms: float) -> int:
        return bisect_right(self._troubles, at_ms, key=lambda each: each.from_ms)

    def _explain(
        self,
        run: Run,
        before: Run | None,
        periods: Sequence[_Period],
        *,
        is_for_due: bool,
        is_past_known: bool,
    ) -> None:
        """Say why *run* started."""
        why: str | None = "for a due" if is_for_due else None
        if before is not None and not self._is_over(before, run.start_ms):
            why = None
        elif why is None and before is not None:
            why = self._again(run, before, periods)
        if why is None and not is_past_known and before is None:
            why = "of before the trace"
        if why is None:
            sentence = f"{run.task!r} started at {self._time(run.start_ms)} for no reason that can be seen"
            if before is not None and not self._is_over(before, run.start_ms):
                began = self._time(before.start_ms)
                sentence = (
                    f"{run.task!r} started at {self._time(run.start_ms)} while its run of {began} went on"
                )
            self.account.unaccounted.append(sentence)
        else:
            self.account.causes[why] += 1

    def _is_over(self, run: Run, at_ms: float) -> bool:
        return run.over_ms <= at_ms + SKEW_MS or run.life.is_lost_sight_of(at_ms)

    def _again(self, run: Run, before: Run, periods: Sequence[_Period]) -> str | None:
        """Whether *run* repeats the one before."""
        if before.end_ms is None:
            return "after an interruption"
        period = next((each for each in periods if each.from_ms <= before.start_ms < each.to_ms), None)
        if not before.is_ok and period is not None and run.start_ms <= period.to_ms + SKEW_MS:
            is_waited_for = run.start_ms + SKEW_MS >= before.end_ms + period.delay_ms
            if is_waited_for:
                return "after a failure"
        window_ms = self._persist_ms + SKEW_MS
        last_ms = before.life.signs_ms[-1]
        if before.life.is_dead and last_ms - before.end_ms <= window_ms:
            return "after an interruption"
        window_ms += self._failover_ms
        losses = before.life.losses_ms
        if any(abs(at_ms - before.end_ms) <= window_ms for at_ms in losses):
            return "after an interruption"
        if any(from_ms - window_ms <= before.end_ms <= to_ms for from_ms, to_ms in before.life.away):
            return "after an interruption"
        return None

    def _time(self, at_ms: float) -> str:
        moment = datetime.fromtimestamp(at_ms / 1000, self._zone)
        return moment.isoformat(sep=" ", timespec="milliseconds")


def _numbers(word: str) -> frozenset[int] | None:
    """The numbers of one field; None for every one."""
    if word == "*":
        return None
    ends = [part.split("-") for part in word.split(",")]
    return frozenset(number for part in ends for number in range(int(part[0]), int(part[-1]) + 1))
