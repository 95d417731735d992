"""`beat_schedule` on duly, in virtual time: what each entry becomes, and when it is sent."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from celery.signals import before_task_publish
from click.testing import CliRunner

from duly import App, Run
from duly.cli import main
from duly.core.timetable import schedule_of as timetable_of
from duly.instant import datetime_at, instant_of
from duly.integrations.celery import BeatScheduler
from duly.integrations.celery_beat import declare, schedule_of
from duly.integrations.errors import BeatScheduleError
from duly.testing import VirtualClock

START = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)  # a Thursday
BERLIN = ZoneInfo("Europe/Berlin")
CRONTABS = {
    "every minute": crontab(),
    "quarters of working hours": crontab(minute="*/15", hour="9-17", day_of_week="mon-fri"),
    "midnight": crontab(minute=0, hour=0),
    "every three hours": crontab(minute=0, hour="*/3"),
    "twice in some hours": crontab(minute="0,30", hour="0,8-17/2"),
    "sundays as a number": crontab(minute=30, hour=7, day_of_week=0),
    "a range of days that wraps": crontab(minute=30, hour=7, day_of_week="fri-mon"),
    "days divisible by two": crontab(minute=0, hour=12, day_of_week="*/2"),
    "even days": crontab(minute=0, hour=6, day_of_month="2-30/2"),
    "the 31st": crontab(minute=0, hour=0, day_of_month=31),
    "quarters of a year": crontab(minute=0, hour=0, day_of_month=1, month_of_year="*/3"),
    "months by name": crontab(minute=5, hour=4, day_of_month="1,15", month_of_year="jan,jul"),
    "a list": crontab(minute=[0, 20, 40], hour={3, 4}),
}


class Entry(SimpleNamespace):
    """What a scheduler of Celery has for an entry of `beat_schedule`."""


@pytest.mark.parametrize("name", CRONTABS)
def test_a_crontab_is_due_when_celery_says(name: str) -> None:
    """For a year in UTC, duly and Celery agree on the next hundred times."""
    entry = CRONTABS[name]
    now = START
    entry.nowfun = lambda: now
    expected = []
    for _ in range(100):
        now += entry.remaining_estimate(now)
        expected.append(now)
    entry.nowfun = None
    timetable = timetable_of(schedule_of(entry).text, UTC)
    found, at_us = [], instant_of(START)
    for _ in range(100):
        at_us = timetable.due_after(at_us)
        found.append(datetime_at(at_us, UTC))
    assert found == expected


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (crontab(day_of_month="1-7", day_of_week="mon"), "both to match"),
        (schedule(60, relative=True), "cannot be relative"),
        (schedule(0.01), "at least 0.1 s"),
        (crontab(nowfun=lambda: START), "nowfun"),
    ],
)
def test_what_duly_does_not_have_is_refused(entry: Any, reason: str) -> None:
    """An entry that would mean something else is refused with its name and the reason."""
    with pytest.raises(BeatScheduleError, match=f"'odd' .*{reason}"):
        declare(App(":memory:"), [Entry(name="odd", schedule=entry)], lambda _entry, _run: None, UTC)


def test_solar_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solar schedule is refused as what it is."""
    monkeypatch.setitem(sys.modules, "ephem", SimpleNamespace(Observer=SimpleNamespace, Sun=object))
    with pytest.raises(BeatScheduleError, match="duly has no solar schedules"):
        declare(App(":memory:"), [Entry(name="dusk", schedule=solar("dusk_civil", 1, 1))], print, UTC)


@pytest.fixture
def celery() -> Iterator[Celery]:
    """An app without a server."""
    made = Celery("beats", broker="memory://", set_as_current=False)
    yield made
    made.close()


def test_all_entries_are_read(celery: Celery, tmp_path: Path) -> None:
    """Entries of the settings and of `add_periodic_task` become tasks, and beat names the store."""
    celery.conf.update(
        timezone="Europe/Berlin",
        duly_store=str(tmp_path / "state.db"),
        beat_schedule={
            "report": {"task": "reports.build", "schedule": crontab(minute=30, hour=3)},
            "ping": {"task": "ping", "schedule": timedelta(seconds=30)},
        },
    )
    celery.add_periodic_task(10.0, celery.signature("poll"), name="poll")
    celery.finalize()
    scheduler = BeatScheduler(app=celery)
    declared = scheduler._jobs._declarations.tasks.values()
    assert {each.name: each.expression.text for each in declared} == {
        "report": "30 3 * * *",
        "ping": "@every 30s",
        "poll": "@every 10s",
    }
    assert str(tmp_path / "state.db") in scheduler.info
    assert not (tmp_path / "state.db").exists(), "beat may only have been asked for its banner"


def test_a_task_is_sent_under_the_id_of_its_run(celery: Celery, tmp_path: Path) -> None:
    """What a run sends can be recognized: a run that starts again after a crash sends the same id."""
    entry = {"task": "reports.build", "schedule": crontab(minute=30, hour=3)}
    celery.conf.update(duly_store=str(tmp_path / "state.db"), beat_schedule={"report": entry})
    sent: list[str] = []

    def on_publish(sender: str, headers: dict[str, Any], **_: Any) -> None:
        sent.append(headers["id"])

    before_task_publish.connect(on_publish, sender="reports.build")
    scheduler = BeatScheduler(app=celery)
    try:
        assert scheduler.tick() > 0
        scheduler.controls.run_now("report")
        assert sent == [str(run.id) for run in scheduler.controls.history("report")]
        assert len(sent) == 1
    finally:
        scheduler.close()
        before_task_publish.disconnect(on_publish, sender="reports.build")


class Beat:
    """Lives of one beat on one file, in virtual time."""

    def __init__(
        self,
        folder: Path,
        start: datetime,
        entry: Any,
        zone: ZoneInfo = BERLIN,
        deadline_s: float | None = None,
    ) -> None:
        self.clock = VirtualClock(start)
        self.store = folder / "state.db"
        self.sent: list[Run] = []
        self.failures = 0
        entry.__dict__.setdefault("tz", BERLIN)  # as the app has it
        self._entry = Entry(name="report", schedule=entry)
        self._deadline_s = deadline_s

    def app(self) -> App:
        app = App(self.store, clock=self.clock, timezone=BERLIN)
        declare(app, [self._entry], self._send, BERLIN, self._deadline_s)
        return app

    @property
    def faces(self) -> list[str]:
        """The dues of what was sent, as the clocks of the zone show them."""
        return [f"{run.due.astimezone(BERLIN):%d %H:%M%z}" for run in self.sent]

    def _send(self, _entry: Any, run: Run) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the broker does not answer")
        self.sent.append(run)


async def test_clock_changes(tmp_path: Path) -> None:
    """A minute that the clocks skip is not sent, one that they show twice is sent once."""
    spring = Beat(tmp_path, datetime(2026, 3, 28, 0, tzinfo=UTC), crontab(minute=30, hour=2))
    async with spring.app():
        await spring.clock.advance(timedelta(days=3))
    # 29 March: the clocks go from 02:00 to 03:00, so there is no 02:30
    assert spring.faces == ["28 02:30+0100", "30 02:30+0200"]
    (tmp_path / "autumn").mkdir()
    autumn = Beat(tmp_path / "autumn", datetime(2026, 10, 24, 0, tzinfo=UTC), crontab(minute=30, hour=2))
    async with autumn.app():
        await autumn.clock.advance(timedelta(days=3))
    # 25 October: the clocks show 02:30 twice
    assert autumn.faces == ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"]


async def test_what_was_missed_is_sent_once(tmp_path: Path) -> None:
    """A beat that was down for ten dues sends once when it is back, and then goes on as before."""
    beat = Beat(tmp_path, START, schedule(60))
    async with beat.app():
        await beat.clock.advance(timedelta(minutes=2))
    assert len(beat.sent) == 2
    await beat.clock.advance(timedelta(minutes=10, seconds=30))
    async with beat.app():
        await beat.clock.advance(timedelta(0))
        assert len(beat.sent) == 3
        await beat.clock.advance(timedelta(seconds=30))
        assert len(beat.sent) == 4


@pytest.mark.parametrize(("down_min", "sent"), [(4, 1), (6, 0)])
async def test_what_was_missed_by_more_than_the_deadline_is_not_sent(
    tmp_path: Path, down_min: int, sent: int
) -> None:
    """`beat_cron_starting_deadline` says how late a crontab may be sent."""
    beat = Beat(tmp_path, START, crontab(minute=30), deadline_s=300)
    async with beat.app():
        await beat.clock.advance(timedelta(minutes=10))
    await beat.clock.advance_to(START.replace(minute=30, second=0) + timedelta(minutes=down_min))
    async with beat.app():
        await beat.clock.advance(timedelta(minutes=1))
    assert len(beat.sent) == sent


async def test_a_crontab_may_have_a_zone_of_its_own(tmp_path: Path) -> None:
    """A crontab whose class names a zone is due by the clocks of that zone."""
    entry = crontab(minute=0, hour=9)
    entry.tz = ZoneInfo("Asia/Tokyo")
    beat = Beat(tmp_path, START, entry)
    async with beat.app():
        await beat.clock.advance(timedelta(days=1))
    assert beat.faces == ["02 01:00+0100"]


async def test_a_broker_that_is_down_delays_the_sending(tmp_path: Path) -> None:
    """What could not be sent is sent again after a second, two seconds and so on."""
    beat = Beat(tmp_path, START, schedule(60))
    beat.failures = 2
    async with beat.app():
        await beat.clock.advance(timedelta(seconds=60))
        assert beat.sent == []
        await beat.clock.advance(timedelta(seconds=3))
        assert [run.attempt for run in beat.sent] == [3]


@pytest.mark.parametrize("entry", [crontab(minute="*/5"), schedule(300)], ids=["crontab", "interval"])
async def test_why_knows_the_entries(entry: Any, tmp_path: Path) -> None:
    """`duly why` says of an entry what it says of a task."""
    beat = Beat(tmp_path, START, entry)
    async with beat.app():
        await beat.clock.advance(timedelta(minutes=6))
    command = [
        "why",
        "report",
        "--store",
        str(beat.store),
        "--tz",
        "Europe/Berlin",
        "--at",
        "2026-01-01 13:05",
    ]
    seen = CliRunner().invoke(main, command)
    assert seen.exit_code == 0, seen.output
    assert "and the run at 13:05" in seen.output
    assert "answered it" in seen.output
