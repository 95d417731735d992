"""Why a timer fired, or did not fire, for a slot of its calendar: one answer, from its runs and misses. Pure.

What is recorded for the very slot comes first. Of several slots that passed while the daemon was down only
the latest is recorded, so an older one is answered by what came next. What nothing is recorded of is said to
be so, never guessed.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from enum import StrEnum
from functools import partial
from itertools import islice

from duly.config.schema import Timer
from duly.core.causes import SLOTS_ANSWERED_BY, Reason
from duly.daemon.views import MISSES, TimerSnapshot, schedule_text
from duly.formatting import spelled_length
from duly.instant import EARLIEST_US, MINUTE_US, NEVER_US, Instant
from duly.store.history import MissRow, RunRow, length_us
from duly.timers.calendar import CalendarCache, Calendars, slot_after, slot_at_or_before, zone_of
from duly.verify.reasons.answers import Skip, Words, face_text, first_shown_us, minute_of

LATEST_RUNS = 5
"""How many runs are shown of a timer that has no slots."""

_LATEST_COUNTS = "of several slots that passed together only the latest counts"


class SlotKind(StrEnum):
    """What there is to say of a minute."""

    FIRED = "fired"
    MISSED = "missed"
    MERGED = "merged"
    PENDING = "pending"
    AHEAD = "ahead"
    NOT_REGISTERED = "not-registered"
    NO_SLOT = "no-slot"
    SKIPPED = "skipped"
    REPEATED = "repeated"
    NO_RECORD = "no-record"


@dataclass(frozen=True, slots=True)
class SlotAnswer:
    """What became of one slot."""

    kind: SlotKind
    sentence: str
    slot_us: Instant | None = None
    run: RunRow | None = None
    miss: MissRow | None = None
    late_us: int | None = None
    runs: tuple[RunRow, ...] = ()
    """What else the timer started within that minute; its latest runs, where no minute was asked for."""


@dataclass(frozen=True, slots=True)
class TimerPast:
    """What is known of a timer at *now_us*."""

    name: str
    calendars: Calendars
    zone: tzinfo
    now_us: Instant
    registered_us: Instant | None
    answered_us: Instant | None
    runs: Sequence[RunRow]
    misses: Sequence[MissRow]
    is_live: bool = True
    """Whether a daemon is at work on it."""
    schedule: str = ""
    """Its triggers in words."""
    next_us: Instant | None = None

    @property
    def begins_us(self) -> Instant | None:
        """The oldest of what is kept."""
        times = [run.started_us for run in self.runs] + [miss.at_us for miss in self.misses]
        return min(times, default=None)


def record_of(
    timer: Timer,
    snapshot: TimerSnapshot,
    daemon_zone: tzinfo,
    now_us: Instant,
    *,
    runs: Sequence[RunRow],
    misses: Sequence[MissRow],
    is_live: bool = True,
) -> TimerPast:
    """What a daemon in *daemon_zone* knows of one of its timers."""
    return TimerPast(
        timer.id,
        CalendarCache(daemon_zone).of(timer),
        zone_of(timer, daemon_zone),
        now_us,
        snapshot.registered_us,
        snapshot.answered_us,
        runs,
        misses,
        is_live=is_live,
        schedule=schedule_text(timer),
        next_us=snapshot.next_us,
    )


def slots_of(
    timer: Timer, daemon_zone: tzinfo, registered_us: Instant | None
) -> Callable[[Instant], Instant]:
    """What answers with the first slot of a timer that is later than an instant."""
    return partial(slot_after, CalendarCache(daemon_zone).of(timer), anchor_us=registered_us or 0)


def firings_after(
    timers: Iterable[Timer],
    snapshots: Mapping[str, TimerSnapshot],
    daemon_zone: tzinfo,
    now_us: Instant,
    count: int,
) -> list[tuple[Instant, str]]:
    """The next firings of some timers together, in order, each with the id of its timer."""
    cache = CalendarCache(daemon_zone)
    return list(
        islice(
            heapq.merge(*(_firings(timer, snapshots.get(timer.id), cache, now_us) for timer in timers)), count
        )
    )


def _firings(
    timer: Timer, snapshot: TimerSnapshot | None, cache: CalendarCache, now_us: Instant
) -> Iterator[tuple[Instant, str]]:
    if snapshot is None or snapshot.fault is not None or snapshot.next_us is None:
        return  # it is disabled, or nothing is due
    # First what stands now, such as a retry or an interval, which no calendar has.
    at_us = max(snapshot.next_us, now_us)
    calendars, anchor_us = cache.of(timer), snapshot.registered_us or 0
    while at_us < NEVER_US:
        yield at_us, timer.id
        at_us = slot_after(calendars, at_us, anchor_us)


def why(record: TimerPast, at: datetime | None = None) -> SlotAnswer:
    """What became of the slot in the minute of *at*, or of the latest slot."""
    if at is None:
        slot_us = slot_at_or_before(record.calendars, record.now_us, record.registered_us or 0)
        if slot_us is None or slot_us == record.registered_us:  # a fixed rate counts from there
            return _no_slot_yet(record)
        return _slot(record, slot_us)
    minute = minute_of(at, record.zone)
    if isinstance(minute, Skip):
        went = f"the clocks went from {minute.before:%H:%M} to {minute.after:%H:%M}"
        said = f"had no slot at {face_text(minute.face)}: that minute did not occur, {went}"
        return SlotAnswer(SlotKind.SKIPPED, _sentence(record, said))
    return _minute(record, minute)


def why_latest(record: TimerPast, count: int, at: datetime | None = None) -> list[SlotAnswer]:
    until_us = record.now_us
    if at is not None:
        minute = minute_of(at, record.zone)
        until_us = min(until_us, minute.at_us if isinstance(minute, Skip) else minute)
    return [_slot(record, slot_us) for slot_us in reversed(list(_back(record, until_us, count)))]


def _back(record: TimerPast, until_us: Instant, count: int) -> Iterator[Instant]:
    for _ in range(count):
        slot_us = slot_at_or_before(record.calendars, until_us, record.registered_us or 0)
        if slot_us is None or slot_us <= max(record.registered_us or EARLIEST_US, EARLIEST_US):
            return
        yield slot_us
        until_us = slot_us - 1


def _minute(record: TimerPast, minute_us: Instant) -> SlotAnswer:
    slot_us = slot_after(record.calendars, minute_us - 1, record.registered_us or 0)
    if slot_us < minute_us + MINUTE_US:
        return _slot(record, slot_us)
    words = Words(record.zone)
    first_us = first_shown_us(minute_us, record.zone)
    if (
        first_us is not None
        and slot_after(record.calendars, first_us - 1, record.registered_us or 0) == first_us
    ):
        said = (
            f"had no slot at {words.time(minute_us)}: the clocks showed that minute a second time, "
            f"and its slot was the first time, at {words.time(first_us)}"
        )
        return _within(record, SlotAnswer(SlotKind.REPEATED, _sentence(record, said), minute_us))
    return _within(record, _no_slot(record, minute_us, words))


def _no_slot(record: TimerPast, minute_us: Instant, words: Words) -> SlotAnswer:
    if not record.calendars:
        said = f"has no calendar that ever comes, so {words.time(minute_us)} is no slot of it"
        return SlotAnswer(SlotKind.NO_SLOT, _sentence(record, said), minute_us)
    before_us = slot_at_or_before(record.calendars, minute_us, record.registered_us or 0)
    after_us = slot_after(record.calendars, minute_us, record.registered_us or 0)
    around = [f"before it at {words.time(before_us)}"] if before_us is not None else []
    around += [f"after it at {words.time(after_us)}"] if after_us < NEVER_US else []
    said = f"has no slot at {words.time(minute_us)}; its slots are {' and '.join(around)}"
    return SlotAnswer(SlotKind.NO_SLOT, _sentence(record, said), minute_us)


def _no_slot_yet(record: TimerPast) -> SlotAnswer:
    schedule = f"; its schedule: {record.schedule}" if record.schedule else ""
    said = f"has had no slot {'yet' if record.calendars else 'of a calendar'}{schedule}"
    latest = sorted(record.runs, key=lambda run: run.started_us, reverse=True)[:LATEST_RUNS]
    return SlotAnswer(SlotKind.NO_SLOT, _sentence(record, said), runs=tuple(latest))


def _slot(record: TimerPast, slot_us: Instant) -> SlotAnswer:
    """The answer for a minute that is a slot."""
    words = Words(record.zone)
    at = words.time(slot_us)
    if slot_us > record.now_us:
        return _answer(record, SlotKind.AHEAD, slot_us, f"has a slot at {at}, which is yet to come")
    if (run := next((run for run in record.runs if run.scheduled_us == slot_us), None)) is not None:
        return _fired(record, slot_us, run, words)
    if (miss := next((miss for miss in record.misses if miss.at_us == slot_us), None)) is not None:
        said = f"missed its slot at {at}: {_why_missed(miss)}"
        return replace(_answer(record, SlotKind.MISSED, slot_us, said), miss=miss)
    if record.registered_us is None or slot_us <= record.registered_us:
        since = "" if record.registered_us is None else f" until {words.time(record.registered_us)}"
        said = f"had no slot to answer at {at}: it was not known as it is now{since}"
        return _answer(record, SlotKind.NOT_REGISTERED, slot_us, said)
    if record.answered_us is None or slot_us > record.answered_us:
        rest = (
            "the daemon has not come to it"
            if record.is_live
            else "the daemon is down, and decides when it starts"
        )
        return _answer(record, SlotKind.PENDING, slot_us, f"has not answered its slot at {at} yet: {rest}")
    return _by_what_came_next(record, slot_us, words)


def _by_what_came_next(record: TimerPast, slot_us: Instant, words: Words) -> SlotAnswer:
    """The answer for a slot that has no record of its own."""
    at, begins_us = words.time(slot_us), record.begins_us
    if begins_us is None or begins_us > slot_us:
        kept = "nothing is kept" if begins_us is None else f"what is kept begins at {words.time(begins_us)}"
        said = f"has no record of its slot at {at}: {kept}, older history was pruned"
        if begins_us is None or not _is_next_of_outage(record, slot_us):
            return _answer(record, SlotKind.NO_RECORD, slot_us, said)
    fresh = [run for run in record.runs if run.started_us >= slot_us and run.reason in SLOTS_ANSWERED_BY]
    run = min(fresh, key=lambda run: run.started_us, default=None)
    later = [miss for miss in record.misses if miss.at_us > slot_us]
    miss = min(later, key=lambda miss: miss.at_us, default=None)
    if run is not None and (miss is None or run.started_us <= miss.at_us):
        return _merged_or_fired(record, slot_us, run, words)
    if miss is not None:
        stands = (
            f"that of {words.time(miss.at_us)} stands for it, and was missed as well: {_why_missed(miss)}"
        )
        said = f"did not fire for its slot at {at}: {_LATEST_COUNTS}; {stands}"
        return replace(_answer(record, SlotKind.MERGED, slot_us, said), miss=miss)
    return _answer(record, SlotKind.NO_RECORD, slot_us, f"has no record of its slot at {at}")


def _is_next_of_outage(record: TimerPast, slot_us: Instant) -> bool:
    """Whether the oldest that is kept is a catch-up or a miss, which stand for the slots before them."""
    begins_us = record.begins_us
    oldest = [run.reason for run in record.runs if run.started_us == begins_us]
    missed = [miss.reason for miss in record.misses if miss.at_us == begins_us]
    has_none_between = not [run for run in record.runs if slot_us <= run.started_us < (begins_us or 0)]
    return has_none_between and (Reason.CATCH_UP in oldest or "shutdown" in missed)


def _merged_or_fired(record: TimerPast, slot_us: Instant, run: RunRow, words: Words) -> SlotAnswer:
    if run.scheduled_us is None or run.scheduled_us < slot_us or run.reason != Reason.CATCH_UP:
        return _fired(record, slot_us, run, words)
    began = words.clock(run.started_us, slot_us)
    stands = f"run {run.id} at {began} caught up for that of {words.time(run.scheduled_us)}"
    said = f"did not fire for its slot at {words.time(slot_us)}: {_LATEST_COUNTS}, and {stands}"
    late_us = run.started_us - slot_us
    return replace(_answer(record, SlotKind.MERGED, slot_us, said), run=run, late_us=late_us)


def _fired(record: TimerPast, slot_us: Instant, run: RunRow, words: Words) -> SlotAnswer:
    late_us = max(run.started_us - slot_us, 0)
    late = f", {spelled_length(late_us)} late" if late_us >= 1_000_000 else ""
    began = f"run {run.id} ({run.reason}) began at {words.clock(run.started_us, slot_us)}{late}"
    said = f"fired for its slot at {words.time(slot_us)}: {began}, {_ending(run)}"
    return replace(_answer(record, SlotKind.FIRED, slot_us, said), run=run, late_us=late_us)


def _ending(run: RunRow) -> str:
    lasted_us = None if run.ended_us is None else length_us(run)
    if lasted_us is None:
        return "and has not ended" if run.result is None else f"and its end is {run.result}"
    return f"and ended with {run.result} after {spelled_length(lasted_us)}"


def _why_missed(miss: MissRow) -> str:
    words = MISSES.get(miss.reason)
    return f"{words} ({miss.reason})" if words is not None else miss.reason


def _within(record: TimerPast, answer: SlotAnswer) -> SlotAnswer:
    """With what the timer started in that minute for other reasons."""
    at_us = answer.slot_us
    assert at_us is not None
    runs = tuple(run for run in record.runs if at_us <= run.started_us < at_us + MINUTE_US)
    return replace(answer, runs=runs)


def _answer(record: TimerPast, kind: SlotKind, slot_us: Instant, said: str) -> SlotAnswer:
    return SlotAnswer(kind, _sentence(record, said), slot_us)


def _sentence(record: TimerPast, said: str) -> str:
    return f'"{record.name}" {said}.'
