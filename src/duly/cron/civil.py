"""Civil time lines: how the wall clock of a zone runs over real instants.

The rule this module guards (spec/scheduler.md 2.2): a civil minute that the clock skips never occurs, and
one that it shows twice occurs when it is first shown. A zone is therefore a row of *spans*, stretches of
constant offset in which every civil minute counts; the repeated part after a fall-back belongs to no span,
and between two spans of a spring-forward there is a hole. Everything about DST is in this one shape.

Works for any tzinfo by asking it for offsets. Knows nothing of cron.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo

# Transitions of a zone lie at least four days apart (Freetown 1939, in the whole tz database), so looking
# every second day misses none. tests/property/test_zones.py checks this against the compiled zone files.
_PROBE = timedelta(days=2)
_MINUTE = timedelta(minutes=1)
_EARLIEST = datetime.min + timedelta(days=2)  # noqa: DTZ901 - naive UTC, as all here
_LATEST = datetime.max - timedelta(days=2)  # noqa: DTZ901 - naive UTC, as all here
_CHUNK_YEARS = 8
_KEPT_ZONES = 256


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """A stretch of constant offset: the civil times `lo <= civil < hi`, each counted once.

    The bounds carry the zone itself, so comparing them with a datetime of that zone compares faces.
    """

    lo: datetime
    hi: datetime
    offset: timedelta
    begins: datetime
    """The naive UTC instant of `lo`."""
    ends: datetime
    """The naive UTC instant of `hi`."""
    once: datetime
    """Up to here the clock shows each civil time once; from here to `hi` it will show them again."""

    @classmethod
    def of(cls, zone: tzinfo, lo: datetime, hi: datetime, once: datetime, offset: timedelta) -> "OffsetSpan":
        """The span of the naive civil times *lo* to *hi*, repeated from *once* on."""
        lo_face, hi_face, once_face = (civil.replace(tzinfo=zone) for civil in (lo, hi, min(once, hi)))
        return cls(lo_face, hi_face, offset, lo - offset, hi - offset, once_face)


class Timeline:
    """One zone's spans, worked out eight years at a time and kept.

    `used` bounds the unambiguous part of the span last used: nearly every question falls into it again, and
    then costs two comparisons instead of a search. No face between the bounds needs a look at `fold`.
    """

    __slots__ = ("_bounds", "_chunks", "used", "zone")

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone
        self._chunks: dict[int, list[OffsetSpan]] = {}
        self._bounds: dict[int, tuple[list[datetime], list[tuple[datetime, datetime]]]] = {}
        # One tuple, not two attributes: another thread may call `use` between two reads.
        self.used = (datetime.max.replace(tzinfo=zone), datetime.min.replace(tzinfo=zone))
        if isinstance(zone, timezone):
            offset = zone.utcoffset(None)
            self.use(OffsetSpan.of(zone, _EARLIEST, _LATEST, _LATEST, offset))

    def from_instant(self, instant: datetime) -> Iterator[OffsetSpan]:
        """The spans that end after the naive UTC *instant*, in order."""
        return (span for span in self._forward(instant.year) if span.ends > instant)

    def to_instant(self, instant: datetime) -> Iterator[OffsetSpan]:
        """The spans that begin at or before the naive UTC *instant*, latest first."""
        return (span for span in self._backward(instant.year) if span.begins <= instant)

    def at_or_after(self, civil: datetime) -> Iterator[OffsetSpan]:
        """The spans that hold *civil* or something later, in order. The first may begin after it."""
        return (span for span in self._forward(civil.year) if span.hi > civil)

    def at_or_before(self, civil: datetime) -> Iterator[OffsetSpan]:
        """The spans that hold *civil* or something earlier, latest first. The first may end before it."""
        return (span for span in self._backward(civil.year) if span.lo <= civil)

    def holding(self, civil: datetime) -> OffsetSpan | None:
        """The span in which *civil* occurs, or None for a skipped minute."""
        span = next(self.at_or_after(civil), None)
        return span if span is not None and span.lo <= civil else None

    def use(self, span: OffsetSpan) -> None:
        """Remember *span* as the one most questions will fall into."""
        self.used = _unambiguous(span)

    def bounds_of(self, civil: datetime) -> tuple[datetime, datetime]:
        """The unambiguous part of the span *civil* probably lies in; the caller looks whether it does."""
        known = self._bounds.get(civil.year // _CHUNK_YEARS)
        if known is None:
            known = self._bounds_worked_out(civil.year // _CHUNK_YEARS)
        los, bounds = known
        return bounds[bisect_right(los, civil)]

    def shows_once(self, civil: datetime) -> bool:
        """Whether the clock surely shows *civil*, and only once."""
        lo, hi = self.bounds_of(civil)
        return lo <= civil < hi

    def _bounds_worked_out(self, chunk: int) -> tuple[list[datetime], list[tuple[datetime, datetime]]]:
        if isinstance(self.zone, timezone):
            known: tuple[list[datetime], list[tuple[datetime, datetime]]] = ([], [self.used])
        else:
            bounds = [_unambiguous(span) for span in self._spans(chunk)]
            nothing = (datetime.max.replace(tzinfo=self.zone), datetime.min.replace(tzinfo=self.zone))
            known = [lo for lo, _ in bounds], [nothing, *bounds]
        self._bounds[chunk] = known
        return known

    def _forward(self, year: int) -> Iterator[OffsetSpan]:
        # One year early: near New Year the instant and the civil time may lie in different years.
        for chunk in range((year - 1) // _CHUNK_YEARS, 9999 // _CHUNK_YEARS + 1):
            yield from self._spans(chunk)

    def _backward(self, year: int) -> Iterator[OffsetSpan]:
        for chunk in range(min(year + 1, 9999) // _CHUNK_YEARS, -1, -1):
            yield from reversed(self._spans(chunk))

    def _spans(self, chunk: int) -> list[OffsetSpan]:
        spans = self._chunks.get(chunk)
        if spans is None:
            spans = self._chunks[chunk] = list(self._worked_out(chunk))
        return spans

    def _worked_out(self, chunk: int) -> Iterator[OffsetSpan]:
        first_year, last_year = chunk * _CHUNK_YEARS, (chunk + 1) * _CHUNK_YEARS
        start = _new_year(first_year) if chunk else _EARLIEST
        end = _new_year(last_year) if last_year <= 9999 else _LATEST
        # Look past both ends: a repetition may begin before the chunk (Niamey, 1912) or soon after it.
        begin, horizon = max(start - _PROBE, _EARLIEST), min(end + _PROBE, _LATEST)
        shown_until = begin + self._offset(begin)
        for instant in [*self._transitions(begin, horizon), horizon]:
            offset = self._offset(begin)
            lo, hi = max(max(begin, start) + offset, shown_until), min(instant, end) + offset
            if lo < hi:
                repeated = max(offset - self._offset(instant), timedelta(0))
                yield OffsetSpan.of(self.zone, lo, hi, instant + offset - repeated, offset)
            shown_until = max(shown_until, instant + offset)
            begin = instant

    def _transitions(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """The naive UTC instants in (begin, end) at which the offset changes."""
        known, known_offset = begin, self._offset(begin)
        while known < end:
            probe = min(known + _PROBE, end)
            probe_offset = self._offset(probe)
            if probe_offset != known_offset:
                if (change := self._change(known, known_offset, probe)) < end:
                    yield change
                known_offset = probe_offset
            known = probe

    def _change(self, before: datetime, offset: timedelta, after: datetime) -> datetime:
        """The first whole second in (before, after] at which the offset is no longer *offset*."""
        low, high = 0, (after - before) // timedelta(seconds=1)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(before + timedelta(seconds=middle)) == offset:
                low = middle
            else:
                high = middle
        return before + timedelta(seconds=high)

    def _offset(self, instant: datetime) -> timedelta:
        offset = instant.replace(tzinfo=UTC).astimezone(self.zone).utcoffset()
        if offset is None:
            raise ValueError(f"{self.zone!r} gives no UTC offset")
        return offset


def _unambiguous(span: OffsetSpan) -> tuple[datetime, datetime]:
    # From a whole minute on: one whose second :00 is skipped does not occur, though its rest is shown.
    into_minute = timedelta(seconds=span.lo.second)
    return span.lo - into_minute + _MINUTE if into_minute else span.lo, span.once


def _new_year(year: int) -> datetime:
    return datetime(year, 1, 1)  # noqa: DTZ001 - naive UTC, as all here


# Keyed by id because some tzinfo classes (dateutil's) cannot be hashed; the timeline keeps its zone alive,
# so an id cannot be taken over by another zone while its entry stands.
_timelines: dict[int, Timeline] = {}


def timeline(zone: tzinfo | None) -> Timeline:
    """The time line of *zone*; the same object for the same zone."""
    line = _timelines.get(id(zone))
    if line is not None:
        return line
    if zone is None:
        raise ValueError("a cron expression needs an aware datetime; add a tzinfo, such as ZoneInfo('UTC')")
    if hasattr(zone, "localize"):
        raise ValueError(f"pytz zones cannot be used; write ZoneInfo({str(zone)!r}) instead")
    if len(_timelines) >= _KEPT_ZONES:
        _timelines.clear()
    line = _timelines[id(zone)] = Timeline(zone)
    return line
