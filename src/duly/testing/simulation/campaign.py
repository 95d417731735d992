"""Many seeds on several cores: dealt out in small hands, and the numbers are added up as they come."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import count
from multiprocessing import get_context
from typing import Protocol, Self, TypeVar

from duly.testing.simulation.director import lived
from duly.testing.simulation.drawing import Faults, drawn
from duly.testing.simulation.numbers import Numbers, numbers_of

_HAND = 10
"""Seeds that a process is given at a time."""


def lived_seeds(first: int, number: int, faults: Faults) -> Numbers:
    """The numbers of some seeds."""
    total = Numbers()
    for seed in range(first, first + number):
        total = total.merged(numbers_of(lived(drawn(seed, faults))))
    return total


def campaign(
    *,
    first: int,
    seeds: int | None,
    budget_s: float | None,
    jobs: int,
    faults: Faults,
    on_progress: Callable[[Numbers, float], None] = lambda _numbers, _elapsed_s: None,
) -> Numbers:
    """Live *seeds* seeds from *first* on, or as many as *budget_s* seconds allow."""
    live = partial(lived_seeds, faults=faults)
    return dealt(
        live, Numbers(), first=first, seeds=seeds, budget_s=budget_s, jobs=jobs, on_progress=on_progress
    )


class Adds(Protocol):
    """Numbers that can be added up."""

    def merged(self, other: Self) -> Self:
        """Both together."""
        ...


N = TypeVar("N", bound=Adds)


def dealt(
    live: Callable[[int, int], N],
    total: N,
    *,
    first: int,
    seeds: int | None,
    budget_s: float | None,
    jobs: int,
    on_progress: Callable[[N, float], None],
) -> N:
    """The numbers of all seeds, dealt out in hands to *live*, which gets the first of a hand and how many."""
    begun_s = time.monotonic()
    hands = _hands(first, seeds)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        pending: set[Future[N]] = set()
        while True:
            is_in_time = budget_s is None or time.monotonic() - begun_s < budget_s
            while is_in_time and len(pending) < 2 * jobs and (hand := next(hands, None)) is not None:
                pending.add(pool.submit(live, *hand))
            if not pending:
                return total
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                total = total.merged(future.result())
            on_progress(total, time.monotonic() - begun_s)


def _hands(first: int, seeds: int | None) -> Iterator[tuple[int, int]]:
    for begin in count(0, _HAND):
        left = _HAND if seeds is None else min(seeds - begin, _HAND)
        if left <= 0:
            return
        yield first + begin, left


def cores() -> int:
    """How many processes this machine can run at once."""
    return os.cpu_count() or 1
