"""The overview: what is wrong, with the last words of each; how much there is of what; what comes, what ran.

A history that cannot be read is one thing more that is wrong, and the rest is shown: then above all somebody
wants to see how everything is.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from duly.daemon.protocol import OperationError
from duly.daemon.remote import RunList
from duly.errors import StoreError
from duly.instant import DAY_US, Instant
from duly.store.history import FAILURES, MissGroup, RunRow, RunSearch, Span
from duly.web import formatting, models
from duly.web.runs import RunFacts, machine_of, run_facts
from duly.web.source import Alarm, PageSource, Picture, Tile

NEXT_SHOWN = 10
"""Firings to come, and runs that were, in the lists."""
_MOST_ALARMS = 8
_LAST_LINES = 3


class ShownAlarm(NamedTuple):
    alarm: Alarm
    run: RunRow | None = None
    lines: Sequence[str] = ()
    """The last of its output, or of the traceback of a task."""


class OverviewPage(NamedTuple):
    headline: str
    tone: str
    alarms: Sequence[ShownAlarm]
    more: int
    """Alarms that are not shown."""
    tiles: Sequence[Tile]
    next: Sequence[models.Next] | None
    """What comes next; None if nothing has a schedule."""
    latest: Sequence[RunFacts]
    noun: str
    """The pages of what comes next."""
    run_noun: str
    """The pages of what runs."""
    fault: str | None = None
    """Why runs of other machines are missing, if so."""


async def overview_of(source: PageSource, picture: Picture, alarms: Sequence[Alarm]) -> OverviewPage:
    day_us = picture.moment.now_us - DAY_US
    try:
        results, latest, misses = await asyncio.gather(
            source.results(day_us), source.runs(RunSearch(limit=NEXT_SHOWN)), source.misses(day_us)
        )
        shown = await asyncio.gather(*(_shown(source, alarm) for alarm in alarms[:_MOST_ALARMS]))
        day = _Day(results, latest, misses)
    except StoreError as error:
        alarms = [Alarm(f"the history cannot be read: {error.message}"), *alarms]
        shown, day = [ShownAlarm(alarm) for alarm in alarms[:_MOST_ALARMS]], _Day()
    return await asyncio.to_thread(_page, picture, alarms, shown, day)


class _Day(NamedTuple):
    """What the history says of the last day."""

    results: Mapping[str | None, int] = {}
    latest: RunList = RunList([])
    misses: Sequence[MissGroup] = ()


def _page(picture: Picture, alarms: Sequence[Alarm], shown: Sequence[ShownAlarm], day: _Day) -> OverviewPage:
    missed = sum(group.number for group in day.misses if formatting.is_ill_miss(group.reason))
    nouns = [listing.name for listing in picture.listings()]
    scheduled = [one for one in picture.entries(nouns[-1]) if not isinstance(one, models.ServiceEntry)]
    now_us = picture.moment.now_us
    return OverviewPage(
        headline(alarms),
        tone_of(alarms),
        shown,
        max(len(alarms) - _MOST_ALARMS, 0),
        picture.tiles(day.results, missed),
        models.next_runs(scheduled, now_us, NEXT_SHOWN) if nouns[-1] != "services" else None,
        [run_facts(row, now_us) for row in day.latest.rows],
        nouns[-1],
        nouns[0],
        day.latest.fault,
    )


def tone_of(alarms: Sequence[Alarm]) -> str:
    """That of the worst: the tone of the page, and of its icon."""
    tones = {alarm.tone for alarm in alarms}
    return "bad" if "bad" in tones else "warn" if tones else "good"


def headline(alarms: Sequence[Alarm]) -> str:
    bad = sum(alarm.tone == "bad" for alarm in alarms)
    if bad:
        return "One thing is not right" if bad == 1 else f"{bad:,} things are not right"
    if alarms:
        return "All runs, but one thing is worth a look" if len(alarms) == 1 else "All runs, but have a look"
    return "All is well"


async def _shown(source: PageSource, alarm: Alarm) -> ShownAlarm:
    """An alarm with the last words of its run: the one that hangs, or else the last that failed."""
    if alarm.service is None:
        return ShownAlarm(alarm)
    wanted = RunSearch(service=alarm.service, limit=1)
    wanted = wanted._replace(is_running=True) if alarm.is_live else wanted._replace(results=FAILURES)
    for row in (await source.runs(wanted)).rows:
        with suppress(OperationError):  # of another machine, which the database has just now dropped
            if (whole := await source.run(row.id, machine_of(row))) is not None:
                text = formatting.printed_output(source.output(whole).text).rstrip()
                lines = [line for line in text.splitlines()[-_LAST_LINES:] if line.strip()]
                return ShownAlarm(alarm, whole, lines)
    return ShownAlarm(alarm)


class Planned(NamedTuple):
    """A due to come, and how long its run is expected to take."""

    at_us: Instant
    id: str
    href: str
    usual_us: int | None
    long_us: int | None
    beside: int
    """How many others are expected to run when it starts."""


def plan_of(picture: Picture, from_us: Instant, to_us: Instant, most: int) -> list[Planned]:
    """What is due in a span to come, in order: from the schedules, with lengths as they were so far."""
    span, found = Span(from_us, to_us, to_us - from_us), []
    for lane in picture.lanes():
        usual_us, long_us = models.usual_lengths(lane.lengths_us)
        found += [
            Planned(at_us, lane.id, lane.href, usual_us, long_us, 0)
            for at_us in picture.dues(lane.id, span, most)
        ]
    found.sort(key=lambda one: (one.at_us, one.id))
    ends: list[Instant] = []
    shown = []
    for one in found[:most]:
        ends = [end_us for end_us in ends if end_us > one.at_us]
        shown.append(one._replace(beside=len(ends)))
        ends.append(one.at_us + (one.long_us or 0))
    return shown
