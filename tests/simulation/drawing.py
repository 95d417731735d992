"""Draws plans from seeds: which tasks, which zone, which troubles, and when.

Every family of troubles draws from randomness of its own, so leaving one out (`--only crash,disk`) leaves
the others as they were. Moments are drawn near the beginnings of minutes more often than not, because
that is when a scheduler does something.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from duly.engine.poller import WAVE
from duly.instant import MINUTE_US, SECOND_US, Instant, instant_of
from tests.simulation.disk import Cut, DiskFault
from tests.simulation.families import Families
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
    Mistake,
    Plan,
    PlannedTask,
    Refuse,
    Stall,
    Step,
    Stop,
)
from tests.simulation.steady import Point

HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


@dataclass(frozen=True, slots=True)
class Faults(Families):
    """Which families of troubles there are; all by default."""

    crash: bool = True
    """The process dies: at an await, around a write, in the middle of one; with the power or without."""
    disk: bool = True
    """The disk is full, fails, or is locked by another program."""
    store: bool = True
    """The store refuses, is slow, or its acknowledgements get lost."""
    clock: bool = True
    """The wall clock is set; the host is suspended."""
    stall: bool = True
    """Time passes and the process gets none of it."""
    program: bool = True
    """The program stops, initializes again, changes its list, makes mistakes."""
    callback: bool = True
    """Callbacks raise anything, hang, last long, call `stop` and `initialize`. A user's own do not."""
    damage: bool = True
    """Somebody edits rows of the database between two runs of the program."""


NO_FAULTS = Faults.only()

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Africa/Casablanca",
    "America/Sao_Paulo",
    "Antarctica/Troll",
    "UTC",
)
_BUSY = (
    "* * * * *",
    "* * * * *",
    "0,5,10,15,20,25,30,35,40,45,50,55 * * * *",
    "1,2,3,30 * * * *",
    "0,30 * * * *",
)
_HOURLY = (
    "0 * * * *",
    "30 * * * *",
    "0,30 1-3 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "59 23 * * *",
    "0 0 * * *",
)
_RARE = ("0 3 * * *", "30 2 * * *", "0 0 1 * *", "15 2 * * 0", "0 12 13 * 5", "0 0 29 2 *")
_DELAYS_US = (0, 0, SECOND_US, 45 * SECOND_US, 5 * MINUTE_US, HOUR_US, DAY_US)
_STEPS_US = tuple(
    sign * length * SECOND_US
    for sign, lengths in (
        (1, (2, 59, 61, 300, 600, 7_200, 86_400)),
        (-1, (2, 59, 90, 299, 300, 301, 600, 3_600, 7_200, 86_400)),
    )
    for length in lengths
)
_DOWNTIMES_US = (0, SECOND_US, 30 * SECOND_US, 2 * MINUTE_US, 10 * MINUTE_US, 3 * HOUR_US)
_SHORT_TROUBLE_US = (SECOND_US, 5 * SECOND_US, 20 * SECOND_US, 40 * SECOND_US)
_LONG_TROUBLE_US = (90 * SECOND_US, 10 * MINUTE_US)


def drawn(seed: int, faults: Faults | None = None) -> Plan:
    """The plan of a seed."""
    faults = Faults() if faults is None else faults
    rng = random.Random(f"life {seed}")
    zone = rng.choice(ZONES)
    crons, duration_us = _shape(rng)
    lists = [_items(rng, crons) for _ in range(3)]
    start_us = start_near_change_us(rng, zone, duration_us)
    return Plan(
        seed=seed,
        zone=zone,
        start_us=start_us,
        duration_us=duration_us,
        items=lists[0],
        actions=_actions(seed, faults, start_us, duration_us, lists),
        behaviours=_behaviours(seed, lists) if faults.callback else {},
        is_durable=rng.random() < 0.8,
        run_timeout_us=rng.choice((None, None, 90 * SECOND_US, 15 * MINUTE_US)),
        wave=rng.choice((1, 2, WAVE, WAVE)),
    )


def plan_for(
    items: Items, *, seed: int, zone: str, start_us: Instant, duration_us: int, faults: Faults
) -> Plan:
    """The plan of a seed for a user's own tasks, whose callbacks do what they do."""
    return Plan(
        seed=seed,
        zone=zone,
        start_us=start_us,
        duration_us=duration_us,
        items=items,
        actions=_actions(seed, faults, start_us, duration_us, [items]),
    )


def _shape(rng: random.Random) -> tuple[Sequence[str], int]:
    """What kind of life: busy hours, days around a change of the clocks, or years."""
    kind = rng.random()
    if kind < 0.6:
        return _BUSY, rng.randrange(10, 120) * MINUTE_US
    if kind < 0.97:
        return _HOURLY, rng.randrange(12, 96) * HOUR_US
    return _RARE, rng.randrange(60, 800) * DAY_US


def _items(rng: random.Random, crons: Sequence[str]) -> Items:
    names = rng.sample("abcde", rng.choice((1, 1, 2, 3, 4)))
    return tuple(PlannedTask(name, rng.choice(crons), rng.choice(_DELAYS_US)) for name in names)


def start_near_change_us(rng: random.Random, zone: str, duration_us: int) -> Instant:
    """A start such that, more often than not, the clocks change in the middle of the life."""
    day = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(days=rng.randrange(36 * 365))
    changes = changes_us(zone, day, day + timedelta(days=370))
    change_us = next(changes, None) if rng.random() < 0.7 else None
    start_us = instant_of(day) if change_us is None else change_us - rng.randrange(1, duration_us)
    return start_us - start_us % MINUTE_US + rng.choice((0, 0, 30 * SECOND_US, MINUTE_US - 1, 1))


def changes_us(zone: str, start: datetime, end: datetime) -> Iterator[Instant]:
    """About when the clocks of *zone* change between two moments: the day, to the hour."""
    info, day, moment = ZoneInfo(zone), timedelta(days=1), start
    while moment < end:
        if moment.astimezone(info).utcoffset() != (moment + day).astimezone(info).utcoffset():
            hours = (moment + timedelta(hours=hour) for hour in range(25))
            before = moment.astimezone(info).utcoffset()
            yield instant_of(next(hour for hour in hours if hour.astimezone(info).utcoffset() != before))
        moment += day


class _Draw:
    """The randomness of one family."""

    def __init__(self, seed: int, family: str, start_us: Instant, duration_us: int) -> None:
        self.rng = random.Random(f"{family} {seed}")
        self._start_us = start_us
        self._duration_us = duration_us

    def times(self, most: int) -> list[int]:
        """A few moments, none at all in half of the lives."""
        number = self.rng.choice((0, 0, 1, 1, 2, most))
        return [self.moment() for _ in range(number)]

    def moment(self) -> int:
        """A moment of the life, most likely where a minute begins on the wall clock, or half an hour."""
        at_us = self.rng.randrange(self._duration_us)
        if self.rng.random() < 0.8:
            at_us -= (self._start_us + at_us) % self.rng.choice((MINUTE_US, 30 * MINUTE_US))
            at_us += self.rng.choice((0, 0, 0, -1, -1, 1, 30 * SECOND_US, -SECOND_US))
        return max(at_us, 0)

    def trouble_us(self) -> int:
        """How long a trouble lasts; a long one is rare."""
        return self.rng.choice(_LONG_TROUBLE_US if self.rng.random() < 0.15 else _SHORT_TROUBLE_US)


def _actions(
    seed: int, faults: Faults, start_us: Instant, duration_us: int, lists: list[Items]
) -> tuple[Action, ...]:
    actions: list[Action] = []
    for family in faults.families:
        if family in _FAMILIES:
            actions += _FAMILIES[family](_Draw(seed, family, start_us, duration_us), lists)
    if not faults.damage:
        actions = [_undamaged(action) for action in actions]
    return tuple(sorted(actions, key=lambda action: action.at_us))


def _undamaged(action: Action) -> Action:
    return replace(action, damaged="") if isinstance(action, Crash) else action


def _crashes(draw: _Draw, lists: list[Items]) -> Iterator[Action]:
    rng = draw.rng
    for at_us in draw.times(5):
        point = rng.choice((Point.AWAIT, Point.AWAIT, Point.AWAIT, Point.DISK, Point.DISK, *Point))
        yield Crash(
            at_us,
            point,
            rng.choice((0, 1, 2, rng.randrange(60))) if point is Point.AWAIT else rng.choice((0, 0, 1, 2, 5)),
            rng.choice(tuple(Cut)),
            rng.choice(_DOWNTIMES_US),
            rng.choice((None, None, None, *lists)),
            rng.choice("abcde") if rng.random() < 0.2 else "",
        )


def _disk(draw: _Draw, _lists: list[Items]) -> Iterator[Action]:
    for at_us in draw.times(3):
        if draw.rng.random() < 0.3:
            yield Lock(at_us, draw.trouble_us())
        else:
            fault, rate = draw.rng.choice(tuple(DiskFault)), draw.rng.choice((1.0, 1.0, 0.3))
            yield Break(at_us, draw.trouble_us(), fault, rate)


def _store(draw: _Draw, _lists: list[Items]) -> Iterator[Action]:
    for at_us in draw.times(3):
        match draw.rng.choice(("refuse", "lose", "lag")):
            case "refuse":
                yield Refuse(at_us, draw.trouble_us())
            case "lose":
                yield Lose(at_us, draw.trouble_us())
            case _:
                lag_us = draw.rng.choice((1_000, SECOND_US // 2, 3 * SECOND_US))
                yield Lag(at_us, draw.trouble_us(), lag_us)


def _clock(draw: _Draw, _lists: list[Items]) -> Iterator[Action]:
    for at_us in draw.times(4):
        yield Step(at_us, draw.rng.choice(_STEPS_US))


def _stalls(draw: _Draw, _lists: list[Items]) -> Iterator[Action]:
    for at_us in draw.times(2):
        yield Stall(at_us, draw.rng.choice((1_000, SECOND_US, 10 * SECOND_US)))


def _program(draw: _Draw, lists: list[Items]) -> Iterator[Action]:
    rng = draw.rng
    for at_us in draw.times(5):
        match rng.choice(("same", "other", "other", "none", "stop", "stop", "mistake")):
            case "same":
                yield Initialize(at_us, patience=_patience(rng))
            case "other":
                yield Initialize(at_us, rng.choice(lists), _patience(rng))
            case "none":
                yield Initialize(at_us, ())
                yield Initialize(at_us + rng.choice((0, SECOND_US, 5 * MINUTE_US)), rng.choice(lists))
            case "stop":
                yield Stop(at_us, _patience(rng))
                yield Initialize(
                    at_us + rng.choice((0, 0, SECOND_US, 3 * MINUTE_US)), rng.choice((None, *lists))
                )
            case _:
                yield Mistake(at_us)


def _patience(rng: random.Random) -> int | None:
    return rng.choice((0, 1, 2, 5, rng.randrange(40))) if rng.random() < 0.2 else None


_FAMILIES = {
    "crash": _crashes,
    "disk": _disk,
    "store": _store,
    "clock": _clock,
    "stall": _stalls,
    "program": _program,
}


def _behaviours(seed: int, lists: list[Items]) -> dict[str, tuple[Behaviour, ...]]:
    rng = random.Random(f"callback {seed}")
    names = sorted({item.name for items in lists for item in items})
    # The last one is well: a task that always fails and is retried at once would fill the life alone.
    return {
        name: (*(_behaviour(rng) for _ in range(rng.choice((0, 1, 3, 7)))), Behaviour()) for name in names
    }


def _behaviour(rng: random.Random) -> Behaviour:
    how = rng.choice(
        (
            *(How.RETURN,) * 12,
            *(How.RAISE,) * 5,
            How.EXIT,
            How.INTERRUPT,
            How.CANCEL,
            *((How.HANG, How.STOP, How.INITIALIZE) if rng.random() < 0.4 else ()),
        )
    )
    return Behaviour(
        how, rng.choice((0, 0, 0, 1, 1_000, 5 * SECOND_US, 45 * SECOND_US, 61 * SECOND_US, HOUR_US))
    )
