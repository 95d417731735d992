"""The interpretations of a trace for one task, where it leaves open what happened (docs/decisions/0011).

An interpretation is a choice of what nobody outside can know: as of when each list took effect, which ends a
crash left unwritten, which steps of the clock went unnoticed, what an unknown store held, which list took a
store for one from far ahead. Every combination is named here, at whatever cost; `macros.py` works out what
follows, and which starts a crash left uncalled.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product
from typing import NamedTuple

from duly.verify.trace import micros
from tests.reference.formal.expansion import (
    TOLERATED_US,
    Call,
    Expansion,
    FormalConfig,
    FormalMoment,
    FormalRun,
    answered,
)

MOST_INTERPRETATIONS = 32_768

NOTICED = "noticed"
AFRESH = "unnoticed; dues count afresh"
ADRIFT = "unnoticed; dues count from the next list on"
UNREPEATED = "unnoticed; dues up to the old time are not repeated"
FAR = "noticed, and taken for a large one"
STORED = "unnoticed; dues count since the last start, and those that lie ahead again do not stand"

NEW = "each task is new"
CAUSE = "a cause of unknown kind stands"
NO_CAUSE = "the task is known, and no cause stands"


class Commit(NamedTuple):
    """A list takes effect at a position; *is_early*: as if it had done so when it was called.

    *is_afresh*: it opens the store anew, and finds it written under a clock far ahead, if it can.
    """

    place: int
    call: Call
    is_early: bool
    is_afresh: bool = False

    @property
    def instant(self) -> int:
        """As of which position it took effect."""
        return self.call.begun if self.is_early else self.place


Commits = tuple[Commit, ...]


@dataclass(frozen=True, slots=True)
class Interpretation:
    """One choice of everything."""

    commits: Commits
    """Where each list took effect, in order."""
    lost: frozenset[FormalRun]
    """Runs whose end was not written before the crash."""
    steps: tuple[tuple[int, str], ...]
    """For every step back: noticed or not."""
    store: str
    """What the store held when the first list took effect."""


def interpretations(
    expansion: Expansion, task: str, active: Sequence[bool], initialized: Sequence[bool]
) -> list[Interpretation]:
    """Every course that the events may have taken for *task*. Raises ValueError if they are too many."""
    lost = [(run, None) for run in expansion.runs if run.task == task and _is_perhaps_lost(expansion, run)]
    steps = list(_steps(expansion, task, active))
    commits = _commits(expansion, task, initialized)
    choices = (commits, product(*lost), product(*steps), _stores(expansion, task))
    found = [
        Interpretation(commits, frozenset(run for run in runs if run is not None), ways, store)
        for commits, runs, ways, store in islice(product(*choices), MOST_INTERPRETATIONS + 1)
    ]
    if len(found) > MOST_INTERPRETATIONS:
        raise ValueError(
            f'more than {MOST_INTERPRETATIONS} interpretations for task "{task}"; use the monitor'
        )
    return found


def next_loss(expansion: Expansion, index: int) -> int | None:
    """The first crash, or stop that raised, less than the persist window after a position."""
    for later in range(index + 1, len(expansion.moments)):
        moment = expansion.moments[later]
        if is_loss(moment):
            passed_us = moment.steady_us - expansion.moments[index].steady_us
            return later if passed_us < micros(expansion.header.persist_window_ms) else None
    return None


def is_loss(moment: FormalMoment) -> bool:
    """Whether what was written lately may be lost: at a crash, and at a stop that raised."""
    is_raised = (
        moment.name == "SE" and moment.call is not None and not moment.call.ok and not moment.call.is_void
    )
    return moment.name == "Crash" or is_raised


def _is_perhaps_lost(expansion: Expansion, run: FormalRun) -> bool:
    return run.ended is not None and next_loss(expansion, run.ended) is not None


def _steps(expansion: Expansion, task: str, active: Sequence[bool]) -> Iterator[list[tuple[int, str]]]:
    """For every step back the ways it may have been taken."""
    for index, moment in enumerate(expansion.moments):
        is_back = moment.name == "Step" and moment.at_us < moment.before_us
        if not is_back or not _is_listed_before(expansion, task, index):
            continue  # if nobody knows of the task, there is nothing to notice
        ways = [NOTICED]
        if not active[index] or _is_perhaps_undone(expansion, task, index):
            ways += [AFRESH, ADRIFT, UNREPEATED, STORED]
            if moment.before_us - moment.at_us <= TOLERATED_US:
                ways.append(FAR)
        yield [(index, way) for way in ways]


def _is_listed_before(expansion: Expansion, task: str, index: int) -> bool:
    """Whether a list with the task has, or may have, taken effect, or may yet."""
    calls = [call for call in expansion.inits if call.begun < index and task in call.configs]
    return any(call.answered is None or call.answered > index or call.took_effect for call in calls)


def _is_perhaps_undone(expansion: Expansion, task: str, index: int) -> bool:
    """Whether a loss soon after a step came before a start, with which what the step meant is written."""
    loss = next_loss(expansion, index)
    if loss is None:
        return False
    return not any(run.task == task and index < run.begun < loss for run in expansion.runs)


def _stores(expansion: Expansion, task: str) -> list[str]:
    first = min((call for call in expansion.inits if call.took_effect), key=answered, default=None)
    if expansion.header.store == "unknown" and first is not None and task in first.configs:
        return [NEW, CAUSE, NO_CAUSE]
    return [NEW]


def afresh_from(expansion: Expansion, place: int, call: Call) -> int:
    """As of which position dues may count afresh with a list: its call, if no step back came since."""
    is_back = any(
        moment.name == "Step" and moment.at_us < moment.before_us
        for moment in expansion.moments[call.begun : place]
    )
    return place if is_back else call.begun


def _commits(expansion: Expansion, task: str, initialized: Sequence[bool]) -> list[Commits]:
    """Every way in which the lists may have taken effect, one life of a process after the other."""
    crashes = [index for index, moment in enumerate(expansion.moments) if moment.name == "Crash"]
    restarts = {
        place
        for call in expansion.inits
        for place in (answered(call) if call.took_effect else call.slot,)
        if place is not None and not initialized[place - 1] and _is_perhaps_ahead(expansion, place, call)
    }
    ways: list[Commits] = [()]
    for begin, end in pairwise([-1, *crashes, len(expansion.moments)]):
        calls = [call for call in expansion.inits if begin < call.begun < end]
        ways = [longer for way in ways for longer in _life(task, calls, way, restarts)]
    return ways


def _is_perhaps_ahead(expansion: Expansion, place: int, call: Call) -> bool:
    """Whether the clock was ever so far ahead of what it shows when a list takes effect."""
    instant_us = expansion.moments[afresh_from(expansion, place, call)].at_us
    return any(moment.before_us > instant_us + TOLERATED_US for moment in expansion.moments[:place])


def _life(task: str, calls: list[Call], so_far: Commits, restarts: Collection[int]) -> Iterator[Commits]:
    """Lists take effect as calls return; of those that a crash cut off none, the first, the first two..."""
    ways = [so_far]
    for call in sorted((call for call in calls if call.took_effect), key=answered):
        is_changed = task in call.configs and any(_config(way, task) != call.configs[task] for way in ways)
        early = [True, False] if is_changed else [False]
        place = answered(call)
        afresh = [False, True] if place in restarts and task in call.configs else [False]
        ways = [
            (*way, Commit(place, call, is_early, is_afresh))
            for way, is_early, is_afresh in product(ways, early, afresh)
            if not is_afresh or _config(way, task) == call.configs[task]
        ]
    yield from ways
    cut_off = [call for call in calls if call.slot is not None]
    for count, way, is_early in product(range(1, len(cut_off) + 1), ways, (True, False)):
        commits = tuple(Commit(call.slot or 0, call, is_early) for call in cut_off[:count])
        is_changed = any(call.configs.get(task) != _config(way, task) for call in cut_off[:count])
        if is_changed:
            yield (*way, *commits)
        if commits[0].place in restarts and task in commits[0].call.configs and (is_changed or not is_early):
            yield (*way, commits[0]._replace(is_afresh=True), *commits[1:])


def _config(way: Commits, task: str) -> FormalConfig | None:
    return way[-1].call.configs.get(task) if way else None
