"""What people ask of timers: why it is refused, and who waits for a run that they asked for."""

import asyncio
from collections import defaultdict
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
    SUPERSEDED = "superseded"
    UNCLAIMED = "unclaimed"


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
    TimerRefusal.SUPERSEDED: (
        'Timer "{timer}" is left as it is: other machines have a newer configuration; reload this one'
    ),
    TimerRefusal.UNCLAIMED: (
        'Timer "{timer}" is not triggered: the database does not give it to this machine; try again'
    ),
}


class TimerError(SchedulerError):
    """Something asked of a timer is not done; `kind` says why."""

    def __init__(self, kind: TimerRefusal, *, timer: str, target: str = "") -> None:
        details = {"kind": kind.value, "timer": timer, "target": target}
        super().__init__(_SENTENCES[kind].format(timer=timer, target=target), details)
        self.kind = kind
        self.timer = timer
        self.target = target


class Waiters:
    def __init__(self) -> None:
        self._waiting: defaultdict[str, list[asyncio.Future[int]]] = defaultdict(list)

    def add(self, name: str) -> "asyncio.Future[int]":
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[name].append(asked)
        return asked

    def remove(self, name: str, asked: "asyncio.Future[int]") -> bool:
        """One that waits no more; whether that was the last."""
        waiting = self._waiting.get(name, [])
        if asked in waiting:
            waiting.remove(asked)
        return not waiting

    def began(self, name: str, run: int) -> None:
        """Answer that the run has begun."""
        for asked in self._waiting.pop(name, ()):
            if not asked.done():
                asked.set_result(run)

    def refuse(self, name: str, error: TimerError) -> None:
        for asked in self._waiting.pop(name, ()):
            if not asked.done():
                asked.set_exception(error)

    def refuse_all(self, kind: TimerRefusal) -> None:
        for name in list(self._waiting):
            self.refuse(name, TimerError(kind, timer=name))
