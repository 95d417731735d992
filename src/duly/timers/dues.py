"""What a timer is owed at a moment: a run, a miss, or nothing (spec/timers.md 3 to 5).

One look answers everything that is due. Of several missed slots only the latest counts, so three days off
cost one look and give one run. Whatever comes of a look, nothing of it is due at the next one: what is owed
is fired, or it is missed, once.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from duly.core.causes import Reason
from duly.instant import EARLIEST_US, NEVER_US, SECOND_US, Instant
from duly.supervisor.results import TargetState
from duly.timers.calendar import slot_after, slot_at_or_before
from duly.timers.timer import (
    Due,
    TimerState,
    answered,
    interval_us,
    missed,
    passed_by,
    retry_us,
    span_us,
    startup_us,
    with_miss,
)

PUNCTUAL_US = 60 * SECOND_US
"""A slot looked at later than this was missed: the supervisor was down, asleep, or could not write."""


class Miss(StrEnum):
    """Why a due was not answered by a run."""

    OVERLAP = "overlap"
    DISABLED = "disabled"
    DISABLED_TARGET = "disabled-target"
    TARGET_NOT_FOUND = "target-not-found"
    SHUTDOWN = "shutdown"


_BLOCKED: dict[TargetState, Miss] = {
    "active": Miss.OVERLAP,
    "disabled": Miss.DISABLED_TARGET,
    "missing": Miss.TARGET_NOT_FOUND,
}


class DueVerdict(NamedTuple):
    """What comes of a look."""

    timer: TimerState
    """The timer without a run; it is another one when something was missed."""
    due: Due | None = None
    """What to fire for, if it is to be fired."""


def verdict(timer: TimerState, now_us: Instant, target: TargetState, *, is_stopping: bool) -> DueVerdict:
    if is_stopping:
        return DueVerdict(_while_stopping(timer, now_us))
    # The supervisor may not know of that run yet: its start is written before it is made.
    if timer.running_run is not None:
        target = "active"
    # What was queued is late because it waited.
    lost_us = None if timer.queued_us is not None else slot_lost(timer, now_us)
    if lost_us is not None:
        timer = _noted_lost(timer, lost_us, now_us)
    due = due_at(timer, now_us, is_target_active=target == "active")
    if due is None:
        if timer.queued_us is not None:  # the clock was set back, or a retry was dropped
            timer = msgspec.structs.replace(timer, queued_us=None)
        return DueVerdict(_given_up(timer, is_noted=lost_us is not None))
    block = blocked(timer, target)
    if block is None:
        return DueVerdict(timer, due)
    if due.reason is Reason.TRIGGER:  # refused: the caller gets an error; all else that is due stays due
        timer = msgspec.structs.replace(timer, triggered=False)
        return verdict(timer, now_us, target, is_stopping=False)
    if block is Miss.OVERLAP and timer.definition.overlap != "skip":
        # Nothing is answered: if we die meanwhile, the next start finds the slot and may catch up.
        is_known = timer.queued_us is not None
        return DueVerdict(timer if is_known else msgspec.structs.replace(timer, queued_us=due.at_us))
    return DueVerdict(missed(timer, due.at_us, block, now_us))


def blocked(timer: TimerState, target: TargetState) -> Miss | None:
    """Why the timer cannot fire now; None when it can. By hand even a disabled one may."""
    if not timer.is_enabled and not timer.triggered:
        return Miss.DISABLED
    return _BLOCKED.get(target)


def due_at(timer: TimerState, now_us: Instant, *, is_target_active: bool) -> Due | None:
    """The due to fire for at *now_us*; the first in this order gives the run its name."""
    if timer.triggered:
        # First: somebody waits for the id of this very run.
        return Due(Reason.TRIGGER, now_us)
    if timer.slot_us <= now_us:
        slot_us = latest_slot(timer, now_us)
        is_late = now_us - slot_us > PUNCTUAL_US
        return Due(Reason.CATCH_UP if is_late else Reason.SCHEDULE, slot_us)
    if timer.interrupted and timer.last_run_us is not None and may_make_up(timer, timer.last_run_us, now_us):
        return Due(Reason.CATCH_UP, timer.last_run_us)
    if startup_us(timer) <= now_us:
        return Due(Reason.STARTUP, startup_us(timer))
    # While the target runs its interval has not begun: not due, and no overlap either.
    if interval_us(timer) <= now_us and timer.is_enabled and not is_target_active:
        return Due(Reason.INTERVAL, interval_us(timer))
    if retry_us(timer) <= now_us:
        return Due(Reason.RETRY, retry_us(timer))
    return None


def latest_slot(timer: TimerState, now_us: Instant) -> Instant:
    """The latest slot up to *now_us* of a timer whose first unanswered one has come."""
    if slot_after(timer.calendars, timer.slot_us, timer.registered_us) > now_us:
        return timer.slot_us
    latest_us = slot_at_or_before(timer.calendars, now_us, timer.registered_us)
    return timer.slot_us if latest_us is None else max(latest_us, timer.slot_us)


def slot_lost(timer: TimerState, now_us: Instant) -> Instant | None:
    """The latest missed slot, when it is too late for it; None when there is none or it can be made up."""
    if timer.slot_us > now_us:
        return None
    slot_us = latest_slot(timer, now_us)
    is_lost = now_us - slot_us > PUNCTUAL_US and not may_make_up(timer, slot_us, now_us)
    return slot_us if is_lost else None


def may_make_up(timer: TimerState, at_us: Instant, now_us: Instant) -> bool:
    """Whether what was missed at *at_us* may be caught up with now."""
    window_us = span_us(timer.definition.catch_up_window_sec)
    return timer.definition.persistent and timer.is_enabled and window_us > 0 and now_us - at_us <= window_us


def _noted_lost(timer: TimerState, slot_us: Instant, now_us: Instant) -> TimerState:
    """The timer with a slot noted as missed; other triggers, and a run that was cut off, stand as before."""
    # One that came while an earlier session was stopping was announced then.
    is_announced = timer.misses == 0 and timer.last_missed_us == slot_us
    if not is_announced:
        timer = with_miss(timer, slot_us, Miss.SHUTDOWN if timer.is_enabled else Miss.DISABLED)
    answered_us = max(timer.answered_us, now_us)
    slot_us = slot_after(timer.calendars, answered_us, timer.registered_us)
    return msgspec.structs.replace(timer, answered_us=answered_us, slot_us=slot_us)


def _given_up(timer: TimerState, *, is_noted: bool) -> TimerState:
    """The timer whose run was cut off and is not made up: that is a miss, unless a later slot *is_noted*."""
    if not timer.interrupted:
        return timer
    timer = msgspec.structs.replace(timer, interrupted=False)
    if is_noted or timer.last_run_us is None:
        return timer
    return with_miss(timer, timer.last_run_us, Miss.SHUTDOWN)


def _while_stopping(timer: TimerState, now_us: Instant) -> TimerState:
    if timer.triggered:
        timer = msgspec.structs.replace(timer, triggered=False)
    reason = Miss.SHUTDOWN if timer.is_enabled else Miss.DISABLED
    if timer.slot_us <= now_us:
        at_us = latest_slot(timer, now_us)
    elif startup_us(timer) <= now_us:
        at_us = startup_us(timer)
    else:
        return timer
    if reason is Miss.DISABLED:
        looked = with_miss(answered(timer, now_us), at_us, reason)
        return msgspec.structs.replace(looked, interrupted=timer.interrupted)
    return passed_by(timer, at_us, reason, now_us)


def wakes_us(timer: TimerState, *, is_target_active: bool, is_stopping: bool) -> Instant:
    """When the timer next needs a look, if nothing else happens to it."""
    if timer.triggered:
        return EARLIEST_US
    if is_stopping:
        # Nothing fires any more: only what is to be noted as missed needs a look.
        return min(timer.slot_us, startup_us(timer))
    if timer.interrupted:
        return EARLIEST_US
    if timer.queued_us is not None:
        return NEVER_US if is_target_active or timer.running_run is not None else EARLIEST_US
    wakes = min(timer.slot_us, startup_us(timer), retry_us(timer))
    if timer.is_enabled and not is_target_active and timer.running_run is None:
        wakes = min(wakes, interval_us(timer))
    return wakes


def next_run_us(timer: TimerState, *, is_target_active: bool) -> Instant | None:
    """When the timer will fire next, as far as is known now; None when it will not."""
    if not timer.is_enabled:
        return None
    at_us = wakes_us(timer, is_target_active=is_target_active, is_stopping=False)
    return None if at_us >= NEVER_US else at_us
