import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import apsw
import pytest
from examples.demo.memory import COUNTED_DUES, DemoMemory, dues_missed, memories_in, story_of
from examples.demo.tasks import EVERY_FIVE, EVERY_MINUTE

from duly import Scheduler
from duly.instant import instant_of
from duly.testing import VirtualClock, crash

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NOON_US = instant_of(NOON)
SECOND_US = 1_000_000


def memory(
    name: str = "steady", cron: str = EVERY_MINUTE, *, answered_s: int = 0, **known: Any
) -> DemoMemory:
    """A task registered and last started so many seconds before noon."""
    at_us = NOON_US - answered_s * SECOND_US
    return DemoMemory(name, cron, registered_us=at_us, answered_us=at_us)._replace(**known)


def test_an_empty_memory_begins_a_new_story() -> None:
    """Without memories a new story begins."""
    (sentence,) = story_of([], NOON_US, UTC)
    assert sentence.startswith("a new story begins")


def test_the_story_tells_what_was_cut_off_and_missed() -> None:
    """A return after a crash tells how long ago it was, who was cut off, and how many dues were missed."""
    memories = [memory(answered_s=125), memory("important", answered_s=125, is_cut_off=True)]
    assert story_of(memories, NOON_US, UTC) == (
        "welcome back: last seen 2m ago",
        "important was cut off, it restarts now",
        "6 dues were missed, each task runs once",
    )


def test_the_story_knows_one_from_many() -> None:
    """One missed due is told in the singular, two tasks cut off in the plural."""
    memories = [memory(name, EVERY_FIVE, answered_s=10, is_cut_off=True) for name in ("slow", "important")]
    assert story_of([*memories, memory(answered_s=59)], NOON_US + SECOND_US, UTC)[1:] == (
        "slow and important were cut off, they restart now",
        "3 dues were missed, each task runs once",
    )
    assert story_of([memory(answered_s=1)], NOON_US, UTC)[1] == "1 due was missed, each task runs once"


def test_a_quick_return_has_missed_nothing() -> None:
    """When no minute has begun since, nothing was missed."""
    assert story_of([memory(answered_s=0)], NOON_US + SECOND_US, UTC)[1] == "nothing was missed"


@pytest.mark.parametrize(("left_s", "when"), [(3, "in 3s"), (-3, "now")])
def test_the_story_tells_of_a_pending_retry(left_s: int, when: str) -> None:
    """A retry that was pending is told with the time that is left of its delay."""
    story = story_of([memory("flaky", retry_at_us=NOON_US + left_s * SECOND_US)], NOON_US, UTC)
    assert story[-1] == f"flaky had failed, its retry is due {when}"


def test_a_long_absence_is_not_counted_through() -> None:
    """After years away the dues are not counted to the end."""
    years_us = 20 * 365 * 86_400 * SECOND_US
    assert dues_missed(memory(), NOON_US + years_us, UTC) == COUNTED_DUES + 1
    assert "over 1000 dues were missed" in story_of([memory()], NOON_US + years_us, UTC)[1]


def test_a_repeated_hour_is_missed_once() -> None:
    """The second pass through the hour that the end of summer time repeats brings no missed dues."""
    berlin = ZoneInfo("Europe/Berlin")
    before = instant_of(datetime(2026, 10, 25, 2, 59, tzinfo=berlin))
    assert dues_missed(memory()._replace(answered_us=before), before + 3600 * SECOND_US, berlin) == 0


def test_an_unreadable_cron_misses_nothing() -> None:
    """A damaged cron text in the store does not spoil the story; the scheduler will complain."""
    assert dues_missed(memory(cron="what"), NOON_US, UTC) == 0


def test_no_file_is_no_memory(tmp_path: Path) -> None:
    """A missing file, a directory, a text file and a foreign database hold no memories."""
    text, other = tmp_path / "text.db", tmp_path / "other.db"
    text.write_text("not a database, but long enough to be looked at" * 100)
    apsw.Connection(str(other)).execute("CREATE TABLE note (text)")
    for path in (tmp_path / "none.db", tmp_path, text, other):
        assert memories_in(str(path)) == []
    assert not (tmp_path / "none.db").exists()


def test_memories_are_read_from_a_crashed_store(tmp_path: Path) -> None:
    """What a scheduler wrote before it crashed is read back, the run in flight as cut off."""
    store = tmp_path / "state.db"

    async def fails() -> None:
        raise OSError

    async def play() -> None:
        clock = VirtualClock(NOON)

        async def hangs() -> None:
            await clock.sleep_until(NOON + timedelta(days=1))

        scheduler = Scheduler(store, clock=clock, timezone=UTC)
        await scheduler.initialize(
            [
                (name, EVERY_MINUTE, callback, timedelta(seconds=5))
                for name, callback in (("a", fails), ("b", hangs))
            ]
        )
        await clock.advance(timedelta(seconds=1))
        await crash(scheduler)

    asyncio.run(play())
    first, second = memories_in(str(store))
    assert (first.name, first.last_failure_us, first.retry_at_us) == ("a", NOON_US, NOON_US + 5 * SECOND_US)
    assert not first.is_cut_off
    assert second.is_cut_off
