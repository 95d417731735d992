"""A schedule: a cron expression in a zone, answering in instants.

Tasks with the same cron text share one schedule, and a schedule remembers its last answer together with
the stretch of time for which it is the answer. A thousand tasks that start together so cost one search.
"""

from collections.abc import Iterable
from datetime import tzinfo

import msgspec

from duly.cron import CronExpression
from duly.errors import CronCalculationError
from duly.instant import LATEST_US, NEVER_US, Instant, datetime_at, instant_of


class Schedule(msgspec.Struct, gc=False, eq=False):
    """When a cron text is due in a zone."""

    expression: CronExpression
    zone: tzinfo
    _from_us: Instant = 0
    _next_us: Instant = 0

    @property
    def text(self) -> str:
        """The cron text exactly as registered."""
        return self.expression.text

    def due_after(self, instant_us: Instant) -> Instant:
        """The first due instant later than *instant_us*; NEVER_US when there is none any more."""
        if self._from_us <= instant_us < self._next_us:
            return self._next_us
        if instant_us >= LATEST_US:
            return NEVER_US
        try:
            due_us = instant_of(self.expression.next_after(datetime_at(instant_us, self.zone)))
        except CronCalculationError:
            return NEVER_US
        self._from_us, self._next_us = instant_us, due_us
        return due_us

    def due_at_or_before(self, instant_us: Instant) -> Instant:
        """The latest due instant that is not later than *instant_us*."""
        return instant_of(self.expression.previous_at_or_before(datetime_at(instant_us, self.zone)))


class Schedules:
    """The schedules of one zone, one for each cron text."""

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone
        self._schedules: dict[str, Schedule] = {}

    def of(self, cron: str) -> Schedule:
        """The one schedule of all tasks with this cron text."""
        schedule = self._schedules.get(cron)
        if schedule is None:
            schedule = self._schedules[cron] = Schedule(CronExpression.parse(cron), self.zone)
        return schedule

    def expect(self, expressions: Iterable[CronExpression]) -> None:
        """Have the schedules of *expressions*, which were parsed already, at hand."""
        for expression in expressions:
            if expression.text not in self._schedules:
                self._schedules[expression.text] = Schedule(expression, self.zone)

    def keep(self, used: set[str]) -> None:
        """Forget all but those of the texts that are *used*."""
        self._schedules = {text: schedule for text, schedule in self._schedules.items() if text in used}


def minute_begun(instant_us: Instant, zone: tzinfo) -> Instant:
    """When the civil minute that *instant_us* lies in began."""
    # Not instant_us modulo a minute: some zones had offsets with odd seconds (Monrovia until 1972).
    face = datetime_at(instant_us, zone)
    return instant_us - face.second * 1_000_000 - face.microsecond
