"""What the monitor has to know of timers that machines share: which are at work here, and the board's time.

The gate answers with a `Holding`, which is the timers themselves seen from this side.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from duly.clock import Step
from duly.cluster.clock import BoardClock
from duly.config.schema import Timer
from duly.instant import Instant
from duly.verify.declared import Declared, Stint


class HeldTimer(Protocol):
    """A timer at work."""

    @property
    def definition(self) -> Timer: ...  # noqa: D102
    @property
    def answered_us(self) -> Instant: ...  # noqa: D102
    @property
    def last_missed_us(self) -> Instant | None: ...  # noqa: D102
    @property
    def running_run(self) -> int | None: ...  # noqa: D102
    @property
    def retry_at_us(self) -> Instant | None: ...  # noqa: D102


class Holding(Protocol):
    """The shared timers that this machine holds."""

    def stints(self) -> Mapping[int, tuple[int, int, bool]]:
        """By shard, how its timers are at work (`verify.declared.Stint`)."""
        ...

    def held(self) -> Sequence[tuple[int, HeldTimer]]:
        """These timers, each with its shard."""
        ...


def stints_of(holding: Holding | None) -> Mapping[int, tuple[int, int, bool]]:
    """How shards are at work here, for the monitor."""
    return {} if holding is None else holding.stints()


def declared_of(holding: Holding | None, zone: tzinfo) -> list[Declared]:
    """The timers at work here, for the monitor, each as the one who fires it knows it."""
    if holding is None:
        return []
    stints = {shard: Stint(*each) for shard, each in holding.stints().items()}
    found = {}
    # One that gets another target is in both shards for a moment; the old one rests already.
    for shard, timer in sorted(holding.held(), key=lambda each: stints[each[0]].is_able):
        definition = timer.definition
        found[definition.id] = Declared(
            definition,
            zone if definition.timezone is None else ZoneInfo(definition.timezone),
            timer.answered_us,
            timer.last_missed_us,
            stints[shard],
            is_under_way=timer.running_run is not None or timer.retry_at_us is not None,
        )
    return list(found.values())


class Stopwatch:
    """The time of a board, as it shows, and as if nobody had ever set it."""

    def __init__(self, clock: BoardClock) -> None:
        self._clock = clock
        self.now: Callable[[], datetime] = clock.now
        self._set_us = 0
        self.forget = clock.watch(self._note_step)

    def _note_step(self, step: Step) -> None:
        self._set_us += step.after_us - step.before_us

    def steady_us(self) -> int:
        """A time for lengths of time: a step of the board's clock is none."""
        return self._clock.now_us() - self._set_us
