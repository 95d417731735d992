"""The world: one time for all, an agenda of what comes, and the loops of the programs, run in turn.

Each program has a loop and a steady clock of its own, which may run a little fast or slow. The world goes
from one instant at which something happens to the next: it does what is on the agenda, then lets every
program run that has something to do. A program that is paused is passed over; its clock goes on. One that is
dead is forgotten. There is one thread, and the order depends on nothing but the plan.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from duly.testing.simulation.loop import SimLoop
from duly.testing.simulation.steady import Steady

_MILLION = 1_000_000


class Runs(Protocol):
    """A program, as far as the world must know it."""

    loop: SimLoop
    steady: Steady
    is_paused: bool

    def local_us(self, world_us: int) -> int:
        """What its steady clock shows then."""
        ...

    def world_us(self, local_us: int) -> int:
        """When its steady clock shows that."""
        ...


class World:
    """Time, and what happens in it."""

    def __init__(self) -> None:
        self.now_us = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.programs: list[Runs] = []
        """Those that are alive."""

    def at(self, at_us: int, act: Callable[[], None]) -> None:
        """Have *act* done at that time, or now if that is over."""
        heappush(self._agenda, (max(at_us, self.now_us), next(self._order), act))

    def after(self, delay_us: int, act: Callable[[], None]) -> None:
        """Have *act* done so much later."""
        self.at(self.now_us + delay_us, act)

    def run_until(self, until_us: int) -> None:
        """Let time pass up to *until_us*."""
        while (next_us := self._next_us()) is not None and next_us <= until_us:
            self._reach(next_us)
            while self._agenda and self._agenda[0][0] <= next_us:
                heappop(self._agenda)[2]()
            for program in tuple(self.programs):
                if not program.is_paused and program in self.programs:
                    program.loop.run_until(program.steady.now_us)
        self._reach(until_us)

    def _reach(self, now_us: int) -> None:
        self.now_us = now_us
        for program in self.programs:
            program.steady.now_us = program.local_us(now_us)

    def _next_us(self) -> int | None:
        times = [
            max(program.world_us(local_us), self.now_us)
            for program in self.programs
            if not program.is_paused and (local_us := program.loop.next_us()) is not None
        ]
        return min([*times, self._agenda[0][0]] if self._agenda else times, default=None)


class Drift:
    """How a steady clock goes that is a little fast or slow."""

    def __init__(self, ppm: int, base_us: int) -> None:
        self._ppm = ppm
        self._base_us = base_us

    def local_us(self, world_us: int) -> int:
        """What it shows at that time of the world."""
        return self._base_us + world_us + world_us * self._ppm // _MILLION

    def world_us(self, local_us: int) -> int:
        """The first microsecond of the world at which it shows at least that."""
        passed_us = local_us - self._base_us
        guess_us = passed_us * _MILLION // (_MILLION + self._ppm) - 2
        while self.local_us(guess_us) < local_us:
            guess_us += 1
        return guess_us
