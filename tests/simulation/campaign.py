"""Many seeds on several cores: dealt out in small hands, and the numbers are added up as they come."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import count
from multiprocessing import get_context
from typing import Any, NamedTuple

from duly.marks import CLUSTER_MARKS, MARKS
from tests.simulation.cluster import (
    ClusterFaults,
    cluster_drawn,
    cluster_lived,
    cluster_shrunk,
    cluster_story,
)
from tests.simulation.director import lived
from tests.simulation.drawing import Faults, drawn
from tests.simulation.families import Families
from tests.simulation.numbers import Numbers, numbers_of, numbers_of_cluster
from tests.simulation.shrinking import shrunk, story

_HAND = 10
"""Seeds that a process is given at a time."""


class Subject(NamedTuple):
    """What is simulated."""

    option: str
    """How a command says so."""
    faults: type[Families]
    drawn: Callable[..., Any]
    lived: Callable[[Any], Any]
    shrunk: Callable[..., Any]
    story: Callable[[Any], str]
    numbers_of: Callable[[Any], Numbers]
    marks: Mapping[str, str]

    def lived_seeds(self, faults: Families, first: int, number: int) -> Numbers:
        """The numbers of some seeds."""
        total = Numbers()
        for seed in range(first, first + number):
            total = total.merged(self.numbers_of(self.lived(self.drawn(seed, faults=faults))))
        return total


ALONE = Subject("", Faults, drawn, lived, shrunk, story, numbers_of, MARKS)
"""A scheduler on a file."""


def cluster_of(nodes: int) -> Subject:
    """So many nodes on a database."""
    draw = partial(cluster_drawn, nodes=nodes)
    tools = (cluster_lived, cluster_shrunk, cluster_story, numbers_of_cluster)
    return Subject(f" --nodes {nodes}", ClusterFaults, draw, *tools, CLUSTER_MARKS)


def campaign(
    subject: Subject,
    *,
    first: int,
    seeds: int | None,
    budget_s: float | None,
    jobs: int,
    faults: Families,
    on_progress: Callable[[Numbers, float], None],
) -> Numbers:
    """Live *seeds* seeds from *first* on, or as many as *budget_s* seconds allow."""
    begun_s, total = time.monotonic(), Numbers()
    hands = _hands(first, seeds)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        pending: set[Future[Numbers]] = set()
        while True:
            is_in_time = budget_s is None or time.monotonic() - begun_s < budget_s
            while is_in_time and len(pending) < 2 * jobs and (hand := next(hands, None)) is not None:
                pending.add(pool.submit(subject.lived_seeds, faults, *hand))
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
