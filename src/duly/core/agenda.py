"""The agenda: which tasks to look at when, without ever looking at all of them.

Tasks are kept in buckets by the instant at which they next need a look, and a heap orders the distinct
instants. A minute in which ten thousand tasks are due is one heap entry; an idle minute costs nothing.
A task stands on it once: a new instant takes the place of the old one. So nobody is woken for what no longer
holds, and a task that is moved every minute for years leaves nothing behind.
"""

from heapq import heapify, heappop, heappush

from duly.instant import Instant

_VACANT_KEPT = 64
"""Instants at which nobody waits any more stay on the heap, up to this many and as many as the others."""


class Agenda:
    """Task names by the instant at which they next need a look."""

    __slots__ = ("_buckets", "_instants", "_places")

    def __init__(self) -> None:
        self._buckets: dict[Instant, dict[str, None]] = {}
        self._instants: list[Instant] = []
        self._places: dict[str, Instant] = {}

    def add(self, name: str, instant_us: Instant) -> None:
        """Have *name* looked at when *instant_us* has come, and not at the instant given before."""
        place_us = self._places.get(name)
        if place_us == instant_us:
            return
        if place_us is not None:
            self._vacate(name, place_us)
        self._places[name] = instant_us
        bucket = self._buckets.get(instant_us)
        if bucket is None:
            self._buckets[instant_us] = {name: None}
            heappush(self._instants, instant_us)
        else:
            bucket[name] = None

    def discard(self, name: str) -> None:
        """Have *name* not looked at any more."""
        place_us = self._places.pop(name, None)
        if place_us is not None:
            self._vacate(name, place_us)

    def _vacate(self, name: str, place_us: Instant) -> None:
        bucket = self._buckets[place_us]
        del bucket[name]
        if bucket:
            return
        del self._buckets[place_us]
        if len(self._instants) > 2 * len(self._buckets) + _VACANT_KEPT:
            self._instants = list(self._buckets)
            heapify(self._instants)

    def next_us(self) -> Instant | None:
        """The earliest instant at which there is something to look at."""
        while self._instants and self._instants[0] not in self._buckets:
            heappop(self._instants)
        return self._instants[0] if self._instants else None

    def take(self, now_us: Instant) -> list[str]:
        """The names whose instant has come, earliest first; they are then off the agenda."""
        names: list[str] = []
        while self._instants and self._instants[0] <= now_us:
            names += self._buckets.pop(heappop(self._instants), ())
        for name in names:
            del self._places[name]
        return names
