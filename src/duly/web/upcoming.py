"""What only timers know: the slots that come, and what became of those that were. Pure.

Imported when the gate is open, and not before (TIMERS.md 7).
"""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import NamedTuple

from duly.config.schema import Timer
from duly.daemon.views import TimerReading
from duly.daemon.words import schedule_words
from duly.instant import NEVER_US, Instant
from duly.store.history import MissRow, RunRow
from duly.timers.calendar import CalendarShelf, slot_after, zone_of
from duly.timers.slots import Fired, Missed, Record, SlotAnswer, why_latest
from duly.web import words

Shelf = CalendarShelf
"""The schedules of timers."""


class Answer(NamedTuple):
    """What became of one slot."""

    mark: words.Mark
    sentence: str
    run: int | None


def slots_ahead(timer: Timer, shelf: Shelf, now_us: Instant, until_us: Instant, most: int) -> list[Instant]:
    """The slots of a timer's calendar after *now_us*."""
    return list(_ahead(timer, shelf, now_us, until_us, most))


def _ahead(timer: Timer, shelf: Shelf, now_us: Instant, until_us: Instant, most: int) -> Iterator[Instant]:
    calendars = shelf.of(timer)
    at_us = now_us
    for _ in range(most):
        at_us = slot_after(calendars, at_us)
        if at_us >= NEVER_US or at_us > until_us:
            return
        yield at_us


def answers(
    timer: Timer,
    reading: TimerReading,
    runs: Sequence[RunRow],
    misses: Sequence[MissRow],
    *,
    shelf: Shelf,
    default: tzinfo,
    now_us: Instant,
    count: int,
) -> list[Answer]:
    """What became of a timer's latest slots, newest first; what `duly why` would say of each."""
    record = Record(
        timer.id,
        shelf.of(timer),
        zone_of(timer, default),
        now_us,
        reading.registered_us,
        reading.answered_us,
        [
            Fired(
                row.id,
                row.reason,
                row.started_us,
                row.ended_us,
                row.result,
                row.scheduled_us,
                row.lasted_us,
            )
            for row in runs
        ],
        [Missed(row.at_us, row.reason) for row in misses],
        schedule=schedule_words(timer),
        next_us=reading.next_us,
    )
    return [_told(answer) for answer in reversed(why_latest(record, count))]


def _told(answer: SlotAnswer) -> Answer:
    mark = words.SLOTS.get(str(answer.kind), words.Mark("calm", "none", str(answer.kind).replace("-", " ")))
    if answer.run is not None and answer.run.result not in {None, "success"} and mark.tone == "good":
        mark = mark._replace(tone="warn")
    return Answer(mark, answer.sentence, None if answer.run is None else answer.run.id)
