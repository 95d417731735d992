"""What only timers know: the slots that come, and what became of those that were. Pure.

Imported when the timers are on, and not before (spec/timers.md 7).
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from duly.config.schema import Timer
from duly.daemon.slots import SlotAnswer, record_of, slots_of, why, why_latest
from duly.daemon.views import TimerSnapshot
from duly.instant import Instant, datetime_at
from duly.store.history import MissRow, RunRow
from duly.web import formatting
from duly.web.formatting import Mark, Moment
from duly.web.models import TimerEntry, instants_after
from duly.web.source import DueAnswer


def zone_of_timer(timer: Timer, zone: tzinfo) -> tzinfo:
    return zone if timer.timezone is None else ZoneInfo(timer.timezone)


def slots_ahead(
    timer: Timer, snapshot: TimerSnapshot, moment: Moment, until_us: Instant, most: int
) -> list[Instant]:
    following = slots_of(timer, moment.zone, snapshot.registered_us)
    return instants_after(following, moment.now_us, until_us, most)


class ShownPast(NamedTuple):
    """What is known of the past of a timer."""

    entry: TimerEntry
    runs: Sequence[RunRow]
    misses: Sequence[MissRow]
    moment: Moment
    zone: tzinfo
    """Of schedules that give none."""

    def answers(self, count: int, at: datetime | None) -> tuple[list[DueAnswer], DueAnswer | None]:
        """What became of the latest slots, newest first, and of the minute *at*: as `duly why` says it."""
        entry, now_us = self.entry, self.moment.now_us
        record = record_of(entry.timer, entry.snapshot, self.zone, now_us, runs=self.runs, misses=self.misses)
        record = replace(record, zone=self.moment.zone_of(record.zone))
        latest = [
            _answer(answer) for answer in reversed(why_latest(record, count)) if self._is_certain(answer)
        ]
        return latest, None if at is None else _answer(why(record, at))

    def _is_certain(self, answer: SlotAnswer) -> bool:
        """Of a shared timer only what is on record: another machine may run it now, or have noted a miss."""
        if self.entry.snapshot.member is None:
            return True
        if answer.run is not None:
            return answer.run.scheduled_us == answer.slot_us
        return answer.miss is not None and answer.miss.at_us == answer.slot_us


def _answer(answer: SlotAnswer) -> DueAnswer:
    kind = str(answer.kind)
    mark = formatting.SLOTS.get(kind, Mark("calm", "none", kind.replace("-", " ")))
    if answer.run is not None and answer.run.result not in {None, "success"} and mark.tone == "good":
        mark = mark._replace(tone="warn")
    return DueAnswer(mark, answer.sentence, answer.run)


def clock_notes(dues: Sequence[Instant], now_us: Instant, zone: tzinfo) -> dict[Instant, str]:
    """Which of some *dues* come after the clocks were set, and which when they show an hour again."""
    notes, before = {}, _offset(now_us, zone)
    for at_us in dues:
        offset, is_again = _offset(at_us, zone), datetime_at(at_us, zone).fold
        if offset != before:
            way = "forward" if offset > before else "back"
            notes[at_us] = f"after the clocks go {way} {formatting.length(_us(abs(offset - before)))}"
        if is_again:
            notes[at_us] = "the second time that the clocks show this"
        before = offset
    return notes


def _offset(at_us: Instant, zone: tzinfo) -> timedelta:
    return datetime_at(at_us, zone).utcoffset() or timedelta(0)


def _us(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
