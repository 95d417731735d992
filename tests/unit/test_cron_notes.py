"""Notes on clock changes, next to the firings they concern."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.cron import CronExpression
from duly.cron.notes import Note, notes, offset_text
from duly.formatting import spelled_length
from tests.property.strategies import ZONES, frequent_texts, near_transitions
from tests.property.walker import transitions


def told(text: str, key: str, origin: str, count: int) -> list[tuple[str, list[str]]]:
    """Each firing after the origin, as shown, with the texts of its notes."""
    expression = CronExpression.parse(text)
    moment = datetime.fromisoformat(origin).astimezone(ZoneInfo(key))
    firings = expression.upcoming(moment, count)
    return [
        (firing.isoformat(" ", "minutes"), [note.text for note in noted])
        for firing, noted in zip(firings, notes(expression, moment, firings), strict=True)
    ]


def forward(shift: str, time: str, date: str, offset: str) -> str:
    return f"clocks go forward by {shift} at {time} on {date}; offset is now {offset}"


def test_ordinary_days() -> None:
    """Between firings without a clock change there is nothing to say."""
    assert told("0 9 * * *", "Europe/Berlin", "2026-01-01T00:00Z", 2) == [
        ("2026-01-01 09:00+01:00", []),
        ("2026-01-02 09:00+01:00", []),
    ]


def test_forward_over_a_firing() -> None:
    """A firing that falls into the gap is told as skipped, with the firing that comes instead."""
    assert told("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00Z", 2) == [
        ("2026-03-28 02:30+01:00", []),
        (
            "2026-03-30 02:30+02:00",
            [forward("1 h", "02:00", "2026-03-29", "+02:00") + "; 02:30 does not occur: skipped"],
        ),
    ]


def test_forward_past_a_firing() -> None:
    """A clock change that skips no firing is told for its new offset."""
    assert told("0 9 * * *", "Europe/Berlin", "2026-03-28T12:00Z", 2) == [
        ("2026-03-29 09:00+02:00", [forward("1 h", "02:00", "2026-03-29", "+02:00")]),
        ("2026-03-30 09:00+02:00", []),
    ]


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("15,45 2 * * *", "02:15 and 02:45 do not occur"),
        ("0,20,40 2 * * *", "02:00, 02:20 and 02:40 do not occur"),
        ("* * * * *", "60 times from 02:00 to 02:59 do not occur"),
    ],
)
def test_several_skipped(text: str, skipped: str) -> None:
    """A few skipped firings are listed, many are counted."""
    [(_, [note])] = told(text, "Europe/Berlin", "2026-03-29T00:59Z", 1)
    assert note.endswith(f"; {skipped}: skipped")


def test_back_over_a_firing() -> None:
    """A firing in the repeated hour is told to come once, the next one that the clocks went back."""
    assert told("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", 2) == [
        ("2026-10-25 02:30+02:00", ["02:30 is shown twice: due the first time only"]),
        ("2026-10-26 02:30+01:00", ["clocks go back by 1 h at 03:00 on 2026-10-25; offset is now +01:00"]),
    ]


def test_back_within_every_minute() -> None:
    """Before, in and after the repeated hour each firing has the note that fits."""
    assert told("0 * * * *", "Europe/Berlin", "2026-10-24T22:30Z", 3) == [
        ("2026-10-25 01:00+02:00", []),
        ("2026-10-25 02:00+02:00", ["02:00 is shown twice: due the first time only"]),
        ("2026-10-25 03:00+01:00", ["clocks go back by 1 h at 03:00 on 2026-10-25; offset is now +01:00"]),
    ]


def test_half_hour_and_lost_day() -> None:
    """Half an hour on Lord Howe and a whole day on Samoa are told for what they are."""
    assert told("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z", 1) == [
        (
            "2026-10-05 02:15+11:00",
            [forward("30 min", "02:00", "2026-10-04", "+11:00") + "; 02:15 does not occur: skipped"],
        )
    ]
    assert told("0 9 * * *", "Pacific/Apia", "2011-12-30T00:00Z", 1) == [
        (
            "2011-12-31 09:00+14:00",
            [forward("1 d", "00:00", "2011-12-30", "+14:00") + "; 09:00 does not occur: skipped"],
        )
    ]


def test_rare_firings() -> None:
    """Over the many clock changes between rare firings only the new offset is told, and what was skipped."""
    assert told("0 0 1 7 *", "Europe/Berlin", "2026-02-01T00:00Z", 2) == [
        ("2026-07-01 00:00+02:00", [forward("1 h", "02:00", "2026-03-29", "+02:00")]),
        ("2027-07-01 00:00+02:00", []),
    ]
    assert told("0 0 1 1,7 *", "Europe/Berlin", "2026-01-02T00:00Z", 2) == [
        ("2026-07-01 00:00+02:00", [forward("1 h", "02:00", "2026-03-29", "+02:00")]),
        ("2027-01-01 00:00+01:00", ["clocks go back by 1 h at 03:00 on 2026-10-25; offset is now +01:00"]),
    ]
    assert told("0 0 1 7 *", "Europe/Berlin", "2025-02-01T00:00Z", 1) == [
        ("2025-07-01 00:00+02:00", [forward("1 h", "02:00", "2025-03-30", "+02:00")])
    ]
    assert told("30 2 29 3 *", "Europe/Berlin", "2026-01-01T00:00Z", 1) == [
        (
            "2027-03-29 02:30+02:00",
            [
                forward("1 h", "02:00", "2026-03-29", "+02:00") + "; 02:30 does not occur: skipped",
                "offset is now +02:00",
            ],
        )
    ]


def test_kinds() -> None:
    """Each note says of what kind it is, for machines."""
    expression, zone = CronExpression.parse("30 2 * * *"), ZoneInfo("Europe/Berlin")
    origin = datetime(2026, 3, 28, 12, tzinfo=UTC).astimezone(zone)
    spring = expression.next_after(origin)
    autumn = expression.next_after(origin.replace(month=10, day=24))
    firings = [spring, autumn, expression.next_after(autumn)]
    kinds = [[note.kind for note in noted] for noted in notes(expression, origin, firings)]
    assert kinds == [["forward"], ["repeated"], ["back"]]


@pytest.mark.parametrize(
    "zone", [UTC, timezone(timedelta(hours=2)), ZoneInfo("UTC"), ZoneInfo("Asia/Tokyo")], ids=str
)
def test_zone_without_changes(zone: tzinfo) -> None:
    """Where clocks are never changed there are no notes."""
    expression, origin = CronExpression.parse("0 0 * * *"), datetime(2026, 1, 1, tzinfo=zone)
    assert notes(expression, origin, expression.upcoming(origin, 400)) == [[]] * 400


@pytest.mark.parametrize(
    ("length_us", "text"),
    [
        (4_999, "4 ms"),
        (1_500_000, "1.5 s"),
        (60_000_000, "1 min"),
        (44 * 60_000_000 + 30_000_000, "44 min 30 s"),
        (90 * 60_000_000, "1 h 30 min"),
        (7_500_000_000, "2 h 5 min"),
        (7_201_000_000, "2 h"),
        (86_400_000_000, "1 d"),
    ],
)
def test_spelled_length(length_us: int, text: str) -> None:
    """Lengths of time are said in their two largest units."""
    assert spelled_length(length_us) == text


@pytest.mark.parametrize("seconds", [0, 3600, -3600, 19_800, -16_200, -2670, 50_400, -43_200, 1, -1])
def test_offset_text(seconds: int) -> None:
    """An offset is written as Python writes it."""
    offset = timedelta(seconds=seconds)
    assert offset_text(offset) == datetime(2026, 1, 1, tzinfo=timezone(offset)).isoformat()[19:]


@settings(max_examples=200)
@given(
    st.sampled_from(ZONES).flatmap(lambda key: st.tuples(st.just(key), near_transitions(key))),
    frequent_texts(),
)
def test_changes_are_told_once(where: tuple[str, datetime], text: str) -> None:
    """In a row of firings each clock change among them is told once, with the first firing after it."""
    key, instant = where
    expression, origin = CronExpression.parse(text), instant.astimezone(ZoneInfo(key))
    firings = expression.upcoming(origin, 30)
    last = firings[-1].astimezone(UTC)
    noted: list[Note] = [note for row in notes(expression, origin, firings) for note in row]
    changes = [change for change in transitions(key, 2300) if instant < change.instant <= last]
    told_changes = [note for note in noted if note.kind in ("forward", "back")]
    assert [note.kind for note in told_changes] == [
        "forward" if change.shift > timedelta(0) else "back" for change in changes
    ]
