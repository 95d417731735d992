"""Small scenarios whose every crash point is visited: a few minutes in which much happens."""

from datetime import UTC, datetime

from duly.instant import MINUTE_US, SECOND_US, instant_of
from tests.simulation.plan import Behaviour, How, Initialize, Plan, PlannedTask, Stop

_NOON_US = instant_of(datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC))
_A, _B = PlannedTask("a", "* * * * *", 10 * SECOND_US), PlannedTask("b", "0,1 * * * *", 0)
_C = PlannedTask("c", "* * * * *", 45 * SECOND_US)

FIRST_START = Plan(
    seed=1,
    zone="Europe/Berlin",
    start_us=_NOON_US,
    duration_us=70 * SECOND_US,
    items=(_A, _B),
    behaviours={"a": (Behaviour(How.RAISE, 5 * SECOND_US), Behaviour()), "b": (Behaviour(),)},
)
"""A fresh store, a first list, a failure and its retry, a second minute."""

CHANGING_LISTS = Plan(
    seed=2,
    zone="Europe/Berlin",
    start_us=_NOON_US,
    duration_us=3 * MINUTE_US,
    items=(_A, _B),
    actions=(
        Initialize(20 * SECOND_US, (PlannedTask("a", "* * * * *", 0), _C)),
        Initialize(61 * SECOND_US),
        Initialize(62 * SECOND_US, ()),
        Initialize(65 * SECOND_US, (_A, _C)),
    ),
    behaviours={"a": (Behaviour(How.RETURN, 50 * SECOND_US),)},
)
"""Lists that add, override, remove and bring back tasks, one of them running."""

STOPPING = Plan(
    seed=3,
    zone="Europe/Berlin",
    start_us=_NOON_US,
    duration_us=3 * MINUTE_US,
    items=(_A, _B),
    actions=(Stop(61 * SECOND_US), Initialize(100 * SECOND_US, (_A,))),
    behaviours={"a": (Behaviour(How.RETURN, 20 * SECOND_US), Behaviour(How.STOP, SECOND_US))},
)
"""A stop that waits for a run, a stop from inside a callback, and going on after it."""

WAVES = Plan(
    seed=4,
    zone="Europe/Berlin",
    start_us=_NOON_US,
    duration_us=65 * SECOND_US,
    items=(_A, _B, _C),
    actions=(Stop(60 * SECOND_US), Initialize(60 * SECOND_US + 1)),
    behaviours={"a": (Behaviour(How.RAISE), Behaviour()), "c": (Behaviour(lasts_us=62 * SECOND_US),)},
    wave=1,
)
"""Bursts of three that start one by one, each written while the one before is called; a stop between them."""

SCENARIOS = {
    "first-start": FIRST_START,
    "changing-lists": CHANGING_LISTS,
    "stopping": STOPPING,
    "waves": WAVES,
}
