"""The courses that events may have taken for one task, where a trace leaves it open (docs/decisions/0011).

A course is a choice of what nobody outside can know: as of when each list took effect, which ends a crash
left unwritten, which steps of the clock went unnoticed, what an unknown store held. Every combination is
named here, at whatever cost; `macros.py` works out what follows, and which starts a crash left uncalled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product
from typing import NamedTuple

from duly.verify.formal.expansion import TOLERATED_US, Call, Config, Expansion, Moment, Run, answered
from duly.verify.trace import micros

MOST_COURSES = 16_384

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
    """A list takes effect at a position; *is_early*: as if it had done so when it was called."""

    place: int
    call: Call
    is_early: bool

    @property
    def instant(self) -> int:
        """As of which position it took effect."""
        return self.call.begun if self.is_early else self.place


Commits = tuple[Commit, ...]


@dataclass(frozen=True, slots=True)
class Course:
    """One choice of everything."""

    commits: Commits
    """Where each list took effect, in order."""
    lost: frozenset[Run]
    """Runs whose end was not written before the crash."""
    steps: tuple[tuple[int, str], ...]
    """For every step back: noticed or not."""
    store: str
    """What the store held when the first list took effect."""


def courses(expansion: Expansion, task: str, active: Sequence[bool]) -> list[Course]:
    """Every course that the events may have taken for *task*. Raises ValueError if they are too many."""
    crashes = [index for index, moment in enumerate(expansion.moments) if moment.name == "Crash"]
    lost = [(run, None) for run in expansion.runs if run.task == task and _is_perhaps_lost(expansion, run)]
    steps = list(_steps(expansion, task, active))
    choices = (_commits(expansion, task, crashes), product(*lost), product(*steps), _stores(expansion, task))
    found = [
        Course(commits, frozenset(run for run in runs if run is not None), ways, store)
        for commits, runs, ways, store in islice(product(*choices), MOST_COURSES + 1)
    ]
    if len(found) > MOST_COURSES:
        raise ValueError(f'more than {MOST_COURSES} courses for task "{task}"; use the monitor')
    return found


def next_loss(expansion: Expansion, index: int) -> int | None:
    """The first crash, or stop that raised, less than the persist window after a position."""
    for later in range(index + 1, len(expansion.moments)):
        moment = expansion.moments[later]
        if is_loss(moment):
            passed_us = moment.steady_us - expansion.moments[index].steady_us
            return later if passed_us < micros(expansion.header.persist_window_ms) else None
    return None


def is_loss(moment: Moment) -> bool:
    """Whether what was written lately may be lost: at a crash, and at a stop that raised."""
    is_raised = (
        moment.name == "SE" and moment.call is not None and not moment.call.ok and not moment.call.is_void
    )
    return moment.name == "Crash" or is_raised


def _is_perhaps_lost(expansion: Expansion, run: Run) -> bool:
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


def _commits(expansion: Expansion, task: str, crashes: list[int]) -> list[Commits]:
    """Every way in which the lists may have taken effect, one life of a process after the other."""
    ways: list[Commits] = [()]
    for begin, end in pairwise([-1, *crashes, len(expansion.moments)]):
        calls = [call for call in expansion.inits if begin < call.begun < end]
        ways = [longer for way in ways for longer in _life(task, calls, way)]
    return ways


def _life(task: str, calls: list[Call], so_far: Commits) -> Iterator[Commits]:
    """Lists take effect as calls return; of those that a crash cut off none, the first, the first two..."""
    ways = [so_far]
    for call in sorted((call for call in calls if call.took_effect), key=answered):
        is_changed = task in call.configs and any(_config(way, task) != call.configs[task] for way in ways)
        early = [True, False] if is_changed else [False]
        ways = [(*way, Commit(answered(call), call, is_early)) for way in ways for is_early in early]
    yield from ways
    cut_off = [call for call in calls if call.slot is not None]
    for count, way, is_early in product(range(1, len(cut_off) + 1), ways, (True, False)):
        if any(call.configs.get(task) != _config(way, task) for call in cut_off[:count]):
            yield (*way, *(Commit(call.slot or 0, call, is_early) for call in cut_off[:count]))


def _config(way: Commits, task: str) -> Config | None:
    return way[-1].call.configs.get(task) if way else None
