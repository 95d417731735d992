"""When a cron text is due, worked out by looking at every civil day, hour and minute in turn.

This is the checker's own reading of the cron grammar and of the zone, and it shares no code with the
scheduler's (`cron/`, `core/`), so that a fault there cannot hide itself here. A civil minute is due at its
first occurrence; one that the clocks skip is never due. Both follow from one question put to the zone: if
this face is turned into an instant and back, is it still the same face?
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

NEVER_US = 2**62
"""Later than every instant."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NEAR_US = 2 * 86_400_000_000
_MOST_KEPT = 4096
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def instant_us(moment: datetime) -> int:
    """The instant of an aware datetime."""
    return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND


def face_at(at_us: int, zone: tzinfo) -> datetime:
    """What the clocks of *zone* show at an instant."""
    return (_EPOCH + at_us * _MICROSECOND).astimezone(zone)


def minute_start_us(at_us: int, zone: tzinfo) -> int:
    """When the civil minute of an instant began."""
    face = face_at(at_us, zone)
    return at_us - face.second * 1_000_000 - face.microsecond


class CronTextError(ValueError):
    """The text is not one of the five-field expressions that the model knows."""


class Dues:
    """The due instants of one cron text in one zone."""

    def __init__(self, text: str, zone: tzinfo) -> None:
        self.text = text
        self._zone = zone
        fields = [word for word in text.replace("\t", " ").split(" ") if word]
        if len(fields) != 5:
            raise CronTextError(f"it has {len(fields)} fields, not 5")
        sets = [_numbers(word, *bounds) for word, bounds in zip(fields, _BOUNDS, strict=True)]
        self._minutes, self._hours, self._days, self._months, self._weekdays = sets
        self._any_day, self._any_weekday = fields[2] == "*", fields[4] == "*"
        if self._any_weekday and not any(
            day <= _LONGEST_MONTHS[month - 1] for month in self._months for day in self._days
        ):
            raise CronTextError("no month has such a day")
        self._times = [(hour, minute) for hour in sorted(self._hours) for minute in sorted(self._minutes)]
        # Every due after _since_us up to the last in _found; what follows comes from _upcoming.
        self._since_us = 0
        self._found: list[int] = []
        self._upcoming: Iterator[int] = iter(())

    def after(self, at_us: int) -> int:
        """The first due later than *at_us*; NEVER_US when there is none in the years that datetime knows."""
        found = self._found
        if not found or not self._since_us <= at_us < found[-1] + _NEAR_US:
            self._since_us, self._upcoming = at_us, self._onwards(at_us)
            found.clear()
        while not found or found[-1] <= at_us:
            due_us = next(self._upcoming, NEVER_US)
            if due_us > self._since_us:
                found.append(due_us)
        answer = found[bisect_right(found, at_us)]
        if len(found) > _MOST_KEPT:
            self._since_us = found[_MOST_KEPT // 2]
            del found[: _MOST_KEPT // 2 + 1]
        return answer

    def within(self, from_us: int, to_us: int) -> bool:
        """Whether there is a due in from_us < due <= to_us."""
        return self.after(from_us) <= to_us

    def between(self, from_us: int, to_us: int) -> Iterator[int]:
        """Every due in from_us < due <= to_us."""
        while (from_us := self.after(from_us)) <= to_us:
            yield from_us

    def _onwards(self, at_us: int) -> Iterator[int]:
        """The dues from about *at_us* on, in order: day by day, minute by minute."""
        skipped = 0
        try:
            face = face_at(at_us, self._zone)
            if getattr(self._zone, "key", None) == "UTC":  # its clocks are never set: begin right there
                day, skipped = face.date(), bisect_left(self._times, (face.hour, face.minute))
            else:  # a day early: what a clock shows may lie that far back
                day = face.date() - timedelta(days=1)
        except OverflowError:
            if at_us > 0:
                return
            day = date.min + timedelta(days=2)
        while True:
            if self._is_day(day):
                for hour, minute in self._times[skipped:]:
                    due_us = self._first_shown_us(day, hour, minute)
                    if due_us is not None:
                        yield due_us
            try:
                day, skipped = day + timedelta(days=1), 0
            except OverflowError:
                return

    def _is_day(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        by_day, by_weekday = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        if self._any_day or self._any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday

    def _first_shown_us(self, day: date, hour: int, minute: int) -> int | None:
        """When the clocks first show this minute, or None if they never do."""
        face = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self._zone)
        try:
            shown = face.astimezone(UTC)
            again = shown.astimezone(self._zone)
        except OverflowError:
            return None
        if again != face:  # of one zone: the faces are compared, not the instants
            return None
        return (shown - _EPOCH) // _MICROSECOND


def _numbers(word: str, low: int, high: int) -> frozenset[int]:
    """The numbers that one field names."""
    if word == "*":
        return frozenset(range(low, high + 1))
    named: set[int] = set()
    for element in word.split(","):
        first, dash, last = element.partition("-")
        begin = _number(first, low, high)
        end = _number(last, low, high) if dash else begin
        if begin > end:
            raise CronTextError(f'the range "{element[:40]}" runs backwards')
        named.update(range(begin, end + 1))
    return frozenset(named)


def _number(digits: str, low: int, high: int) -> int:
    if not digits or any(digit not in "0123456789" for digit in digits):
        raise CronTextError(f'"{digits[:40]}" is not a number')
    stripped = digits.lstrip("0") or "0"
    if len(stripped) > 2 or not low <= int(stripped) <= high:
        raise CronTextError(f'"{digits[:40]}" is not between {low} and {high}')
    return int(stripped)
