"""Holdings: what a member has of a board, and the shelf through which its engine writes tasks into it.

Every write names the terms of the shards it touches, and a number that grows. A row also names the member
that runs it. What is no longer held is not written: the board would refuse it, and the whole write with it.
"""

from collections.abc import Callable, Iterable, Sequence

from duly.core.task import Task
from duly.engine.runs import Run
from duly.store.board import Board, Hold, Row, ShardsLostError, View, shard_of


class Holdings:
    """Who a member is, which shards it holds, and which list it has."""

    def __init__(self) -> None:
        self.member = 0
        """Its number; 0 while it is no member."""
        self.shards = 1
        """Into how many shards the board is divided."""
        self.terms: dict[int, int] = {}
        """The shards held, with their terms."""
        self.edition = 0
        """The edition of our list."""
        self.newest = 0
        """The newest edition that we have heard of."""
        self._number = 0

    @property
    def holds(self) -> list[Hold]:
        """The shards held, in order."""
        return [Hold(shard, term) for shard, term in sorted(self.terms.items())]

    def numbered(self) -> int:
        """The number of the next write: higher than any before."""
        self._number += 1
        return self._number

    def gone(self, view: View) -> list[Hold]:
        """What we hold and the board does not have as ours."""
        return [
            hold
            for hold in self.holds
            if (view.places[hold.shard].holder, view.places[hold.shard].term) != (self.member, hold.term)
        ]


class TaskHoldings(Holdings):
    """What one member holds of the tasks on a board: a shelf for the engine."""

    def __init__(self, board: Board, on_refused: Callable[[], None]) -> None:
        super().__init__()
        self._board = board
        self._on_refused = on_refused
        self.away: dict[str, tuple[int, Run[Task]]] = {}
        """Runs of our tasks that other members carry out: by whom."""

    def holds_task(self, name: str) -> bool:
        """Whether the shard of a task is held."""
        return shard_of(name, self.shards) in self.terms

    async def replace(self, *, put: Sequence[Task], removed: Sequence[int]) -> None:
        """Write tasks whole. Only a new edition removes any, and the board sees to that."""
        assert not removed
        await self._write(put, is_whole=True)

    async def save(self, tasks: Sequence[Task]) -> None:
        """Write what running changed."""
        await self._write(tasks, is_whole=False)

    async def _write(self, tasks: Iterable[Task], *, is_whole: bool) -> None:
        rows = [Row(task, self._runner_of(task)) for task in tasks if self.holds_task(task.name)]
        if not rows:
            return
        number = self.numbered()
        touched = {shard_of(row.task.name, self.shards) for row in rows}
        numbers = {Hold(shard, self.terms[shard]): number for shard in sorted(touched)}
        try:
            await self._board.write(self.member, numbers, rows=rows, is_whole=is_whole)
        except ShardsLostError:
            self._on_refused()
            raise

    def _runner_of(self, task: Task) -> int | None:
        if task.running_since_us is None:
            return None
        runner = self.away.get(task.name)
        return self.member if runner is None else runner[0]
