"""Lists of registrations, read as MODEL.md does: valid or not, and what each task's configuration is.

A configuration that is seen again is the same object, and so is the due table of a cron text, however many
tasks share it and however often the list is repeated.
"""

import math
from collections.abc import Sequence
from datetime import tzinfo
from typing import NamedTuple

from duly.verify.dues import CronTextError, Dues
from duly.verify.trace import micros
from duly.verify.worlds import Config

_LONGEST_MS = 2**50


class Reading(NamedTuple):
    """What a list says; *configs* is None, and *reason* tells why, if the list is not valid."""

    configs: dict[str, Config] | None
    reason: str
    size: int


class Lists:
    """Every configuration that a trace has shown."""

    def __init__(self, zone: tzinfo, *, is_first_after: bool = False) -> None:
        self._zone = zone
        self._is_first_after = is_first_after
        self._configs: dict[tuple[str, float], Config] = {}
        self._dues: dict[str, Dues] = {}

    def read(self, regs: Sequence[tuple[str, str, float]]) -> Reading:
        """Read one list."""
        configs: dict[str, Config] = {}
        for task_id, cron, delay_ms in regs:
            if task_id in configs:
                return Reading(None, f"it has {task_id!r} twice", len(regs))
            try:
                configs[task_id] = self._config(cron, delay_ms)
            except (CronTextError, _DelayError) as error:
                return Reading(None, f"of {task_id!r}: {error}", len(regs))
        return Reading(configs, "", len(regs))

    def _config(self, cron: str, delay_ms: float) -> Config:
        config = self._configs.get((cron, delay_ms))
        if config is None:
            if not delay_ms >= 0:  # NaN neither
                raise _DelayError(f"its retry delay of {delay_ms} ms is below zero")
            delay_us = micros(_LONGEST_MS if math.isinf(delay_ms) else min(delay_ms, _LONGEST_MS))
            config = self._configs[cron, delay_ms] = Config(
                cron, delay_us, self._dues_of(cron), self._is_first_after
            )
        return config

    def _dues_of(self, cron: str) -> Dues:
        dues = self._dues.get(cron)
        if dues is None:
            try:
                dues = Dues(cron, self._zone)
            except CronTextError as error:
                raise CronTextError(f'its cron text "{cron[:80]}" is not valid: {error}') from error
            self._dues[cron] = dues
        return dues


class _DelayError(ValueError):
    pass
