"""What the timers refuse to do, and why."""

from enum import StrEnum

from duly.errors import SchedulerError


class TimerRefusal(StrEnum):
    """Why something asked of a timer is not done."""

    UNKNOWN = "unknown"
    UNREADABLE = "unreadable"
    OVERLAP = "overlap"
    DISABLED_TARGET = "disabled-target"
    TARGET_NOT_FOUND = "target-not-found"
    STOPPING = "shutdown"
    OFF = "off"
    ELSEWHERE = "elsewhere"
    MOVING = "moving"
    SUPERSEDED = "superseded"
    BEHIND = "behind"
    UNANSWERED = "unanswered"
    FAILED = "failed"


NOT_TRIGGERED = {
    "active": TimerRefusal.OVERLAP,
    "disabled": TimerRefusal.DISABLED_TARGET,
    "missing": TimerRefusal.TARGET_NOT_FOUND,
}
"""Why a timer is not triggered, by the state of its target."""

_SENTENCES = {
    TimerRefusal.UNKNOWN: 'There is no timer "{timer}"; `duly timers` lists them',
    TimerRefusal.UNREADABLE: 'Timer "{timer}" does not run: its stored state is damaged; see `duly timers`',
    TimerRefusal.OVERLAP: 'Timer "{timer}" is not triggered: "{target}" is active; wait for its end',
    TimerRefusal.DISABLED_TARGET: (
        'Timer "{timer}" is not triggered: its target "{target}" is disabled; enable the service and reload'
    ),
    TimerRefusal.TARGET_NOT_FOUND: (
        'Timer "{timer}" is not triggered: there is no service "{target}"; add it and reload'
    ),
    TimerRefusal.STOPPING: 'Timer "{timer}" is left as it is: the supervisor is stopping',
    TimerRefusal.OFF: 'Timer "{timer}" is left as it is: timers are switched off',
    TimerRefusal.ELSEWHERE: (
        'Timer "{timer}" is held by {target}, which does not answer; nothing was done, try again in a moment'
    ),
    TimerRefusal.MOVING: 'Timer "{timer}" is on its way from one machine to another; try again in a moment',
    TimerRefusal.SUPERSEDED: (
        'Timer "{timer}" is left as it is: other machines have a newer configuration; reload this one'
    ),
    TimerRefusal.BEHIND: (
        'Timer "{timer}" is left as it is: {target} holds it and has an older configuration; reload that one'
    ),
    TimerRefusal.UNANSWERED: (
        'Timer "{timer}": {target} was asked and has not answered; it may yet do it, see `duly timers`'
    ),
    TimerRefusal.FAILED: 'Timer "{timer}" is held by {target}, where it did not work: {reason}',
}


class TimerError(SchedulerError):
    """Something asked of a timer is not done; `kind` says why."""

    def __init__(self, kind: TimerRefusal, *, timer: str, target: str = "", reason: str = "") -> None:
        details: dict[str, object] = {"kind": kind.value, "timer": timer, "target": target}
        if reason:
            details["reason"] = reason
        if kind is TimerRefusal.UNANSWERED:
            details["may_be_done"] = True
        super().__init__(_SENTENCES[kind].format(timer=timer, target=target, reason=reason), details)
        self.kind = kind
        self.timer = timer
        self.target = target
