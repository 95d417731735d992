"""Events: what happened, for listeners and the log (spec/scheduler.md 7).

Events are the contract; logging, metrics, traces and dashboards are listeners. Each event goes to the
user's listeners, then to the stdlib logger `duly`. An event that nobody would see is not even made: ask
`wants` before doing work for one. A listener that raises is reported and otherwise ignored.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from duly.forks import process_id
from duly.formatting import brief_ms, one_line

_logger = logging.getLogger("duly")

LEVELS: Mapping[str, int] = {
    "SchedulerInitializationStarted": logging.DEBUG,
    "SchedulerInitializationCompleted": logging.DEBUG,
    "SchedulerInitializationFailed": logging.ERROR,
    "SchedulerReinitializationStarted": logging.DEBUG,
    "SchedulerStopRequested": logging.INFO,
    "SchedulerStopped": logging.INFO,
    "SchedulerAborted": logging.WARNING,
    "TaskRunStarted": logging.INFO,
    "TaskRunCompleted": logging.INFO,
    "TaskRunFailed": logging.WARNING,
    "TaskRetryStarted": logging.INFO,
    "TaskRetryPreempted": logging.INFO,
    "PollStarted": logging.DEBUG,
    "PollCompleted": logging.DEBUG,
    "PollFailed": logging.ERROR,
    "PollRecovered": logging.INFO,
    "PollerRestarted": logging.ERROR,
    "PollingStarted": logging.DEBUG,
    "PollingStopped": logging.DEBUG,
    "PollingStopRequested": logging.DEBUG,
    "TaskAdded": logging.INFO,
    "TaskPreserved": logging.DEBUG,
    "TaskOverridden": logging.INFO,
    "TaskOrphaned": logging.WARNING,
    "TaskScheduled": logging.DEBUG,
    "TaskSkipped": logging.DEBUG,
    "ClockStepped": logging.WARNING,
    "StoreFault": logging.ERROR,
    "StoreRecovered": logging.INFO,
    "PropertyViolated": logging.ERROR,
    "RecorderFault": logging.ERROR,
    "RecorderRecovered": logging.INFO,
    "MonitorFault": logging.ERROR,
    "NodeJoined": logging.INFO,
    "NodeFenced": logging.WARNING,
    "NodeReturned": logging.WARNING,
    "TrustLost": logging.ERROR,
    "LoopBlocked": logging.WARNING,
    "TaskMissed": logging.WARNING,
    "TaskRequested": logging.INFO,
    "TaskPaused": logging.INFO,
    "TaskResumed": logging.INFO,
    "EntryAdded": logging.INFO,
    "EntryChanged": logging.INFO,
    "EntryRemoved": logging.INFO,
    "TaskInterruptedAgain": logging.ERROR,
    "ListReconciled": logging.INFO,
    "ServerChanged": logging.WARNING,
    "SupervisorStarted": logging.INFO,
    "SupervisorStopping": logging.INFO,
    "SupervisorStopped": logging.INFO,
    "StageStarted": logging.DEBUG,
    "StageCompleted": logging.DEBUG,
    "ServiceRunStarted": logging.INFO,
    "ServiceRunEnded": logging.INFO,
    "ServiceRestarting": logging.WARNING,
    "ServiceStartSkipped": logging.WARNING,
    "LeftoverFound": logging.WARNING,
    "ConfigurationReloaded": logging.INFO,
    "ConfigurationRefused": logging.ERROR,
    "ConfigurationExposed": logging.WARNING,
    "EntryInvalid": logging.WARNING,
    "OperatorAction": logging.INFO,
    "TimersEnabled": logging.INFO,
    "TimersDisabled": logging.INFO,
    "TimerAdded": logging.INFO,
    "TimerOverridden": logging.INFO,
    "TimerRecalled": logging.INFO,
    "TimerRemoved": logging.INFO,
    "TimerUnreadable": logging.ERROR,
    "TimerFired": logging.INFO,
    "TimerQueued": logging.INFO,
    "TimerMissed": logging.WARNING,
    "TimerRunEnded": logging.INFO,
    "TimerRetryScheduled": logging.INFO,
    "DashboardStarted": logging.INFO,
    "DashboardFault": logging.WARNING,
    "DeadManPingFailed": logging.WARNING,
    "NotificationSent": logging.INFO,
    "NotificationFailed": logging.WARNING,
    "ListenerFault": logging.ERROR,
    "ListenerRecovered": logging.INFO,
}
"""Every event there is, and its level."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: its name, its logging level, when, and the facts."""

    name: str
    level: int
    time: datetime
    fields: dict[str, Any]
    exception: BaseException | None = None
    """What a failed run has raised. It is not among the fields: those can be written down."""


Listener = Callable[[Event], object]


class Announcer:
    """Passes every event to the listeners and the log."""

    def __init__(self, listeners: Iterable[Listener], now: Callable[[], datetime]) -> None:
        self._listeners = tuple(listeners)
        # A listener may be an object that wants to be where a callback is called, as spans do.
        self._called: tuple[Any, ...] = tuple(each for each in self._listeners if hasattr(each, "on_call"))
        self._choosy: dict[str, tuple[Listener, ...]] = {}
        self._now = now
        self.pid: int | None = None
        """The only process that emits, once it is set: a forked child has a copy of every listener."""

    def listen(self, listener: Listener, names: Iterable[str], /) -> None:
        """Call *listener*, too, with the events that have these *names*, and with no others."""
        for name in names:
            self._choosy[name] = (*self._choosy.get(name, ()), listener)

    def wants(self, name: str) -> bool:
        """Whether anybody would see such an event."""
        return bool(self._listeners) or name in self._choosy or _logger.isEnabledFor(LEVELS[name])

    def announce(
        self, name: str, exception: BaseException | None = None, level: int | None = None, /, **fields: Any
    ) -> None:
        """Emit the event *name*, which happened just now. *level* takes the place of the one in LEVELS."""
        is_wanted = self.wants(name) or (level is not None and _logger.isEnabledFor(level))
        if not is_wanted or (self.pid is not None and self.pid != process_id()):
            return
        event = Event(name, LEVELS[name] if level is None else level, self._time(), fields, exception)
        for listener in (*self._listeners, *self._choosy.get(name, ()), _log):
            try:
                listener(event)
            except BaseException as error:
                # Not even a listener that raises CancelledError may end the loop that calls it.
                warn_operator(f"duly: listener {listener!r} failed on {name}: {described(error)}")

    def announce_call(self, name: str) -> None:
        """Say, in the context of a run of the task *name*, that its callback is called next."""
        for listener in self._called:
            try:
                listener.on_call(name)
            except BaseException as error:
                warn_operator(f"duly: listener {listener!r} failed on a call: {described(error)}")

    def _time(self) -> datetime:
        try:
            return self._now()
        except Exception:
            # A clock that fails must not keep the report of its failure back.
            return datetime.now(UTC)  # noqa: TID251 (the clock cannot say)


def warn_operator(sentence: str) -> None:
    """Say one line on stderr, when there is no better way to say it."""
    # Straight to stderr: the listener that failed may be the log itself.
    with suppress(Exception):  # and if even that is closed, there is nobody left to tell
        # In one piece: others write there too, and with PYTHONUNBUFFERED each piece is written at once.
        sys.stderr.write(f"{one_line(sentence)}\n")


def _log(event: Event) -> None:
    if not _logger.isEnabledFor(event.level):
        return
    fields = {
        key: one_line(value) if isinstance(value, str) else value for key, value in event.fields.items()
    }
    shown = fields | {"duration": brief_ms(event.fields["duration"])} if "duration" in fields else fields
    text = " ".join([event.name, *(f"{key}={value}" for key, value in shown.items() if value is not None)])
    # Not of a cancellation: a program that shuts its loop down has many, and needs no traceback.
    has_traceback = isinstance(event.exception, Exception | SystemExit)
    _logger.log(
        event.level,
        "%s",
        text,
        extra={"event": event.name, "fields": fields},
        exc_info=event.exception if has_traceback else None,
    )


TOOK_EFFECT = "the list has taken effect all the same"
FAILED = "the list has not taken effect"
STOPS_ALL_THE_SAME = "the scheduler is stopping all the same"
"""What is noted on the cancellation of a call that had begun: giving it up does not undo it."""
CUT_OFF = "cut off: others may start it now"
"""The message of a cancellation that counts as the death of the process: the run has no end."""


def described(error: BaseException) -> str:
    """What an exception is and says, even one that cannot say it."""
    try:
        said = str(error)
    except BaseException as failure:
        said = f"(its message raised {type(failure).__name__})"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def where_raised(error: BaseException) -> str:
    """Where an exception was raised: module, function and line, without the path of the file."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return "unknown"
    frame, line = frames[-1]
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}:{line}"
