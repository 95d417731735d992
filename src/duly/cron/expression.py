"""A POSIX cron expression, and the instants at which it is due in a zone.

The arithmetic is on fields and bit masks: from a time, the next minute in the hour, else the next hour of
the day, else the next day of the month, and so on; nothing walks minute by minute. DST lives in `civil`:
an answer inside the span last used is final, any other is checked against the zone's spans.

Pure: no clock, no state that changes an answer.
"""

import re
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Any, final

from duly.cron.civil import Timeline, timeline
from duly.cron.fields import FIELDS, parse_field
from duly.errors import CronCalculationError, FieldParseError, InvalidCronExpressionError

_WORDS = re.compile(r"[^ \t]+")
_MINUTE = timedelta(minutes=1)
_NONE = 255
# Longer texts are valid too (leading zeros, blanks), but keeping thousands of megabytes would be a leak.
_LONGEST_KEPT = 256
_ASCENDING = bytes(range(64))
_SIX_WEEKS = sum(1 << 7 * week for week in range(6))
_EVERY_DAY = 0xFFFFFFFE
_SHIFTS = (1, 2, 3, 4, 5, 6, 0)
_LONGEST_MONTHS = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@final
@dataclass(slots=True, init=False, repr=False, eq=False)
class CronExpression:
    """An expression. Make one with `parse`, or with `of_masks` where there is no cron text.

    Two are equal when their texts are, and were taken to mean the same.
    """

    text: str
    """The expression exactly as it was given."""
    _minutes: int
    _first_minute: int
    _rest: "_Rest"
    _line: Timeline

    def __init__(self) -> None:
        raise TypeError("use CronExpression.parse(text) or CronExpression.of_masks(text, masks)")

    @classmethod
    def parse(cls, text: str) -> "CronExpression":
        """The expression *text* stands for. Raises InvalidCronExpressionError, with the field and why."""
        if type(text) is str and len(text) <= _LONGEST_KEPT:
            return _kept(text)
        return _expression_of(text)

    @classmethod
    def of_masks(cls, text: str, masks: tuple[int, int, int, int, int]) -> "CronExpression":
        """The expression due where all five *masks* match, day and weekday both; *text* is what to call it.

        Unlike cron text it may name a date that never comes, such as 30 February.
        """
        for field, mask in zip(FIELDS, masks, strict=True):
            if not mask or mask & ~field.every:
                raise ValueError(f"{field.name} mask {mask:#x} is empty or has values outside its field")
        return _expression_from(text, masks, either=False)

    @property
    def masks(self) -> tuple[int, int, int, int, int]:
        """Minute, hour, day, month and weekday as bit masks: bit n stands for value n."""
        rest = self._rest
        return self._minutes, rest.hours, rest.days, rest.months, rest.weekdays

    @property
    def either_day(self) -> bool:
        """Whether day and weekday are both restricted, so that either one is enough."""
        return self._rest.either

    @property
    def has_a_date(self) -> bool:
        """Whether some month that it names is long enough for some day that it names."""
        return self._rest.either or has_a_date(self._rest.days, self._rest.months)

    def matches(self, moment: datetime) -> bool:
        """Whether the minute *moment* lies in is due: it matches, exists, and is shown for the first time."""
        line = timeline(moment.tzinfo)
        if not self._matches_face(moment):
            return False
        lo, hi = line.used
        if lo <= moment < hi:
            return True
        into_minute = timedelta(seconds=moment.second, microseconds=moment.microsecond)
        minute = moment - into_minute
        span = line.holding(minute)
        return span is not None and _utc(moment) - into_minute == minute.replace(tzinfo=None) - span.offset

    def next_after(self, moment: datetime) -> datetime:
        """The first due instant later than *moment*, in its zone."""
        # The hot path, written flat on purpose: every start of every task comes through here.
        zone = moment.tzinfo
        line = self._line
        if line.zone is not zone:
            line = self._line = timeline(zone)
        lo, hi = line.used
        if not lo <= moment < hi:
            lo, hi = line.bounds_of(moment)
            if not lo <= moment < hi:
                return self._searched_after(line, moment)
            line.used = (lo, hi)
        month, rest = moment.month, self._rest
        if rest.months >> month & 1:
            day = moment.day
            days = rest.day_masks[(moment.weekday() - day) % 7] >> day
            if days & 1:
                hour, minute = moment.hour, moment.minute
                later = self._minutes >> minute + 1 if rest.hour_from[hour] == hour else 0
                if later:
                    minute += (later & -later).bit_length()
                else:
                    hour = rest.hour_from[hour + 1]
                    minute = self._first_minute
                if hour != _NONE:
                    found = datetime(moment.year, month, day, hour, minute, 0, 0, zone)
                    return (
                        found if found < hi or line.shows_once(found) else self._searched_after(line, moment)
                    )
            days &= -2
            if days:
                day += (days & -days).bit_length() - 1
                # Every month has 28 days; the masks know nothing of longer ones.
                if day <= 28 or day <= _month(moment.year, month)[1]:
                    hour, minute = rest.hour_from[0], self._first_minute
                    found = datetime(moment.year, month, day, hour, minute, 0, 0, zone)
                    return (
                        found if found < hi or line.shows_once(found) else self._searched_after(line, moment)
                    )
        try:
            found = self._first_of_month_after(moment.year, month, zone)
        except ValueError:  # past the year 9999
            return self._searched_after(line, moment)
        return found if found < hi or line.shows_once(found) else self._searched_after(line, moment)

    def previous_at_or_before(self, moment: datetime) -> datetime:
        """The latest due instant that is not later than *moment*, in its zone."""
        line = timeline(moment.tzinfo)
        lo, hi = line.used
        if lo <= moment < hi:
            found = self._face_at_or_before(moment)
            if found is not None and found >= lo:
                return found
        return self._searched_before(line, moment)

    def upcoming(self, moment: datetime, count: int) -> list[datetime]:
        """The next *count* due instants after *moment*."""
        return list(islice(self._all_after(moment), count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CronExpression):
            return NotImplemented
        return (self.text, self._minutes, self._rest) == (other.text, other._minutes, other._rest)

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        if self._is_cron_text():
            return f"CronExpression.parse({self.text!r})"
        return f"CronExpression.of_masks({self.text!r}, {self.masks!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._is_cron_text():
            return type(self).parse, (self.text,)
        return type(self).of_masks, (self.text, self.masks)

    def _is_cron_text(self) -> bool:
        """Whether the text alone, parsed, means the same."""
        try:
            return type(self).parse(self.text) == self
        except InvalidCronExpressionError:
            return False

    def _all_after(self, moment: datetime) -> Iterator[datetime]:
        while True:
            moment = self.next_after(moment)
            yield moment

    # --- faces: what the clock shows, no zone in sight ---

    def _matches_face(self, face: datetime) -> bool:
        is_time = self._minutes >> face.minute & self._rest.hours >> face.hour & 1
        return bool(is_time) and self._matches_day(face)

    def _matches_day(self, face: datetime) -> bool:
        day_mask = self._rest.day_masks[(face.weekday() - face.day) % 7]
        return bool(self._rest.months >> face.month & day_mask >> face.day & 1)

    def _first_of_month_after(self, year: int, month: int, zone: tzinfo | None) -> datetime:
        """The first matching face of a later month. ValueError past the year 9999."""
        days, rest = 0, self._rest
        while not days:
            month = rest.month_from[month + 1]
            if month == _NONE:
                year, month = year + 1, rest.month_from[0]
            first_weekday, length = _month(year, month)
            days = rest.day_masks[first_weekday - 1] & (2 << length) - 1
        day = (days & -days).bit_length() - 1
        return datetime(year, month, day, rest.hour_from[0], self._first_minute, 0, 0, zone)

    def _first_minute_of_day_after(self, face: datetime) -> datetime:
        """The first matching face on a day later than that of *face*. ValueError past the year 9999."""
        days = self._days_in(face.year, face.month) >> (face.day + 1) << (face.day + 1)
        if not days:
            return self._first_of_month_after(face.year, face.month, face.tzinfo)
        day = (days & -days).bit_length() - 1
        return face.replace(day=day, hour=self._rest.hour_from[0], minute=self._first_minute)

    def _last_minute_of_day_before(self, face: datetime) -> datetime:
        """The last matching face on a day before that of *face*. ValueError before the year 1."""
        year, month = face.year, face.month
        days = self._days_in(year, month) & (1 << face.day) - 1
        while not days:
            month -= 1
            if month < 1:
                year, month = year - 1, 12
            days = self._days_in(year, month)
        hour, minute = self._rest.hours.bit_length() - 1, self._minutes.bit_length() - 1
        return datetime(year, month, days.bit_length() - 1, hour, minute, tzinfo=face.tzinfo)

    def _days_in(self, year: int, month: int) -> int:
        if not self._rest.months >> month & 1:
            return 0
        first_weekday, length = _month(year, month)
        return self._rest.day_masks[first_weekday - 1] & (2 << length) - 1

    def _face_at_or_after(self, face: datetime) -> datetime:
        """The first matching face that is not earlier than *face*."""
        if face.second or face.microsecond:
            face = face.replace(second=0, microsecond=0) + _MINUTE
        if self._matches_day(face):
            hour, minute, hour_from = face.hour, face.minute, self._rest.hour_from
            later = self._minutes >> minute if hour_from[hour] == hour else 0
            if later:
                minute += (later & -later).bit_length() - 1
            else:
                hour, minute = hour_from[hour + 1], self._first_minute
            if hour != _NONE:
                return face.replace(hour=hour, minute=minute)
        return self._first_minute_of_day_after(face)

    def _face_at_or_before(self, face: datetime) -> datetime | None:
        """The last matching face that is not later than *face*; None before the year 1."""
        face = face.replace(second=0, microsecond=0, fold=0)
        if self._matches_day(face):
            minutes, hours = self._minutes, self._rest.hours
            if hours >> face.hour & 1 and (earlier := minutes & (2 << face.minute) - 1):
                return face.replace(minute=earlier.bit_length() - 1)
            if earlier := hours & (1 << face.hour) - 1:
                return face.replace(hour=earlier.bit_length() - 1, minute=minutes.bit_length() - 1)
        try:
            return self._last_minute_of_day_before(face)
        except ValueError:
            return None

    # --- instants: faces laid on the spans of a zone ---

    def _searched_after(self, line: Timeline, moment: datetime) -> datetime:
        try:
            instant = _utc(moment)
            span = first_span = next(line.from_instant(instant))
            face = max(span.lo, (instant + span.offset).replace(tzinfo=line.zone))
            if face == span.lo and span.begins > instant:
                found = self._face_at_or_after(face)
            else:
                found = self._face_at_or_after(face.replace(second=0, microsecond=0) + _MINUTE)
            while not span.lo <= found < span.hi:
                span = next(line.at_or_after(found))
                found = self._face_at_or_after(max(found, span.lo))
        except (StopIteration, ValueError, OverflowError) as error:
            raise self._nothing_found(moment, "after") from error
        line.use(first_span)
        return found

    def _searched_before(self, line: Timeline, moment: datetime) -> datetime:
        try:
            instant = _utc(moment)
            span = next(line.to_instant(instant))
            face = min((instant + span.offset).replace(tzinfo=line.zone), _just_before(span.hi))
            found = self._face_at_or_before(face)
            while found is not None and not span.lo <= found < span.hi:
                span = next(line.at_or_before(found))
                found = self._face_at_or_before(min(found, _just_before(span.hi)))
        except (StopIteration, ValueError, OverflowError) as error:
            raise self._nothing_found(moment, "before") from error
        if found is None:
            raise self._nothing_found(moment, "before")
        return found

    def _nothing_found(self, moment: datetime, side: str) -> CronCalculationError:
        return CronCalculationError(
            expression=self.text,
            current_time=moment,
            cause=ValueError(f"there is no occurrence {side} that time within the years 1 to 9999"),
        )


def _expression_of(text: object) -> CronExpression:
    if not isinstance(text, str):
        reason = f"must be text, not {type(text).__name__}"
        raise InvalidCronExpressionError(expression=repr(text), field="expression", reason=reason)
    words = _WORDS.findall(text)
    if len(words) != 5:
        raise _refusal(text, _count_fault(words))
    try:
        minutes, hours, days, months, weekdays = map(parse_field, FIELDS, words)
    except FieldParseError as error:
        raise InvalidCronExpressionError(
            expression=text, field=error.details["fieldName"], reason=error.reason, cause=error
        ) from error
    either = words[2] != "*" and words[4] != "*"
    if not either and words[2] != "*" and not has_a_date(days, months):
        raise _refusal(text, "can never match: no such day in any of its months")
    return _expression_from(text, (minutes, hours, days, months, weekdays), either=either)


def _expression_from(text: str, masks: tuple[int, int, int, int, int], *, either: bool) -> CronExpression:
    minutes, hours, days, months, weekdays = masks
    self = CronExpression.__new__(CronExpression)
    self.text = text
    self._minutes = minutes
    self._first_minute = (minutes & -minutes).bit_length() - 1
    self._rest = _rest_of(hours, days, months, weekdays, either)
    self._line = _UTC_LINE
    return self


@dataclass(frozen=True, slots=True)
class _Rest:
    """What an expression says after the minute. Expressions that agree in it share one object."""

    hours: int
    days: int
    months: int
    weekdays: int
    either: bool
    day_masks: tuple[int, ...]
    hour_from: bytes
    month_from: bytes


@lru_cache(maxsize=4096)
def _rest_of(hours: int, days: int, months: int, weekdays: int, either: bool) -> _Rest:
    tables = _day_masks(days, weekdays, either), _table(hours, 25), _table(months, 14)
    return _Rest(hours, days, months, weekdays, either, *tables)


_UTC_LINE = timeline(UTC)
_kept = lru_cache(maxsize=8192)(_expression_of)


def _refusal(text: str, reason: str) -> InvalidCronExpressionError:
    return InvalidCronExpressionError(expression=text, field="expression", reason=reason)


def _count_fault(words: list[str]) -> str:
    if words and words[0].startswith("@"):
        return "is a macro (@), which POSIX cron does not have"
    return f"must have 5 fields (minute hour day month weekday), not {len(words)}"


def has_a_date(days: int, months: int) -> bool:
    """Whether some month of *months* is long enough for some day of *days*."""
    earliest = (days & -days).bit_length() - 1
    return any(months >> month & 1 and earliest <= _LONGEST_MONTHS[month] for month in range(1, 13))


def _table(mask: int, size: int) -> bytes:
    """For each value, the smallest value of *mask* that is not below it, or 255."""
    table, filled = b"", 0
    while mask:  # one turn for each run of values, so that `*` and ranges take one
        first = (mask & -mask).bit_length() - 1
        carried = mask + (1 << first)
        end = (carried & -carried).bit_length() - 1
        table += _ASCENDING[first : first + 1] * (first - filled) + _ASCENDING[first:end]
        filled = end
        mask &= carried
    return table + b"\xff" * (size - filled)


@lru_cache(maxsize=4096)
def _day_masks(days: int, weekdays: int, either: bool) -> tuple[int, ...]:
    """The matching days of a month, for each weekday (Monday is 0) that the day before its 1st may be."""
    weeks = weekdays * _SIX_WEEKS
    if either:
        return tuple([days | weeks >> shift & _EVERY_DAY for shift in _SHIFTS])
    return tuple([days & weeks >> shift for shift in _SHIFTS])


@lru_cache(maxsize=4096)
def _month(year: int, month: int) -> tuple[int, int]:
    """The weekday of the 1st (Monday is 0), and the number of days."""
    if not 1 <= year <= 9999:
        raise ValueError(f"year {year} is out of range")
    return monthrange(year, month)


def _utc(moment: datetime) -> datetime:
    """The naive UTC instant of an aware datetime."""
    offset = moment.utcoffset()
    assert offset is not None
    try:
        return moment.replace(tzinfo=None) - offset
    except OverflowError:  # On the first or last day that datetime knows; no span reaches that far.
        return datetime.min if offset > timedelta(0) else datetime.max  # noqa: DTZ901 - naive UTC is meant


def _just_before(moment: datetime) -> datetime:
    return moment - timedelta(microseconds=1)
