"""Why a task ran, or did not run, at a given minute: every due has exactly one answer.

The answers are worked out from what a trace shows; nothing is written down per due. Of several that fit, one
is given: down before running, running before missed, missed before answered. Where the trace leaves open what
the scheduler remembered (docs/decisions/0011) the answer says "perhaps".
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from duly.formatting import spelled_length
from duly.instant import MINUTE_US, SECOND_US
from duly.verify.dues import NEVER_US, Dues, instant_us
from duly.verify.reasons.answers import (
    Answer,
    Kind,
    Skip,
    UnknownTaskError,
    Words,
    count_text,
    minute_of,
    no_due,
    skipped_answer,
)
from duly.verify.reasons.chronicle import (
    MOST_COUNTED,
    Arrivals,
    Chronicle,
    Downtime,
    DueQuery,
    Tenure,
    TracedRun,
    has_known_dues,
    latest,
)
from duly.verify.trace import Trace, zone_of

_DOWN_WORDS = {
    "not initialized": "had not been initialized yet",
    "stopped": "had been stopped at {since}",
    "crashed": "had crashed at {since}",
    "initialize failed": "was down because initialize had failed at {since}",
}


def why(trace: Trace, task: str, at: datetime | None = None) -> Answer:
    """Why *task* ran or did not run in the minute of *at*, or of its latest due. Raises UnknownTaskError."""
    zone = zone_of(trace.header.tz)
    if at is None:
        return _Explainer(_chronicle_of(trace, task, DueQuery())).latest()
    minute = minute_of(at, zone)
    if isinstance(minute, Skip):
        explainer = _Explainer(_chronicle_of(trace, task, DueQuery(minute.at_us)))
        return skipped_answer(minute, task, explainer.cron_at(minute.at_us), zone)
    return _Explainer(_chronicle_of(trace, task, DueQuery(minute))).minute(minute)


def why_latest(trace: Trace, task: str, count: int, at: datetime | None = None) -> list[Answer]:
    """The answers for the *count* latest dues up to *at*, the latest last. Raises UnknownTaskError."""
    until_us = NEVER_US
    if at is not None:
        zone = zone_of(trace.header.tz)
        until_us = instant_us(at if at.tzinfo is not None else at.replace(tzinfo=zone))
    asked = DueQuery(until_us=until_us, count=count)
    return _Explainer(_chronicle_of(trace, task, asked)).dues(until_us, count)


def _chronicle_of(trace: Trace, task: str, asked: DueQuery) -> Chronicle:
    chronicle = Chronicle(trace.header, task, asked)
    chronicle.follow(trace)
    if not chronicle.is_known:
        raise UnknownTaskError(task, chronicle.names)
    return chronicle


class _Circumstance(NamedTuple):
    kind: Kind
    reason: str
    words: str = ""
    """Part of a sentence."""
    times: Mapping[str, int] = MappingProxyType({})


class _Explainer:
    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle = chronicle
        self._task = chronicle.task_id
        self._words = Words(chronicle.zone)

    def _answer(self, kind: Kind, sentence: str, minute_us: int | None, reason: str, **more: Any) -> Answer:
        return Answer(kind, self._task, sentence, minute_us, reason, **more)

    # --- which dues ---

    def latest(self) -> Answer:
        if not self._chronicle.arrivals:
            return self._never_due()
        arrivals = self._chronicle.arrivals[-1]
        due_us = latest(arrivals.dues, arrivals.first_us - 1, arrivals.to_us)[-1]
        return self._with_runs(self._due(arrivals, due_us))

    def minute(self, minute_us: int) -> Answer:
        if self._chronicle.arrivals:
            arrivals = self._chronicle.arrivals[-1]
            due_us = arrivals.dues.after(max(minute_us, arrivals.first_us) - 1)
            return self._with_runs(self._due(arrivals, due_us))
        return self._with_runs(self._no_due(minute_us))

    def dues(self, until_us: int, count: int) -> list[Answer]:
        """The answers for the latest dues. One that came again after the clock was set back counts twice."""
        answers: list[Answer] = []
        for arrivals in reversed(self._chronicle.arrivals):
            to_us, left = min(arrivals.to_us, until_us), count - len(answers)
            found = latest(arrivals.dues, arrivals.first_us - 1, to_us, left) if left else []
            answers += [self._with_notes(self._due(arrivals, due_us)) for due_us in reversed(found)]
        return answers[::-1]

    def cron_at(self, at_us: int) -> str | None:
        """The cron text that the task had in the minute of *at_us*; one of them if that is not certain."""
        crons = chain.from_iterable(tenure.crons for tenure in self._tenures_at(at_us))
        return next((cron for cron in crons if cron is not None), None)

    def _tenures_at(self, at_us: int) -> list[Tenure]:
        """What was registered in a minute, the latest first."""
        return [
            tenure
            for tenure in reversed(self._chronicle.tenures)
            if tenure.since_us < at_us + MINUTE_US and tenure.until_us > at_us
        ]

    def _with_runs(self, answer: Answer) -> Answer:
        return self._with_notes(replace(answer, runs=tuple(self._chronicle.runs)))

    def _with_notes(self, answer: Answer) -> Answer:
        if not self._chronicle.has_faults:
            return answer
        note = "The trace itself has faults, which may mislead this answer; duly verify lists them."
        return replace(answer, is_perhaps=True, details=(*answer.details, note))

    # --- a due ---

    def _due(self, arrivals: Arrivals, due_us: int) -> Answer:
        pending = arrivals.pending
        if pending.cleared_us is not None:
            answer = self._answer_of_cleared(arrivals, due_us, pending.cleared_us)
        elif pending.run is None:
            answer = self._pending(due_us)
        else:
            answer = self._answer_by_run(arrivals, due_us, pending.run)
        return self._with_doubts(arrivals, due_us, replace(answer, cron=arrivals.dues.text))

    def _with_doubts(self, arrivals: Arrivals, due_us: int, answer: Answer) -> Answer:
        """The answer with what is not certain of it."""
        pending, doubts = arrivals.pending, []
        if due_us < arrivals.certain_us:
            doubts.append("Perhaps it did not count: the trace leaves open what was registered then.")
        if pending.perhaps_cleared_us is not None:
            at = self._words.time(pending.perhaps_cleared_us)
            doubts.append(f"Perhaps the list of the initialize at {at}, of which it is not known whether it")
            doubts[-1] += " took effect, had cleared it."
        elif pending.is_doubtful and not doubts:
            doubts.append("Perhaps it no longer stood: the trace leaves open what was remembered.")
        if not doubts:
            return answer
        return replace(answer, is_perhaps=True, details=(*answer.details, *doubts))

    def _answer_by_run(self, arrivals: Arrivals, due_us: int, run: TracedRun) -> Answer:
        count = arrivals.pending.count
        late_us = run.started_us - due_us
        kind, reason, why_not, times = self._circumstance(arrivals, due_us)
        started = f"the run at {self._words.clock(run.started_us, due_us)}"
        if late_us < 0:
            late = ", after the clock was set back,"
        elif late_us < SECOND_US:
            late = ""
        else:
            late = f", {spelled_length(late_us)} {'late' if kind is Kind.ANSWERED else 'later'},"
        others = count - 1 if count <= MOST_COUNTED else count
        what = f"this and {count_text(others, 'other due')}" if others else "it"
        due = f'"{self._task}" was due at {self._words.time(due_us)}{why_not}'
        sentence = f"{due}, and {started}{late} answered {what}."
        answer = self._answer(kind, sentence, due_us, reason, times=times)
        return replace(answer, run=run, late_us=max(late_us, 0), dues_answered=count)

    def _circumstance(self, arrivals: Arrivals, due_us: int) -> "_Circumstance":
        """What a due that a start has answered is, and what was the matter when it came."""
        if arrivals.down is not None:
            down = arrivals.down
            up = (
                "" if down.until_us is None else f", and was up at {self._words.clock(down.until_us, due_us)}"
            )
            said = f" while the scheduler was down (it {self._down_since(down, due_us)}{up})"
            return _Circumstance(Kind.DOWN, down.reason, said, _down_times(down))
        if arrivals.run is not None:
            said = f" while {self._running(arrivals.run, due_us)}"
            return _Circumstance(Kind.MERGED, "running", said, {"running_since": arrivals.run.started_us})
        if arrivals.rest:
            return _Circumstance(Kind.MERGED, arrivals.rest, f" while it was {arrivals.rest}")
        if arrivals.jump is not None:
            before, after = (self._words.clock(at_us, due_us) for at_us in arrivals.jump)
            jump = f"the clock went from {before} to {after} at once"
            said = f" while {jump} (the host slept, or the clock was set)"
            times = dict(zip(("jumped_from", "jumped_to"), arrivals.jump, strict=True))
            return _Circumstance(Kind.MERGED, "clock jumped", said, times)
        if due_us < arrivals.pending.last_us:
            said, times = ", no start came before the next due", {"last_due": arrivals.pending.last_us}
            return _Circumstance(Kind.MERGED, "several dues", said, times)
        if arrivals.init is not None:
            _, end_us = arrivals.init
            said = f", registered at {self._words.clock(end_us, due_us)} within that minute"
            return _Circumstance(Kind.ANSWERED, "registration", said, {"registered": end_us})
        return _Circumstance(Kind.ANSWERED, "on time")

    def _down_since(self, down: Downtime, due_us: int) -> str:
        since = self._words.clock(down.since_us, due_us)
        if down.is_inferred:
            return f"had crashed, last heard of at {since}"
        return _DOWN_WORDS[down.reason].format(since=since)

    def _running(self, run: TracedRun, due_us: int) -> str:
        since = self._words.clock(run.started_us, due_us)
        if run.is_from_before:
            return f"it was running (since before the trace, which begins at {since})"
        return f"it was running (since {since})"

    def _pending(self, due_us: int) -> Answer:
        chronicle, words = self._chronicle, self._words
        end = words.clock(chronicle.now_us, due_us)
        if chronicle.down is not None:
            reason, times = chronicle.down.reason, _down_times(chronicle.down)
            rest = f"the scheduler {self._down_since(chronicle.down, due_us)}"
        elif chronicle.in_flight:
            run = next(iter(chronicle.in_flight.values()))
            reason, times = "running", {"running_since": run.started_us}
            rest = f"{self._running(run, due_us)} and starts again when that run has ended"
        else:
            reason, times, rest = "waiting", {}, "a start is owed"
            if chronicle.rest:
                reason, rest = chronicle.rest, f"it was {chronicle.rest}"
        sentence = (
            f'"{self._task}" was due at {words.time(due_us)}, and no start had answered it '
            f"when the trace ends, at {end}: {rest}."
        )
        return self._answer(Kind.PENDING, sentence, due_us, reason, times={**times, "end": chronicle.now_us})

    def _answer_of_cleared(self, arrivals: Arrivals, due_us: int, cleared_us: int) -> Answer:
        at = self._words.clock(cleared_us, due_us)
        reason, what = "changed", f"its registration was changed at {at}"
        if arrivals.pending.is_removed:
            reason, what = "removed", f"the task was removed at {at}"
        if arrivals.pending.is_too_old:
            reason, what = "too old", f"it was given up at {at}: it was too old"
        sentence = (
            f'"{self._task}" was due at {self._words.time(due_us)}, and before any start answered it {what}.'
        )
        return self._answer(Kind.CLEARED, sentence, due_us, reason, times={"cleared": cleared_us})

    # --- no due ---

    def _no_due(self, minute_us: int) -> Answer:
        chronicle, at = self._chronicle, self._words.time(minute_us)
        if chronicle.first_us is None or minute_us + MINUTE_US <= chronicle.first_us:
            return self._before(minute_us)
        cron = self.cron_at(min(minute_us, chronicle.now_us))
        if minute_us > chronicle.now_us:
            end = self._words.time(chronicle.now_us)
            sentence = f'What "{self._task}" did at {at} is not known: the trace ends before, at {end}.'
            times = {"end": chronicle.now_us}
            return self._answer(Kind.AHEAD, sentence, minute_us, "after the trace", cron=cron, times=times)
        if cron is None:
            return self._not_registered(minute_us)
        answer = no_due(self._task, cron, minute_us, chronicle.zone)
        if answer is None:
            sentence = f'"{self._task}" was not due at {at}: the clock had been set back over that minute.'
            return self._answer(Kind.NOT_DUE, sentence, minute_us, "clock set back", cron=cron)
        return self._by_another_text(answer, minute_us) if answer.kind is Kind.NOT_DUE else answer

    def _before(self, minute_us: int) -> Answer:
        first_us = self._chronicle.first_us
        begins = f"begins after it, at {self._words.time(first_us)}" if first_us is not None else "is empty"
        at = self._words.time(minute_us)
        sentence = f'What "{self._task}" did at {at} is not known: the trace {begins}.'
        times = {"begin": first_us} if first_us is not None else {}
        details = ("If there are older files of the same trace, give them too, the oldest first.",)
        reason = "before the trace"
        return self._answer(Kind.NOT_REGISTERED, sentence, minute_us, reason, times=times, details=details)

    def _not_registered(self, minute_us: int) -> Answer:
        times, details = {}, []
        for tenure in self._chronicle.tenures:
            if set(tenure.crons) != {None} and tenure.until_us <= minute_us:
                times["registered_until"] = tenure.until_us
                details.append(f"It had been registered until {self._words.time(tenure.until_us)}.")
            elif set(tenure.crons) != {None} and tenure.since_us > minute_us:
                times["registered_from"] = tenure.since_us
                details.append(f"It was registered from {self._words.time(tenure.since_us)} on.")
        at, reason = self._words.time(minute_us), "not in the list"
        sentence = f'"{self._task}" was not due at {at}: it was not in the list in effect then.'
        return self._answer(
            Kind.NOT_REGISTERED, sentence, minute_us, reason, times=times, details=tuple(details)
        )

    def _by_another_text(self, answer: Answer, minute_us: int) -> Answer:
        """The answer, unless the task had at another time a cron text that names the minute."""
        others = {
            cron: tenure for tenure in self._chronicle.tenures for cron in tenure.crons if cron is not None
        }
        others.pop(answer.cron or "", None)
        for cron, tenure in others.items():
            dues = Dues(cron, self._chronicle.zone)
            if not dues.is_from_anchor and dues.has(minute_us):
                since, until = (
                    self._words.time(us) if us < NEVER_US else "" for us in (tenure.since_us, tenure.until_us)
                )
                when = f"from {since} on" if tenure.since_us > minute_us else f"until {until}"
                sentence = (
                    f'"{self._task}" was not due at {self._words.time(minute_us)}: its cron text was '
                    f'"{answer.cron}" then, and "{cron}" only {when}.'
                )
                reason = "another cron text"
                return replace(answer, kind=Kind.NOT_REGISTERED, sentence=sentence, reason=reason)
        return answer

    def _never_due(self) -> Answer:
        chronicle = self._chronicle
        cron = self.cron_at(chronicle.now_us)
        if cron is None:
            return self._not_registered(chronicle.now_us)
        known = filter(has_known_dues, chronicle.worlds)
        due_us = min((world.due_after(chronicle.now_us)[0] for world in known), default=NEVER_US)
        rest = f"; it is next due at {self._words.time(due_us)}" if due_us < NEVER_US else ""
        end = self._words.time(chronicle.now_us)
        sentence = f'"{self._task}" was not due in this trace, which ends at {end}{rest}.'
        minute_us = due_us if due_us < NEVER_US else None
        times = {"end": chronicle.now_us}
        return self._answer(Kind.AHEAD, sentence, minute_us, "never due in the trace", cron=cron, times=times)


def _down_times(down: Downtime) -> dict[str, int]:
    since = {"down_since": down.since_us}
    return since if down.until_us is None else since | {"down_until": down.until_us}
