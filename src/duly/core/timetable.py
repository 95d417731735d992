"""Timetables: when a task is due, answered in instants.

A cron text in a zone is the usual one; `duly.core.timing` has the texts of the others. Tasks with the same
text share one timetable. That of a cron text remembers its last answer, and for which stretch of time it is
the answer. So a thousand tasks that start together cost one search.

An answer may depend on an anchor: the registration of the task, or the end of its last run. Cron texts and
single moments do not need it.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, time, timedelta, tzinfo
from typing import ClassVar, Protocol

import msgspec

from duly.core.timing import ScheduleText, TextParts, is_plain, last_day_at, length_us, moment_us, parts_of
from duly.cron import CronExpression
from duly.cron.gaps import gaps
from duly.errors import CronCalculationError
from duly.instant import LATEST_US, NEVER_US, SECOND_US, Instant, datetime_at, instant_of

_DAY = timedelta(days=1)
_UNUSED_KEPT = 64
"""So many schedules that no task has any more are kept, and as many again as there are tasks."""


class Timetable(Protocol):
    """When a task is due."""

    @property
    def text(self) -> str:
        """The schedule as it is stored."""
        ...

    @property
    def is_by_minute(self) -> bool:
        """Whether it names civil minutes: a task that is registered during one of them is due at once."""
        ...

    @property
    def is_from_end(self) -> bool:
        """Whether the anchor is the end of the last run, not the registration."""
        ...

    def due_after(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        """The first due instant later than *instant_us*; NEVER_US when there is none any more."""
        ...

    def due_at_or_before(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        """The latest due instant that is not later than *instant_us*."""
        ...


class CronTimetable(msgspec.Struct, gc=False, eq=False):
    """When a cron text is due in a zone."""

    is_by_minute: ClassVar[bool] = True
    is_from_end: ClassVar[bool] = False
    expression: CronExpression
    zone: tzinfo
    _from_us: Instant = 0
    _next_us: Instant = 0

    @property
    def text(self) -> str:
        return self.expression.text

    def due_after(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:  # noqa: ARG002
        # Looks come in the order of time: mostly the answer is the one that was given last.
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

    def due_at_or_before(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:  # noqa: ARG002
        return instant_of(self.expression.previous_at_or_before(datetime_at(instant_us, self.zone)))


def shown_us(face: datetime, at: time) -> tuple[Instant, Instant]:
    """When the clocks show a time on the date of *face*.

    Both instants are the same, except where clocks change. If they show it twice, these are the two. If they
    skip it, one lies before the change and the other one not. So who goes on to the earlier, or back to the
    later of them, never goes past a minute that is shown.
    """
    moment = datetime.combine(face, at, face.tzinfo)
    return instant_of(moment.replace(fold=0)), instant_of(moment.replace(fold=1))


class LastDay(CronTimetable):
    """Of the days that can be the last of a month, only those that are."""

    def due_after(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        due_us = super().due_after(instant_us, anchor_us)
        while due_us < NEVER_US and not self._is_last_day(due_us):
            end_us = min(shown_us(datetime_at(due_us, self.zone), time.max))
            due_us = super().due_after(max(due_us, end_us), anchor_us)
        return due_us

    def due_at_or_before(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        due_us = super().due_at_or_before(instant_us, anchor_us)
        while not self._is_last_day(due_us):
            begins_us = max(shown_us(datetime_at(due_us, self.zone), time.min))
            due_us = super().due_at_or_before(min(due_us, begins_us) - 1, anchor_us)
        return due_us

    def _is_last_day(self, due_us: Instant) -> bool:
        return (datetime_at(due_us, self.zone).replace(tzinfo=None) + _DAY).day == 1


class Every(msgspec.Struct, gc=False, eq=False):
    """A fixed rate: the anchor plus every multiple of the period."""

    is_by_minute: ClassVar[bool] = False
    is_from_end: ClassVar[bool] = False
    text: str
    period_us: int

    def due_after(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        due_us = instant_us + self.period_us - (instant_us - anchor_us) % self.period_us
        return due_us if due_us <= LATEST_US else NEVER_US

    def due_at_or_before(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        return instant_us - (instant_us - anchor_us) % self.period_us


class _AfterEnd(msgspec.Struct, gc=False, eq=False):
    """A fixed delay after the end of the last run, or after the registration if there was none."""

    is_by_minute: ClassVar[bool] = False
    is_from_end: ClassVar[bool] = True
    text: str
    delay_us: int

    def due_after(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        due_us = anchor_us + self.delay_us
        return due_us if instant_us < due_us <= LATEST_US else NEVER_US

    def due_at_or_before(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        return min(anchor_us + self.delay_us, instant_us)


class Once(msgspec.Struct, gc=False, eq=False):
    """One moment. If it has passed when the task is registered, the task is never due."""

    is_by_minute: ClassVar[bool] = False
    is_from_end: ClassVar[bool] = False
    text: str
    at_us: Instant

    def due_after(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:  # noqa: ARG002
        return self.at_us if instant_us < self.at_us else NEVER_US

    def due_at_or_before(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:  # noqa: ARG002
        return min(self.at_us, instant_us)


class Shifted(msgspec.Struct, gc=False, eq=False):
    """Another schedule under a text of its own, with every due so much later."""

    text: str
    base: Timetable
    offset_us: int

    @property
    def is_by_minute(self) -> bool:
        return self.base.is_by_minute

    @property
    def is_from_end(self) -> bool:
        return self.base.is_from_end

    def due_after(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        due_us = self.base.due_after(instant_us - self.offset_us, anchor_us)
        return due_us if due_us == NEVER_US else due_us + self.offset_us

    def due_at_or_before(self, instant_us: Instant, anchor_us: Instant = 0) -> Instant:
        return self.base.due_at_or_before(instant_us - self.offset_us, anchor_us) + self.offset_us


def longest_gap_us(timetable: Timetable) -> int | None:
    """The longest time between two dues, on a clock that is never changed; None if it is due once."""
    match timetable:
        case Shifted():
            return longest_gap_us(timetable.base)
        case Every():
            return timetable.period_us
        case _AfterEnd():
            return timetable.delay_us
        case CronTimetable(expression=expression):
            masks: tuple[int, ...] = expression.masks
            if isinstance(timetable, LastDay):
                masks = (*masks[:2], 1, *masks[3:])
            found = gaps(masks, either_day=expression.either_day)
            return None if found is None else found.longest_s * SECOND_US
    return None


def schedule_of(text: str, zone: tzinfo) -> Timetable:
    """The schedule that *text* stands for. Raises InvalidCronExpressionError or InvalidScheduleError."""
    if is_plain(text):
        return CronTimetable(CronExpression.parse(text), zone)
    parts = parts_of(text)
    base = _base(text, parts, parts.zone or zone)
    is_whole = parts.zone is None and not parts.offset_us and parts.word not in {"", "@last"}
    return base if is_whole else Shifted(text, base, parts.offset_us)


def _base(text: str, parts: TextParts, zone: tzinfo) -> Timetable:
    match parts.word:
        case "@every":
            return Every(text, length_us(text, parts.body))
        case "@after":
            return _AfterEnd(text, length_us(text, parts.body))
        case "@at":
            return Once(text, moment_us(text, parts.body))
        case "@last":
            hour, minute = last_day_at(text, parts.body)
            return LastDay(CronExpression.parse(f"{minute} {hour} 28-31 * *"), zone)
        case _:
            return CronTimetable(CronExpression.parse(parts.body), zone)


class Timetables:
    """The schedules of one zone, one for each text."""

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone
        self._schedules: dict[str, Timetable] = {}

    def of(self, text: str) -> Timetable:
        """The one schedule of all tasks with this text. Raises like `schedule_of`."""
        schedule = self._schedules.get(text)
        if schedule is None:
            schedule = self._schedules[text] = schedule_of(text, self.zone)
        return schedule

    def expect(self, expressions: Iterable[CronExpression | ScheduleText]) -> None:
        """Have the timetables of *expressions* at hand; a cron text is not parsed again."""
        for expression in expressions:
            if expression.text not in self._schedules:
                self._schedules[expression.text] = (
                    CronTimetable(expression, self.zone)
                    if isinstance(expression, CronExpression)
                    else schedule_of(expression.text, self.zone)
                )

    def keep_some(self, tasks: int, used: Callable[[], set[str]]) -> None:
        """Forget those that are not *used*, once there are many more of them than *tasks*."""
        if len(self._schedules) > 2 * tasks + _UNUSED_KEPT:
            self.keep(used())

    def keep(self, used: set[str]) -> None:
        """Forget all but those of the texts that are *used*."""
        self._schedules = {text: schedule for text, schedule in self._schedules.items() if text in used}


def minute_begun(instant_us: Instant, zone: tzinfo) -> Instant:
    """When the civil minute that *instant_us* lies in began."""
    # Not instant_us modulo a minute: some zones had offsets with odd seconds (Monrovia until 1972).
    face = datetime_at(instant_us, zone)
    return instant_us - face.second * 1_000_000 - face.microsecond
