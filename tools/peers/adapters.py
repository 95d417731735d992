"""The peers, each behind the same two steps: read a cron text for a zone, then ask for its firings.

Reading may refuse the text; asking may fail as well, and the table shows which. Nothing is corrected
on the way: an adapter hands on what the library says, be it naive, in the past or at a time that no clock
shows. Peers are imported when they are asked for, since each may be missing.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

Asked = Callable[[datetime, datetime], Iterator[datetime]]
"""From two moments, the firings after the first, at least up to the second; perhaps without end."""
Read = Callable[[str, ZoneInfo], Asked]

_MINUTE = timedelta(minutes=1)


class NotApplicableError(Exception):
    """The library has no way to say this at all."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A library, the package it comes from, and how it reads a cron text."""

    package: str
    read: Read


def _chained(following: Callable[[datetime], datetime | None]) -> Asked:
    """Firings where each is asked for with the one before."""

    def asked(after: datetime, _: datetime) -> Iterator[datetime]:
        moment: datetime | None = after
        while moment is not None and (moment := following(moment)) is not None:
            yield moment

    return asked


def by_duly(text: str, zone: ZoneInfo) -> Asked:
    """The expressions of duly itself."""
    del zone
    expression = import_module("duly.cron").CronExpression.parse(text)
    return _chained(expression.next_after)


def by_cronsim(text: str, zone: ZoneInfo) -> Asked:
    """cronsim, an iterator."""
    cronsim = import_module("cronsim").CronSim
    cronsim(text, datetime(2026, 1, 1, tzinfo=zone))
    return lambda after, _: iter(cronsim(text, after))


def _by_croniter_of(module: str) -> Read:
    def read(text: str, zone: ZoneInfo) -> Asked:
        croniter = import_module(module).croniter
        croniter(text, datetime(2026, 1, 1, tzinfo=zone))

        def asked(after: datetime, _: datetime) -> Iterator[datetime]:
            walk = croniter(text, after)
            while True:
                yield walk.get_next(datetime)

        return asked

    return read


def by_aiocron(text: str, zone: ZoneInfo) -> Asked:
    """The timer of aiocron, with its clock set; it answers in seconds of a loop that began then."""
    aiocron: Any = import_module("aiocron")
    loop = SimpleNamespace(time=lambda: 0.0)
    cron = aiocron.Cron(text, tz=zone, loop=loop)

    def asked(after: datetime, _: datetime) -> Iterator[datetime]:
        aiocron.time = SimpleNamespace(time=after.timestamp)
        aiocron.datetime = SimpleNamespace(now=after.astimezone)
        cron.initialize()
        while True:
            yield datetime.fromtimestamp(after.timestamp() + cron.get_next(), zone)

    return asked


def by_apscheduler(text: str, zone: ZoneInfo) -> Asked:
    """The cron trigger of APScheduler 3, asked as its scheduler does."""
    trigger = import_module("apscheduler.triggers.cron").CronTrigger.from_crontab(text, timezone=zone)
    return _chained(lambda moment: trigger.get_next_fire_time(moment, moment))


def by_celery(text: str, zone: ZoneInfo) -> Asked:
    """The crontab of celery in a loop like that of its beat: look, run if due, sleep at most five minutes.

    Over weeks it sleeps at most a day, so as not to take a minute.
    """
    app = import_module("celery").Celery(set_as_current=False)
    app.conf.timezone = str(zone)
    schedule = import_module("celery.schedules").crontab.from_string(text)
    schedule.app = app

    def asked(after: datetime, until: datetime) -> Iterator[datetime]:
        longest_s = 300 if until - after < timedelta(days=3) else 86_400
        last, now = after, after.astimezone(UTC)
        schedule.nowfun = lambda: now.astimezone(zone)
        while now <= until:
            is_due, wait_s = schedule.is_due(last)
            if is_due:
                last = now.astimezone(zone)
                yield last
            now += timedelta(seconds=min(max(wait_s, 0.001), longest_s))

    return asked


def by_crontab(text: str, zone: ZoneInfo) -> Asked:
    """The package crontab."""
    del zone
    tab = import_module("crontab").CronTab(text)
    return _chained(lambda moment: tab.next(moment, default_utc=True, return_datetime=True))


def by_cron_converter(text: str, zone: ZoneInfo) -> Asked:
    """cron-converter, an iterator."""
    del zone
    cron = import_module("cron_converter").Cron(text)
    return lambda after, _: iter(cron.schedule(after))


def by_pycron(text: str, zone: ZoneInfo) -> Asked:
    """pycron, which only says whether a minute matches: asked once in every minute that passes."""
    pycron = import_module("pycron")

    def asked(after: datetime, until: datetime) -> Iterator[datetime]:
        moment = after.astimezone(UTC)
        while moment < until:
            moment += _MINUTE
            if pycron.is_now(text, moment.astimezone(zone)):
                yield moment.astimezone(zone)

    return asked


def by_schedule(text: str, zone: ZoneInfo) -> Asked:
    """schedule, which knows no cron text: the few that its own words can say, looked at once a minute."""
    schedule: Any = import_module("schedule")
    moments = [datetime(2026, 1, 1, tzinfo=UTC)]
    schedule.datetime = _staged(moments)
    scheduler = schedule.Scheduler()
    _said(scheduler, text, zone)

    def asked(after: datetime, until: datetime) -> Iterator[datetime]:
        firings: list[datetime] = []
        moments[0] = after.astimezone(UTC)
        _said(scheduler, text, zone).do(lambda: firings.append(moments[0].astimezone(zone)))
        while moments[0] < until:
            moments[0] += _MINUTE
            scheduler.run_pending()
            yield from firings
            firings.clear()

    return asked


def _said(scheduler: Any, text: str, zone: ZoneInfo) -> Any:
    """A cron text in the words of schedule."""
    minute, *rest = text.split(" ")
    if text == "* * * * *":
        return scheduler.every().minute
    if rest == ["*"] * 4 and minute.isdecimal() and minute.isascii() and int(minute) < 60:
        return scheduler.every().hour.at(f":{int(minute):02}", str(zone))
    if text == "30 2 * * *":
        return scheduler.every().day.at("02:30", str(zone))
    raise NotApplicableError


def _staged(moments: list[datetime]) -> Any:
    """A stand-in for the module datetime, whose clock shows the first of *moments*, on a host in UTC."""
    real = import_module("datetime")
    time.tzset()

    class Staged(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return moments[0].astimezone(tz) if tz is not None else moments[0].replace(tzinfo=None)

    return SimpleNamespace(datetime=Staged, timedelta=real.timedelta, time=real.time)


PEERS: Mapping[str, Peer] = {
    "duly": Peer("duly", by_duly),
    "croniter": Peer("croniter", _by_croniter_of("croniter")),
    "croniter-rs": Peer("croniter-rs", _by_croniter_of("croniter_rs")),
    "cronsim": Peer("cronsim", by_cronsim),
    "aiocron": Peer("aiocron", by_aiocron),
    "APScheduler": Peer("apscheduler", by_apscheduler),
    "celery": Peer("celery", by_celery),
    "crontab": Peer("crontab", by_crontab),
    "cron-converter": Peer("cron-converter", by_cron_converter),
    "pycron": Peer("pycron", by_pycron),
    "schedule": Peer("schedule", by_schedule),
}
"""In the order of the columns."""
