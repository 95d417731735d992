"""The pruner: deletes what is too old or too much of the history, at start and every ten minutes.

It runs by time, not by the number of runs: a timer that only misses ends no run, and rows grow old while
nothing happens. Between two prunings the history holds ten minutes' worth of rows more than it is to keep.
"""

from collections.abc import Callable

from duly.clock import Clock, pause
from duly.config.schema import Settings
from duly.errors import StoreError
from duly.events import Announcer, described
from duly.instant import instant_of
from duly.store.history import History

_PERIOD_S = 600
_AFTER_FAULT_S = 16
_DAY_US = 86_400 * 1_000_000


class Pruner:
    """Prunes *history*. *limits* are the settings of that moment, and whether misses are pruned as well."""

    def __init__(
        self,
        history: History,
        clock: Clock,
        announcer: Announcer,
        limits: Callable[[], tuple[Settings, bool]],
    ) -> None:
        self._history = history
        self._clock = clock
        self._announce = announcer.announce
        self._limits = limits

    async def run(self) -> None:
        fault: StoreError | None = None
        while True:
            before, fault = fault, await self._prune()
            if fault is not None and before is None:
                self._announce("StoreFault", error=described(fault))
            if fault is None and before is not None:
                self._announce("StoreRecovered", error=described(before))
            await pause(self._clock, _PERIOD_S if fault is None else _AFTER_FAULT_S)

    async def _prune(self) -> StoreError | None:
        """Delete the runs and misses that are too old or too many; the fault, if that fails."""
        settings, with_misses = self._limits()
        oldest_us = instant_of(self._clock.now()) - round(settings.history_days * _DAY_US)
        try:
            await self._history.prune(
                oldest_us=oldest_us,
                runs=settings.history_runs,
                misses=with_misses,
                output_bytes=settings.output_mib << 20,
            )
        except StoreError as error:
            return error
        return None
