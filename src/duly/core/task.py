"""A task and how it changes: registered, started, called, ended, moved to a new time.

Each change is a function from a task to a new task. The causes of spec/scheduler.md 3.1 are not flags that
somebody must remember to set and clear. Most follow from times:

  cron, startup   `due_us`, the first due after `answered_us`, has come (or `due_stands`: it had come before
                  the clock was set back)
  retry           `retry_at_us` has come
  manual          `requested_us`: somebody has asked for a run
  interrupted     `interrupted`: the process died while the task was running

`answered_us` is the heart of it: every due up to there has been answered by a start (or came before the
task was registered). It only moves forward, so no minute is answered twice; and since it is one number, a
downtime of ten years costs what a downtime of a minute costs.
"""

import msgspec

from duly.core.options import DEFAULT, Options, retry_at_us
from duly.core.timetable import Timetable
from duly.instant import EARLIEST_US, NEVER_US, SECOND_US, Instant

STEP_TOLERATED_US = 5 * 60 * SECOND_US
"""A clock set back by up to this much brings no minute a second time (spec/scheduler.md 2.4)."""

_PACE_FIRST_US = 1_000
_PACE_LIMIT_US = SECOND_US


class Task(msgspec.Struct, frozen=True, gc=False):
    """Everything known of one task. A store keeps all of it but `schedule` and `due_us`."""

    id: int
    name: str
    schedule: Timetable
    retry_delay_us: int
    registered_us: Instant
    answered_us: Instant
    due_us: Instant
    """The first due that no start has answered; in the past when one is owed."""
    last_attempt_us: Instant | None = None
    last_success_us: Instant | None = None
    last_failure_us: Instant | None = None
    retry_at_us: Instant | None = None
    retry_count: int = 0
    interrupted: bool = False
    due_stands: bool = False
    """A due stands whose minute lies ahead again, because the clock was set back over it."""
    running_since_us: Instant | None = None
    origin_us: Instant | None = None
    """When the latest run began, or, if it continues a run that a crash cut off, when that one began. By it
    work that runs elsewhere for the task is found again."""
    paused: bool = False
    """Nothing starts it. What is due meanwhile, or asked for, stands until it goes on."""
    requested_us: Instant | None = None
    """When somebody asked for a run that has not begun."""
    scheduler_id: str = ""
    """The identifier of the scheduler that wrote the task."""
    entry: str | None = None
    """The kind and the arguments of a task that was added at run time (`core/entries.py`)."""
    options: Options = DEFAULT
    """As the latest list or its kind has them; no store keeps them."""


_replace = msgspec.structs.replace


def registered(
    *,
    id: int,  # noqa: A002 (the word for it)
    name: str,
    schedule: Timetable,
    retry_delay_us: int,
    now_us: Instant,
    minute_us: Instant,
    scheduler_id: str = "",
    before: Task | None = None,
    live_us: Instant | None = None,
    entry: str | None = None,
    options: Options = DEFAULT,
) -> Task:
    """A task as it is when first registered, or overridden, in the civil minute that began at *minute_us*.

    The running minute still counts: if it matches, the task is due at once (the startup cause). Of the task
    *before* it keeps the id and what does not depend on its configuration. *live_us* is when the run of that
    name began that is in flight.
    """
    answered_us = minute_us - 1 if schedule.is_by_minute else now_us
    return Task(
        id=id if before is None else before.id,
        name=name,
        schedule=schedule,
        retry_delay_us=retry_delay_us,
        registered_us=now_us,
        answered_us=answered_us,
        due_us=schedule.due_after(answered_us, now_us),
        interrupted=before is not None and before.interrupted,
        running_since_us=live_us,
        origin_us=live_us if before is None else before.origin_us,
        paused=before is not None and before.paused,
        requested_us=None if before is None else before.requested_us,
        scheduler_id=scheduler_id,
        entry=entry,
        options=options,
    )


def started(task: Task, now_us: Instant, *, is_retry: bool) -> Task:
    """The task with a run begun: one start answers every cause that stands."""
    # max: after the clock was set back a little, what was answered stays answered.
    answered_us = max(task.answered_us, now_us)
    return Task(
        task.id,
        task.name,
        task.schedule,
        task.retry_delay_us,
        task.registered_us,
        answered_us,
        due_after(task, answered_us),
        now_us,
        task.last_success_us,
        task.last_failure_us,
        None,
        task.retry_count + 1 if is_retry else 0,
        False,
        False,
        now_us,
        origin_of(task, now_us),
        task.paused,
        None,
        task.scheduler_id,
        task.entry,
        task.options,
    )


def due_after(task: Task, answered_us: Instant) -> Instant:
    """The first due of a task that is later than *answered_us*."""
    return task.schedule.due_after(answered_us, anchor_us(task))


def anchor_us(task: Task) -> Instant:
    """Where the schedule of a task counts from: its registration, or the end of its last run."""
    if not task.schedule.is_from_end:
        return task.registered_us
    return max(task.registered_us, task.last_success_us or EARLIEST_US, task.last_failure_us or EARLIEST_US)


def origin_of(task: Task, now_us: Instant) -> Instant:
    """The origin of the run that begins at *now_us*; *task* does not have that run yet.

    It is the instant of the cause, not of the start. If a database forgets a start, the same run starts again
    from the same state and has the same origin. No two other runs share one.
    """
    if task.interrupted and task.origin_us is not None:
        return task.origin_us
    cause_us = now_us
    if task.due_us <= now_us and task.options.enabled:
        # The minute of the registration began before it: the cause of its run is the registration itself.
        cause_us = min(max(task.due_us, task.registered_us), now_us)
    elif task.requested_us is not None and not task.due_stands:
        cause_us = min(task.requested_us, now_us)
    elif task.retry_at_us is not None and not task.due_stands:
        cause_us = min(task.retry_at_us, now_us)
    # Not later than the last origin, as after the clock was set back: then the start itself names the run.
    return cause_us if task.origin_us is None or cause_us > task.origin_us else now_us


def called(task: Task, now_us: Instant) -> Task:
    """The task at the moment its callback is called, a little after its start was written.

    A minute that began in between is answered by this very call; to start again for it would be one run
    too many (S1d, spec/model.md 5).
    """
    if now_us < task.due_us and not task.due_stands:
        return task
    return answered(task, now_us)


def answered(task: Task, now_us: Instant) -> Task:
    """The task with every due up to *now_us* answered."""
    answered_us = max(task.answered_us, now_us)
    return _replace(task, answered_us=answered_us, due_us=due_after(task, answered_us), due_stands=False)


def succeeded(task: Task, now_us: Instant) -> Task:
    """The task after a run that ended well: no retry is pending."""
    task = _replace(task, running_since_us=None, last_success_us=now_us, retry_at_us=None, retry_count=0)
    return task if not task.schedule.is_from_end else counted_anew(task)


def failed(task: Task, now_us: Instant, *, is_given_up: bool = False) -> Task:
    """The task after a run that failed: a retry falls due after the delay, unless it is given up."""
    at_us = None if is_given_up else retry_at_us(task.options, task.retry_delay_us, task.retry_count, now_us)
    task = _replace(task, running_since_us=None, last_failure_us=now_us, retry_at_us=at_us)
    return task if not task.schedule.is_from_end else counted_anew(task)


def counted_anew(task: Task) -> Task:
    """The task with the due that follows from the end of its run."""
    return _replace(task, due_us=due_after(task, task.answered_us))


def requested(task: Task, now_us: Instant) -> Task:
    """The task with a run that somebody has asked for; a second request before it begins adds nothing."""
    return _replace(task, requested_us=now_us) if task.requested_us is None else task


def with_pause(task: Task, *, paused: bool) -> Task:
    """The task at rest, or going on."""
    return _replace(task, paused=paused)


def with_options(task: Task, options: Options) -> Task:
    """The task with the options of the latest list."""
    return task if task.options is options or task.options == options else _replace(task, options=options)


def redefined(task: Task, like: Task) -> Task:
    """The task with what has been said of *like*, which has the same schedule and an older state."""
    after = _replace(task, retry_delay_us=like.retry_delay_us, entry=like.entry, options=like.options)
    return task if after == task else after


def released(task: Task) -> Task:
    """The task after the end of a run begun under an older registration, which says nothing of this one."""
    return _replace(task, running_since_us=None)


def cut_off(task: Task) -> Task:
    """The task as a new process finds it: if it was running, it was interrupted."""
    if task.running_since_us is None:
        return task
    return _replace(task, running_since_us=None, interrupted=True)


def resumed(task: Task, since_us: Instant) -> Task:
    """The task with a run that began at *since_us*, which it does not have yet, and goes on.

    If that run began under this registration, it has answered what was due then.
    """
    if since_us < task.registered_us:
        return _replace(task, running_since_us=since_us)
    answered_us = max(task.answered_us, since_us)
    return _replace(
        task,
        answered_us=answered_us,
        due_us=due_after(task, answered_us),
        last_attempt_us=since_us,
        retry_at_us=None,
        interrupted=False,
        due_stands=False,
        running_since_us=since_us,
        origin_us=origin_of(task, since_us),
    )


def set_back(task: Task, before_us: Instant, after_us: Instant) -> Task:
    """The task after the clock was set back from *before_us* to *after_us* (spec/scheduler.md 2.4).

    What stood before stands still, though its minute may lie ahead again. After a small step the minutes up
    to *before_us* have been had and come no second time; after a large one dues start over.
    """
    if task.retry_at_us is not None and task.retry_at_us <= before_us:
        task = _retry_standing(task, after_us)
    due_stands = task.due_stands or task.due_us <= before_us
    if before_us - after_us > STEP_TOLERATED_US:
        return _replace(moved_back(task, after_us), due_stands=due_stands)
    if not due_stands:
        return task
    answered_us = max(task.answered_us, before_us)
    return _replace(task, answered_us=answered_us, due_us=due_after(task, answered_us), due_stands=True)


def _retry_standing(task: Task, now_us: Instant) -> Task:
    """The task with a retry that had fallen due, and is due still under a clock that was set back."""
    assert task.retry_at_us is not None
    last_failure_us = now_us if task.last_failure_us is None else min(task.last_failure_us, now_us)
    return _replace(task, retry_at_us=min(task.retry_at_us, now_us), last_failure_us=last_failure_us)


def moved_back(task: Task, to_us: Instant) -> Task:
    """The task as it is under a clock that was far ahead and now reads *to_us*: dues start over from there.

    Nothing waits for a future that was a mistake; a retry is due no later than its delay from now.
    """
    is_from_end = task.schedule.is_from_end
    pending_us, last_success_us, last_failure_us = (
        task.retry_at_us,
        task.last_success_us,
        task.last_failure_us,
    )
    if last_failure_us is not None and (pending_us is not None or is_from_end):
        last_failure_us = min(last_failure_us, to_us)
    if last_success_us is not None and is_from_end:
        last_success_us = min(last_success_us, to_us)
    if pending_us is not None:
        delayed_us = retry_at_us(task.options, task.retry_delay_us, task.retry_count, to_us)
        pending_us = min(pending_us, to_us if delayed_us is None else delayed_us)
    return counted_anew(
        _replace(
            task,
            registered_us=min(task.registered_us, to_us - 1),
            answered_us=min(task.answered_us, to_us - 1),
            last_success_us=last_success_us,
            last_failure_us=last_failure_us,
            retry_at_us=pending_us,
        )
    )


def is_ahead_of_clock(task: Task, now_us: Instant) -> bool:
    """Whether the task was last written under a clock that was far ahead of *now_us*."""
    return task.answered_us > now_us + STEP_TOLERATED_US


def retry_ready_us(task: Task) -> Instant:
    """When a pending retry may start; NEVER_US when none is pending.

    A task that fails at once with no delay would otherwise be retried without end within one instant. The
    first retry comes with its delay alone, later ones at least 2 ms, 4 ms, 8 ms ... 1 s after the failure.
    """
    if task.retry_at_us is None:
        return NEVER_US
    if task.retry_count == 0 or task.last_failure_us is None:
        return task.retry_at_us
    # The shift is bounded too: a count of a million retries must not make a huge number.
    pace_us = min(_PACE_FIRST_US << min(task.retry_count, 20), _PACE_LIMIT_US)
    return max(task.retry_at_us, task.last_failure_us + pace_us)


def wakes_us(task: Task) -> Instant:
    """The instant at which the task next needs a look, if nothing else happens to it."""
    if task.paused or task.options.is_of_unknown_kind:
        return NEVER_US
    is_due = task.due_stands and task.options.enabled
    if task.interrupted or is_due or task.requested_us is not None:
        return EARLIEST_US
    due_us = task.due_us if task.options.enabled else NEVER_US
    return due_us if task.retry_at_us is None else min(due_us, retry_ready_us(task))
