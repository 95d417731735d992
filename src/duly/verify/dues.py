"""When a schedule is due; a cron text by looking at every civil day, hour and minute in turn.

This is the checker's own reading of schedule texts and of the zone. It shares no code with the scheduler's
(`cron/`, `core/`), so a fault there cannot hide itself here. A civil minute is due at its
first occurrence; one that the clocks skip is never due. Both follow from one question put to the zone: if
this face is turned into an instant and back, is it still the same face?
"""

import re
from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from duly.instant import MINUTE_US, SECOND_US
from duly.verify.trace import CalendarDeclared, TimerDeclared

NEVER_US = 2**62
"""Later than every instant."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)
_DAY_US = 1440 * MINUTE_US
_NEAR_US = _DAY_US // 24
"""A search goes on from where it is to what lies so near, and is started over for what lies farther."""
_MOST_KEPT = 4096
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def instant_us(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND


def face_at(at_us: int, zone: tzinfo) -> datetime:
    """What the clocks of *zone* show at an instant."""
    return (_EPOCH + at_us * _MICROSECOND).astimezone(zone)


def minute_start_us(at_us: int, zone: tzinfo) -> int:
    """When the civil minute of an instant began."""
    face = face_at(at_us, zone)
    return at_us - face.second * SECOND_US - face.microsecond


def offset_change_us(low_us: int, high_us: int, zone: tzinfo) -> int:
    """When, after *low_us* and up to *high_us*, the clocks of *zone* are set; they are, once."""
    before = face_at(low_us, zone).utcoffset()
    while high_us - low_us > 1:
        middle_us = (low_us + high_us) // 2
        if face_at(middle_us, zone).utcoffset() == before:
            low_us = middle_us
        else:
            high_us = middle_us
    return high_us


class CivilMinutes:
    """The instants at which certain civil minutes come in one zone."""

    def __init__(
        self,
        fields: Sequence[frozenset[int]],
        zone: tzinfo,
        *,
        is_either_day: bool,
        is_last_day: bool = False,
        is_repeated: bool = False,
    ) -> None:
        """*fields* are minutes, hours, days, months, weekdays; *is_either_day*: day or weekday will do.

        *is_last_day*: only on the last day of a month. *is_repeated*: also when it is shown again.
        """
        minutes, hours, self._days, self._months, self._weekdays = fields
        self._zone = zone
        self._is_either_day = is_either_day
        self._is_last_day = is_last_day
        self._is_repeated = is_repeated
        self.is_ever = is_either_day or any(
            day <= _LONGEST_MONTHS[month - 1] for month in self._months for day in self._days
        )
        """Whether any month has such a day."""
        self._times = _times(hours, minutes)
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

    def count(self, from_us: int, to_us: int) -> int:
        """How many dues there are from *from_us* up to, and not at, *to_us*.

        A silence may last for years: its days are counted, and walked only where the clocks are set.
        """
        if to_us - from_us <= _NEAR_US:
            return self._walked(from_us, to_us)
        total, first = 0, face_at(from_us, self._zone).toordinal()
        for ordinal in range(first, face_at(to_us, self._zone).toordinal() + 2):
            begin_us, end_us = _day_us(ordinal, self._zone)
            low_us, high_us = max(from_us, begin_us), min(to_us, end_us)
            if end_us - begin_us != _DAY_US:
                total += self._walked(low_us, high_us)
            elif low_us < high_us and self._is_day(date.fromordinal(ordinal)):
                total += self._times_before(high_us - begin_us) - self._times_before(low_us - begin_us)
        return total

    def _walked(self, from_us: int, to_us: int) -> int:
        count, due_us = 0, self.after(from_us - 1)
        while due_us < to_us:
            count, due_us = count + 1, self.after(due_us)
        return count

    def _times_before(self, passed_us: int) -> int:
        """How many times of a day come before so much of it has passed."""
        return bisect_left(self._times, divmod(-(-passed_us // MINUTE_US), 60))

    def _onwards(self, at_us: int) -> Iterator[int]:
        """The dues from about *at_us* on, in order: day by day, minute by minute."""
        skipped = 0
        try:
            day = face_at(at_us, self._zone).date()
            begin_us, end_us = _day_us(day.toordinal(), self._zone)
            if begin_us <= at_us < end_us == begin_us + _DAY_US:
                skipped = self._times_before(at_us - begin_us)
            else:  # a day early: where the clocks are set, what they show may lie that far back
                day -= _DAY
        except OverflowError:
            if at_us > 0:
                return
            day = date.min + timedelta(days=2)
        while True:
            if self._is_day(day):
                shown = (
                    due_us
                    for hour, minute in self._times[skipped:]
                    for fold in range(1 + self._is_repeated)
                    if (due_us := self._shown_us(day, hour, minute, fold)) is not None
                )
                yield from sorted(set(shown)) if self._is_repeated else shown
            try:
                day, skipped = day + _DAY, 0
            except OverflowError:
                return

    def _is_day(self, day: date) -> bool:
        if day.month not in self._months or (
            self._is_last_day and day.day != monthrange(day.year, day.month)[1]
        ):
            return False
        by_day, by_weekday = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return (by_day or by_weekday) if self._is_either_day else (by_day and by_weekday)

    def _shown_us(self, day: date, hour: int, minute: int, fold: int) -> int | None:
        """When the clocks first (*fold* 0) or last (1) show this minute, or None if they never do."""
        face = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self._zone, fold=fold)
        try:
            shown = face.astimezone(UTC)
            again = shown.astimezone(self._zone)
        except OverflowError:
            return None
        if again != face:  # of one zone: the faces are compared, not the instants
            return None
        return (shown - _EPOCH) // _MICROSECOND


@lru_cache(4096)
def _day_us(ordinal: int, zone: tzinfo) -> tuple[int, int]:
    """When a civil day begins and ends: at midnight, or at what comes next where the clocks skip that."""
    try:
        begin, end = (datetime.fromordinal(each).replace(tzinfo=zone) for each in (ordinal, ordinal + 1))
        return instant_us(begin), instant_us(end)
    except (ValueError, OverflowError):  # the last days that datetime knows
        return NEVER_US, NEVER_US


@lru_cache(256)
def _times(hours: frozenset[int], minutes: frozenset[int]) -> list[tuple[int, int]]:
    """The times of a day, shared by all that have the same: thousands may come at every minute."""
    return [(hour, minute) for hour in sorted(hours) for minute in sorted(minutes)]


class ScheduleTextError(ValueError):
    """The text is not a schedule that the model knows."""


_HEAD = re.compile(r"(?:TZ=(\S+) )?(?:\+([0-9]{1,9})s )?(?:(@\w+) )?(.*)", re.DOTALL)
_LENGTH = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?s")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_LAST = "last"
_LATEST_US = 253_402_300_799_000_000


class Dues:
    """When the text of a schedule is due (spec/model.md 2.1), in *zone* unless it names one itself.

    Those of an interval depend on an anchor: the registration of the task, or the end of its last run.
    """

    def __init__(self, text: str, zone: tzinfo) -> None:
        self.text = text
        head = _HEAD.fullmatch(text)
        assert head is not None, "it matches nothing, too"
        zone = _zone(head[1]) if head[1] else zone
        self._offset_us = int(head[2] or 0) * SECOND_US
        self._minutes: CivilMinutes | None = None
        self.is_from_end = head[3] == "@after"
        """Whether the anchor is the end of the last run."""
        self.is_from_anchor = head[3] in {"@every", "@after"}
        self.length_us = self._at_us = 0
        """The period, or the delay after the anchor."""
        match head[3]:
            case "@every" | "@after":
                self.length_us = _length_us(head[4])
            case "@at":
                self._at_us = _moment_us(head[4])
            case "@last":
                self._minutes = _last_days(head[4], zone)
            case None:
                self._minutes = _cron(head[4], zone)
            case word:
                raise ScheduleTextError(f"{word} is not known")
        self.is_by_minute = self._minutes is not None
        """Whether it names civil minutes: a task that is registered in such a minute is due in it."""
        self._latest = (NEVER_US, 0, NEVER_US)
        """The question that was asked last, and its answer: each start asks it twice."""

    def after(self, at_us: int, anchor_us: int = 0) -> int:
        """The first due later than *at_us*; NEVER_US when there is none in the years that datetime knows."""
        asked_us, of_us, due_us = self._latest
        if asked_us != at_us or of_us != anchor_us:
            due_us = self._due_after(at_us, anchor_us)
            self._latest = at_us, anchor_us, due_us
        return due_us

    def _due_after(self, at_us: int, anchor_us: int) -> int:
        at_us -= self._offset_us
        if self._minutes is not None:
            due_us = self._minutes.after(at_us)
        elif self.is_from_anchor and not self.is_from_end:
            due_us = at_us + self.length_us - (at_us - anchor_us) % self.length_us
        else:
            due_us = anchor_us + self.length_us if self.is_from_end else self._at_us
            due_us = due_us if due_us > at_us else NEVER_US
        due_us += self._offset_us
        return due_us if due_us <= _LATEST_US else NEVER_US

    def has(self, at_us: int, anchor_us: int = 0) -> bool:
        return self.after(at_us - 1, anchor_us) == at_us

    def count(self, from_us: int, to_us: int, anchor_us: int = 0) -> int:
        """How many dues there are from *from_us* up to, and not at, *to_us*: not for `@after`."""
        from_us, to_us = from_us - self._offset_us, to_us - self._offset_us
        if self._minutes is not None:
            return self._minutes.count(from_us, to_us)
        if self.is_from_anchor:
            return max(
                (to_us - 1 - anchor_us) // self.length_us - (from_us - 1 - anchor_us) // self.length_us, 0
            )
        return int(from_us <= self._at_us < to_us)

    def between(self, from_us: int, to_us: int) -> Iterator[int]:
        """Every due in from_us < due <= to_us."""
        return AnchoredDues(self).between(from_us, to_us)


class AnchoredDues(NamedTuple):
    """The dues of one registration."""

    dues: Dues
    anchor_us: int = 0

    @property
    def text(self) -> str:
        return self.dues.text

    def after(self, at_us: int) -> int:
        return self.dues.after(at_us, self.anchor_us)

    def between(self, from_us: int, to_us: int) -> Iterator[int]:
        """Every due in from_us < due <= to_us."""
        while (from_us := self.after(from_us)) <= to_us:
            yield from_us


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ScheduleTextError(f"there is no time zone {name[:40]!r}") from None


def _length_us(body: str) -> int:
    found = _LENGTH.fullmatch(body)
    length_us = int(found[1]) * SECOND_US + int((found[2] or "").ljust(6, "0")) if found else 0
    if not length_us:
        raise ScheduleTextError(f"{body[:40]!r} is not a length of time such as 30s")
    return length_us


def _moment_us(body: str) -> int:
    try:
        moment = datetime.fromisoformat(body)
        if moment.tzinfo is not None:
            return instant_us(moment)
    except (ValueError, OverflowError):
        pass
    raise ScheduleTextError(f"{body[:40]!r} is not a time such as 2026-12-24T18:00:00Z")


def _last_days(body: str, zone: tzinfo) -> CivilMinutes:
    found = _CLOCK.fullmatch(body)
    if found is None:
        raise ScheduleTextError(f"{body[:40]!r} is not a time of day such as 08:00")
    numbers = [frozenset({int(found[2])}), frozenset({int(found[1])})]
    every = [frozenset(range(low, high + 1)) for low, high in _BOUNDS[2:]]
    return CivilMinutes([*numbers, *every], zone, is_either_day=False, is_last_day=True)


def _cron(text: str, zone: tzinfo) -> CivilMinutes:
    words = [word for word in text.replace("\t", " ").split(" ") if word]
    if len(words) != 5:
        raise ScheduleTextError(f"it has {len(words)} fields, not 5")
    fields = [_numbers(word, *bounds) for word, bounds in zip(words, _BOUNDS, strict=True)]
    minutes = CivilMinutes(fields, zone, is_either_day="*" not in {words[2], words[4]})
    if not minutes.is_ever:
        raise ScheduleTextError("no month has such a day")
    return minutes


def _numbers(word: str, low: int, high: int) -> frozenset[int]:
    if word == "*":
        return frozenset(range(low, high + 1))
    named: set[int] = set()
    for element in word.split(","):
        first, dash, last = element.partition("-")
        begin = _number(first, low, high)
        end = _number(last, low, high) if dash else begin
        if begin > end:
            raise ScheduleTextError(f'the range "{element[:40]}" runs backwards')
        named.update(range(begin, end + 1))
    return frozenset(named)


def _number(digits: str, low: int, high: int) -> int:
    if not digits or any(digit not in "0123456789" for digit in digits):
        raise ScheduleTextError(f'"{digits[:40]}" is not a number')
    stripped = digits.lstrip("0") or "0"
    if len(stripped) > 2 or not low <= int(stripped) <= high:
        raise ScheduleTextError(f'"{digits[:40]}" is not between {low} and {high}')
    return int(stripped)


class Slots:
    """The slots of one timer: of a calendar the minutes that match every field.

    Unlike in cron, day and weekday both have to match. A fixed rate counts from the registration; where that
    is not known, nothing is asked of the rate, and any instant may be a slot.
    """

    def __init__(self, declared: TimerDeclared, zone: tzinfo) -> None:
        all_slots = (
            CivilMinutes(
                _fields(each),
                zone,
                is_either_day=False,
                is_last_day=each.day_of_month == _LAST,
                is_repeated=declared.dst == "both",
            )
            for each in declared.on_calendar
        )
        self._calendars = [slots for slots in all_slots if slots.is_ever]
        self._zone = zone
        self._period_us = round((declared.every or 0) * SECOND_US)
        self._anchor_us = declared.registered_us
        self._at_us = NEVER_US
        if declared.at is not None:
            moment = datetime.fromisoformat(declared.at)
            self._at_us = instant_us(moment if moment.tzinfo else moment.replace(tzinfo=zone))
        if offset_s := int(declared.random_delay_sec):
            offset_s = int.from_bytes(sha256(declared.id.encode()).digest()[:8], "big") % offset_s
        self._offset_us = offset_s * SECOND_US
        self._excluded = frozenset(declared.exclude)

    def unanchor(self, now_us: int) -> None:
        """Account for a clock that was set back, far enough to count again what was registered later."""
        if self._anchor_us is not None and self._anchor_us >= now_us:
            self._anchor_us = None

    def after(self, at_us: int) -> int:
        """The first slot later than *at_us*; NEVER_US when there is none."""
        slot_us = self._any_after(at_us - self._offset_us)
        while self._excluded and slot_us < NEVER_US:
            face = face_at(slot_us, self._zone)
            if face.date().isoformat() not in self._excluded:
                break
            # Where clocks change, the end of a date comes twice or never. The earlier instant is not past it.
            ends = (datetime.combine(face, time.max, self._zone).replace(fold=fold) for fold in (0, 1))
            slot_us = self._any_after(max(slot_us, min(map(instant_us, ends))))
        return slot_us + self._offset_us if slot_us < NEVER_US else NEVER_US

    def _any_after(self, at_us: int) -> int:
        slot_us = min((slots.after(at_us) for slots in self._calendars), default=NEVER_US)
        if self._period_us and self._anchor_us is not None:
            slot_us = min(slot_us, at_us + self._period_us - (at_us - self._anchor_us) % self._period_us)
        return min(slot_us, self._at_us) if self._at_us > at_us else slot_us

    def has(self, at_us: int) -> bool:
        is_unknown = self._period_us > 0 and self._anchor_us is None
        return is_unknown or self.after(at_us - 1) == at_us


def _fields(calendar: CalendarDeclared) -> list[frozenset[int]]:
    named = msgspec.structs.astuple(calendar)  # in the order of cron
    return [
        frozenset(range(low, high + 1) if numbers is None or isinstance(numbers, str) else numbers)
        for numbers, (low, high) in zip(named, _BOUNDS, strict=True)
    ]
