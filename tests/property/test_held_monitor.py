"""The monitor of shared timers, over random lives of machines: whatever befalls them, it never cries wolf."""

import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from duly.config.schema import Timer
from duly.errors import StoreError
from duly.instant import duration_us
from duly.timers.errors import TimerError
from tests.shared_world import JOBS, Member, SharedWorld
from tests.timer_world import EXIT, MINUTELY, SUCCESS, timer

SEEDS = 6
STEPS = 60


def some_timers(draw: random.Random) -> list[Timer]:
    """A list of timers; two of the same draw differ in a few of them."""
    return [
        timer(
            f"t{n}",
            draw.choice(JOBS),
            on_calendar=draw.choice([(), MINUTELY, MINUTELY]),
            on_startup_sec=draw.choice([None, None, 30, 400]),
            on_unit_active_sec=draw.choice([None, 20, 200]),
            persistent=draw.random() < 0.5,
            enabled=draw.random() < 0.9,
            retry_intervals_sec=draw.choice([(), (5,), (10, 70)]),
        )
        for n in range(6)
        if draw.random() < 0.9
    ]


class Walk:
    """Machines that share timers, and what happens to them, drawn at random."""

    def __init__(self, world: SharedWorld, seed: int, *, is_set: bool) -> None:
        self.world = world
        self.draw = random.Random(seed)
        self.up: list[Member] = []
        self._lists = [some_timers(self.draw)]
        happenings = [self._start, self._die, self._stop, self._close, self._reload, self._by_hand]
        self._happenings: list[Callable[[], object]] = [
            *happenings,
            *[self._cut, self._fail, self._slow, self._freeze, self._set_host, self._work] * 2,
            *([self._set_board] if is_set else []),
        ]

    def step(self) -> None:
        """One thing happens, and time passes."""
        self.draw.choice(self._happenings)()
        self.world.after(timedelta(seconds=self.draw.choice([0.3, 4, 20, 61, 130])))

    def _do(self, call: Coroutine[Any, Any, Any]) -> None:
        async def tried() -> None:
            with suppress(StoreError, TimerError):
                await call

        self.world.loop.create_task(tried())

    def _some(self) -> Member | None:
        return self.draw.choice(self.up) if self.up else None

    def _start(self) -> None:
        if len(self.up) < 3:
            off = timedelta(seconds=self.draw.choice([0, 0, -4000, 90]))
            machine = self.world.machine(f"m{len(self.world.machines)}", off=off)
            for job in JOBS:
                self._script(machine, job)
            self.up.append(machine)
            self._do(machine.start(*self.draw.choice(self._lists)))

    def _script(self, machine: Member, job: str) -> None:
        machine.targets.lasts[job] = timedelta(seconds=self.draw.choice([0, 1, 10, 90, 300]))
        machine.targets.always[job] = self.draw.choice([SUCCESS, EXIT])

    def _die(self) -> None:
        if (machine := self._some()) is not None:
            self.up.remove(machine)
            machine.die()

    def _stop(self) -> None:
        if (machine := self._some()) is not None:
            self.up.remove(machine)
            self._do(machine.timers.stop())

    def _close(self) -> None:
        if (machine := self._some()) is not None:
            self.up.remove(machine)
            machine.targets.is_stopping = True
            machine.targets.cut_off()
            self._do(machine.timers.close())

    def _reload(self) -> None:
        if self.draw.random() < 0.5:
            self._lists.append(some_timers(self.draw))
        if (machine := self._some()) is not None:
            self._do(machine.timers.reload(self.draw.choice(self._lists[-2:])))

    def _by_hand(self) -> None:
        if (machine := self._some()) is not None:
            timers, name = machine.timers, f"t{self.draw.randrange(6)}"
            self._do(self.draw.choice([timers.trigger, timers.enable, timers.disable])(name))

    def _work(self) -> None:
        if (machine := self._some()) is not None:
            job = self.draw.choice(JOBS)
            self._script(machine, job)
            if machine.targets.target_state(job) == "idle" and self.draw.random() < 0.5:
                self._do(machine.targets.by_hand(job))

    def _cut(self) -> None:
        if (machine := self._some()) is not None:
            machine.cable.is_cut = not machine.cable.is_cut

    def _fail(self) -> None:
        if (machine := self._some()) is not None:
            machine.cable.fails ^= {"write_timers"}

    def _slow(self) -> None:
        if (machine := self._some()) is not None:
            machine.cable.latency_s = self.draw.choice([0, 0.1, 1, 3])

    def _freeze(self) -> None:
        self.world.freeze(timedelta(seconds=self.draw.choice([1, 8, 100])))

    def _set_host(self) -> None:
        if (machine := self._some()) is not None:
            machine.host.step(duration_us(timedelta(seconds=self.draw.choice([-3700, -50, 50, 3700]))))

    def _set_board(self) -> None:
        """Another server of the database answers, whose clock is another."""
        self.world.start += timedelta(seconds=self.draw.choice([-4000, -100, -20, 20, 100, 4000]))


@pytest.mark.parametrize("is_set", [False, True], ids=["clock", "clocks"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_never_cries_wolf(seed: int, is_set: bool) -> None:
    """Machines die, stop, freeze, lose the board and get other lists: no monitor objects to anything."""
    with SharedWorld() as world:
        walk = Walk(world, seed, is_set=is_set)
        for _ in range(STEPS):
            walk.step()
            told = [one for machine in world.machines for one in machine.violations]
            assert told == []
        for machine in walk.up:
            machine.die()
