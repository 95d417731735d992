"""The hunt: lives one small world after another until something objects, or the budget is used up.

Several kinds of worlds take turns: random lives with every fault there is, broad ones and dense ones, scenarios
with a crash at one of their points, every order of a few actions, months of a calendar, and lives of an app, with
entries and with a named limit, too. It runs in a process of its own whose `duly` is the mutant, and says in one line of
JSON what it found. An objection counts only if the sound scheduler lives in the same world without one. Budgets are processor time, so a busy machine changes nothing about the outcome. It
must not know which mutant it hunts.
"""

import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, count, product
from pathlib import Path
from types import FrameType

import msgspec
from tests.simulation import Cut, Life, Plan, Point, crash_points, drawn, lived, tiny_world
from tests.simulation.app_lives import AppPlan, app_drawn, app_faults, entries_drawn, limited_drawn
from tests.simulation.enumeration import orders
from tests.simulation.plan import Crash
from tests.simulation.scenarios import SCENARIOS
from tools.mutants.worlds import calendar, crowded

import duly

LIFE_S = 5
"""Processor time after which a life is taken to hang; a sound one needs a tenth of a second."""

World = tuple[str, Plan | AppPlan]


class Finding(msgspec.Struct, frozen=True):
    """What a hunt has come to."""

    killed_by: str
    """The properties violated, or what else objects; empty if nothing does."""
    reason: str
    where: str
    """The life in which it was found, in words that let one live it again."""
    lives: int
    seconds: float

    @property
    def is_kill(self) -> bool:
        """Whether anything objected."""
        return bool(self.killed_by)


# --- worlds ---


def worlds() -> Iterator[World]:
    """The worlds to live, one kind after the other in turn; most of them without end."""
    crowds = _seeds("crowd", crowded)  # twice in each turn: they are short, and find the most
    kinds = [_seeds("seed", drawn), crowds, _crashes(), _orders(), crowds, _seeds("calendar", calendar)]
    kinds += [_seeds("app", app_drawn), _seeds("entries", entries_drawn), _seeds("limited", limited_drawn)]
    while kinds:
        for kind in list(kinds):
            world = next(kind, None)
            if world is None:
                kinds.remove(kind)
            else:
                yield world


def _seeds(kind: str, plan_of: Callable[[int], Plan | AppPlan]) -> Iterator[World]:
    return ((f"{kind} {seed}", plan_of(seed)) for seed in count(1))


def _crashes() -> Iterator[World]:
    """Every scenario, and then every crash in it: around writes first, mixed but always in the same order."""
    yield from ((f"scenario {name}", plan) for name, plan in SCENARIOS.items())
    cases = [
        (name, point, after, cut)
        for name, plan in SCENARIOS.items()
        for point, number in crash_points(plan).items()
        for after, cut in product(range(number), (Cut.KILL, Cut.LOSE, Cut.ANY))
    ]
    random.Random("crashes").shuffle(cases)
    cases.sort(key=lambda case: (case[1] is Point.AWAIT, case[3] is not Cut.KILL))
    for name, point, after, cut in cases:
        plan = SCENARIOS[name]
        crash = Crash(-1, point, after, cut)
        yield f"{name}, {cut} at {point} {after}", replace(plan, actions=(crash, *plan.actions))


def _orders() -> Iterator[World]:
    for order in chain.from_iterable(orders(depth) for depth in count(1)):
        yield " ".join(order), tiny_world(order)


# --- objections ---

_OBJECTIONS = (
    ("the store holds", "the wrong list in the store"),
    ("the row of", "a row that contradicts the trace"),
    ("the program could not be brought up", "not to be brought up again"),
    ("a list that is not valid", "an invalid list accepted"),
    ("time stands still", "time standing still"),
    ("line ", "an impossible trace"),
)


def objection_to(plan: Plan | AppPlan) -> tuple[str, str] | None:
    """Who objects when *plan* is lived, and why; None if nobody does."""
    if isinstance(plan, Plan):
        return objection(lived(plan))
    faults, outcome = app_faults(plan)
    if outcome.violations:
        names = {each.property for each in outcome.violations}
        return ", ".join(sorted(names)), outcome.violations[0].reason
    if outcome.faults:
        return "an impossible trace", outcome.faults[0].reason
    # The checker demands no order of what waits for room, and no start in time.
    return ("the model of an app", faults[0]) if faults else None


def objection(life: Life) -> tuple[str, str] | None:
    """Who objects to *life*, and why; None if nobody does."""
    if life.is_sound:
        return None
    reason = life.faults[0]
    if violated := list(dict.fromkeys(each.property for each in life.outcome.violations)):
        return ", ".join(sorted(violated)), reason
    known = (words for beginning, words in _OBJECTIONS if reason.startswith(beginning))
    return next(known, "a complaint of asyncio"), reason


class Hunt:
    """One hunt: what was lived so far, and what it has come to."""

    def __init__(self, sound: Path, *, life_s: float = LIFE_S) -> None:
        self._sound = sound
        self._life_s = life_s
        self._lives = 0
        self._world: World = ("the beginning", drawn(1))

    def finding(self, budget_s: float) -> Finding:
        """Live worlds until something objects or *budget_s* seconds of processor time have passed."""
        signal.signal(signal.SIGPROF, self._on_hang)
        for self._world in worlds():
            self._lives += 1
            objected = self._objected()
            if objected is not None and self._is_confirmed():
                return self._found(*objected)
            if time.process_time() > budget_s:
                break
        return self._found("", "")

    def _objected(self) -> tuple[str, str] | None:
        signal.setitimer(signal.ITIMER_PROF, self._life_s)
        try:
            return objection_to(self._world[1])
        except BaseException as error:  # a callback's exit that gets out is a finding, too
            return f"an exception: {type(error).__name__}", repr(error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _is_confirmed(self) -> bool:
        """Whether the sound scheduler lives in the same world without objection."""
        if Path(duly.__file__).is_relative_to(self._sound):
            return True
        paths = os.pathsep.join([str(self._sound), *os.environ["PYTHONPATH"].split(os.pathsep)[1:]])
        judging = subprocess.run(
            [sys.executable, "-m", "tools.mutants.hunt", "judge", str(self._sound)],
            env={**os.environ, "PYTHONPATH": paths},
            cwd=self._sound,  # which comes before all paths
            input=pickle.dumps(self._world[1]),
            check=False,
        )
        return judging.returncode == 0

    def _on_hang(self, _signal: int, _frame: FrameType | None) -> None:
        # Raising would not do: a scheduler survives whatever is raised in it.
        signal.setitimer(signal.ITIMER_PROF, 0)
        tell(self._found("a hang", f"one life took more than {self._life_s} s"))
        os._exit(0)

    def _found(self, killed_by: str, reason: str) -> Finding:
        where = self._world[0] if killed_by else ""
        return Finding(killed_by, reason, where, self._lives, round(time.process_time(), 1))


def tell(finding: Finding) -> None:
    """Hand *finding* to the process that started this one."""
    os.write(sys.stdout.fileno(), msgspec.json.encode(finding) + b"\n")


def main() -> None:
    """`judge FOLDER`: whether the plan on stdin is lived soundly. `hunt FOLDER SOUND SECONDS`: tell of a hunt."""
    task, folder, *rest = sys.argv[1:]
    logging.getLogger("duly").setLevel(logging.CRITICAL)  # what fails in an app is meant to
    assert Path(duly.__file__).is_relative_to(folder), f"hunting {duly.__file__}, which is not in {folder}"
    if task == "judge":
        plan = pickle.load(sys.stdin.buffer)
        sys.exit(0 if objection_to(plan) is None else 1)
    sound, budget_s = rest
    tell(Hunt(Path(sound)).finding(float(budget_s)))


if __name__ == "__main__":
    main()
