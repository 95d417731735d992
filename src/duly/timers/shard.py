"""One shard of timers on a board: the shelf that its timers are written to, fenced by its term.

A row says which member carries out the run it tells of. Whoever takes a shard finds no run of its own in it:
a holder gives it up only when nothing runs, or has lost it and everything in it with its lease.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from duly.cluster.holdings import Holdings
from duly.core.record import Record
from duly.store import Contents
from duly.store.board import Hold, ShardsLostError, SupersededError, TimerBoard, TimerRow
from duly.timers.record import record_of
from duly.timers.timer import TimerState

new_number = count(1).__next__
"""Of a stint: one that no other has in this process."""


class Stint(NamedTuple):
    """How the timers of one shard are at work on this machine: what whoever watches them has to know."""

    number: int
    """Another one whenever the shard was let go of meanwhile: what is in memory alone was lost."""
    turns: int
    """Another one whenever they were kept from firing meanwhile."""
    is_able: bool
    """Whether they can fire at this moment: the lease is good, the list is in effect, the board writes."""


class ShardShelf:
    """The timers of the shard that *hold* names, which begin as *records*."""

    def __init__(
        self,
        board: TimerBoard,
        holdings: Holdings,
        hold: Hold,
        records: Sequence[Record],
        on_refused: Callable[[], None],
    ) -> None:
        self._board = board
        self._mine = holdings
        self._hold = hold
        self._records = records
        self._on_refused = on_refused
        self._runs: dict[int, int | None] = {}
        """The run that the board knows of, by the id of its timer."""

    @property
    def name(self) -> str:
        """The name of the board."""
        return self._board.name

    async def open(self, _new_id: str) -> Contents:
        """The timers as they were when the shard was taken."""
        return Contents("", self._records)

    async def replace(self, *, put: Sequence[TimerState], removed: Sequence[int]) -> None:
        """Write timers whole and forget others."""
        await self._write(put, removed, is_fenced=True)

    async def save(self, timers: Sequence[TimerState]) -> None:
        """Write what running changed."""
        if not timers:
            return
        begins = any(
            timer.running_run is not None and self._runs.get(timer.id) != timer.running_run
            for timer in timers
        )
        await self._write(timers, (), is_fenced=begins)

    async def _write(self, put: Sequence[TimerState], removed: Sequence[int], *, is_fenced: bool) -> None:
        rows = [
            TimerRow(
                self._hold.shard, record_of(timer), None if timer.running_run is None else self._mine.member
            )
            for timer in put
        ]
        try:
            await self._board.write_timers(
                self._mine.member,
                self._hold,
                self._mine.numbered(),
                put=rows,
                removed=removed,
                # A list that we have not heard of yet may have changed or removed what would begin here.
                edition=self._mine.newest if is_fenced else None,
            )
        except (ShardsLostError, SupersededError):
            self._on_refused()
            raise
        self._runs.update((timer.id, timer.running_run) for timer in put)
