"""What only timers know: notes on the clocks beside the next firings, and why a minute had a run or none."""

from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duly.config.schema import Calendar, Timer
from duly.daemon.views import TimerSnapshot
from duly.store.history import MissRow, RunRow
from duly.web.formatting import Moment
from duly.web.models import TimerEntry
from duly.web.upcoming import ShownPast, clock_notes, slots_ahead
from tests.worlds.daemons import us

BERLIN, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
DAILY = Timer("t", "job", on_calendar=(Calendar(minute=(30,), hour=(2,)),), timezone="Europe/Berlin")


def test_clocks_are_noted() -> None:
    """The first firing after the clocks were set has a note; so has an hour that they show again."""
    dues = [us("2026-03-28 01:30"), us("2026-03-29 01:30"), us("2026-03-30 00:30")]
    assert clock_notes(dues, dues[0] - 1, BERLIN) == {dues[1]: "after the clocks go forward 1h"}
    dues = [us("2026-10-25 00:30"), us("2026-10-25 01:30"), us("2026-10-26 01:30")]
    notes = clock_notes(dues, dues[0] - 1, BERLIN)
    assert notes == {dues[1]: "the second time that the clocks show this"}
    assert clock_notes(dues[1:], us("2026-10-24 12:00"), UTC) == {}


def test_slots_are_those_of_the_timer_s_zone() -> None:
    """Whatever zone a page is written in, a timer fires by the clocks of its own."""
    moment = Moment(us("2026-06-01 12:00"), ZoneInfo("Asia/Tokyo"))
    ahead = slots_ahead(DAILY, TimerSnapshot(), moment, us("2026-06-03 12:00"), 9)
    assert ahead == [us("2026-06-02 00:30"), us("2026-06-03 00:30")]


RUN = RunRow(
    id=7,
    service="job",
    timer="t",
    reason="schedule",
    scheduled_us=us("2026-06-01 00:30"),
    started_us=us("2026-06-01 00:30"),
    ended_us=us("2026-06-01 00:31"),
    result="exit",
)


def _record(**snapshot: object) -> ShownPast:
    known = TimerSnapshot(registered_us=us("2026-05-20 00:00"), answered_us=us("2026-06-01 12:00"))
    known = msgspec.structs.replace(known, **snapshot)
    miss = MissRow("t", us("2026-05-31 00:30"), "overlap")
    return ShownPast(TimerEntry(DAILY, known), [RUN], [miss], Moment(us("2026-06-01 12:00"), UTC), UTC)


def test_answers() -> None:
    """The latest slots are answered newest first; a firing whose run failed is marked as such."""
    answers, asked = _record().answers(2, datetime(2026, 5, 31, 2, 30))  # noqa: DTZ001 (the schedule's clocks)
    assert [(answer.mark.tone, answer.mark.word) for answer in answers] == [
        ("warn", "fired"),
        ("bad", "missed"),
    ]
    assert answers[0].run == RUN
    assert asked is not None
    assert "missed its slot at 2026-05-31 02:30" in asked.sentence


@pytest.mark.parametrize(("is_chosen", "said"), [(False, "2026-06-01 02:30"), (True, "2026-06-01 00:30")])
def test_answers_are_in_the_zone_of_the_page(is_chosen: bool, said: str) -> None:
    """An answer is told by the clocks of the schedule, or in the zone that somebody chose."""
    record = _record()
    record = record._replace(moment=record.moment._replace(is_chosen=is_chosen))
    (latest,), _ = record.answers(1, None)
    assert f"fired for its slot at {said}" in latest.sentence


def test_a_shared_timer_is_not_guessed_about() -> None:
    """Of a timer that another machine may run, only what is on record is answered."""
    answers, _ = _record(member="far:9").answers(4, None)
    assert [answer.mark.word for answer in answers] == ["fired", "missed"]
