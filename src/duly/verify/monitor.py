"""The monitor: the same checks while things happen, as a listener of a recorder.

It keeps what the judge keeps, which depends on the number of tasks and not on how long they have run.
It reports a violation as soon as it is certain, as an event `PropertyViolated`, to its listeners and to the
logger `duly`. What began before the monitor did is not held against anybody. A monitor that fails says so, as
an event `MonitorFault`, and judges no more: from then on nothing is better than inconclusive.
"""

from collections.abc import Iterable
from datetime import datetime
from itertools import count

import msgspec

from duly.events import Announcer, Listener, described
from duly.verify.dues import face_at
from duly.verify.judge import Judge
from duly.verify.properties import Outcome, Violation
from duly.verify.trace import Header, Position, TraceEvent, micros


class Monitor:
    """Judges online. Give it to a Recorder; *listeners* get every `PropertyViolated`."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._announcer = Announcer(listeners, self._now)
        self._judge: Judge | None = None
        self._numbers = count(1)
        self._now_us = 0
        self._has_failed = False

    def begin(self, header: Header) -> None:
        """Begin with a trace that has this header. What earlier processes left there is not known here."""
        self._judge = Judge(msgspec.structs.replace(header, running=[]), on_violation=self._emit)

    def __call__(self, event: TraceEvent) -> None:
        assert self._judge is not None, "a Recorder begins its monitor"
        if self._has_failed:
            return
        number = next(self._numbers)
        try:
            self._now_us = micros(event.t)
            self._judge.take(Position(number, self._now_us, event))
        except Exception as error:
            self._has_failed = True
            reason = f"the monitor failed: {described(error)}"
            self._judge.objections.fault(number, reason)
            self._announcer.announce("MonitorFault", error=reason)

    @property
    def outcome(self) -> Outcome:
        assert self._judge is not None, "a Recorder begins its monitor"
        return self._judge.finish()

    def _now(self) -> datetime:
        assert self._judge is not None
        return face_at(self._now_us, self._judge.zone)

    def _emit(self, violation: Violation) -> None:
        assert self._judge is not None
        self._announcer.announce(
            "PropertyViolated",
            property=violation.property,
            taskName=violation.task,
            at=face_at(violation.at_us, self._judge.zone).isoformat(),
            reason=violation.reason,
        )
