"""Random lives of machines that share timers: cables are cut, answers lost, hosts and databases stand still.

Whatever happens, no job runs on two machines at once, no slot is answered twice, and afterwards all goes on.
"""

import random
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from duly.cluster.table import Ask, Claim, ComeBack, Heartbeat, TakeRoom
from duly.errors import StoreError
from duly.store.history import Result
from duly.supervisor.results import RunResult
from duly.timers.requests import TimerError
from tests.worlds.shared_timers import JOBS, Machine, SharedWorld
from tests.worlds.timers import MINUTELY, timer

TIMERS = [
    timer("a", "job0", on_calendar=MINUTELY),
    timer("off", "job0", on_calendar=MINUTELY, enabled=False),
    timer("b", "job1", on_calendar=MINUTELY, retry_intervals_sec=(5.0,)),
    timer("c", "job2", on_unit_active_sec=17, on_startup_sec=1),
    timer("d", "job2", on_calendar=MINUTELY),
    timer("e", "job3", on_unit_active_sec=40, on_startup_sec=2, persistent=False),
]
REQUESTS: list[Any] = [Claim, TakeRoom, Heartbeat, ComeBack, Ask]
LEAST = {"job0": 2, "job1": 2, "job2": 4, "job3": 3}
"""So many runs of each job there are in four quiet minutes, however long they last."""


def note_overlaps(machine: Machine, machines: list[Machine], overlaps: list[str]) -> None:
    """Note when *machine* starts what another one runs."""
    run = machine.targets.run

    async def checked(service_id: str, **options: Any) -> RunResult:
        others = [each.name for each in machines if each is not machine and service_id in each.targets.live]
        overlaps.extend(f"{service_id} begins on {machine.name} and runs on {other}" for other in others)
        return await run(service_id, **options)

    machine.targets.run = checked  # type: ignore[method-assign]


async def trigger(machine: Machine, name: str) -> None:
    """Ask for a run, which may be refused."""
    with suppress(TimerError, StoreError):
        await machine.timers.trigger(name)


def harm(world: SharedWorld, rng: random.Random) -> None:
    """Let something happen."""
    machine = rng.choice(world.machines)
    match rng.randrange(7):
        case 0:
            machine.cable.is_cut = True
        case 1 | 2:
            for each in world.machines:
                each.cable.is_cut = False
        case 3:
            machine.cable.loses = [rng.choice(REQUESTS)]
        case 4:
            world.freeze(timedelta(seconds=rng.random() * 10))
        case 5:
            world.database.restart()
        case _:
            world.loop.create_task(trigger(machine, rng.choice("bde")))


@pytest.mark.parametrize("seed", range(8))
def test_random_life(seed: int) -> None:
    """Three machines live through random harm; the seed is the name of the test."""
    rng = random.Random(seed)
    overlaps: list[str] = []
    with SharedWorld() as world:
        for machine in [world.machine(name) for name in "abc"]:
            note_overlaps(machine, world.machines, overlaps)
            machine.targets.lasts |= {job: timedelta(seconds=rng.choice([0, 1, 8, 30])) for job in JOBS}
            machine.targets.always["job1"] = RunResult(rng.choice([Result.SUCCESS, Result.EXIT]), 1)
            world.loop.create_task(machine.start(*TIMERS))
            world.after(timedelta(seconds=rng.random() * 3))
        for _ in range(40):
            world.after(timedelta(seconds=rng.random() * 20))
            harm(world, rng)
        for machine in world.machines:
            machine.cable.is_cut, machine.cable.loses = False, []
        world.after(timedelta(seconds=100))
        before = Counter(began.service for each in world.machines for began in each.targets.began)
        world.after(timedelta(minutes=4))
        assert overlaps == []
        began = [began for each in world.machines for began in each.targets.began]
        after = Counter(each.service for each in began)
        assert {job for job, least in LEAST.items() if after[job] - before[job] < least} == set()
        slots = Counter((each.timer, each.scheduled_us) for each in began if each.reason == "schedule")
        assert [slot for slot, times in slots.items() if times > 1] == []
        faults = [each.told("PollFailed", "PollerRestarted", "TimerUnreadable") for each in world.machines]
        assert faults == [[], [], []]
