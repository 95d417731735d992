"""Right histories of a cluster are found right, by both checkers; one fault sown into them is found."""

import os
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from random import Random
from typing import Any

import pytest

from duly.verify import Verdict
from duly.verify.cluster import judged_together
from duly.verify.properties import Outcome
from duly.verify.targets import Account, accounted
from tests.property.cluster_histories import MINUTE_MS, TICK_MS, Line, Story, encoded, shard_of

SEEDS = int(os.environ.get("DULY_SEEDS", "2000")) // 50
MINUTES = 12
Files = list[list[Line]]
Sow = Callable[[Files, Random], bool]


def outcome_of(files: Files) -> Outcome:
    return judged_together(chain.from_iterable(map(encoded, files)))


def account_of(files: Files) -> Account:
    return accounted(chain.from_iterable(map(encoded, files)))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_right_histories_hold(seed: int) -> None:
    """What a right cluster does, under every disturbance, both checkers find right."""
    files = Story(seed).told(MINUTES).files
    outcome, account = outcome_of(files), account_of(files)
    assert not outcome.violations, outcome.violations
    assert not outcome.fault_count, outcome.faults
    assert outcome.terms_missing == 0
    assert account.is_right, account.sentences()
    assert account.runs == outcome.starts > 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_member_alone_is_held_against_nobody(seed: int) -> None:
    """Of a member whose companions' traces are missing nothing wrong is said."""
    for lines in Story(seed).told(MINUTES).files:
        outcome = outcome_of([lines])
        assert not outcome.violations, outcome.violations
        assert not outcome.fault_count, outcome.faults


# --- faults ---


def runs_of(files: Files) -> Iterator[tuple[int, int, int]]:
    """The file, the start and the end of every run that ended well, not cut off in between."""
    for number, lines in enumerate(files):
        for at, line in enumerate(lines):
            if line["ev"] != "RunStart":
                continue
            for later in range(at + 1, len(lines)):
                other = lines[later]
                if other["ev"] in {"Lost", "InitStart"} or other.get("proc") != line["proc"]:
                    break
                if (other["ev"], other.get("id"), other.get("run")) == ("RunEnd", line["id"], line["run"]):
                    if other["ok"]:
                        yield number, at, later
                    break


def is_quiet(files: Files, from_ms: float, to_ms: float) -> bool:
    """Whether nothing but starts, ends and ticks happens then, and nobody dies or freezes."""
    for lines in files:
        within = [line for line in lines[1:] if from_ms <= line["t"] <= to_ms]
        if any(line["ev"] not in {"RunStart", "RunEnd", "Tick"} for line in within):
            return False
        signs = [from_ms, *(line["t"] for line in within), to_ms]
        if within and any(after - before > TICK_MS + 500 for before, after in pairwise(signs)):
            return False
    return bool(max(lines[-1]["t"] for lines in files) > to_ms)


def holders(files: Files, shard: int, at_ms: float) -> list[int]:
    """The files of those that hold *shard* then, by their own account."""
    held = []
    for number, lines in enumerate(files):
        mine = [line for line in lines[1:] if line["t"] <= at_ms and line.get("shard", shard) == shard]
        mine = [line for line in mine if line["ev"] in {"Taken", "Given", "Lost", "InitStart", "StopEnd"}]
        if mine and mine[-1]["ev"] == "Taken":
            held.append(number)
    return held


def inserted(lines: list[Line], *new: Line) -> None:
    """Put events where their times belong."""
    at = next((at for at, line in enumerate(lines) if at and line["t"] > new[0]["t"]), len(lines))
    lines[at:at] = new


def run_at(lines: list[Line], task: str, at_ms: float) -> list[Line]:
    """The start and the end of a run that nobody ordered."""
    before = [line for line in lines[1:] if line["t"] <= at_ms]
    common = {"proc": before[-1]["proc"], "id": task, "run": 9_000}
    return [
        {"ev": "RunStart", "t": at_ms, **common},
        {"ev": "RunEnd", "t": at_ms, "ok": True, **common},
    ]


def double_start(files: Files, random: Random) -> bool:
    """A run that succeeded is made a second time at once."""
    quiet = [
        each
        for each in runs_of(files)
        if is_quiet(files, files[each[0]][each[1]]["t"] - 15_000, files[each[0]][each[2]]["t"] + 15_000)
    ]
    fits = [
        (number, end)
        for number, _, end in quiet
        if 5_000 < files[number][end]["t"] % MINUTE_MS < 50_000
        and number in holders(files, shard_of(files[number][end]["id"]), files[number][end]["t"])
    ]
    if not fits:
        return False
    number, end = random.choice(fits)
    line = files[number][end]
    files[number][end + 1 : end + 1] = run_at(files[number][: end + 1], line["id"], line["t"])
    return True


def lost_due(files: Files, random: Random) -> bool:
    """The run for a due is not made, and nothing is there to excuse it."""
    fits = []
    for number, start, end in runs_of(files):
        at_ms, task = files[number][start]["t"], files[number][start]["id"]
        others = [
            line["t"]
            for line in chain.from_iterable(lines[1:] for lines in files)
            if line["ev"] == "RunStart" and line["id"] == task and at_ms < line["t"] < at_ms + 45_000
        ]
        ends = [
            line
            for line in chain.from_iterable(lines[1:] for lines in files)
            if line["ev"] == "RunEnd" and line["id"] == task and line["t"] <= at_ms
        ]
        is_due = at_ms % MINUTE_MS < 400
        is_first = not ends or max(ends, key=lambda line: line["t"])["ok"]
        if is_due and is_first and not others and is_quiet(files, at_ms - 15_000, at_ms + 45_000):
            fits.append((number, start, end))
    if not fits:
        return False
    number, start, end = random.choice(fits)
    del files[number][end], files[number][start]
    return True


def start_without_hold(files: Files, random: Random) -> bool:
    """A member starts a task of a shard that another one holds."""
    fits = []
    for number, start, end in runs_of(files):
        line, at_ms = files[number][start], files[number][end]["t"] + 1_500
        if is_quiet(files, at_ms - 10_000, at_ms + 10_000):
            others = set(range(len(files))) - {*holders(files, shard_of(line["id"]), at_ms)}
            alive = [
                other
                for other in others
                if any(abs(each["t"] - at_ms) < 6_000 and each["ev"] == "Tick" for each in files[other][1:])
            ]
            fits += [(other, line["id"], at_ms) for other in alive]
    if not fits:
        return False
    number, task, at_ms = random.choice(fits)
    inserted(files[number], *run_at(files[number], task, at_ms))
    return True


def stale_start(files: Files, random: Random) -> bool:
    """A member that was silent too long starts something before it notices."""
    fits = []
    for number, lines in enumerate(files):
        for at, line in enumerate(lines):
            held = [
                each for each in lines[:at] if each["ev"] == "Taken" and each["shard"] == line.get("shard")
            ]
            is_held = bool(held) and held[-1]["term"] == line.get("term")
            if line["ev"] == "Lost" and is_held and lines[at - 1]["t"] < line["t"] - 6_000:
                taken = any(
                    other["ev"] == "Taken"
                    and other["shard"] == line["shard"]
                    and other["term"] > line["term"]
                    for others in files
                    for other in others[1:]
                    if other["t"] < line["t"] - 1_000
                )
                tasks = {each["id"] for each in chain.from_iterable(files) if each["ev"] == "RunStart"}
                fits += [
                    (number, at, task) for task in sorted(tasks) if taken and shard_of(task) == line["shard"]
                ]
    if not fits:
        return False
    number, at, task = random.choice(fits)
    line = files[number][at]
    files[number][at:at] = run_at(files[number][: at + 1], task, line["t"])
    return True


def two_holders(files: Files, random: Random) -> bool:
    """A shard is taken by two for one term."""
    fits = [
        (number, line)
        for number, lines in enumerate(files)
        for line in lines
        if line["ev"] == "Taken"
        for other in [next((other for other in range(len(files)) if other != number), None)]
        if other is not None and files[other][1]["t"] < line["t"] < files[other][-1]["t"]
    ]
    if not fits:
        return False
    number, line = random.choice(fits)
    lines = next(lines for other, lines in enumerate(files) if other != number)
    before = [each for each in lines[1:] if each["t"] <= line["t"]]
    inserted(lines, {**line, "proc": before[-1]["proc"], "from": "lost"})
    return True


def old_edition(files: Files, random: Random) -> bool:
    """A task that a newer list removed is started by a member that has not heard of that list."""
    fits = []
    editions = sorted((line for lines in files for line in lines if line["ev"] == "Edition"), key=_number)
    for before, after in pairwise(editions):
        gone = {reg[0] for reg in before["regs"]} - {reg[0] for reg in after["regs"]}
        for number, lines in enumerate(files):
            for at, line in enumerate(lines):
                is_late = line["ev"] == "Given" and after["t"] + 800 < line["t"] < after["t"] + 3_000
                if is_late and not any(each["ev"].startswith("Stop") for each in lines[max(at - 4, 1) : at]):
                    tasks = [task for task in sorted(gone) if shard_of(task) == line["shard"]]
                    fits += [(number, at, task, after["t"]) for task in tasks]
    if not fits:
        return False
    number, at, task, since_ms = random.choice(fits)
    inserted(files[number], *run_at(files[number], task, since_ms + 700))
    return True


def _number(line: Line) -> Any:
    return line["edition"]


def missing_takeover(files: Files, random: Random) -> bool:
    """Nobody takes the shard of a dead member, although another is there."""
    fits = []
    for lines in files:
        for line in lines:
            if line["ev"] == "Taken" and line["from"] == "lost":
                others = [
                    each
                    for each in chain.from_iterable(other[1:] for other in files)
                    if each.get("shard") == line["shard"] and each["t"] > line["t"]
                ]
                later = [each["t"] for each in others if each["ev"] == "Taken"]
                is_quiet = is_quiet_but(files, line, min(later, default=line["t"] + 40_000))
                if is_quiet and is_awake(lines, line["t"], line["t"] + 30_000):
                    fits.append(line)
    if not fits:
        return False
    line = random.choice(fits)
    key = line["shard"], line["term"]
    for lines in files:
        lines[:] = [each for each in lines if (each.get("shard"), each.get("term")) != key]
        known = {(each["proc"], each["id"], each["run"]) for each in lines if each["ev"] == "RunStart"}
        lines[:] = [
            each
            for each in lines
            if each["ev"] != "RunEnd" or (each["proc"], each["id"], each["run"]) in known
        ]
    return True


def is_awake(lines: list[Line], from_ms: float, to_ms: float) -> bool:
    """Whether a member gives signs of life all the time."""
    signs = [from_ms, *(line["t"] for line in lines[1:] if from_ms <= line["t"] <= to_ms), to_ms]
    return not any(after - before > TICK_MS + 500 for before, after in pairwise(signs))


def is_quiet_but(files: Files, line: Line, until_ms: float) -> bool:
    """Whether from *line* on nothing but its own kind happens for long enough."""
    if until_ms < line["t"] + 30_000 or not all(lines[-1]["t"] > until_ms for lines in files):
        return False
    return not any(
        line["t"] < each["t"] <= line["t"] + 30_000
        and each["ev"] not in {"RunStart", "RunEnd", "Tick", "Taken"}
        for lines in files
        for each in lines[1:]
    )


CALM = {double_start, lost_due, start_without_hold}
"""What needs a quiet time, so that nothing excuses it."""


def sown_histories(sow: Sow) -> Iterator[tuple[int, Files]]:
    """A few histories with a fault in each."""
    sown = 0
    for seed in range(80):
        files = Story(seed, trouble=0.005 if sow in CALM else 0.02).told(MINUTES).files
        if sow(files, Random(seed)):
            sown += 1
            yield seed, files
        if sown == 6:
            return
    pytest.fail("too few histories have a place for it")


@pytest.mark.parametrize(
    ("sow", "found_by"),
    [
        (double_start, {"S1d", "T3", "T4"}),
        (lost_due, {"L1"}),
        (start_without_hold, {"C3"}),
        (stale_start, {"C3"}),
        (two_holders, {"C1"}),
        (missing_takeover, {"C5"}),
    ],
)
def test_a_fault_is_found(sow: Sow, found_by: set[str]) -> None:
    """A single fault in a right history is found, wherever it is."""
    for seed, files in sown_histories(sow):
        outcome = outcome_of(files)
        violated = {each.property for each in outcome.violations}
        assert violated & found_by, (seed, violated, outcome.faults)


def test_a_start_right_after_a_newer_list_is_in_doubt() -> None:
    """It may have been written before that list came: that is told, and held against nobody."""
    for seed, files in sown_histories(old_edition):
        outcome = outcome_of(files)
        assert (outcome.verdict("C6"), outcome.tallies["C6"].unknown) == (Verdict.INCONCLUSIVE, 1), seed


@pytest.mark.parametrize("sow", [double_start, lost_due])
def test_the_other_checker_finds_it_too(sow: Sow) -> None:
    """A start too many is not accounted for, and a due without a start is missed."""
    for seed, files in sown_histories(sow):
        account = account_of(files)
        assert account.unaccounted if sow is double_start else account.missed, (seed, account)
