"""The monitor and the formulas are two programs of one specification; on random traces they say the same."""

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import pytest

from duly.verify.formal.formulas import evaluated
from duly.verify.judge import judged
from duly.verify.properties import LIVENESS, PROPERTIES, Outcome
from tests.property.traces import KINDS, Line, encoded, random_trace, shrunk


def said(outcome: Outcome, *, theorems: bool = True) -> dict[str, Any]:
    """Everything in which two judgements must agree, perhaps without what follows from the rest."""
    faults = [fault.line for fault in outcome.faults if not fault.is_unknown_event]
    names = [name for name in PROPERTIES if theorems or name[0] != "T"]
    judgement: dict[str, Any] = {
        "violations": sorted(repr(each) for each in objections(outcome) if each[0] in names),
        "verdicts": {name: outcome.verdict(name) for name in names},
        "first fault": faults[:1],
    }
    if not faults:  # what follows a fault is of no account
        judgement["open"] = {name: outcome.tallies[name].open for name in names}
        judgement["seen"] = (
            outcome.events,
            outcome.starts,
            outcome.crashes,
            outcome.first_us,
            outcome.last_us,
        )
        judgement["unknown events"] = [fault.line for fault in outcome.faults]
    return judgement


def objections(outcome: Outcome) -> Iterable[tuple[str, str | None, int, int | None]]:
    """Property, task, instant and, where it is an event that violates, its line."""
    for violation in outcome.violations:
        # Of several tasks that run when `stop` returns each may be named.
        task = None if violation.property == "S3" else violation.task
        line = None if violation.property in LIVENESS else violation.line
        yield violation.property, task, violation.at_us, line


def differ(lines: list[Line]) -> bool:
    """Whether the two say different things of a trace.

    Where runs of a task overlap, theorems are refuted already; what they say of the rest is of no account.
    """
    formulas, monitor = evaluated(encoded(lines)), judged(encoded(lines))
    is_plain = not any(violation.property == "S1c" for violation in formulas.violations)
    return said(formulas, theorems=is_plain) != said(monitor, theorems=is_plain)


def difference(lines: list[Line]) -> str:
    """What they say of the smallest trace like this one on which they differ."""
    small = shrunk(lines, differ)
    formulas, monitor = said(evaluated(encoded(small))), said(judged(encoded(small)))
    told = [
        f"{key}: the formulas say {formulas[key]}, the monitor says {monitor.get(key)}"
        for key in formulas
        if formulas[key] != monitor.get(key)
    ]
    return "\n".join([*map(json.dumps, small), *told])


def _is_interleaved(lines: list[Line]) -> bool:
    """Whether a process speaks again after another; the monitor then takes back what it said meanwhile."""
    spoken = [proc for proc, _ in groupby(line["proc"] for line in lines if line.get("proc") is not None)]
    return len(spoken) > len(set(spoken))


def is_comparable(lines: list[Line]) -> bool:
    """Whether both read a trace exactly.

    Where the clock is set back twice or inside an initialize, or calls are given up that overlap others, both
    are lenient, each in its own way.
    """
    steps_back = [k for k, line in enumerate(lines) if line["ev"] == "ClockStep" and line["t"] < line["from"]]
    given_up = sum(bool(line.get("void")) for line in lines)
    if len(steps_back) + given_up > 1 or _is_interleaved(lines):
        return False
    outstanding: set[int] = set()
    for line in lines[: steps_back[0]] if steps_back else []:
        match line["ev"]:
            case "InitStart":
                outstanding.add(line["call"])
            case "InitEnd":
                outstanding.discard(line["call"])
            case "Crash":
                outstanding.clear()
    return not outstanding


def agree(seed: int, kind: str) -> None:
    """Fail with the smallest trace on which the two differ, and how to make this one again."""
    lines = random_trace(seed, kind)
    if is_comparable(lines) and differ(lines):
        pytest.fail(f"random_trace({seed}, {kind!r})\n{difference(lines)}")


@pytest.mark.parametrize("first", range(0, 400, 100))
@pytest.mark.parametrize("kind", KINDS)
def test_monitor_and_formulas_agree(kind: str, first: int) -> None:
    """The monitor and the formulas object to the same events and deadlines, and leave the same open."""
    for seed in range(first, first + 100):
        agree(seed, kind)


# Not green yet, and left so on purpose: rare kinds of traces on which the two differ are still to be
# settled, such as random_trace(701121, "right"), (703704, "right"), (803562, "right"), (800186, "wild").
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_monitor_and_formulas_agree_on_many(kind: str) -> None:
    """The monitor and the formulas agree on thousands of traces, the same every time."""
    for seed in range(7000):
        agree(seed, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_traces_come_to_the_rare_places(kind: str) -> None:
    """Among a few hundred traces of each kind every kind of event and of doubt occurs."""
    events = {line["ev"] for seed in range(300) for line in random_trace(seed, kind)}
    assert events >= {
        "InitStart",
        "InitEnd",
        "StopStart",
        "StopEnd",
        "RunStart",
        "RunEnd",
        "Crash",
        "ClockStep",
    }


def test_every_property_is_violated_by_some_trace() -> None:
    """Random traces violate every property sooner or later, so that agreement on each means something."""
    missing = set(PROPERTIES)
    for seed in range(3000):
        kind = KINDS[seed % len(KINDS)]
        tallies = judged(encoded(random_trace(seed, kind))).tallies
        missing -= {name for name, tally in tallies.items() if tally.violated}
        if not missing:
            return
    assert not missing


def test_right_traces_are_mostly_right() -> None:
    """Most traces of the tiny scheduler violate nothing: agreement is not only about what is wrong."""
    outcomes = [judged(encoded(random_trace(seed, "right"))) for seed in range(200)]
    spotless = [outcome for outcome in outcomes if not outcome.violations and not outcome.faults]
    assert len(spotless) > 80
