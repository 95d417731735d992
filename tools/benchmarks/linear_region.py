"""The program that callgrind counts: arguments REGION N NAME_LENGTH DOWNTIME_MINUTES TEXTS DUE.

It prepares everything, does all steps up to REGION, and ends. The instructions of a region are those of a
process that goes through it less those of one that stops right before it. Storage is a stub that serialises
as the SQLite store does and writes nowhere; hashing is fixed and nothing is collected.
"""

import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from zoneinfo import ZoneInfo

import msgspec
from tools.benchmarks.on_duly import forget_all
from tools.benchmarks.tasks import BEFORE_DUE, Registration, registrations

from duly import Scheduler
from duly.core.record import Record, record_of, state_of
from duly.core.task import Task, registered
from duly.core.timetable import CronTimetable, minute_begun
from duly.cron import CronExpression
from duly.instant import duration_us, instant_of
from duly.store import Contents
from duly.testing import VirtualClock

REGIONS = ("fresh: prepare", "fresh: initialize", "fresh: poll", "known: prepare", "known: initialize")
_ZONE = ZoneInfo("America/New_York")
_NOON = BEFORE_DUE.replace(tzinfo=_ZONE)


class StubStore:
    """Serialises and forgets."""

    name = "stub"

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = records
        self._encoded = msgspec.json.Encoder().encode
        self.bytes_written = 0

    async def open(self, new_id: str) -> Contents:
        """Nothing, or what was prepared."""
        return Contents(new_id, self._records)

    async def replace(self, *, put: Sequence[Task], removed: Sequence[int]) -> None:
        """Serialise whole tasks."""
        self.bytes_written += len(self._encoded([record_of(task) for task in put]).decode())
        self.bytes_written += len(self._encoded(removed).decode())

    async def save(self, tasks: Sequence[Task]) -> None:
        """Serialise what running changed."""
        self.bytes_written += len(self._encoded([(task.id, *state_of(task)) for task in tasks]).decode())

    async def close(self) -> None:
        """Nothing to do."""

    async def drop(self) -> None:
        """Nothing to do."""


_calls = 0


async def _work() -> None:
    global _calls  # noqa: PLW0603 (the cheapest way to count)
    _calls += 1


def _registrations(n: int, name_length: int, due: int, *, distinct: bool) -> list[Registration]:
    """*n* registrations. The first *due* are due at the same minute, the others are not."""
    then, later = (
        registrations(n, distinct=distinct, due=is_due, callback=_work) for is_due in (True, False)
    )
    return [
        (name.rjust(name_length, "x"), text, callback, delay)
        for name, text, callback, delay in [*then[:due], *later[due:]]
    ]


def _records(tasks: Sequence[Registration]) -> list[Record]:
    """The tasks as a store would give them back, registered when it went down; no cache is warm."""
    now_us = instant_of(_NOON)
    schedules = {text: CronTimetable(CronExpression.parse(text), _ZONE) for _, text, _, _ in tasks}
    records = [
        record_of(
            registered(
                id=i,
                name=name,
                schedule=schedules[text],
                retry_delay_us=duration_us(delay),
                now_us=now_us,
                minute_us=minute_begun(now_us, _ZONE),
                scheduler_id="id",
            )
        )
        for i, (name, text, _, delay) in enumerate(tasks, 1)
    ]
    forget_all()
    return list(records)


async def _go_through(region: str, tasks: list[Registration], due: int, downtime: timedelta) -> None:
    """Go through *region*, and check that it held the runs it should: a wrong boundary looks linear too."""
    is_known = region.startswith("known")
    # A new store is opened half a minute before all are due, a known one when all are overdue.
    clock = VirtualClock(_NOON + downtime if is_known else _NOON)
    scheduler = Scheduler(StubStore(_records(tasks) if is_known else ()), clock=clock, timezone=_ZONE)
    if region.endswith("prepare"):
        return
    await scheduler.initialize(tasks)
    if is_known:  # to the end of the runs it owes, wherever between here and there they are started
        await clock.advance(timedelta(0))
    if region.endswith("poll"):
        await clock.advance(timedelta(seconds=30))
    expected = 0 if region == "fresh: initialize" else due
    assert _calls == expected, f"{_calls} calls instead of {expected}"


def main() -> None:
    """Go through what the command line names, and end at once."""
    region, n, name_length, downtime_minutes, texts, due_or_all = sys.argv[1:]
    due = int(n if due_or_all == "all" else due_or_all)
    gc.disable()
    tasks = _registrations(int(n), int(name_length), due, distinct=texts == "distinct")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_go_through(region, tasks, due, timedelta(minutes=int(downtime_minutes))))
    # Without the teardown of the interpreter, which would free every task once more in the counts.
    os._exit(0)


if __name__ == "__main__":
    main()
