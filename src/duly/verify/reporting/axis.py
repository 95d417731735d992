"""A stretch of time in a zone: where an instant lies in it, round times for its ticks, changes of the clocks.

Every picture of time is drawn along such an axis: those of a verification, and the dashboard's overview.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from duly.verify.dues import face_at, instant_us, offset_change_us

_MOST_TICKS = 9
_DAY_US = 86_400_000_000
_MOST_DAYS = 10_000
_SECOND, _MINUTE, _HOUR, _DAY = (timedelta(seconds=each) for each in (1, 60, 3600, 86_400))
_STEPS = (
    *(_SECOND * each for each in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * each for each in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * each for each in (1, 2, 3, 6, 12)),
    *(_DAY * each for each in (1, 2, 7, 14, 28, 91, 182, 365, 1826, 3652, 36_525, 365_250)),
)


class OffsetChange(NamedTuple):
    """The clocks of a zone are set, forward or back."""

    at_us: int
    by: timedelta


class TimeAxis(NamedTuple):
    """From when to when, and the zone whose clocks people read."""

    from_us: int
    to_us: int
    zone: tzinfo

    def share(self, at_us: int) -> float:
        """How far along an instant lies, from 0 to 1; what lies outside is at the nearer end."""
        return min(max((at_us - self.from_us) / max(self.to_us - self.from_us, 1), 0.0), 1.0)

    @property
    def has_days_only(self) -> bool:
        """Whether the ticks lie a day or more apart, and so need no time of day."""
        return self._step >= _DAY

    @property
    def _step(self) -> timedelta:
        span = timedelta(microseconds=self.to_us - self.from_us)
        return next((step for step in _STEPS if span / step <= _MOST_TICKS), _STEPS[-1])

    def ticks(self) -> Iterator[datetime]:
        """Round times of the zone's clocks; one that they skip or repeat stands where it comes first."""
        step = self._step
        face = face_at(self.from_us, self.zone).replace(tzinfo=None)
        floor = datetime.min + (face - datetime.min) // step * step  # noqa: DTZ901 (a face, not an instant)
        before_us = self.from_us - 1
        # More than there are ticks: where the clocks skip an hour, several faces are the same instant.
        for count in range(3 * _MOST_TICKS):
            try:
                at_us = instant_us((floor + count * step).replace(tzinfo=self.zone))
            except OverflowError:
                return
            if before_us < at_us <= self.to_us:
                yield face_at(at_us, self.zone)
                before_us = at_us

    def clock_changes(self) -> Iterator[OffsetChange]:
        """When the offset of the zone changes: looked at day by day, then by halves; not over lifetimes."""
        if (self.to_us - self.from_us) // _DAY_US > _MOST_DAYS:
            return
        at_us = self.from_us
        while at_us < self.to_us:
            next_us = min(at_us + _DAY_US, self.to_us)
            by = self._offset(next_us) - self._offset(at_us)
            if by:
                yield OffsetChange(offset_change_us(at_us, next_us, self.zone), by)
            at_us = next_us

    def _offset(self, at_us: int) -> timedelta:
        offset = face_at(at_us, self.zone).utcoffset()
        assert offset is not None
        return offset
