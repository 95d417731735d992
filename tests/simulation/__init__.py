"""Deterministic simulation: years of a scheduler's life in seconds, with everything going wrong on the way.

`simulate` lives one seed with your own registrations and judges what happened; the same seed always gives the
same life. `python -m tests.simulation` runs many seeds. How it works is told in docs/simulation.md.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any

from duly.core.registration import validated
from duly.instant import duration_us, instant_of
from duly.verify.writer import zone_name
from tests.simulation.director import lived
from tests.simulation.disk import Cut, DiskFault
from tests.simulation.drawing import NO_FAULTS, Faults, drawn, plan_for
from tests.simulation.enumeration import all_orders, crash_points, every_crash_point, tiny_world
from tests.simulation.life import Life, UnsoundLifeError
from tests.simulation.numbers import Numbers, numbers_of
from tests.simulation.plan import Plan, PlannedTask
from tests.simulation.shrinking import shrunk, story
from tests.simulation.steady import Point

__all__ = [
    "NO_FAULTS",
    "Cut",
    "DiskFault",
    "Faults",
    "Life",
    "Numbers",
    "Plan",
    "Point",
    "UnsoundLifeError",
    "all_orders",
    "crash_points",
    "drawn",
    "every_crash_point",
    "lived",
    "numbers_of",
    "shrunk",
    "simulate",
    "story",
    "tiny_world",
]


def simulate(
    registrations: Sequence[tuple[Any, ...]],
    *,
    seed: int,
    duration: timedelta,
    timezone: tzinfo,
    start: datetime,
    faults: Faults | None = None,
) -> Life:
    """Live one seed with your own registrations: (name, cron text, async callback, retry delay) each.

    Callbacks run in virtual time, so `asyncio.sleep` in them costs nothing; they must not touch threads or
    the outside world. A process that dies cancels its callbacks in flight, so what they do on cancellation
    (`finally`) happens here, and would not in a real crash. What went wrong, if any, is in `Life.faults`.
    """
    if start.tzinfo is None:
        raise ValueError("a simulation needs an aware start, such as datetime(2026, 1, 1, tzinfo=UTC)")
    checked = validated(registrations)
    items = tuple(PlannedTask(each.name, each.expression.text, each.retry_delay_us) for each in checked)
    plan = plan_for(
        items,
        seed=seed,
        zone=zone_name(timezone),
        start_us=instant_of(start),
        duration_us=duration_us(duration),
        faults=Faults() if faults is None else faults,
    )
    return lived(plan, {each.name: each.callback for each in checked})
