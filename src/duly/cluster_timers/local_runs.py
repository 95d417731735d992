"""The runs of shared timers on this machine, from their start to the end of their processes.

A run that was cut off has a process for another moment. Its node comes back only when that has ended, because
a return gives the row to others.
"""

from collections.abc import Callable

from duly.instant import SECOND_US
from duly.store.history import RunRow
from duly.timers.timer import TimerState

_OUTPUT_BYTES = 64 * 1024
"""So much of the end of a run's output is kept for all machines."""
_DYING_US = 5 * SECOND_US
"""So long a return waits for processes that were killed."""


class LocalRuns:
    """Runs by their number. *steady* is the clock that leases are counted on."""

    def __init__(self, steady: Callable[[], int]) -> None:
        self._steady = steady
        self._fired: dict[int, TimerState] = {}
        self._outputs: dict[int, str] = {}
        self._dying: set[int] = set()
        self._dying_until_us = 0

    def on_fired(self, timer: TimerState) -> None:
        """Note that a timer starts its target."""
        assert timer.running_run is not None
        self._fired[timer.running_run] = timer

    def on_ended(self, row: RunRow) -> TimerState | None:
        """Note that the processes of a run have ended; the timer as it started it, if one did."""
        timer = self._fired.pop(row.id, None)
        if timer is not None and row.id not in self._dying:
            kept = row.output.encode(errors="replace")[-_OUTPUT_BYTES:]
            self._outputs[row.id] = kept.decode(errors="ignore")  # it may begin within a character
        self._dying.discard(row.id)
        return timer

    def output_of(self, run_id: int) -> str | None:
        """The end of the output of a run that has ended. It is given once."""
        return self._outputs.pop(run_id, None)

    def on_cut(self) -> None:
        """Note that all runs are being killed."""
        self._dying |= self._fired.keys()
        self._dying_until_us = self._steady() + _DYING_US

    def are_gone(self) -> bool:
        """Whether nothing is left of what was killed. Any thread may ask."""
        return not self._dying or self._steady() >= self._dying_until_us
