"""The verdict on the traces of daemons: their timers, by the monitor and across machines.

The events of a daemon are in its trace. So the monitor (`verify.timers`) judges each machine by itself, as it
did while the daemon ran. Where machines share timers, the runs of all of them are then compared:
tokens (C1, C2), two runs of a target at once (C4), a due that two machines have answered (V3), and retries
after a failure on another machine (V5). That every slot is answered (V1) is checked of a single machine only:
what may keep a row from being claimed, such as a pause, is in the database and in no trace.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from duly.events import Event, described
from duly.verify.cluster.history import ClusterHistory
from duly.verify.cluster.judging import ClusterVerdict
from duly.verify.cluster.nodes import Recording, recordings
from duly.verify.dues import face_at
from duly.verify.properties import CLUSTER_PROPERTIES, Outcome, Violation
from duly.verify.timers import TIMER_PROPERTIES, TimerMonitor, ZonedTimer
from duly.verify.trace import ClockStep, Position, Tick, Timers, Told, TraceError, TraceEvent, micros, zone_of

_OF_ALL = ("V3", "V5")
_SHARED = {
    **{name: words for name, words in TIMER_PROPERTIES.items() if name != "V1"},
    **{name: words for name, words in CLUSTER_PROPERTIES.items() if name != "C6"},
}


def judged_timers(lines: Iterable[bytes]) -> Outcome:
    """What the traces of daemons, one after the other, say. Raises TraceError if one is none."""
    read = recordings(lines, "timers")
    is_shared = any(recording.ids for recording in read)
    return _TimerVerdict(ClusterHistory(read), _SHARED if is_shared else TIMER_PROPERTIES, _OF_ALL).outcome


class _TimerVerdict(ClusterVerdict):
    def _judge(self) -> None:
        is_shared = self.outcome.properties is _SHARED
        self._history.is_partial &= is_shared
        for recording in self._history.recordings:
            self.outcome.starts += len(recording.runs)
            for _, items in groupby(recording.daemon_events, key=lambda item: item.event.proc):
                replay = _Replay(recording, is_shared=is_shared)
                for item in items:
                    replay.take(item)
                self._found += replay.found
                for finding in replay.monitor.findings():
                    tally = self.outcome.tallies[finding.property]
                    tally.checked += finding.checked
                    tally.violated += finding.violated


class _Replay:
    """Passes the events of one process of a daemon on to a monitor."""

    def __init__(self, recording: Recording, *, is_shared: bool) -> None:
        self._node = recording.header.node
        self._is_shared = is_shared
        self._declared: list[ZonedTimer] = []
        self._now = recording.daemon_events[0]
        self._ahead_us = 0
        """By how much the clock was set forward since."""
        self.monitor = TimerMonitor(
            lambda: self._declared, steady_us=self._steady_us, is_shared=is_shared, announce=self._object
        )
        self.found: list[Violation] = []

    def take(self, item: Position) -> None:
        self._now, event = item, item.event
        try:
            self._pass_on(event, face_at(item.at_us, UTC))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            name = event.name if isinstance(event, Told) else type(event).__name__
            raise TraceError(item.line, f"this {name} cannot be read: {described(error)}") from error

    def _pass_on(self, event: TraceEvent, now: datetime) -> None:
        match event:
            case Timers():
                self._declared = [
                    ZonedTimer(timer, zone_of(timer.zone, self._now.line)) for timer in event.timers
                ]
            case Told():
                self.monitor.listener(Event(event.name, 0, now, event.fields))
            case Tick():
                self.monitor.look(now)
            case ClockStep():
                self._ahead_us += micros(event.t) - micros(event.origin)
            case _:
                self.monitor.listener(Event(type(event).__name__, 0, now, {}))

    def _steady_us(self) -> int:
        return self._now.at_us - (0 if self._is_shared else self._ahead_us)

    def _object(self, _name: str, **fields: Any) -> None:
        line, at_us, _ = self._now
        reason = f"{fields['reason']} (node {self._node!r})"
        violation = Violation(fields["property"], fields["taskName"], at_us, reason, (self._now,), line)
        self.found.append(violation)
