"""Limits of runs: how many at once, and how long. A run that lasts longer than it may is cancelled.

A time limit is a length of time. When the wall clock is stepped the deadlines move with it. The limits look
after themselves as long as there is one, whether or not anything else is being polled.

Named limits count the runs of this process, and what other nodes of a cluster have as far as this one knows:
the database decides there. An item that finds no room waits here, and nobody looks at it until there is room.
So a thousand items that wait for one place cost nothing meanwhile.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from duly.background import Background
from duly.clock import Clock
from duly.engine.rules import Begin, Rules, T
from duly.events import Announcer
from duly.instant import LATEST_US, Instant, datetime_at, instant_of

K = TypeVar("K")

_SPARE = 64


class RunLimits(NamedTuple):
    """What a user allows the runs of a scheduler; None is no limit."""

    max_concurrent: int | None = None
    timeout_us: int | None = None


NO_LIMITS = RunLimits()


class NamedLimits:
    """How many runs may still begin in each named limit, and who waits for room."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self._order = count()
        self.renew()

    def renew(self) -> None:
        """Start over: nothing runs, and nobody waits."""
        self._room = dict(self.sizes)
        self._others = dict.fromkeys(self.sizes, 0)
        """How many runs other nodes have."""
        self._heaps: dict[str, list[tuple[Instant, int, str]]] = {}
        self._waiting: set[str] = set()

    @property
    def waiting(self) -> Collection[str]:
        """The names of those who wait."""
        return self._waiting

    def admitted(
        self, starts: Sequence[Begin[T]], rules: Rules[T], announcer: Announcer
    ) -> Sequence[Begin[T]]:
        """Those of *starts* for which there is room, which they take. The items of the others wait for it."""
        admitted = []
        for start in starts:
            limit, name = rules.limit_of(start.before), start.before.name
            # Room is taken at once: two starts of one claim cannot share the last place.
            if limit is None or self._left(limit):
                self._take(limit)
                admitted.append(start)
            else:
                self._wait(limit, name, rules.wakes_us(start.before))
                rules.emit_skipped(announcer, name, f"no room in limit {limit!r}; starts when there is")
        return admitted

    def put_off(self, starts: Sequence[Begin[T]], rules: Rules[T], announcer: Announcer) -> None:
        """Have *starts* wait, because other nodes leave no room, until one of those runs has ended."""
        for start in starts:
            limit, name = rules.limit_of(start.before), start.before.name
            assert limit is not None
            self._others[limit] = self.sizes[limit]
            self._wait(limit, name, rules.wakes_us(start.before))
            rules.emit_skipped(announcer, name, f"no room in limit {limit!r}; starts when there is")

    def note_others(self, busy: Mapping[str, int]) -> None:
        """Note how many runs other nodes have in each limit."""
        self._others = {limit: busy.get(limit, 0) for limit in self.sizes}

    def _left(self, limit: str) -> int:
        return max(self._room[limit] - self._others[limit], 0)

    def _take(self, limit: str | None) -> None:
        if limit is not None:
            self._room[limit] -= 1

    def free(self, limit: str | None) -> None:
        """Give back the room of one run, which has ended or was not begun."""
        if limit is not None:
            self._room[limit] += 1

    def _wait(self, limit: str, name: str, since_us: Instant) -> None:
        if name not in self._waiting:
            self._waiting.add(name)
            heappush(self._heaps.setdefault(limit, []), (since_us, next(self._order), name))

    def has_next(self) -> bool:
        """Whether there is room for somebody who waits."""
        return any(heap and self._left(limit) for limit, heap in self._heaps.items())

    def next_names(self) -> list[str]:
        """Those that there is room for, earliest first. They wait no more, and are to be looked at."""
        names = [
            heappop(heap)[2]
            for limit, heap in self._heaps.items()
            for _ in range(min(self._left(limit), len(heap)))
        ]
        self._waiting.difference_update(names)
        return names


class Limits(Generic[K]):
    """The deadlines of what is under way: runs, processes, pauses."""

    def __init__(self, clock: Clock, cancel: Callable[[K], None]) -> None:
        self._clock = clock
        self._cancel = cancel
        self._order = count()
        self._deadlines: list[tuple[Instant, int, K]] = []
        self._live: set[K] = set()
        self._watch = Background(self._watch_over, name="duly limits")

    def begin(self, run: K, deadline_us: Instant) -> None:
        """Cancel *run* if it still runs at *deadline_us*."""
        self._live.add(run)
        # The number decides between equal deadlines: runs cannot be compared.
        heappush(self._deadlines, (deadline_us, next(self._order), run))
        # The watch sleeps until the earliest deadline, so only a new earliest one concerns it.
        if self._deadlines[0][2] is run:
            self._watch_anew()

    def end(self, run: K) -> None:
        """Note that *run* has ended, whether or not it had a limit."""
        self._live.discard(run)
        if not self._live:
            self.drop()
        # Ended runs stay in the heap until most of it is theirs: to look for each would cost O(n) a run.
        elif len(self._deadlines) > 2 * len(self._live) + _SPARE:
            self._deadlines = [deadline for deadline in self._deadlines if deadline[2] in self._live]
            heapify(self._deadlines)

    def shift(self, by_us: int) -> None:
        """Account for a step of the wall clock."""
        self._deadlines = [(deadline_us + by_us, order, run) for deadline_us, order, run in self._deadlines]
        if self._deadlines:
            self._watch_anew()

    def drop(self) -> None:
        """Forget all limits."""
        self._live.clear()
        self._deadlines.clear()
        self._watch.end()

    def _watch_anew(self) -> None:
        self._watch.end()
        self._watch.start()

    async def _watch_over(self) -> None:
        while self._deadlines:
            deadline_us, _, run = self._deadlines[0]
            # Looked at again after every sleep: meanwhile the run may have ended, or a step moved its
            # deadline.
            if run in self._live and instant_of(self._clock.now()) < deadline_us:
                await self._clock.sleep_until(datetime_at(min(deadline_us, LATEST_US), UTC))
                continue
            heappop(self._deadlines)
            if run in self._live:
                self._cancel(run)
