"""The deadlines of L1: by when each task must have started, the soonest first.

A start or an end makes the deadlines of its task void (`Task.version`). Void ones are left in the heap, and
thrown out when they come to its top, or when there are too many of them.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from duly.verify.task import Task


class Deadlines:
    """What is or will be owed, and by when."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Task, int]] = []
        """(deadline, order, onset, task, version)."""
        self._order = 0

    def add(self, task: Task, onset_us: int, bound_us: int, *, tasks: int) -> None:
        """*task* must start within *bound_us* of *onset_us*; so many *tasks* there are in all."""
        task.version += 1
        self._order += 1
        heappush(self._heap, (onset_us + bound_us, self._order, onset_us, task, task.version))
        if len(self._heap) > 2 * tasks + 64:
            self._heap = [entry for entry in self._heap if entry[3].version == entry[4]]
            heapify(self._heap)

    def clear(self) -> None:
        """Nothing is owed any more."""
        self._heap = []

    def passed(self, at_us: int) -> Iterator[tuple[Task, int]]:
        """Take out those that lie before *at_us*: the task, and since when its start was owed."""
        while self._heap and self._heap[0][0] < at_us:
            _, _, onset_us, task, version = heappop(self._heap)
            if task.version == version:
                task.version += 1
                yield task, onset_us

    def open(self, now_us: int) -> int:
        """How many are owed by now, and not late."""
        return sum(
            onset_us <= now_us for _, _, onset_us, task, version in self._heap if task.version == version
        )
