"""Why a task ran, or did not, as far as its store remembers.

A store keeps of each task the latest run and up to where all dues are answered, and nothing of how that came
about. So the answers here are less precise than those from a trace, and say so.
"""

from dataclasses import replace
from datetime import datetime, tzinfo

from duly.core.task import Task, anchor_us
from duly.formatting import spelled_length
from duly.instant import MINUTE_US
from duly.verify.dues import NEVER_US, AnchoredDues, Dues, instant_us, minute_start_us
from duly.verify.reasons.answers import (
    Answer,
    Kind,
    Skip,
    Words,
    minute_of,
    neighbours,
    neighbours_text,
    no_due,
    skipped_answer,
)
from duly.verify.reasons.chronicle import Ending, TracedRun, latest

_HINT = "A store keeps only the latest run of a task; record a trace to know more."


class TaskMemory:
    """What a store says of one task at *now_us*."""

    def __init__(self, task: Task, zone: tzinfo, now_us: int) -> None:
        self._task = task
        self._zone = zone
        self._now_us = now_us
        self._words = Words(zone)
        dues = Dues(task.schedule.text, zone)
        self._dues = AnchoredDues(dues, anchor_us(task))
        self._begins_us = (
            minute_start_us(task.registered_us, zone) if dues.is_by_minute else anchor_us(task) + 1
        )
        self._run = _run(task)

    def why(self, at: datetime | None = None) -> Answer:
        """Why it ran or did not run in the minute of *at*, or of its latest due."""
        if at is None:
            found = latest(self._dues, self._begins_us - 1, self._now_us)
            return self._with_runs(
                self._due(found[-1]) if found else self._ahead(self._dues.after(self._now_us))
            )
        minute = minute_of(at, self._zone)
        if isinstance(minute, Skip):
            return self._with_runs(
                skipped_answer(minute, self._task.name, self._task.schedule.text, self._zone)
            )
        return self._with_runs(self._minute(minute))

    def why_latest(self, count: int, at: datetime | None = None) -> list[Answer]:
        until_us = self._now_us
        if at is not None:
            until_us = min(
                until_us, instant_us(at if at.tzinfo is not None else at.replace(tzinfo=self._zone))
            )
        found = latest(self._dues, self._begins_us - 1, max(until_us, self._begins_us - 1), count)
        return [self._with_runs(self._due(due_us)) for due_us in found]

    def _with_runs(self, answer: Answer) -> Answer:
        minute_us, run = answer.minute_us, self._run
        is_there = (
            run is not None and minute_us is not None and minute_us <= run.started_us < minute_us + MINUTE_US
        )
        runs = (run,) if run is not None and is_there else ()
        return replace(answer, cron=self._task.schedule.text, runs=runs, is_from_store=True)

    def _minute(self, minute_us: int) -> Answer:
        due_us = self._dues.after(max(minute_us, self._begins_us) - 1)
        is_due = due_us < minute_us + MINUTE_US
        if minute_us > self._now_us or (is_due and due_us > self._now_us):
            return self._ahead(due_us if is_due else minute_us)
        if minute_us + MINUTE_US <= self._begins_us:
            since, at_us = "its registration is of", self._task.registered_us
            if self._task.schedule.is_from_end:
                since, at_us = "its dues count from the end of its last run,", anchor_us(self._task)
            at, since_at = self._words.time(minute_us), self._words.time(at_us)
            said = f"is not known to the store at {at}: {since} {since_at}"
            times = {"registered": at_us}
            return self._answer(Kind.NOT_REGISTERED, minute_us, said, "registered later", times)
        if is_due:
            return self._due(due_us)
        answer = no_due(self._task.name, self._task.schedule.text, minute_us, self._zone)
        assert answer is not None
        return answer

    def _due(self, due_us: int) -> Answer:
        task = self._task
        reach_us = max(task.answered_us, task.last_attempt_us or task.answered_us)
        is_last = self._dues.after(due_us) > reach_us
        if due_us > task.answered_us or (task.due_stands and is_last):
            return self._pending(due_us)
        if self._run is not None and is_last:
            return self._answered(due_us, self._run)
        return self._answered_before(due_us)

    def _answered(self, due_us: int, run: TracedRun) -> Answer:
        late_us = max(run.started_us - due_us, 0)
        late = f", {spelled_length(late_us)} late," if late_us >= 1_000_000 else ""
        started = f"the run at {self._words.clock(run.started_us, due_us)}{late} answered it"
        answer = self._answer(
            Kind.ANSWERED, due_us, f"was due at {self._words.time(due_us)}, and {started}", "last run"
        )
        ends = (self._task.last_success_us, self._task.last_failure_us)
        was_other = any(end_us is not None and due_us <= end_us < run.started_us for end_us in ends)
        if not was_other and late_us < MINUTE_US:
            return replace(answer, run=run, late_us=late_us)
        doubt = f"Perhaps an earlier run did, and this one had another cause. {_HINT}"
        return replace(answer, run=run, late_us=late_us, details=(doubt,), is_perhaps=True)

    def _answered_before(self, due_us: int) -> Answer:
        said = f"was due at {self._words.time(due_us)}, and a run before its latest one answered it"
        return replace(self._answer(Kind.ANSWERED, due_us, said, "earlier run"), details=(_HINT,))

    def _pending(self, due_us: int) -> Answer:
        task, reason = self._task, "running"
        since_us = task.running_since_us
        if since_us is not None:
            since = self._words.clock(since_us, due_us)
            rest, times = (
                f"it is running since {since} (unless its scheduler died)",
                {"running_since": since_us},
            )
        elif task.paused:
            rest, times, reason = "it is paused", {}, "paused"
        else:
            rest, times, reason = "a start is owed as soon as its scheduler is up", {}, "waiting"
        said = f"was due at {self._words.time(due_us)}, and no start has answered it yet: {rest}"
        return self._answer(Kind.PENDING, due_us, said, reason, times)

    def _ahead(self, minute_us: int) -> Answer:
        if minute_us >= NEVER_US:
            return self._answer(Kind.AHEAD, None, "is never due again", "never again")
        is_due = self._dues.after(minute_us - 1) == minute_us
        around = neighbours(self._dues, minute_us)
        what = "is due" if is_due else "is not due"
        said = f"{what} at {self._words.time(minute_us)}, which is yet to come"
        answer = self._answer(Kind.AHEAD, minute_us, said, "yet to come", around)
        return answer if is_due else replace(answer, details=neighbours_text(around, self._words))

    def _answer(
        self, kind: Kind, minute_us: int | None, said: str, reason: str, times: dict[str, int] | None = None
    ) -> Answer:
        return Answer(
            kind, self._task.name, f'"{self._task.name}" {said}.', minute_us, reason, times=times or {}
        )


def _run(task: Task) -> TracedRun | None:
    """The latest run, and what became of it."""
    began_us = task.last_attempt_us
    if began_us is None:
        return None
    if task.running_since_us is not None:
        return TracedRun(began_us)
    for ending, end_us in ((Ending.OK, task.last_success_us), (Ending.FAILED, task.last_failure_us)):
        if end_us is not None and end_us >= began_us:
            return TracedRun(began_us, ending=ending, ended_us=end_us)
    return TracedRun(began_us, ending=Ending.CUT_OFF if task.interrupted else Ending.UNKNOWN)
