"""Holdings: the shards that a member holds, and the shelf through which its engine writes into them.

Every write names the terms of the shards it touches, and a number that grows. A row also names the member
that runs it. What is no longer held is not written: the board would refuse it, and the whole write with it.
"""

from collections.abc import Callable, Iterable, Sequence

from duly.core.task import Task
from duly.engine.runs import Run
from duly.store.board import Board, Hold, Row, ShardsLostError, shard_of


class Holdings:
    """What one member holds of a board."""

    def __init__(self, board: Board, on_refused: Callable[[], None]) -> None:
        self._board = board
        self._on_refused = on_refused
        self._number = 0
        self.member = 0
        self.shards = 1
        """Into how many shards the board divides its tasks."""
        self.terms: dict[int, int] = {}
        """The shards held, with their terms."""
        self.away: dict[str, tuple[int, Run[Task]]] = {}
        """Runs of our tasks that other members carry out: by whom."""

    @property
    def holds(self) -> list[Hold]:
        """The shards held, in order."""
        return [Hold(shard, term) for shard, term in sorted(self.terms.items())]

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
        self._number += 1
        touched = {shard_of(row.task.name, self.shards) for row in rows}
        numbers = {Hold(shard, self.terms[shard]): self._number for shard in sorted(touched)}
        if not rows:
            return
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
