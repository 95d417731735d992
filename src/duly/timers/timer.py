"""A timer and how it changes: declared, fired, missed, ended, moved to a new time.

Each change is a function from a state to a new one, as for tasks (`core.task`), and the heart is the same:
every slot up to `answered_us` was fired, missed, or came before the timer was declared. Slots are civil time
and live in the store. The other three triggers are lengths of time from something that happened, kept in
memory as deadlines; when the wall clock is stepped they are moved with it.

What is due, and why, is in `dues`; this module only says what becomes of a timer then.
"""

import math

import msgspec

from duly.config.schema import Timer
from duly.core.causes import Reason
from duly.core.task import STEP_TOLERATED_US
from duly.instant import LATEST_US, NEVER_US, SECOND_US, Instant
from duly.store.history import Result
from duly.supervisor.results import RunResult
from duly.timers.calendar import Calendars, slot_after


class TimerState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of one timer. What a store keeps of it is in `record`."""

    id: int
    name: str
    definition: Timer
    text: str
    """The definition as it was when the timer was last declared again: another text is another timer."""
    calendars: Calendars = ()
    order: int = 0
    """Its place in the configuration: timers due together fire in this order."""

    registered_us: Instant
    answered_us: Instant
    slot_us: Instant
    """The first slot that nothing has answered; in the past when it is being looked at."""
    last_run_us: Instant | None = None
    last_success_us: Instant | None = None
    last_failure_us: Instant | None = None
    last_exit: int | None = None
    last_result: str | None = None
    last_missed_us: Instant | None = None
    last_miss_reason: str | None = None
    enabled_override: bool | None = None
    """Switched on or off at run time; None: as declared."""
    interrupted: bool = False
    """A run was cut off by the end of the supervisor, and nothing has answered for it."""
    running_run: int | None = None
    running_since_us: Instant | None = None

    # From here on in memory only.
    running_reason: Reason | None = None
    running_at_us: Instant | None = None
    """The instant that the run under way answers."""
    last_run_id: int | None = None
    """The run that `last_run_us` speaks of."""
    anchor_us: Instant | None = None
    """What `on_unit_active_sec` counts from: the end of the target's last run, however that was started."""
    is_anchored_here: bool = False
    """That end was seen by this process, so it is moved when the clock is stepped."""
    startup_at_us: Instant | None = None
    startup_triggered: bool = False
    retry_attempt: int = 0
    retry_at_us: Instant | None = None
    triggered: bool = False
    """Somebody asks for a run now."""
    queued_us: Instant | None = None
    """What came due at that instant, while the target ran, stays due until it has ended (`overlap`)."""
    misses: int = 0
    """How many were noted in this session."""

    @property
    def target(self) -> str:
        return self.definition.target

    @property
    def lock(self) -> str:
        """What only one run may hold at a time: a lock that others share, or else the target."""
        return self.target if self.definition.lock is None else f"lock:{self.definition.lock}"

    @property
    def is_enabled(self) -> bool:
        """Whether it fires: as switched at run time, or else as declared."""
        return self.definition.enabled if self.enabled_override is None else self.enabled_override

    @property
    def last_attempt_us(self) -> Instant | None:
        """When its last run began: what the engine calls `last_run_us`."""
        return self.last_run_us


class Due(msgspec.Struct, frozen=True, gc=False):
    """Something to fire for: why, and the instant it came due."""

    reason: Reason
    at_us: Instant


_replace = msgspec.structs.replace

_SAID_OF_RUNS = (
    *("last_run_us", "last_success_us", "last_failure_us", "last_exit", "last_result"),
    *("last_missed_us", "last_miss_reason", "interrupted"),
)
_LONGEST_S = LATEST_US // SECOND_US


def span_us(seconds: float) -> int:
    """A length of time from the configuration; longer than all of time is as good as never."""
    return math.ceil(min(seconds, _LONGEST_S) * SECOND_US)


# --- when ---


def startup_us(timer: TimerState) -> Instant:
    """When the start-up trigger comes; NEVER_US when it has come, or there is none."""
    at_us = timer.startup_at_us
    return NEVER_US if at_us is None or timer.startup_triggered else at_us


def interval_us(timer: TimerState) -> Instant:
    """When the interval has passed since the last run of the target; NEVER_US when there was none.

    With `after_end` it counts from the registration then.
    """
    interval_sec, anchor_us = timer.definition.on_unit_active_sec, timer.anchor_us
    if anchor_us is None and timer.definition.after_end:
        anchor_us = timer.registered_us
    if interval_sec is None or anchor_us is None:
        return NEVER_US
    return anchor_us + span_us(interval_sec)


def retry_us(timer: TimerState) -> Instant:
    """When the pending retry comes; NEVER_US when there is none."""
    return NEVER_US if timer.retry_at_us is None else timer.retry_at_us


# --- what becomes of it ---


def answered(timer: TimerState, now_us: Instant) -> TimerState:
    """The timer with everything answered that is due at *now_us*, by a run or by a miss."""
    # max: after the clock was set back a little, what was answered stays answered.
    answered_us = max(timer.answered_us, now_us)
    has_retry = timer.retry_at_us is not None and timer.retry_at_us > now_us
    return _replace(
        timer,
        answered_us=answered_us,
        slot_us=slot_after(timer.calendars, answered_us, timer.registered_us),
        startup_triggered=timer.startup_triggered or startup_us(timer) <= now_us,
        interrupted=False,
        triggered=False,
        queued_us=None,
        retry_at_us=timer.retry_at_us if has_retry else None,
    )


def fired(timer: TimerState, due: Due, now_us: Instant, run_id: int) -> TimerState:
    """The timer with a run begun. Nothing of the run before it is left to be taken for this one's."""
    return _replace(
        answered(timer, now_us),
        last_run_us=now_us,
        last_run_id=run_id,
        last_exit=None,
        last_result=None,
        running_run=run_id,
        running_since_us=now_us,
        running_reason=due.reason,
        running_at_us=due.at_us,
        retry_at_us=None,
        retry_attempt=timer.retry_attempt if due.reason is Reason.RETRY else 0,
    )


def with_miss(timer: TimerState, at_us: Instant, reason: str) -> TimerState:
    """The timer with a miss noted, and nothing else changed."""
    return _replace(timer, last_missed_us=at_us, last_miss_reason=str(reason), misses=timer.misses + 1)


def missed(timer: TimerState, at_us: Instant, reason: str, now_us: Instant) -> TimerState:
    """The timer after a due at *at_us* that is not answered by a run, and will not be."""
    # An interval that was due counts again from here; else the same miss would be found at every look.
    is_interval_due = interval_us(timer) <= now_us
    return _replace(
        with_miss(answered(timer, now_us), at_us, reason),
        anchor_us=now_us if is_interval_due else timer.anchor_us,
        is_anchored_here=is_interval_due or timer.is_anchored_here,
    )


def passed_by(timer: TimerState, at_us: Instant, reason: str, now_us: Instant) -> TimerState:
    """The timer after a due that came while the supervisor stops: missed, and yet to be made up.

    What the store keeps as answered does not move, so the next start finds the slot and may catch up.
    """
    return _replace(
        with_miss(timer, at_us, reason),
        slot_us=slot_after(timer.calendars, max(timer.answered_us, now_us), timer.registered_us),
        startup_triggered=timer.startup_triggered or startup_us(timer) <= now_us,
    )


def called(timer: TimerState, now_us: Instant) -> TimerState:
    """The timer when its run is called, a moment after that was written: a slot in between is answered."""
    return timer if now_us < timer.slot_us else answered(timer, now_us)


def ended(
    timer: TimerState,
    how: RunResult,
    at_us: Instant,
    *,
    is_stopping: bool,
    may_retry: bool = True,
    is_of_target: bool = True,
    ahead_us: int = 0,
) -> TimerState:
    """The timer after its run. Only a job that said itself that it failed is retried (spec/timers.md 5.2).

    With *is_of_target* false the run was one of a target that the timer had before. What is counted from
    the end will yet be moved by *ahead_us*, for steps of the clock that came before it.
    """
    counted_us = at_us - ahead_us
    is_success = how.result is Result.SUCCESS
    is_failure = not is_success and how.result is not Result.INTERRUPTED
    timer = _replace(
        released(timer),
        last_exit=how.exit_code,
        last_result=how.result.value,
        last_success_us=at_us if is_success else timer.last_success_us,
        last_failure_us=at_us if is_failure else timer.last_failure_us,
        # One that a person stopped is not started again behind their back.
        interrupted=how.result is Result.INTERRUPTED and is_stopping,
        anchor_us=counted_us if is_of_target else timer.anchor_us,
        is_anchored_here=is_of_target or timer.is_anchored_here,
        retry_at_us=None,
        retry_attempt=0 if is_success else timer.retry_attempt,
    )
    if how.result is Result.EXIT and may_retry and timer.is_enabled:
        return _with_retry(timer, counted_us)
    return timer


def _with_retry(timer: TimerState, at_us: Instant) -> TimerState:
    intervals = timer.definition.retry_intervals_sec
    if timer.retry_attempt >= len(intervals):
        return timer
    retry_at_us = at_us + span_us(intervals[timer.retry_attempt])
    return _replace(timer, retry_at_us=retry_at_us, retry_attempt=timer.retry_attempt + 1)


def released(timer: TimerState) -> TimerState:
    """The timer without a run, of whose end it says nothing."""
    return _replace(timer, running_run=None, running_since_us=None, running_reason=None, running_at_us=None)


def refused(timer: TimerState, before: TimerState, reason: str, now_us: Instant) -> TimerState:
    """The timer whose target could not be started after all: as *before*, and missed."""
    at_us = now_us if timer.running_at_us is None else timer.running_at_us
    timer = missed(released(timer), at_us, reason, now_us)
    return _with_fields_of(before, timer, "last_run_us", "last_exit", "last_result")


def with_result(timer: TimerState, ended: TimerState) -> TimerState:
    """The timer with what the end of its run made of *ended*, which is the timer before a change."""
    return _with_fields_of(ended, timer, *_SAID_OF_RUNS)


def _with_fields_of(other: TimerState, timer: TimerState, *names: str) -> TimerState:
    return _replace(timer, **{name: getattr(other, name) for name in names})


def cut_off(timer: TimerState) -> TimerState:
    """The timer whose run nobody saw the end of: it was interrupted."""
    return _replace(released(timer), last_result=Result.INTERRUPTED.value, interrupted=True)


def target_ended(timer: TimerState, at_us: Instant) -> TimerState:
    """The timer after a run of its target that it may not have started: the interval counts from there."""
    return _replace(timer, anchor_us=at_us, is_anchored_here=True)


def switched(timer: TimerState, *, is_on: bool) -> TimerState:
    """The timer switched on or off at run time. One that is switched off has no retry pending."""
    # As the file has it is no override: then a later change of the file holds.
    override = None if is_on == timer.definition.enabled else is_on
    if is_on:
        return _replace(timer, enabled_override=override)
    return _replace(timer, enabled_override=override, retry_at_us=None, retry_attempt=0)


def switched_back(timer: TimerState, before: TimerState) -> TimerState:
    """The timer after a switch that could not be written: as it was *before*, as far as that goes."""
    return _with_fields_of(before, timer, "enabled_override", "retry_at_us", "retry_attempt")


def declared_anew(timer: TimerState, now_us: Instant) -> TimerState:
    """The timer after a change of its definition: what it did is kept, what it was about to do is not."""
    return _replace(
        timer,
        registered_us=now_us,
        answered_us=now_us,
        slot_us=slot_after(timer.calendars, now_us, now_us),
        retry_at_us=None,
        retry_attempt=0,
        triggered=False,
    )


# --- the clock ---


def stepped(timer: TimerState, before_us: Instant, after_us: Instant) -> TimerState:
    """The timer after the wall clock was set from *before_us* to *after_us*.

    A length of time stays one: deadlines move along. Slots are civil time and do not: those jumped over are
    due, those that come a second time after a small step back were answered. After a large one they count
    again.
    """
    by_us = after_us - before_us
    timer = _moved_by(timer, by_us)
    if not timer.is_anchored_here and timer.anchor_us is not None:
        anchor_us = _sane_anchor(timer.anchor_us, after_us)
        timer = timer if anchor_us == timer.anchor_us else _replace(timer, anchor_us=anchor_us)
    return moved_back(timer, after_us) if by_us < -STEP_TOLERATED_US else timer


def _moved_by(timer: TimerState, by_us: int) -> TimerState:
    startup_at_us, retry_at_us, anchor_us = timer.startup_at_us, timer.retry_at_us, timer.anchor_us
    if startup_at_us is not None:
        startup_at_us += by_us
    if retry_at_us is not None:
        retry_at_us += by_us
    if anchor_us is not None and timer.is_anchored_here:
        anchor_us += by_us
    if (startup_at_us, retry_at_us, anchor_us) == (timer.startup_at_us, timer.retry_at_us, timer.anchor_us):
        return timer
    return _replace(timer, startup_at_us=startup_at_us, retry_at_us=retry_at_us, anchor_us=anchor_us)


def _sane_anchor(anchor_us: Instant, now_us: Instant) -> Instant:
    """An anchor from another session: one from a clock that was far ahead would be waited for in vain."""
    return now_us if anchor_us > now_us + STEP_TOLERATED_US else anchor_us


def anchored(timer: TimerState, anchor_us: Instant | None, now_us: Instant) -> TimerState:
    """The timer with an anchor from the history, a wall time that perhaps another session wrote."""
    if anchor_us is not None:
        anchor_us = _sane_anchor(anchor_us, now_us)
    return _replace(timer, anchor_us=anchor_us, is_anchored_here=False)


def last_known_end_us(timer: TimerState, heard_us: Instant | None) -> Instant | None:
    """When the last run of the target ended, by the history or by what the timer itself knows.

    Of a run that was cut off where nobody could see it no more is known than when it began.
    """
    cut_off_us = timer.last_run_us if timer.interrupted else None
    ends = (heard_us, timer.last_success_us, timer.last_failure_us, cut_off_us)
    return max((end_us for end_us in ends if end_us is not None), default=None)


def moved_back(timer: TimerState, to_us: Instant) -> TimerState:
    """The timer under a clock that was far ahead and now reads *to_us*: slots count from there."""
    answered_us = min(timer.answered_us, to_us - 1)
    if answered_us == timer.answered_us:
        return timer
    registered_us = min(timer.registered_us, to_us - 1)
    return _replace(
        timer,
        registered_us=registered_us,
        answered_us=answered_us,
        slot_us=slot_after(timer.calendars, answered_us, registered_us),
    )


def is_ahead_of_clock(timer: TimerState, now_us: Instant) -> bool:
    """Whether the timer was last written under a clock that was far ahead of *now_us*."""
    return timer.answered_us > now_us + STEP_TOLERATED_US
