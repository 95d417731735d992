"""Calendars: a timer's `on_calendar` as schedules that answer in instants.

A calendar is a cron expression whose five fields must all match, so it is laid on the same arithmetic and the
same DST rules. One that names a date that never comes is left out here, once, so that nobody searches eight
thousand years for it at every look.
"""

from datetime import tzinfo
from zoneinfo import ZoneInfo

from duly.config.schema import Calendar, Timer
from duly.core.schedule import Schedule
from duly.cron import CronExpression
from duly.cron.fields import FIELDS, Field
from duly.errors import CronCalculationError
from duly.instant import NEVER_US, Instant

Calendars = tuple[Schedule, ...]


def expression_of(calendar: Calendar) -> CronExpression:
    """The expression that is due when *calendar* says; its text names the fields that are restricted."""
    values = (
        calendar.minute,
        calendar.hour,
        calendar.day_of_month,
        calendar.month,
        calendar.day_of_week,
    )
    minutes, hours, days, months, weekdays = map(_mask, FIELDS, values)
    named = [f"{field.name}={_text(chosen)}" for field, chosen in zip(FIELDS, values, strict=True) if chosen]
    return CronExpression.of_masks(
        " ".join(named) or "every minute", (minutes, hours, days, months, weekdays)
    )


def _mask(field: Field, values: tuple[int, ...] | None) -> int:
    return field.every if values is None else sum(1 << value for value in set(values))


def _text(values: tuple[int, ...]) -> str:
    return ",".join(str(value) for value in sorted(set(values)))


def zone_of(timer: Timer, default: tzinfo) -> tzinfo:
    """The zone whose civil time a timer means."""
    return default if timer.timezone is None else ZoneInfo(timer.timezone)


class CalendarShelf:
    """The schedules in use, one for each calendar and zone, however many timers share it."""

    def __init__(self, default: tzinfo) -> None:
        self.default = default
        self._schedules: dict[tuple[Calendar, int], Schedule] = {}

    def of(self, timer: Timer) -> Calendars:
        """The schedules of a timer, without those that never come."""
        zone = zone_of(timer, self.default)
        schedules = (self._schedule(calendar, zone) for calendar in timer.on_calendar)
        return tuple(schedule for schedule in schedules if schedule.expression.has_a_date)

    def _schedule(self, calendar: Calendar, zone: tzinfo) -> Schedule:
        # By id: a zone need not be hashable, and its schedule keeps it alive.
        schedule = self._schedules.get((calendar, id(zone)))
        if schedule is None:
            schedule = self._schedules[calendar, id(zone)] = Schedule(expression_of(calendar), zone)
        return schedule


def slot_after(calendars: Calendars, instant_us: Instant) -> Instant:
    """The first slot later than *instant_us*; NEVER_US when there is none."""
    if len(calendars) == 1:
        return calendars[0].due_after(instant_us)
    return min((calendar.due_after(instant_us) for calendar in calendars), default=NEVER_US)


def slot_at_or_before(calendars: Calendars, instant_us: Instant) -> Instant | None:
    """The latest slot that is not later than *instant_us*."""
    slots = [_before(calendar, instant_us) for calendar in calendars]
    return max((slot_us for slot_us in slots if slot_us is not None), default=None)


def _before(calendar: Schedule, instant_us: Instant) -> Instant | None:
    try:
        return calendar.due_at_or_before(instant_us)
    except CronCalculationError:
        return None
