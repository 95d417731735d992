"""A second opinion on cron: slow, obvious, and sharing no code with `duly.cron`.

It walks real instants minute by minute (second by second where the offset changes), reads the wall clock of
the zone at each, remembers which civil minutes the clock has already shown, and looks the fields up in plain
sets. A civil minute occurs at the instant its second :00 is shown for the first time. Transitions come from
Python's own reading of the compiled zone files, not from probing offsets as `duly.cron.civil` does.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
# The longest stretch that any clock was ever set back is a day (Manila, Kwajalein), so who has watched it
# for longer than that knows every civil minute that can come again.
LONGEST_REPEAT = timedelta(hours=26)
_LOWEST_AND_HIGHEST = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


class Shown(NamedTuple):
    """A civil minute and the instant at which the clock shows it first."""

    instant: datetime
    civil: datetime


class Fields(NamedTuple):
    """The five fields as plain sets, and whether day and weekday are both restricted."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool


@lru_cache(maxsize=1024)
def fields_of(text: str) -> Fields:
    """Reads an expression that is known to be valid."""
    words = text.split()
    sets = []
    for word, (lowest, highest) in zip(words, _LOWEST_AND_HIGHEST, strict=True):
        values: set[int] = set()
        for part in word.split(","):
            first, _, last = (f"{lowest}-{highest}" if part == "*" else part).partition("-")
            values.update(range(int(first), int(last or first) + 1))
        sets.append(frozenset(values))
    minutes, hours, days, months, weekdays = sets
    return Fields(minutes, hours, days, months, weekdays, either_day="*" not in (words[2], words[4]))


def is_named(fields: Fields, civil: datetime) -> bool:
    """Whether the fields name this civil minute."""
    day_named = civil.day in fields.days
    weekday_named = civil.isoweekday() % 7 in fields.weekdays
    day_due = day_named or weekday_named if fields.either_day else day_named and weekday_named
    return (
        civil.minute in fields.minutes
        and civil.hour in fields.hours
        and civil.month in fields.months
        and day_due
    )


def civil_minutes(
    zone: tzinfo, begin: datetime, end: datetime, watched: timedelta = LONGEST_REPEAT
) -> Iterator[Shown]:
    """Every civil minute that the clock of *zone* shows first in [begin, end), both of them UTC instants.

    The clock is watched from a little more than a day earlier, to know a repetition when it comes.
    """
    seen: set[datetime] = set()
    for instant, civil in _ticks(zone, begin - watched, end):
        if civil not in seen:
            seen.add(civil)
            if begin <= instant < end:
                yield Shown(instant, civil)


def firings(text: str, zone: tzinfo, begin: datetime, end: datetime) -> Iterator[Shown]:
    """The instants in [begin, end) at which *text* is due in *zone*, in order."""
    fields = fields_of(text)
    return (shown for shown in civil_minutes(zone, begin, end) if is_named(fields, shown.civil))


def _ticks(zone: tzinfo, begin: datetime, end: datetime) -> Iterator[Shown]:
    """The instants at which the clock shows a second :00, repetitions included."""
    minute = begin.replace(second=0, microsecond=0)
    civil = _civil(minute, zone)
    while minute < end:
        next_minute = minute + MINUTE
        next_civil = _civil(next_minute, zone)
        if next_civil - civil == MINUTE:
            # The clock runs evenly; an offset with seconds in it puts the civil :00 inside this minute.
            rest = timedelta(seconds=-civil.second % 60)
            yield Shown(minute + rest, civil + rest)
        else:
            yield from _second_ticks(zone, minute)
        minute, civil = next_minute, next_civil


def _second_ticks(zone: tzinfo, minute: datetime) -> Iterator[Shown]:
    for second in range(60):
        instant = minute + second * SECOND
        civil = _civil(instant, zone)
        if civil.second == 0:
            yield Shown(instant, civil)


def _civil(instant: datetime, zone: tzinfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


class Transition(NamedTuple):
    """An instant at which the offset of a zone changes."""

    instant: datetime
    before: timedelta
    after: timedelta

    @property
    def shift(self) -> timedelta:
        """How far the clock jumps: above zero it skips, below zero it repeats."""
        return self.after - self.before


@lru_cache(maxsize=1024)
def transitions(key: str, last_year: int = 2037) -> tuple[Transition, ...]:
    """The offset changes of a zone up to *last_year*, from its compiled file and the rule at its end."""
    # The pure-Python class, because the C one does not show its tables; typeshed knows neither's.
    zone: Any = import_module("zoneinfo._zoneinfo").ZoneInfo(key)
    offsets = [zone._tti_before.utcoff, *(info.utcoff for info in zone._ttinfos)]
    instants = [_instant(stamp) for stamp in zone._trans_utc]
    changes = list(zip(instants, offsets[1:], strict=True))
    if hasattr(zone._tz_after, "transitions"):
        changes += _rule_changes(
            zone._tz_after, after=instants[-1] if instants else None, last_year=last_year
        )
    row = [(datetime.min.replace(tzinfo=UTC), offsets[0]), *changes]
    steps = (Transition(instant, before, after) for (_, before), (instant, after) in pairwise(row))
    return tuple(step for step in steps if step.shift and step.instant.year <= last_year)


def _rule_changes(
    rule: Any, *, after: datetime | None, last_year: int
) -> Iterator[tuple[datetime, timedelta]]:
    """What the rule at the end of a zone file says about the years that its table does not list."""
    for year in range(after.year if after else 1900, last_year + 1):
        dst_begins, dst_ends = rule.transitions(year)
        changes = (
            (_instant(dst_begins) - rule.std.utcoff, rule.dst.utcoff),
            (_instant(dst_ends) - rule.dst.utcoff, rule.std.utcoff),
        )
        yield from (change for change in sorted(changes) if after is None or change[0] > after)


def _instant(stamp: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + stamp * SECOND
