"""Instants: whole microseconds since 1970-01-01 UTC, as plain integers.

Aware datetimes of one zone subtract and compare by their wall-clock faces, which is wrong on the two
days a year that matter most. Everything that decides therefore counts in `Instant`; datetimes appear
only where people or cron look. This module is the only bridge, and it reads no clock.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import TypeVar

Instant = int
"""Microseconds since the epoch. Names that hold one end in `_us`."""

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
DAY_US = 1440 * MINUTE_US

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UTC = frozenset({"UTC", "UCT", "Universal", "Zulu", "GMT", "GMT0", "GMT+0", "GMT-0", "Greenwich"})

# A day inside what datetime can hold, so that no zone's offset overflows it.
EARLIEST_US = (datetime(1, 1, 3, tzinfo=UTC) - _EPOCH) // _MICROSECOND
LATEST_US = (datetime(9999, 12, 30, tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The last instant duly works with; deadlines beyond it are never reached and stay here."""

NEVER_US = 2**62
"""Later than every instant: when a schedule has no more dues."""

LONGEST_US = 2**63 - 1
"""The longest duration kept, about 292,000 years. Longer ones mean "never" just as well."""


def instant_of(moment: datetime) -> Instant:
    return (moment - _EPOCH) // _MICROSECOND


def datetime_at(instant_us: Instant, zone: tzinfo) -> datetime:
    """The aware datetime of an instant, as the clocks of *zone* show it."""
    return (_EPOCH + timedelta(microseconds=instant_us)).astimezone(zone)


def iso(instant_us: Instant, zone: tzinfo) -> str:
    """An instant as events write it: ISO 8601 with the offset of *zone*."""
    return datetime_at(instant_us, zone).isoformat()


def zone_key(zone: tzinfo | str) -> str:
    """The name of a zone in what machines compare: however a host calls UTC, it is the same zone."""
    return "UTC" if str(zone).removeprefix("Etc/") in _UTC else str(zone)


def time_of(at_us: Instant | None, zone: tzinfo) -> str | None:
    """An instant as JSON has it: as `iso`; None for none and for never."""
    return None if at_us is None or at_us >= NEVER_US else iso(at_us, zone)


def duration_us(duration: timedelta) -> int:
    """A duration in whole microseconds."""
    return min(duration // _MICROSECOND, LONGEST_US)


def milliseconds(duration_us: int) -> int | float:
    """Microseconds as the milliseconds that events and errors speak of; whole when they are whole."""
    whole, rest = divmod(duration_us, 1000)
    return whole if rest == 0 else duration_us / 1000


_Length = TypeVar("_Length", int, float)


def back_off(pause: _Length, longest: _Length) -> _Length:
    """The pause after *pause* when something has failed once more: twice as long, and at most *longest*."""
    return min(2 * pause, longest)
