"""What lies between the programs: the board, which may be away or forget, and the weather on the way to it.

The board is the one in memory, in the world's time. Every host has its own weather, which outlives the
programs on it: whether the board can be reached from there, how long messages take, how many are lost, and
what befalls a message with a certain number.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from duly.instant import Instant
from duly.testing.memory_board import MemoryBoard
from duly.testing.memory_table import Table
from duly.testing.simulation.cluster.plan import ClusterPlan, Fate, Forget, Harm
from duly.testing.simulation.cluster.world import World

_SLOWEST_US = 4_000


@dataclass(slots=True)
class Weather:
    """How messages between one host and the board fare."""

    parted: int = 0
    late: int = 0
    """How many partings are in force, and how many of them only delay requests until they are over."""
    request_us: int = 0
    answer_us: int = 0
    percent_lost: int = 0
    sent: int = 0
    """How many messages this host has sent."""
    harms: dict[int, Harm] = field(default_factory=dict)
    held: list[Callable[[], None]] = field(default_factory=list)
    """Requests that arrive when the parting is over."""

    @property
    def is_fair(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.parted or self.request_us or self.answer_us or self.percent_lost)


class Sea:
    """The board and the ways to it."""

    def __init__(self, plan: ClusterPlan, world: World) -> None:
        self._plan = plan
        self._world = world
        self.rng = random.Random(f"sea {plan.seed}")  # noqa: S311 (reproducible, not secret)
        self.table = Table()
        self.weather = [Weather() for _ in plan.hosts]
        self.away = 0
        self.silent = 0
        self.epoch = 0
        """Grows when all connections break."""
        self.server = 1
        """Which server answers: a standby that takes over is another."""
        self.counts: Counter[str] = Counter()
        self._kept: dict[Forget, Table] = {}
        for action in plan.actions:
            if isinstance(action, Harm):
                self.weather[action.host].harms[action.number] = action

    def now_us(self) -> Instant:
        """The time of the board."""
        return self._plan.start_us + self._world.now_us

    def board(self) -> MemoryBoard:
        """The board, for one program."""
        return MemoryBoard(
            self.now_us, ttl_us=self._plan.ttl_us, table=self.table, server=lambda: f"server {self.server}"
        )

    def keep(self, forget: Forget) -> None:
        """Let the standby fall behind from here on."""
        self._kept[forget] = copy.deepcopy(self.table)

    def forget(self, forget: Forget) -> None:
        """Have the standby take over, which knows nothing of what came since `keep`."""
        self.server += 1
        before = self._kept.pop(forget)
        if not before.shards:
            return  # it was set up when there was no board yet, and has got what was founded since
        for name in vars(before):
            setattr(self.table, name, getattr(before, name))

    def sever(self) -> None:
        """Break every connection."""
        self.epoch += 1

    def fate_of(self, host: int) -> Harm | None:
        """What befalls the next message of *host*, counting it."""
        weather = self.weather[host]
        weather.sent += 1
        self.counts["messages"] += 1
        if (harm := weather.harms.get(weather.sent)) is not None:
            self.counts[f"message {harm.fate}"] += 1
            return harm
        if weather.percent_lost and self.rng.randrange(100) < weather.percent_lost:
            fate = self.rng.choice((Fate.REQUEST_LOST, Fate.ANSWER_LOST, Fate.REQUEST_LATE, Fate.ANSWER_LATE))
            self.counts[f"message {fate}"] += 1
            late_us = self._plan.patience_us + self.rng.randrange(2 * self._plan.ttl_us)
            return Harm(host, weather.sent, fate, late_us)
        return None

    def request_us(self, host: int) -> int:
        """How long a request takes."""
        return self.weather[host].request_us + self.rng.randrange(100, _SLOWEST_US)

    def answer_us(self, host: int) -> int:
        """How long an answer takes."""
        return self.weather[host].answer_us + self.rng.randrange(100, _SLOWEST_US)

    def calm(self) -> None:
        """Let nothing be wrong any more."""
        self.away = self.silent = 0
        for weather in self.weather:
            weather.parted = weather.late = weather.request_us = weather.answer_us = 0
            weather.percent_lost = 0
            weather.harms.clear()
            self.release(weather)

    def release(self, weather: Weather) -> None:
        """Let the requests arrive that a parting has held."""
        held, weather.held = weather.held, []
        for arrive in held:
            self._world.after(self.rng.randrange(100, _SLOWEST_US), arrive)
