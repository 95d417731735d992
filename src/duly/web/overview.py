"""The overview: one picture of everything, at one moment. Pure, so that a thread can make it.

What the history says is asked for before. One that cannot be read leaves the picture without runs, and is a
reason of bad health: then above all somebody wants to see how everything is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from duly.config.schema import Config
from duly.daemon import views
from duly.daemon.backend import Backend
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


async def seen(backend: Backend, window: timeline.Window, since_us: Instant) -> Seen:
    """What the history says of a window; of misses and counts what it says since *since_us*."""
    history, is_open = backend.history, backend.standing().is_gate_open
    try:
        runs = await history.runs_between(window.from_us, window.to_us, limit=_MOST_DRAWN)
        latest = await history.runs(limit=NEXT_SHOWN, with_output=False)
        misses = await history.misses(limit=_MOST_MISSES) if is_open else []
        counts = await history.counts(since_us)
    except StoreError as error:
        return Seen(faults=(f"the history cannot be read: {error.message}",))
    return Seen(runs, latest, models.misses_since(misses, since_us), counts, len(runs) >= _MOST_DRAWN)


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
        status = views.status_shape(standing, self.config, self.services, timers)
        ahead = None if timers is None else models.timer_entries(self.config, timers)
        return {
            "health": status.health,
            "headline": _headline(standing.state, status.health.reasons),
            "standing_words": _STANDING.get(standing.state, "running"),
            "most_reasons": models.MOST_REASONS,
            "started_us": standing.started_us,
            "gate_message": status.timers_message,
            "tiles": models.tiles(
                status.counts, len(self.misses), self.counts, has_timers=timers is not None
            ),
            "timeline": self.lanes(),
            "next": None if ahead is None else models.next_firings(ahead, NEXT_SHOWN),
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
        matters = self._matters()
        own, rest = timeline.chosen(matters.values())
        if self.timers is not None and self.shelf is not None:
            self._fill({matter.id: matter for matter in own}, self.timers, self.shelf)
        return timeline.drawn(own, rest, self.window, self.standing.zone)

    def _matters(self) -> dict[str, timeline.Matter]:
        matters = {service.id: timeline.Matter(service.id) for service in self.config.services}
        for row in self.runs:
            if (matter := matters.get(row.service)) is not None:
                matter.runs.append(row)
        targets = {timer.id: timer.target for timer in self.config.timers}
        for miss in self.misses:
            matter = matters.get(targets.get(miss.timer, ""))
            if matter is not None and self.window.holds(miss.at_us):
                matter.misses.append(miss)
        for timer in self.config.timers if self.timers is not None else ():
            reading, matter = (self.timers or {}).get(timer.id), matters.get(timer.target)
            if reading is None or matter is None:
                continue
            is_slot = reading.next_us != reading.retry_at_us
            if is_slot and reading.next_us is not None and self.window.holds(reading.next_us):
                matter.slots.append(reading.next_us)
            if reading.retry_at_us is not None and self.window.holds(reading.retry_at_us):
                matter.retries.append(reading.retry_at_us)
        return matters

    def _fill(
        self,
        lanes: Mapping[str, timeline.Matter],
        timers: Mapping[str, views.TimerReading],
        shelf: "Shelf",
    ) -> None:
        """Give lanes all their slots, not only the next."""
        from duly.web.upcoming import slots_ahead  # noqa: PLC0415 - the gate is open

        for timer in self.config.timers:
            matter, reading = lanes.get(timer.target), timers.get(timer.id)
            if matter is None or reading is None or reading.next_us is None:
                continue
            most = timeline.MOST_SLOTS + 1
            found = slots_ahead(timer, shelf, self.standing.now_us, self.window.to_us, most)
            matter.slots = sorted({*matter.slots, *found})


_STANDING = {"starting": "starting up", "stopping": "stopping", "down": "not running"}


def _headline(state: str, reasons: Sequence[str]) -> str:
    if not reasons:
        return "All is well" if state == "running" else f"The daemon is {state}"
    return "One thing is not right" if len(reasons) == 1 else f"{len(reasons):,} things are not right"
