"""Worlds made for the hunt: where the simulation's random lives are broad, these are dense.

`crowded` packs as much as it can into a few minutes: every action near the beginning of a minute or right
beside another one, every list a change of the last. `calendar` lets months pass in which nothing goes wrong,
for expressions that are due on few days. Both are drawn from a seed and nothing else.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tests.simulation import Cut, DiskFault, Plan, Point
from tests.simulation.drawing import ZONES
from tests.simulation.plan import (
    Action,
    Behaviour,
    Break,
    Crash,
    How,
    Initialize,
    Items,
    Lag,
    Lock,
    Lose,
    PlannedTask,
    Refuse,
    Stall,
    Step,
    Stop,
)

from duly.instant import MINUTE_US, SECOND_US, instant_of

DAY_US = 24 * 60 * MINUTE_US
_NOON_US = instant_of(datetime(2026, 1, 1, 12, tzinfo=UTC))
_CRONS = (*("* * * * *",) * 3, "0,2,3,5,7 * * * *", "0 * * * *", "0 * * * *", "1 * * * *")
_DELAYS_US = (0, SECOND_US, 45 * SECOND_US, 58 * SECOND_US, MINUTE_US - 500, 2 * MINUTE_US, 10 * MINUTE_US)
_LENGTHS_US = (0, 0, 0, 1, SECOND_US, 5 * SECOND_US, 50 * SECOND_US, 61 * SECOND_US)
_BESIDE_US = (
    0,
    0,
    1,
    -1,
    1_000,
    -1_000,
    SECOND_US,
    -SECOND_US,
    -3 * SECOND_US,
    5 * SECOND_US,
    30 * SECOND_US,
)
_STEPS_S = (61, 600, -2, -30, -59, -90, -290, -300, -301, -600, -3_600)
_TROUBLE_US = (SECOND_US, 5 * SECOND_US, 20 * SECOND_US)
_ENDS = (*(How.RETURN,) * 5, *(How.RAISE,) * 5, How.CANCEL, How.EXIT, How.HANG)
_BUSY = (*_ENDS, How.INITIALIZE, How.INITIALIZE)
_INSIDE = (*_ENDS, How.STOP, How.STOP, How.STOP)


def crowded(seed: int) -> Plan:
    """A few minutes in which much goes wrong at once."""
    rng = random.Random(f"crowded {seed}")
    duration_us = rng.randrange(3, 8) * MINUTE_US
    start_us = _NOON_US + rng.choice((0, 1, 30 * SECOND_US, MINUTE_US - 1))
    first = _items(rng)
    lists = [first, _varied(rng, first), _varied(rng, first)]
    crowd = _Crowd(rng, lists, start_us, duration_us)
    kinds, hows = rng.choice(
        ((crowd.busy, _BUSY), (crowd.slow, _BUSY), (crowd.quiet, _ENDS), (crowd.inside, _INSIDE))
    )
    lags = crowd.lags() if kinds == crowd.slow else []
    return Plan(
        seed=seed,
        zone="UTC",
        start_us=start_us,
        duration_us=duration_us,
        items=lists[0],
        actions=tuple(sorted([*lags, *crowd.actions(kinds)], key=lambda action: action.at_us)),
        behaviours={name: tuple(_behaviours(rng, hows)) for name in "abc"},
        is_durable=rng.random() < 0.6,
        run_timeout_us=rng.choice((None, None, 40 * SECOND_US)),
    )


def _items(rng: random.Random) -> Items:
    names = rng.sample("abc", rng.choice((1, 2, 2, 3)))
    return tuple(PlannedTask(name, rng.choice(_CRONS), rng.choice(_DELAYS_US)) for name in sorted(names))


def _varied(rng: random.Random, items: Items) -> Items:
    """Another list: of *items* some stay as they are, some are changed, some are gone, and some are new."""
    kept = tuple(item for item in items if rng.random() < 0.5)
    names = {item.name for item in kept}
    return (*kept, *(item for item in _items(rng) if item.name not in names))


def _behaviours(rng: random.Random, hows: tuple[How, ...]) -> Iterator[Behaviour]:
    # The last one is well: a task that fails for ever and is retried at once would fill the whole life.
    for _ in range(rng.randrange(4)):
        yield Behaviour(rng.choice(hows), rng.choice(_LENGTHS_US))
    yield Behaviour(How.RETURN, rng.choice(_LENGTHS_US))


_Kind = Callable[[int], list[Action]]


class _Crowd:
    """Draws the actions of one world."""

    def __init__(self, rng: random.Random, lists: list[Items], start_us: int, duration_us: int) -> None:
        self._rng = rng
        self._lists = lists
        self._start_us = start_us
        self._duration_us = duration_us
        self._earlier: list[int] = []

    @property
    def busy(self) -> Sequence[_Kind]:
        """What happens in a program that comes and goes."""
        return (
            [self._crash] * 5
            + [self._list] * 3
            + [self._stop] * 2
            + [self._trouble] * 2
            + [self._entangled] * 4
        )

    @property
    def slow(self) -> Sequence[_Kind]:
        """What happens to a program whose store takes its time: calls that overlap, and runs that end meanwhile."""
        return [self._list, self._list, self._stop]

    @property
    def inside(self) -> Sequence[_Kind]:
        """What happens to a program that stops from inside its callbacks, and makes no other calls."""
        return [self._crash, self._trouble]

    @property
    def quiet(self) -> Sequence[_Kind]:
        """Steps of the clock, which say little about a program that is not there all the time."""
        return [self._step] * 2 + [self._trouble]

    def actions(self, kinds: Sequence[_Kind]) -> list[Action]:
        """A handful of actions."""
        drawn = [self._rng.choice(kinds)(self._moment()) for _ in range(self._rng.randrange(1, 8))]
        return _settled([action for some in drawn for action in some])

    def lags(self) -> list[Action]:
        """A store that is slow around the beginning of every minute."""
        lag_us = self._rng.choice((1_000, SECOND_US // 2, 3 * SECOND_US))
        minutes_us = range(-(self._start_us % MINUTE_US), self._duration_us, MINUTE_US)
        return [Lag(max(at_us - 3 * SECOND_US, 0), 20 * SECOND_US, lag_us) for at_us in minutes_us]

    def _moment(self) -> int:
        """A moment beside that of another action, or beside the beginning of a minute."""
        rng = self._rng
        if self._earlier and rng.random() < 0.4:
            at_us = rng.choice(self._earlier)
        else:
            at_us = rng.randrange(self._duration_us)
            at_us -= (self._start_us + at_us) % MINUTE_US
        at_us = max(at_us + rng.choice(_BESIDE_US), 0)
        self._earlier.append(at_us)
        return at_us

    def _crash(self, at_us: int) -> list[Action]:
        again = replace(self._death(-1, None), items=None) if self._rng.random() < 0.3 else None
        return [self._death(at_us, again)]

    def _death(self, at_us: int, then: Crash | None) -> Crash:
        rng = self._rng
        point = rng.choice((Point.AWAIT, Point.AWAIT, *Point))
        after = rng.randrange(40 if point is Point.AWAIT else 8) if rng.random() < 0.7 else 0
        downtime_us = rng.choice((0, SECOND_US, 61 * SECOND_US, 3 * MINUTE_US))
        items = rng.choice((None, *self._lists))
        return Crash(at_us, point, after, rng.choice(tuple(Cut)), downtime_us, items, then=then)

    def _list(self, at_us: int) -> list[Action]:
        return [Initialize(at_us, self._rng.choice((None, (), *self._lists)))]

    def _stop(self, at_us: int) -> list[Action]:
        back_us = at_us + self._rng.choice((0, 0, 1, SECOND_US, 61 * SECOND_US))
        return [Stop(at_us), Initialize(back_us, self._rng.choice((None, *self._lists)))]

    def _entangled(self, at_us: int) -> list[Action]:
        """A store that fails, and in the midst of it a new list, or the death of the process."""
        rng = self._rng
        refused = rng.choice((Refuse, Lose))(at_us, rng.choice(_TROUBLE_US))
        amidst_us = at_us + rng.choice((SECOND_US // 2, SECOND_US, 4 * SECOND_US))
        other = rng.choice(self._lists[1:])
        if rng.random() < 0.5:
            return [refused, Initialize(amidst_us, other)]
        return [refused, Crash(amidst_us, downtime_us=SECOND_US, items=other)]

    def _step(self, at_us: int) -> list[Action]:
        return [Step(at_us, self._rng.choice(_STEPS_S) * SECOND_US)]

    def _trouble(self, at_us: int) -> list[Action]:
        rng, for_us = self._rng, self._rng.choice(_TROUBLE_US)
        lag_us = rng.choice((1_000, SECOND_US // 2, 3 * SECOND_US))
        return [
            rng.choice(
                (
                    Refuse(at_us, for_us),
                    Lose(at_us, for_us),
                    Lag(at_us, for_us, lag_us),
                    Lag(at_us, for_us, lag_us),
                    Break(at_us, for_us, rng.choice(tuple(DiskFault))),
                    Lock(at_us, for_us),
                    Stall(at_us, rng.choice((1_000, SECOND_US))),
                )
            )
        ]


def _settled(actions: list[Action]) -> list[Action]:
    """The actions, where a program that dies more than once has one list for ever.

    Else nobody could say which of the lists that it died over is in the store.
    """
    deaths = [action for action in actions if isinstance(action, Crash)]
    if len(deaths) + sum(death.then is not None for death in deaths) <= 1:
        return actions
    return [replace(each, items=None) if isinstance(each, Crash | Initialize) else each for each in actions]


def calendar(seed: int) -> Plan:
    """A few months without faults, of tasks that are due on few days."""
    rng = random.Random(f"calendar {seed}")
    start_us = instant_of(datetime(rng.randrange(2000, 2036), rng.randrange(1, 13), 1, tzinfo=UTC))
    return Plan(
        seed=seed,
        zone=rng.choice(ZONES),
        start_us=start_us,
        duration_us=rng.randrange(20, 120) * DAY_US,
        items=tuple(PlannedTask(name, _rare(rng), 0) for name in "abcd"),
        is_durable=False,
    )


def _rare(rng: random.Random) -> str:
    """An expression that is due once or twice on some days."""
    minute, hour = rng.choice(("0", "15", "30", "0,30")), rng.choice(("0", "1", "2", "2-3", "3", "12", "23"))
    day = rng.choice(("*", "*", str(rng.randrange(1, 32)), "1,15", "28-31"))
    month = rng.choice(("*", "*", "*", "1-6", "2,3,10,11"))
    weekday = rng.choice(("*", "*", str(rng.randrange(7)), "1-5"))
    return f"{minute} {hour} {day if month == '*' else '*'} {month} {weekday}"
