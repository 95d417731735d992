"""Why a timer fired, or did not, slot by slot."""

from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duly.config.schema import Calendar, Timer
from duly.daemon.slots import SlotKind, TimerPast, record_of, why, why_latest
from duly.daemon.views import TimerSnapshot
from duly.instant import SECOND_US
from duly.store.history import MissRow, RunRow
from duly.timers.calendar import CalendarCache
from tests.worlds.daemons import us

DAILY = (Calendar(minute=(30,), hour=(3,)),)
BERLIN = ZoneInfo("Europe/Berlin")


def day(number: int, clock: str = "03:30") -> int:
    """An instant of January 2026."""
    return us(f"2026-01-{number:02} {clock}")


def at(text: str) -> datetime:
    """A time by the clocks of the zone."""
    return datetime.fromisoformat(text)


def record(
    *rows: RunRow | MissRow,
    calendars: tuple[Calendar, ...] = DAILY,
    zone: tzinfo = UTC,
    answered_us: int | None = day(10),
    now_us: int = day(10, "12:00"),
) -> TimerPast:
    timer = Timer("nightly", "backup", on_calendar=calendars)
    return TimerPast(
        "nightly",
        CalendarCache(zone).of(timer),
        zone,
        now_us,
        day(2, "00:00"),
        answered_us,
        [row for row in rows if isinstance(row, RunRow)],
        [row for row in rows if isinstance(row, MissRow)],
    )


def fired(number: int, clock: str = "03:30", reason: str = "schedule", slot: int | None = None) -> RunRow:
    started_us = day(number, clock)
    slot_us = started_us if slot is None else slot
    row = begun(number, reason, started_us, scheduled_us=slot_us)
    return msgspec.structs.replace(row, ended_us=started_us + 5_000_000, result="success")


def begun(number: int, reason: str, started_us: int, scheduled_us: int | None = None) -> RunRow:
    return RunRow(id=number, service="job", reason=reason, started_us=started_us, scheduled_us=scheduled_us)


def test_fired() -> None:
    """A run for the very slot is the answer, with how late it was and how it ended."""
    found = why(record(fired(10)))
    assert (found.kind, found.slot_us, found.late_us) == (SlotKind.FIRED, day(10), 0)
    assert found.sentence == (
        '"nightly" fired for its slot at 2026-01-10 03:30: run 10 (schedule) began at 03:30,'
        " and ended with success after 5 s."
    )


def test_caught_up() -> None:
    """A run that came late for its slot says how late."""
    found = why(record(fired(10, "06:00", "catch-up", day(10))), at("2026-01-10 03:30"))
    assert (found.kind, found.late_us) == (SlotKind.FIRED, 150 * 60 * 1_000_000)
    assert "run 10 (catch-up) began at 06:00, 2 h 30 min late" in found.sentence


def test_still_running() -> None:
    """A run that has not ended is said to have not."""
    found = why(record(begun(10, "schedule", day(10), day(10))))
    assert found.sentence.endswith("and has not ended.")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("overlap", "its target was still active, or its lock held (overlap)"),
        ("disabled", "the timer was disabled (disabled)"),
        ("disabled-target", "its target was disabled (disabled-target)"),
        ("target-not-found", "its target was not there (target-not-found)"),
        ("shutdown", "the daemon was down, stopping or asleep (shutdown)"),
        ("eclipse", "eclipse"),
    ],
)
def test_missed(reason: str, words: str) -> None:
    """A miss says why, in words and in the word that machines know."""
    found = why(record(MissRow("nightly", day(10), reason)))
    assert found.kind is SlotKind.MISSED
    assert found.sentence == f'"nightly" missed its slot at 2026-01-10 03:30: {words}.'


def test_merged_into_a_catch_up() -> None:
    """Of slots that passed together the older ones are answered by the catch-up for the latest."""
    known = record(fired(5), fired(8, "09:00", "catch-up", day(8)), fired(9), fired(10))
    for number in (6, 7):
        found = why(known, at(f"2026-01-0{number} 03:30"))
        assert found.kind is SlotKind.MERGED
        assert found.run is not None
        assert found.run.id == 8
        assert "only the latest counts, and run 8 at 2026-01-08 09:00 caught up" in found.sentence
    assert why(known, at("2026-01-08 03:30")).kind is SlotKind.FIRED


def test_merged_into_a_miss() -> None:
    """When the latest of them was missed, the older ones were missed with it."""
    found = why(record(fired(5), MissRow("nightly", day(8), "shutdown"), fired(9)), at("2026-01-06 03:30"))
    assert found.kind is SlotKind.MERGED
    assert found.miss == MissRow("nightly", day(8), "shutdown")


def test_answered_by_hand() -> None:
    """A firing by hand that came when the slot was due answers it."""
    found = why(record(fired(9), begun(3, "trigger", day(10, "03:30:01"))))
    assert found.kind is SlotKind.FIRED
    assert "run 3 (trigger) began at 03:30:01, 1 s late" in found.sentence


def test_pending() -> None:
    """A slot that has come and is not answered is pending; without a daemon, until it starts."""
    known = record(fired(9), answered_us=day(9))
    assert why(known).kind is SlotKind.PENDING
    assert "the daemon is down" in why(replace(known, is_live=False)).sentence


def test_ahead() -> None:
    """A slot that lies ahead is yet to come."""
    assert why(record(), at("2026-01-11 03:30")).kind is SlotKind.AHEAD


def test_before_it_was_registered() -> None:
    """A slot from before the timer was known owes nothing."""
    found = why(record(fired(10)), at("2026-01-01 03:30"))
    assert found.kind is SlotKind.NOT_REGISTERED
    assert "until 2026-01-02 00:00" in found.sentence
    assert why(replace(record(), registered_us=None)).kind is SlotKind.NOT_REGISTERED


def test_pruned() -> None:
    """A slot from before all that is kept has no record, and nothing is guessed."""
    found = why(record(fired(8), fired(9), fired(10)), at("2026-01-04 03:30"))
    assert found.kind is SlotKind.NO_RECORD
    assert "what is kept begins at 2026-01-08 03:30" in found.sentence
    assert why(record(), at("2026-01-04 03:30")).kind is SlotKind.NO_RECORD


def test_no_slot() -> None:
    """A minute that is no slot is told with its neighbours, and with what ran in it all the same."""
    found = why(record(begun(9, "retry", day(9, "04:00:10"))), at("2026-01-09 04:00"))
    assert found.kind is SlotKind.NO_SLOT
    assert found.sentence.endswith(
        "its slots are before it at 2026-01-09 03:30 and after it at 2026-01-10 03:30."
    )
    assert [run.reason for run in found.runs] == ["retry"]


def test_without_a_calendar() -> None:
    """A timer without a calendar has no slots, and a date that never comes is no calendar."""
    for calendars in ((), (Calendar(month=(2,), day_of_month=(30,)),)):
        assert why(record(calendars=calendars)).kind is SlotKind.NO_SLOT
        assert why(record(calendars=calendars), at("2026-01-09 04:00")).kind is SlotKind.NO_SLOT


def test_a_fixed_rate_before_its_first_slot() -> None:
    """A timer with a fixed rate that is new has had no slot: where the rate counts from is none."""
    timer, now_us = Timer("poll", "job", every=3600), us("2026-01-10 12:00")
    snapshot = TimerSnapshot(registered_us=now_us - 60 * SECOND_US)
    found = why(record_of(timer, snapshot, UTC, now_us, runs=(), misses=()))
    assert (found.kind, found.sentence) == (
        SlotKind.NO_SLOT,
        '"poll" has had no slot yet; its schedule: Every 1h.',
    )


def test_latest_runs_without_a_calendar() -> None:
    """Asked for no minute, a timer without slots tells its schedule and its latest runs, newest first."""
    known = record(*(fired(number, reason="interval") for number in range(3, 11)), calendars=())
    found = why(replace(known, schedule="4s after each run of backup"))
    assert (
        found.sentence
        == '"nightly" has had no slot of a calendar; its schedule: 4s after each run of backup.'
    )
    assert [run.id for run in found.runs] == [10, 9, 8, 7, 6]


def test_minute_that_the_clocks_skipped() -> None:
    """A civil minute in a gap never occurred."""
    known = record(calendars=(Calendar(minute=(30,), hour=(2,)),), zone=BERLIN, now_us=us("2026-04-01 00:00"))
    found = why(known, at("2026-03-29 02:30"))
    assert found.kind is SlotKind.SKIPPED
    assert "that minute did not occur, the clocks went from 02:00 to 03:00" in found.sentence


def test_minute_that_the_clocks_repeated() -> None:
    """A civil minute that is shown twice is a slot the first time only."""
    late_us = us("2026-11-01 00:00")
    known = record(
        calendars=(Calendar(minute=(30,), hour=(2,)),), zone=BERLIN, now_us=late_us, answered_us=late_us
    )
    assert why(known, at("2026-10-25 02:30+01:00")).kind is SlotKind.REPEATED
    assert why(known, at("2026-10-25 02:30+02:00")).kind is SlotKind.NO_RECORD
    assert why(known, at("2026-10-25 02:30")).kind is SlotKind.NO_RECORD


def test_latest() -> None:
    """The latest slots are listed oldest first, as far back as the timer was known."""
    known = record(fired(8), MissRow("nightly", day(9), "overlap"), fired(10))
    assert [found.kind for found in why_latest(known, 3)] == [SlotKind.FIRED, SlotKind.MISSED, SlotKind.FIRED]
    assert [found.slot_us for found in why_latest(known, 2, at("2026-01-09 12:00"))] == [day(8), day(9)]
    assert len(why_latest(known, 100)) == 9
