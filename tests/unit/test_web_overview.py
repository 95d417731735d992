"""The overview: one line for each cause, the last words of each, the counts, and what is due."""

from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from duly.config.schema import Calendar, Config, Invalid, Service, Settings, Timer
from duly.daemon import views
from duly.instant import MINUTE_US, SECOND_US, Instant
from duly.store.history import RunRow
from duly.store.past import Past
from duly.web.daemon_source import DaemonPicture, DaemonSource
from duly.web.overview import OverviewPage, headline, overview_of, plan_of, tone_of
from duly.web.source import Alarm
from tests.worlds.daemons import NOW_US, FakeDaemon

DAY_US = 86_400 * SECOND_US
CONFIG = Config(
    Path("duly.toml"),
    Settings(timers=True),
    services=(
        Service("web", ("serve",)),
        Service("job", ("work",), type="oneshot"),
        Service("slow", ("wait",), type="oneshot"),
    ),
    timers=(
        Timer("job", "job", on_calendar=(Calendar(minute=(0,)),)),
        Timer("job-too", "job", on_calendar=(Calendar(minute=(0,)),)),
        Timer("slow", "slow", on_calendar=(Calendar(minute=(0,)),)),
    ),
    invalid=(Invalid("timer", "nightly", 5, "target is no service", 41),),
)


def _row(number: int, service: str, result: str | None, output: str, at_us: Instant) -> RunRow:
    ended_us = None if result is None else at_us + SECOND_US
    row = RunRow(id=number, service=service, reason="schedule", started_us=at_us, output=output)
    return msgspec.structs.replace(row, ended_us=ended_us, result=result)


FAILED = _row(1, "job", "exit", "one\ntwo\nthree\n\x1b[31mfour\x1b[0m\n", NOW_US - 2 * MINUTE_US)
STUCK = _row(2, "slow", None, "at work\n", NOW_US - DAY_US)
WELL = Past((10 * SECOND_US,), last_success_us=NOW_US - 3 * DAY_US)


async def _daemon() -> FakeDaemon:
    daemon = FakeDaemon(CONFIG)
    await daemon.history.put([FAILED, STUCK], [])
    past = msgspec.structs.replace(
        WELL, failed=12, failing_since_us=NOW_US - DAY_US, why="exited with code 1"
    )
    services = [
        views.ServiceSnapshot(id="web", state="running", since_us=NOW_US - DAY_US),
        views.ServiceSnapshot(id="job", state="failed", last_run=FAILED, past=past),
        views.ServiceSnapshot(id="slow", state="running", run_id=2, last_run=STUCK, past=WELL),
    ]
    daemon.services = lambda: services  # type: ignore[method-assign]
    timers = {timer.id: views.TimerSnapshot() for timer in CONFIG.timers}
    daemon.timers = lambda: timers  # type: ignore[method-assign]
    return daemon


async def _page(daemon: FakeDaemon) -> OverviewPage:
    source = DaemonSource(daemon)
    picture = await source.look(None)
    return await overview_of(source, picture, picture.alarms())


async def test_each_cause_is_one_line_with_its_last_words() -> None:
    """A job that fails is told once, however many timers fire it; what was mistyped comes last."""
    page = await _page(await _daemon())
    assert [one.alarm.href for one in page.alarms] == ["/services/job", "/services/slow", "/invalid"]
    assert [one.alarm.message.split(":")[0].split(" since")[0] for one in page.alarms] == [
        "service job failed 12 of 12",
        "service slow hangs",
        "timer nightly is invalid",
    ]
    assert [list(one.lines) for one in page.alarms] == [["two", "three", "four"], ["at work"], []]
    assert (page.headline, page.tone) == ("3 things are not right", "bad")


async def test_jobs_are_no_services_that_run() -> None:
    """Only what is kept running counts as a service that is up; a job that fails counts once."""
    tiles = {tile.label: tile for tile in (await _page(await _daemon())).tiles}
    assert (tiles["services up"].value, tiles["services up"].note) == ("1", "of 1")
    assert tiles["failing or hung"].value == "2"
    assert (tiles["failed in 24 h"].value, tiles["failed in 24 h"].href) == (
        "1",
        "/runs?result=failed&since=24h",
    )
    assert tiles["runs in 24 h"].note == "1 still running"


async def test_disabled_is_no_alarm() -> None:
    """What somebody switched off on purpose is shown in the list, and is no cause of bad health."""
    daemon = FakeDaemon(replace(CONFIG, services=(Service("web", ("serve",), enabled=False),), invalid=()))
    daemon.services = lambda: [views.ServiceSnapshot(id="web", state="stopped")]  # type: ignore[method-assign]
    picture = DaemonPicture(daemon, None, None)
    assert picture.alarms() == []
    assert [entry.kind for entry in picture.entries("services")] == ["disabled"]


async def test_lanes_are_the_worst_first() -> None:
    """Each job has one lane with its timers; a service that simply runs comes last, and is quiet."""
    lanes = DaemonPicture(await _daemon(), None, None).lanes()
    assert [(lane.id, lane.mark.word, lane.is_quiet) for lane in lanes] == [
        ("slow", "hung", False),
        ("job", "failing", False),
        ("web", "running", True),
    ]
    assert lanes[1].timers == ("job", "job-too")


async def test_plan_tells_what_runs_beside_it() -> None:
    """What is due at the same time, or while another is expected to run, is counted."""
    picture = DaemonPicture(await _daemon(), ZoneInfo("UTC"), None)
    hour_us = 60 * MINUTE_US
    from_us = NOW_US // hour_us * hour_us + MINUTE_US
    planned = plan_of(picture, from_us, from_us + hour_us, 9)
    assert [(one.id, one.at_us % hour_us, one.usual_us, one.beside) for one in planned] == [
        ("job", 0, 10 * SECOND_US, 0),
        ("slow", 0, 10 * SECOND_US, 1),
    ]


@pytest.mark.parametrize(
    ("tones", "headline_", "tone"),
    [
        ([], "All is well", "good"),
        (["warn"], "All runs, but one thing is worth a look", "warn"),
        (["warn", "bad"], "One thing is not right", "bad"),
        (["bad", "bad"], "2 things are not right", "bad"),
    ],
)
def test_headline(tones: list[str], headline_: str, tone: str) -> None:
    """The headline and the icon say how bad it is."""
    alarms = [Alarm("x", tone=each) for each in tones]
    assert (headline(alarms), tone_of(alarms)) == (headline_, tone)
