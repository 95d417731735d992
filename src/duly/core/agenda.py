"""The agenda: which tasks to look at when, without ever looking at all of them.

Tasks are kept in buckets by the instant at which they next need a look, and a heap orders the distinct
instants. A minute in which ten thousand tasks are due is one heap entry; an idle minute costs nothing.
Entries are never searched for or removed: one that no longer holds is harmless, because whoever is handed
a task decides anew whether it is owed anything.
"""

from heapq import heappop, heappush

from duly.instant import Instant


class Agenda:
    """Task names by the instant at which they next need a look."""

    __slots__ = ("_buckets", "_instants")

    def __init__(self) -> None:
        self._buckets: dict[Instant, dict[str, None]] = {}
        self._instants: list[Instant] = []

    def add(self, name: str, instant_us: Instant) -> None:
        """Have *name* looked at when *instant_us* has come."""
        bucket = self._buckets.get(instant_us)
        if bucket is None:
            self._buckets[instant_us] = {name: None}
            heappush(self._instants, instant_us)
        else:
            bucket[name] = None

    def next_us(self) -> Instant | None:
        """The earliest instant at which there is something to look at."""
        return self._instants[0] if self._instants else None

    def take(self, now_us: Instant) -> list[str]:
        """The names whose instant has come, each once, earliest first; they are then off the agenda."""
        names: dict[str, None] = {}
        while self._instants and self._instants[0] <= now_us:
            names.update(self._buckets.pop(heappop(self._instants)))
        return list(names)
