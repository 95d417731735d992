"""What the store remembers before the demo begins, and the story it makes.

The file is only read, and let go before the scheduler takes hold of it. What cannot be read is no memory
here; the scheduler will say what is wrong with it.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta, tzinfo
from pathlib import Path
from typing import NamedTuple

import apsw
from examples.demo.formatting import ago, amount, joined, length_ahead

from duly.core.timetable import CronTimetable
from duly.cron import CronExpression
from duly.errors import InvalidCronExpressionError
from duly.instant import Instant

_QUERY = """
SELECT name, cron, registered_us, answered_us, last_attempt_us, last_success_us, last_failure_us, retry_at_us,
       interrupted OR running_since_us IS NOT NULL AS is_cut_off
FROM task ORDER BY id
"""

COUNTED_DUES = 1_000
"""Missed dues are counted up to here; after a year away nobody needs the number."""


class DemoMemory(NamedTuple):
    """What the store remembers of one task."""

    name: str
    cron: str
    registered_us: Instant
    answered_us: Instant
    last_attempt_us: Instant | None = None
    last_success_us: Instant | None = None
    last_failure_us: Instant | None = None
    retry_at_us: Instant | None = None
    is_cut_off: bool = False
    """It was running when the process died, and has not been started since."""

    @property
    def last_seen_us(self) -> Instant:
        """The last sign of life."""
        times_us = (self.registered_us, self.last_attempt_us, self.last_success_us, self.last_failure_us)
        return max(us for us in times_us if us is not None)


def memories_in(store: str) -> list[DemoMemory]:
    """What the SQLite file *store* remembers: nothing when it is missing, or no store of ours."""
    if not Path(store).is_file():
        return []
    try:
        connection = apsw.Connection(store, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return [DemoMemory._make(row) for row in connection.execute(_QUERY)]
        finally:
            connection.close()
    except apsw.Error:
        return []


def story_of(memories: Sequence[DemoMemory], now_us: Instant, zone: tzinfo) -> tuple[str, ...]:
    """The story so far, in sentences; *zone* is that of the crons."""
    if not memories:
        return ("a new story begins: each task whose minute this is starts at once",)
    seen = ago(_span(max(memory.last_seen_us for memory in memories), now_us))
    return (
        f"welcome back: last seen {seen}",
        *_cut_off_lines(memories),
        _missed_line(memories, now_us, zone),
        *_retry_lines(memories, now_us),
    )


def _cut_off_lines(memories: Iterable[DemoMemory]) -> list[str]:
    names = [memory.name for memory in memories if memory.is_cut_off]
    if not names:
        return []
    told = "was cut off, it restarts now" if len(names) == 1 else "were cut off, they restart now"
    return [f"{joined(names)} {told}"]


def _missed_line(memories: Iterable[DemoMemory], now_us: Instant, zone: tzinfo) -> str:
    counts = [dues for memory in memories if (dues := dues_missed(memory, now_us, zone))]
    total = sum(counts)
    if not total:
        return "nothing was missed"
    told = f"over {COUNTED_DUES} dues were" if total > COUNTED_DUES else amount(total, "due was", "dues were")
    return f"{told} missed, each task runs once"


def _retry_lines(memories: Iterable[DemoMemory], now_us: Instant) -> list[str]:
    return [
        f"{memory.name} had failed, its retry is due {length_ahead(_span(now_us, memory.retry_at_us))}"
        for memory in memories
        if memory.retry_at_us is not None and not memory.is_cut_off
    ]


def dues_missed(memory: DemoMemory, now_us: Instant, zone: tzinfo) -> int:
    """How many dues of a task have passed unanswered; never more than one beyond COUNTED_DUES."""
    try:
        schedule = CronTimetable(CronExpression.parse(memory.cron), zone)
    except InvalidCronExpressionError:
        return 0
    count, due_us = 0, memory.answered_us
    while count <= COUNTED_DUES and (due_us := schedule.due_after(due_us)) <= now_us:
        count += 1
    return count


def _span(from_us: Instant, to_us: Instant) -> timedelta:
    return timedelta(microseconds=to_us - from_us)
