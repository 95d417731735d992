"""What a person should know about a firing near a clock change: what was skipped, what is shown twice.

For a row of consecutive firings: between two of them the clocks may have gone forward (then some civil
minutes never came) or back (then some came twice, and only the first counted). Many changes between two rare
firings are noise: then only those that skipped something are noted, and that the offset is another one.

Pure; the words are for `duly next`, the rule itself is in `civil`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Literal

from duly.cron.civil import timeline
from duly.cron.expression import CronExpression
from duly.errors import CronCalculationError
from duly.formatting import joined, spelled_length
from duly.instant import duration_us

_MICROSECOND = timedelta(microseconds=1)
_MOST_LISTED = 3


@dataclass(frozen=True, slots=True)
class ClockChange:
    """An instant at which the clocks of a zone are set forward or back."""

    shown_before: datetime
    """What the clock would have shown at that instant, as a naive civil time."""
    shown_after: datetime
    """What it shows instead."""
    offset: timedelta
    """The offset from then on."""

    @property
    def is_forward(self) -> bool:
        """Whether civil times are skipped, and not shown again."""
        return self.shown_after > self.shown_before


@dataclass(frozen=True, slots=True)
class Note:
    """One remark about a firing: itself (`repeated`), or what happened since the one before it (the rest)."""

    kind: Literal["forward", "back", "offset", "repeated"]
    text: str


def notes(expression: CronExpression, origin: datetime, firings: Sequence[datetime]) -> list[list[Note]]:
    """The notes of each of the consecutive *firings* after *origin*, all in one zone."""
    row = [origin, *firings]
    return [[*_since(expression, earlier, firing), *_repetition(firing)] for earlier, firing in pairwise(row)]


def clock_changes(zone: tzinfo, after: datetime, until: datetime) -> Iterator[ClockChange]:
    """The clock changes of *zone* later than one instant and not later than another."""
    last = _naive_utc(until)
    for span, next_span in pairwise(timeline(zone).from_instant(_naive_utc(after))):
        if span.ends > last:
            return
        if span.offset != next_span.offset:
            yield ClockChange(span.ends + span.offset, span.ends + next_span.offset, next_span.offset)


def skipped_times(expression: CronExpression, change: ClockChange) -> list[datetime]:
    """The naive civil times that *expression* names and *change* skips."""
    found: list[datetime] = []
    # A clock that shows everything: UTC's.
    face = change.shown_before.replace(tzinfo=UTC) - _MICROSECOND
    end = change.shown_after.replace(tzinfo=UTC)
    while change.is_forward:
        try:
            face = expression.next_after(face)
        except CronCalculationError:
            break
        if face >= end:
            break
        found.append(face.replace(tzinfo=None))
    return found


def _since(expression: CronExpression, earlier: datetime, firing: datetime) -> Iterator[Note]:
    """What the clocks did between one firing and the next."""
    assert firing.tzinfo is not None
    changes = list(clock_changes(firing.tzinfo, earlier, firing))
    for change in changes:
        skipped = skipped_times(expression, change)
        if skipped or len(changes) == 1:
            yield Note("forward" if change.is_forward else "back", _change_text(change, skipped))
    if len(changes) > 1 and earlier.utcoffset() != firing.utcoffset():
        offset = firing.utcoffset()
        assert offset is not None
        yield Note("offset", f"offset is now {offset_text(offset)}")


def _repetition(firing: datetime) -> Iterator[Note]:
    span = timeline(firing.tzinfo).holding(firing)
    if span is not None and firing >= span.once:
        yield Note("repeated", f"{firing:%H:%M} is shown twice: due the first time only")


def _change_text(change: ClockChange, skipped: list[datetime]) -> str:
    direction = "forward" if change.is_forward else "back"
    shift = spelled_length(duration_us(abs(change.shown_after - change.shown_before)))
    text = (
        f"clocks go {direction} by {shift} at {change.shown_before:%H:%M} on {change.shown_before:%Y-%m-%d};"
        f" offset is now {offset_text(change.offset)}"
    )
    return f"{text}; {_skipped_text(skipped)}: skipped" if skipped else text


def _skipped_text(skipped: list[datetime]) -> str:
    times = [f"{time:%H:%M}" for time in skipped]
    if len(times) == 1:
        return f"{times[0]} does not occur"
    if len(times) <= _MOST_LISTED:
        return f"{joined(times, 'and')} do not occur"
    return f"{len(times)} times from {times[0]} to {times[-1]} do not occur"


def offset_text(offset: timedelta) -> str:
    """An offset as isoformat writes it: +02:00, -00:44:30."""
    sign, size = ("-", -offset) if offset < timedelta(0) else ("+", offset)
    minutes, seconds = divmod(size // timedelta(seconds=1), 60)
    shown = f"{sign}{minutes // 60:02}:{minutes % 60:02}"
    return f"{shown}:{seconds:02}" if seconds else shown


def _naive_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)
