"""The time line: which span and which lanes an address asks for, and what each lane has."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from zoneinfo import ZoneInfo

import pytest

from duly.instant import MINUTE_US, Instant
from duly.store.history import MissBucket, RunBucket, Span
from duly.web import timeline
from duly.web.formatting import STATES, Moment
from duly.web.source import Alarm, Buckets, Lane, Tile
from tests.worlds.daemons import us

NOW_US = us("12:00")
HOUR_US = 60 * MINUTE_US
SPAN = Span(NOW_US - HOUR_US, NOW_US + HOUR_US, MINUTE_US)


class FakePicture:
    """Lanes by hand; each of them is due every ten minutes."""

    stale = None
    tagged: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, lanes: list[Lane], zone: str = "UTC") -> None:
        self.moment = Moment(NOW_US, ZoneInfo(zone))
        self._lanes = lanes

    def listings(self) -> tuple[()]:
        """None."""
        return ()

    def entries(self, _noun: str) -> tuple[()]:
        """None."""
        return ()

    def alarms(self) -> list[Alarm]:
        """None."""
        return []

    def lanes(self) -> list[Lane]:
        """Those that were given."""
        return self._lanes

    def dues(self, _lane: str, span: Span, most: int) -> list[Instant]:
        """Every ten minutes."""
        first_us = -(-span.from_us // (10 * MINUTE_US)) * 10 * MINUTE_US
        return list(range(first_us, span.to_us + 1, 10 * MINUTE_US))[:most]

    def tiles(self, _results: Mapping[str | None, int], _missed: int | None) -> list[Tile]:
        """None."""
        return []


def _lane(name: str, *, is_quiet: bool = False) -> Lane:
    lengths = (1_000_000, 3_000_000)
    return Lane(name, "services", STATES["running"], is_quiet, lengths, (f"{name}-timer",))


LANES = [_lane("a"), _lane("b"), _lane("quiet", is_quiet=True)]


@pytest.mark.parametrize(
    ("query", "span"),
    [
        ({}, (NOW_US - 24 * HOUR_US, NOW_US + 24 * HOUR_US, 12 * MINUTE_US)),
        ({"from": "100", "to": "60000100", "parts": "60"}, (100, 60000100, 1_000_000)),
        ({"span": str(2 * HOUR_US), "parts": "60"}, (NOW_US - HOUR_US, NOW_US + HOUR_US, 2 * MINUTE_US)),
        ({"from": "100", "to": "99"}, (NOW_US - 24 * HOUR_US, NOW_US + 24 * HOUR_US, 12 * MINUTE_US)),
        ({"from": "0", "to": str(2**62)}, (NOW_US - 24 * HOUR_US, NOW_US + 24 * HOUR_US, 12 * MINUTE_US)),
        ({"from": "0", "to": "600000000", "parts": "9999"}, (0, 600000000, 1_000_000)),
    ],
)
def test_span(query: dict[str, str], span: tuple[int, int, int]) -> None:
    """A span is between a minute and a year, and has a bounded number of parts."""
    assert timeline.span_of(query, NOW_US) == span


@pytest.mark.parametrize(
    ("query", "first", "names", "total"),
    [
        ({}, 0, ["a", "b"], 2),
        ({"all": "1"}, 0, ["a", "b", "quiet"], 3),
        ({"first": "1"}, 1, ["b"], 2),
        ({"first": "99"}, 1, ["b"], 2),
        ({"count": "1"}, 0, ["a"], 2),
        ({"q": "B"}, 0, ["b"], 1),
        ({"q": "nothing"}, 0, [], 0),
        ({"q": "quiet", "all": "1"}, 0, ["quiet"], 1),
    ],
)
def test_lanes(query: dict[str, str], first: int, names: list[str], total: int) -> None:
    """Only the lanes that are seen are asked for; services that simply run come when they are wanted."""
    shown = timeline.lanes_of(FakePicture(LANES), query)
    assert (shown[0], [lane.id for lane in shown[1]], *shown[2:]) == (first, names, total, 1)


def test_quiet_lanes_are_shown_if_there_are_no_others() -> None:
    """A machine on which everything simply runs has a time line, too."""
    assert len(timeline.lanes_of(FakePicture(LANES[2:]), {})[1]) == 1


def _drawn(picture: FakePicture, runs: list[RunBucket], misses: list[MissBucket]) -> timeline.TimelineJson:
    return timeline.timeline_of(picture, SPAN, timeline.lanes_of(picture, {}), Buckets(runs, misses, "away"))


def test_lane_has_what_ran_and_what_comes() -> None:
    """Runs and misses are those of their lane; what comes has its usual length; words say the same."""
    runs = [
        RunBucket("a", 3, "success", 4, 9, SPAN.from_us + 3 * MINUTE_US, SPAN.from_us + 4 * MINUTE_US),
        RunBucket("a", -1, "timeout", 1, 5, SPAN.from_us - MINUTE_US, SPAN.from_us + MINUTE_US),
        RunBucket("a", 50, None, 1, 11, NOW_US - MINUTE_US, None),
        RunBucket("b", 1, "exit", 1, 7, SPAN.from_us, SPAN.from_us + 1, "far:9"),
    ]
    found = _drawn(FakePicture(LANES), runs, [MissBucket("b-timer", 2, 3, SPAN.from_us, "overlap")])
    a, b = found.lanes
    assert [(run.tone, run.count, run.word) for run in a.runs] == [
        ("bad", 1, "timed out"),
        ("good", 4, "success"),
        ("busy", 1, "running"),
    ]
    assert (a.runs[0].href, b.runs[0].href) == ("/runs/5", "/runs/7?machine=far%3A9")
    part_us = SPAN.from_us + 3 * MINUTE_US
    assert a.runs[1].href == f"/runs?service=a&from={part_us}&to={part_us + MINUTE_US}&result=success"
    assert a.runs[2].last_us == NOW_US
    assert (a.usual_us, a.long_us, a.why_href) == (1_000_000, 3_000_000, "/timers/a-timer")
    assert a.dues == list(range(NOW_US, NOW_US + HOUR_US + 1, 10 * MINUTE_US))
    assert a.summary == "6 ran, 1 failed, 7 due"
    assert [(miss.count, miss.word) for miss in b.misses] == [
        (3, "its target was still active, or its lock held")
    ]
    assert (found.total, found.quiet, found.fault) == (2, 1, "away")


def test_dues_are_bounded() -> None:
    """What comes too often to be drawn one by one is said to come often."""
    span = SPAN._replace(to_us=NOW_US + 48 * HOUR_US)
    picture = FakePicture(LANES[:1])
    (lane,) = timeline.timeline_of(picture, span, timeline.lanes_of(picture, {}), Buckets([], [])).lanes
    assert (lane.is_often, len(lane.dues), lane.summary) == (True, 120, "0 ran, more than 120 due")


def test_the_past_has_no_dues() -> None:
    """Where nothing is to come any more, nothing is looked for."""
    span = Span(NOW_US - 2 * HOUR_US, NOW_US - HOUR_US, MINUTE_US)
    picture = FakePicture(LANES[:1])
    (lane,) = timeline.timeline_of(picture, span, timeline.lanes_of(picture, {}), Buckets([], [])).lanes
    assert lane.dues == []


def test_clock_changes_are_marked() -> None:
    """Where the clocks of the page's zone are set, the time line says so; ticks are whole local hours."""
    at_us = us("2026-03-29 01:00")
    span = Span(at_us - 12 * HOUR_US, at_us + 12 * HOUR_US, HOUR_US)
    picture = FakePicture([], "Europe/Berlin")
    ticks = timeline.timeline_of(picture, span, (0, [], 0, 0), Buckets([], [])).ticks
    assert [(tick.at_us, tick.label) for tick in ticks if tick.kind == "dst"] == [(at_us, "clocks +1h")]
    days = [tick for tick in ticks if tick.kind == "day"]
    assert [tick.label for tick in days] == ["Sun 29 Mar"]
    assert days[0].at_us == at_us - timedelta(hours=2) // timedelta(microseconds=1)
