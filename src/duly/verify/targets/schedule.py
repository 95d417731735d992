"""When a cron text is due, counted day by day: a reading of its own, apart from that of the judge (`dues`).

A day on which the clocks of the zone are not set has as many dues as the text names times of day. On any
other day each minute is looked at.
"""

from bisect import bisect_left
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cached_property

MINUTE_MS = 60_000
_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


class UnreadableError(ValueError):
    """The text is no cron text that can be counted."""


class Days:
    """When the civil days of a zone begin. Shared by all schedules of a trace."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._begins_ms: dict[int, int] = {}

    def day_of(self, at_ms: float) -> int:
        """The number of the day that the clocks show."""
        return self.face(at_ms).toordinal()

    def face(self, at_ms: float) -> datetime:
        """What the clocks show."""
        return (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(self._zone)

    def begins_ms(self, day: int) -> int:
        """When a day begins: midnight, or what comes first after it where the clocks skip that."""
        found = self._begins_ms.get(day)
        if found is None:
            begin = datetime.fromordinal(day).replace(tzinfo=self._zone)
            found = self._begins_ms[day] = (begin.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
        return found

    def is_plain(self, day: int) -> bool:
        """Whether the clocks are not set on that day."""
        return self.begins_ms(day + 1) - self.begins_ms(day) == _DAY_MS


class Schedule:
    """The dues of one cron text."""

    def __init__(self, cron: str, days: Days) -> None:
        self._days = days
        self._latest: tuple[int, list[int]] = (0, [])
        """The dues of the day that was asked for last; most questions are about one day."""
        words = [word for word in cron.replace("\t", " ").split(" ") if word]
        if len(words) != len(_BOUNDS):
            raise UnreadableError(cron)
        numbers = [_numbers(word, *bounds) for word, bounds in zip(words, _BOUNDS, strict=True)]
        self._minutes, self._hours, self._dates, self._months, self._weekdays = numbers
        self._is_either = "*" not in {words[2], words[4]}
        if words[4] == "*" and not any(
            date_ <= (29 if month == 2 else 30 if month in {4, 6, 9, 11} else 31)
            for month in self._months
            for date_ in self._dates
        ):
            raise UnreadableError(cron)

    @cached_property
    def _times_ms(self) -> list[int]:
        """The times of day, since midnight, in order."""
        return sorted((hour * 60 + minute) * MINUTE_MS for hour in self._hours for minute in self._minutes)

    def count(self, from_ms: float, to_ms: float) -> int:
        """How many dues there are from *from_ms* up to, and not at, *to_ms*."""
        if from_ms >= to_ms:
            return 0
        first, last = self._days.day_of(from_ms), self._days.day_of(to_ms)
        if first == last:
            return self._on(first, from_ms, to_ms)
        between = sum(self._whole(day) for day in range(first + 1, last))
        return self._on(first, from_ms, to_ms) + between + self._on(last, from_ms, to_ms)

    def first(self, from_ms: float, to_ms: float) -> float | None:
        """The first due from *from_ms* up to, and not at, *to_ms*."""
        if from_ms >= to_ms:
            return None
        for day in range(self._days.day_of(from_ms), self._days.day_of(to_ms) + 1):
            dues = self._dues(day) if self._is_day(day) else []
            at = bisect_left(dues, from_ms)
            if at < len(dues):
                return dues[at] if dues[at] < to_ms else None
        return None

    def has(self, at_ms: float) -> bool:
        """Whether it is due just then."""
        return self.first(at_ms, at_ms + 1) == at_ms

    def _whole(self, day: int) -> int:
        if not self._is_day(day):
            return 0
        return len(self._times_ms) if self._days.is_plain(day) else len(self._dues(day))

    def _on(self, day: int, from_ms: float, to_ms: float) -> int:
        if not self._is_day(day):
            return 0
        dues = self._dues(day)
        return bisect_left(dues, to_ms) - bisect_left(dues, from_ms)

    def _dues(self, day: int) -> list[int]:
        """The dues of a day that fits."""
        if self._latest[0] != day:
            begin_ms = self._days.begins_ms(day)
            if self._days.is_plain(day):
                dues = [begin_ms + time_ms for time_ms in self._times_ms]
            else:
                minutes = range(begin_ms, self._days.begins_ms(day + 1), MINUTE_MS)
                dues = [at_ms for at_ms in minutes if self._is_shown(at_ms)]
            self._latest = day, dues
        return self._latest[1]

    def _is_shown(self, at_ms: int) -> bool:
        """Whether the clocks show a due minute, for the first time."""
        face = self._days.face(at_ms)
        return face.fold == 0 and face.minute in self._minutes and face.hour in self._hours

    def _is_day(self, day: int) -> bool:
        face = date.fromordinal(day)
        if face.month not in self._months:
            return False
        by_date, by_weekday = face.day in self._dates, face.isoweekday() % 7 in self._weekdays
        return (by_date or by_weekday) if self._is_either else (by_date and by_weekday)


def _numbers(word: str, low: int, high: int) -> frozenset[int]:
    """The numbers of one field. Nothing is expanded that is not within its bounds."""
    if word == "*":
        return frozenset(range(low, high + 1))
    found: set[int] = set()
    for part in word.split(","):
        first, dash, last = part.partition("-")
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdigit() and len(end.lstrip("0")) <= 2 for end in ends):
            raise UnreadableError(word)
        begin, end = (int(end.lstrip("0") or "0") for end in ends)
        if not low <= begin <= end <= high:
            raise UnreadableError(word)
        found.update(range(begin, end + 1))
    return frozenset(found)
