"""The overview: one picture of everything, at one moment. Pure, so that a thread can make it.

What the history says is asked for before. One that cannot be read leaves the picture without runs, and is a
reason of bad health: then above all somebody wants to see how everything is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from duly.config.schema import Config
from duly.daemon import views
from duly.daemon.backend import Backend
from duly.daemon.shapes import HealthShape
from duly.errors import StoreError
from duly.instant import Instant
from duly.store.history import MissRow, RunRow
from duly.web import models, timeline

if TYPE_CHECKING:
    from duly.web.upcoming import Shelf

NEXT_SHOWN = 10
"""Firings to come, and runs that were, in the lists."""


_MOST_DRAWN = 1_500
"""Runs that the time line looks at; if there are more, it says so."""
_MOST_MISSES = 5_000


class Seen(NamedTuple):
    """What the history says."""

    runs: Sequence[RunRow] = ()
    latest: Sequence[RunRow] = ()
    misses: Sequence[MissRow] = ()
    counts: Mapping[str | None, int] = {}
    left_out: bool = False
    """Whether there are older runs than those."""
    faults: tuple[str, ...] = ()


class Counted:
    """How the runs of a day ended. A hundred thousand of them are counted once a minute, not for each page.

    What began before this minute stays as it was, but for runs under way: when one of those ends, all are
    counted anew.
    """

    def __init__(self) -> None:
        self._kept: tuple[timeline.Window, frozenset[int], Counter[str | None]] | None = None

    async def of(self, backend: Backend, day: timeline.Window) -> Mapping[str | None, int]:
        """How many runs of *day* ended how; None for those that have not. Raises StoreError."""
        history, under_way = backend.history, _under_way(backend.services(), day.now_us)
        newest = Counter(await history.counts(day.now_us))
        if self._kept is not None and self._kept[:2] == (day, under_way):
            return self._kept[2] + newest
        whole = Counter(await history.counts(day.from_us))
        # What began between the two counts is in one of them only: then nothing is kept.
        if newest == Counter(await history.counts(day.now_us)):
            self._kept = (day, under_way, whole - newest)
        return whole


def _under_way(services: Iterable[views.ServiceReading], before_us: Instant) -> frozenset[int]:
    """The runs under way that began before that."""
    newest = (reading.last_run for reading in services if reading.last_run is not None)
    return frozenset(row.id for row in newest if row.ended_us is None and row.started_us < before_us)


async def seen(backend: Backend, window: timeline.Window, day: timeline.Window, counted: Counted) -> Seen:
    """What the history says of a window; of misses and counts what it says of the *day* before."""
    history, is_open = backend.history, backend.standing().is_gate_open
    try:
        runs = await history.runs_between(window.from_us, window.to_us, limit=_MOST_DRAWN)
        latest = await history.runs(limit=NEXT_SHOWN, with_output=False)
        misses = await history.misses(limit=_MOST_MISSES) if is_open else []
        counts = await counted.of(backend, day)
    except StoreError as error:
        return Seen(faults=(f"the history cannot be read: {error.message}",))
    return Seen(runs, latest, models.misses_since(misses, day.from_us), counts, len(runs) >= _MOST_DRAWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the overview is made of."""

    standing: views.Standing
    config: Config
    services: Sequence[views.ServiceReading]
    timers: Mapping[str, views.TimerReading] | None
    window: timeline.Window
    runs: Sequence[RunRow]
    latest: Sequence[RunRow]
    misses: Sequence[MissRow]
    counts: Mapping[str | None, int]
    left_out: bool
    """Whether there are older runs than those."""
    shelf: "Shelf | None"

    def values(self) -> dict[str, Any]:
        """What the template needs."""
        standing, timers = self.standing, self.timers
        health = views.health(standing, self.config, self.services, timers)
        closed = views.disabled(is_parent_on=self.config.settings.enabled)
        return {
            "health": health,
            "headline": _headline(standing.state, health),
            "standing_words": _STANDING.get(standing.state, "running"),
            "most_reasons": models.MOST_REASONS,
            "started_us": standing.started_us,
            "gate_message": closed.message if timers is None else "",
            "tiles": models.tiles(
                views.counts(self.config, self.services, timers),
                len(self.misses),
                self.counts,
                has_timers=timers is not None,
            ),
            "timeline": self.lanes(),
            "next": None if timers is None else models.next_firings(self.config, timers, NEXT_SHOWN),
            "latest": [models.run_facts(row, standing.now_us) for row in self.latest],
            "kinds": ("timers", "services"),
            "has_runs": True,
            "drawn_since_us": self._drawn_since_us(),
            "more_href": "/services?only=failed",
        }

    def _drawn_since_us(self) -> int | None:
        """Since when all runs are drawn; None if all are."""
        ended = (row.started_us for row in self.runs if row.ended_us is not None)
        return min(ended, default=None) if self.left_out else None

    def lanes(self) -> timeline.Timeline:
        """What ran and what comes."""
        ahead = self._ahead()
        loud = self._loud(ahead)
        quiet = [name for name in ahead if name not in loud]
        # Of those with nothing but a next slot the first ones alone can get a lane: only they are matters.
        few = [timeline.Matter(name, slots=ahead[name]) for name in quiet[: timeline.MOST_LANES + 1]]
        own, rest = timeline.chosen(self._in_order([*loud.values(), *few]))
        if self.timers is not None and self.shelf is not None:
            self._fill({matter.id: matter for matter in own}, self.timers, self.shelf)
        hushed = [ahead[name][0] for name in quiet[timeline.MOST_LANES + 1 :]]
        return timeline.drawn(own, rest, self.window, self.standing.zone, hushed)

    def _ahead(self) -> dict[str, list[Instant]]:
        """Of each service that is declared the next slots of its timers, in the order of declaration."""
        found: dict[str, list[Instant]] = {service.id: [] for service in self.config.services}
        timers = self.timers or {}
        from_us, to_us = self.window.from_us, self.window.to_us
        for timer in self.config.timers:
            reading = timers.get(timer.id)
            if reading is None or reading.next_us is None or not from_us <= reading.next_us <= to_us:
                continue
            if reading.next_us != reading.retry_at_us and timer.target in found:
                found[timer.target].append(reading.next_us)
        return {name: slots for name, slots in found.items() if slots}

    def _loud(self, ahead: Mapping[str, list[Instant]]) -> dict[str, timeline.Matter]:
        """The services of which there is more to tell than when they come next."""
        declared = {service.id for service in self.config.services}
        loud: dict[str, timeline.Matter] = {}

        def matter_of(name: str) -> timeline.Matter:
            if name not in loud:
                loud[name] = timeline.Matter(name, slots=ahead.get(name, []))
            return loud[name]

        for row in self.runs:
            if row.service in declared:
                matter_of(row.service).runs.append(row)
        targets = {timer.id: timer.target for timer in self.config.timers} if self.misses else {}
        for miss in self.misses:
            if targets.get(miss.timer) in declared and self.window.holds(miss.at_us):
                matter_of(targets[miss.timer]).misses.append(miss)
        for timer in self.config.timers if self.timers else ():
            reading = (self.timers or {}).get(timer.id)
            at_us = None if reading is None else reading.retry_at_us
            if at_us is not None and timer.target in declared and self.window.holds(at_us):
                matter_of(timer.target).retries.append(at_us)
        return loud

    def _in_order(self, matters: Sequence[timeline.Matter]) -> list[timeline.Matter]:
        """In the order of declaration."""
        known = {matter.id: matter for matter in matters}
        return [known[service.id] for service in self.config.services if service.id in known]

    def _fill(
        self,
        lanes: Mapping[str, timeline.Matter],
        timers: Mapping[str, views.TimerReading],
        shelf: "Shelf",
    ) -> None:
        """Give lanes all their slots, not only the next."""
        from duly.web.upcoming import slots_ahead  # noqa: PLC0415 - the gate is open

        for timer in self.config.timers:
            matter = lanes.get(timer.target)
            reading = None if matter is None else timers.get(timer.id)
            if matter is None or reading is None or reading.next_us is None:
                continue
            most = timeline.MOST_SLOTS + 1
            found = slots_ahead(timer, shelf, self.standing.now_us, self.window.to_us, most)
            matter.slots = sorted({*matter.slots, *found})


_STANDING = {"starting": "starting up", "stopping": "stopping", "down": "not running"}


def _headline(state: str, health: HealthShape) -> str:
    reasons, warned = health.reasons, len(health.warnings)
    if not reasons and state != "running":
        return f"The daemon is {state}"
    if not reasons and warned:
        return f"All runs, but {'one timer' if warned == 1 else f'{warned:,} timers'} missed what was due"
    if not reasons:
        return "All is well"
    return "One thing is not right" if len(reasons) == 1 else f"{len(reasons):,} things are not right"
