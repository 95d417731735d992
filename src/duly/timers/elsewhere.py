"""The timers that other machines hold, as far as one of them knows: from the rows of the board, now and then.

Retries are in the memory of their holder alone, and so are ends of runs that no timer has started. The rest
of what is to come is worked out here as whoever took a timer now would do it.
"""

from collections.abc import Mapping, Sequence

from duly.cluster.holdings import Holdings
from duly.instant import Instant
from duly.store.board import StartUp, TimerBoard, View
from duly.timers.dues import next_run_us
from duly.timers.recall import told_of
from duly.timers.reconciliation import Surroundings, with_startup
from duly.timers.record import Declared
from duly.timers.timer import TimerState, anchored, last_known_end_us


class Elsewhere:
    """What is known of the timers of others, and of who holds what."""

    def __init__(self, board: TimerBoard, holdings: Holdings) -> None:
        self._board = board
        self._mine = holdings
        self.timers: dict[str, TimerState] = {}
        """By name, as they were when we last looked."""
        self.start_up: StartUp | None = None
        """Of the cluster."""
        self._names: Mapping[int | None, str] = {}
        """By its number, what each member is called."""
        self._holders: Mapping[int, int | None] = {}

    def heed(self, view: View) -> None:
        """Account for what others did."""
        self._names = {seat.member: seat.name for seat in view.seats}
        self._holders = {place.shard: place.holder for place in view.places}
        self.start_up = view.start_up

    async def look(self, declared: Sequence[Declared], now_us: Instant) -> None:
        """See how those of *declared* are that others hold. Raises StoreError."""
        others = [shard for shard in range(self._mine.shards) if shard not in self._mine.terms]
        rows = await self._board.timers(others) if others else []
        told = told_of(declared, [row.record for row in rows])
        self.timers = {name: expected(timer, self.start_up, now_us) for name, timer in told.items()}

    def forget(self, name: str) -> None:
        """Know nothing of a timer until the next look."""
        self.timers.pop(name, None)

    def holder_of(self, shard: int) -> str:
        """Which machine holds it, as far as is known; empty if none does."""
        if shard in self._mine.terms:
            return self._names.get(self._mine.member, "")
        holder = self._holders.get(shard)
        # What was ours when we last looked has been given away since.
        return "" if holder == self._mine.member else self._names.get(holder, "")


def expected(timer: TimerState, start_up: StartUp | None, now_us: Instant) -> TimerState:
    """A timer of a row, with the triggers set that count from a start-up and from its last run."""
    around = Surroundings(
        now_us=now_us,
        started_up_us=None if start_up is None else start_up.at_us,
        is_start_up=False,
        next_id=0,
        last_end_us=lambda timer: last_known_end_us(timer, None),
        opened_us=None if start_up is None else start_up.opened_us,
    )
    timer = anchored(timer, around.last_end_us(timer), now_us)
    return with_startup(timer, around, has_fired=False)


def next_of(timer: TimerState, now_us: Instant) -> Instant | None:
    """When a timer that another machine holds will fire next, as far as is known."""
    at_us = next_run_us(timer, is_target_active=timer.running_run is not None)
    return None if at_us is None else max(at_us, now_us)
