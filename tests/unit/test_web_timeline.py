"""The time line: what is drawn where, and how much at most."""

from datetime import timedelta
from zoneinfo import ZoneInfo

from duly.store.history import MissRow, RunRow
from duly.web import timeline
from duly.web.formatting import Moment
from duly.web.runs import STRIP, strip_of
from duly.web.timeline import HOUR_US, MOST_LANES, MOST_SLOTS, Matter, Window
from tests.worlds.daemons import us

UTC = ZoneInfo("UTC")
NOW_US = us("12:00")
NOW = Moment(NOW_US, UTC)
WINDOW = Window(NOW)
CELL_US = WINDOW.cell_us


def _run(
    at_us: int, lasts_us: int | None = 1_000_000, result: str | None = "success", number: int = 1
) -> RunRow:
    ended_us = None if lasts_us is None else at_us + lasts_us
    return RunRow(
        id=number, service="a", reason="schedule", started_us=at_us, ended_us=ended_us, result=result
    )


def _shapes(matter: Matter, kind: str) -> list[timeline.LaneShape]:
    lane = timeline.timeline_of([matter], [], WINDOW).lanes[0]
    return [shape for shape in lane.shapes if shape.kind == kind]


def test_places_are_percent_of_two_days() -> None:
    """Now is the middle; a run of 12 hours, 12 hours ago, covers a quarter."""
    (shape,) = _shapes(Matter("a", runs=[_run(NOW_US - 12 * HOUR_US, 12 * HOUR_US)]), "run")
    assert (shape.at, shape.width, shape.tone) == ("25.000%", "25.000%", "good")


def test_running_reaches_now() -> None:
    """A run that goes on ends at now, and one that began before the window begins at its edge."""
    (shape,) = _shapes(Matter("a", runs=[_run(NOW_US - 90 * HOUR_US, None, None)]), "run")
    assert (shape.at, shape.width, shape.tone) == ("0.000%", "50.000%", "busy")


def test_runs_out_of_sight_are_left_out() -> None:
    """What ended before the window is not drawn."""
    assert _shapes(Matter("a", runs=[_run(NOW_US - 30 * HOUR_US)]), "run") == []


def test_crowded_runs_become_one_that_shows_the_worst() -> None:
    """A thousand runs within five minutes are one bar, red if one of them failed."""
    start_us = NOW_US - HOUR_US
    start_us -= start_us % CELL_US
    runs = [_run(start_us + number * 200_000, 1000, number=number) for number in range(1000)]
    runs[500] = _run(runs[500].started_us, 1000, "exit", 500)
    (shape,) = _shapes(Matter("a", runs=runs), "run")
    assert shape.tone == "bad"
    assert shape.title.endswith("1 not successful")


def test_a_lane_is_bounded() -> None:
    """A run every second for a day makes no more shapes than there are cells."""
    runs = [_run(NOW_US - 24 * HOUR_US + number * 1_000_000, 1000, number=number) for number in range(86_400)]
    assert len(_shapes(Matter("a", runs=runs), "run")) <= 24 * HOUR_US // CELL_US + 1


def test_every_bar_is_seen() -> None:
    """A run that took no time at all is drawn all the same."""
    (shape,) = _shapes(Matter("a", runs=[_run(NOW_US - HOUR_US, 0)]), "run")
    assert float(shape.width.removesuffix("%")) > 0


def test_misses_and_retries() -> None:
    """Misses and retries are marks of their own, each with its reason or time."""
    matter = Matter("a", misses=[MissRow("t", us("09:00"), "overlap")], retries=[us("12:30")])
    (miss,), (retry,) = _shapes(matter, "miss"), _shapes(matter, "retry")
    assert miss.title == "missed 09:00:00: overlap"
    assert retry.title == "retry at 12:30:00"


def test_many_slots_become_a_band() -> None:
    """Slots are drawn one by one up to a number, and as a band beyond it; those that passed not at all."""
    some = [NOW_US + number * HOUR_US for number in range(-3, 24)]
    assert len(_shapes(Matter("a", slots=some), "slot")) == 24
    many = [NOW_US + number * 60_000_000 for number in range(MOST_SLOTS + 2)]
    assert len(_shapes(Matter("a", slots=many), "band")) == 1
    assert _shapes(Matter("a", slots=many), "slot") == []


def test_clock_changes_are_marked() -> None:
    """The night in which the clocks are put forward or back is marked, with how much, at the right place."""
    berlin = ZoneInfo("Europe/Berlin")
    spring, autumn = (Window(Moment(us(at), berlin)) for at in ("2026-03-29 00:00", "2026-10-25 06:30"))
    hour = timedelta(hours=1)
    assert list(spring.axis.clock_changes()) == [(us("2026-03-29 01:00"), hour)]
    assert list(autumn.axis.clock_changes()) == [(us("2026-10-25 01:00"), -hour)]
    assert list(Window(Moment(NOW_US, berlin)).axis.clock_changes()) == []
    (tick,) = [tick for tick in timeline.timeline_of([], [], spring).ticks if tick.kind == "dst"]
    assert tick.label == "clocks +1h"


def test_half_hour_changes_are_found() -> None:
    """Lord Howe moves its clocks by half an hour."""
    window = Window(Moment(us("2026-04-04 12:00"), ZoneInfo("Australia/Lord_Howe")))
    assert [change.by for change in window.axis.clock_changes()] == [-timedelta(minutes=30)]


def test_ticks_are_local_hours() -> None:
    """The lines stand at 0, 6, 12 and 18 o'clock of the zone; a label that would hide "now" is left out."""
    ticks = timeline.timeline_of([], [], Window(Moment(us("12:15"), ZoneInfo("Asia/Kolkata")))).ticks
    labels = [tick.label for tick in ticks]
    assert labels == ["18:00", "Thu 1", "06:00", "12:00", "", "Fri 2", "06:00", "12:00", "now"]


def test_nearer_looks_closer() -> None:
    """With an hour to either side, a run of half an hour covers a quarter, and ticks are quarters."""
    near = timeline.window_at(NOW, timeline.hours_of("1"))
    picture = timeline.timeline_of([Matter("a", runs=[_run(NOW_US - HOUR_US // 2, HOUR_US // 2)])], [], near)
    assert picture.lanes[0].shapes[0].width == "25.000%"
    assert [tick.label for tick in picture.ticks][:3] == ["11:00", "11:15", "11:30"]
    assert timeline.hours_of("7") == timeline.hours_of("") == 24


def test_lanes_that_matter_are_chosen() -> None:
    """Of many, those that fail, run or were missed have a lane; the order stays; the rest share one."""
    matters = [Matter(f"job-{number}", runs=[_run(NOW_US - HOUR_US)]) for number in range(100)]
    matters[70].runs = [_run(NOW_US - HOUR_US, result="exit")]
    matters[90].misses = [MissRow("t", NOW_US - HOUR_US, "overlap")]
    own, rest = timeline.pick_lanes(matters)
    assert len(own) == MOST_LANES - 1
    assert len(rest) == 100 - len(own)
    assert [one.id for one in own if one.id in {"job-70", "job-90"}] == ["job-70", "job-90"]
    picture = timeline.timeline_of(own, rest, WINDOW)
    assert picture.lanes[-1].label == f"{len(rest)} others"
    assert picture.lanes[-1].summary == f"{len(rest)} runs"


def test_those_without_a_story_have_no_lane() -> None:
    """A service that neither ran nor will is left out."""
    assert timeline.pick_lanes([Matter("a"), Matter("b", slots=[NOW_US])])[0] == [Matter("b", slots=[NOW_US])]


def test_strip_tells_median_and_longest() -> None:
    """The strip shows the newest runs at the right, with the median and the longest duration."""
    runs = [
        _run(NOW_US - number * HOUR_US, (number + 1) * 1_000_000, number=100 - number) for number in range(80)
    ]
    strip = strip_of(runs, NOW)
    assert strip is not None
    assert len(strip.columns) == STRIP
    assert strip.columns[-1].title.startswith("run 100 ")
    assert (strip.median, strip.longest) == ("31s", "1m")
    assert strip_of([], NOW) is None


def test_hours_that_the_clocks_skip_have_one_tick() -> None:
    """Where the clocks go from 2 to 3, the quarters in between have no ticks of their own."""
    window = Window(Moment(us("2026-03-29 01:00"), ZoneInfo("Europe/Berlin")), 1)
    places = [tick.at for tick in timeline.timeline_of([], [], window).ticks if tick.kind == "hour"]
    assert len(places) == len(set(places)) == 9
